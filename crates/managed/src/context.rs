//! State that all controllers of the process share, and the reads of the cluster.

use std::{fmt::Debug, sync::Arc};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, Client, Resource, api::ListParams, core::NamespaceResourceScope};
use refit_openshift::{
    Compat,
    config::{CONFIG_MAP, Config},
    kinds::{CLUSTER_VERSION, ClusterVersion, MachineConfigPool},
    upgrade_config::{NAME, UpgradeConfig},
};
use refit_runtime::{
    Clock, ObjectKey, Store,
    client::{ClientStack, cause},
    queue::Queue,
};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::{Settings, metrics::Metrics, remote::Remote};

/// How many calls to the cluster are in progress at once, apart from watches.
const CALLS: usize = 64;

/// What a controller works with.
pub(crate) struct Context {
    /// Client of the cluster.
    pub(crate) client: Client,
    /// Asks all that is outside of the Kubernetes API.
    pub(crate) remote: Remote,
    /// Source of the current time.
    pub(crate) clock: Clock,
    /// Whether faults of the original are repaired.
    pub(crate) compat: Compat,
    /// Namespace of the UpgradeConfig and of the ConfigMap.
    pub(crate) namespace: String,
    /// What the controllers have in common.
    pub(crate) shared: Arc<Shared>,
}

/// What the controllers have in common. Nothing in it is authoritative; all of it is rebuilt after a restart.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The UpgradeConfigs of the namespace. This and the other caches only wake a controller, which then reads live.
    pub(crate) upgrades: Store<UpgradeConfig>,
    /// The MachineConfigPools.
    pub(crate) pools: Store<MachineConfigPool>,
    /// The Nodes.
    pub(crate) nodes: Store<Node>,
    /// Wakes the controller of the UpgradeConfig.
    pub(crate) upgrade_queue: Queue<ObjectKey>,
    /// Names of nodes that NodeKeeper looks at.
    pub(crate) node_queue: Queue<String>,
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// What the upgrade waits for, as it was logged last.
    pub(crate) waits: std::sync::Mutex<Option<String>>,
    /// Held during a look at the UpgradeConfig, and while the answer of its provider is carried out: what is cancelled must not
    /// commence meanwhile.
    pub(crate) turn: Mutex<()>,
    /// Held while the notice of a delayed drain is sent: drains of several nodes send it once.
    pub(crate) notifying: Mutex<()>,
}

impl Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Context {
    /// The context of one process, or of the leader's part of it: the stack decides which writes may be made.
    pub(crate) fn new(
        stack: ClientStack,
        config: &kube::Config,
        clock: Clock,
        settings: &Settings,
        shared: Arc<Shared>,
    ) -> anyhow::Result<Self> {
        let client = stack.clone().with_concurrency(CALLS).client(config);
        let client = client.context("cannot create the client of the cluster")?;
        Ok(Self {
            remote: Remote::new(stack, client.clone(), clock, settings.compat)?
                .by_routes(settings.routes),
            client,
            clock,
            compat: settings.compat,
            namespace: settings.namespace.clone(),
            shared,
        })
    }

    /// The API of a kind in the operator's namespace.
    pub(crate) fn own<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The API of a kind in all namespaces, or of one without a namespace.
    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Wakes the controller of the UpgradeConfig.
    pub(crate) fn wake_upgrade(&self) {
        self.shared.upgrade_queue.add(ObjectKey::new(&self.namespace, NAME));
    }

    /// Reads the UpgradeConfig.
    pub(crate) async fn upgrade(&self) -> anyhow::Result<Option<UpgradeConfig>> {
        let read = self.own().get_opt(NAME).await;
        read.map_err(unread("the UpgradeConfig"))
    }

    /// Reads the configuration.
    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        let map: Option<ConfigMap> = self
            .own()
            .get_opt(CONFIG_MAP)
            .await
            .map_err(unread(&format!("ConfigMap {CONFIG_MAP}")))?;
        Ok(Config::parse(map.as_ref(), self.compat)?)
    }

    /// Reads the ClusterVersion.
    pub(crate) async fn cluster_version(&self) -> anyhow::Result<ClusterVersion> {
        let read = self.all().get(CLUSTER_VERSION).await;
        read.map_err(unread(&format!("ClusterVersion {CLUSTER_VERSION}")))
    }

    /// Reads the MachineConfigPools.
    pub(crate) async fn pools(&self) -> anyhow::Result<Vec<MachineConfigPool>> {
        list(&self.all(), "the MachineConfigPools").await
    }
}

/// Reads all objects of an API.
pub(crate) async fn list<K>(api: &Api<K>, what: &str) -> anyhow::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let list = api.list(&ListParams::default()).await.map_err(unread(what))?;
    Ok(list.items)
}

/// Turns the error of a read into a sentence.
pub(crate) fn unread(what: &str) -> impl FnOnce(kube::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("cannot read {what}: {}", cause(&error))
}
