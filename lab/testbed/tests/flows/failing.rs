//! A host that fails: its Machine shows Cluster API's and Refit's conditions, and no other update
//! starts. The update continues once the cause is gone; if it failed for good, a health check
//! replaces the Machine.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use lab_simhost::HostState;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{MACHINE, condition_text, name, text, uid},
    wait,
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// A host continues within this time after the cause of its failure is gone.
const SOON: Duration = Duration::from_secs(30);
/// How long no other update may start while one host fails: shorter than the backoff of the host.
const QUIET: Duration = Duration::from_secs(6);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 3, 0, 1)],
        version: NEWEST,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("failing", &spec).await?;
    recovers(bed, &cluster).await?;
    for_good(bed, &cluster).await
}

/// Downloads fail until they are repaired.
async fn recovers(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let goal = "v1.35.1";
    let before = look::identities(cluster).await?;
    // Cluster API chooses which machine is first.
    on_all(bed, cluster, |host| host.break_step("stage", u32::MAX)).await?;
    ask(cluster, goal).await?;
    let update = eventually("the failure is seen", WITHIN, async || {
        let update = only(cluster, goal).await?;
        let why = text(&update, "/status/failureMessage");
        if update["status"]["retriable"] != true || !why.contains("step stage") {
            return Err(format!("NodeUpdate {}: {why:?}", name(&update)));
        }
        let machine = machine_of(cluster, &update).await?;
        let (refit, cluster_api) =
            (condition_text(&machine, "MachineUpToDate"), condition_text(&machine, "Updating"));
        if refit.starts_with("Unknown/") && cluster_api.contains("step stage") {
            return Ok(update);
        }
        Err(format!("{refit}; {cluster_api}"))
    })
    .await?;
    wait::never("another host begins", QUIET, async || only(cluster, goal).await.map(drop)).await?;
    on_all(bed, cluster, HostState::mend).await?;
    eventually("the host goes on", SOON, async || {
        let updates = look::of_goal(cluster, goal).await.map_err(error_text)?;
        let found = updates.iter().find(|one| uid(one) == uid(&update));
        match found.map(|found| look::step(found, "stage")) {
            Some("Done") => Ok(()),
            other => Err(format!("step stage is {other:?}")),
        }
    })
    .await?;
    cluster.workers_are_at("md", goal, WITHIN).await?;
    let after = look::identities(cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    look::nothing_is_left(cluster).await
}

/// A disk that stays full.
async fn for_good(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let goal = "v1.35.2";
    let before = uids(cluster).await?;
    on_all(bed, cluster, |host| host.troubles.disk_full = true).await?;
    ask(cluster, goal).await?;
    let failed = eventually("the update has failed for good", WITHIN, async || {
        let update = only(cluster, goal).await?;
        let phase = text(&update, "/status/phase");
        let machine = machine_of(cluster, &update).await?;
        let (refit, cluster_api) =
            (condition_text(&machine, "MachineUpToDate"), condition_text(&machine, "Updating"));
        if phase == "Failed" {
            if refit.starts_with("False/Failed") && cluster_api.contains("failed: DiskFull") {
                return Ok(machine);
            }
        } else if refit.starts_with("False") {
            // A health check would act on this condition.
            return Err(format!("it is {phase}, and its condition is {refit}"));
        }
        Err(format!("{phase}: {refit}; {cluster_api}"))
    })
    .await?;
    for machine in cluster.worker_machines("md").await? {
        if uid(&machine) != uid(&failed) {
            let host = name(&machine);
            bed.hosts().with(&cluster.namespace, host, HostState::mend)?;
        }
    }
    wait::never("another host begins", QUIET, async || only(cluster, goal).await.map(drop)).await?;
    look::replace_failed(cluster, "md").await?;
    cluster.workers_are_at("md", goal, WITHIN).await?;
    let after = uids(cluster).await?;
    let gone: Vec<&String> = before.difference(&after).collect();
    ensure!(
        gone == [uid(&failed)] && after.len() == before.len(),
        "{before:?} became {after:?}; {} was to be replaced",
        uid(&failed)
    );
    look::nothing_is_left(cluster).await
}

async fn ask(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers("md", &change).await
}

/// Returns the only NodeUpdate of a goal.
async fn only(cluster: &Cluster, goal: &str) -> Result<Value, String> {
    let mut updates = look::of_goal(cluster, goal).await.map_err(error_text)?;
    match (updates.pop(), updates.len()) {
        (Some(one), 0) => Ok(one),
        (one, more) => Err(format!("{} NodeUpdates", more + usize::from(one.is_some()))),
    }
}

async fn machine_of(cluster: &Cluster, update: &Value) -> Result<Value, String> {
    let machine = text(update, "/spec/machineRef/name");
    cluster.objects.get(MACHINE, machine).await.map_err(error_text)
}

async fn on_all(bed: &Bed, cluster: &Cluster, act: impl Fn(&mut HostState)) -> anyhow::Result<()> {
    for machine in cluster.worker_machines("md").await? {
        let host = bed.hosts().with(&cluster.namespace, name(&machine), &act);
        host.context("every worker has a host")?;
    }
    Ok(())
}

async fn uids(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let machines = cluster.worker_machines("md").await?;
    Ok(machines.iter().map(|m| uid(m).to_owned()).collect())
}
