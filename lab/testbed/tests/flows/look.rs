//! Checks that several flows share.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster,
    cluster::{error_text, identity},
    eventually,
    objects::{
        self, DEFINITION, DEV_MACHINE, HOST_PLAN, KUBEADM_CONFIG, NODE, NODE_UPDATE, Objects,
        annotation, name, text, uid,
    },
};
use serde_json::{Value, json};

/// How long after the end of an update its traces may remain.
const CLEAN: Duration = Duration::from_secs(20);

/// What an update in place must not change, by Machine name: uids and providerID.
pub(super) async fn identities(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut found = BTreeMap::new();
    for machine in cluster.machines().await? {
        let mut all = identity(&machine).to_vec();
        let infrastructure = text(&machine, "/spec/infrastructureRef/name");
        let infrastructure = cluster.objects.get(DEV_MACHINE, infrastructure).await?;
        all.push(uid(&infrastructure).to_owned());
        let bootstrap = text(&machine, "/spec/bootstrap/configRef/name");
        let bootstrap = cluster.objects.get(KUBEADM_CONFIG, bootstrap).await?;
        all.push(uid(&bootstrap).to_owned());
        found.insert(name(&machine).to_owned(), all);
    }
    Ok(found)
}

/// Creates a health check of these workers that acts on updates that failed for good, and on nothing else.
pub(super) async fn replace_failed(cluster: &Cluster, workers: &str) -> anyhow::Result<()> {
    let label = format!("{}-{workers}", cluster.name);
    let check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineHealthCheck",
        "metadata": {"name": "failed", "namespace": cluster.namespace},
        "spec": {
            "clusterName": cluster.name,
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": label}},
            "checks": {"unhealthyMachineConditions": [
                {"type": "MachineUpToDate", "status": "False", "timeoutSeconds": 1},
            ]},
        },
    });
    cluster.objects.apply(&check).await.map(drop)
}

/// Returns the NodeUpdates of a goal.
pub(super) async fn of_goal(cluster: &Cluster, version: &str) -> anyhow::Result<Vec<Value>> {
    let mut updates = cluster.objects.list(NODE_UPDATE).await?;
    updates.retain(|update| text(update, "/spec/goal/kubernetesVersion") == version);
    Ok(updates)
}

/// Returns the state of a step of a NodeUpdate.
pub(super) fn step<'a>(update: &'a Value, step: &str) -> &'a str {
    let steps = update["status"]["steps"].as_array();
    let found = steps.into_iter().flatten().find(|one| one["name"] == step);
    found.map_or("", |found| text(found, "/state"))
}

/// Returns the names of the Machines whose `Updating` condition is True.
pub(super) fn updating(machines: &[Value]) -> Vec<String> {
    let updating = machines.iter().filter(|machine| objects::is_true(machine, "Updating"));
    updating.map(|machine| name(machine).to_owned()).collect()
}

/// Waits until no traces of an update remain: no annotation of Cluster API or Refit on a Machine or
/// on the objects that it references, and no cordon. Every NodeUpdate of an existing Machine must
/// have succeeded. A bed runs no garbage collector, so NodeUpdates of deleted Machines are ignored.
///
/// The wait is needed because the Refit controller cleans up after an update has ended.
pub(super) async fn nothing_is_left(cluster: &Cluster) -> anyhow::Result<()> {
    eventually("nothing of an update is left", CLEAN, async || {
        look(cluster).await.map_err(error_text)
    })
    .await
}

async fn look(cluster: &Cluster) -> anyhow::Result<()> {
    let marks = [
        "in-place-updates.internal.cluster.x-k8s.io/update-in-progress",
        "in-place-updates.internal.cluster.x-k8s.io/pending-acknowledge-move",
        "runtime.cluster.x-k8s.io/pending-hooks",
        "cluster.x-k8s.io/skip-remediation",
        "refit.dev/guarded",
    ];
    let machines = cluster.machines().await?;
    for machine in &machines {
        let infrastructure = text(machine, "/spec/infrastructureRef/name");
        let infrastructure = cluster.objects.get(DEV_MACHINE, infrastructure).await?;
        let bootstrap = text(machine, "/spec/bootstrap/configRef/name");
        let bootstrap = cluster.objects.get(KUBEADM_CONFIG, bootstrap).await?;
        for object in [machine, &infrastructure, &bootstrap] {
            for mark in marks {
                ensure!(
                    annotation(object, mark).is_none(),
                    "{} {} still has {mark}",
                    text(object, "/kind"),
                    name(object)
                );
            }
        }
    }
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    let of_one = |update: &&Value| {
        let machine_uid = text(update, "/spec/machineRef/uid");
        machines.iter().any(|machine| uid(machine) == machine_uid)
    };
    for update in updates.iter().filter(of_one) {
        let phase = text(update, "/status/phase");
        ensure!(phase == "Succeeded", "NodeUpdate {} is {phase}", name(update));
    }
    let workload = Objects::of_cluster(cluster.workload().await?);
    for node in workload.list(NODE).await? {
        let cordoned = node["spec"]["unschedulable"].as_bool().unwrap_or_default();
        ensure!(!cordoned, "Node {} is still cordoned", name(&node));
        ensure!(annotation(&node, "refit.dev/cordoned-by").is_none(), "{node}");
    }
    Ok(())
}

