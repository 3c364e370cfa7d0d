//! The whole transaction on three control plane and two worker hosts at once, driven by the
//! controllers, with a different failure on each host, and with the wrong time on two of them.

mod common;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    cluster::Cluster,
    cluster_nodes::order,
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    management::send,
    plans, print_line, workloads,
};
use refit_kinds::{
    json::{name, text},
    keys,
    refit::Goal,
};
use refit_runtime::Clock;
use serde_json::{Value, json};

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";
const NODE_UPDATES: &str = "/apis/refit.dev/v1alpha1/nodeupdates";
const GOAL: &str = "v1.35.0";
const RUNTIME: &str = "2.1.4";

fn main() -> ExitCode {
    let tests: [isolation::Test; 1] = [(
        "five_hosts_reach_the_next_version_through_slow_crashing_and_interrupted_steps",
        five_hosts,
    )];
    isolation::main(&tests)
}

fn five_hosts(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let prepared = common::prepared(isolation).await?;
        let cluster = Cluster::start(2).await?;
        let names = cluster.names();
        ensure!(names.len() == 5, "five nodes: {names:?}");
        let hosts = common::hosts(isolation, &cluster, &prepared, &[]).await?;
        let outcome = roll_out(&cluster, &hosts).await;
        with_reports(outcome, &hosts).await
    })
}

async fn roll_out(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
    let watched = workloads::keep(cluster.workload.clone());
    nodes_are(cluster, hosts, "v1.34.2", 30).await?;
    let before = machines(cluster).await?;
    let identities: Vec<String> = hosts.iter().map(|host| host.read("etc/machine-id")).collect();
    ask_for_a_runtime(cluster).await?;
    wrong_clocks(cluster, hosts).await?;
    let controller = cluster.drive().await?;
    trouble(hosts)?;
    fill_disk(worker_of(hosts)?).await?;
    cluster.management.upgrade(GOAL, 900).await?;
    no_room_then_room(cluster, worker_of(hosts)?).await?;
    // The update that failed for lack of disk space stays in the list.
    // To a new controller, the last report of a host with a late clock looks old until the next one arrives.
    all_updated(cluster, hosts.len(), 600).await?;
    nodes_are(cluster, hosts, GOAL, 30).await?;
    are_at_goal(cluster, hosts, 1).await?;
    for host in hosts {
        let taken = ["sh", "-c", "ls /var/lib/stub"];
        let left = host.exec(taken).await?;
        ensure!(left.lines().all(|file| file.contains(".taken")), "{}: {left}", host.name);
    }
    handed_over(cluster).await?;
    controller.stop().await;
    cluster.drive_by_reboots().await?;
    ask_again(cluster).await?;
    all_updated(cluster, 2 * hosts.len(), 600).await?;
    nodes_are(cluster, hosts, GOAL, 30).await?;
    are_at_goal(cluster, hosts, 2).await?;
    let after: Vec<String> = hosts.iter().map(|host| host.read("etc/machine-id")).collect();
    ensure!(after == identities, "machine ids stay");
    ensure!(machines(cluster).await? == before, "the machines are the same, by uid");
    watched.budget_was_kept()
}

/// Sets the clocks of two hosts wrong by more than the age at which a report counts as old. The hosts share the
/// clock of this machine, so a library shows the agent and the kubelet another time.
async fn wrong_clocks(cluster: &Cluster, hosts: &[Host]) -> anyhow::Result<()> {
    for (at, minutes) in [(1, 20), (4, -20)] {
        let host = hosts.get(at).context("there are five hosts")?;
        let drop_in = format!(
            "[Service]\nEnvironment=LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1\n\
             Environment=FAKETIME={minutes:+}m FAKETIME_DISABLE_SHM=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n"
        );
        let [kubelet, agent] = ["kubelet.service", "refit-agent.service"];
        for unit in [kubelet, agent] {
            host.write(&format!("etc/systemd/system/{unit}.d/clock.conf"), &drop_in)?;
        }
        host.exec(["systemctl", "daemon-reload"]).await?;
        host.exec(["systemctl", "restart", kubelet, agent]).await?;
        let what = format!("{} has another time", host.name);
        eventually(&what, Duration::from_mins(3), async || {
            let status =
                plans::status(cluster, host).await.map_err(|error| format!("{error:#}"))?;
            let reported = status.reported_at.ok_or("there is no report")?.0;
            let ahead = reported.duration_since(Clock::real().now()).as_mins();
            // Reports are sent every five minutes.
            let is_wrong = (minutes - 6..=minutes).contains(&ahead);
            is_wrong.then_some(()).ok_or_else(|| format!("it is {ahead} min ahead"))
        })
        .await?;
    }
    Ok(())
}

