//! State of the journal, as a pure fold over its records.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::refit::{
    FailureKind, Gate, PlanId, PlanState, PlannedAction, PlannedStep, StepError, StepType,
};
use serde::{Deserialize, Serialize};

use crate::reason::passes;

/// One fact in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Record {
    /// A plan was accepted; everything before this record belongs to an earlier plan.
    PlanAccepted {
        /// uid of its NodeUpdate.
        plan: PlanId,
        /// Name of the NodeUpdate.
        node_update: String,
        /// Steps of the plan; a later change of the object does not change a plan in progress.
        steps: Vec<PlannedStep>,
        /// Id of the first step that cannot be rolled back. If empty, the step types decide.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        point_of_no_return: String,
        /// Packages of the host at that time. An undo restores them.
        packages: BTreeMap<String, String>,
        /// Images of the host's static pods at that time.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        static_pods: BTreeMap<String, String>,
        /// Time of acceptance.
        at: Timestamp,
    },
    /// A step is about to start. If this is the last record, its command may or may not have
    /// started.
    StepStarted {
        /// Id of the plan.
        plan: PlanId,
        /// Id of the step.
        step: String,
        /// Number of the attempt, from 1.
        attempt: i32,
        /// Name of the systemd unit.
        unit: String,
        /// Id of the boot in which the step starts.
        boot_id: String,
        /// Time of the start.
        at: Timestamp,
    },
    /// A step ended.
    StepFinished {
        /// Id of the plan.
        plan: PlanId,
        /// Id of the step.
        step: String,
        /// Number of the attempt.
        attempt: i32,
        /// Result of the attempt.
        outcome: StepOutcome,
        /// What kind of failure it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<FailureKind>,
        /// Whether the step failed and the host was found as it was before the plan.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unchanged: bool,
        /// Reason of the failure, in CamelCase.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Message of the failure.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
        /// Time of the end.
        at: Timestamp,
    },
    /// The plan may proceed up to this gate, even if the API is unreachable later.
    GateSeen {
        /// Id of the plan.
        plan: PlanId,
        /// The open gate.
        gate: Gate,
    },
    /// The plan is to stop.
    AbortSeen {
        /// Id of the plan.
        plan: PlanId,
        /// Why it is to stop.
        cause: AbortCause,
    },
    /// The plan has ended.
    PlanEnded {
        /// Id of the plan.
        plan: PlanId,
        /// Final state: `Succeeded`, `Failed` or `Stopped`.
        state: PlanState,
        /// Time of the end.
        at: Timestamp,
    },
    /// A summary of all earlier records. It is written when the file has grown too long.
    Checkpoint {
        /// Id of the plan.
        plan: PlanId,
        /// Progress of the plan.
        progress: Box<Progress>,
    },
}

/// Result of an attempt at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// Succeeded.
    Done,
    /// Failed; will be retried.
    Failed,
    /// Failed; a retry cannot help.
    FailedForGood,
}

/// Why a plan is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortCause {
    /// `spec.abort`.
    Requested,
    /// Another plan replaced it.
    Superseded,
}

impl Record {
    /// Id of the plan that the record belongs to.
    pub fn plan(&self) -> &PlanId {
        match self {
            Self::PlanAccepted { plan, .. }
            | Self::StepStarted { plan, .. }
            | Self::StepFinished { plan, .. }
            | Self::GateSeen { plan, .. }
            | Self::AbortSeen { plan, .. }
            | Self::PlanEnded { plan, .. }
            | Self::Checkpoint { plan, .. } => plan,
        }
    }

    /// A description of the record in a few words.
    pub fn what(&self) -> String {
        match self {
            Self::PlanAccepted { .. } => "plan accepted".to_owned(),
            Self::StepStarted { step, attempt, .. } => format!("{step} started ({attempt})"),
            Self::StepFinished { step, attempt, outcome, .. } => {
                format!("{step} finished ({attempt}): {outcome:?}")
            }
            Self::GateSeen { gate, .. } => format!("gate {gate:?}"),
            Self::AbortSeen { cause, .. } => format!("abort: {cause:?}"),
            Self::PlanEnded { state, .. } => format!("plan ended: {state:?}"),
            Self::Checkpoint { .. } => "checkpoint".to_owned(),
        }
    }
}

/// State of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// The newest plan, in progress or ended.
    pub plan: Option<Progress>,
}

