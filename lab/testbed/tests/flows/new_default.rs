//! A provider starts to default a field between two updates: the second one updates the same
//! Machines, and those that it has updated stay finished.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{DEV_MACHINE, name, text},
};
use serde_json::json;

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
/// The new field of DevMachines.
const FIELD: &str = "powerOffMode";
pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 2, 0, 1)],
        version: NEWEST,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("new-default", &spec).await?;
    let before = look::identities(&cluster).await?;
    update(&cluster, "v1.35.1").await?;
    let fields = json!({FIELD: {"type": "string", "default": "hard"}});
    look::add_fields_of_machines(bed, &fields).await?;
    eventually("every DevMachine has the new field", WITHIN, async || {
        let machines = cluster.objects.list(DEV_MACHINE).await.map_err(error_text)?;
        let without = machines.iter().find(|one| text(one, "/spec/powerOffMode") != "hard");
        without.map_or(Ok(()), |one| Err(format!("{} has not", name(one))))
    })
    .await?;
    update(&cluster, "v1.35.2").await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    look::nothing_is_left(&cluster).await
}

async fn update(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers("md", &change).await?;
    cluster.workers_are_at("md", version, WITHIN).await
}
