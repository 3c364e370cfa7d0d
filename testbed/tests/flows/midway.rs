//! What is changed while a host works: another goal, no Machine any more.

use std::time::Duration;

use anyhow::ensure;
use refit_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::said,
    eventually,
    objects::{MACHINE, NODE_UPDATE, name, text},
};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_mins(6);
/// Where the control plane is from the beginning: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
/// A host has passed its point of no return, or is about to.
const BUSY: [&str; 4] = ["Upgrading", "Draining", "Disrupting", "Verifying"];

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 2, 0, 1)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("midway", &spec).await?;
    cluster
        .change_control_plane(&json!({"version": NEWEST}))
        .await?;
    cluster.control_plane_is_at(NEWEST, WITHIN).await?;
    for machine in cluster.worker_machines("md").await? {
        bed.hosts()
            .with(&cluster.namespace, name(&machine), |host| host.hurry = 4)?;
    }
    another_goal(&cluster).await?;
    deleted(&cluster).await
}

/// The goal that is on its way ends first; the new one is done for itself.
async fn another_goal(cluster: &Cluster) -> anyhow::Result<()> {
    ask(cluster, "v1.35.1").await?;
    busy(cluster, "v1.35.1").await?;
    ask(cluster, "v1.35.2").await?;
    cluster.workers_are_at("md", "v1.35.2", WITHIN).await?;
    for update in of_goal(cluster, "v1.35.1").await? {
        let phase = text(&update, "/status/phase");
        ensure!(
            ["Succeeded", "Stopped"].contains(&phase),
            "{} is {phase} when the next goal is reached",
            name(&update)
        );
    }
    let done = of_goal(cluster, "v1.35.2").await?;
    ensure!(
        done.len() == 2,
        "{} NodeUpdates brought two Machines to the new goal",
        done.len()
    );
    Ok(())
}

/// The work on a host ends before its Machine is drained and gone.
async fn deleted(cluster: &Cluster) -> anyhow::Result<()> {
    ask(cluster, "v1.35.3").await?;
    let update = busy(cluster, "v1.35.3").await?;
    let machine = text(&update, "/spec/machineRef/name").to_owned();
    cluster.objects.delete(MACHINE, &machine).await?;
    eventually(
        "the deleted Machine goes when its host has stopped",
        WITHIN,
        async || {
            let update = cluster
                .objects
                .get(NODE_UPDATE, name(&update))
                .await
                .map_err(said)?;
            let found = cluster
                .objects
                .find(MACHINE, &machine)
                .await
                .map_err(said)?;
            let phase = text(&update, "/status/phase").to_owned();
            match found {
                None if BUSY.contains(&phase.as_str()) => {
                    Ok(Err(format!("{machine} is gone while its host is {phase}")))
                }
                None => Ok(Ok(())),
                Some(_) => Err(format!("{machine} is there, its host is {phase}")),
            }
        },
    )
    .await?
    .map_err(anyhow::Error::msg)?;
    cluster.workers_are_at("md", "v1.35.3", WITHIN).await
}

async fn ask(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers("md", &change).await
}

async fn of_goal(cluster: &Cluster, version: &str) -> anyhow::Result<Vec<Value>> {
    let mut updates = cluster.objects.list(NODE_UPDATE).await?;
    updates.retain(|update| text(update, "/spec/goal/kubernetesVersion") == version);
    Ok(updates)
}

/// Waits until a host works on a goal.
async fn busy(cluster: &Cluster, version: &str) -> anyhow::Result<Value> {
    eventually("a host is busy", WITHIN, async || {
        let updates = of_goal(cluster, version).await.map_err(said)?;
        let found = updates
            .into_iter()
            .find(|update| BUSY.contains(&text(update, "/status/phase")));
        found.ok_or_else(|| "none is".to_owned())
    })
    .await
}
