//! What the journal says, as a pure fold over its records.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_api::refit::{Gate, PlanState, PlannedStep, StepType};
use serde::{Deserialize, Serialize};

/// One fact in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Record {
    /// A plan was taken up; everything before it is over.
    PlanAccepted {
        /// uid of its NodeUpdate.
        plan: String,
        /// Name of that NodeUpdate.
        node_update: String,
        /// Its steps; a later change of the object does not change a plan under way.
        steps: Vec<PlannedStep>,
        /// Packages of the host at that time: what an undo goes back to.
        packages: BTreeMap<String, String>,
        /// When.
        at: Timestamp,
    },
    /// A step is about to start: its command may or may not have started when this is the last
    /// record.
    StepStarted {
        /// The plan.
        plan: String,
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
        plan: String,
        /// Id of the step.
        step: String,
        /// Which try.
        attempt: i32,
        /// How.
        outcome: Outcome,
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
        plan: String,
        /// The gate.
        gate: Gate,
    },
    /// The plan is to stop.
    AbortSeen {
        /// The plan.
        plan: String,
        /// Why.
        cause: AbortCause,
    },
    /// The plan is over.
    PlanEnded {
        /// The plan.
        plan: String,
        /// How: `Succeeded`, `Failed` or `Stopped`.
        state: PlanState,
        /// When.
        at: Timestamp,
    },
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
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
    pub fn plan(&self) -> &str {
        match self {
            Self::PlanAccepted { plan, .. }
            | Self::StepStarted { plan, .. }
            | Self::StepFinished { plan, .. }
            | Self::GateSeen { plan, .. }
            | Self::AbortSeen { plan, .. }
            | Self::PlanEnded { plan, .. } => plan,
        }
    }

    /// The record in a few words.
    pub fn what(&self) -> String {
        match self {
            Self::PlanAccepted { .. } => "plan accepted".to_owned(),
            Self::StepStarted { step, attempt, .. } => format!("{step} started ({attempt})"),
            Self::StepFinished {
                step,
                attempt,
                outcome,
                ..
            } => format!("{step} finished ({attempt}): {outcome:?}"),
            Self::GateSeen { gate, .. } => format!("gate {gate:?}"),
            Self::AbortSeen { cause, .. } => format!("abort: {cause:?}"),
            Self::PlanEnded { state, .. } => format!("plan ended: {state:?}"),
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// uid of its NodeUpdate.
    pub id: String,
    /// Name of that NodeUpdate.
    pub node_update: String,
    /// The steps, in order.
    pub steps: Vec<PlannedStep>,
    /// Packages of the host before the plan.
    pub packages_before: BTreeMap<String, String>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub outcome: Option<Outcome>,
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

    /// Whether the step ended well.
    pub fn is_done(&self) -> bool {
        !self.is_open() && self.outcome == Some(Outcome::Done)
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
            packages,
            at,
        } = record
        {
            self.plan = Some(Progress {
                id: plan.clone(),
                node_update: node_update.clone(),
                steps: steps.clone(),
                packages_before: packages.clone(),
                accepted_at: *at,
                gate: Gate::Closed,
                abort: None,
                runs: BTreeMap::new(),
                ended: None,
                ended_at: None,
            });
        } else if let Some(progress) = &mut self.plan
            && progress.id == record.plan()
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
            Record::PlanAccepted { .. } => {}
            Record::StepStarted {
                step,
                attempt,
                unit,
                boot_id,
                at,
                ..
            } => {
                let before = self.runs.remove(step);
                let run = StepRun {
                    attempt: *attempt,
                    first_started_at: before.as_ref().map_or(*at, |run| run.first_started_at),
                    started_at: *at,
                    boot_id: boot_id.clone(),
                    unit: unit.clone(),
                    finished_at: None,
                    outcome: before.as_ref().and_then(|run| run.outcome),
                    reason: before
                        .as_ref()
                        .map_or_else(String::new, |r| r.reason.clone()),
                    message: before.map_or_else(String::new, |run| run.message),
                };
                self.runs.insert(step.clone(), run);
            }
            Record::StepFinished {
                step,
                attempt,
                outcome,
                reason,
                message,
                at,
                ..
            } => {
                // A step that was refused before it could start has an end only.
                let run = self.runs.entry(step.clone()).or_insert_with(|| StepRun {
                    attempt: *attempt,
                    first_started_at: *at,
                    started_at: *at,
                    boot_id: String::new(),
                    unit: String::new(),
                    finished_at: None,
                    outcome: None,
                    reason: String::new(),
                    message: String::new(),
                });
                run.attempt = *attempt;
                run.finished_at = Some(*at);
                run.outcome = Some(*outcome);
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

    /// Whether a step ended well.
    pub fn is_done(&self, step: &str) -> bool {
        self.runs.get(step).is_some_and(StepRun::is_done)
    }

    /// The step whose last try has no end yet: its id and run.
    pub fn open(&self) -> Option<(&str, &StepRun)> {
        self.runs
            .iter()
            .find(|(_, run)| run.is_open())
            .map(|(id, run)| (id.as_str(), run))
    }

    /// The first step that is not done.
    pub fn next_step(&self) -> Option<&PlannedStep> {
        self.steps.iter().find(|step| !self.is_done(&step.id))
    }

    /// Whether something was tried that cannot be taken back: from `kubeadm upgrade` on, static
    /// pods, etcd's data and the kubelet's configuration are those of the new version.
    pub fn past_no_return(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                step.action.type_,
                StepType::KubeadmUpgrade
                    | StepType::KubeletInstall
                    | StepType::KubeletRestart
                    | StepType::Reboot
            ) && self
                .runs
                .get(&step.id)
                // Refused before it could start: nothing was touched.
                .is_some_and(|run| !run.unit.is_empty())
        })
    }

    /// The gate up to which every step is done.
    pub fn passed(&self) -> Gate {
        [Gate::Stage, Gate::Upgrade, Gate::Disrupt]
            .into_iter()
            .take_while(|gate| {
                self.steps
                    .iter()
                    .all(|step| gate_of(step) > *gate || self.is_done(&step.id))
            })
            .last()
            .unwrap_or_default()
    }
}

/// The gate that a step needs. None runs while everything is closed.
pub fn gate_of(step: &PlannedStep) -> Gate {
    step.gate.max(Gate::Stage)
}
