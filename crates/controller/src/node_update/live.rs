//! Live reads before a write that disturbs a machine, or that decides what runs as root on it.
//!
//! The caches may be behind: after an outage, through a half-open stream, or for one kind alone.
//! `refit_core::node::requires_live_read` and `requires_live_settings` list which writes must not
//! rest on them; `requires_drain_ahead` and `requires_live_configuration`, which need a look at what no cache has.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use refit_cluster_api::kinds::{Machine, MachineDeployment, MachineSet};
use refit_core::node::{
    ConfigurationValues, Decision, Snapshot, requires_drain_ahead, requires_live_configuration,
    requires_live_read, requires_live_settings,
};
use refit_kinds::{
    keys,
    refit::{HostSettings, NodeUpdate},
};
use refit_runtime::{ObjectKey, Store, apply, foreign::ForeignObject, store};
use serde::de::DeserializeOwned;

use super::look::{Look, WorkloadCluster};
use crate::{
    PlanLocation,
    api_error::ReadError,
    context::Context,
    groups::group_of,
    host_plan::{cluster_key, plan_key},
    owner::LiveOwner,
    workload_objects::{NODES, STATIC_PODS},
    workload_watch::{CONTROL_PLANE_PODS, control_plane_pods, nodes},
};

/// The version of KubeadmConfigs whose fields are known.
const KUBEADM_CONFIG_VERSION: &str = "v1beta2";

/// What must be read live before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a read of its own")]
pub(super) struct Needs {
    /// Everything that a disturbing write rests on.
    machines: bool,
    /// The HostSettings of the namespace.
    settings: bool,
    /// The KubeadmConfig of the Machine.
    pub(super) configuration: bool,
    /// What the drain of the node would find.
    pub(super) drain_ahead: bool,
}

impl Needs {
    pub(super) fn of(ctx: &Context, look: &Look, decision: &Decision) -> Self {
        let machines = requires_live_read(&look.snapshot, decision);
        #[cfg(feature = "sabotage")]
        let machines = machines && !ctx.sabotage.trusts_caches();
        Self {
            machines,
            settings: requires_live_settings(&look.snapshot, decision),
            configuration: requires_live_configuration(&look.snapshot, decision),
            drain_ahead: requires_drain_ahead(&look.snapshot, decision, ctx.clock.now()),
        }
    }

    /// Whether more is needed than was read.
    pub(super) fn exceeds(self, read: Self) -> bool {
        self.machines && !read.machines
            || self.settings && !read.settings
            || self.configuration && !read.configuration
            || self.drain_ahead && !read.drain_ahead
    }
}

/// Brings the caches up to the present with what a write needs.
pub(super) async fn read(ctx: &Context, look: &Look, needs: Needs) -> Result<(), ReadError> {
    if needs.machines {
        read_machines(ctx, look).await?;
    }
    if needs.settings {
        read_settings(ctx, look).await?;
    }
    Ok(())
}

/// Reads the HostSettings of the namespace.
async fn read_settings(ctx: &Context, look: &Look) -> Result<(), ReadError> {
    let namespace = look.snapshot.update.namespace().unwrap_or_default();
    let api: Api<HostSettings> = Api::namespaced(ctx.client.clone(), &namespace);
    let covers = |known: &HostSettings| known.metadata.namespace.as_ref() == Some(&namespace);
    let read = store::read_now(api, "", None, &ctx.stores.host_settings, covers);
    // HostSettings that cannot be read are a refusal of their own.
    read.await.map(drop).map_err(ReadError::management("the list of HostSettings"))
}

/// Reads the KubeadmConfig of the Machine.
pub(super) async fn read_configuration(
    ctx: &Context,
    look: &Look,
) -> Result<ConfigurationValues, ReadError> {
    let machine = look.snapshot.own_machine();
    let config = machine.and_then(|machine| machine.spec.bootstrap.config_ref.as_ref());
    let Some(config) = config else { return Ok(ConfigurationValues::Read(None)) };
    let object = ForeignObject {
        group: config.api_group.clone(),
        version: Some(KUBEADM_CONFIG_VERSION.to_owned()),
        kind: config.kind.clone(),
        namespace: look.snapshot.update.namespace().unwrap_or_default(),
        name: config.name.clone(),
    };
    match ctx.foreign.read(&ctx.client, &object).await {
        Ok(mut found) => Ok(ConfigurationValues::Read(Some(Arc::new(found["spec"].take())))),
        Err(error) if apply::is_not_found(&error) => Ok(ConfigurationValues::Read(None)),
        Err(error) => {
            let what = format!("a read of {} {}", config.kind, config.name);
            Err(ReadError::management(what)(error))
        }
    }
}

async fn read_machines(ctx: &Context, look: &Look) -> Result<(), ReadError> {
    let (Some(cluster), Some(machine)) = (&look.cluster, &look.snapshot.machine) else {
        return Ok(());
    };
    read_cluster(ctx, cluster).await?;
    let stores = &ctx.stores;
    let update = ObjectKey::of(look.snapshot.update.as_ref());
    let (group, owning_cluster) = (group_of(stores, machine), cluster_key(machine));
    let of_group = async {
        let Some(group) = &group else { return Ok(()) };
        read_object(ctx, &stores.update_groups, &group.key).await?;
        LiveOwner::read(ctx, group).await
    };
    futures::try_join!(
        read_object::<NodeUpdate>(ctx, &stores.node_updates, &update),
        read_object(ctx, &stores.clusters, &owning_cluster),
        of_group,
        read_host_plan(ctx, cluster, look),
        read_providers(ctx, look),
    )?;
    Ok(())
}

