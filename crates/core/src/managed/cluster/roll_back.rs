//! The workers of a stopped upgrade return to the version that they had before: an UpgradeTask for each MachineDeployment,
//! one after the other.

use refit_kinds::{
    refit::{GroupOwner, UpgradeTask},
    version::KubernetesVersion,
};

use super::{Known, Write, is_controlled_by, steps::shown};
use crate::{
    managed::steps::Progress,
    task::{HopTo, child_name},
};

/// How many characters of the name of a Cluster the names of these tasks have.
const MAX_CLUSTER: usize = 150;

/// A MachineDeployment whose workers are to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returning {
    /// The MachineDeployment.
    pub owner: GroupOwner,
    /// The version; `None` if they have it. Or why they cannot.
    pub to: Result<Option<KubernetesVersion>, String>,
}

/// Rolls back the workers of an upgrade whose task has ended, if that is requested.
pub(super) fn rolled_back(known: &Known) -> Progress<Write> {
    if !known.rolls_back_workers() {
        return Progress::Done;
    }
    let uid = known.upgrade.metadata.uid.as_deref();
    let own = known.tasks.iter().map(AsRef::as_ref);
    let own: Vec<&UpgradeTask> =
        own.filter(|task| task.spec.roll_back && is_controlled_by(task, uid)).collect();
    if let Some(task) = own.iter().find(|task| !task.phase().has_ended()) {
        return Progress::waits(shown(task));
    }
    let stays = stays(known);
    if !stays.is_empty() {
        let why = format!(
            "{}. To end the upgrade without the workers' return, set spec.rollBackWorkers to false",
            stays.join("; ")
        );
        return Progress::error(why);
    }
    let to_return = known.returning.iter().filter_map(|group| {
        let version = group.to.as_ref().ok()?.clone()?;
        let to = HopTo { owner: group.owner.clone(), version };
        Some((child_name(&prefix(known), &to), to))
    });
    // One that has ended has left out what was skipped, or was stopped by another client.
    let is_made =
        |name: &String| own.iter().any(|task| task.metadata.name.as_deref() == Some(name.as_str()));
    let mut missing = to_return.filter(|(name, _)| !is_made(name));
    match missing.next() {
        Some((task, to)) => {
            let why = format!("{} {} returns to {}", to.owner.kind, to.owner.name, to.version);
            Progress::NotYet { why, writes: vec![Write::RollBack { task, to }] }
        }
        None => Progress::Done,
    }
}

/// Whether workers of a stopped upgrade are to return and cannot: a person decides what is next.
pub(super) fn is_refused(known: &Known) -> bool {
    known.rolls_back_workers()
        && known.tasks.iter().all(|task| task.phase().has_ended())
        && !stays(known).is_empty()
}

fn stays(known: &Known) -> Vec<&str> {
    let stays = known.returning.iter().filter_map(|group| group.to.as_ref().err());
    stays.map(String::as_str).collect()
}

/// How the names of the tasks of this request begin.
fn prefix(known: &Known) -> String {
    let metadata = &known.upgrade.metadata;
    let cluster = metadata.name.as_deref().unwrap_or_default();
    let cluster: String = cluster.chars().take(MAX_CLUSTER).collect();
    let of_record = known.recorded().map_or(0, |record| record.requested_time.0.as_second());
    format!("{cluster}-back-{of_record}")
}

#[cfg(test)]
#[path = "roll_back_tests.rs"]
mod tests;
