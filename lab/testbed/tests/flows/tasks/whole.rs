//! Tasks for whole Clusters: two minor versions at once, and the Cluster of a topology.

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{FROM, TO, error_text},
    eventually,
    objects::{CLUSTER, NODE_UPDATE, condition_text, text},
};
use serde_json::json;

use super::{WITHIN, complete, create, is_left_alone, look};

/// Two minor versions after [`FROM`].
const TWO_ON: &str = "v1.36.1";

/// The control plane goes from minor version to minor version, and the workers go once.
pub(super) async fn two_hops(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", 2, 1, 0)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("two-hops", &spec).await?;
    let before = look::identities(&cluster).await?;
    let task = create(&cluster, "all", &json!({"version": TWO_ON, "hops": [TO]})).await?;
    complete(&cluster, &task).await?;
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
