//! Watches HostPlans, Nodes and the control plane's mirror pods in workload clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use futures::{
    StreamExt as _,
    future::{AbortHandle, abortable},
    stream::FuturesUnordered,
};
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _, api::ObjectMeta,
    core::crd::CustomResourceExt as _,
};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_kinds::{keys, refit::HostPlan};
use refit_runtime::{
    ObjectKey, apply,
    client::too_large,
    clock::instant,
    store::{self, reflect_within},
};
use tokio::sync::{Notify, Semaphore};

use crate::{
    PlanLocation, agent_policy,
    api_error::is_silence,
    cluster_upgrade,
    cluster_view::{ClusterView, SessionDelay},
    context::{Context, Stores},
    groups::{control_plane_of, node_updates_of_machine},
    indexes::{MACHINES_BY_CLUSTER, MACHINES_BY_NODE, node_index_key},
    watches::{has_work_left, wake_machine, work_changed},
    workload_objects::{HOST_PLANS, NODES, NodeRecord, PodRecord, STATIC_PODS},
};

/// How often a cluster is probed.
const PROBE_INTERVAL: Duration = Duration::from_mins(1);
/// How many sessions list their clusters at once: after a start, all clusters are to be listed.
const STARTING_SESSIONS: usize = 64;
/// How long a session counts as starting at most: a slow cluster must not delay the start of others.
const LONGEST_START: Duration = Duration::from_secs(30);
/// Label of the control plane's mirror pods, in `kube-system`.
pub(crate) const CONTROL_PLANE_PODS: &str = "tier=control-plane";
/// On the CRD that Refit installs: hash of its spec. A CRD with an equal hash is not written again.
const CRD_HASH: &str = "refit.dev/crd-hash";

/// Caches of the workload clusters, by the key of their Cluster.
#[derive(Debug, Default)]
pub(crate) struct WorkloadIndex {
    clusters: Mutex<BTreeMap<ObjectKey, Arc<ClusterView>>>,
    /// The Clusters that were added, changed or deleted since they were last looked at.
    changed: Mutex<BTreeSet<ObjectKey>>,
    has_changed: Notify,
}

/// The Nodes of a workload cluster.
pub(crate) fn nodes(client: &Client) -> Api<NodeRecord> {
    Api::all(client.clone())
}

/// The pods of a workload cluster among which [`CONTROL_PLANE_PODS`] are the control plane's.
pub(crate) fn control_plane_pods(client: &Client) -> Api<PodRecord> {
    Api::namespaced(client.clone(), "kube-system")
}

impl WorkloadIndex {
    /// Records that a Cluster was added, changed or deleted.
    pub(crate) fn cluster_changed(&self, cluster: ObjectKey) {
        self.lock_changed().insert(cluster);
        self.has_changed.notify_one();
    }