/// Checks that no Machine has a mark of an update: of Cluster API, or of Refit.
pub(super) async fn no_mark_is_left(cluster: &Cluster) -> anyhow::Result<()> {
    const MARKS: [&str; 3] = [
        "in-place-updates.internal.cluster.x-k8s.io/update-in-progress",
        "runtime.cluster.x-k8s.io/pending-hooks",
        "refit.dev/withdrawn-for-member",
    ];
    for machine in cluster.machines().await? {
        let left = MARKS.iter().find(|mark| annotation(&machine, mark).is_some());
        ensure!(left.is_none(), "{} still has {left:?}", name(&machine));
    }
    Ok(())
}

/// The definitions of a machine's infrastructure, and where in their schemas its spec is.
const SCHEMAS: [(&str, &str); 2] = [
    ("devmachines.infrastructure.cluster.x-k8s.io", "/properties/spec"),
    (
        "devmachinetemplates.infrastructure.cluster.x-k8s.io",
        "/properties/spec/properties/template/properties/spec",
    ),
];

/// Gives DevMachines and their templates more fields.
pub(super) async fn add_fields_of_machines(bed: &Bed, fields: &Value) -> anyhow::Result<()> {
    for (definition, place) in SCHEMAS {
        change_schema(bed, definition, place, |spec| {
            let known = spec["properties"].as_object_mut().context("it has no properties")?;
            known.extend(fields.as_object().cloned().unwrap_or_default());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Lets the API server refuse what breaks a rule of a DevMachine's spec, as a provider's webhook does.
pub(super) async fn add_rule_of_machines(bed: &Bed, rule: &Value) -> anyhow::Result<()> {
    let (definition, place) = SCHEMAS[0];
    change_schema(bed, definition, place, |spec| {
        spec["x-kubernetes-validations"] = json!([rule]);
        Ok(())
    })
    .await
}

/// Changes the schema at a place, in every version of a definition.
async fn change_schema(
    bed: &Bed,
    definition: &str,
    place: &str,
    change: impl Fn(&mut Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let definitions = Objects::of_cluster(bed.client().clone());
    let found = definitions.get(DEFINITION, definition).await?;
    let mut versions = found["spec"]["versions"].clone();
    for version in versions.as_array_mut().into_iter().flatten() {
        let schema = version.pointer_mut(&format!("/schema/openAPIV3Schema{place}"));
        change(schema.with_context(|| format!("{definition} has no {place}"))?)?;
    }
    let patch = json!({"spec": {"versions": versions}});
    let patched = definitions.merge(DEFINITION, definition, &patch).await?;
    ensure!(name(&patched) == definition, "{patched}");
    Ok(())
}

/// Holds every host at a step.
pub(super) fn hold(bed: &Bed, cluster: &Cluster, step: &str) -> anyhow::Result<()> {
    for machine in bed.hosts().machines(&cluster.namespace) {
        bed.hosts().hold(&cluster.namespace, &machine, step)?;
    }
    Ok(())
}

/// Waits until a host is at a step of an update to a goal, and returns that update.
pub(super) async fn at_step(
    cluster: &Cluster,
    goal: &str,
    at: &str,
    within: Duration,
) -> anyhow::Result<Value> {
    eventually("a host is at work", within, async || {
        let updates = of_goal(cluster, goal).await.map_err(error_text)?;
        let at_work = updates.into_iter().find(|update| step(update, at) == "Running");
        at_work.ok_or_else(|| "not yet".to_owned())
    })
    .await
}

/// Lets the hosts go on once one of them is ordered to stop.
pub(super) async fn resume_once_aborted(
    bed: &Bed,
    cluster: &Cluster,
    within: Duration,
) -> anyhow::Result<()> {
    eventually("a host is ordered to stop", within, async || {
        let plans = cluster.objects.list(HOST_PLAN).await.map_err(error_text)?;
        let aborts = plans.iter().any(|plan| plan["spec"]["abort"] == true);
        aborts.then_some(()).ok_or_else(|| "not yet".to_owned())
    })
    .await?;
    for machine in bed.hosts().machines(&cluster.namespace) {
        bed.hosts().resume(&cluster.namespace, &machine)?;
    }
    Ok(())
}
