//! What to do about a step that has started, as a pure function of its unit and of the host.

use std::time::Duration;

use jiff::Timestamp;
use refit_kinds::refit::{FailureKind, HostStep};

use crate::{
    host::{Command, Evidence, Job, Since, UnitState},
    reason::Failure,
};

/// How long a reboot command that ended badly is believed to be a victim of the very shutdown that
/// it began: systemd ends it with everything else.
const SHUTDOWN_GRACE: Duration = Duration::from_mins(1);

/// What to do about a step that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask again later.
    Wait,
    /// Look at the host, then judge again.
    Look,
    /// It never started, or may be started again: start its unit.
    StartUnit,
    /// It is over, and well.
    Done,
    /// It is over, and badly.
    Fail(Failure),
}

/// What is known of a step that has started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// What was started.
    pub job: &'a Job,
    /// What the host was like then.
    pub since: &'a Since,
    /// The boot that runs now.
    pub boot_id: &'a str,
    /// Its unit.
    pub unit: &'a UnitState,
    /// What the host itself shows, once somebody looked.
    pub evidence: Option<&'a Evidence>,
    /// For how long this process has known that it ended: monotonic, because clocks jump.
    pub waited: Duration,
    /// The time, for what is told and for nothing else.
    pub now: Timestamp,
}

/// Judges a step that has started, from its unit and, once looked at, the host itself.
///
/// | unit | command | host shows | verdict |
/// |---|---|---|---|
/// | runs | any | | wait |
/// | unknown, same boot | idempotent | | start it |
/// | unknown, same boot | other | done / not | done / start it |
/// | unknown, another boot | any | done / not | done / failed: interrupted |
/// | ended well | reboot | not yet | wait, up to its timeout |
/// | ended badly | reboot | not yet | wait a minute: the shutdown may have ended it |
/// | ended well | any | done / not | done / failed |
/// | ended badly | idempotent | | failed |
/// | ended badly | other | done / not | done / failed |
///
/// A unit that nobody knows any more either never started or ended while the agent was away: only
/// the host can tell. One that the host's end cut short counts as a failed try, so that a step which
/// brings its host down does not do so for ever.
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
            "Interrupted",
            format!("the host booted in the middle of it, and {what}"),
        )),
    }
}

/// The command that asks for a reboot is over long before the reboot.
fn reboots_soon(known: Known<'_>, within_seconds: u64) -> bool {
    known.job.command == Command::Step(HostStep::Reboot {})
        && known.waited < Duration::from_secs(within_seconds)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
