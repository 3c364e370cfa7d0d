//! The agent's package on a host of the oldest supported release: Debian 11 with glibc 2.31 and systemd 247.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    base::Debian,
    cluster::Cluster,
    cluster_nodes::join,
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    layout::Layout,
    overlay::Overlay,
    plans, print_line,
};
use refit_kinds::refit::HostPlanStatus;

/// The variable with the path of the package.
const PACKAGE: &str = "REFIT_AGENT_DEB";
/// What the agent's program may occupy on the disk of a host, in bytes (docs/agent.md#figures).
const PROGRAM_BYTES: u64 = 10_000_000;
/// What an idle agent that watches its HostPlan may occupy, in KiB (docs/agent.md#figures).
const MEMORY_KIBIBYTES: u64 = 8 * 1024;
/// How often the agent is started, for the median: how much of its program the kernel maps differs from start to start.
const STARTS: usize = 5;
/// When it is idle again, its first report included.
const IDLE: Duration = Duration::from_secs(8);

fn main() -> ExitCode {
    let tests: [isolation::Test; 1] =
        [("the_packaged_agent_reports_from_the_oldest_supported_host_and_stays_small", oldest)];
    isolation::main_on(Debian::OLDEST, &tests)
}

fn oldest(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let overlay = Overlay::begin(isolation).await?;
        let package = std::env::var_os(PACKAGE).with_context(|| {
            format!("set {PACKAGE} to the path of a package of `cargo xtask package`")
        })?;
        std::fs::copy(&package, overlay.root().join("refit-agent.deb"))
            .with_context(|| format!("failed to copy the package {}", package.display()))?;
        overlay.chroot(["dpkg", "--install", "/refit-agent.deb"]).await?;
        let layers = overlay.finish().await?;
        let cluster = Cluster::start(1).await?;
        let name = cluster.workers.first().context("the cluster has a worker")?;
        let host = Host::new(isolation, 1, name, &layers).await?;
        join(&host, &cluster, false, &Layout::default())?;
        host.boot().await?;
        let hosts = [host];
        with_reports(reports(&cluster, &hosts[0]).await, &hosts).await
    })
}

async fn reports(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    let version = host.exec(["systemctl", "--version"]).await?;
    ensure!(version.starts_with("systemd 247 "), "Debian 11 has systemd 247: {version}");
    let status = eventually("the agent has reported", Duration::from_mins(3), async || {
        let status: HostPlanStatus =
            plans::status(cluster, host).await.map_err(|error| format!("{error:#}"))?;
        Ok::<_, String>(status)
    })
    .await?;
    ensure!(status.facts.os_image.starts_with("Debian GNU/Linux 11"), "{:?}", status.facts);
    let refused = host.exec(["/usr/bin/refit-agent", "install"]).await;
    ensure!(refused.is_ok(), "systemd 247 is new enough to install: {refused:?}");
    is_small(host).await
}

/// Checks the size of the program, and the memory of the running agent.
async fn is_small(host: &Host) -> anyhow::Result<()> {
    let size = host.exec(["stat", "--format=%s", "/usr/bin/refit-agent"]).await?;
    let size: u64 = size.trim().parse().context("stat prints a number")?;
    let mut readings = Vec::new();
    for _ in 0..STARTS {
        host.exec(["systemctl", "restart", "refit-agent.service"]).await?;
        tokio::time::sleep(IDLE).await;
        let pid = ["systemctl", "show", "refit-agent.service", "--property=MainPID", "--value"];
        let pid = host.exec(pid).await?;
        let status = host.exec(["cat", &format!("/proc/{}/status", pid.trim())]).await?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.trim().strip_suffix("kB"));
        readings.push(resident.context("the agent runs")?.trim().parse::<u64>()?);
    }
    readings.sort_unstable();
    let resident = readings[STARTS / 2];
    print_line(&format!("the agent has {size} bytes and {readings:?} KiB of resident memory"));
    ensure!(size <= PROGRAM_BYTES, "the program has {size} bytes, more than {PROGRAM_BYTES}");
    ensure!(
        resident <= MEMORY_KIBIBYTES,
        "the agent has {resident} KiB of resident memory, more than {MEMORY_KIBIBYTES}"
    );
    Ok(())
}
