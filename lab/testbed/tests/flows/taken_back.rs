//! `refit abort --revert`: an update is aborted, the version is set back, and every Machine is as
//! before.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec, cli,
    cluster::{FROM, TO},
    objects::{UPDATE_GROUP, condition_text, name, text},
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// The step at which hosts are held: nothing is changed yet.
const STEP: &str = "stage";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec { workers: vec![("md", 2, 0, 1)], ..ClusterSpec::default() };
    let cluster = bed.cluster("taken-back", &spec).await?;
    let before = look::identities(&cluster).await?;

    look::hold(bed, &cluster, STEP)?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    take_back(bed, &cluster, TO, "kcp/taken-back").await?;
    cluster.control_plane_is_at(FROM, WITHIN).await?;

    look::hold(bed, &cluster, STEP)?;
    let next = "v1.34.3";
    let change = json!({"template": {"spec": {"version": next}}});
    cluster.change_workers("md", &change).await?;
    take_back(bed, &cluster, next, "md/taken-back-md").await?;
    cluster.workers_are_at("md", FROM, WITHIN).await?;

    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    look::no_mark_is_left(&cluster).await?;
    for machine in cluster.machines().await? {
        let hosts = bed.hosts();
        let runs =
            hosts.with(&cluster.namespace, name(&machine), |host| host.kubelet_version.clone())?;
        ensure!(runs == FROM, "{} runs {runs}", name(&machine));
    }
    for group in cluster.objects.list(UPDATE_GROUP).await? {
        let blocked = condition_text(&group, "Blocked");
        ensure!(blocked.starts_with("False"), "{}: {blocked}", name(&group));
    }
    Ok(())
}

/// Waits until a host works for a goal, and gives the goal up.
async fn take_back(bed: &Bed, cluster: &Cluster, goal: &str, owner: &str) -> anyhow::Result<()> {
    look::at_step(cluster, goal, STEP, WITHIN).await?;
    let go_on = look::resume_once_aborted(bed, cluster, WITHIN);
    let args = ["abort", owner, "--revert"];
    let kubeconfig = bed.kubeconfig();
    let (rows, gone_on) = futures::join!(cli::json(&kubeconfig, &cluster.namespace, &args), go_on);
    gone_on?;
    let rows = rows?;
    let reverted = |row: &Value| text(row, "/action") == "reverted" && text(row, "/to") == FROM;
    let all = rows.as_array().is_some_and(|rows| rows.iter().any(reverted));
    ensure!(all, "{owner} was not set back: {rows}");
    Ok(())
}