/// Causes one failure on each host.
fn trouble(hosts: &[Host]) -> anyhow::Result<()> {
    let [first, second, third, worker, last] = hosts else {
        anyhow::bail!("there are five hosts");
    };
    order(first, "kubeadm.start", "sleep 4\n")?;
    order(second, "kubeadm.kube-apiserver", "echo no route to host; exit 1\n")?;
    // dpkg dies while unpacking: the package is neither the old nor the new one.
    order(third, "dpkg-kubelet.preinst", "kill -9 $PPID\n")?;
    order(worker, "kubeadm.start", "kill -9 $STUB_PID\n")?;
    // dpkg dies between unpacking and configuring.
    order(last, "dpkg-kubelet.postinst", "kill -9 $PPID\n")
}

fn worker_of(hosts: &[Host]) -> anyhow::Result<&Host> {
    hosts.get(3).context("the fourth host is a worker")
}

/// Requests another container runtime for every host as well.
async fn ask_for_a_runtime(cluster: &Cluster) -> anyhow::Result<()> {
    let packages = json!([{"name": "containerd", "version": format!("{RUNTIME}-1")}]);
    cluster.management.set_host_settings(&json!({"containerRuntime": packages})).await
}

/// Leaves less space than an update needs, but enough for the agent's own journal.
async fn fill_disk(host: &Host) -> anyhow::Result<()> {
    let script = "free=$(df --output=avail --block-size=1M / | tail -n 1); \
                  fallocate --length $((free - 200))M /var/filler";
    host.exec(["sh", "-c", script]).await.map(drop)
}

/// The host refuses the plan, and its Machine reports the reason and stays unchanged. After space
/// is freed, one retry is enough.
async fn no_room_then_room(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    let (machine, _) = machine_of(cluster, &host.name).await?;
    let failed = eventually("the host without room refuses", Duration::from_mins(4), async || {
        let updates = cluster.list(NODE_UPDATES).await;
        let updates = updates.map_err(|error| format!("{error:#}"))?;
        let mut own =
            updates.iter().filter(|update| text(update, "/spec/machineRef/name") == machine);
        let found = own.find(|update| text(update, "/status/phase") == "Failed");
        let lines = || updates.iter().map(line).collect::<Vec<_>>().join("\n");
        found.cloned().ok_or_else(lines)
    })
    .await?;
    let message = text(&failed, "/status/failureMessage");
    ensure!(message.contains("MiB free and needs"), "the message names what is missing: {message}");
    ensure!(host.boots() == 1, "nothing was done");
    host.exec(["rm", "/var/filler"]).await?;
    let failed = name(&failed);
    let body = json!({"metadata": {"annotations": {keys::RETRY: failed}}});
    let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/{machine}");
    send(&cluster.management.client, "PATCH", &path, &body).await?;
    Ok(())
}

/// Name and uid of a node's Machine.
async fn machine_of(cluster: &Cluster, node: &str) -> anyhow::Result<(String, String)> {
    let machines = cluster.list(MACHINES).await?;
    let found = machines.iter().find(|machine| text(machine, "/status/nodeRef/name") == node);
    let found = found.with_context(|| format!("no Machine has the node {node}"))?;
    Ok((name(found).to_owned(), text(found, "/metadata/uid").to_owned()))
}

/// Waits until Cluster API has observed every update. Until then it requests its own goal, which
/// takes precedence over another goal of the machine.
async fn handed_over(cluster: &Cluster) -> anyhow::Result<()> {
    let ask = async || {
        let machines = cluster.list(MACHINES).await;
        let machines = machines.map_err(|error| format!("{error:#}"))?;
        let is_updating = |machine: &&Value| {
            let annotations = machine.pointer("/metadata/annotations");
            annotations.is_some_and(|all| all.get(keys::UPDATE_IN_PROGRESS).is_some())
        };
        match machines.iter().find(is_updating) {
            Some(machine) => Err(name(machine).to_owned()),
            None => Ok(()),
        }
    };
    eventually("Cluster API has reacted", Duration::from_mins(2), ask).await
}