    fn lock_changed(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The view of a Cluster; `None` while Refit does not connect to it.
    pub(crate) fn view(&self, cluster: &ObjectKey) -> Option<Arc<ClusterView>> {
        self.lock().get(cluster).cloned()
    }

    /// Adds a view, or replaces it.
    pub(crate) fn insert(&self, cluster: ObjectKey, view: Arc<ClusterView>) {
        self.lock().insert(cluster, view);
    }

    /// Every view, in order of the Clusters' keys.
    pub(crate) fn views(&self) -> Vec<(ObjectKey, Arc<ClusterView>)> {
        let known = self.lock();
        let views = known.iter();
        views.map(|(key, view)| (key.clone(), view.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Arc<ClusterView>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches the workload clusters that Refit works in, until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    // Only then it is known which namespaces opted in, and which work is left.
    ctx.stores.wait_synced().await;
    let index = &ctx.workload_index;
    let starts = Semaphore::new(STARTING_SESSIONS);
    let mut watches = FuturesUnordered::new();
    let mut handles: BTreeMap<ObjectKey, AbortHandle> = BTreeMap::new();
    loop {
        for key in std::mem::take(&mut *index.lock_changed()) {
            let wanted = is_wanted(ctx, &key);
            if wanted && !handles.contains_key(&key) {
                let view = Arc::new(new_view(ctx));
                index.insert(key.clone(), view.clone());
                let (watch, handle) = abortable(watch_cluster(ctx, key.clone(), view, &starts));
                handles.insert(key, handle);
                watches.push(watch);
            } else if !wanted && let Some(handle) = handles.remove(&key) {
                handle.abort();
                index.lock().remove(&key);
                ctx.workloads.remove(&key.namespace, &key.name);
            }
        }
        tokio::select! {
            biased;
            Some(_) = watches.next(), if !watches.is_empty() => {}
            () = index.has_changed.notified() => {}
        }
    }
}

fn new_view(ctx: &Context) -> ClusterView {
    let (host_plans, arrivals) = match ctx.settings.plan_location {
        PlanLocation::Workload => Default::default(),
        PlanLocation::Management => (ctx.stores.host_plans.clone(), ctx.arrivals.clone()),
    };
    ClusterView::new(host_plans, arrivals, ctx.settings.workers_per_cluster, ctx.clock.now())
}

/// Whether Refit connects to a cluster: its control plane is initialised, and its namespace opted in
/// or has work that must still end.
fn is_wanted(ctx: &Context, key: &ObjectKey) -> bool {
    can_be_watched(&ctx.stores, key) && (ctx.opted_in(&key.namespace) || is_at_work(ctx, key))
}

/// Whether a Cluster exists and its control plane is initialised.
pub(crate) fn can_be_watched(stores: &Stores, cluster: &ObjectKey) -> bool {
    stores.clusters.get(cluster).is_some_and(|cluster| initialised(&cluster))
}

fn is_at_work(ctx: &Context, cluster: &ObjectKey) -> bool {
    let machines = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, cluster);
    let updates = |machine: &Arc<Machine>| {
        node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine.as_ref()))
    };
    machines.iter().flat_map(updates).any(|update| has_work_left(ctx, &update))
}

fn initialised(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    let milestones = status.and_then(|status| status.initialization.as_ref());
    milestones.and_then(|milestones| milestones.control_plane_initialized).unwrap_or_default()
}

async fn watch_cluster(ctx: &Context, key: ObjectKey, view: Arc<ClusterView>, starts: &Semaphore) {
    let plans_in_workload = ctx.settings.plan_location == PlanLocation::Workload;
    let mut delay = SessionDelay::default();
    loop {
        let begun = instant();
        let Err(error) = Box::pin(session(ctx, &key, &view, starts)).await;
        tracing::debug!(cluster = %key, error = format!("{error:#}"), "session with the workload cluster ended");
        let cause = error.chain().find_map(too_large);
        let delay = delay.after(&view, begun.elapsed(), cause.is_some());
        // Once per outage: every update of the cluster shows it.
        if view.session_ended(cause.as_ref(), plans_in_workload) {
            wake_all(ctx, &key);
        }
        // The cluster may have moved, or its credentials may have changed.
        ctx.workloads.forget(&key.namespace, &key.name);
        tokio::time::sleep(delay).await;
    }
}

/// Watches a cluster over one set of connections, until it does not respond or rejects the
/// credentials. What the watches of an earlier session delivered counts only after each watch has
/// listed again: the world may have changed meanwhile, and a connection may be half-open.
async fn session(
    ctx: &Context,
    key: &ObjectKey,
    view: &ClusterView,
    starts: &Semaphore,
) -> anyhow::Result<Infallible> {
    let client = ctx.workloads.client(&key.namespace, &key.name).await?;
    // A replica that is not the leader writes nothing: it watches what the leader installed.
    let plans_in_workload = ctx.settings.plan_location == PlanLocation::Workload;
    let leads = plans_in_workload && ctx.leadership.is_held();
    if leads {
        ensure_installed(&client).await?;
    }
    // Of the leader, only clusters that answer get here.
    let starting = starts.acquire().await;
    let started = async {
        let _ = tokio::time::timeout(LONGEST_START, view.wait_synced()).await;
        drop(starting);
    };
    let wake = |node: &str| wake_node(ctx, key, node);
    let plans = async {
        if plans_in_workload {
            let plans = Api::<HostPlan>::namespaced(client.clone(), keys::HOST_PLAN_NAMESPACE);
            let wake = |plan: &HostPlan| {
                view.arrivals.saw(&view.host_plans, ObjectKey::of(plan), ctx.clock.now());
                wake(&plan.name_any());
            };
            let config = store::everything();
            reflect_within(plans, config, HOST_PLANS, view.host_plans.clone(), wake).await
        } else {
            pending().await
        }
    };
    let (api, config) = (nodes(&client), store::everything());
    let nodes = reflect_within(api, config, NODES, view.nodes.clone(), |node| {
        view.agent_access.saw(node.meta());
        wake(&node.name_any());
    });
    let access = async {
        if plans_in_workload {
            view.agent_access.keep(ctx, &client, &view.nodes).await;
        }
    };
    let config = store::everything().labels(CONTROL_PLANE_PODS);
    let pods = control_plane_pods(&client);
    let pods = reflect_within(pods, config, STATIC_PODS, view.static_pods.clone(), |pod| {
        if let Some(pod) = &pod.view {
            wake(&pod.node);
        }
    });
    let synced = async {
        view.wait_synced().await;
        view.session_synced(ctx.clock.now());
        wake_all(ctx, key);
    };
    tokio::select! {
        biased;
        refused = keep_probing(ctx, key, view, &client, leads) => refused,
        what = plans => Err(what.into()),
        what = nodes => Err(what.into()),
        what = pods => Err(what.into()),
        what = view.proxies.watch(&client) => Err(what.into()),
        never = async {
            futures::join!(access, synced, started);
            pending().await
        } => never,
    }
}

/// Probes the cluster regularly; returns when it does not respond, rejects the credentials, or has
/// lost the installed objects.
async fn keep_probing(
    ctx: &Context,
    key: &ObjectKey,
    view: &ClusterView,
    client: &Client,
    mut installed: bool,
) -> anyhow::Result<Infallible> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let plans_in_workload = ctx.settings.plan_location == PlanLocation::Workload;
    // A replica that has not called the cluster yet probes it immediately, and so does one that needs
    // the version of the API server.
    let mut known = installed && !has_hosted_control_plane(&ctx.stores, key);
    loop {
        let probed = std::mem::replace(&mut known, true);
        let wait = if probed { PROBE_INTERVAL } else { Duration::ZERO };
        tokio::select! {
            biased;
            () = view.silent() => {
                // Before the lists are complete, this is the silence that ended the last session.
                if view.synced() {
                    anyhow::bail!("a call got no response");
                }
            }
            () = ctx.leadership.held(), if plans_in_workload && !installed => {
                ensure_installed(client).await?;
                installed = true;
            }
            () = tokio::time::sleep(wait) => {}
        }
        match namespaces.get_opt(keys::HOST_PLAN_NAMESPACE).await {
            // Everything that was installed is gone with it: a new session installs it again.
            Ok(None) if installed => anyhow::bail!("the namespace of the agents was deleted"),
            Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
                return Err(kube::Error::Api(status)).context("the credentials were rejected");
            }
            Err(error) if is_silence(&error) => {
                return Err(error).context("the cluster does not respond");
            }
            // It responds. What it refuses is reported where it is needed.
            Ok(_) | Err(_) => {}
        }
        if has_hosted_control_plane(&ctx.stores, key) {
            view.read_api_version(client).await.context("the cluster does not respond")?;
        }
    }
}

