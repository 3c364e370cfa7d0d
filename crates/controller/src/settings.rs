//! What an operator may choose.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use refit_core::{
    change::OnUncovered,
    node::{DrainPolicy, Reboot},
};
use refit_runtime::plan_signing::PlanSigner;

/// Where HostPlans are: what the agents read, and report to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanLocation {
    /// In the workload cluster of each host, `refit-system/<node>`.
    #[default]
    Workload,
    /// In the management cluster, `<namespace>/<machine>`: where hosts reach that, or where workload
    /// clusters take no CustomResourceDefinitions.
    Management,
}

/// What an operator may choose for the whole controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What happens to a change that no updater covers, where neither owner nor Cluster says.
    pub on_uncovered: OnUncovered,
    /// How drains go about their work, where neither Machine, owner nor Cluster says.
    pub drain: DrainPolicy,
    /// When hosts reboot. No flag sets it yet: tests on real hosts do.
    pub reboot: Reboot,
    /// Where HostPlans are.
    pub plan_location: PlanLocation,
    /// Signs HostPlans, for agents that ask for it.
    pub plan_signer: Option<Arc<PlanSigner>>,
    /// How old an agent's report may be before its host counts as unknown. The agent reports every
    /// five minutes: two reports may get lost.
    pub report_stale_after: Duration,
    /// How long before the caller's deadline a hook answers that it ran out of time.
    pub hook_margin: Duration,
    /// How many NodeUpdates are worked on at once.
    pub node_update_workers: usize,
    /// How many UpdateGroups are worked on at once.
    pub update_group_workers: usize,
}

impl Settings {
    /// How old a report may be, as its age is compared.
    pub(crate) fn stale_after(&self) -> SignedDuration {
        SignedDuration::try_from(self.report_stale_after).unwrap_or(SignedDuration::from_mins(15))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on_uncovered: OnUncovered::Preserve,
            drain: DrainPolicy::default(),
            reboot: Reboot::IfNeeded,
            plan_location: PlanLocation::Workload,
            plan_signer: None,
            report_stale_after: Duration::from_mins(15),
            hook_margin: Duration::from_secs(1),
            node_update_workers: 16,
            update_group_workers: 8,
        }
    }
}
