//! The scenarios of sweeps: the demo with one NodeUpdate created by hand, and others.

use std::time::Duration;

use jiff::SignedDuration;
use refit_controller::{Canonical, Settings};
use refit_kinds::refit::{CapacityMethod, Phase, Until};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    SweepError, configuration, holds, plans, snaps,
    updaters::{self, MemoryUpdater},
};
use crate::world::{
    TimedOut, World, WorldOptions, by_hand,
    status::{is_worker, phase},
};

/// Time limit for a cluster to come up.
const COMES_UP: Duration = Duration::from_hours(1);
/// Time limit for an upgrade, including kills.
const UPGRADE: SignedDuration = SignedDuration::from_hours(3);
/// Interval between two checks.
const LOOK: Duration = Duration::from_secs(2);
/// How long nothing may change before a run counts as finished.
const SETTLE: Duration = Duration::from_secs(40);

/// An upgrade of a whole cluster. While the first worker is being updated, the simulated user
/// requests the update of another one by hand: only the slot delays that update.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each adds something of its own")]
pub struct Scenario {
    /// Target version.
    pub version: String,
    /// Whether the simulated user requests one update by hand.
    pub by_hand: bool,
    /// Whether there are two replicas of the controller.
    #[serde(default)]
    pub two_controllers: bool,
    /// Whether Updaters change infrastructure machines along with the version.
    #[serde(default)]
    pub updaters: bool,
    /// Whether a provider changes memory along with the version.
    #[serde(default)]
    pub provider: bool,
    /// Whether UpgradeTasks upgrade the machines instead of Cluster API.
    #[serde(default)]
    pub tasks: bool,
    /// Whether a ClusterUpgrade upgrades the whole cluster.
    #[serde(default)]
    pub managed: bool,
    /// How the ClusterUpgrade adds extra Machines, if it does.
    #[serde(default)]
    pub extra: Option<CapacityMethod>,
    /// Whether a ClusterUpgradePlan upgrades a fleet.
    #[serde(default)]
    pub plans: bool,
    /// Whether annotations of the owners request another channel for the snaps of machines with k8sd.
    #[serde(default)]
    pub snaps: bool,
    /// Whether a namespace holds replacements.
    #[serde(default)]
    pub holds: bool,
    /// Whether KubeadmConfigs change, and no version.
    #[serde(default)]
    pub configuration: bool,
}

impl Scenario {
    /// The demo scenario.
    pub fn demo() -> Self {
        Self {
            version: "v1.35.0".to_owned(),
            by_hand: true,
            two_controllers: false,
            updaters: false,
            provider: false,
            tasks: false,
            managed: false,
            extra: None,
            plans: false,
            snaps: false,
            holds: false,
            configuration: false,
        }
    }

    /// The demo with two replicas of the controller.
    pub fn replicas() -> Self {
        Self { two_controllers: true, ..Self::demo() }
    }

    /// Three updaters in one update of each machine: `kubeadm`, then the external one of
    /// `examples/hook-updater` for memory, then one for processors.
    pub fn updaters() -> Self {
        Self { updaters: true, by_hand: false, ..Self::demo() }
    }

    /// The agent and a provider in one update of each machine: `kubeadm`, and `examples/provider` for memory.
    pub fn providers() -> Self {
        Self { provider: true, by_hand: false, ..Self::demo() }
    }

    /// An UpgradeTask via Machines for the control plane, and one for the workers.
    pub fn tasks() -> Self {
        Self { tasks: true, by_hand: false, ..Self::demo() }
    }

    /// A ClusterUpgrade of the whole cluster.
    pub fn managed() -> Self {
        Self { managed: true, by_hand: false, ..Self::demo() }
    }

    /// A ClusterUpgrade of the whole cluster, which has extra Machines meanwhile.
    pub fn extra(method: CapacityMethod) -> Self {
        Self { extra: Some(method), ..Self::managed() }
    }

    /// A ClusterUpgradePlan of the fleet of [`plan_manifests`](super::plan_manifests), with receivers of notifications.
    pub fn plans() -> Self {
        Self { plans: true, by_hand: false, ..Self::demo() }
    }

    /// Annotations of a control plane with k8sd and of its workers, at once.
    pub fn snaps() -> Self {
        Self { snaps: true, by_hand: false, ..Self::demo() }
    }

    /// A namespace of [`hold_manifests`](super::hold_manifests) that holds replacements.
    pub fn holds() -> Self {
        Self { holds: true, by_hand: false, ..Self::demo() }
    }

    /// Changed KubeadmConfigs of the control plane and of the workers, at once.
    pub fn configuration() -> Self {
        Self { configuration: true, by_hand: false, ..Self::demo() }
    }

