//! Changes of KubeadmConfigs and HostSettings on three control plane and two worker hosts: what they disturb, as the hosts
//! themselves show it.
//!
//! | change | disturbs |
//! |---|---|
//! | a file of the KubeadmConfigs | nothing |
//! | a flag of the kubelet | kubelets are restarted |
//! | a package of the operating system | nothing |
//! | a package that requires a boot | each node is drained, and its host boots once |
//! | such a package with a Kubernetes version | the same, once for both |

mod common;
#[path = "configuration/packages.rs"]
mod packages;
#[path = "configuration/watch.rs"]
mod watch;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::ensure;
use lab_hosts::{
    cluster::Cluster,
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    management::send,
    print_line, workloads,
};
use refit_kinds::json::{name, namespace, text};
use refit_runtime::Clock;
use serde_json::{Value, json};
use watch::{Watch, items};

const NODE_UPDATES: &str = "/apis/refit.dev/v1alpha1/nodeupdates";
const CONTROL_PLANE: &str =
    "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmcontrolplanes/edge-1";
const WORKERS: &str =
    "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments/edge-1-md-0";
const TEMPLATES: &str =
    "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmconfigtemplates";
/// The version that all hosts have before the last change.
const VERSION: &str = "v1.34.2";
const WITHIN: Duration = Duration::from_mins(10);

fn main() -> ExitCode {
    let tests: [isolation::Test; 1] =
        [("each_change_disturbs_hosts_as_little_as_it_can", five_hosts)];
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
    let watch = Watch::default();
    let site = Site { cluster, hosts, watch: &watch };
    tokio::select! {
        outcome = changes(&site) => outcome?,
        error = watch.keep(cluster, hosts) => return Err(error),
    }
    watched.budget_was_kept()
}

/// The hosts of the test and their cluster.
#[derive(Clone, Copy)]
struct Site<'a> {
    cluster: &'a Cluster,
    hosts: &'a [Host],
    watch: &'a Watch,
}

async fn changes(site: &Site<'_>) -> anyhow::Result<()> {
    let clock = Clock::real();
    let mut began = clock.now();
    let mut took = |what: &str| {
        let now = clock.now();
        print_line(&format!("{what}: {} s", now.duration_since(began).as_secs()));
        began = now;
    };
    kubeadm_configs(site).await?;
    took("a file and a flag of KubeadmConfigs");
    packages::without_boot(site).await?;
    took("packages without a boot");
    packages::with_boot(site).await?;
    took("packages with a boot");
    packages::with_version(site).await?;
    took("packages and a version with one boot");
    Ok(())
}

/// Updates of a Machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Updates {
    all: usize,
    succeeded: usize,
}

impl Site<'_> {
    /// The updates of each Machine that has any.
    async fn updates(&self) -> anyhow::Result<BTreeMap<String, Updates>> {
        let mut found: BTreeMap<String, Updates> = BTreeMap::new();
        for update in self.cluster.list(NODE_UPDATES).await? {
            let of_machine =
                found.entry(text(&update, "/spec/machineRef/name").to_owned()).or_default();
            of_machine.all += 1;
            of_machine.succeeded += usize::from(text(&update, "/status/phase") == "Succeeded");
        }
        Ok(found)
    }

    /// Waits until each Machine has had exactly one further update, and it has succeeded.
    async fn until_one_more(&self, before: &BTreeMap<String, Updates>) -> anyhow::Result<()> {
        let sum =
            |all: &BTreeMap<String, Updates>| all.values().map(|one| one.succeeded).sum::<usize>();
        let wanted = sum(before) + self.hosts.len();
        let found = eventually("one further update of each machine succeeds", WITHIN, async || {
            let found = self.updates().await.map_err(|error| format!("{error:#}"))?;
            if sum(&found) < wanted { Err(format!("{found:?}")) } else { Ok(found) }
        })
        .await?;
        let is_one_more = |(machine, after): (&String, &Updates)| {
            let Updates { all, succeeded } = before.get(machine).copied().unwrap_or_default();
            *after == Updates { all: all + 1, succeeded: succeeded + 1 }
        };
        let each = found.len() == self.hosts.len() && found.iter().all(is_one_more);
        ensure!(each, "updates of the machines: {before:?} became {found:?}");
        Ok(())
    }
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
async fn kubeadm_configs(site: &Site<'_>) -> anyhow::Result<()> {
    let Site { cluster, hosts, .. } = *site;
    let mut spec = json!({
        "files": [{"path": "/etc/refit-site", "content": "site 1\n", "permissions": "0640"}],
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [
            {"name": "node-labels", "value": "site=edge-1"},
        ]}},
    });
    let before = seen(cluster, hosts).await?;
    request(site, "site", &spec).await?;
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
    request(site, "addresses", &spec).await?;
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

/// Requests the configuration for all machines, and waits until an update of each has succeeded.
async fn request(site: &Site<'_>, template: &str, spec: &Value) -> anyhow::Result<()> {
    let client = &site.cluster.management.client;
    let before = site.updates().await?;
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
    site.until_one_more(&before).await
}

async fn seen(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<Seen> {
    let mut kubelets = BTreeMap::new();
    for host in hosts {
        let property = "--property=ExecMainStartTimestampMonotonic";
        let since =
            host.exec(["systemctl", "show", property, "--value", "kubelet.service"]).await?;
        kubelets.insert(host.name.clone(), since.trim().to_owned());
    }
    let pods = items(cluster, "/api/v1/pods").await?;
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
