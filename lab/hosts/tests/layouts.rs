//! Whole plans on hosts that are not as kubeadm, its repository and its users leave them by default: other disks,
//! addresses, proxies and versions, a repository that goes away, a slow container runtime, and a hostile user.

mod common;
#[path = "layouts/hostile_user.rs"]
mod hostile_user;
#[path = "layouts/late.rs"]
mod late;

use std::process::ExitCode;

use anyhow::ensure;
use lab_hosts::{
    cluster::Cluster,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    layout::{COMPONENTS, Layout},
    packages::BUILDS,
    plans::{self, Order},
    print_line,
};
use refit_core::node::Reboot;
use refit_kinds::refit::{FailureKind, Gate, HostPlanStatus, PlanState, Role, StepType};

const OLD: &str = "v1.34.2";
const GOAL: &str = "v1.35.0";
/// The same versions as a vendor builds them.
const OLD_BUILD: &str = BUILDS[0];
const GOAL_BUILD: &str = "v1.35.0+vmware.1";
/// What the control plane of a cluster behind proxies was initialised with.
const PROXIES: [(&str, &str); 4] = [
    ("HTTPS_PROXY", "http://proxy.example.com:3128"),
    ("HTTP_PROXY", "http://me:secret@proxy.example.com:3128"),
    ("NO_PROXY", "10.0.0.0/8,.svc,.cluster.local"),
    ("no_proxy", "10.0.0.0/8,.svc,.cluster.local"),
];
/// How long each wait may take. It only ends a test that hangs.
const WAIT_SECONDS: u64 = 900;

fn main() -> ExitCode {
    let tests: [isolation::Test; 1] =
        [("hosts_that_differ_from_kubeadms_defaults_are_upgraded_as_they_are", five_hosts)];
    isolation::main(&tests)
}

/// Runs all cases in parallel, each on its own host.
fn five_hosts(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let prepared = common::prepared(isolation).await?;
        let cluster = Cluster::start(2).await?;
        let vendors = Layout { version: OLD_BUILD, proxies: &PROXIES, ..Layout::default() };
        let layouts = [
            Layout {
                etcd_data: "/var/lib/etcddisk/etcd",
                separate_var: Some(6 * 1024),
                ..Layout::default()
            },
            Layout {
                certificates: "/etc/kubernetes/certs",
                etcd_url: "https://[::1]:2379",
                ..Layout::default()
            },
            vendors,
            Layout { own_repository: true, ..Layout::default() },
        ];
        let hosts = common::hosts(isolation, &cluster, &prepared, &layouts).await?;
        let [disks, ipv6, vendor, late, shared] = hosts.as_slice() else {
            anyhow::bail!("there are five hosts");
        };
        let outcome = futures::try_join!(
            separate_disks(&cluster, disks),
            ipv6_and_other_certificates(&cluster, ipv6),
            proxies_and_builds(&cluster, vendor, &vendors),
            late::mirror_and_runtime(&cluster, late, &prepared.mirror),
            hostile_user::exchanges_links(&cluster, shared),
        );
        with_reports(outcome.map(drop), &hosts).await
    })
}

/// A plan with every step of a control plane host.
fn whole<'a>(id: &'a str, goal: &'a str) -> Order<'a> {
    Order { id, role: Role::FirstControlPlane, goal, reboot: Reboot::IfNeeded, gate: Gate::Disrupt }
}

/// Creates a plan and waits until it has succeeded.
async fn carried_out(
    cluster: &Cluster,
    host: &Host,
    plan: Order<'_>,
) -> anyhow::Result<HostPlanStatus> {
    plans::order(cluster, host, plan).await?;
    let status = plans::ended(cluster, host, plan.id, WAIT_SECONDS).await?;
    ensure!(status.state == PlanState::Succeeded, "{}: {status:?}", host.name);
    host.wait_up().await?;
    common::is_at(host, plan.goal, plan.role != Role::Worker).await?;
    print_line(&format!("{}: {} has succeeded", host.name, plan.id));
    Ok(status)
}

