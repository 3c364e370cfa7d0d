//! Whole Clusters: two minor versions at once, at a scheduled time, and the Cluster of a topology.

use anyhow::ensure;
use jiff::{SignedDuration, Timestamp};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{FROM, TO, error_text},
    eventually,
    objects::{CLUSTER, CLUSTER_UPGRADE, NODE_UPDATE, condition_text, text},
};
use refit_runtime::Clock;
use serde_json::json;

use super::{WITHIN, complete, create, is_left_alone, look};

/// Two minor versions after [`FROM`].
const TWO_ON: &str = "v1.36.1";

/// At its time, a ClusterUpgrade brings the control plane from minor version to minor version, and the workers once.
pub(super) async fn two_hops(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", 2, 1, 0)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("two-hops", &spec).await?;
    let before = look::identities(&cluster).await?;
    let start_at = Clock::real().now_seconds() + SignedDuration::from_secs(20);
    let alertmanager = bed.controller().start_alertmanager(&bed.directory)?;
    schedule(&cluster, start_at).await?;
    silenced(bed, &cluster, "the control plane").await?;
    silenced(bed, &cluster, "the workers").await?;
    let began = completed(&cluster).await?;
    ensure!(began >= start_at, "it was to begin at {start_at}, and began at {began}");
    let ended = bed.controller().silences(&cluster.namespace, true).await?;
    ensure!(ended.len() == 2, "{ended:?}");
    let active = bed.controller().silences(&cluster.namespace, false).await?;
    ensure!(active.is_empty(), "{active:?}");
    alertmanager.kill().await;
    is_left_alone(&cluster, &["a"], TWO_ON).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    let goals = updates.iter().map(|update| text(update, "/spec/goal/kubernetesVersion"));
    let mut goals: Vec<&str> = goals.collect();
    goals.sort_unstable();
    ensure!(goals == [TO, TWO_ON, TWO_ON, TWO_ON], "{goals:?}");
    look::nothing_is_left(&cluster).await
}

async fn schedule(cluster: &Cluster, start_at: Timestamp) -> anyhow::Result<()> {
    let warnings = json!({"name": "severity", "value": "warning"});
    let upgrade = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "ClusterUpgrade",
        "metadata": {"name": cluster.name, "namespace": cluster.namespace},
        "spec": {
            "version": TWO_ON, "hops": [TO], "via": "Machines", "startAt": start_at.to_string(),
            "silences": [
                {"name": "plane", "during": "ControlPlane", "matchers": [warnings]},
                {"name": "workers", "during": "Workers", "matchers": [warnings]},
            ],
        },
    });
    cluster.objects.apply(&upgrade).await?;
    eventually("the upgrade waits for its time, and the Cluster is healthy", WITHIN, async || {
        let found =
            cluster.objects.get(CLUSTER_UPGRADE, &cluster.name).await.map_err(error_text)?;
        let shown = (condition_text(&found, "Ready"), condition_text(&found, "Healthy"));
        let has_begun = found.pointer("/status/history/0/startTime").is_some();
        let waits = shown.0.starts_with("False/Scheduled") || has_begun;
        if waits && shown.1.starts_with("True") { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await
}

/// Waits until a silence of a part of the Cluster is in force, and no other.
async fn silenced(bed: &Bed, cluster: &Cluster, part: &str) -> anyhow::Result<()> {
    eventually(&format!("alerts of {part} are silenced"), WITHIN, async || {
        let found = bed.controller().silences(&cluster.namespace, false).await;
        let found = found.map_err(error_text)?;
        match &found[..] {
            [silence] if text(silence, "/comment").contains(part) => Ok(()),
            _ => Err(format!("{found:?}")),
        }
    })
    .await
}

/// Waits until the upgrade is completed, with each of its steps, and returns when it began.
async fn completed(cluster: &Cluster) -> anyhow::Result<Timestamp> {
    eventually("the ClusterUpgrade is completed", WITHIN, async || {
        let found =
            cluster.objects.get(CLUSTER_UPGRADE, &cluster.name).await.map_err(error_text)?;
        let record = &found["status"]["history"][0];
        let steps = record["conditions"].as_array().into_iter().flatten();
        let done = steps.filter(|step| step["status"] == "True").count();
        let (phase, ready) = (text(&found, "/status/phase"), condition_text(&found, "Ready"));
        if phase == "Completed" && done == 7 {
            return text(record, "/startTime").parse().map_err(|error| format!("{error}"));
        }
        Err(format!("{phase} after {done} steps: {ready}"))
    })
    .await
}

/// The version of the topology is set while all owners are paused, and afterwards the Cluster follows its topology.
pub(super) async fn topology(bed: &Bed) -> anyhow::Result<()> {
    let cluster = Cluster::of_class(bed.client(), "task-class", FROM).await?;
    cluster.up(MACHINES_OF_CLASS).await?;
    let before = look::identities(&cluster).await?;
    let task = create(&cluster, "all", &json!({"version": TO})).await?;
    complete(&cluster, &task).await?;
    is_left_alone(&cluster, &["a", "b"], TO).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    eventually("the Cluster follows its topology", WITHIN, async || {
        let found = cluster.objects.get(CLUSTER, &cluster.name).await.map_err(error_text)?;
        let asked = text(&found, "/spec/topology/version");
        let followed = condition_text(&found, "TopologyReconciled");
        (asked == TO && followed.starts_with("True"))
            .then_some(())
            .ok_or_else(|| format!("{asked}: {followed}"))
    })
    .await?;
    look::nothing_is_left(&cluster).await
}

/// Three of the control plane, two of group `a`, one of group `b`.
const MACHINES_OF_CLASS: usize = 6;
