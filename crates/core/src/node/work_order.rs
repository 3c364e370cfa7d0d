//! The orders of the engine to an updater, and what the updater reports.
//!
//! The engine owns phases, slots, cordon, drain and verification. It does not know how an updater is
//! reached: it allows the updater to go up to a gate, and reads how far it has come.

use refit_kinds::refit::{Gate, StepStatus};

/// How far an updater may go in its part of an update, and whether it is to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkOrder {
    /// The gate up to which it may go. It only moves forward.
    pub(super) gate: Gate,
    /// Whether it is to stop at the next safe step. This is never withdrawn.
    pub(super) abort: bool,
}

/// What an updater reports about its part of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkReport {
    /// The gate up to which every step is done.
    pub(super) passed_gate: Gate,
    /// Its state.
    pub(super) state: WorkState,
    /// Whether the part can no longer be rolled back.
    pub(super) past_no_return: bool,
    /// What a failed or stopped part has left behind, each entry a whole sentence.
    pub(super) left_behind: Vec<String>,
}

/// State of an updater in its part of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum WorkState {
    /// It has not ended: it is at work, or waits for a gate.
    #[default]
    Working,
    /// It is rolling back.
    Undoing,
    /// It has done its part.
    Succeeded,
    /// It has given up.
    Failed(WorkFailure),
    /// It has stopped as ordered.
    Stopped,
}

/// Why an updater has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkFailure {
    /// CamelCase reason.
    pub(super) reason: String,
    /// What failed, what that left behind, and what can resolve it.
    pub(super) message: String,
}

impl WorkReport {
    /// Whether the updater has ended its part, successfully or not.
    pub(super) fn has_ended(&self) -> bool {
        match self.state {
            WorkState::Working | WorkState::Undoing => false,
            WorkState::Succeeded | WorkState::Failed(_) | WorkState::Stopped => true,
        }
    }

    /// Whether the part ended without success and everything is as it was before.
    pub(super) fn is_rolled_back(&self) -> bool {
        let without_success = match self.state {
            WorkState::Failed(_) | WorkState::Stopped => true,
            WorkState::Working | WorkState::Undoing | WorkState::Succeeded => false,
        };
        without_success && !self.past_no_return && self.left_behind.is_empty()
    }
}

/// A step that an updater was ordered to carry out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkStep {
    /// Name of the step.
    pub(super) name: String,
    /// The gate that it belongs to.
    pub(super) gate: Gate,
    /// Its state; `None` until the updater has reported it.
    pub(super) status: Option<StepStatus>,
}
