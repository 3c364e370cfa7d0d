//! A control plane Machine is deleted while another one is to be updated. Cluster API creates none while
//! it waits for an update: so the update is withdrawn, and requested again once the control plane is
//! complete.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, ClusterSpec,
    cluster::{TO, error_text, identity},
    eventually,
    objects::{MACHINE, NODE_UPDATE, name, text},
};
use serde_json::json;

use super::look;

const WITHIN: Duration = Duration::from_mins(5);
/// The step at which hosts are held: nothing is disturbed yet.
const STEP: &str = "stage";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let cluster = bed.cluster("member-deleted", &ClusterSpec::default()).await?;
    look::hold(bed, &cluster, STEP)?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    let held = look::at_step(&cluster, TO, STEP, WITHIN).await?;
    let before = cluster.control_plane_machines().await?;
    let waiting = text(&held, "/spec/machineRef/name").to_owned();
    let other = before.iter().map(name).find(|other| *other != waiting);
    let other = other.context("there are three Machines")?.to_owned();
    cluster.objects.delete(MACHINE, &other).await?;
    look::resume_once_aborted(bed, &cluster, WITHIN).await?;
    eventually("the update stops", WITHIN, async || {
        let update = cluster.objects.get(NODE_UPDATE, name(&held)).await.map_err(error_text)?;
        let reason = text(&update, "/status/failureReason");
        (reason == "MemberMissing").then_some(()).ok_or_else(|| reason.to_owned())
    })
    .await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;

    let after = cluster.control_plane_machines().await?;
    ensure!(after.len() == before.len(), "there are {} Machines", after.len());
    for machine in before.iter().filter(|machine| name(machine) != other) {
        let stays = after.iter().any(|one| identity(one) == identity(machine));
        ensure!(stays, "{} was replaced", name(machine));
    }
    let updates = look::of_goal(&cluster, TO).await?;
    let last = updates
        .iter()
        .filter(|update| text(update, "/spec/machineRef/name") == waiting)
        .max_by_key(|update| name(update).to_owned())
        .context("the Machine has updates")?;
    ensure!(name(last) != name(&held), "the update of {waiting} was not made again");
    let phase = text(last, "/status/phase");
    ensure!(phase == "Succeeded", "{} is {phase}", name(last));
    look::no_mark_is_left(&cluster).await
}
