//! One change of `Cluster.spec.topology.version`: first the control plane, then the workers, all in
//! place.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster,
    cluster::{FROM, TO, error_text},
    eventually,
    objects::{CLUSTER, NODE_UPDATE, condition_text, name, text, uid},
};
use serde_json::{Value, json};

use super::look;

/// Six machines, one after another, with Cluster API's steps between them.
const WITHIN: Duration = Duration::from_mins(8);
/// Three control plane Machines and three workers.
const MACHINES: usize = 6;

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let cluster = Cluster::of_class(bed.client(), "topology", FROM).await?;
    cluster.up(MACHINES).await?;
    let before = look::identities(&cluster).await?;
    let version = json!({"spec": {"topology": {"version": TO}}});
    cluster.objects.merge(CLUSTER, "topology", &version).await?;
    let watched = eventually("every machine is updated", WITHIN, async || {
        let control_plane = cluster.control_plane_machines().await.map_err(error_text)?;
        let updates = cluster.objects.list(NODE_UPDATE).await.map_err(error_text)?;
        let phase_of = |machine: &Value| {
            let update =
                updates.iter().find(|update| text(update, "/spec/machineRef/uid") == uid(machine));
            update.map(|update| text(update, "/status/phase"))
        };
        let machines = cluster.machines().await.map_err(error_text)?;
        // Cluster API uses the versions that kubelets report, and these change before Refit marks a
        // control plane as updated.
        let at_the_version = |phase| matches!(phase, "Verifying" | "Uncordoning" | "Succeeded");
        let behind =
            control_plane.iter().find(|machine| !phase_of(machine).is_some_and(at_the_version));
        let worker = machines.iter().find(|machine| {
            let others = control_plane.iter().map(uid);
            phase_of(machine).is_some() && !others.into_iter().any(|other| other == uid(machine))
        });
        if let (Some(behind), Some(worker)) = (behind, worker) {
            return Ok(Err(format!(
                "worker {} has begun, and {} of the control plane is not at the version",
                name(worker),
                name(behind)
            )));
        }
        let behind = machines.iter().find(|machine| phase_of(machine) != Some("Succeeded"));
        behind.map_or(Ok(Ok(())), |machine| {
            Err(format!("{}: {}", name(machine), condition_text(machine, "UpToDate")))
        })
    });
    if let Err(why) = watched.await? {
        anyhow::bail!(why);
    }
    cluster.control_plane_is_at(TO, WITHIN).await?;
    for workers in ["a", "b"] {
        cluster.workers_are_at(workers, TO, WITHIN).await?;
    }
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    eventually("the Cluster follows its topology", WITHIN, async || {
        let found = cluster.objects.get(CLUSTER, "topology").await.map_err(error_text)?;
        let condition = condition_text(&found, "TopologyReconciled");
        condition.starts_with("True").then_some(()).ok_or(condition)
    })
    .await?;
    look::nothing_is_left(&cluster).await
}
