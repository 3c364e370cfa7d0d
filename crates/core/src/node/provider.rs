//! The updater of a provider: a controller of others, whose orders and reports are an object of its own kind
//! (`docs/contract/`).

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    ClaimId, Gate, NodeName, NodeUpdate, NodeUpdateStatus, PartState, PlanId, ProviderGoal,
    ProviderObject, ProviderSpec, Role, Stage, StepState, StepStatus, UpdatePart,
};

use super::{
    order::is_unfinished,
    parts::{TIMEOUT_SECONDS, shown},
    snapshot::{ProviderOrder, Write},
    status::Standing,
    work::Work,
    work_order::{WorkFailure, WorkOrder, WorkReport, WorkState, WorkStep},
};
use crate::report::Refusal;

/// How many of the things that a provider has left behind are shown.
const LEFT_BEHIND: usize = 16;
/// How long a provider may take to note a new order before that is shown, in seconds.
const OBSERVED_WITHIN_SECONDS: i64 = 60;

/// The part of a provider in an update.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProviderWork<'a> {
    update: &'a NodeUpdate,
    part: &'a UpdatePart,
    objects: &'a [Arc<ProviderObject>],
}

impl<'a> ProviderWork<'a> {
    pub(super) fn new(
        update: &'a NodeUpdate,
        part: &'a UpdatePart,
        objects: &'a [Arc<ProviderObject>],
    ) -> Self {
        Self { update, part, objects }
    }

    /// The object of this part, once it is made.
    pub(super) fn own(&self) -> Option<&'a ProviderObject> {
        let plan_id = PlanId::of(&self.update.metadata);
        let mut objects = self.objects.iter().map(AsRef::as_ref);
        objects.find(|object| object.updater == self.part.updater && object.plan_id == plan_id)
    }

    /// How far it was allowed to go, as the NodeUpdate records it.
    pub(super) fn recorded(&self) -> Option<Gate> {
        self.update.status.as_ref()?.part(&self.part.updater).gate
    }

    /// Whether its object was deleted while it may have been at work on the machine.
    pub(super) fn has_vanished(&self) -> bool {
        self.own().is_none() && self.recorded() >= Some(Gate::Upgrade)
    }

    pub(super) fn ordered(&self) -> Option<WorkOrder> {
        let spec = &self.own()?.spec;
        Some(WorkOrder { gate: spec.gate, abort: spec.stage == Stage::Abort })
    }

    pub(super) fn report(&self) -> Option<WorkReport> {
        self.own().map(report)
    }

    /// The first order, which allows the provider to prepare.
    pub(super) fn first_order(&self, node: &NodeName, role: Role) -> Write {
        let goal = &self.update.spec.goal;
        let brings_version = self.part.brings_version();
        let parts = goal.parts.iter().find(|part| part.updater == self.part.updater);
        Write::Provider(ProviderOrder {
            updater: self.part.updater.clone(),
            returned_claim: ClaimId::default(),
            spec: ProviderSpec {
                machine_ref: self.update.spec.machine_ref.clone(),
                node_name: node.clone(),
                goal: ProviderGoal {
                    kubernetes_version: goal.kubernetes_version.clone().filter(|_| brings_version),
                    role: brings_version.then_some(role),
                    option: goal.option.clone().filter(|_| brings_version),
                    hash: parts.map(|part| part.hash.clone()).unwrap_or_default(),
                },
                stage: Stage::Ongoing,
                gate: Gate::Stage,
            },
        })
    }

    /// Gives an order after the first; `None` if the provider has it already, or no first one.
    pub(super) fn order(&self, order: WorkOrder) -> Option<Write> {
        let object = self.own()?;
        let mut spec = object.spec.clone();
        // An object that is being deleted is as good as aborted.
        if !object.is_deleting {
            spec.gate = spec.gate.max(order.gate);
        }
        if order.abort {
            spec.stage = Stage::Abort;
        }
        (spec != object.spec).then(|| write(object, spec))
    }

    /// Whether the provider may disturb the node.
    pub(super) fn may_disturb(&self) -> bool {
        self.has_vanished() || self.own().is_some_and(|own| own.spec.gate >= Gate::Upgrade)
    }

    /// The claim of a slot that was returned unused; `None` before the first order, which opens nothing.
    pub(super) fn returned_claim(&self) -> Option<ClaimId> {
        self.own().map(|own| own.returned_claim)
    }

    /// Records that a claim is returned unused.
    pub(super) fn return_claim(&self, claim: ClaimId) -> Option<Write> {
        let own = self.own().filter(|own| own.returned_claim != claim)?;
        Some(Write::Provider(ProviderOrder {
            updater: own.updater.clone(),
            returned_claim: claim,
            spec: own.spec.clone(),
        }))
    }

    /// The part as a step.
    pub(super) fn step(&self, status: &NodeUpdateStatus) -> WorkStep {
        let name = format!("updater/{}", self.part.updater);
        let known = status.part(&self.part.updater);
        let status = self.own().map(|own| {
            let (state, message) = match report(own).state {
                WorkState::Working | WorkState::Undoing => {
                    (StepState::Running, shown(&own.status.failure_message))
                }
                WorkState::Succeeded => (StepState::Done, String::new()),
                WorkState::Failed(failure) => (StepState::Failed, failure.message),
                WorkState::Stopped => (StepState::Undone, String::new()),
            };
            let has_ended = !matches!(state, StepState::Running);
            StepStatus {
                name: name.clone(),
                state,
                attempt: 1,
                started_at: known.started_at.clone(),
                finished_at: has_ended.then(|| known.finished_at.clone()).flatten(),
                message,
            }
        });
        WorkStep { name, gate: Gate::Disrupt, status }
    }
}

