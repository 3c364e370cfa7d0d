//! Cluster API without its feature gate for updates in place: tasks upgrade a control plane of one machine and workers,
//! with Cluster API's controllers running throughout. It replaces no Machine, and afterwards sees all as up to date.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{
        self, CONTROL_PLANE, MACHINE_DEPLOYMENT, UPGRADE_TASK, annotation, condition_text, text,
    },
};
use refit_kinds::keys;
use serde_json::{Value, json};

use super::look;

const ROLE: &str = include_str!("../../../../deploy/tasks/role.yaml");
const ROLE_BINDING: &str = include_str!("../../../../deploy/tasks/role_binding.yaml");
const WITHIN: Duration = Duration::from_mins(6);
/// How long Cluster API has time to change its mind.
const AFTERWARDS: Duration = Duration::from_secs(30);

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", 3, 1, 0)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("tasks", &spec).await?;
    let before = look::identities(&cluster).await?;
    without_rights(&cluster).await?;
    for file in [ROLE, ROLE_BINDING] {
        let object: Value = serde_saphyr::from_str(&file.replace("metal3", "dev"))?;
        objects::apply(bed.client(), &object).await?;
    }
    complete(&cluster, "KubeadmControlPlane", &cluster.name).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    let workers = format!("{}-a", cluster.name);
    complete(&cluster, "MachineDeployment", &workers).await?;
    cluster.workers_are_at("a", TO, WITHIN).await?;
    tokio::time::sleep(AFTERWARDS).await;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    cluster.workers_are_at("a", TO, WITHIN).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    for (kind, name) in [(CONTROL_PLANE, &cluster.name), (MACHINE_DEPLOYMENT, &workers)] {
        let owner = cluster.objects.get(kind, name).await?;
        for key in [keys::PAUSED, keys::TASK] {
            ensure!(annotation(&owner, key).is_none(), "{name} still has the annotation {key}");
        }
    }
    left_to_cluster_api(&cluster).await?;
    look::nothing_is_left(&cluster).await
}

/// Without the component for tasks, a task names the right that Refit lacks, and changes nothing.
async fn without_rights(cluster: &Cluster) -> anyhow::Result<()> {
    let workers = format!("{}-a", cluster.name);
    create(cluster, "without-rights", "MachineDeployment", &workers).await?;
    eventually("the task names what Refit may not do", WITHIN, async || {
        let found =
            cluster.objects.get(UPGRADE_TASK, "without-rights").await.map_err(error_text)?;
        let ready = condition_text(&found, "Ready");
        if ready.contains("Refused") && ready.contains("machinedeployments") {
            Ok(())
        } else {
            Err(ready)
        }
    })
    .await?;
    cluster.objects.delete(UPGRADE_TASK, "without-rights").await
}

/// Creates a task for an owner, and waits until it is complete.
async fn complete(cluster: &Cluster, kind: &str, name: &str) -> anyhow::Result<()> {
    let task = format!("task-{name}");
    create(cluster, &task, kind, name).await?;
    eventually(&format!("{task} is complete"), WITHIN, async || {
        let found = cluster.objects.get(UPGRADE_TASK, &task).await.map_err(error_text)?;
        match text(&found, "/status/phase") {
            "Complete" => Ok(()),
            phase => Err(format!("{phase}: {}", condition_text(&found, "Ready"))),
        }
    })
    .await
}

async fn create(cluster: &Cluster, task: &str, kind: &str, name: &str) -> anyhow::Result<()> {
    let group = match kind {
        "KubeadmControlPlane" => "controlplane.cluster.x-k8s.io",
        _ => "cluster.x-k8s.io",
    };
    let object = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask",
        "metadata": {"name": task, "namespace": cluster.namespace},
        "spec": {
            "clusterRef": {"name": cluster.name}, "version": TO, "via": "Machines",
            "ownerRef": {"apiVersion": format!("{group}/v1beta2"), "kind": kind, "name": name},
        },
    });
    cluster.objects.apply(&object).await.map(drop)
}

/// Cluster API's own field managers own what it would have written: a later change of a template leaves nothing behind.
async fn left_to_cluster_api(cluster: &Cluster) -> anyhow::Result<()> {
    for machine in cluster.machines().await? {
        let entries = machine["metadata"]["managedFields"].as_array();
        let entries = entries.context("a Machine has no managed fields")?;
        let owns_version = |entry: &&Value| entry.pointer("/fieldsV1/f:spec/f:version").is_some();
        let owners: Vec<&str> =
            entries.iter().filter(owns_version).map(|entry| text(entry, "/manager")).collect();
        ensure!(
            owners
                .iter()
                .all(|owner| owner.starts_with("capi-") || *owner == keys::MANAGER_PATCHES),
            "{owners:?} own the version of a Machine"
        );
        ensure!(!owners.is_empty(), "the version of a Machine has no field manager");
    }
    Ok(())
}