    /// The default world of this scenario.
    pub(crate) fn options(&self, manifests: Vec<Value>) -> WorldOptions {
        WorldOptions {
            two_controllers: self.two_controllers,
            updater: self.updaters,
            provider: self.provider,
            receivers: self.plans,
            settings: Settings {
                canonical: if self.snaps { Canonical::ControllersAbsent } else { Canonical::Off },
                ..Settings::default()
            },
            ..WorldOptions::new(manifests)
        }
    }

    /// Waits until the cluster is up.
    pub async fn prepare(&self, world: &World) -> Result<(), SweepError> {
        world.until("every machine is available", COMES_UP, World::is_ready).await?;
        if self.updaters {
            updaters::prepare(world, MemoryUpdater::Hook).await?;
        }
        if self.provider {
            updaters::prepare(world, MemoryUpdater::Provider).await?;
        }
        if self.plans {
            plans::prepare(world).await?;
        }
        if self.configuration {
            configuration::prepare(world).await?;
        }
        world.pass(SETTLE).await;
        Ok(())
    }

    /// Requests the upgrade.
    pub async fn start(&self, world: &World) -> Result<(), SweepError> {
        if self.updaters || self.provider {
            return updaters::start(world, &self.version).await;
        }
        if self.tasks {
            return Ok(world.upgrade_by_tasks(&self.version).await?);
        }
        if self.managed {
            return Ok(world.upgrade_cluster(&self.version, self.extra).await?);
        }
        if self.plans {
            return plans::start(world, &self.version).await;
        }
        if self.snaps {
            return snaps::start(world, &self.version).await;
        }
        if self.holds {
            return holds::start(world).await;
        }
        if self.configuration {
            return configuration::start(world).await;
        }
        Ok(world.upgrade(&self.version).await?)
    }

    /// Acts as the user until everything is upgraded and quiet. It reads only the stored state, so
    /// it can continue in a world that was restored midway.
    pub async fn finish(&self, world: &World) -> Result<(), TimedOut> {
        let end = world.now() + UPGRADE;
        loop {
            let asked = !self.by_hand || self.ask_by_hand(world).await;
            if self.tasks
                && let Err(error) = world.upgrade_by_tasks(&self.version).await
            {
                tracing::debug!("failed to create an UpgradeTask, retrying: {error}");
            }
            if self.managed
                && let Err(error) = world.upgrade_cluster(&self.version, self.extra).await
            {
                tracing::debug!("failed to create the ClusterUpgrade, retrying: {error}");
            }
            if self.plans
                && let Err(error) = plans::repair(world).await
            {
                tracing::debug!("failed to repair a host, retrying: {error}");
            }
            if self.holds {
                match holds::go_on(world).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => tracing::debug!("failed to change an object, retrying: {error}"),
                }
            } else if asked && self.is_done(world) {
                world.pass(SETTLE).await;
                if self.is_done(world) {
                    return Ok(());
                }
            }
            if world.now() >= end {
                return Err(TimedOut {
                    what: "every machine is upgraded".to_owned(),
                    within: Duration::try_from(UPGRADE).unwrap_or_default(),
                });
            }
            world.pass(LOOK).await;
        }
    }

    fn is_done(&self, world: &World) -> bool {
        if self.snaps {
            return world.is_ready()
                && world.is_quiet()
                && snaps::are_refreshed(world, &self.version)
                && world.tasks_are_complete();
        }
        if self.configuration {
            return configuration::is_applied(world);
        }
        world.is_updated(&self.version)
            && (!self.tasks || world.tasks_are_complete())
            && (!(self.managed || self.plans) || world.cluster_upgrades_are_complete())
            && (!self.plans || plans::is_complete(world))
    }

    /// Creates the NodeUpdate by hand when it is due; returns whether it exists.
    async fn ask_by_hand(&self, world: &World) -> bool {
        let updates = world.node_updates();
        if updates.iter().any(|update| update["spec"]["origin"] == "Task") {
            return true;
        }
        let machines = world.machines();
        let has = |machine: &Value, wanted: fn(&Value) -> bool| {
            updates.iter().any(|update| {
                update["spec"]["machineRef"]["uid"] == machine["metadata"]["uid"] && wanted(update)
            })
        };
        let mut workers = machines.iter().filter(|machine| is_worker(machine));
        if !workers.clone().any(|machine| has(machine, under_way)) {
            return false;
        }
        let Some(machine) = workers.rfind(|machine| !has(machine, |_| true)) else {
            return false;
        };
        match by_hand::create(world, machine, &self.version, Until::Disrupt).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!("failed to create the manual NodeUpdate, retrying: {error}");
                false
            }
        }
    }
}

/// Whether a NodeUpdate is in one of the phases between start and end of the work.
fn under_way(update: &Value) -> bool {
    matches!(
        phase(update),
        Phase::Upgrading | Phase::Draining | Phase::Disrupting | Phase::Verifying
    )
}
