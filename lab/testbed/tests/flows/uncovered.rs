//! A change that no updater covers: the Machines are replaced if the policy is Replace; otherwise
//! the change is held and reported, and the rollout continues after another change.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text, settled},
    eventually,
    objects::{self, DEV_MACHINE_TEMPLATE, EVENT, MACHINE_DEPLOYMENT, UPDATE_GROUP, text, uid},
    recorder::Recorder,
    wait,
};
use serde_json::{Value, json};

use super::planned::Planned;

const WITHIN: Duration = Duration::from_mins(4);
/// How long nothing may happen. Cluster API calls again within this time.
const QUIET: Duration = Duration::from_secs(25);
const GROUP: &str = "infrastructure.cluster.x-k8s.io";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("held", 2, 0, 1), ("free", 2, 1, 0)],
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("uncovered", &spec).await?;
    let free = "uncovered-free";
    let replace = [("refit.dev/on-uncovered", Some("Replace"))];
    cluster.objects.annotate(MACHINE_DEPLOYMENT, free, &replace).await?;
    let (held_before, free_before) = (uids(&cluster, "held").await?, uids(&cluster, "free").await?);
    let recorder = Recorder::start(&cluster).await?;
    for workers in ["held", "free"] {
        let [template, change] = slower(&cluster, workers).await?;
        let mut deployment = cluster.deployment(workers).await?;
        json_patch::merge(&mut deployment, &json!({"spec": change}));
        let planned = Planned::objects(bed, &cluster, &[template.clone(), deployment]).await?;
        if workers == "held" {
            planned.is_blocked("uncovered-held", "UncoveredPreserve")?;
        } else {
            let counts = planned.counts("uncovered-free")?;
            ensure!(counts == (0, 2, 2), "the plan is {counts:?}");
        }
        cluster.objects.apply(&template).await?;
        cluster.change_workers(workers, &change).await?;
    }
    held(&cluster, &held_before).await?;
    replaced(&cluster, &free_before).await?;
    ensure!(
        uids(&cluster, "held").await? == held_before,
        "a machine was replaced that was to be kept"
    );
    // The new spec can be applied in place: the other template is no longer requested.
    let back = json!({"template": {"spec": {
        "version": cluster_version(&cluster).await?,
        "infrastructureRef": {"apiGroup": GROUP, "kind": "DevMachineTemplate", "name": "uncovered-held"},
    }}});
    cluster.change_workers("held", &back).await?;
    eventually("the group is not held any more", WITHIN, async || {
        let found = cluster.deployment("held").await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
        let group = group(&cluster).await.map_err(error_text)?;
        let uncovered = group["status"]["uncovered"].as_array().cloned().unwrap_or_default();
        if uncovered.is_empty() && !objects::is_true(&group, "Blocked") {
            return Ok(());
        }
        Err(format!("{uncovered:?} {}", objects::condition_text(&group, "Blocked")))
    })
    .await?;
    ensure!(uids(&cluster, "held").await? == held_before, "a machine was replaced at the end");
    recorder.compare(bed, "uncovered").await
}

async fn cluster_version(cluster: &Cluster) -> anyhow::Result<String> {
    let deployment = cluster.deployment("held").await?;
    let version = text(&deployment, "/spec/template/spec/version");
    ensure!(version != TO, "the workers were not to be upgraded yet");
    Ok(version.to_owned())
}

/// A template for a different machine, and the change to it.
async fn slower(cluster: &Cluster, workers: &str) -> anyhow::Result<[Value; 2]> {
    let name = format!("{}-{workers}", cluster.name);
    let template = cluster.objects.get(DEV_MACHINE_TEMPLATE, &name).await?;
    let mut spec = template["spec"].clone();
    spec["template"]["spec"]["backend"]["inMemory"]["vm"]["provisioning"]["startupDuration"] =
        json!("2s");
    let slower = format!("{name}-slower");
    let object = json!({
        "apiVersion": format!("{GROUP}/v1beta2"),
        "kind": "DevMachineTemplate",
        "metadata": {"name": slower, "namespace": cluster.namespace},
        "spec": spec,
    });
    let change = json!({"template": {"spec": {"infrastructureRef": {"name": slower}}}});
    Ok([object, change])
}

async fn group(cluster: &Cluster) -> anyhow::Result<serde_json::Value> {
    let groups = cluster.objects.list(UPDATE_GROUP).await?;
    let found =
        groups.into_iter().find(|group| text(group, "/spec/owner/name") == "uncovered-held");
    found.ok_or_else(|| anyhow::anyhow!("there is no UpdateGroup of uncovered-held"))
}

/// The path is reported on the UpdateGroup and in an event, and nothing else happens.
async fn held(cluster: &Cluster, before: &BTreeSet<String>) -> anyhow::Result<()> {
    eventually("the uncovered path is reported", WITHIN, async || {
        let group = group(cluster).await.map_err(error_text)?;
        let uncovered = group["status"]["uncovered"].to_string();
        if !uncovered.contains("startupDuration") || !objects::is_true(&group, "Blocked") {
            return Err(format!("{uncovered} {}", objects::condition_text(&group, "Blocked")));
        }
        let events = cluster.objects.list(EVENT).await.map_err(error_text)?;
        let reported = events.iter().any(|event| {
            text(event, "/involvedObject/name") == "uncovered-held"
                && text(event, "/message").contains("startupDuration")
        });
        if reported { Ok(()) } else { Err("no event on the MachineDeployment".to_owned()) }
    })
    .await?;
    wait::never("a machine is touched", QUIET, async || {
        let now = uids(cluster, "held").await.map_err(error_text)?;
        if now == *before { Ok(()) } else { Err(format!("{before:?} became {now:?}")) }
    })
    .await
}

async fn replaced(cluster: &Cluster, before: &BTreeSet<String>) -> anyhow::Result<()> {
    eventually("every machine of the other group is replaced", WITHIN, async || {
        let found = cluster.deployment("free").await.map_err(error_text)?;
        settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
        let now = uids(cluster, "free").await.map_err(error_text)?;
        if now.is_disjoint(before) { Ok(()) } else { Err(format!("{before:?} became {now:?}")) }
    })
    .await
}

async fn uids(cluster: &Cluster, workers: &str) -> anyhow::Result<BTreeSet<String>> {
    let machines = cluster.worker_machines(workers).await?;
    let going = machines.iter().find(|m| !text(m, "/metadata/deletionTimestamp").is_empty());
    ensure!(
        going.is_none() || workers == "free",
        "Machine {} is being deleted",
        going.map(objects::name).unwrap_or_default()
    );
    Ok(machines.iter().map(|machine| uid(machine).to_owned()).collect())
}
