//! Flags for the default drain policy; annotations of the Machine, its owner or its Cluster
//! override it.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use refit_core::node::{DrainPolicy, NotATime, PodPolicy, parse_limit, parse_span};

/// Defaults of drains.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DrainFlags {
    /// Wait for, evict or leave pods that no controller would recreate; overridden by annotation
    /// refit.dev/drain-unreplicated of a Machine, its owner or its Cluster
    #[arg(long, value_enum, env = "REFIT_DRAIN_UNREPLICATED", default_value_t = Pods::Wait)]
    drain_unreplicated: Pods,
    /// Wait for, evict or leave pods that have an emptyDir; annotation
    /// refit.dev/drain-local-storage
    #[arg(long, value_enum, env = "REFIT_DRAIN_LOCAL_STORAGE", default_value_t = Pods::Evict)]
    drain_local_storage: Pods,
    /// Evict pods with this grace period, such as 30s [default: their own]; annotation
    /// refit.dev/drain-grace-period
    #[arg(long, value_name = "TIME", env = "REFIT_DRAIN_GRACE_PERIOD", value_parser = parse_span)]
    drain_grace_period: Option<SignedDuration>,
    /// Emit a warning event when a drain takes longer than this, or Never; annotation
    /// refit.dev/drain-notify-after
    #[arg(long, value_name = "TIME", env = "REFIT_DRAIN_NOTIFY_AFTER", default_value = "15m")]
    drain_notify_after: Limit,
    /// Delete a pod despite its budget when its eviction has been refused for this time, or Never;
    /// annotation refit.dev/drain-delete-after
    #[arg(long, value_name = "TIME", env = "REFIT_DRAIN_DELETE_AFTER", default_value = "Never")]
    drain_delete_after: Limit,
    /// Delete a pod without a grace period when it still exists after this time, or Never;
    /// annotation refit.dev/drain-force-after
    #[arg(long, value_name = "TIME", env = "REFIT_DRAIN_FORCE_AFTER", default_value = "Never")]
    drain_force_after: Limit,
    /// Wait this long for load balancers to stop using a node before its pods are evicted;
    /// annotation refit.dev/drain-load-balancer-wait
    #[arg(
        long, value_name = "TIME", env = "REFIT_DRAIN_LOAD_BALANCER_WAIT", default_value = "0s",
        value_parser = parse_span
    )]
    drain_load_balancer_wait: SignedDuration,
}

/// A duration, or none for `Never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<SignedDuration>);

impl FromStr for Limit {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        parse_limit(text).map(Self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Pods {
    /// Wait until the pods are gone
    Wait,
    /// Evict the pods like all others
    Evict,
    /// Leave the pods on the node during its restart
    Leave,
}

impl Pods {
    fn policy(self) -> PodPolicy {
        match self {
            Self::Wait => PodPolicy::Wait,
            Self::Evict => PodPolicy::Evict,
            Self::Leave => PodPolicy::Leave,
        }
    }
}

impl DrainFlags {
    /// The policy that the flags set.
    pub(crate) fn policy(&self) -> DrainPolicy {
        DrainPolicy {
            unreplicated: self.drain_unreplicated.policy(),
            local_storage: self.drain_local_storage.policy(),
            grace: self.drain_grace_period,
            notify_after: self.drain_notify_after.0,
            delete_after: self.drain_delete_after.0,
            force_after: self.drain_force_after.0,
            load_balancer_wait: self.drain_load_balancer_wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        drain: DrainFlags,
    }

    #[test]
    fn without_flags_the_drain_policy_is_the_default() {
        let program = Program::parse_from(["refit-controller"]);
        assert_eq!(program.drain.policy(), DrainPolicy::default());
    }

    #[test]
    fn every_flag_is_taken_and_a_wrong_time_is_refused() {
        let flags = [
            "refit-controller",
            "--drain-unreplicated=Evict",
            "--drain-local-storage=Leave",
            "--drain-grace-period=30s",
            "--drain-notify-after=Never",
            "--drain-delete-after=1h",
            "--drain-force-after=1h30m",
            "--drain-load-balancer-wait=20s",
        ];
        let policy = Program::parse_from(flags).drain.policy();
        let expected = DrainPolicy {
            unreplicated: PodPolicy::Evict,
            local_storage: PodPolicy::Leave,
            grace: Some(SignedDuration::from_secs(30)),
            notify_after: None,
            delete_after: Some(SignedDuration::from_hours(1)),
            force_after: Some(SignedDuration::from_mins(90)),
            load_balancer_wait: SignedDuration::from_secs(20),
        };
        assert_eq!(policy, expected);
        assert!(Program::try_parse_from(["refit-controller", "--drain-delete-after=5"]).is_err());
    }
}