/// Requests the version that every host has, machine by machine, from a controller that reboots.
async fn ask_again(cluster: &Cluster) -> anyhow::Result<()> {
    let goal = Goal::of_version(GOAL.parse()?);
    for (name, uid) in machines(cluster).await? {
        // No machine has had that many.
        cluster.management.ask(&name, &uid, 9, &goal).await?;
    }
    Ok(())
}

/// Checks that every host reached its goal after this many boots.
async fn are_at_goal(cluster: &Cluster, hosts: &[Host], boots: u32) -> anyhow::Result<()> {
    for host in hosts {
        let control_plane = cluster.control_planes.contains(&host.name);
        common::is_at(host, GOAL, control_plane).await?;
        let runtime = host.exec(["containerd", "--version"]).await?;
        ensure!(runtime.contains(RUNTIME), "{}: {runtime}", host.name);
        let active = host.exec(["systemctl", "is-active", "containerd"]).await;
        ensure!(active.is_ok(), "{}: containerd: {active:?}", host.name);
        ensure!(host.boots() == boots, "{} booted {} times", host.name, host.boots());
    }
    Ok(())
}

/// uid of each Machine, by name.
async fn machines(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let machines = cluster.list(MACHINES).await?;
    Ok(machines
        .iter()
        .map(|machine| (name(machine).to_owned(), text(machine, "/metadata/uid").to_owned()))
        .collect())
}

/// Waits until every Node is Ready, schedulable, and reports version and boot of its host.
async fn nodes_are(
    cluster: &Cluster,
    hosts: &[Host],
    version: &str,
    seconds: u64,
) -> anyhow::Result<()> {
    let mut boots = BTreeMap::new();
    for host in hosts {
        let id = host.exec(["cat", "/proc/sys/kernel/random/boot_id"]).await?;
        boots.insert(host.name.clone(), id.trim().to_owned());
    }
    let ask = async || {
        let nodes = cluster.nodes().await.map_err(|error| format!("{error:#}"))?;
        for node in nodes {
            let name = node.metadata.name.unwrap_or_default();
            let cordoned = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
            let info = node.status.and_then(|status| status.node_info).unwrap_or_default();
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
    eventually(&format!("nodes are at {version}"), Duration::from_secs(seconds), ask).await
}

fn line(update: &Value) -> String {
    format!(
        "{} {} {} {} {}",
        name(update),
        text(update, "/status/phase"),
        text(update, "/status/message"),
        update["status"]["blockedBy"],
        update["status"]["failureMessage"]
    )
}

/// Waits until this many updates are done, and prints the duration of each. One may have failed for
/// lack of disk space.
async fn all_updated(cluster: &Cluster, count: usize, seconds: u64) -> anyhow::Result<()> {
    let ask = async || {
        let updates = cluster.list(NODE_UPDATES).await;
        let updates = updates.map_err(|error| format!("{error:#}"))?;
        let in_phase = |phase: &'static str| {
            let all = updates.iter();
            all.filter(move |update| text(update, "/status/phase") == phase)
        };
        let no_room =
            |update: &&Value| text(update, "/status/failureMessage").contains("MiB free and needs");
        if let Some(failed) = in_phase("Failed").find(|update| !no_room(update)) {
            return Ok(Err(line(failed)));
        }
        if in_phase("Succeeded").count() == count {
            return Ok(Ok(()));
        }
        Err(updates.iter().map(line).collect::<Vec<_>>().join("\n"))
    };
    let outcome = eventually("every machine is updated", Duration::from_secs(seconds), ask).await?;
    outcome.map_err(anyhow::Error::msg)?;
    timeline(cluster).await
}

/// Prints when each machine began and ended.
async fn timeline(cluster: &Cluster) -> anyhow::Result<()> {
    let updates = cluster.list(NODE_UPDATES).await?;
    for update in &updates {
        let steps = update["status"]["steps"].as_array().cloned().unwrap_or_default();
        let begin = steps.first().map(|step| text(step, "/startedAt")).unwrap_or_default();
        let end = steps.last().map(|step| text(step, "/finishedAt")).unwrap_or_default();
        let tries: Vec<String> = steps
            .iter()
            .filter(|step| step["attempt"].as_i64() > Some(1))
            .map(|step| format!("{} tried {} times", text(step, "/name"), step["attempt"]))
            .collect();
        print_line(&format!("{} {begin} {end} {}", name(update), tries.join(", ")));
    }
    Ok(())
}
