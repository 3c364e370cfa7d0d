//! A MachineHealthCheck with a short timeout ignores a machine that Refit restarts, and replaces
//! one that is not being updated.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::SignedDuration;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{name, uid},
};
use refit_runtime::Clock;
use serde_json::json;

use super::look;

/// Factor by which the restart of a kubelet is slower: it then takes ten seconds.
const AWAY: u32 = 40;
const WITHIN: Duration = Duration::from_mins(6);

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 2, 0, 1)],
        // No kubelet may be newer than its API server.
        version: TO,
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("watched", &spec).await?;
    watch(&cluster).await?;
    let before = look::identities(&cluster).await?;
    let workers = cluster.worker_machines("md").await?;
    for machine in &workers {
        // The kubelet is down for longer than the timeout of the check, as on a real host.
        bed.hosts().with(&cluster.namespace, name(machine), |host| {
            host.troubles.slow.insert("kubelet-restart".to_owned(), AWAY);
        })?;
    }
    cluster.change_workers("md", &json!({"template": {"spec": {"version": TO}}})).await?;
    cluster.workers_are_at("md", TO, WITHIN).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    look::nothing_is_left(&cluster).await?;
    // The check does act: on a kubelet that is down while the machine is not being updated.
    let victim = workers.first().context("there are no workers")?;
    let later = Clock::real().now() + SignedDuration::from_hours(1);
    bed.hosts().with(&cluster.namespace, name(victim), |host| {
        host.kubelet_up_at = later;
    })?;
    eventually("the machine that is away is replaced", WITHIN, async || {
        let machines = cluster.worker_machines("md").await.map_err(error_text)?;
        if machines.iter().any(|machine| uid(machine) == uid(victim)) {
            return Err(format!("{} is still there", name(victim)));
        }
        Ok(())
    })
    .await
}

async fn watch(cluster: &Cluster) -> anyhow::Result<()> {
    let check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineHealthCheck",
        "metadata": {"name": "watched", "namespace": cluster.namespace},
        "spec": {
            "clusterName": cluster.name,
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": "watched-md"}},
            "checks": {"unhealthyNodeConditions": [
                {"type": "Ready", "status": "False", "timeoutSeconds": 1},
                {"type": "Ready", "status": "Unknown", "timeoutSeconds": 1},
            ]},
        },
    });
    cluster.objects.apply(&check).await?;
    Ok(())
}
