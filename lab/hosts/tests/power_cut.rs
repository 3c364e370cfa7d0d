//! Power cuts: all processes of the host end at once, and disk data that was not synced is lost.
//! After the boot the host completes the plan or rolls back.

mod common;
mod counted;

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    cluster::Cluster,
    cluster_nodes::{forget_orders, order},
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    plans::{self, Order},
    print_line,
};
use refit_core::node::Reboot;
use refit_kinds::refit::{Gate, PlanState, Role};

const GOAL: &str = "v1.35.0";
const JOURNAL: &str = "var/lib/refit-agent/journal.jsonl";
/// How long each wait may take. It only ends a test that hangs: on a new machine, five hosts boot next
/// to the builds of other tests.
const WAIT_SECONDS: u64 = 900;

fn main() -> ExitCode {
    // A large number of cuts takes long enough alone.
    let test: isolation::Test = if counted::number().is_some() {
        ("a_power_cut_while_kubeadm_replaces_manifests_is_survived", cuts_alone)
    } else {
        ("a_power_cut_at_any_boundary_or_within_any_step_is_survived", everything)
    };
    isolation::main(&[test])
}

/// As many cuts as the environment wants, divided among the control planes.
fn cuts_alone(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let prepared = common::prepared(isolation).await?;
        let cluster = Cluster::start(0).await?;
        let hosts = common::hosts(isolation, &cluster, &prepared, &[]).await?;
        let (cluster, total) = (&cluster, counted::number().unwrap_or_default());
        let cuts = hosts.iter().enumerate().map(|(at, host)| {
            let number = counted::share(total, hosts.len(), at);
            counted::cuts(cluster, host, counted::FIRST, number, at)
        });
        let outcome = futures::future::try_join_all(cuts).await;
        with_reports(outcome.map(drop), &hosts).await
    })
}

/// Runs all tests in parallel, each on its own host; otherwise each would wait for the boots of the
/// others.
fn everything(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let prepared = common::prepared(isolation).await?;
        let cluster = Cluster::start(2).await?;
        let hosts = common::hosts(isolation, &cluster, &prepared, &[]).await?;
        let [boundaries, within, torn, reboots, undone] = hosts.as_slice() else {
            anyhow::bail!("there are five hosts");
        };
        let outcome = futures::try_join!(
            async {
                let role = Role::FirstControlPlane;
                at_every_boundary(&cluster, boundaries, role, Reboot::IfNeeded).await?;
                counted::cuts(&cluster, boundaries, counted::SECOND, counted::USUAL, 0).await
            },
            async {
                within_steps(&cluster, within, whole("within"), &WITHIN, false).await?;
                counted::cuts(&cluster, within, counted::SECOND, counted::USUAL, 1).await
            },
            async {
                within_steps(&cluster, torn, whole("torn"), &WITHIN_AND_TORN, true).await?;
                counted::cuts(&cluster, torn, counted::SECOND, counted::USUAL, 2).await
            },
            at_every_boundary(&cluster, reboots, Role::Worker, Reboot::Always),
            while_undoing(&cluster, undone),
        );
        with_reports(outcome.map(drop), &hosts).await
    })
}

/// A plan with every step of a control plane host.
fn whole(id: &str) -> Order<'_> {
    Order {
        id,
        role: Role::FirstControlPlane,
        goal: GOAL,
        reboot: Reboot::IfNeeded,
        gate: Gate::Disrupt,
    }
}

/// Cuts the power as soon as a new record appears in the journal: half of the time before it can be
/// synced, otherwise after.
async fn at_every_boundary(
    cluster: &Cluster,
    host: &Host,
    role: Role,
    reboot: Reboot,
) -> anyhow::Result<()> {
    let plan = Order { role, reboot, ..whole("boundaries") };
    plans::order(cluster, host, plan).await?;
    let mut seen = BTreeSet::new();
    let mut cuts = 0;
    while let Some(record) = next_record(host, &seen, WAIT_SECONDS).await? {
        cuts += 1;
        if cuts % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        host.cut().await?;
        let last = record.starts_with("PlanEnded");
        seen.insert(record);
        host.start().await?;
        if last {
            break;
        }
    }
    finished(cluster, host, plan, WAIT_SECONDS).await?;
    let steps = plan.steps().0.len();
    ensure!(cuts > 2 * steps, "the power was cut only {cuts} times in a plan of {steps} steps");
    print_line(&format!("{}: {cuts} cuts at boundaries: {}", host.name, shown(&seen)));
    Ok(())
}

