//! Holds keep the Machines of a MachineDeployment whose version or replicas change in the middle of a
//! rollout.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec, cluster::error_text, eventually, objects::MACHINE_SET,
    recorder::Recorder,
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(6);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
/// The step at which hosts are held: the Node is drained, and the kubelet is still the old one.
const STEP: &str = "kubelet-install";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 3, 0, 1)],
        version: NEWEST,
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("held-midway", &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    begin(bed, &cluster, "v1.35.1").await?;
    cluster.change_workers("md", &version("v1.35.2")).await?;
    eventually("Cluster API plans for the new version", WITHIN, async || {
        let sets = cluster.objects.list(MACHINE_SET).await.map_err(error_text)?;
        (sets.len() == 3).then_some(()).ok_or_else(|| format!("{} MachineSets", sets.len()))
    })
    .await?;
    resume(bed, &cluster)?;
    cluster.workers_are_at("md", "v1.35.2", WITHIN).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    ensure!(recorder.counts("held-midway-md") == [3], "{:?}", recorder.counts("held-midway-md"));

    begin(bed, &cluster, "v1.35.3").await?;
    cluster.change_workers("md", &json!({"replicas": 4})).await?;
    eventually("a Machine is created", WITHIN, async || {
        let found = recorder.counts("held-midway-md");
        (found == [3, 4]).then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await?;
    // A scale-down in the middle of the update goes on.
    cluster.change_workers("md", &json!({"replicas": 2})).await?;
    resume(bed, &cluster)?;
    cluster.workers_are_at("md", "v1.35.3", WITHIN).await?;
    let counts = recorder.counts("held-midway-md");
    ensure!(counts == [3, 4, 3, 2], "{counts:?}");
    look::nothing_is_left(&cluster).await
}

fn version(version: &str) -> Value {
    json!({"template": {"spec": {"version": version}}})
}

/// Begins a rollout, and holds it in the middle of the first update.
async fn begin(bed: &Bed, cluster: &Cluster, goal: &str) -> anyhow::Result<()> {
    look::hold(bed, cluster, STEP)?;
    cluster.change_workers("md", &version(goal)).await?;
    look::at_step(cluster, goal, STEP, WITHIN).await.map(drop)
}

fn resume(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    for machine in bed.hosts().machines(&cluster.namespace) {
        bed.hosts().resume(&cluster.namespace, &machine)?;
    }
    Ok(())
}