/// etcd's data is where CAPZ has it, and `/var` is a file system of its own: only its own room counts for what is
/// written there.
async fn separate_disks(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    fill(host, "/var", 300).await?;
    plans::order(cluster, host, whole("full-var", GOAL)).await?;
    let status = plans::ended(cluster, host, "full-var", WAIT_SECONDS).await?;
    ensure!(status.state == PlanState::Failed, "{}: {status:?}", host.name);
    let refused = plans::step(&status, StepType::Preflight)?;
    ensure!(
        refused.reason == "DiskFull" && refused.failure == Some(FailureKind::NeedsPerson),
        "{refused:?}"
    );
    for (named, text) in [
        (true, "the file system of /var/"),
        (true, "/var/lib/etcddisk/etcd has "),
        (true, "MiB free and needs "),
        (false, "/usr"),
    ] {
        ensure!(refused.message.contains(text) == named, "{text}: {}", refused.message);
    }
    let records = plans::records(host);
    let started: Vec<_> =
        records.iter().filter(|record| record.starts_with("StepStarted")).collect();
    ensure!(started == ["StepStarted preflight"], "nothing was done: {records:?}");
    common::is_at(host, OLD, true).await?;

    host.exec(["rm", "/var/filler"]).await?;
    // Less than an update needs in all.
    fill(host, "/", 400).await?;
    carried_out(cluster, host, whole("full-root", GOAL)).await?;
    etcd_is_saved(host, "full-root")?;
    ensure!(!host.has("var/lib/etcd"), "{} has a directory that etcd does not use", host.name);
    Ok(())
}

/// Leaves this many MiB on a file system.
async fn fill(host: &Host, mounted: &str, left: u64) -> anyhow::Result<()> {
    let script = format!(
        "free=$(df --output=avail --block-size=1M {mounted} | tail -n 1); \
         fallocate --length $((free - {left}))M {mounted}/filler"
    );
    host.exec(["sh", "-c", &script]).await.map(drop)
}

/// Checks that a plan has saved etcd's data.
fn etcd_is_saved(host: &Host, plan: &str) -> anyhow::Result<()> {
    let saved = host.read(&format!("var/lib/refit-agent/snapshots/{plan}/etcd.db"));
    ensure!(saved.len() > 1_000_000, "{}: {} bytes of etcd's data", host.name, saved.len());
    Ok(())
}

/// etcd listens only on an address of IPv6, and no certificate is where kubeadm has it by default.
async fn ipv6_and_other_certificates(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    let health = ["etcdctl", "--endpoints=https://127.0.0.1:2379", "endpoint", "health"];
    let refused = host.exec(health).await.map_err(|error| error.to_string());
    ensure!(
        refused.as_ref().is_err_and(|error| error.contains("connection refused")),
        "etcd has no address of IPv4: {refused:?}"
    );
    carried_out(cluster, host, whole("ipv6", GOAL)).await?;
    etcd_is_saved(host, "ipv6")?;
    ensure!(!host.has("etc/kubernetes/pki"), "{} has another certificatesDir", host.name);
    Ok(())
}

/// The versions are builds of a vendor, and the static pods have proxies that neither kubeadm's configuration nor
/// the agent's environment has.
async fn proxies_and_builds(cluster: &Cluster, host: &Host, layout: &Layout) -> anyhow::Result<()> {
    let packages = ["kubeadm", "kubectl", "kubelet"];
    let wanted = packages.map(|name| format!("{name}={OLD_BUILD}-1.1")).join(" ");
    let names = packages.join(" ");
    let script = format!(
        "set -e; apt-mark unhold {names}; apt-get update; apt-get install --yes {wanted}; \
         apt-mark hold {names}; systemctl restart kubelet"
    );
    host.exec(["sh", "-c", &script]).await?;
    common::is_at(host, &format!("v{OLD_BUILD}"), true).await?;
    carried_out(cluster, host, whole("build", GOAL_BUILD)).await?;
    for name in COMPONENTS {
        let found = host.read(&format!("etc/kubernetes/manifests/{name}.yaml"));
        let expected = layout.manifest(name, GOAL_BUILD);
        ensure!(found == expected, "{}: {found} instead of {expected}", host.name);
    }
    Ok(())
}
