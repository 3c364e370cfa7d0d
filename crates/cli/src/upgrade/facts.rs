//! Reads the facts about a target before its version is changed.

use std::sync::Arc;

use anyhow::bail;
use kube::{Resource, ResourceExt as _};
use refit_core::group::REASON_UNCOVERED;
use refit_kinds::{keys, refit::Owner, version::StatedVersion};
use refit_predict::{Reach, Read as Known, managers::Provider, notes, reach};
use serde_json::Value;

use super::decide::{Facts, Field, Group};
use crate::{
    client::Cluster,
    left::paused_by,
    progress::step,
    reach::Surroundings,
    target::{Gathered, Target, TargetKind},
    watch::{GroupRow, Objects, Scope, View},
};

/// The facts, and notes about what could not be read.
pub(super) struct Read {
    pub(super) facts: Facts,
    pub(super) notes: Vec<String>,
}

/// Reads the facts for an upgrade of the target.
pub(super) async fn read(cluster: &Cluster, target: &Target) -> anyhow::Result<Read> {
    let name = cluster_name(cluster, target).await?;
    let whole = Target { kind: TargetKind::Cluster, name: name.clone() };
    let found = whole.gather(cluster).await?;
    let surroundings = Surroundings::read(cluster).await?;
    let scope = Scope { target: Some(whole), ..Scope::default() };
    let view = View::of(&objects(&found), &scope);
    let is_target = |kind, name: &str| {
        target.kind == TargetKind::Cluster || target.kind == kind && target.name == name
    };
    let (mut reaches, mut kept) = (Vec::new(), Vec::new());
    let mut facts = Facts {
        cluster: name,
        topology: found
            .cluster
            .as_ref()
            .filter(|_| target.kind == TargetKind::Cluster)
            .and_then(topology),
        ..Facts::default()
    };
    if let Some(object) = &found.control_plane {
        let facts_of = surroundings.of_control_plane(object, found.cluster.as_ref());
        facts.with_control_plane = is_target(TargetKind::ControlPlane, &object.name_any());
        facts.control_plane = Some(group(object, &view, &facts_of));
        if facts.with_control_plane {
            reaches.push(facts_of);
            kept.extend(keepers(object, Field::ControlPlane));
        }
    }
    for object in &found.deployments {
        let facts_of = surroundings.of_deployment(object, found.cluster.as_ref());
        let part = is_target(TargetKind::MachineDeployment, &object.name_any());
        // The other MachineDeployments must still be compatible with a new control plane.
        if part || target.kind == TargetKind::ControlPlane {
            facts.deployments.push(group(object, &view, &facts_of));
        }
        if part {
            facts.with_deployments = true;
            reaches.push(facts_of);
            kept.extend(keepers(object, Field::Deployment));
        }
    }
    let mut notes: Vec<String> = reaches.iter().flat_map(notes).collect();
    notes.sort();
    notes.dedup();
    if facts.topology.is_none() {
        notes.extend(kept);
    }
    Ok(Read { facts, notes })
}

/// Returns the name of the target's Cluster.
async fn cluster_name(cluster: &Cluster, target: &Target) -> anyhow::Result<String> {
    if target.kind == TargetKind::Cluster {
        return Ok(target.name.clone());
    }
    let name = target.reference(cluster).await?.cluster;
    if name.is_empty() {
        bail!("{target} belongs to no Cluster yet: Cluster API has not adopted it");
    }
    Ok(name)
}

/// Returns the field managers that applied the version earlier and may revert the change, typically
/// GitOps tools.
fn keepers<K: Resource<DynamicType = ()>>(object: &K, field: Field) -> Vec<String> {
    let path = format!("/f:{}", field.path().replace('.', "/f:"));
    object
        .managed_fields()
        .iter()
        .filter(|entry| entry.operation.as_deref() == Some("Apply"))
        .filter(|entry| {
            let fields = entry.fields_v1.as_ref();
            fields.is_some_and(|fields| fields.0.pointer(&path).is_some())
        })
        .filter_map(|entry| entry.manager.as_deref())
        .filter(|manager| *manager != keys::MANAGER)
        .map(|manager| {
            format!(
                "{}/{} {} was applied by {manager}, which may revert it; change the version \
                 there, too",
                K::kind(&()),
                object.name_any(),
                field.path()
            )
        })
        .collect()
}

fn objects(found: &Gathered) -> Objects {
    Objects {
        machines: found.machines.iter().cloned().map(Arc::new).collect(),
        updates: found.updates.iter().cloned().map(Arc::new).collect(),
        groups: found.groups.iter().cloned().map(Arc::new).collect(),
        control_planes: found.control_plane.iter().cloned().map(Arc::new).collect(),
        deployments: found.deployments.iter().cloned().map(Arc::new).collect(),
    }
}

fn topology(object: &refit_cluster_api::kinds::Cluster) -> Option<StatedVersion> {
    let topology = object.spec.topology.as_ref()?;
    let version = topology.0.get("version").and_then(Value::as_str);
    Some(version.unwrap_or_default().into())
}

/// Whether the Deployments of the managers that a group needs show their feature gates.
fn shows_gates(facts: &Reach) -> bool {
    let Known::Known(managers) = &facts.managers else { return false };
    let is_needed = |provider: &Provider| match provider {
        Provider::Core => true,
        Provider::KubeadmControlPlane => facts.group.owner() == Some(Owner::ControlPlane),
    };
    let is_seen = |provider| managers.iter().any(|manager| manager.provider == provider);
    Provider::ALL.into_iter().filter(is_needed).all(is_seen)
}

fn group<K: Resource<DynamicType = ()>>(object: &K, view: &View, facts: &Reach) -> Group {
    let name = format!("{}/{}", K::kind(&()), object.name_any());
    let row = view.groups.iter().find(|group| group.owner == name);
    let row: GroupRow = row.cloned().unwrap_or_default();
    let machines: Vec<_> =
        view.machines.iter().filter(|machine| machine.progress.owner == name).collect();
    let under_way = machines
        .iter()
        .filter(|machine| {
            let progress = &machine.progress;
            progress.is_under_way() || progress.in_progress && !progress.has_failed()
        })
        .map(|machine| {
            let progress = &machine.progress;
            (progress.machine.clone(), step(progress, &machine.target).phase)
        })
        .collect();
    let annotations = object.annotations();
    let paused_by = paused_by(annotations);
    let mut facts = facts.clone();
    // Another task takes over what a task has paused.
    if paused_by.is_some()
        && facts.paused == Some(format!("{} {}", K::kind(&()), object.name_any()))
    {
        facts.paused = None;
    }
    Group {
        paused_by,
        name: object.name_any(),
        version: row.version,
        resource_version: object.resource_version().unwrap_or_default(),
        settled: row.settled && machines.iter().all(|machine| machine.is_done()),
        under_way,
        uncovered: row
            .blocked
            .filter(|(reason, _)| reason == REASON_UNCOVERED)
            .map(|(_, message)| message.replace('\n', "; ")),
        kubelets: machines
            .iter()
            .map(|machine| machine.progress.kubelet_version.clone())
            .filter(|version| !version.is_absent())
            .collect(),
        managed: object.labels().contains_key(keys::TOPOLOGY_OWNED),
        reach: reach(&facts),
        shows_gates: shows_gates(&facts),
        object: name,
    }
}
