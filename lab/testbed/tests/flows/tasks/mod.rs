//! Cluster API without its feature gate for updates in place: tasks upgrade a control plane of one machine, workers,
//! whole Clusters and the Cluster of a topology, with Cluster API's controllers running throughout. It replaces no
//! Machine, and afterwards sees all as up to date.

mod remediated;
mod whole;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{self, UPGRADE_TASK, annotation, condition_text, text},
};
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{extra, look};

/// The components for tasks and for extra capacity.
const RIGHTS: [&str; 6] = [
    include_str!("../../../../../deploy/extra-capacity/role.yaml"),
    include_str!("../../../../../deploy/extra-capacity/role_binding.yaml"),
    include_str!("../../../../../deploy/tasks/role.yaml"),
    include_str!("../../../../../deploy/tasks/role_binding.yaml"),
    include_str!("../../../../../deploy/tasks/spec_role.yaml"),
    include_str!("../../../../../deploy/tasks/spec_role_binding.yaml"),
];
/// The clusters are upgraded at the same time.
const WITHIN: Duration = Duration::from_mins(20);
const KCP: (&str, &str) = ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane");
const DEPLOYMENT: (&str, &str) = ("cluster.x-k8s.io", "MachineDeployment");
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
    without_rights(&cluster).await?;
    grant(bed).await?;
    futures::try_join!(
        groups(&cluster),
        whole::two_hops(bed),
        whole::topology(bed),
        extra::by_replicas(bed),
        remediated::run(bed),
    )?;
    Ok(())
}

/// Installs the components for tasks and for extra capacity, for the bed's provider.
pub(super) async fn grant(bed: &Bed) -> anyhow::Result<()> {
    for file in RIGHTS {
        let object: Value = serde_saphyr::from_str(&file.replace("metal3", "dev"))?;
        objects::apply(bed.client(), &object).await?;
    }
    Ok(())
}

/// One task for the control plane, and then one for the workers.
async fn groups(cluster: &Cluster) -> anyhow::Result<()> {
    let before = look::identities(cluster).await?;
    let workers = format!("{}-a", cluster.name);
    let of_plane = create(cluster, "plane", &of(KCP, &cluster.name, TO)).await?;
    complete(cluster, &of_plane).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    let of_workers = create(cluster, "workers", &of(DEPLOYMENT, &workers, TO)).await?;
    complete(cluster, &of_workers).await?;
    is_left_alone(cluster, &["a"], TO).await?;
    let after = look::identities(cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    left_to_cluster_api(cluster).await?;
    look::nothing_is_left(cluster).await
}

/// Cluster API goes on with every owner, and sees every Machine as up to date, also 30 seconds later.
pub(super) async fn is_left_alone(
    cluster: &Cluster,
    workers: &[&str],
    version: &str,
) -> anyhow::Result<()> {
    for wait in [Duration::ZERO, AFTERWARDS] {
        tokio::time::sleep(wait).await;
        cluster.control_plane_is_at(version, WITHIN).await?;
        for workers in workers {
            cluster.workers_are_at(workers, version, WITHIN).await?;
        }
    }
    let plane = cluster.control_plane().await?;
    is_not_paused(&plane)?;
    for workers in workers {
        is_not_paused(&cluster.deployment(workers).await?)?;
    }
    Ok(())
}

fn is_not_paused(owner: &Value) -> anyhow::Result<()> {
    for key in [keys::PAUSED, keys::TASK] {
        ensure!(
            annotation(owner, key).is_none(),
            "{} still has the annotation {key}",
            objects::name(owner)
        );
    }
    Ok(())
}

/// Without the component for tasks, a task names the right that Refit lacks, and changes nothing.
async fn without_rights(cluster: &Cluster) -> anyhow::Result<()> {
    let workers = format!("{}-a", cluster.name);
    let task = create(cluster, "without-rights", &of(DEPLOYMENT, &workers, TO)).await?;
    eventually("the task names what Refit may not do", WITHIN, async || {
        let found = cluster.objects.get(UPGRADE_TASK, &task).await.map_err(error_text)?;
        let ready = condition_text(&found, "Ready");
        if ready.contains("Refused") && ready.contains("machinedeployments") {
            Ok(())
        } else {
            Err(ready)
        }
    })
    .await?;
    cluster.objects.delete(UPGRADE_TASK, &task).await
}

/// Waits until a task is complete.
async fn complete(cluster: &Cluster, task: &str) -> anyhow::Result<()> {
    eventually(&format!("{task} is complete"), WITHIN, async || {
        let found = cluster.objects.get(UPGRADE_TASK, task).await.map_err(error_text)?;
        match text(&found, "/status/phase") {
            "Complete" => Ok(()),
            phase => Err(format!("{phase}: {}", condition_text(&found, "Ready"))),
        }
    })
    .await
}

/// The part of a task's spec with the group and the version that it is brought to.
fn of((group, kind): (&str, &str), name: &str, version: &str) -> Value {
    let api_version = format!("{group}/v1beta2");
    json!({"version": version, "ownerRef": {"apiVersion": api_version, "kind": kind, "name": name}})
}

/// Creates a task via Machines with these further fields, and returns its name.
async fn create(cluster: &Cluster, what: &str, spec: &Value) -> anyhow::Result<String> {
    let name = format!("{}-{what}", cluster.name);
    let mut object = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": spec,
    });
    object["spec"]["clusterRef"] = json!({"name": cluster.name});
    object["spec"]["via"] = json!("Machines");
    cluster.objects.apply(&object).await?;
    Ok(name)
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
