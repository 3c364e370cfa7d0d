//! State shared by all controllers of one process: clients, caches, queues.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Client, Resource, ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::kinds::{
    Cluster, ContractRef, ExtensionConfig, KubeadmControlPlane, Machine, MachineDeployment,
    MachineHealthCheck, MachineSet,
};
use refit_kinds::keys;
use refit_runtime::{
    Clock, ObjectKey, client::ClientStack, events::Recorder, queue::Queue, store::Index,
    workload::Workloads,
};
use tokio::sync::mpsc;

use crate::{
    cache::Cache,
    error::Error,
    hooks::{CallCache, DecisionCache, HookClient},
    live::{Bare, Live, Typed},
    machine_set::SyncedMachines,
    workload::Reached,
};

/// A future that runs as long as the process.
pub(crate) type Task = BoxFuture<'static, ()>;

/// One queue per controller.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) deployments: Queue<ObjectKey>,
    pub(crate) sets: Queue<ObjectKey>,
    pub(crate) control_planes: Queue<ObjectKey>,
    pub(crate) machines: Queue<ObjectKey>,
    pub(crate) extensions: Queue<ObjectKey>,
    pub(crate) health_checks: Queue<ObjectKey>,
}

/// State shared by all controllers of one process.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) workloads: Workloads,
    pub(crate) recorder: Recorder,
    pub(crate) hooks: HookClient,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) deployments: Cache<MachineDeployment>,
    pub(crate) sets: Cache<MachineSet>,
    pub(crate) machines: Cache<Machine>,
    pub(crate) control_planes: Cache<KubeadmControlPlane>,
    pub(crate) extensions: Cache<ExtensionConfig>,
    pub(crate) health_checks: Cache<MachineHealthCheck>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) queues: Queues,
    /// Infrastructure machines and bootstrap configs by group and kind, watched on first use.
    providers: Mutex<BTreeMap<(String, String), Cache<Bare>>>,
    /// API resources of the providers' kinds that were resolved so far.
    pub(crate) resources: Mutex<BTreeMap<(String, String), ApiResource>>,
    /// CA Secrets named by ExtensionConfigs, each with its own watch.
    pub(crate) ca_secrets: Mutex<BTreeMap<ObjectKey, Cache<Secret>>>,
    pub(crate) reached: Mutex<BTreeMap<ObjectKey, Arc<Reached>>>,
    /// Cached results of CanUpdateMachineSet.
    pub(crate) decisions: Mutex<DecisionCache>,
    /// When UpdateMachine may be called next.
    pub(crate) calls: Mutex<CallCache>,
    /// Number of changes so far of provider objects.
    pub(crate) provided_changes: AtomicU64,
    /// The Machines that are as they should be, by the uid of their MachineSet.
    pub(crate) synced: Mutex<BTreeMap<String, SyncedMachines>>,
    spawner: mpsc::UnboundedSender<Task>,
}

fn cache<K>() -> Cache<K>
where
    K: Typed + Resource<DynamicType = ()>,
{
    Cache::new(ApiResource::erase::<K>(&()))
}

/// Machines by the uid of the owner that controls them.
const MACHINES_BY_OWNER: Index<Live<Machine>> = Index {
    name: "owner",
    keys: |machine| {
        let owner = controller_uid(machine);
        owner.map(|uid| ObjectKey::new(namespace_of(machine), uid)).into_iter().collect()
    },
};

impl Context {
    /// An empty context. The caller must drive the futures sent to `spawner`.
    pub(crate) fn new(
        client: Client,
        stack: &ClientStack,
        clock: Clock,
        hooks: HookClient,
        spawner: mpsc::UnboundedSender<Task>,
    ) -> Self {
        Self {
            workloads: Workloads::new(client.clone(), stack.clone(), clock),
            recorder: Recorder::new(client.clone(), clock, "refit-capi"),
            hooks,
            client,
            clock,
            clusters: cache(),
            deployments: cache(),
            sets: cache(),
            machines: Cache::indexed(ApiResource::erase::<Machine>(&()), &[MACHINES_BY_OWNER]),
            control_planes: cache(),
            extensions: cache(),
            health_checks: cache(),
            namespaces: cache(),
            queues: Queues::default(),
            providers: Mutex::default(),
            resources: Mutex::default(),
            ca_secrets: Mutex::default(),
            reached: Mutex::default(),
            decisions: Mutex::default(),
            calls: Mutex::default(),
            provided_changes: AtomicU64::default(),
            synced: Mutex::default(),
            spawner,
        }
    }

    /// Runs a future next to the controllers as long as the process lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // The receiver is dropped only with the whole process.
        let _ = self.spawner.send(Box::pin(task));
    }

    /// The current time, in whole seconds.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now_seconds()
    }

    /// The Cluster of an object in `namespace`.
    pub(crate) fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<Live<Cluster>>> {
        self.clusters.get(&ObjectKey::new(namespace, name))
    }

    /// The Machines that the owner with this uid controls, ordered by name.
    pub(crate) fn machines_of(&self, namespace: &str, owner_uid: &str) -> Vec<Arc<Live<Machine>>> {
        self.machines.listed(&MACHINES_BY_OWNER, &ObjectKey::new(namespace, owner_uid))
    }

    /// The cache of a provider's kind, with its first list complete; the first call starts the
    /// watch.
    pub(crate) async fn provider(
        self: &Arc<Self>,
        reference: &ContractRef,
    ) -> Result<Cache<Bare>, Error> {
        let kind = (reference.api_group.clone(), reference.kind.clone());
        let known = lock(&self.providers).get(&kind).cloned();
        let cache = if let Some(cache) = known {
            cache
        } else {
            let resource = crate::contract::resolve(self, reference).await?;
            let mut providers = lock(&self.providers);
            // Another reconcile may have started the watch meanwhile.
            if let Some(cache) = providers.get(&kind) {
                cache.clone()
            } else {
                let cache = Cache::new(resource);
                providers.insert(kind, cache.clone());
                crate::wiring::watch_provider(self, &cache);
                cache
            }
        };
        cache.ready().await;
        Ok(cache)
    }

    /// The provider object named by `reference`, with the cache of its kind.
    pub(crate) async fn provided(
        self: &Arc<Self>,
        namespace: &str,
        reference: &ContractRef,
    ) -> Result<(Cache<Bare>, Option<Arc<Live<Bare>>>), Error> {
        let cache = self.provider(reference).await?;
        let object = cache.get(&ObjectKey::new(namespace, &reference.name));
        Ok((cache, object))
    }
}

/// Locks and ignores poisoning: each change is a single insert or remove, so the map stays
/// consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The uid of the owner that controls an object.
pub(crate) fn controller_uid(object: &impl kube::ResourceExt) -> Option<&str> {
    let owners = object.meta().owner_references.as_deref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(&owner.uid)
}

/// Kind and name of the owner that controls an object.
pub(crate) fn controller_of(object: &impl kube::ResourceExt) -> Option<(&str, &str)> {
    let owners = object.meta().owner_references.as_deref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some((&owner.kind, &owner.name))
}

/// Whether Cluster API's controllers skip an object: its Cluster or the object itself is paused.
pub(crate) fn is_paused(cluster: &Cluster, object: &impl kube::ResourceExt) -> bool {
    cluster.spec.paused == Some(true) || object.annotations().contains_key(keys::PAUSED)
}

/// Namespace of an object, empty if it is cluster-scoped.
pub(crate) fn namespace_of<K: Typed>(object: &Live<K>) -> String {
    object.namespace().unwrap_or_default()
}
