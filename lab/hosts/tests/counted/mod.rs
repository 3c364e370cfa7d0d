//! Power cuts at random moments while kubeadm replaces manifests: `cargo xtask hosts test 2 --cuts N --seed S`.
//!
//! In half of the cuts the agent has no time to sync what kubeadm wrote, so that a manifest is empty or missing after the
//! boot, and has to be restored.

use std::{env, time::Duration};

use anyhow::ensure;
use fastrand::Rng;
use lab_hosts::{
    cluster::Cluster,
    cluster_nodes::{forget_orders, order},
    host::Host,
    layout::{COMPONENTS, Layout},
    plans::{self, Order},
    print_line,
};
use refit_kinds::refit::{PlanState, StepType};
use refit_runtime::clock::instant;

use crate::{WAIT_SECONDS, stop_at, stopped_at, whole};

/// Versions of the manifests: before each cut, and that of the kubeadm on the host.
type Versions = (&'static str, &'static str);

/// On a host that was not upgraded.
pub(crate) const FIRST: Versions = ("v1.33.5", "v1.34.2");
/// On a host that was upgraded.
pub(crate) const SECOND: Versions = ("v1.34.2", "v1.35.0");
/// Number of cuts on each control plane if the environment names none.
pub(crate) const USUAL: u32 = 4;
/// After this many cuts, a line of progress is printed.
const PROGRESS: u32 = 10;
/// The longest time between the moment of a cut and the cut, in milliseconds.
const LONGEST_DELAY: u64 = 2000;

/// The number of cuts that the environment wants.
pub(crate) fn number() -> Option<u32> {
    env::var("REFIT_CUTS").ok()?.parse().ok()
}

fn seed() -> u64 {
    env::var("REFIT_CUTS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The part of a number of cuts that one of several hosts takes.
pub(crate) fn share(number: u32, hosts: usize, at: usize) -> u32 {
    (0..number).filter(|cut| *cut as usize % hosts == at).count().try_into().unwrap_or_default()
}

/// Cuts the power of a host this many times, each time in another upgrade.
pub(crate) async fn cuts(
    cluster: &Cluster,
    host: &Host,
    versions: Versions,
    number: u32,
    at: usize,
) -> anyhow::Result<()> {
    // Each host has its own numbers.
    let mut random = Rng::with_seed(seed().wrapping_mul(1000).wrapping_add(at as u64));
    let (mut damaged, begun) = (0, instant());
    for cut in 0..number {
        damaged += u32::from(one(cluster, host, versions, cut, &mut random).await?);
        if (cut + 1).is_multiple_of(PROGRESS) {
            print_line(&format!("{}: {} of {number} cuts survived", host.name, cut + 1));
        }
    }
    let seconds = begun.elapsed().as_secs_f64() / f64::from(number.max(1));
    print_line(&format!(
        "{}: {number} cuts while kubeadm replaced manifests, {damaged} of them damaged one, {seconds:.1} s each",
        host.name
    ));
    Ok(())
}

/// One upgrade with a cut; returns whether a manifest was damaged.
async fn one(
    cluster: &Cluster,
    host: &Host,
    (before, goal): Versions,
    cut: u32,
    random: &mut Rng,
) -> anyhow::Result<bool> {
    let component = COMPONENTS[random.usize(0..COMPONENTS.len())];
    let (swapped, unsynced) = (random.bool(), random.bool());
    let delay = Duration::from_millis(random.u64(0..=LONGEST_DELAY));
    let moment = if swapped { "swapped" } else { "gap" };
    let what = format!(
        "{} cut {cut} at {component}.{moment} + {delay:?}, unsynced: {unsynced}",
        host.name
    );
    let id = format!("cut-{cut}");
    let plan = Order { goal, ..whole(&id) };
    Layout::default().write_manifests(host, before)?;
    if unsynced {
        // Stops the agent, which is the parent of kubeadm.
        let stop = "read -r _ _ _ parent _ < /proc/$STUB_PID/stat; kill -STOP $parent\n";
        order(host, &format!("kubeadm.{component}"), stop)?;
    }
    let point = format!("kubeadm.{component}.{moment}");
    stop_at(host, &point)?;
    plans::order_part(cluster, host, plan, &[StepType::Snapshot, StepType::KubeadmUpgrade]).await?;
    stopped_at(host, &id, &point, WAIT_SECONDS).await?;
    tokio::time::sleep(delay).await;
    host.cut().await?;
    let manifest = host.read(&format!("etc/kubernetes/manifests/{component}.yaml"));
    forget_orders(host)?;
    host.start().await?;
    let status = plans::ended(cluster, host, &id, WAIT_SECONDS).await?;
    ensure!(status.state == PlanState::Succeeded, "{what}: {status:?}");
    host.wait_up().await?;
    for name in COMPONENTS {
        let text = host.read(&format!("etc/kubernetes/manifests/{name}.yaml"));
        ensure!(text.contains(&format!("{name}:{goal}\n")), "{what}: {name} is {text:?}");
    }
    let is_damaged = manifest.is_empty();
    // Otherwise the test would not show that the agent restores anything.
    ensure!(is_damaged || (swapped && !unsynced), "{what}: the cut has damaged nothing");
    Ok(is_damaged)
}
