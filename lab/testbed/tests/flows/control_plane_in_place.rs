//! A control plane of three Machines without surge: all are updated in place, one at a time, and
//! none is replaced.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, ClusterSpec,
    cluster::{TO, error_text, settled},
    eventually,
    objects::{self, condition_text, text},
    recorder::Recorder,
};
use serde_json::json;

use super::{look, planned::Planned};

/// Three machines, each with a few seconds of work and up to 15 s until Cluster API calls again.
const WITHIN: Duration = Duration::from_mins(5);

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let cluster = bed.cluster("in-place", &ClusterSpec::default()).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    let planned = Planned::version(bed, &cluster, "kcp/in-place", TO).await?;
    let counts = planned.counts("in-place")?;
    ensure!(counts == (3, 0, 0), "the plan is {counts:?}");
    cluster.change_control_plane(&json!({"version": TO})).await?;
    let mut seen = std::collections::BTreeSet::new();
    let watched = eventually("every machine is updated", WITHIN, async || {
        let machines = cluster.machines().await.map_err(error_text)?;
        let updating = look::updating(&machines);
        if updating.len() > 1 || machines.len() != before.len() {
            return Ok(Err(format!("{updating:?} are updated at once, of {}", machines.len())));
        }
        seen.extend(updating);
        let found = cluster.control_plane().await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
        let behind = machines.iter().find(|machine| text(machine, "/spec/version") != TO);
        behind.map_or(Ok(Ok(())), |machine| {
            Err(format!("{}: {}", objects::name(machine), condition_text(machine, "UpToDate")))
        })
    });
    if let Err(why) = watched.await? {
        anyhow::bail!(why);
    }
    cluster.control_plane_is_at(TO, WITHIN).await?;
    ensure!(seen.len() == before.len(), "only {seen:?} were seen to be updated");
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    for machine in cluster.machines().await? {
        for (kind, wanted) in [("Updating", "False/NotUpdating"), ("UpToDate", "True/UpToDate")] {
            let condition = condition_text(&machine, kind);
            ensure!(
                condition.starts_with(wanted),
                "{kind} of {}: {condition}",
                objects::name(&machine)
            );
        }
    }
    let control_plane = cluster.control_plane().await?;
    for (kind, wanted) in [
        ("RollingOut", "False/NotRollingOut"),
        ("MachinesUpToDate", "True/UpToDate"),
        ("MachinesReady", "True/Ready"),
        ("Available", "True/Available"),
        ("ScalingUp", "False/NotScalingUp"),
        ("ScalingDown", "False/NotScalingDown"),
    ] {
        let condition = condition_text(&control_plane, kind);
        ensure!(condition.starts_with(wanted), "{kind}: {condition}");
    }
    planned.came_true(&cluster, "in-place").await?;
    look::nothing_is_left(&cluster).await?;
    recorder.compare(bed, "control_plane_in_place").await
}