fn write(object: &ProviderObject, spec: ProviderSpec) -> Write {
    Write::Provider(ProviderOrder {
        updater: object.updater.clone(),
        returned_claim: object.returned_claim,
        spec,
    })
}

/// Whether a provider may disturb the machine of its object, or may be about to.
pub fn may_be_at_work(object: &ProviderObject) -> bool {
    object.spec.gate >= Gate::Upgrade && !report(object).has_ended()
}

/// The report of a provider. Of a report on an older order, only the gate that it has passed counts.
fn report(object: &ProviderObject) -> WorkReport {
    let ProviderObject { spec, status, .. } = object;
    // A gate that has just opened cannot have been passed before it is noted.
    let gate = if object.is_observed() { spec.gate } else { spec.gate.before() };
    let passed_gate = status.passed.min(gate);
    let aborts = spec.stage == Stage::Abort;
    let state = if !object.is_observed() {
        WorkState::Working
    } else if !status.failure_reason.is_empty() && !status.retriable {
        WorkState::Failed(WorkFailure {
            reason: shown(&status.failure_reason),
            message: format!("Updater {}: {}", object.updater, shown(&status.failure_message)),
        })
    } else if status.ready && passed_gate == Gate::Disrupt {
        // Also if it was to stop, too late.
        WorkState::Succeeded
    } else if status.ready && aborts {
        WorkState::Stopped
    } else if aborts {
        WorkState::Undoing
    } else {
        WorkState::Working
    };
    WorkReport {
        passed_gate,
        state,
        // Before the gate Upgrade nothing may change.
        past_no_return: status.past_no_return && spec.gate >= Gate::Upgrade,
        left_behind: status.left_behind.iter().take(LEFT_BEHIND).map(|text| shown(text)).collect(),
    }
}

/// An object of another NodeUpdate for the Machine whose provider has not ended.
pub(super) fn older_work<'a>(
    update: &NodeUpdate,
    objects: &'a [Arc<ProviderObject>],
) -> Option<&'a ProviderObject> {
    let own = PlanId::of(&update.metadata);
    let mut others = objects.iter().map(AsRef::as_ref).filter(|object| object.plan_id != own);
    others.find(|object| !report(object).has_ended())
}

/// Aborts the work of another NodeUpdate, unless that NodeUpdate is unfinished and does so itself.
pub(super) fn abort_older(
    update: &NodeUpdate,
    objects: &[Arc<ProviderObject>],
    siblings: &[Arc<NodeUpdate>],
) -> Option<Write> {
    let older = older_work(update, objects)?;
    let is_owned = |other: &&Arc<NodeUpdate>| PlanId::of(&other.metadata) == older.plan_id;
    let does_so = siblings.iter().filter(is_owned).any(|other| is_unfinished(other));
    let to_do = older.spec.stage != Stage::Abort && !older.is_deleting && !does_so;
    let spec = ProviderSpec { stage: Stage::Abort, ..older.spec.clone() };
    to_do.then(|| Write::OlderProvider(older.name.clone(), spec))
}

