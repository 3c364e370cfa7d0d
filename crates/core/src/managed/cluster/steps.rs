//! The steps of a ClusterUpgrade, in order.

use jiff::SignedDuration;
use refit_kinds::{
    conditions,
    refit::{Stage, StepCondition, TaskPhase, UpgradeRecord, UpgradeTask},
};

use super::{
    Hindrance, Known, SILENCED, Write,
    extra::{removed, reserved},
    roll_back::rolled_back,
    silencing::silenced,
};
use crate::{
    managed::{
        notifications::Milestones,
        steps::{ERROR, Progress, Step},
    },
    task::status::READY,
};

/// The step after which an upgrade is finished, whatever the checks before it find.
const COMMENCED: &str = "UpgradeCommenced";
pub(super) const RESERVED: &str = "ComputeCapacityReserved";
pub(super) const REMOVED: &str = "ComputeCapacityRemoved";
const CONTROL_PLANE: &str = "ControlPlaneUpgraded";
pub(super) const WORKERS: &str = "WorkerNodesUpgraded";
const HEALTHY_AFTER: &str = "ClusterHealthyAfterUpgrade";
/// How long a Cluster may take to be healthy after its upgrade, or to lose its extra Machines, before the step shows an error.
const RECOVERS_WITHIN: SignedDuration = SignedDuration::from_hours(1);

/// The steps until the UpgradeTask exists, in order: they are not asked after that. To add one, write its function and give
/// it a name here (`docs/cluster-upgrades.md#add-a-step`).
pub(super) const PREPARATIONS: &[Step<Known, Write>] = &[
    Step { name: "IsClusterUpgradable", progress: is_upgradable },
    Step { name: "ClusterHealthyBeforeUpgrade", progress: healthy_before },
    Step { name: RESERVED, progress: reserved },
    Step { name: SILENCED, progress: silenced },
];

/// The steps from then on.
pub(super) const STEPS: &[Step<Known, Write>] = &[
    Step { name: COMMENCED, progress: commenced },
    Step { name: CONTROL_PLANE, progress: control_plane_upgraded },
    Step { name: WORKERS, progress: workers_upgraded },
    Step { name: REMOVED, progress: removed },
    Step { name: HEALTHY_AFTER, progress: healthy_after },
];

/// The steps that people are notified of.
pub(super) const MILESTONES: Milestones =
    Milestones { commenced: COMMENCED, control_plane: CONTROL_PLANE, workers: WORKERS };

/// Whether the task of a record was seen.
pub fn was_commenced(record: &UpgradeRecord) -> bool {
    let is_after = |step: &StepCondition| {
        STEPS.iter().any(|one| one.name == step.type_ && one.name != COMMENCED)
    };
    record.task.is_some() && record.conditions.iter().any(is_after)
}

pub(super) fn named(task: &UpgradeTask) -> String {
    format!("UpgradeTask {}", task.metadata.name.as_deref().unwrap_or_default())
}

/// What a task shows.
pub(super) fn shown(task: &UpgradeTask) -> String {
    let shown = task.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let message = conditions::get(shown, READY).map_or("not begun", |ready| &ready.message);
    format!("{}: {message}", named(task))
}

fn is_upgradable(known: &Known) -> Progress<Write> {
    known.invalid().map_or(Progress::Done, |(_, why)| Progress::waits(why))
}

fn healthy_before(known: &Known) -> Progress<Write> {
    match known.health.problem() {
        // A Machine that is just created is not healthy yet: the Cluster is checked again once all are Ready.
        Some(why) if !known.is_reserving() => Progress::waits(why),
        Some(_) | None => Progress::Done,
    }
}

