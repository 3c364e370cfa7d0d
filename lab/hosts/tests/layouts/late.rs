//! A repository that is away after the packages were fetched, and a container runtime that needs longer than
//! systemd's usual timeout to start after the reboot.

use std::time::Duration;

use anyhow::ensure;
use lab_hosts::{
    cluster::Cluster,
    cluster_nodes::order,
    eventually,
    host::Host,
    packages::Mirror,
    plans::{self, Order},
};
use refit_core::node::Reboot;
use refit_kinds::refit::{Gate, Role, StepType};

use crate::{GOAL, WAIT_SECONDS, carried_out};

/// How often the kubelet ends at least while the runtime starts. It takes three seconds each time.
const FEWEST_RESTARTS: u32 = 10;

pub(crate) async fn mirror_and_runtime(
    cluster: &Cluster,
    host: &Host,
    mirror: &Mirror,
) -> anyhow::Result<()> {
    let plan = Order {
        id: "late",
        role: Role::Worker,
        goal: GOAL,
        reboot: Reboot::Always,
        gate: Gate::Stage,
    };
    plans::order(cluster, host, plan).await?;
    let ask = async || {
        let records = plans::records(host);
        let staged = records.iter().any(|record| record == "StepFinished stage");
        staged.then_some(()).ok_or_else(|| records.join(", "))
    };
    eventually("the packages are fetched", Duration::from_secs(WAIT_SECONDS), ask).await?;

    mirror.switch_off(&host.name);
    let url = Mirror::url(&host.name);
    let get = ["curl", "--silent", "--show-error", "--fail", &url];
    let away = host.exec(get).await.map_err(|error| error.to_string());
    ensure!(away.as_ref().is_err_and(|error| error.contains("503")), "{away:?}");
    let patience = "[Service]\nTimeoutStartSec=infinity\n";
    host.write("etc/systemd/system/containerd.service.d/patience.conf", patience)?;
    order(host, "containerd.start", "sleep 95\n")?;

    let status = carried_out(cluster, host, Order { gate: Gate::Disrupt, ..plan }).await?;
    ensure!(host.boots() == 2, "{} booted {} times", host.name, host.boots());
    ensure!(host.has("var/lib/stub/containerd.taken"), "the runtime was slow");
    let restarts = ["systemctl", "show", "kubelet.service", "--property=NRestarts", "--value"];
    let restarts: u32 = host.exec(restarts).await?.trim().parse()?;
    ensure!(restarts >= FEWEST_RESTARTS, "the kubelet was restarted only {restarts} times");
    let verify = plans::step(&status, StepType::Verify)?;
    ensure!(verify.attempt == 1, "{verify:?}");
    Ok(())
}
