//! ClusterUpgrades with extra Machines: those keep their version, and are exactly what Cluster API deletes afterwards.

use std::{collections::BTreeMap, time::Duration};

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{FROM, TO, error_text},
    eventually,
    managers::{InPlace, Manager},
    objects::{self, CLUSTER_UPGRADE, NODE_UPDATE, UPGRADE_TASK, condition_text, name, text},
};
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{look, tasks};

/// Extra Machines come and go, and the others are updated, some at a time.
const WITHIN: Duration = Duration::from_mins(20);

/// Cluster API calls Refit's hooks for every group but the temporary MachineDeployments.
pub(super) async fn by_clones(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    tasks::grant(bed).await?;
    show_gates(bed).await?;
    let spec =
        ClusterSpec { workers: vec![("a", 2, 0, 1), ("b", 1, 0, 1)], ..ClusterSpec::default() };
    let cluster = bed.cluster("clones", &spec).await?;
    let before = look::identities(&cluster).await?;
    upgrade(&cluster, TO, &json!({"extraCapacity": {}})).await?;
    reserved(&cluster, 2, FROM).await?;
    completed(&cluster, TO).await?;
    ends_with(&cluster, &before, TO).await?;
    let tasks = cluster.objects.list(UPGRADE_TASK).await?;
    for task in &tasks {
        ensure!(text(task, "/spec/via") == "Spec", "{} is not via Spec", name(task));
    }
    for workers in ["a", "b"] {
        cluster.workers_are_at(workers, TO, WITHIN).await?;
    }
    look::nothing_is_left(&cluster).await
}

/// Refit works through the Machines of a MachineDeployment with an extra replica.
pub(super) async fn by_replicas(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", 2, 1, 0)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("replicas", &spec).await?;
    let before = look::identities(&cluster).await?;
    upgrade(&cluster, TO, &json!({"extraCapacity": {"method": "Replicas"}})).await?;
    reserved(&cluster, 1, FROM).await?;
    completed(&cluster, TO).await?;
    ends_with(&cluster, &before, TO).await?;
    tasks::is_left_alone(&cluster, &["a"], TO).await?;
    look::nothing_is_left(&cluster).await
}

/// A bed runs Cluster API's managers as processes: Deployments show their feature gates, as those of an installation do.
async fn show_gates(bed: &Bed) -> anyhow::Result<()> {
    for (provider, manager) in
        [("cluster-api", Manager::Core), ("control-plane-kubeadm", Manager::ControlPlane)]
    {
        let labels = json!({"cluster.x-k8s.io/provider": provider});
        let gates = manager.gates(InPlace::On).unwrap_or_default();
        let container = json!({
            "name": "manager",
            "image": "manager:v1.14.2",
            "args": [format!("--feature-gates={gates}")],
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": provider, "namespace": "default", "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        });
        objects::apply(bed.client(), &deployment).await?;
    }
    Ok(())
}

async fn upgrade(cluster: &Cluster, version: &str, with: &Value) -> anyhow::Result<()> {
    let mut upgrade = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "ClusterUpgrade",
        "metadata": {"name": cluster.name, "namespace": cluster.namespace},
        "spec": with,
    });
    upgrade["spec"]["version"] = version.into();
    cluster.objects.apply(&upgrade).await.map(drop)
}

/// Waits until the extra Machines are Ready, with the version from before.
async fn reserved(cluster: &Cluster, count: usize, version: &str) -> anyhow::Result<()> {
    eventually("the extra Machines are Ready", WITHIN, async || {
        let shown = found(cluster).await?;
        let condition = condition_text(&shown, "ExtraCapacity");
        let extra = extra(cluster).await?;
        let is_kept = extra.iter().all(|machine| text(machine, "/spec/version") == version);
        if condition.starts_with("True/Reserved") && extra.len() == count && is_kept {
            Ok(())
        } else {
            let ready = condition_text(&shown, "Ready");
            Err(format!("{} extra Machines; {condition}; {ready}", extra.len()))
        }
    })
    .await
}

async fn completed(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    eventually("the ClusterUpgrade is completed", WITHIN, async || {
        let shown = found(cluster).await?;
        let (phase, ready) = (text(&shown, "/status/phase"), condition_text(&shown, "Ready"));
        if phase != "Completed" {
            return Err(format!("{phase}: {ready}"));
        }
        Ok(())
    })
    .await?;
    let shown = found(cluster).await.map_err(anyhow::Error::msg)?;
    let record = &shown["status"]["history"][0];
    ensure!(text(record, "/version") == version, "{record:#}");
    ensure!(text(record, "/extraCapacity") == "Removed", "{record:#}");
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    let of_extra = updates.iter().filter(|update| name(update).contains("-extra-"));
    ensure!(of_extra.count() == 0, "an extra Machine was updated");
    Ok(())
}

/// The Machines are those from before, and no other.
async fn ends_with(
    cluster: &Cluster,
    before: &BTreeMap<String, Vec<String>>,
    version: &str,
) -> anyhow::Result<()> {
    cluster.control_plane_is_at(version, WITHIN).await?;
    let after = look::identities(cluster).await?;
    ensure!(*before == after, "{before:#?} became {after:#?}");
    Ok(())
}

async fn found(cluster: &Cluster) -> Result<Value, String> {
    cluster.objects.get(CLUSTER_UPGRADE, &cluster.name).await.map_err(error_text)
}

async fn extra(cluster: &Cluster) -> Result<Vec<Value>, String> {
    let mut machines = cluster.machines().await.map_err(error_text)?;
    machines.retain(|machine| machine["metadata"]["labels"].get(keys::EXTRA_CAPACITY).is_some());
    Ok(machines)
}
