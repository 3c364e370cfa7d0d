//! Changes of KubeadmConfigs on three control plane and two worker hosts: what they disturb, as the hosts themselves show it.

mod common;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    cluster::Cluster,
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    management::send,
    workloads,
};
use refit_kinds::json::{name, namespace, text};
use serde_json::{Value, json};

const NODE_UPDATES: &str = "/apis/refit.dev/v1alpha1/nodeupdates";
const CONTROL_PLANE: &str =
    "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmcontrolplanes/edge-1";
const WORKERS: &str =
    "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments/edge-1-md-0";
const TEMPLATES: &str =
    "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmconfigtemplates";
/// The version that all hosts have and keep.
const VERSION: &str = "v1.34.2";
const WITHIN: Duration = Duration::from_mins(4);

fn main() -> ExitCode {
    let tests: [isolation::Test; 1] =
        [("a_file_disturbs_no_host_and_a_flag_only_restarts_kubelets", five_hosts)];
    isolation::main(&tests)
}

fn five_hosts(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let prepared = common::prepared(isolation).await?;
        let cluster = Cluster::start(2).await?;
        let hosts = common::hosts(isolation, &cluster, &prepared, &[]).await?;
        let outcome = driven(&cluster, &hosts).await;
        with_reports(outcome, &hosts).await
    })
}

async fn driven(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
    let watched = workloads::keep(cluster.workload.clone());
    eventually("the application runs", WITHIN, async || {
        let fewest = watched.fewest_ready();
        (fewest < usize::MAX).then_some(()).ok_or_else(|| "it does not".to_owned())
    })
    .await?;
    let _controller = cluster.drive().await?;
    changes(cluster, hosts).await
}

/// What a change may leave as it is, or not.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Boots of each host.
    boots: BTreeMap<String, u32>,
    /// When each kubelet was started, by the monotonic clock.
    kubelets: BTreeMap<String, String>,
    /// uids of all pods.
    pods: BTreeMap<String, String>,
}

/// A file changes everywhere without any disruption, then a flag of all kubelets with their restart: no host boots, and every
/// pod stays.
async fn changes(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
    let mut spec = json!({
        "files": [{"path": "/etc/refit-site", "content": "site 1\n", "permissions": "0640"}],
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [
            {"name": "node-labels", "value": "site=edge-1"},
        ]}},
    });
    let before = seen(cluster, hosts).await?;
    request(cluster, "site", &spec, hosts.len()).await?;
    for host in hosts {
        let found = host.exec(["stat", "--format=%a", "/etc/refit-site"]).await?;
        ensure!(host.read("etc/refit-site") == "site 1\n", "{}: the file is there", host.name);
        ensure!(found.trim() == "640", "{}: its mode is {found}", host.name);
    }
    let after = seen(cluster, hosts).await?;
    ensure!(before == after, "a file disturbs nothing: {before:#?} became {after:#?}");

    let flags = json!([
        {"name": "node-labels", "value": "site=edge-1"}, {"name": "node-ip", "value": "10.0.0.9"},
    ]);
    spec["joinConfiguration"]["nodeRegistration"]["kubeletExtraArgs"] = flags;
    request(cluster, "addresses", &spec, hosts.len()).await?;
    let restarted = seen(cluster, hosts).await?;
    ensure!(restarted.boots == after.boots, "no host boots: {restarted:#?}");
    ensure!(
        restarted.pods == after.pods,
        "every pod stays: {:#?} became {:#?}",
        after.pods,
        restarted.pods
    );
    for host in hosts {
        common::is_at(host, VERSION, cluster.control_planes.contains(&host.name)).await?;
        let same = restarted.kubelets.get(&host.name) == after.kubelets.get(&host.name);
        ensure!(!same, "{}: the kubelet was restarted", host.name);
        let script = "tr '\\0' ' ' < /proc/$(systemctl show --property=MainPID --value kubelet.service)/cmdline";
        let line = host.exec(["sh", "-c", script]).await?;
        ensure!(line.contains("--node-ip=10.0.0.9"), "{}: the kubelet runs as {line}", host.name);
    }
    Ok(())
}

/// Requests the configuration for all machines, and waits until so many further updates have succeeded.
async fn request(
    cluster: &Cluster,
    template: &str,
    spec: &Value,
    count: usize,
) -> anyhow::Result<()> {
    let client = &cluster.management.client;
    let succeeded = async || {
        let updates = cluster.list(NODE_UPDATES).await?;
        let done = updates.iter().filter(|update| text(update, "/status/phase") == "Succeeded");
        anyhow::Ok(done.count())
    };
    let wanted = succeeded().await? + count;
    let object = json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": template},
        "spec": {"template": {"spec": spec}},
    });
    send(client, "POST", TEMPLATES, &object).await?;
    send(client, "PATCH", CONTROL_PLANE, &json!({"spec": {"kubeadmConfigSpec": spec}})).await?;
    let reference =
        json!({"spec": {"template": {"spec": {"bootstrap": {"configRef": {"name": template}}}}}});
    send(client, "PATCH", WORKERS, &reference).await?;
    eventually("the configuration is applied", WITHIN, async || {
        let done = succeeded().await.map_err(|error| format!("{error:#}"))?;
        (done == wanted).then_some(()).ok_or_else(|| format!("{done} of {wanted} updates are done"))
    })
    .await
}

async fn seen(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<Seen> {
    let mut kubelets = BTreeMap::new();
    for host in hosts {
        let property = "--property=ExecMainStartTimestampMonotonic";
        let since =
            host.exec(["systemctl", "show", property, "--value", "kubelet.service"]).await?;
        kubelets.insert(host.name.clone(), since.trim().to_owned());
    }
    let pods = send(&cluster.workload, "GET", "/api/v1/pods", &Value::Null).await?;
    let pods = pods["items"].as_array().context("pods are a list")?;
    // A kubelet that starts makes new mirror pods of its static pods.
    let pods = pods.iter().filter(|pod| namespace(pod) != "kube-system");
    let id = |pod: &Value| {
        let uid = text(pod, "/metadata/uid").to_owned();
        (format!("{}/{}", namespace(pod), name(pod)), uid)
    };
    Ok(Seen {
        boots: hosts.iter().map(|host| (host.name.clone(), host.boots())).collect(),
        kubelets,
        pods: pods.map(id).collect(),
    })
}
