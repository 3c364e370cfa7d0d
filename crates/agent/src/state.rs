//! What the journal says, as a pure fold over its records.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::refit::{FailureKind, Gate, PlanId, PlanState, PlannedStep, StepType};
use serde::{Deserialize, Serialize};

/// One fact in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Record {
    /// A plan was taken up; everything before it is over.
    PlanAccepted {
        /// uid of its NodeUpdate.
        plan: PlanId,
        /// Name of that NodeUpdate.
        node_update: String,
        /// Its steps; a later change of the object does not change a plan under way.
        steps: Vec<PlannedStep>,
        /// Id of the first step that cannot be taken back; empty: judged by the steps' types.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        point_of_no_return: String,
        /// Packages of the host at that time: what an undo goes back to.
        packages: BTreeMap<String, String>,
        /// Images of its static pods at that time.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        static_pods: BTreeMap<String, String>,
        /// When.
        at: Timestamp,
    },
    /// A step is about to start: its command may or may not have started when this is the last
    /// record.
    StepStarted {
        /// The plan.
        plan: PlanId,
        /// Id of the step.
        step: String,
        /// Which try, from 1.
        attempt: i32,
        /// Name of the unit.
        unit: String,
        /// The boot in which it starts.
        boot_id: String,
        /// When.
        at: Timestamp,
    },
    /// A step ended.
    StepFinished {
        /// The plan.
        plan: PlanId,
        /// Id of the step.
        step: String,
        /// Which try.
        attempt: i32,
        /// How.
        outcome: StepOutcome,
        /// What may end a failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<FailureKind>,
        /// It failed, and the host was seen to be as it was before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unchanged: bool,
        /// CamelCase reason of a failure.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// What went wrong.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
        /// When.
        at: Timestamp,
    },
    /// The plan may go up to this gate, also when the API is gone later.
    GateSeen {
        /// The plan.
        plan: PlanId,
        /// The gate.
        gate: Gate,
    },
    /// The plan is to stop.
    AbortSeen {
        /// The plan.
        plan: PlanId,
        /// Why.
        cause: AbortCause,
    },
    /// The plan is over.
    PlanEnded {
        /// The plan.
        plan: PlanId,
        /// How: `Succeeded`, `Failed` or `Stopped`.
        state: PlanState,
        /// When.
        at: Timestamp,
    },
    /// Everything before it in a few lines: the file had grown too long.
    Checkpoint {
        /// The plan.
        plan: PlanId,
        /// How far it is.
        progress: Box<Progress>,
    },
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// Well.
    Done,
    /// Badly; another try may help.
    Failed,
    /// Badly; no further try can help.
    FailedForGood,
}

/// Why a plan is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortCause {
    /// `spec.abort`.
    Requested,
    /// Another plan took its place.
    Superseded,
}

impl Record {
    /// The plan that it is about.
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

    /// The record in a few words.
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

/// What the journal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// The newest plan, under way or over.
    pub plan: Option<Progress>,
}

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// uid of its NodeUpdate.
    pub id: PlanId,
    /// Name of that NodeUpdate.
    pub node_update: String,
    /// The steps, in order.
    pub steps: Vec<PlannedStep>,
    /// Id of the first step that cannot be taken back; empty: judged by the steps' types.
    pub point_of_no_return: String,
    /// Packages of the host before the plan.
    pub packages_before: BTreeMap<String, String>,
    /// Images of its static pods before the plan.
    pub static_pods_before: BTreeMap<String, String>,
    /// When it was taken up.
    pub accepted_at: Timestamp,
    /// How far it may go.
    pub gate: Gate,
    /// Why it is to stop, if it is.
    pub abort: Option<AbortCause>,
    /// What was tried, by step id; undo steps are there too.
    pub runs: BTreeMap<String, StepRun>,
    /// How it ended.
    pub ended: Option<PlanState>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// What was tried of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRun {
    /// The last try, from 1.
    pub attempt: i32,
    /// When the first try started.
    pub first_started_at: Timestamp,
    /// When the last try started.
    pub started_at: Timestamp,
    /// The boot in which the last try started.
    pub boot_id: String,
    /// Unit of the last try.
    pub unit: String,
    /// When the last try ended.
    pub finished_at: Option<Timestamp>,
    /// How the last try that ended did so.
    pub outcome: Option<StepOutcome>,
    /// What may end its failure.
    pub failure: Option<FailureKind>,
    /// It failed, and the host was seen to be as it was before the plan.
    pub unchanged: bool,
    /// Reason of the last failure.
    pub reason: String,
    /// Message of the last failure.
    pub message: String,
}

impl StepRun {
    /// Whether the last try has no end yet.
    pub fn is_open(&self) -> bool {
        self.finished_at.is_none()
    }

    /// Whether a command of it may have changed something: not if it was refused before it could
    /// start, nor if it failed and the host was seen to be as before.
    pub fn left_its_mark(&self) -> bool {
        let back = !self.is_open() && self.outcome != Some(StepOutcome::Done) && self.unchanged;
        !self.unit.is_empty() && !back
    }

    /// Whether the step ended well.
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

    /// Adds one record. A record of another plan than the newest says nothing any more.
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

    /// The plan, if it is under way.
    pub fn live(&self) -> Option<&Progress> {
        self.plan.as_ref().filter(|plan| plan.ended.is_none())
    }
}

impl Progress {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::PlanAccepted { .. } | Record::Checkpoint { .. } => {}
            Record::StepStarted { step, attempt, unit, boot_id, at, .. } => {
                // What the last failure was stays known until the next one.
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
                // A step that was refused before it could start has an end only.
                let run = self.run(step, *attempt, *at);
                run.attempt = *attempt;
                run.finished_at = Some(*at);
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

    /// What is known of a step, from its first record on.
    fn run(&mut self, step: &str, attempt: i32, at: Timestamp) -> &mut StepRun {
        self.runs.entry(step.to_owned()).or_insert_with(|| StepRun {
            attempt,
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

    /// Whether a step ended well.
    pub fn is_done(&self, step: &str) -> bool {
        self.runs.get(step).is_some_and(StepRun::is_done)
    }

    /// The step whose last try has no end yet: its id and run.
    pub fn open(&self) -> Option<(&str, &StepRun)> {
        self.runs.iter().find(|(_, run)| run.is_open()).map(|(id, run)| (id.as_str(), run))
    }

    /// The first step that is not done.
    pub fn next_step(&self) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| !self.is_done(&step.id))
    }

    /// The steps from the point of no return on.
    ///
    /// A plan that does not name one is of an older controller: from `kubeadm upgrade` on, static
    /// pods, etcd's data and the kubelet's configuration are those of the new version. One that
    /// names none of its steps can be taken back as a whole.
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

    /// Whether something was tried that cannot be taken back.
    pub fn past_no_return(&self) -> bool {
        self.irreversible()
            .iter()
            .filter_map(|step| self.runs.get(&step.id))
            .any(StepRun::left_its_mark)
    }

    /// The gate up to which every step is done.
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

/// The gate that a step needs. None runs while everything is closed.
pub fn gate_of(step: &PlannedStep) -> Gate {
    step.gate.max(Gate::Stage)
}
