//! Decides what to do about a started step, as a pure function of its unit and the host.

use std::time::Duration;

use jiff::Timestamp;
use refit_kinds::refit::{FailureKind, HostStep};

use crate::{
    host::{Command, Evidence, Job, Since, UnitState},
    reason::Failure,
};

/// Reason of a step that a reboot of its host interrupted.
pub(crate) const INTERRUPTED: &str = "Interrupted";
/// How long a reboot command that failed counts as killed by the shutdown that it started: systemd
/// stops it together with everything else.
const SHUTDOWN_GRACE: Duration = Duration::from_mins(1);

/// What to do about a step that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Check again later.
    Wait,
    /// Inspect the host, then judge again.
    Look,
    /// Start its unit: the step has not started, or may be started again.
    StartUnit,
    /// The step succeeded.
    Done,
    /// The step failed.
    Fail(Failure),
}

/// What is known about a started step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The job that was started.
    pub job: &'a Job,
    /// State of the host when the step started.
    pub since: &'a Since,
    /// Id of the current boot.
    pub boot_id: &'a str,
    /// State of the step's unit.
    pub unit: &'a UnitState,
    /// What the host itself shows, once it has been inspected.
    pub evidence: Option<&'a Evidence>,
    /// How long this process has known that the unit ended; monotonic, because clocks jump.
    pub waited: Duration,
    /// The current time. It is only used in messages.
    pub now: Timestamp,
}

/// Judges a started step from its unit and, once inspected, from the host itself.
///
/// | unit | command | host shows | verdict |
/// |---|---|---|---|
/// | runs | any | | wait |
/// | unknown, same boot | idempotent | | start it |
/// | unknown, same boot | other | done / not | done / start it |
/// | unknown, another boot | any | done / not | done / failed: interrupted |
/// | succeeded | reboot | not yet | wait, up to its timeout |
/// | failed | reboot | not yet | wait a minute: the shutdown may have ended it |
/// | succeeded | any | done / not | done / failed |
/// | failed | idempotent | | failed |
/// | failed | other | done / not | done / failed |
///
/// A unit that systemd no longer knows either never started or ended while the agent was away: only
/// the host shows which. A step that a reboot interrupted counts as a failed attempt, so that a
/// step which crashes its host is not repeated for ever.
pub(crate) fn judge(known: Known<'_>) -> Verdict {
    let Known { job, unit, .. } = known;
    match unit {
        UnitState::Running => Verdict::Wait,
        UnitState::Unknown => unknown(known),
        UnitState::Exited { code: 0, .. } => match known.evidence {
            None => Verdict::Look,
            Some(Evidence::Done) => Verdict::Done,
            Some(Evidence::Missing { .. })
                if reboots_soon(known, u64::from(job.timeout_seconds)) =>
            {
                Verdict::Wait
            }
            Some(Evidence::Missing { what }) => Verdict::Fail(Failure::not_verified(what)),
            Some(Evidence::Refused { kind, reason, what }) => {
                Verdict::Fail(Failure::new(*kind, reason, what.clone()))
            }
        },
        UnitState::Exited { code, output_tail } => {
            if !job.command.rules().idempotent {
                match known.evidence {
                    None => return Verdict::Look,
                    Some(Evidence::Done) => return Verdict::Done,
                    Some(_) if reboots_soon(known, SHUTDOWN_GRACE.as_secs()) => {
                        return Verdict::Wait;
                    }
                    Some(_) => {}
                }
            }
            let took = known.now.duration_since(known.since.at);
            Verdict::Fail(Failure::of_exit(job, *code, output_tail, took))
        }
    }
}

fn unknown(known: Known<'_>) -> Verdict {
    let same_boot = known.boot_id == known.since.boot_id;
    if same_boot && known.job.command.rules().idempotent {
        return Verdict::StartUnit;
    }
    match known.evidence {
        None => Verdict::Look,
        Some(Evidence::Done) => Verdict::Done,
        Some(_) if same_boot => Verdict::StartUnit,
        Some(Evidence::Refused { kind, reason, what }) => {
            Verdict::Fail(Failure::new(*kind, reason, what.clone()))
        }
        Some(Evidence::Missing { what }) => Verdict::Fail(Failure::new(
            FailureKind::Retriable,
            INTERRUPTED,
            format!("the host rebooted during the step, and {what}"),
        )),
    }
}

/// The command that requests a reboot ends long before the host reboots.
fn reboots_soon(known: Known<'_>, within_seconds: u64) -> bool {
    let boots = matches!(
        known.job.command,
        Command::Step(HostStep::Reboot {} | HostStep::RebootIfRequired {})
    );
    boots && known.waited < Duration::from_secs(within_seconds)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
