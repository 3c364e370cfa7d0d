//! Health gates and maintenance windows that hold a rollout midway: with a real Prometheus, which evaluates Refit's own
//! alert rules on the metrics of the controller, and Cluster API's hooks.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use lab_simhost::HostState;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{MACHINE, MACHINE_DEPLOYMENT, NODE_UPDATE, UPDATE_GROUP, name, text},
    wait,
};
use refit_kinds::keys;
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// How long no update may begin while something holds it.
const QUIET: Duration = Duration::from_secs(10);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
const FIRST: &str = "v1.35.1";
const SECOND: &str = "v1.35.2";
const THIRD: &str = "v1.35.3";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", 1, 0, 1), ("b", 3, 0, 1)],
        version: NEWEST,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("gates", &spec).await?;
    let before = look::identities(&cluster).await?;
    let prometheus = bed.controller().start_prometheus(&bed.directory)?;
    let gate =
        json!({"name": "failures", "alerts": {"labels": {"alertname": "RefitMachineFailed"}}});
    pace(&cluster, &json!({"gates": [gate]})).await?;
    held_by_an_alert(bed, &cluster).await?;
    // Without an answer of Prometheus, nothing begins.
    prometheus.kill().await;
    ask(&cluster, "b", SECOND).await?;
    is_held(&cluster, SECOND, 0, "GateClosed", "Prometheus does not answer").await?;
    prometheus.start_again();
    cluster.workers_are_at("b", SECOND, WITHIN).await?;
    held_by_a_window(&cluster).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// The alert that an update of group `a` has failed holds group `b`, until that update is repaired.
async fn held_by_an_alert(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let machine = cluster.worker_machines("a").await?.pop().context("group a has a Machine")?;
    let on_host = |act: fn(&mut HostState)| {
        let host = bed.hosts().with(&cluster.namespace, name(&machine), act);
        host.context("the Machine has a host")
    };
    on_host(|host| host.troubles.disk_full = true)?;
    ask(cluster, "a", FIRST).await?;
    let failed = eventually("the update has failed for good", WITHIN, async || {
        let updates = look::of_goal(cluster, FIRST).await.map_err(error_text)?;
        let failed = updates.iter().find(|update| text(update, "/status/phase") == "Failed");
        failed.map(|update| name(update).to_owned()).ok_or_else(|| format!("{updates:?}"))
    })
    .await?;
    // Until Prometheus has scraped the failure, and evaluated its rules.
    tokio::time::sleep(QUIET).await;
    ask(cluster, "b", FIRST).await?;
    is_held(cluster, FIRST, 0, "GateClosed", "RefitMachineFailed fires").await?;
    on_host(HostState::mend)?;
    cluster.objects.merge(MACHINE, name(&machine), &annotated(&failed)).await?;
    cluster.workers_are_at("a", FIRST, WITHIN).await?;
    cluster.workers_are_at("b", FIRST, WITHIN).await
}

fn annotated(failed: &str) -> Value {
    json!({"metadata": {"annotations": {keys::RETRY: failed}}})
}

/// The window closes as soon as the first machine of group `b` has begun. It is finished, and the others wait.
async fn held_by_a_window(cluster: &Cluster) -> anyhow::Result<()> {
    let now = Clock::real().now_seconds();
    let window = |until: Timestamp| {
        let from = now - SignedDuration::from_secs(60);
        let once = json!([{"from": from.to_string(), "until": until.to_string()}]);
        json!({"windows": {"once": once, "estimateSeconds": 30}, "gates": null})
    };
    pace(cluster, &window(now + SignedDuration::from_hours(1))).await?;
    ask(cluster, "b", THIRD).await?;
    eventually("the first machine begins", WITHIN, async || match begun(cluster, THIRD).await? {
        0 => Err("none has".to_owned()),
        _ => Ok(()),
    })
    .await?;
    pace(cluster, &window(Clock::real().now_seconds())).await?;
    is_held(cluster, THIRD, 1, "NoWindow", "no maintenance window").await?;
    pace(cluster, &json!({"windows": null})).await?;
    cluster.workers_are_at("b", THIRD, WITHIN).await
}

/// Waits until an update waits for this reason while so many have begun, and sees that no other begins.
async fn is_held(
    cluster: &Cluster,
    goal: &str,
    begun_before: usize,
    reason: &str,
    why: &str,
) -> anyhow::Result<()> {
    eventually("an update waits", WITHIN, async || {
        let updates = of_group_b(cluster, goal).await?;
        let blockers = updates.iter().filter_map(|update| update["status"]["blockedBy"].as_array());
        let shown: Vec<&Value> = blockers.flatten().collect();
        let waits = shown
            .iter()
            .any(|blocker| blocker["reason"] == reason && text(blocker, "/message").contains(why));
        if waits && begun(cluster, goal).await? == begun_before {
            return Ok(());
        }
        Err(format!("{shown:?}"))
    })
    .await?;
    wait::never("another machine begins", QUIET, async || match begun(cluster, goal).await? {
        number if number == begun_before => Ok(()),
        number => Err(format!("{number} have begun")),
    })
    .await
}

/// How many machines of group `b` have begun with their update.
async fn begun(cluster: &Cluster, goal: &str) -> Result<usize, String> {
    let undisturbed = ["", "Pending", "Staging", "Waiting"];
    let updates = of_group_b(cluster, goal).await?;
    let begun = updates.iter().filter(|one| !undisturbed.contains(&text(one, "/status/phase")));
    Ok(begun.count())
}

async fn of_group_b(cluster: &Cluster, goal: &str) -> Result<Vec<Value>, String> {
    let machines = cluster.worker_machines("b").await.map_err(error_text)?;
    let updates = cluster.objects.list(NODE_UPDATE).await.map_err(error_text)?;
    let is_of_b = |update: &Value| {
        let machine = text(update, "/spec/machineRef/name");
        let of_goal = text(update, "/spec/goal/kubernetesVersion") == goal;
        of_goal && machines.iter().any(|one| name(one) == machine)
    };
    Ok(updates.into_iter().filter(is_of_b).collect())
}

async fn ask(cluster: &Cluster, workers: &str, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers(workers, &change).await
}

/// Sets the pacing of group `b`, whose UpdateGroup exists from then on.
async fn pace(cluster: &Cluster, pacing: &Value) -> anyhow::Result<()> {
    let owner = format!("{}-b", cluster.name);
    let group = format!("machinedeployment-{owner}");
    if cluster.objects.find(UPDATE_GROUP, &group).await?.is_some() {
        let patch = json!({"spec": {"pacing": pacing}});
        return cluster.objects.merge(UPDATE_GROUP, &group, &patch).await.map(drop);
    }
    let deployment = cluster.objects.get(MACHINE_DEPLOYMENT, &owner).await?;
    let object = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "UpdateGroup",
        "metadata": {"name": group, "namespace": cluster.namespace},
        "spec": {
            "clusterName": cluster.name, "controlPlane": false, "pacing": pacing,
            "owner": {
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                "name": name(&deployment),
            },
        },
    });
    cluster.objects.apply(&object).await.map(drop)
}
