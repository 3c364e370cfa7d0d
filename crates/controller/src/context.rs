//! State that all controllers and hooks of the process share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Client, ResourceExt as _};
use refit_cluster_api::kinds::{
    Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineDrainRule, MachineSet,
};
use refit_core::change::asked::opted_in;
use refit_kinds::{
    keys,
    refit::{
        ClusterUpgrade, ClusterUpgradePlan, HostPlan, HostSettings, NodeDisruptionPolicy,
        NodeUpdate, ReplacementHold, UpdateGroup, Updater, UpgradeTask,
    },
};
use refit_runtime::{
    Clock, ObjectKey, Store,
    client::{ClientStack, ServedVersions},
    events::Recorder,
    foreign::ForeignKinds,
    lease::Leadership,
    queue::Queue,
    workload::Workloads,
};

use crate::{
    Settings,
    alertmanager::Alertmanager,
    arrivals::Arrivals,
    control_planes::ForeignPlanes,
    gates::{Gates, Prometheus},
    k8sd::K8sd,
    metrics::Metrics,
    notifications::{self, Receivers},
    owner::OwnerId,
    providers::WatchedKinds,
    replacement_hold::{HoldKey, OwnHolds},
    served,
    updater_servers::UpdaterServers,
    version_graph::VersionGraphs,
    workload_watch::WorkloadIndex,
};

/// Deadline of a read from a workload cluster. A write has the usual one: webhooks of the cluster may
/// delay it, and only the other updates of the same cluster wait for it.
const WORKLOAD_READ_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum size of a response of a workload cluster, or of an event of a watch: a page of 100 Nodes
/// that each list 50 images has some 6 MiB.
const WORKLOAD_MAX_ANSWER: usize = 32 << 20;

/// The process's shared state: clients, caches and queues. Nothing in it is authoritative; all of
/// it is rebuilt from API objects after a restart.
pub(crate) struct Context {
    /// Client of the management cluster.
    pub(crate) client: Client,
    /// Which versions of Cluster API's kinds the management cluster serves.
    pub(crate) served: ServedVersions,
    /// Source of the current time.
    pub(crate) clock: Clock,
    /// Clients of workload clusters.
    pub(crate) workloads: Workloads,
    /// Caches of the workload clusters.
    pub(crate) workload_index: Arc<WorkloadIndex>,
    /// When the reports in the management cluster's HostPlans arrived.
    pub(crate) arrivals: Arrivals,
    /// Writes events.
    pub(crate) recorder: Recorder,
    /// Caches of the management cluster.
    pub(crate) stores: Stores,
    /// Keys to reconcile.
    pub(crate) queues: Queues,
    /// The last writes of ReplacementHolds.
    pub(crate) own_holds: OwnHolds,
    #[cfg(feature = "sabotage")]
    pub(crate) sabotage: Arc<crate::sabotage::Sabotage>,
    /// Reads infrastructure machines and bootstrap configs.
    pub(crate) foreign: ForeignKinds,
    /// The objects of providers.
    pub(crate) providers: Arc<WatchedKinds>,
    /// Checks the health gates of groups.
    pub(crate) gates: Arc<Gates>,
    /// Creates silences.
    pub(crate) alertmanager: Arc<Alertmanager>,
    /// The receivers of notifications.
    pub(crate) receivers: Receivers,
    /// Reads the version graph.
    pub(crate) version_graphs: Arc<VersionGraphs>,
    /// Calls the servers of Updaters.
    pub(crate) updater_servers: UpdaterServers,
    /// Calls k8sd on Nodes.
    pub(crate) k8sd: K8sd,
    /// Settings of the operator.
    pub(crate) settings: Settings,
    /// Metrics of the process.
    pub(crate) metrics: Arc<Metrics>,
    /// Whether this process does the leader's work.
    pub(crate) leadership: Leadership,
    /// Whether the process is shutting down.
    ending: Arc<AtomicBool>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("stores", &self.stores).finish_non_exhaustive()
    }
}

