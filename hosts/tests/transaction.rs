//! The whole transaction on three control plane and two worker hosts at once, driven through the
//! controllers, while things go wrong on each of them.

mod common;

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::ensure;
use refit_hosts::{
    cage::{self, Cage, runtime},
    cluster::Cluster,
    eventually,
    host::Host,
    nodes::order,
    say,
    workloads::{self, Watched},
};
use serde_json::Value;

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";
const NODE_UPDATES: &str = "/apis/refit.dev/v1alpha1/nodeupdates";
/// How many pods the application has, less those that its budget lets miss.
const FEWEST: usize = 6;

fn main() -> ExitCode {
    let tests: [cage::Test; 1] = [(
        "five_hosts_reach_the_next_version_through_slow_crashing_and_interrupted_steps",
        five_hosts,
    )];
    cage::main(&tests)
}

fn five_hosts(cage: &Cage) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let layers = common::layers(cage).await?;
        let cluster = Cluster::start(2).await?;
        let names: Vec<String> = cluster
            .control_planes
            .iter()
            .chain(&cluster.workers)
            .cloned()
            .collect();
        ensure!(names.len() == 5, "five nodes: {names:?}");
        let hosts = common::hosts(cage, &cluster, &layers, &names).await?;
        let outcome = roll_out(&cluster, &hosts).await;
        common::with_reports(outcome, &hosts).await
    })
}

async fn roll_out(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
    let watched = workloads::keep(cluster.workload.clone());
    nodes_are(cluster, hosts, "v1.34.2", 30).await?;
    let before = machines(cluster).await?;
    let identities: Vec<String> = hosts
        .iter()
        .map(|host| host.read("etc/machine-id"))
        .collect();
    cluster.drive().await?;
    trouble(hosts)?;
    cluster.upgrade("v1.35.0").await?;
    all_updated(cluster, hosts, "v1.35.0", 300).await?;
    for host in hosts {
        let control_plane = cluster.control_planes.contains(&host.name);
        common::is_at(host, "v1.35.0", control_plane).await?;
        ensure!(
            host.boots() == 1,
            "{} booted {} times",
            host.name,
            host.boots()
        );
        let taken = ["sh", "-c", "ls /var/lib/stub"];
        let left = host.exec(taken).await?;
        ensure!(
            left.lines().all(|file| file.contains(".taken")),
            "{}: {left}",
            host.name
        );
    }
    let after: Vec<String> = hosts
        .iter()
        .map(|host| host.read("etc/machine-id"))
        .collect();
    ensure!(after == identities, "machine ids stay");
    ensure!(
        machines(cluster).await? == before,
        "the machines are the same, by uid"
    );
    budget_was_kept(&watched)
}

/// What goes wrong on each host, once.
fn trouble(hosts: &[Host]) -> anyhow::Result<()> {
    let [first, second, third, worker, last] = hosts else {
        anyhow::bail!("there are five hosts");
    };
    order(first, "kubeadm.start", "sleep 4\n")?;
    order(
        second,
        "kubeadm.kube-apiserver",
        "echo no route to host; exit 1\n",
    )?;
    // dpkg dies while it unpacks: the package is neither the old one nor the new one.
    order(third, "dpkg-kubelet.preinst", "kill -9 $PPID\n")?;
    order(worker, "kubeadm.start", "kill -9 $STUB_PID\n")?;
    // dpkg itself dies between unpacking and configuring.
    order(last, "dpkg-kubelet.postinst", "kill -9 $PPID\n")
}

/// uid of each Machine, by name.
async fn machines(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let machines = cluster.list(MACHINES).await?;
    Ok(machines
        .iter()
        .map(|machine| {
            (
                text(machine, "/metadata/name"),
                text(machine, "/metadata/uid"),
            )
        })
        .collect())
}

fn text(value: &Value, pointer: &str) -> String {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Waits until every Node is Ready, takes pods, and shows version and boot of its host.
async fn nodes_are(
    cluster: &Cluster,
    hosts: &[Host],
    version: &str,
    seconds: u64,
) -> anyhow::Result<()> {
    let mut boots = BTreeMap::new();
    for host in hosts {
        let id = host
            .exec(["cat", "/proc/sys/kernel/random/boot_id"])
            .await?;
        boots.insert(host.name.clone(), id.trim().to_owned());
    }
    let ask = async || {
        let nodes = cluster
            .nodes()
            .await
            .map_err(|error| format!("{error:#}"))?;
        for node in nodes {
            let name = node.metadata.name.unwrap_or_default();
            let cordoned = node
                .spec
                .is_some_and(|spec| spec.unschedulable == Some(true));
            let info = node
                .status
                .and_then(|status| status.node_info)
                .unwrap_or_default();
            let Some(boot) = boots.get(&name) else {
                continue;
            };
            let same = *boot == info.boot_id;
            if info.kubelet_version != version || !same || cordoned {
                return Err(format!(
                    "{name}: {} {} {cordoned}",
                    info.kubelet_version, info.boot_id
                ));
            }
        }
        Ok(())
    };
    eventually(&format!("nodes are at {version}"), seconds, ask).await
}

/// Waits until every Machine is done, and says how long each took.
async fn all_updated(
    cluster: &Cluster,
    hosts: &[Host],
    version: &str,
    seconds: u64,
) -> anyhow::Result<()> {
    let ask = async || {
        let updates = cluster.list(NODE_UPDATES).await;
        let updates = updates.map_err(|error| format!("{error:#}"))?;
        let mut done = 0;
        let mut lines = Vec::new();
        for update in &updates {
            let (name, phase) = (
                text(update, "/metadata/name"),
                text(update, "/status/phase"),
            );
            done += usize::from(phase == "Succeeded");
            let line = format!("{name} {phase} {}", update["status"]["failureMessage"]);
            if phase == "Failed" {
                return Ok(Err(line));
            }
            lines.push(line);
        }
        if done == hosts.len() {
            return Ok(Ok(()));
        }
        Err(lines.join("\n"))
    };
    let outcome = eventually("every machine is updated", seconds, ask).await?;
    outcome.map_err(anyhow::Error::msg)?;
    nodes_are(cluster, hosts, version, 30).await?;
    timeline(cluster).await
}

/// Prints when each machine began and ended.
async fn timeline(cluster: &Cluster) -> anyhow::Result<()> {
    let updates = cluster.list(NODE_UPDATES).await?;
    for update in &updates {
        let steps = update["status"]["steps"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let begin = steps
            .first()
            .map(|step| text(step, "/startedAt"))
            .unwrap_or_default();
        let end = steps
            .last()
            .map(|step| text(step, "/finishedAt"))
            .unwrap_or_default();
        let tries: Vec<String> = steps
            .iter()
            .filter(|step| step["attempt"].as_i64() > Some(1))
            .map(|step| format!("{} tried {} times", text(step, "/name"), step["attempt"]))
            .collect();
        say(&format!(
            "{} {begin} {end} {}",
            text(update, "/metadata/name"),
            tries.join(", ")
        ));
    }
    Ok(())
}

fn budget_was_kept(watched: &Watched) -> anyhow::Result<()> {
    let fewest = watched.fewest_ready();
    ensure!(
        fewest >= FEWEST,
        "only {fewest} pods of the application were ready at some time"
    );
    ensure!(fewest < usize::MAX, "the application was never seen ready");
    Ok(())
}
