//! The watches of a command: one per kind, and a notification on every change.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::future::BoxFuture;
use kube::{Api, Resource, api::ListParams, core::NamespaceResourceScope};
use refit_cluster_api::kinds::{KubeadmControlPlane, Machine, MachineDeployment};
use refit_kinds::refit::{NodeUpdate, UpdateGroup};
use refit_runtime::{
    Store,
    store::{everything, reflect},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::AbortHandle};

use crate::client::{Cluster, attempt};

/// The current state of all watched objects. Dropping it stops the watches.
pub(crate) struct Feed {
    pub(super) machines: Store<Machine>,
    pub(super) updates: Store<NodeUpdate>,
    pub(super) groups: Store<UpdateGroup>,
    pub(super) control_planes: Store<KubeadmControlPlane>,
    pub(super) deployments: Store<MachineDeployment>,
    changed: Arc<Notify>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Feed {
    /// Watches one namespace or all of them, and waits for the initial lists. A forbidden read is
    /// an error here; a watch that breaks later is restarted.
    pub(crate) async fn open(cluster: &Cluster, namespace: Option<&str>) -> anyhow::Result<Self> {
        let mut feed = Self {
            machines: Store::default(),
            updates: Store::default(),
            groups: Store::default(),
            control_planes: Store::default(),
            deployments: Store::default(),
            changed: Arc::new(Notify::new()),
            tasks: Vec::new(),
        };
        probe::<Machine>(cluster, namespace).await?;
        probe::<MachineDeployment>(cluster, namespace).await?;
        probe::<NodeUpdate>(cluster, namespace).await?;
        probe::<UpdateGroup>(cluster, namespace).await?;
        feed.start(cluster.api(namespace), feed.machines.clone());
        feed.start(cluster.api(namespace), feed.deployments.clone());
        feed.start(cluster.api(namespace), feed.updates.clone());
        feed.start(cluster.api(namespace), feed.groups.clone());
        // Without the kubeadm provider the kind does not exist, so there is nothing to watch.
        if has_kind::<KubeadmControlPlane>(cluster, namespace).await? {
            feed.start(cluster.api(namespace), feed.control_planes.clone());
        } else {
            feed.control_planes.mark_ready();
        }
        feed.ready().await;
        Ok(feed)
    }

    /// Waits for a change since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn ready(&self) {
        self.machines.ready().await;
        self.deployments.ready().await;
        self.updates.ready().await;
        self.groups.ready().await;
        self.control_planes.ready().await;
    }

    fn start<K>(&mut self, api: Api<K>, store: Store<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
    {
        let changed = self.changed.clone();
        let watch: BoxFuture<'static, ()> = Box::pin(async move {
            reflect(api, everything(), store, |_| changed.notify_one()).await;
        });
        self.tasks.push(tokio::spawn(watch).abort_handle());
    }
}

/// Reads one object of a kind, to report a missing permission immediately.
async fn probe<K>(cluster: &Cluster, namespace: Option<&str>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api: Api<K> = cluster.api(namespace);
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(cluster.explain(error, &attempt::<K>("list"))),
    }
}

/// Reports whether the API server knows the kind.
async fn has_kind<K>(cluster: &Cluster, namespace: Option<&str>) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api: Api<K> = cluster.api(namespace);
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(cluster.explain(error, &attempt::<K>("list"))),
    }
}