/// Waits for the next new kind of record; returns `None` once the plan has ended.
async fn next_record(
    host: &Host,
    seen: &BTreeSet<String>,
    seconds: u64,
) -> anyhow::Result<Option<String>> {
    let looking = async {
        loop {
            let records = plans::records(host);
            if let Some(new) = records.iter().find(|record| !seen.contains(*record)) {
                return Some(new.clone());
            }
            if records.last().is_some_and(|record| record.starts_with("PlanEnded")) {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(seconds), looking).await;
    found.with_context(|| format!("no new record within {seconds} s after {}", shown(seen)))
}

fn shown(records: &BTreeSet<String>) -> String {
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    records.join(", ")
}

/// Points within steps, in the order in which a plan reaches them. An interrupted step counts as an
/// attempt, and there are three attempts: use at most two points for each step of a host.
const WITHIN: [&str; 5] = [
    "etcdctl.start",
    "dpkg-kubeadm.preinst",
    "kubeadm.etcd",
    "kubeadm.kube-controller-manager.gap",
    "dpkg-kubelet.preinst",
];
/// As [`WITHIN`], with half of a record at the end of the journal each time.
const WITHIN_AND_TORN: [&str; 4] = [
    "dpkg-kubeadm.postinst",
    "kubeadm.start",
    "kubeadm.kube-apiserver.swapped",
    "dpkg-kubelet.postinst",
];
/// As [`WITHIN`], on a worker.
const WITHIN_OF_WORKER: [&str; 2] = ["kubeadm.kubelet-config", "kubeadm.end"];

/// Blocks a program of a step at a point, then cuts the power.
async fn within_steps(
    cluster: &Cluster,
    host: &Host,
    plan: Order<'_>,
    points: &[&str],
    torn: bool,
) -> anyhow::Result<()> {
    let mut points = points.iter().peekable();
    if let Some(first) = points.peek() {
        stop_at(host, first)?;
    }
    plans::order(cluster, host, plan).await?;
    while let Some(point) = points.next() {
        stopped_at(host, plan.id, point, WAIT_SECONDS).await?;
        host.cut().await?;
        forget_orders(host)?;
        if torn {
            tear(host, points.len())?;
        }
        if let Some(next) = points.peek() {
            stop_at(host, next)?;
        }
        host.start().await?;
    }
    finished(cluster, host, plan, WAIT_SECONDS).await
}

/// Has a program stop at a point, where another program of the host has just synced a file of its own, as etcd does
/// many times a second: the file system has then stored the names of all files, and perhaps not their content.
fn stop_at(host: &Host, point: &str) -> anyhow::Result<()> {
    let sync = "dd if=/dev/zero of=/var/tmp/wal bs=512 count=1 conv=fsync status=none";
    order(host, point, &format!("{sync}; touch /run/at-{point}; sleep 1000\n"))
}

/// Waits until a program of a plan has stopped at a point.
async fn stopped_at(host: &Host, plan: &str, point: &str, seconds: u64) -> anyhow::Result<()> {
    let records = || plans::records(host).join(", ");
    let ask = async || {
        let there = host.has(&format!("run/at-{point}"));
        (there || plans::has_ended(host, plan)).then_some(there).ok_or_else(records)
    };
    let what = format!("{} reaches {point}", host.name);
    let there = eventually(&what, Duration::from_secs(seconds), ask).await?;
    ensure!(there, "{}: the plan ended before {point}: {}", host.name, records());
    Ok(())
}

/// Appends half of another record, as an interrupted write leaves it: truncated, or with a block of
/// zeros.
fn tear(host: &Host, count: usize) -> anyhow::Result<()> {
    let text = host.read(JOURNAL);
    let Some(last) = text.lines().last() else {
        return Ok(());
    };
    let half = last.get(..last.len() / 2).unwrap_or(last);
    let zeros = if count.is_multiple_of(2) { "" } else { "\0\0\0\0\0\0\0\0" };
    host.write(JOURNAL, &format!("{text}{half}{zeros}"))
}

/// An abort before the point of no return, with a power cut within the step and within its
/// rollback. Then the same plan again, to the end.
async fn while_undoing(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    let plan = Order {
        id: "undone",
        role: Role::Worker,
        goal: GOAL,
        reboot: Reboot::IfNeeded,
        gate: Gate::Upgrade,
    };
    stop_at(host, "dpkg-kubeadm.postinst")?;
    plans::order(cluster, host, plan).await?;
    stopped_at(host, plan.id, "dpkg-kubeadm.postinst", WAIT_SECONDS).await?;
    plans::abort(cluster, host).await?;
    abort_is_known(host, WAIT_SECONDS).await?;
    host.cut().await?;
    forget_orders(host)?;
    // A cut while the previous package is being restored.
    stop_at(host, "dpkg-kubeadm.preinst")?;
    host.start().await?;
    stopped_at(host, plan.id, "dpkg-kubeadm.preinst", WAIT_SECONDS).await?;
    host.cut().await?;
    forget_orders(host)?;
    host.start().await?;
    let status = plans::ended(cluster, host, plan.id, WAIT_SECONDS).await?;
    ensure!(status.state == PlanState::Stopped, "{}: {:?}", host.name, status);
    host.wait_up().await?;
    common::is_at(host, "v1.34.2", false).await?;
    let again = Order { id: "again", gate: Gate::Disrupt, ..plan };
    within_steps(cluster, host, again, &WITHIN_OF_WORKER, false).await
}

async fn abort_is_known(host: &Host, seconds: u64) -> anyhow::Result<()> {
    let ask = async || {
        let records = plans::records(host);
        let known = records.iter().any(|record| record.starts_with("AbortSeen"));
        known.then_some(()).ok_or_else(|| records.join(", "))
    };
    eventually("the abort is in the journal", Duration::from_secs(seconds), ask).await
}

async fn finished(
    cluster: &Cluster,
    host: &Host,
    plan: Order<'_>,
    seconds: u64,
) -> anyhow::Result<()> {
    let status = plans::ended(cluster, host, plan.id, seconds).await?;
    ensure!(status.state == PlanState::Succeeded, "{}: {status:?}", host.name);
    host.wait_up().await?;
    common::is_at(host, GOAL, plan.role != Role::Worker).await
}
