//! The silences of a ClusterUpgrade: those of the control plane are in force before the upgrade is commenced; later ones
//! keep nothing waiting.

use jiff::Timestamp;
use refit_kinds::{
    refit::{ClusterUpgradeStatus, SilenceRecord, UpgradePhase, UpgradeRecord},
    version::KubernetesVersion,
};

use super::{Known, Write, steps::control_plane_upgraded};
use crate::{
    gates::GatedCluster,
    managed::{
        silences::{PartState, SilenceOutcome, SilenceWrite, SilencesSeen, noted},
        steps::Progress,
    },
};

/// Condition of a ClusterUpgrade: whether silences are in force.
pub const SILENCED: &str = "AlertsSilenced";

/// The versions of a Cluster's Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineVersions {
    /// Of the control plane.
    pub control_plane: Vec<KubernetesVersion>,
    /// Of the workers.
    pub workers: Vec<KubernetesVersion>,
}

/// The step: the silences that must be in force before the upgrade begins.
pub(super) fn silenced(known: &Known) -> Progress<Write> {
    if known.task().is_some() || known.upgrade.spec.silences.is_empty() {
        return Progress::Unneeded;
    }
    let before = known.recorded().map_or(&[][..], |record| &record.silences);
    let created = noted(before, &known.silenced);
    let left = left(&known.machines.control_plane, known.version());
    let seen = seen(known, &created, (PartState::Begins { left }, PartState::Ahead));
    let due = seen.due();
    let failed = known.silenced.iter().find_map(|(write, outcome)| match outcome {
        SilenceOutcome::Failed(why) => Some(format!("silence {}: {why}", write.name())),
        SilenceOutcome::Set(_) | SilenceOutcome::Ended(_) | SilenceOutcome::Removed => None,
    });
    if let Some(why) = failed {
        return Progress::error(why);
    }
    if due.is_empty() {
        return Progress::Done;
    }
    let why = "silences are created in Alertmanager".to_owned();
    Progress::NotYet { why, writes: writes(known, due) }
}

/// Notes in a status which silences were created, and returns what is to be written beyond the steps, and when the next
/// silence ends.
pub(super) fn keep(
    known: &Known,
    status: &mut ClusterUpgradeStatus,
) -> (Vec<Write>, Option<Timestamp>) {
    let version = known.version();
    let Some(record) = status.history.iter_mut().find(|record| record.version == *version) else {
        return (Vec::new(), None);
    };
    record.silences = noted(&record.silences, &known.silenced);
    let record = &*record;
    let parts = parts(known, record);
    let seen = seen(known, &record.silences, parts);
    let due = match parts.0 {
        // The step sees to them.
        PartState::Begins { .. } => Vec::new(),
        PartState::Ahead | PartState::Works { .. } | PartState::Done => seen.due(),
    };
    let (condition, end) = (seen.condition(&known.silenced), seen.next_end());
    match condition {
        Some((silenced, reason, message)) => {
            let truth = if silenced { "True" } else { "False" };
            let what = (SILENCED, truth, reason, &*message);
            let generation = known.upgrade.metadata.generation;
            refit_kinds::conditions::set(&mut status.conditions, known.now, generation, what);
        }
        None => status.conditions.retain(|condition| condition.type_ != SILENCED),
    }
    (writes(known, due), end)
}

/// Writes that were not tried at this look.
fn writes(known: &Known, due: Vec<SilenceWrite>) -> Vec<Write> {
    let is_new = |write: &SilenceWrite| {
        !known.silenced.iter().any(|(tried, _)| tried.name() == write.name())
    };
    due.into_iter().filter(is_new).map(Write::Silence).collect()
}

/// How far the control plane and the workers are.
fn parts(known: &Known, record: &UpgradeRecord) -> (PartState, PartState) {
    match record.phase {
        UpgradePhase::Upgrading => {}
        UpgradePhase::New
        | UpgradePhase::Pending
        | UpgradePhase::Completed
        | UpgradePhase::Failed => return (PartState::Done, PartState::Done),
    }
    let plane_left = left(&known.machines.control_plane, &record.version);
    let Some(task) = known.task() else {
        return (PartState::Begins { left: plane_left }, PartState::Ahead);
    };
    let is_upgraded = matches!(control_plane_upgraded(known), Progress::Done);
    let has_ended = task.phase().has_ended();
    let control_plane = if is_upgraded || has_ended {
        PartState::Done
    } else {
        PartState::Works { left: plane_left }
    };
    let workers = if has_ended || known.workers.is_empty() {
        PartState::Done
    } else if is_upgraded || known.worker_tasks().next().is_some() {
        PartState::Works { left: left(&known.machines.workers, &record.version) }
    } else {
        PartState::Ahead
    };
    (control_plane, workers)
}

fn left(machines: &[KubernetesVersion], version: &KubernetesVersion) -> i32 {
    let left = machines.iter().filter(|of| *of < version).count();
    i32::try_from(left).unwrap_or(i32::MAX)
}

fn seen<'a>(
    known: &'a Known,
    created: &'a [SilenceRecord],
    (control_plane, workers): (PartState, PartState),
) -> SilencesSeen<'a> {
    let metadata = &known.upgrade.metadata;
    let generation = metadata.generation.unwrap_or_default();
    SilencesSeen {
        wanted: &known.upgrade.spec.silences,
        created,
        control_plane,
        workers,
        cluster: GatedCluster {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
        },
        version: known.version(),
        request: match &metadata.creation_timestamp {
            Some(created) => format!("generation {generation} since {}", created.0),
            None => format!("generation {generation}"),
        },
        now: known.now,
    }
}
