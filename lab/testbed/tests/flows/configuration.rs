//! A file and a flag of the kubelet change in KubeadmConfigs: first on the workers, then on a control plane of three, and no
//! machine is replaced, drained or booted.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{error_text, settled},
    eventually,
    objects::{HOST_PLAN, NODE, NODE_UPDATE, Objects, name, text},
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
const GROUP: &str = "bootstrap.cluster.x-k8s.io";
const CONDITIONS: [&str; 3] = ["Available", "MachinesReady", "MachinesUpToDate"];
const WORKERS: &str = "md";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec { workers: vec![(WORKERS, 2, 0, 1)], ..ClusterSpec::default() };
    let cluster = bed.cluster("configuration", &spec).await?;
    let before = look::identities(&cluster).await?;
    let boots = boots(&cluster).await?;

    let file = |content: &str| json!([{"path": "/etc/motd", "content": content}]);
    let template = workers_template(&cluster, &file("workers")).await?;
    let reference = json!({"apiGroup": GROUP, "kind": "KubeadmConfigTemplate", "name": template});
    let change = json!({"template": {"spec": {"bootstrap": {"configRef": reference}}}});
    cluster.change_workers(WORKERS, &change).await?;
    applied(&cluster, 2).await?;
    of_disruption(&cluster, "None", 2, |files| files["content"] == "workers").await?;

    let flags = json!([{"name": "max-pods", "value": "50"}]);
    let config = json!({
        "files": file("control plane"),
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": flags}},
        "initConfiguration": {"nodeRegistration": {"kubeletExtraArgs": flags}},
    });
    cluster.change_control_plane(&json!({"kubeadmConfigSpec": config})).await?;
    applied(&cluster, 5).await?;
    of_disruption(&cluster, "Restart", 3, |files| files["content"] == "control plane").await?;

    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    ensure!(boots == self::boots(&cluster).await?, "a machine has booted");
    look::nothing_is_left(&cluster).await
}

/// Boot ids of the Nodes.
async fn boots(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes = Objects::of_cluster(cluster.workload().await?).list(NODE).await?;
    let boot =
        |node: &Value| (name(node).to_owned(), text(node, "/status/nodeInfo/bootID").to_owned());
    Ok(nodes.iter().map(boot).collect())
}

/// Creates a template like that of the workers, with files; returns its name.
async fn workers_template(cluster: &Cluster, files: &Value) -> anyhow::Result<String> {
    let deployment = cluster.deployment(WORKERS).await?;
    let machines = cluster.worker_machines(WORKERS).await?;
    let machine = machines.first().context("there is no worker")?;
    let config = text(machine, "/spec/bootstrap/configRef/name");
    let config = cluster.objects.get(lab_testbed::objects::KUBEADM_CONFIG, config).await?;
    let mut spec = config["spec"].clone();
    // A template has no token: Cluster API adds it to the config of each machine.
    if let Some(join) = spec["joinConfiguration"].as_object_mut() {
        join.remove("discovery");
    }
    spec["files"] = files.clone();
    let new = format!("{}-motd", name(&deployment));
    let object = json!({
        "apiVersion": format!("{GROUP}/v1beta2"),
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": new, "namespace": cluster.namespace},
        "spec": {"template": {"spec": spec}},
    });
    cluster.objects.apply(&object).await?;
    Ok(new)
}

/// Waits until so many updates have succeeded and Cluster API finds every machine up to date.
async fn applied(cluster: &Cluster, count: usize) -> anyhow::Result<()> {
    eventually("the configuration is applied", WITHIN, async || {
        let updates = cluster.objects.list(NODE_UPDATE).await.map_err(error_text)?;
        let phases: Vec<&str> = updates.iter().map(|one| text(one, "/status/phase")).collect();
        if phases.len() != count || phases.iter().any(|phase| *phase != "Succeeded") {
            return Err(format!("{phases:?}"));
        }
        settled(&cluster.control_plane().await.map_err(error_text)?, &CONDITIONS)?;
        settled(&cluster.deployment(WORKERS).await.map_err(error_text)?, &CONDITIONS)
    })
    .await
}

/// Checks that so many plans of hosts disturb as much as promised, and write the file.
async fn of_disruption(
    cluster: &Cluster,
    disruption: &str,
    count: usize,
    is_wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    let plans = cluster.objects.list(HOST_PLAN).await?;
    let of_disruption = plans.iter().filter(|plan| text(plan, "/spec/disruption") == disruption);
    let writes = |plan: &&Value| {
        let steps = plan["spec"]["steps"].as_array().into_iter().flatten();
        let mut files = steps.map(|step| &step["action"]["files"]["files"][0]);
        files.any(&is_wanted)
    };
    let found = of_disruption.clone().filter(writes).count();
    ensure!(found == count, "{found} plans of {disruption} write the file: {plans:#?}");
    let steps =
        of_disruption.flat_map(|plan| plan["spec"]["steps"].as_array().into_iter().flatten());
    let restarts = steps.filter(|step| step["id"] == "kubelet-restart").count();
    let expected = if disruption == "Restart" { count } else { 0 };
    ensure!(restarts == expected, "{restarts} kubelets were restarted");
    Ok(())
}
