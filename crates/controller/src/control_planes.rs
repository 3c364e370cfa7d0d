//! Control planes of other providers: kinds that Clusters refer to, and that are known at run time only
//! (`docs/facts/control-plane.md#contract`).

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{
    Api,
    api::ApiResource,
    core::Object,
    discovery::{self, Scope},
};
use refit_cluster_api::kinds::{CONTROL_PLANE_GROUP, Cluster, ContractRef};
use refit_kinds::{refit::Owner, version::StatedVersion};
use refit_runtime::{Store, store};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    api_error::cause,
    context::Context,
    providers::{Kind, each_kind},
    watches::plane_changed,
};

/// Delay between two attempts to watch a kind.
const RETRY: Duration = Duration::from_secs(30);

/// What Cluster API's contract states of every control plane.
pub(crate) type ForeignPlane = Object<PlaneSpec, PlaneStatus>;

/// The part of a control plane's spec that the contract states.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PlaneSpec {
    /// Number of Machines.
    #[serde(default)]
    pub(crate) replicas: Option<i32>,
    /// Kubernetes version.
    #[serde(default)]
    pub(crate) version: StatedVersion,
}

/// The part of a control plane's status that the contract states.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlaneStatus {
    /// Number of Machines whose Nodes are Ready.
    #[serde(default)]
    pub(crate) ready_replicas: Option<i32>,
}

/// The kinds of control planes that are watched, each from the first Cluster on that refers to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignPlanes(Arc<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    /// By API group and kind.
    kinds: Mutex<BTreeMap<Kind, Watched>>,
    added: Notify,
}

#[derive(Clone, Debug, Default)]
struct Watched {
    store: Store<ForeignPlane>,
    /// How the API server serves the kind.
    resource: Arc<Mutex<Option<ApiResource>>>,
    /// Why it cannot be watched.
    trouble: Arc<Mutex<Option<String>>>,
}

impl ForeignPlanes {
    /// The cache of a kind, if a Cluster refers to it.
    pub(crate) fn store(&self, api_group: &str, kind: &str) -> Option<Store<ForeignPlane>> {
        let key = (api_group.to_owned(), kind.to_owned());
        lock(&self.0.kinds).get(&key).map(|watched| watched.store.clone())
    }

    /// How the API server serves a kind, once it is watched.
    pub(crate) fn resource(&self, api_group: &str, kind: &str) -> Option<ApiResource> {
        let key = (api_group.to_owned(), kind.to_owned());
        let watched = lock(&self.0.kinds).get(&key).cloned()?;
        lock(&watched.resource).clone()
    }

    /// Whether the first list of a kind is still to come: its objects are not known yet.
    pub(crate) fn is_awaited(&self, api_group: &str, kind: &str) -> bool {
        let key = (api_group.to_owned(), kind.to_owned());
        lock(&self.0.kinds)
            .get(&key)
            .is_some_and(|watched| !watched.store.is_ready() && lock(&watched.trouble).is_none())
    }

    /// Begins the watch of the kind of a Cluster's control plane, if it is of another provider.
    pub(crate) fn expect(&self, cluster: &Cluster) {
        let Some(plane) = cluster.spec.control_plane_ref.as_ref().filter(|plane| is_foreign(plane))
        else {
            return;
        };
        let key = (plane.api_group.clone(), plane.kind.clone());
        let mut kinds = lock(&self.0.kinds);
        kinds.entry(key).or_insert_with(|| {
            self.0.added.notify_one();
            Watched::default()
        });
    }
}

fn is_foreign(plane: &ContractRef) -> bool {
    !plane.kind.is_empty()
        && (plane.api_group != CONTROL_PLANE_GROUP || plane.kind != Owner::ControlPlane.kind())
}

/// Watches every kind of control plane, until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let Kinds { kinds, added } = &*ctx.stores.foreign_planes.0;
    each_kind(kinds, added, |kind, watched| watch(ctx, kind, watched)).await;
}

/// Watches one kind. How the API server serves it is asked again after each failure.
async fn watch(ctx: &Context, kind: Kind, watched: Watched) {
    loop {
        let trouble = match served(ctx, &kind).await {
            Ok(resource) => follow(ctx, &resource, &watched).await,
            Err(why) => why,
        };
        // A kind that no role lets Refit read stays so: one line is enough.
        if lock(&watched.trouble).as_ref() != Some(&trouble) {
            let (group, kind) = &kind;
            tracing::warn!(group, kind, why = trouble, "control planes cannot be watched");
            *lock(&watched.trouble) = Some(trouble);
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// How the API server serves a kind, in its most stable version.
async fn served(ctx: &Context, (group, kind): &Kind) -> Result<ApiResource, String> {
    let found = discovery::group(&ctx.client, group).await.map_err(|error| cause(&error))?;
    let mut kinds = found.resources_by_stability().into_iter();
    let (resource, capabilities) = kinds
        .find(|(resource, _)| resource.kind == *kind)
        .ok_or_else(|| "the API server does not serve it".to_owned())?;
    if capabilities.scope != Scope::Namespaced {
        return Err("its objects have no namespace".to_owned());
    }
    Ok(resource)
}

/// Keeps the cache of a kind, until the API server refuses; returns why.
async fn follow(ctx: &Context, resource: &ApiResource, watched: &Watched) -> String {
    let cleared = watched.trouble.clone();
    let changed = |change: &store::Change<ForeignPlane>| {
        *lock(&cleared) = None;
        plane_changed(ctx, (&resource.group, &resource.kind), change.object());
    };
    let mut why = String::new();
    let broken = |broken: store::Broken<'_>| match broken {
        store::Broken::Watch(error) if is_refusal(error) => {
            why = error.to_string();
            ControlFlow::Break(())
        }
        store::Broken::Watch(_) | store::Broken::TooLarge(_) => ControlFlow::Continue(RETRY),
    };
    *lock(&watched.resource) = Some(resource.clone());
    let api: Api<ForeignPlane> = Api::all_with(ctx.client.clone(), resource);
    let (everything, cache) = (store::everything(), watched.store.clone());
    store::follow(api, resource, everything, None, cache, changed, broken).await;
    why
}

/// Whether the API server does not serve the kind in this version, or not to Refit.
fn is_refusal(error: &kube::runtime::watcher::Error) -> bool {
    use kube::runtime::watcher::Error::{
        InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed,
    };
    match error {
        InitialListFailed(error) | WatchStartFailed(error) => {
            matches!(error, kube::Error::Api(status) if status.is_not_found() || status.is_forbidden())
        }
        WatchError(status) => status.is_forbidden(),
        WatchFailed(_) | NoResourceVersion => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
