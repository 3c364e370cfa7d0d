//! The silences of a ClusterUpgrade: those of the control plane are in force before the upgrade is commenced; later ones
//! keep nothing waiting.

use jiff::Timestamp;
use refit_kinds::{
    refit::{ClusterUpgradeStatus, SilenceRecord, UpgradePhase, UpgradeRecord},
    version::KubernetesVersion,
};

use super::{
    Hindrance, Known, Write,
    steps::{comes_to, control_plane_upgraded},
};
use crate::{
    gates::GatedCluster,
    managed::{
        silences::{
            PartState, SilenceOutcome, SilenceWrite, SilencesSeen, forget, note_removed, note_set,
            removals,
        },
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
    if known.upgrade.spec.silences.is_empty() {
        return Progress::Unneeded;
    }
    let before = known.recorded().map_or(&[][..], |record| &record.silences);
    let mut created = before.to_vec();
    note_set(&mut created, &known.silenced);
    let left = known.left(&known.machines.control_plane);
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
    match &known.hindrance {
        Some(Hindrance::Refused(why)) => return Progress::error(why.clone()),
        Some(Hindrance::Passing(why)) => return Progress::waits(why.clone()),
        None => {}
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
    let wanted = &known.upgrade.spec.silences;
    let mut strays = Vec::new();
    for record in &mut status.history {
        note_removed(&mut record.silences, &known.silenced);
        if record.version == *version {
            note_set(&mut record.silences, &known.silenced);
            forget(&mut record.silences, wanted, known.now);
        } else {
            strays.extend(removals(&record.silences, known.now));
        }
    }
    let Some(record) = status.history.iter().find(|record| record.version == *version) else {
        return (writes(known, strays), None);
    };
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
    strays.extend(due);
    (writes(known, strays), end)
}

/// Writes that were not tried at this look.
fn writes(known: &Known, due: Vec<SilenceWrite>) -> Vec<Write> {
    let is_new =
        |write: &SilenceWrite| !known.silenced.iter().any(|(tried, _)| tried.is_same(write));
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
    let plane_left = known.left(&known.machines.control_plane);
    let Some(task) = known.task() else {
        return if comes_to(known, SILENCED) {
            (PartState::Begins { left: plane_left }, PartState::Ahead)
        } else {
            (PartState::Done, PartState::Done)
        };
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
        PartState::Works { left: known.left(&known.machines.workers) }
    } else {
        PartState::Ahead
    };
    (control_plane, workers)
}

impl Known {
    /// Whether its UpgradeTask exists.
    pub fn is_commenced(&self) -> bool {
        self.task().is_some()
    }

    /// How many updates of these Machines are left, at least as many as there are: it gets smaller with each of them.
    fn left(&self, machines: &[KubernetesVersion]) -> i32 {
        let target = self.version();
        let hops = self.hops().unwrap_or_default();
        let of_machine = |machine: &KubernetesVersion| {
            let named = hops.iter().chain([target]).filter(|version| *version > machine).count();
            // Each minor version that is not named is one, too.
            let minors = target.minor().saturating_sub(machine.minor());
            named.saturating_add(usize::try_from(minors).unwrap_or_default())
        };
        i32::try_from(machines.iter().map(of_machine).sum::<usize>()).unwrap_or(i32::MAX)
    }
}

fn seen<'a>(
    known: &'a Known,
    created: &'a [SilenceRecord],
    (control_plane, workers): (PartState, PartState),
) -> SilencesSeen<'a> {
    let metadata = &known.upgrade.metadata;
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
        uid: metadata.uid.as_deref().unwrap_or_default(),
        now: known.now,
    }
}