fn commenced(known: &Known) -> Progress<Write> {
    if known.task().is_some() {
        return Progress::Done;
    }
    match &known.hindrance {
        Some(Hindrance::Refused(why)) => return Progress::error(why.clone()),
        Some(Hindrance::Passing(why)) => return Progress::waits(why.clone()),
        None => {}
    }
    let (task, version) = (known.task_name(), known.version().clone());
    let created = format!("UpgradeTask {task} is created");
    let (hops, via) = (known.hops().unwrap_or_default(), known.via());
    let writes = vec![Write::Commence { task, version, hops, via }];
    let was_tried = known.recorded().is_some_and(|record| record.task.is_some());
    if was_tried {
        return trying(known, COMMENCED, created, writes);
    }
    Progress::NotYet { why: created, writes }
}

/// Whether nothing that is asked before this preparation keeps the upgrade waiting.
pub(super) fn comes_to(known: &Known, name: &str) -> bool {
    let mut earlier = PREPARATIONS.iter().take_while(|step| step.name != name);
    earlier.all(|step| match (step.progress)(known) {
        Progress::Done | Progress::Unneeded => true,
        Progress::NotYet { .. } | Progress::Error { .. } => false,
    })
}

/// A step with writes. What the last try has shown stays until one succeeds: otherwise each of them would write the status
/// twice.
pub(super) fn trying(
    known: &Known,
    name: &str,
    why: String,
    writes: Vec<Write>,
) -> Progress<Write> {
    match known.waiting(name) {
        Some(step) if step.reason == ERROR => Progress::Error { why: step.message.clone(), writes },
        Some(step) => Progress::NotYet { why: step.message.clone(), writes },
        None => Progress::NotYet { why, writes },
    }
}

pub(super) fn control_plane_upgraded(known: &Known) -> Progress<Write> {
    let is_upgraded =
        known.control_plane.as_ref().is_some_and(|group| group.version >= *known.version());
    if is_upgraded { Progress::Done } else { of_task(known) }
}

fn workers_upgraded(known: &Known) -> Progress<Write> {
    of_task(known)
}

/// How far the task is.
fn of_task(known: &Known) -> Progress<Write> {
    let Some(task) = known.task() else { return Progress::waits("the UpgradeTask is not known") };
    match task.phase() {
        TaskPhase::Complete => Progress::Done,
        TaskPhase::Failed => Progress::error(shown(task)),
        TaskPhase::Pending | TaskPhase::Ongoing | TaskPhase::Aborted => {
            Progress::waits(shown(task))
        }
    }
}

fn healthy_after(known: &Known) -> Progress<Write> {
    let Some(why) = known.health.problem() else { return Progress::Done };
    // By then it is not what the upgrade has shaken.
    let is_late = known.takes_long(HEALTHY_AFTER);
    if is_late { Progress::error(why) } else { Progress::waits(why) }
}

impl Known {
    /// The condition of a step that was begun.
    pub(super) fn begun_step(&self, name: &str) -> Option<&StepCondition> {
        self.recorded()?.conditions.iter().find(|step| step.type_ == name)
    }

    /// The condition of a step that was begun, and waits.
    pub(super) fn waiting(&self, name: &str) -> Option<&StepCondition> {
        self.begun_step(name).filter(|step| step.status != "True")
    }

    /// Whether a step takes longer than Machines need to come or go.
    pub(super) fn takes_long(&self, name: &str) -> bool {
        let began = self.begun_step(name).map(|step| step.start_time.0);
        began.is_some_and(|began| self.now.duration_since(began) >= RECOVERS_WITHIN)
    }
}

/// Stops the task, and waits for its end and for the workers that return.
pub(super) fn stop(known: &Known) -> Progress<Write> {
    match known.task() {
        Some(task) if !task.phase().has_ended() => {
            let is_asked = task.spec.stage == Stage::Abort
                && task.spec.on_abort == known.upgrade.spec.on_abort;
            let abort = || Write::Abort(task.metadata.name.clone().unwrap_or_default());
            let writes = if is_asked { Vec::new() } else { vec![abort()] };
            Progress::NotYet { why: shown(task), writes }
        }
        Some(_) | None => rolled_back(known),
    }
}
