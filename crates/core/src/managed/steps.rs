//! The steps of an upgrade: an ordered list, worked through from the first at each look.
//!
//! A step is a name and a function of what is known. It neither waits nor remembers: it shows that it is done, or what it
//! waits for and what is to be written meanwhile. A step that was done is asked again at the next look, so it must be done
//! for as long as its work stands. A look at which nothing has changed writes nothing.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::StepCondition;

/// Reason of a step that waits.
pub const IN_PROGRESS: &str = "StepInProgress";
/// Reason of a step that cannot be done at the moment.
pub const ERROR: &str = "StepError";
/// Reason of a step that is done.
pub const DONE: &str = "StepDone";

/// How far a step is, with the writes of a platform that bring it further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<W> {
    /// Its work stands.
    Done,
    /// This upgrade does not need it: it has no condition, unless it was done.
    Unneeded,
    /// It needs these writes, or only time.
    NotYet {
        /// What it waits for, as a sentence.
        why: String,
        /// What is to be written now.
        writes: Vec<W>,
    },
    /// It cannot be done at the moment, and is tried again.
    Error {
        /// Why, as a sentence.
        why: String,
        /// What is to be written now.
        writes: Vec<W>,
    },
}

impl<W> Progress<W> {
    /// A step that only waits.
    pub fn waits(why: impl Into<String>) -> Self {
        Self::NotYet { why: why.into(), writes: Vec::new() }
    }

    /// A step that cannot be done.
    pub fn error(why: impl Into<String>) -> Self {
        Self::Error { why: why.into(), writes: Vec::new() }
    }
}

/// A step of an upgrade, on a platform that is known as `S` and written with `W`.
#[derive(Clone, Copy, Debug)]
pub struct Step<S, W> {
    /// The type of its condition: what holds when it is done, such as `ControlPlaneUpgraded`.
    pub name: &'static str,
    /// How far it is.
    pub progress: fn(&S) -> Progress<W>,
}

/// What a look at the steps has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worked<W> {
    /// Every step is done.
    Complete,
    /// The first step that is not done.
    At {
        /// The reason of its condition.
        reason: &'static str,
        /// Its name, and what it waits for.
        message: String,
        /// What is to be written now.
        writes: Vec<W>,
    },
}

/// Works through the steps, up to the first one that is not done. `conditions` are those of the steps, the newest first.
pub fn work<S, W>(
    steps: &[Step<S, W>],
    known: &S,
    conditions: &mut Vec<StepCondition>,
    now: Timestamp,
) -> Worked<W> {
    for step in steps {
        let (reason, why, writes) = match (step.progress)(known) {
            Progress::Done => {
                done(conditions, step.name, now);
                continue;
            }
            Progress::Unneeded => {
                forget_waiting(conditions, step.name);
                continue;
            }
            Progress::NotYet { why, writes } => (IN_PROGRESS, why, writes),
            Progress::Error { why, writes } => (ERROR, why, writes),
        };
        waits(conditions, step.name, (reason, &why), now);
        return Worked::At { reason, message: format!("{}: {why}", step.name), writes };
    }
    Worked::Complete
}

/// Leaves out steps that are not asked any more: one that was not done is not shown as if it waited.
pub fn pass_over<S, W>(steps: &[Step<S, W>], conditions: &mut Vec<StepCondition>) {
    for step in steps {
        forget_waiting(conditions, step.name);
    }
}

fn forget_waiting(conditions: &mut Vec<StepCondition>, name: &str) {
    conditions.retain(|one| one.type_ != name || one.status == "True");
}

fn done(conditions: &mut Vec<StepCondition>, name: &str, now: Timestamp) {
    let message = format!("{name} is completed");
    let condition = condition(conditions, name, now);
    condition.complete_time.get_or_insert(Time(now));
    set(condition, "True", DONE, message, now);
}

fn waits(
    conditions: &mut Vec<StepCondition>,
    name: &str,
    (reason, why): (&str, &str),
    now: Timestamp,
) {
    let condition = condition(conditions, name, now);
    // Work that was done and does not stand any more is done again.
    condition.complete_time = None;
    set(condition, "False", reason, why.to_owned(), now);
}

/// The condition of a step; a new one comes first.
fn condition<'a>(
    conditions: &'a mut Vec<StepCondition>,
    name: &str,
    now: Timestamp,
) -> &'a mut StepCondition {
    let known = conditions.iter().position(|one| one.type_ == name);
    let at = known.unwrap_or_else(|| {
        let begun = StepCondition {
            type_: name.to_owned(),
            status: "False".to_owned(),
            reason: IN_PROGRESS.to_owned(),
            message: String::new(),
            start_time: Time(now),
            complete_time: None,
            last_transition_time: Time(now),
        };
        conditions.insert(0, begun);
        0
    });
    &mut conditions[at]
}

fn set(condition: &mut StepCondition, status: &str, reason: &str, message: String, now: Timestamp) {
    if condition.status != status {
        condition.last_transition_time = Time(now);
    }
    status.clone_into(&mut condition.status);
    reason.clone_into(&mut condition.reason);
    condition.message = message;
}