/// Progress of a plan. Fields with a default may be missing in the journal of an older agent; a new
/// field needs one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// uid of the NodeUpdate.
    pub id: PlanId,
    /// Name of the NodeUpdate.
    #[serde(default)]
    pub node_update: String,
    /// The steps, in order.
    pub steps: Vec<PlannedStep>,
    /// Id of the first step that cannot be rolled back. If empty, the step types decide.
    #[serde(default)]
    pub point_of_no_return: String,
    /// Packages of the host before the plan.
    #[serde(default)]
    pub packages_before: BTreeMap<String, String>,
    /// Images of the host's static pods before the plan.
    #[serde(default)]
    pub static_pods_before: BTreeMap<String, String>,
    /// When the agent accepted the plan.
    pub accepted_at: Timestamp,
    /// The gate up to which the plan may proceed.
    #[serde(default)]
    pub gate: Gate,
    /// Why the plan is to stop, if it is.
    #[serde(default)]
    pub abort: Option<AbortCause>,
    /// Attempts by step id, undo steps included.
    #[serde(default)]
    pub runs: BTreeMap<String, StepRun>,
    /// Final state of the plan.
    #[serde(default)]
    pub ended: Option<PlanState>,
    /// When the plan ended.
    #[serde(default)]
    pub ended_at: Option<Timestamp>,
}

/// Attempts at one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRun {
    /// Number of the last attempt, from 1.
    pub attempt: i32,
    /// How many attempts failed for a reason that passes by itself.
    #[serde(default)]
    pub passing: i32,
    /// When the first attempt started.
    pub first_started_at: Timestamp,
    /// When the last attempt started.
    pub started_at: Timestamp,
    /// Id of the boot in which the last attempt started.
    pub boot_id: String,
    /// Unit of the last attempt.
    pub unit: String,
    /// When the last attempt ended.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// Result of the last attempt that ended.
    #[serde(default)]
    pub outcome: Option<StepOutcome>,
    /// Kind of the last failure.
    #[serde(default)]
    pub failure: Option<FailureKind>,
    /// Whether the step failed and the host was found as it was before the plan.
    #[serde(default)]
    pub unchanged: bool,
    /// Reason of the last failure.
    #[serde(default)]
    pub reason: String,
    /// Message of the last failure.
    #[serde(default)]
    pub message: String,
}

impl StepRun {
    /// Whether the last attempt has not ended yet.
    pub fn is_open(&self) -> bool {
        self.finished_at.is_none()
    }

    /// Whether the command of an attempt may have started. False if the step was refused.
    pub fn was_started(&self) -> bool {
        !self.unit.is_empty()
    }

    /// Whether a command of the step may have changed the host. False if the step was refused
    /// before it could start, or if it failed and the host was found unchanged.
    pub fn left_its_mark(&self) -> bool {
        let undone = !self.is_open() && self.outcome != Some(StepOutcome::Done) && self.unchanged;
        self.was_started() && !undone
    }

    /// Whether the step succeeded.
    pub fn is_done(&self) -> bool {
        !self.is_open() && self.outcome == Some(StepOutcome::Done)
    }
}

impl JournalState {
    /// Folds records, oldest first.
    pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut state = Self::default();
        for record in records {
            state.apply(record);
        }
        state
    }

    /// Applies one record. A record of an older plan has no effect.
    pub fn apply(&mut self, record: &Record) {
        if let Record::PlanAccepted {
            plan,
            node_update,
            steps,
            point_of_no_return,
            packages,
            static_pods,
            at,
        } = record
        {
            self.plan = Some(Progress {
                id: plan.clone(),
                node_update: node_update.clone(),
                steps: steps.clone(),
                point_of_no_return: point_of_no_return.clone(),
                packages_before: packages.clone(),
                static_pods_before: static_pods.clone(),
                accepted_at: *at,
                gate: Gate::Closed,
                abort: None,
                runs: BTreeMap::new(),
                ended: None,
                ended_at: None,
            });
        } else if let Record::Checkpoint { progress, .. } = record {
            self.plan = Some((**progress).clone());
        } else if let Some(progress) = &mut self.plan
            && progress.id == *record.plan()
        {
            progress.apply(record);
        }
    }

    /// Returns a step of the plan in progress that this agent does not know, with the error. An agent
    /// refuses such a plan before its first step, so a newer one has started it.
    pub fn unknown_in_progress(&self) -> Option<(&str, &StepError)> {
        let plan = self.live().filter(|plan| plan.runs.values().any(StepRun::was_started))?;
        plan.steps.iter().find_map(|step| match &step.action {
            PlannedAction::Unknown(unknown) => match unknown.error() {
                error @ StepError::Member { .. } => Some((step.id.as_str(), error)),
                StepError::Arguments { .. } | StepError::NotOne(_) | StepError::Empty => None,
            },
            PlannedAction::Known(_) => None,
        })
    }

    /// Returns the plan if it is in progress.
    pub fn live(&self) -> Option<&Progress> {
        self.plan.as_ref().filter(|plan| plan.ended.is_none())
    }
}

