//! The state of a watch at one moment, and whether it is final. Pure.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{KubeadmControlPlane, Machine, MachineDeployment};
use refit_core::{
    group,
    progress::{MachineProgress, owner_of},
};
use refit_kinds::{
    conditions,
    refit::{NodeUpdate, UpdateGroup},
    version::{KubernetesVersion, StatedVersion},
};

use crate::{
    progress::is_done,
    target::{Target, TargetKind, cluster_of},
};

/// The part of the cluster to watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Limits the scope to this target and what belongs to it.
    pub(crate) target: Option<Target>,
    /// Limits the scope to this namespace.
    pub(crate) namespace: Option<String>,
    /// Nothing counts as done until the owners request this version.
    pub(crate) wanted: Option<KubernetesVersion>,
    /// Start of the operation, if it began before the watch.
    pub(crate) since: Option<jiff::Timestamp>,
}

/// All objects that were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) machines: Vec<Arc<Machine>>,
    pub(crate) updates: Vec<Arc<NodeUpdate>>,
    pub(crate) groups: Vec<Arc<UpdateGroup>>,
    pub(crate) control_planes: Vec<Arc<KubeadmControlPlane>>,
    pub(crate) deployments: Vec<Arc<MachineDeployment>>,
}

/// One machine and its target version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineRow {
    /// Progress of the machine's update.
    pub(crate) progress: MachineProgress,
    /// Version that the owner requests.
    pub(crate) target: StatedVersion,
}

impl MachineRow {
    /// Reports whether the machine is up to date.
    pub(crate) fn is_done(&self) -> bool {
        is_done(&self.progress, &self.target)
    }
}

/// One control plane or MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupRow {
    /// Namespace of the owner.
    pub(crate) namespace: String,
    /// `Kind/name`.
    pub(crate) owner: String,
    /// Name of the Cluster.
    pub(crate) cluster: String,
    /// Whether the owner is a control plane.
    pub(crate) control_plane: bool,
    /// The requested version.
    pub(crate) version: StatedVersion,
    /// Whether its controller has observed the spec, and every replica matches it.
    pub(crate) settled: bool,
    /// Reason and message of a block that does not resolve by itself.
    pub(crate) blocked: Option<(String, String)>,
    /// Predicted seconds until it is done, if there is data for a prediction.
    pub(crate) rest_seconds: Option<i64>,
}

/// The state to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The groups, control planes first.
    pub(crate) groups: Vec<GroupRow>,
    /// The machines, control planes first.
    pub(crate) machines: Vec<MachineRow>,
}

/// The overall state of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Work is still in progress or pending.
    Going,
    /// Everything is up to date.
    Done,
    /// Machines failed or were stopped for good, and no other update is in progress.
    Failed {
        /// Whether the failed machines block their groups, so that no other update will start.
        held_up: bool,
    },
}

impl View {
    /// Selects the objects of `scope`.
    pub(crate) fn of(objects: &Objects, scope: &Scope) -> Self {
        let mut owners = owners(objects);
        // A control plane names its Cluster only in a label, which may be missing.
        for machine in &objects.machines {
            let key = (machine.namespace().unwrap_or_default(), owner_of(machine));
            if let Some(group) = owners.get_mut(&key).filter(|group| group.cluster.is_empty()) {
                group.cluster.clone_from(&machine.spec.cluster_name);
            }
        }
        let mut updates: BTreeMap<&str, Vec<&NodeUpdate>> = BTreeMap::new();
        for update in &objects.updates {
            let of_machine = updates.entry(&update.spec.machine_ref.uid).or_default();
            of_machine.push(update);
        }
        let mut machines: Vec<MachineRow> = objects
            .machines
            .iter()
            .filter(|machine| scope.target.as_ref().is_none_or(|t| t.holds(machine)))
            .map(|machine| {
                let uid = machine.uid().unwrap_or_default();
                let known = updates.get(uid.as_str()).map(Vec::as_slice);
                let known = known.unwrap_or_default().iter().copied();
                let progress = MachineProgress::of(machine, known);
                let owner = (progress.namespace.clone(), progress.owner.clone());
                let target = owners
                    .get(&owner)
                    .map_or(&progress.wanted_version, |group| &group.version)
                    .clone();
                MachineRow { progress, target }
            })
            .collect();
        machines.sort_by(|a, b| order(a).cmp(&order(b)));
        owners.retain(|_, group| concerns(scope.target.as_ref(), group));
        for group in &objects.groups {
            let owner = &group.spec.owner;
            let key =
                (group.namespace().unwrap_or_default(), format!("{}/{}", owner.kind, owner.name));
            if let Some(row) = owners.get_mut(&key) {
                row.take_in(group, &machines);
            }
        }
        let mut groups: Vec<GroupRow> = owners.into_values().collect();
        groups.sort_by_key(|row| (!row.control_plane, row.namespace.clone(), row.owner.clone()));
        Self { groups, machines }
    }

    /// Returns the number of machines that are up to date.
    pub(crate) fn done(&self) -> usize {
        self.machines.iter().filter(|row| row.is_done()).count()
    }

    /// Returns the overall state of this scope.
    pub(crate) fn standing(&self, scope: &Scope) -> Standing {
        let whole = scope.target.as_ref().is_none_or(|target| target.kind != TargetKind::Machine);
        let is_wanted =
            |version: &StatedVersion| scope.wanted.as_ref().is_none_or(|w| version.is(w));
        let settled = !whole || self.groups.iter().all(|g| g.settled && is_wanted(&g.version));
        if settled && self.machines.iter().all(MachineRow::is_done) {
            return Standing::Done;
        }
        let under_way = self.machines.iter().any(|row| row.progress.is_under_way());
        let failed: Vec<&MachineRow> = self.failed();
        if under_way || failed.is_empty() {
            return Standing::Going;
        }
        let held_up = failed.iter().all(|row| {
            let group = self.groups.iter().find(|group| {
                group.namespace == row.progress.namespace && group.owner == row.progress.owner
            });
            let blocked = group.and_then(|group| group.blocked.as_ref());
            blocked.is_some_and(|(reason, _)| {
                *reason == conditions::REASON_FAILED || *reason == row.progress.failure_reason
            })
        });
        Standing::Failed { held_up }
    }

