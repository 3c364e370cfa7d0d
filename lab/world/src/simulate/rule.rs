//! The rules that a run must keep.

use std::fmt;

use refit_core::invariants::Invariant;
use serde::{Deserialize, Serialize};
use strum::Display;

/// What a problem violates.
#[derive(
    Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    /// Too few others of a group are available.
    Invariant1,
    /// Two control plane members at once, or an unhealthy one.
    Invariant2,
    /// A machine is replaced unasked.
    Invariant3,
    /// Two unfinished NodeUpdates, one that starts twice, a downgrade, or two updaters at work at once.
    Invariant4,
    /// A machine is forgotten.
    Invariant6,
    /// A cordon or label is left, or an admin's is overridden.
    Invariant7,
    /// An aborted update is not rolled back, or a guard or a slot is left.
    Invariant8,
    /// A machine begins outside of the maintenance windows of its group, or behind a closed gate.
    Invariant9,
    /// A plan requests a Cluster twice, too early or too late.
    Invariant10,
    /// A replica without the Lease wrote as the leader.
    Fence,
    /// A host repeats a step that has succeeded.
    StepRepeated,
    /// A wait has no reason.
    SilentWait,
    /// A wait goes on although what it waited for has come.
    WaitOutlivesCause,
    /// A wait that nothing will end.
    WaitWithoutEnd,
    /// An update was stopped, but no operator aborted it.
    StoppedUnasked,
    /// An update failed with a reason about which an operator can do nothing.
    FailedForGood,
    /// Cluster API requests an update, and no NodeUpdate is created for it.
    RequestRefused,
    /// A machine is not updated, although its turn has come.
    TurnNeverComes,
    /// A group stands still, and its UpdateGroup does not say so.
    NotShown,
    /// A machine counts as updated, and lacks what its Updater was to do.
    UpdaterForgotten,
    /// Code panicked.
    Panic,
    /// The run itself failed.
    RunFailed,
}

impl Rule {
    /// The rule that a violation of an invariant breaks.
    pub(super) fn of_invariant(invariant: Invariant) -> Self {
        match invariant {
            Invariant::EnoughAvailable => Self::Invariant1,
            Invariant::OneMember => Self::Invariant2,
            Invariant::NoReplacement => Self::Invariant3,
            Invariant::OneUpdate | Invariant::OneUpdater => Self::Invariant4,
            Invariant::NoneForgotten | Invariant::UpdateRequested => Self::Invariant6,
            Invariant::Cordons | Invariant::Disruption => Self::Invariant7,
            Invariant::AbortStops | Invariant::NothingLeft => Self::Invariant8,
            Invariant::InWindow | Invariant::GateOpen => Self::Invariant9,
            Invariant::WavesKept => Self::Invariant10,
        }
    }
}

/// What is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The violated rule.
    pub rule: Rule,
    /// The object, and what is wrong with it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}