impl Context {
    /// The context of one process. Its stores are empty until the watches run.
    pub(crate) fn new(
        client: Client,
        stack: ClientStack,
        clock: Clock,
        settings: Settings,
    ) -> Self {
        let prometheus = Prometheus::new(stack.clone(), settings.prometheus.as_ref());
        Self {
            gates: Arc::new(Gates::new(prometheus)),
            alertmanager: Arc::new(Alertmanager::new(&stack, clock, &settings)),
            receivers: Receivers::new(&stack, &settings),
            version_graphs: Arc::new(VersionGraphs::new(&stack, settings.version_graph.as_ref())),
            updater_servers: UpdaterServers::new(stack.clone(), clock),
            foreign: ForeignKinds::default(),
            providers: Arc::default(),
            k8sd: K8sd::new(stack.clone()),
            workloads: workloads(&client, stack, clock),
            workload_index: Arc::default(),
            arrivals: Arrivals::default(),
            recorder: Recorder::new(client.clone(), clock, "refit-controller"),
            stores: Stores::default(),
            queues: Queues::default(),
            own_holds: OwnHolds::default(),
            metrics: Arc::new(Metrics::new()),
            served: ServedVersions::new(served::KINDS),
            client,
            clock,
            #[cfg(feature = "sabotage")]
            sabotage: Arc::default(),
            settings,
            leadership: Leadership::alone(clock),
            ending: Arc::default(),
        }
    }

    /// Sets what is known of the versions, which the client shares.
    pub(crate) fn with_served(mut self, served: ServedVersions) -> Self {
        self.served = served;
        self
    }

    /// Sets the leadership of a replica that must win the Lease first.
    pub(crate) fn with_leadership(mut self, leadership: Leadership) -> Self {
        self.leadership = leadership;
        self
    }

    #[cfg(feature = "sabotage")]
    pub(crate) fn with_sabotage(mut self, sabotage: Arc<crate::sabotage::Sabotage>) -> Self {
        self.sabotage = sabotage;
        self
    }

    /// The same caches and queues with other clients, for the leader's work: its writes are fenced,
    /// those of the hooks are not.
    pub(crate) fn with_clients(&self, client: Client, stack: ClientStack) -> Self {
        Self {
            gates: self.gates.clone(),
            alertmanager: Arc::new(Alertmanager::new(&stack, self.clock, &self.settings)),
            receivers: Receivers::new(&stack, &self.settings),
            version_graphs: self.version_graphs.clone(),
            updater_servers: UpdaterServers::new(stack.clone(), self.clock),
            foreign: self.foreign.clone(),
            providers: self.providers.clone(),
            k8sd: K8sd::new(stack.clone()),
            workloads: workloads(&client, stack, self.clock),
            workload_index: self.workload_index.clone(),
            arrivals: self.arrivals.clone(),
            recorder: Recorder::new(client.clone(), self.clock, "refit-controller"),
            stores: self.stores.clone(),
            queues: self.queues.clone(),
            own_holds: self.own_holds.clone(),
            metrics: self.metrics.clone(),
            served: self.served.clone(),
            client,
            clock: self.clock,
            #[cfg(feature = "sabotage")]
            sabotage: self.sabotage.clone(),
            settings: self.settings.clone(),
            leadership: self.leadership.clone(),
            ending: self.ending.clone(),
        }
    }

    /// Whether a namespace opted in: Refit acts in no other one.
    pub(crate) fn opted_in(&self, namespace: &str) -> bool {
        let found = self.stores.namespaces.get(&ObjectKey::new("", namespace));
        found.is_some_and(|namespace| opted_in(namespace.labels()))
    }

    /// Whether the API server refuses what would replace Machines of a namespace.
    pub(crate) fn holds_replacements(&self, namespace: &str) -> bool {
        let found = self.stores.namespaces.get(&ObjectKey::new("", namespace));
        let label =
            |namespace: &Namespace| namespace.labels().get(keys::HOLD_REPLACEMENTS).cloned();
        found.is_some_and(|namespace| label(&namespace).as_deref() == Some(keys::OPTED_IN))
    }