    /// Returns the machines whose update failed or was stopped for good.
    pub(crate) fn failed(&self) -> Vec<&MachineRow> {
        let failed = |row: &&MachineRow| row.progress.has_failed() && !row.is_done();
        self.machines.iter().filter(failed).collect()
    }

    /// Predicts the seconds until everything is done: workers follow the control plane of their
    /// cluster; MachineDeployments and clusters progress in parallel.
    pub(crate) fn rest_seconds(&self) -> Option<i64> {
        let mut clusters: BTreeMap<(&str, &str), (i64, i64)> = BTreeMap::new();
        for group in &self.groups {
            let rest = group.rest_seconds?;
            let sums = clusters.entry((&group.namespace, &group.cluster)).or_default();
            if group.control_plane {
                sums.0 = sums.0.saturating_add(rest);
            } else {
                sums.1 = sums.1.max(rest);
            }
        }
        clusters
            .values()
            .map(|(first, then)| first.saturating_add(*then))
            .max()
            .filter(|rest| *rest > 0)
    }
}

fn order(row: &MachineRow) -> (bool, &str, &str, &str) {
    let row = &row.progress;
    (!row.control_plane, &row.namespace, &row.owner, &row.machine)
}

fn concerns(target: Option<&Target>, group: &GroupRow) -> bool {
    let Some(target) = target else { return true };
    match target.kind {
        TargetKind::Cluster => group.cluster == target.name,
        TargetKind::Machine | TargetKind::MachineSet => false,
        TargetKind::ControlPlane | TargetKind::MachineDeployment => {
            group.owner == target.to_string()
        }
    }
}

/// Returns every control plane and MachineDeployment, by namespace and `Kind/name`.
fn owners(objects: &Objects) -> BTreeMap<(String, String), GroupRow> {
    let control_planes = objects.control_planes.iter().map(|object| {
        let status = object.status.clone().unwrap_or_default();
        let wanted = object.spec.replicas.unwrap_or(1);
        GroupRow {
            namespace: object.namespace().unwrap_or_default(),
            owner: format!("KubeadmControlPlane/{}", object.name_any()),
            cluster: cluster_of(object),
            control_plane: true,
            version: object.spec.version.clone(),
            settled: is_observed(object.metadata.generation, status.observed_generation)
                && [status.replicas, status.up_to_date_replicas] == [Some(wanted); 2],
            ..GroupRow::default()
        }
    });
    let deployments = objects.deployments.iter().map(|object| {
        let status = object.status.clone().unwrap_or_default();
        let wanted = object.spec.replicas.unwrap_or(1);
        let counts = [status.replicas, status.up_to_date_replicas];
        GroupRow {
            namespace: object.namespace().unwrap_or_default(),
            owner: format!("MachineDeployment/{}", object.name_any()),
            cluster: object.spec.cluster_name.clone(),
            control_plane: false,
            version: object.spec.template.spec.version.clone(),
            settled: is_observed(object.metadata.generation, status.observed_generation)
                && counts.map(Option::unwrap_or_default) == [wanted; 2],
            ..GroupRow::default()
        }
    });
    control_planes
        .chain(deployments)
        .map(|row| ((row.namespace.clone(), row.owner.clone()), row))
        .collect()
}

fn is_observed(generation: Option<i64>, observed: Option<i64>) -> bool {
    generation.is_none() || observed >= generation
}

impl GroupRow {
    fn take_in(&mut self, group: &UpdateGroup, machines: &[MachineRow]) {
        let Some(status) = &group.status else {
            return;
        };
        self.blocked = conditions::get(&status.conditions, group::BLOCKED)
            .filter(|condition| condition.status == "True")
            .map(|condition| (condition.reason.clone(), condition.message.clone()));
        let members: Vec<&MachineRow> = machines
            .iter()
            .filter(|row| {
                row.progress.namespace == self.namespace && row.progress.owner == self.owner
            })
            .collect();
        self.rest_seconds = rest(&members, status);
    }
}

/// Predicts the seconds until these machines are done, from past durations of their group.
fn rest(members: &[&MachineRow], status: &refit_kinds::refit::UpdateGroupStatus) -> Option<i64> {
    let under_way = members.iter().filter(|row| row.progress.is_under_way());
    let running = under_way
        .map(|row| row.progress.remaining_seconds.map(i64::from))
        .try_fold(0, |longest: i64, rest| rest.map(|rest| longest.max(rest)))?;
    let waiting = members
        .iter()
        .filter(|row| !row.is_done() && !row.progress.is_under_way() && !row.progress.has_failed())
        .count();
    if waiting == 0 {
        return Some(running);
    }
    let steps: Vec<i64> = status
        .durations
        .iter()
        .filter_map(|known| group::median_seconds(&status.durations, &known.step))
        .map(i64::from)
        .collect();
    if steps.is_empty() {
        return None;
    }
    let at_once = usize::try_from(status.limit.max(1)).unwrap_or(1);
    let rounds = i64::try_from(waiting.div_ceil(at_once)).unwrap_or(i64::MAX);
    let each = steps.iter().sum::<i64>();
    Some(running.saturating_add(rounds.saturating_mul(each)))
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