impl Work<'_> {
    /// Notes what providers have been allowed, and since when.
    pub(super) fn mirror_providers(&mut self) {
        let boot_id = self.seen.node().map(|node| node.boot_id.clone()).unwrap_or_default();
        for worker in &self.workers.providers {
            let Some(own) = worker.own() else { continue };
            let has_ended = report(own).has_ended();
            let parts = self.status.parts.iter_mut();
            for part in parts.filter(|part| part.updater == own.updater) {
                if part.state == PartState::Pending {
                    part.state = PartState::Ongoing;
                }
                part.started_at.get_or_insert(Time(self.now));
                if part.gate != Some(own.spec.gate) {
                    part.gate = Some(own.spec.gate);
                    part.gate_at = Some(Time(self.now));
                    // A reboot shows by another one.
                    part.boot_id.clone_from(&boot_id);
                }
                if own.spec.stage == Stage::Abort {
                    part.aborted_at.get_or_insert(Time(self.now));
                }
                if has_ended {
                    part.finished_at.get_or_insert(Time(self.now));
                }
                let progress = own.status.progress.as_ref();
                let message = progress.map(|progress| progress.message.clone()).unwrap_or_default();
                if part.state == PartState::Ongoing {
                    part.message = shown(&message);
                }
            }
        }
    }

    /// Notes which providers take too long, up to a gate or for a stop, and returns the failure of the first.
    pub(super) fn provider_timed_out(&mut self) -> Option<Standing> {
        let late: Vec<String> =
            self.workers.providers.iter().filter_map(|worker| self.late_updater(worker)).collect();
        for part in self.status.parts.iter_mut().filter(|part| late.contains(&part.updater)) {
            part.late_at.get_or_insert(Time(self.now));
        }
        self.workers.providers.iter().find_map(|worker| {
            let own = worker.own()?;
            let part = self.status.part(&own.updater);
            let late_at = part.late_at.as_ref()?.0;
            let seconds = worker.part.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
            // Being late may be why it is to stop.
            let stops = part.aborted_at.is_some_and(|aborted| aborted.0 < late_at);
            let what = if stops {
                "has not stopped".to_owned()
            } else {
                format!("has not passed gate {:?}", own.spec.gate)
            };
            let why = self.provider_trouble(own).map(|why| format!(": {why}")).unwrap_or_default();
            let message = format!("Updater {} {what} within {seconds} s{why}", own.updater);
            Some(Standing::failed("UpdaterTimedOut", message))
        })
    }

    /// The Updater of a provider that is too late.
    fn late_updater(&self, worker: &ProviderWork<'_>) -> Option<String> {
        let own = worker.own()?;
        let report = report(own);
        let aborts = own.spec.stage == Stage::Abort;
        let waits = report.passed_gate >= own.spec.gate && own.spec.gate < Gate::Disrupt;
        if report.has_ended() || waits && !aborts {
            return None;
        }
        let part = self.status.part(&own.updater);
        let since = part.aborted_at.filter(|_| aborts).map_or(part.gate_at, Some)?.0;
        let seconds = worker.part.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        let limit = SignedDuration::from_secs(seconds.into());
        (self.now.duration_since(since) >= limit).then(|| own.updater.clone())
    }

    /// The failure of an update after the object of a provider was deleted that may have been at work.
    pub(super) fn provider_vanished(&self) -> Option<Standing> {
        let gone = self.workers.providers.iter().find(|worker| worker.has_vanished())?;
        let updater = &gone.part.updater;
        Some(Standing::failed(
            "ProviderObjectDeleted",
            format!(
                "the object of Updater {updater} was deleted while its provider may have been at work: check \
                 the machine"
            ),
        ))
    }

    /// The refusal while the object of a provider is being deleted: it gets no further gate.
    pub(super) fn provider_deleting(&self) -> Option<Refusal> {
        let mut own = self.workers.providers.iter().filter_map(ProviderWork::own);
        let own = own.find(|own| own.is_deleting && !report(own).has_ended())?;
        let message = format!("its object {} is being deleted", own.name);
        Some(Refusal::UpdaterFails { updater: own.updater.clone(), message })
    }

    /// What keeps a provider from getting on.
    fn provider_trouble(&self, own: &ProviderObject) -> Option<String> {
        let since = self.status.part(&own.updater).gate_at.map(|at| at.0);
        let limit = SignedDuration::from_secs(OBSERVED_WITHIN_SECONDS);
        let is_old = since.is_some_and(|since| self.now.duration_since(since) > limit);
        if !own.is_observed() {
            return is_old.then(|| {
                format!(
                    "its provider has not observed generation {} of its object {}: check that it runs",
                    own.generation, own.name
                )
            });
        }
        let failure = &own.status.failure_message;
        (!own.status.failure_reason.is_empty()).then(|| shown(failure))
    }

    /// Progress message of a provider.
    pub(super) fn provider_line(&self, updater: &str) -> String {
        match &*self.status.part(updater).message {
            "" => format!("updater {updater} is at work"),
            message => format!("updater {updater}: {message}"),
        }
    }

    /// The refusal while a provider that is at work does not get on.
    pub(super) fn provider_refusal(&self) -> Option<Refusal> {
        self.workers.providers.iter().find_map(|worker| {
            let own = worker.own().filter(|own| !report(own).has_ended())?;
            let message = self.provider_trouble(own)?;
            Some(Refusal::UpdaterFails { updater: own.updater.clone(), message })
        })
    }
}
