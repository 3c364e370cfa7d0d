//! What comes next, as pure functions of the journal, the plan and the time.
//!
//! | journal says | next |
//! |---|---|
//! | no plan, or one that is over | take up the plan of the spec, if it is another |
//! | a further gate or an abort that it does not know | write that down |
//! | a step has no end | attend to it |
//! | a step failed for good | undo what is safe, end `Failed` |
//! | to stop, before the point of no return | undo what is safe, end `Stopped` |
//! | to stop, past it | go on up to the gate, end `Stopped` there |
//! | the next step needs a closed gate | wait |
//! | otherwise | start the next step |

use jiff::{SignedDuration, Timestamp};
use refit_api::refit::{Gate, HostPlanSpec, PlanState, PlannedStep, StepType};

use crate::{
    host::{
        Command, Evidence, InvalidStep, Job, KubernetesVersion, Since, UnitState,
        command::REBOOT_DEADLINE_SECONDS,
    },
    state::{AbortCause, JournalState, Outcome, Progress, StepRun, gate_of},
};

/// How often a step is tried. Two failures in a row are often a lock or a mirror; three are not.
pub const MAX_ATTEMPTS: i32 = 3;
/// Wait after the first failed try; it doubles with each.
const BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// What the id of an undo step starts with.
pub const UNDO: &str = "undo-";

/// What the agent is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until the plan changes.
    Idle,
    /// Take up the plan of the spec.
    Accept {
        /// Its id.
        plan: String,
        /// Name of its NodeUpdate.
        node_update: String,
        /// Its steps.
        steps: Vec<PlannedStep>,
    },
    /// Write down that the plan may go further.
    SeeGate {
        /// How far.
        gate: Gate,
    },
    /// Write down that the plan is to stop.
    SeeAbort {
        /// Why.
        cause: AbortCause,
    },
    /// Wait until a gate opens.
    AtGate {
        /// The step that waits.
        step: String,
        /// The gate that it needs.
        gate: Gate,
    },
    /// Wait until a failed step may be tried again.
    Backoff {
        /// The step.
        step: String,
        /// Until when.
        until: Timestamp,
    },
    /// Write down that a step starts, then start it.
    Start {
        /// What to start.
        job: Job,
        /// Which try, from 1.
        attempt: i32,
    },
    /// A step has started and has no end yet: find out about it.
    Attend {
        /// What was started.
        job: Job,
        /// Which try.
        attempt: i32,
        /// What the host was like when it started.
        since: Since,
    },
    /// Write down that a step cannot be taken at all.
    Refuse {
        /// The step.
        step: String,
        /// Which try it would be.
        attempt: i32,
        /// Why.
        why: InvalidStep,
    },
    /// Write down that the plan is over.
    End {
        /// How.
        state: PlanState,
    },
}

/// What comes next. Without a spec (the API is gone) it goes on with what the journal knows.
pub fn next(state: &JournalState, spec: Option<&HostPlanSpec>, now: Timestamp) -> Next {
    let Some(plan) = state.live() else {
        return accept(state, spec);
    };
    if let Some(seen) = spec.and_then(|spec| see(plan, spec)) {
        return seen;
    }
    if let Some((id, run)) = plan.open() {
        return attend(plan, id, run);
    }
    let Some(step) = plan.next_step() else {
        return Next::End {
            state: PlanState::Succeeded,
        };
    };
    if is_given_up(plan, &step.id) {
        return undo(plan, now, PlanState::Failed);
    }
    let closed = gate_of(step) > plan.gate;
    if plan.abort.is_some() && (closed || !plan.past_no_return()) {
        return undo(plan, now, PlanState::Stopped);
    }
    if closed {
        return Next::AtGate {
            step: step.id.clone(),
            gate: gate_of(step),
        };
    }
    try_step(plan, &step.id, Command::of(step), now)
}

fn accept(state: &JournalState, spec: Option<&HostPlanSpec>) -> Next {
    let known = state.plan.as_ref().map_or("", |plan| plan.id.as_str());
    match spec {
        Some(spec) if !spec.plan_id.is_empty() && spec.plan_id != known => Next::Accept {
            plan: spec.plan_id.clone(),
            node_update: spec.node_update.clone(),
            steps: spec.steps.clone(),
        },
        _ => Next::Idle,
    }
}

/// What the spec says that the journal does not know yet.
fn see(plan: &Progress, spec: &HostPlanSpec) -> Option<Next> {
    let cause = if spec.plan_id == plan.id {
        if spec.gate > plan.gate {
            return Some(Next::SeeGate { gate: spec.gate });
        }
        spec.abort.then_some(AbortCause::Requested)
    } else {
        // An empty spec is a HostPlan that was deleted and made again: no reason to stop.
        (!spec.plan_id.is_empty()).then_some(AbortCause::Superseded)
    };
    let cause = cause.filter(|_| plan.abort.is_none())?;
    Some(Next::SeeAbort { cause })
}

fn attend(plan: &Progress, id: &str, run: &StepRun) -> Next {
    match command(plan, id) {
        Ok(command) => Next::Attend {
            job: Job {
                unit: run.unit.clone(),
                step: id.to_owned(),
                command,
            },
            attempt: run.attempt,
            since: Since {
                at: run.started_at,
                boot_id: run.boot_id.clone(),
            },
        },
        Err(why) => Next::Refuse {
            step: id.to_owned(),
            attempt: run.attempt,
            why,
        },
    }
}