/// Whether a Cluster has no control plane Machines, as with hosted and managed control planes.
pub(crate) fn has_hosted_control_plane(stores: &Stores, cluster: &ObjectKey) -> bool {
    control_plane_of(stores, cluster).is_empty()
}

/// Installs the namespace of the agents and the HostPlan CRD.
async fn ensure_installed(client: &Client) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt(keys::HOST_PLAN_NAMESPACE).await?.is_none() {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(keys::HOST_PLAN_NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        apply::create_or_get(&namespaces, &namespace).await?;
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = HostPlan::crd();
    let hash = refit_kinds::refit::hash_json(&serde_json::to_value(&crd.spec)?);
    crd.annotations_mut().insert(CRD_HASH.to_owned(), hash.clone());
    let name = crd.name_any();
    match crds.get_opt(&name).await? {
        None => {
            apply::create_or_get(&crds, &crd).await?;
        }
        Some(known) if known.annotations().get(CRD_HASH) == Some(&hash) => {}
        Some(_) => {
            let body = serde_json::to_value(&crd)?;
            apply::apply(&crds, keys::MANAGER, &name, &body).await?;
        }
    }
    agent_policy::ensure(client).await?;
    Ok(())
}

/// Wakes the NodeUpdates of the Machine that has this Node.
pub(crate) fn wake_node(ctx: &Context, cluster: &ObjectKey, node: &str) {
    let machines = ctx.stores.machines.listed(&MACHINES_BY_NODE, &node_index_key(cluster, node));
    for machine in machines {
        wake_machine(ctx, &ObjectKey::of(machine.as_ref()));
    }
    cluster_upgrade::wake(ctx, cluster);
    // The last thing that is left may be the cordon of a Node.
    work_changed(ctx, cluster);
}

/// Wakes the NodeUpdates of all Machines of a Cluster.
pub(crate) fn wake_all(ctx: &Context, cluster: &ObjectKey) {
    let machines = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, cluster);
    for machine in machines {
        wake_machine(ctx, &ObjectKey::of(machine.as_ref()));
    }
    cluster_upgrade::wake(ctx, cluster);
}