impl Progress {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::PlanAccepted { .. } | Record::Checkpoint { .. } => {}
            Record::StepStarted { step, attempt, unit, boot_id, at, .. } => {
                // The last failure stays known until the next one.
                let run = self.run(step, *attempt, *at);
                run.attempt = *attempt;
                run.started_at = *at;
                run.boot_id.clone_from(boot_id);
                run.unit.clone_from(unit);
                run.finished_at = None;
                run.unchanged = false;
            }
            Record::StepFinished {
                step,
                attempt,
                outcome,
                failure,
                unchanged,
                reason,
                message,
                at,
                ..
            } => {
                // A step that was refused before it could start has only this record.
                let run = self.run(step, *attempt, *at);
                run.attempt = *attempt;
                run.finished_at = Some(*at);
                if *outcome == StepOutcome::Failed && passes(reason) {
                    run.passing = run.passing.saturating_add(1);
                }
                run.outcome = Some(*outcome);
                run.failure = *failure;
                run.unchanged = *unchanged;
                run.reason.clone_from(reason);
                run.message.clone_from(message);
            }
            Record::GateSeen { gate, .. } => self.gate = self.gate.max(*gate),
            Record::AbortSeen { cause, .. } => self.abort = Some(*cause),
            Record::PlanEnded { state, at, .. } => {
                self.ended = Some(*state);
                self.ended_at = Some(*at);
            }
        }
    }

    /// Returns the run of a step, and creates it at the first record of the step.
    fn run(&mut self, step: &str, attempt: i32, at: Timestamp) -> &mut StepRun {
        self.runs.entry(step.to_owned()).or_insert_with(|| StepRun {
            attempt,
            passing: 0,
            first_started_at: at,
            started_at: at,
            boot_id: String::new(),
            unit: String::new(),
            finished_at: None,
            outcome: None,
            failure: None,
            unchanged: false,
            reason: String::new(),
            message: String::new(),
        })
    }

    /// Whether a step succeeded.
    pub fn is_done(&self, step: &str) -> bool {
        self.runs.get(step).is_some_and(StepRun::is_done)
    }

    /// Returns the step whose last attempt has not ended: its id and run.
    pub fn open(&self) -> Option<(&str, &StepRun)> {
        self.runs.iter().find(|(_, run)| run.is_open()).map(|(id, run)| (id.as_str(), run))
    }

    /// Returns the first step that is not done.
    pub fn next_step(&self) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| !self.is_done(&step.id))
    }

    /// Returns the steps from the point of no return on.
    ///
    /// A plan that names none is from an older controller: from `kubeadm upgrade` on, static pods,
    /// etcd's data and the kubelet's configuration are those of the new version. A plan that names
    /// an id which is not among its steps can be rolled back as a whole.
    pub fn irreversible(&self) -> &[PlannedStep] {
        let first = if self.point_of_no_return.is_empty() {
            self.steps.iter().position(|step| {
                matches!(
                    step.step_type(),
                    Some(
                        StepType::KubeadmUpgrade
                            | StepType::KubeletInstall
                            | StepType::KubeletRestart
                            | StepType::Reboot
                    )
                )
            })
        } else {
            let named = &self.point_of_no_return;
            self.steps.iter().position(|step| step.id == *named)
        };
        first.map_or(&[], |first| &self.steps[first..])
    }

    /// Whether a step was attempted that cannot be rolled back.
    pub fn past_no_return(&self) -> bool {
        self.irreversible()
            .iter()
            .filter_map(|step| self.runs.get(&step.id))
            .any(StepRun::left_its_mark)
    }

    /// Returns the gate up to which every step is done.
    pub fn passed(&self) -> Gate {
        [Gate::Stage, Gate::Upgrade, Gate::Disrupt]
            .into_iter()
            .take_while(|gate| {
                self.steps.iter().all(|step| gate_of(step) > *gate || self.is_done(&step.id))
            })
            .last()
            .unwrap_or_default()
    }
}

/// Returns the gate that a step needs, at least [`Gate::Stage`]: no step runs while all gates are
/// closed.
pub fn gate_of(step: &PlannedStep) -> Gate {
    step.gate.max(Gate::Stage)
}