fn try_step(
    plan: &Progress,
    id: &str,
    command: Result<Command, InvalidStep>,
    now: Timestamp,
) -> Next {
    let run = plan.runs.get(id);
    let attempt = run.map_or(1, |run| run.attempt + 1);
    if let Some(until) = run.and_then(retry_at)
        && now < until
        // A clock that was set back does not make anybody wait longer than the backoff.
        && until.duration_since(now) <= backoff(attempt - 1)
    {
        return Next::Backoff {
            step: id.to_owned(),
            until,
        };
    }
    match command {
        Ok(command) => Next::Start {
            job: Job {
                unit: unit_name(&plan.id, id, attempt),
                step: id.to_owned(),
                command,
            },
            attempt,
        },
        Err(why) => Next::Refuse {
            step: id.to_owned(),
            attempt,
            why,
        },
    }
}

/// Takes back what can be taken back, then ends the plan.
fn undo(plan: &Progress, now: Timestamp, end: PlanState) -> Next {
    for (id, command) in undo_steps(plan) {
        if !plan.is_done(&id) && !is_given_up(plan, &id) {
            return try_step(plan, &id, Ok(command), now);
        }
    }
    Next::End { state: end }
}

/// What an undo would do now: kubeadm's package goes back to the version of before. Nothing past
/// the point of no return: an older kubeadm could not repair what the newer one has begun.
fn undo_steps(plan: &Progress) -> Vec<(String, Command)> {
    if plan.past_no_return() {
        return Vec::new();
    }
    plan.steps
        .iter()
        .filter(|step| {
            step.action.type_ == StepType::KubeadmInstall
                && plan
                    .runs
                    .get(&step.id)
                    .is_some_and(|run| !run.unit.is_empty())
        })
        .filter_map(|step| {
            let version = version_before(plan)?;
            let already = version.as_str() == step.action.version;
            (!already).then(|| {
                (
                    format!("{UNDO}{}", step.id),
                    Command::InstallKubeadm { version },
                )
            })
        })
        .collect()
}

fn version_before(plan: &Progress) -> Option<KubernetesVersion> {
    KubernetesVersion::of_package(plan.packages_before.get("kubeadm")?).ok()
}

/// The command of a step that was started, undo steps included.
fn command(plan: &Progress, id: &str) -> Result<Command, InvalidStep> {
    if let Some(step) = plan.steps.iter().find(|step| step.id == id) {
        return Command::of(step);
    }
    version_before(plan)
        .map(|version| Command::InstallKubeadm { version })
        .ok_or_else(|| InvalidStep::Version { got: String::new() })
}

/// Whether no further try of a step is made.
pub fn is_given_up(plan: &Progress, step: &str) -> bool {
    plan.runs.get(step).is_some_and(|run| {
        !run.is_open()
            && match run.outcome {
                Some(Outcome::FailedForGood) => true,
                Some(Outcome::Failed) => run.attempt >= MAX_ATTEMPTS,
                Some(Outcome::Done) | None => false,
            }
    })
}

fn retry_at(run: &StepRun) -> Option<Timestamp> {
    let wait = backoff(run.attempt);
    run.finished_at.and_then(|at| at.checked_add(wait).ok())
}

fn backoff(attempt: i32) -> SignedDuration {
    let doublings = u32::try_from(attempt - 1).unwrap_or_default().min(4);
    BACKOFF * 2_i32.pow(doublings)
}

/// Name of the unit of an attempt. Only characters that systemd and file names take as they are.
pub fn unit_name(plan: &str, step: &str, attempt: i32) -> String {
    let clean = |text: &str| -> String {
        text.chars()
            .take(80)
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .collect()
    };
    format!("refit-{}-{}-{attempt}", clean(plan), clean(step))
}

/// What to do about a step that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ask again later.
    Wait,
    /// Look at the host, then judge again.
    Look,
    /// It never started, or may be started again: start its unit.
    StartUnit,
    /// It is over.
    Finish {
        /// How.
        outcome: Outcome,
        /// CamelCase reason of a failure.
        reason: &'static str,
        /// What went wrong.
        message: String,
    },
}

/// Judges a step that has started, from its unit and, once looked at, the host itself.
///
/// A unit that nobody knows any more either never started or ended while the agent was away: only
/// the host can tell. What is idempotent is simply run again.
pub fn judge(
    job: &Job,
    since: &Since,
    unit: &UnitState,
    evidence: Option<&Evidence>,
    now: Timestamp,
) -> Verdict {
    match (unit, evidence) {
        (UnitState::Running, _) => Verdict::Wait,
        (UnitState::Unknown, _) if job.command.idempotent() => Verdict::StartUnit,
        (UnitState::Unknown | UnitState::Exited { code: 0, .. }, None) => Verdict::Look,
        (UnitState::Unknown, Some(Evidence::Missing { .. })) => Verdict::StartUnit,
        (UnitState::Unknown | UnitState::Exited { code: 0, .. }, Some(Evidence::Done)) => {
            Verdict::Finish {
                outcome: Outcome::Done,
                reason: "",
                message: String::new(),
            }
        }
        (UnitState::Exited { code: 0, .. }, Some(Evidence::Missing { what })) => {
            let deadline = SignedDuration::from_secs(i64::from(REBOOT_DEADLINE_SECONDS));
            let waited = now.duration_since(since.at);
            // The command that asks for a reboot is over long before the reboot.
            if job.command == Command::Reboot && waited < deadline && !waited.is_negative() {
                return Verdict::Wait;
            }
            Verdict::Finish {
                outcome: Outcome::Failed,
                reason: "NotVerified",
                message: format!("the command ended well, but {what}"),
            }
        }
        (UnitState::Exited { code, output_tail }, _) => Verdict::Finish {
            outcome: Outcome::Failed,
            reason: "CommandFailed",
            message: format!(
                "{} ended with exit code {code}; its output ends: {output_tail}",
                job.command.name()
            ),
        },
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
