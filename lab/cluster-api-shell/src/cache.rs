//! The objects of one kind, from a watch and from the responses to own writes.

use std::{
    fmt::{self, Debug},
    ops::{ControlFlow, Deref},
    time::Duration,
};

use kube::{Api, Client, discovery::ApiResource, runtime::watcher};
use refit_runtime::{
    Store,
    store::{self, Broken, Index},
};

use crate::live::{Live, Typed};

/// Maximum delay after a failed watch: workload clusters are watched before they are up.
const BACKOFF_CEILING: Duration = Duration::from_secs(10);

/// An object that was added, changed, or deleted.
pub(crate) type Change<K> = store::Change<Live<K>>;

/// The objects of one kind, and their API resource.
pub(crate) struct Cache<K> {
    resource: ApiResource,
    store: Store<Live<K>>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { resource: self.resource.clone(), store: self.store.clone() }
    }
}

impl<K> Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.resource.kind)
    }
}

impl<K> Deref for Cache<K> {
    type Target = Store<Live<K>>;

    fn deref(&self) -> &Self::Target {
        &self.store
    }
}

impl<K: Typed> Cache<K> {
    /// An empty cache.
    pub(crate) fn new(resource: ApiResource) -> Self {
        Self::indexed(resource, &[])
    }

    /// An empty cache that keeps these indexes.
    pub(crate) fn indexed(resource: ApiResource, indexes: &[Index<Live<K>>]) -> Self {
        Self { resource, store: Store::indexed(indexes) }
    }

    /// The API resource of the objects.
    pub(crate) fn resource(&self) -> &ApiResource {
        &self.resource
    }

    /// Access to the objects of a namespace, or to cluster-scoped ones if it is empty.
    pub(crate) fn api(&self, client: &Client, namespace: &str) -> Api<Live<K>> {
        if namespace.is_empty() {
            Api::all_with(client.clone(), &self.resource)
        } else {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        }
    }

    /// Watches `api` into this cache, until the watch fails and `wanted` returns false, or the API
    /// server rejects the credentials.
    pub(crate) async fn follow(
        &self,
        api: Api<Live<K>>,
        config: watcher::Config,
        wanted: impl Fn() -> bool,
        changed: impl FnMut(&Change<K>),
    ) -> Ended {
        let broken = |broken: Broken<'_>| match broken {
            Broken::Watch(error) if is_unauthorized(error) => {
                ControlFlow::Break(Ended::Unauthorized)
            }
            Broken::Watch(_) | Broken::TooLarge(_) if wanted() => {
                ControlFlow::Continue(BACKOFF_CEILING)
            }
            Broken::Watch(_) | Broken::TooLarge(_) => ControlFlow::Break(Ended::Unwanted),
        };
        let (kind, store) = (&self.resource, self.store.clone());
        store::follow(api, kind, config, None, store, changed, broken).await
    }
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The API server rejects the credentials.
    Unauthorized,
    /// The objects are no longer needed.
    Unwanted,
}

fn is_unauthorized(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code == 401,
        _ => false,
    }
}