    /// Marks the process as shutting down: it is no longer ready.
    pub(crate) fn begin_to_end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the process is shutting down.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// Clients for API servers that others administer.
fn workloads(management: &Client, stack: ClientStack, clock: Clock) -> Workloads {
    let stack =
        stack.with_read_deadline(WORKLOAD_READ_DEADLINE).with_max_answer(WORKLOAD_MAX_ANSWER);
    Workloads::new(management.clone(), stack, clock)
}

/// Caches of the management cluster, one store per kind, with the indexes of `indexes`.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) machines: Store<Machine>,
    pub(crate) machine_sets: Store<MachineSet>,
    pub(crate) machine_deployments: Store<MachineDeployment>,
    pub(crate) control_planes: Store<KubeadmControlPlane>,
    /// Control planes of other providers.
    pub(crate) foreign_planes: ForeignPlanes,
    pub(crate) clusters: Store<Cluster>,
    pub(crate) namespaces: Store<Namespace>,
    pub(crate) node_updates: Store<NodeUpdate>,
    pub(crate) update_groups: Store<UpdateGroup>,
    pub(crate) host_settings: Store<HostSettings>,
    pub(crate) disruption_policies: Store<NodeDisruptionPolicy>,
    pub(crate) replacement_holds: Store<ReplacementHold>,
    pub(crate) updaters: Store<Updater>,
    pub(crate) upgrade_tasks: Store<UpgradeTask>,
    pub(crate) cluster_upgrades: Store<ClusterUpgrade>,
    pub(crate) cluster_upgrade_plans: Store<ClusterUpgradePlan>,
    /// MachineDrainRules, for drains. Startup does not wait for their first list: an older Cluster
    /// API lacks the kind.
    pub(crate) drain_rules: Store<MachineDrainRule>,
    /// HostPlans in the management cluster, if they are stored there. The views of all workload
    /// clusters share them, and wait for them.
    pub(crate) host_plans: Store<HostPlan>,
}

impl Stores {
    /// Whether the first list of every kind is complete.
    pub(crate) fn synced(&self) -> bool {
        self.machines.is_ready()
            && self.machine_sets.is_ready()
            && self.machine_deployments.is_ready()
            && self.control_planes.is_ready()
            && self.clusters.is_ready()
            && self.namespaces.is_ready()
            && self.node_updates.is_ready()
            && self.update_groups.is_ready()
            && self.host_settings.is_ready()
            && self.disruption_policies.is_ready()
            && self.replacement_holds.is_ready()
            && self.updaters.is_ready()
            && self.upgrade_tasks.is_ready()
            && self.cluster_upgrades.is_ready()
            && self.cluster_upgrade_plans.is_ready()
    }

    /// Waits until the first list of every kind is complete.
    pub(crate) async fn wait_synced(&self) {
        self.machines.ready().await;
        self.machine_sets.ready().await;
        self.machine_deployments.ready().await;
        self.control_planes.ready().await;
        self.clusters.ready().await;
        self.namespaces.ready().await;
        self.node_updates.ready().await;
        self.update_groups.ready().await;
        self.host_settings.ready().await;
        self.disruption_policies.ready().await;
        self.replacement_holds.ready().await;
        self.updaters.ready().await;
        self.upgrade_tasks.ready().await;
        self.cluster_upgrades.ready().await;
        self.cluster_upgrade_plans.ready().await;
    }
}

/// Keys to reconcile, one queue per controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    /// NodeUpdates.
    pub(crate) node_updates: Queue<ObjectKey>,
    /// UpdateGroups: the key of the UpdateGroup, whether it exists yet or not.
    pub(crate) groups: Queue<ObjectKey>,
    /// Updaters.
    pub(crate) updaters: Queue<ObjectKey>,
    /// UpgradeTasks.
    pub(crate) upgrade_tasks: Queue<ObjectKey>,
    /// ClusterUpgrades, and so their Clusters.
    pub(crate) cluster_upgrades: Queue<ObjectKey>,
    /// Owners whose Machines are held.
    pub(crate) replacement_holds: Queue<HoldKey>,
    /// Control planes whose only Machine may be replaced.
    pub(crate) only_machines: Queue<ObjectKey>,
    /// ClusterUpgradePlans.
    pub(crate) cluster_upgrade_plans: Queue<ObjectKey>,
    /// ClusterUpgrades and ClusterUpgradePlans with notifications.
    pub(crate) notifications: notifications::Queues,
    /// Machines with annotations that ask for an upgrade, or show one.
    pub(crate) annotations: Queue<ObjectKey>,
    /// Machines with annotations about their certificates.
    pub(crate) certificates: Queue<ObjectKey>,
    /// Clusters with Machines whose certificates have no known expiry.
    pub(crate) expiries: Queue<ObjectKey>,
    /// Owners of Machines with annotations that ask for an upgrade, or show one.
    pub(crate) owner_annotations: Queue<OwnerId>,
    /// UpdateGroups, which exist or not, whose policy starts updates for changed HostSettings.
    pub(crate) changed_settings: Queue<ObjectKey>,
}