/// Reads the objects of providers for the Machine.
async fn read_providers(ctx: &Context, look: &Look) -> Result<(), ReadError> {
    let Snapshot { update, siblings, .. } = &look.snapshot;
    let read = ctx.providers.read(&ctx.client, update, siblings);
    read.await.map_err(ReadError::management("the list of the objects of providers"))
}

async fn read_host_plan(
    ctx: &Context,
    cluster: &WorkloadCluster,
    look: &Look,
) -> Result<(), ReadError> {
    let (Some(machine), Some(seen)) = (&look.snapshot.machine, look.seen()) else {
        return Ok(());
    };
    let (plans, key) = (&cluster.view.host_plans, plan_key(ctx, machine, &seen.node_name));
    match ctx.settings.plan_location {
        PlanLocation::Management => read_object(ctx, plans, &key).await,
        PlanLocation::Workload => {
            let Some(client) = client_of(ctx, cluster).await else { return Ok(()) };
            let wrap = ReadError::workload(format!("a read of HostPlan {key}"));
            get(&client, plans, &key).await.map_err(wrap)
        }
    }
}

/// A client of the workload cluster; `None` if its kubeconfig cannot be read.
async fn client_of(
    ctx: &Context,
    WorkloadCluster { key, view }: &WorkloadCluster,
) -> Option<Client> {
    let client = ctx.workloads.client(&key.namespace, &key.name).await;
    if client.is_err() {
        view.mark_unreachable();
    }
    client.ok()
}

/// Brings the caches of a cluster up to the present, or waits for another such read that began after this call.
pub(crate) async fn read_cluster(
    ctx: &Context,
    cluster: &WorkloadCluster,
) -> Result<(), ReadError> {
    cluster.view.live.share(list_cluster(ctx, cluster)).await
}

/// Reads the Nodes, the control plane's mirror pods, the Machines and the MachineSets of a cluster.
async fn list_cluster(ctx: &Context, cluster: &WorkloadCluster) -> Result<(), ReadError> {
    let WorkloadCluster { key, view } = cluster;
    let Some(client) = client_of(ctx, cluster).await else { return Ok(()) };
    let read_nodes = async {
        let read = store::read_now(nodes(&client), "", Some(NODES), &view.nodes, |_| true);
        read.await.and_then(all_read).map_err(ReadError::workload("the list of Nodes"))
    };
    let read_pods = async {
        let pods = control_plane_pods(&client);
        let (labels, limits) = (CONTROL_PLANE_PODS, Some(STATIC_PODS));
        let read = store::read_now(pods, labels, limits, &view.static_pods, |_| true);
        read.await.and_then(all_read).map_err(ReadError::workload("the list of control plane pods"))
    };
    futures::try_join!(read_nodes, read_pods, list_machines(ctx, key))?;
    Ok(())
}

/// Reads the Machines of a Cluster and their MachineSets: a Machine of an unknown MachineSet would be missing in its
/// group.
pub(crate) async fn list_machines(ctx: &Context, cluster: &ObjectKey) -> Result<(), ReadError> {
    let machines = Box::pin(list::<Machine>(ctx, cluster, &ctx.stores.machines));
    let sets = Box::pin(list::<MachineSet>(ctx, cluster, &ctx.stores.machine_sets));
    futures::try_join!(machines, sets)?;
    Ok(())
}

/// Reads the MachineDeployments of a Cluster.
pub(crate) async fn list_deployments(ctx: &Context, cluster: &ObjectKey) -> Result<(), ReadError> {
    list::<MachineDeployment>(ctx, cluster, &ctx.stores.machine_deployments).await
}

/// Reads the objects of a kind that have the label of a Cluster.
async fn list<K>(ctx: &Context, cluster: &ObjectKey, store: &Store<K>) -> Result<(), ReadError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + 'static,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let of_cluster = format!("{}={}", keys::CLUSTER_NAME, cluster.name);
    let covers = |object: &K| {
        object.meta().namespace.as_ref() == Some(&cluster.namespace)
            && object.labels().get(keys::CLUSTER_NAME) == Some(&cluster.name)
    };
    let read = store::read_now(api, &of_cluster, None, store, covers).await;
    let what = format!("the list of {}s", K::kind(&()));
    read.and_then(all_read).map_err(ReadError::management(what))
}

/// Nothing is decided on an older state of an object that cannot be read.
fn all_read(unreadable: Vec<String>) -> kube::Result<()> {
    unreadable
        .into_iter()
        .next()
        .map_or(Ok(()), |what| Err(kube::Error::SerdeError(serde::de::Error::custom(what))))
}

/// Reads one object of the management cluster.
pub(crate) async fn read_object<K>(
    ctx: &Context,
    store: &Store<K>,
    key: &ObjectKey,
) -> Result<(), ReadError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let wrap = ReadError::management(format!("a read of {} {key}", K::kind(&())));
    get(&ctx.client, store, key).await.map_err(wrap)
}

/// Reads one object into its cache.
async fn get<K>(client: &Client, store: &Store<K>, key: &ObjectKey) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), &key.namespace);
    match api.get_opt(&key.name).await? {
        Some(object) => store.insert(object),
        None => {
            if let Some(known) = store.get(key) {
                store.remove(&known);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_error::is_silence;

    #[test]
    fn an_object_that_cannot_be_read_ends_the_read_and_is_no_silence() {
        assert!(all_read(Vec::new()).is_ok());
        let error = all_read(vec!["Node a: invalid digit".to_owned()]).unwrap_err();
        assert!(!is_silence(&error), "{error}");
        assert!(error.to_string().contains("Node a: invalid digit"), "{error}");
    }
}
