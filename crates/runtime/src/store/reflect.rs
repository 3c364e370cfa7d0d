//! The watch that feeds a store.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Debug,
    hash::Hash,
    ops::ControlFlow::{self, Continue},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Api, Resource,
    api::ListParams,
    discovery::ApiResource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Change, LiveList, ObjectKey, Store, key_of};
use crate::{
    client::{TooLarge, too_large},
    clock::instant,
    guard::{Guarded, Raw},
};

/// First delay after a failed watch.
const BACKOFF_FLOOR: Duration = Duration::from_millis(500);
/// Maximum delay after failed watches.
const BACKOFF_CEILING: Duration = Duration::from_secs(20);
/// How long a watch must run for its next failure to count as the first; longer than a call that
/// ends at its deadline.
const BACKOFF_RESET: Duration = Duration::from_mins(1);

/// Maximum number of objects per page of a list, where nothing limits the size of the objects.
const PAGE: u32 = 500;
/// The same where a response is limited: the largest Nodes have some 100 KiB.
const LIMITED_PAGE: u32 = 100;

/// What a watch keeps at most. The administrator of a workload cluster, who decides what its API
/// server sends, must not be able to exhaust the memory of a process that serves all clusters.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of objects.
    pub objects: usize,
    /// Size of their JSON, in bytes.
    pub bytes: usize,
}

/// Why a watch failed.
#[derive(Debug)]
pub enum Broken<'a> {
    /// A request or its response failed; the watch tries again.
    Watch(&'a watcher::Error),
    /// There is more than its limits allow.
    TooLarge(TooLarge),
}

/// Watches a kind until dropped, updates `store`, and calls `changed` for each object that was
/// added, changed or deleted, after the store has it. Dropping the future ends the watch.
///
/// An object that cannot be read is logged and keeps its previous state ([`Store::unreadable`]);
/// other objects are not affected.
pub async fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    store: Store<K>,
    mut changed: impl FnMut(&K),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let kind = K::DynamicType::default();
    let changed = |change: &Change<K>| changed(change.object());
    let go_on = |_: Broken<'_>| Continue::<Infallible, _>(BACKOFF_CEILING);
    match follow(api, &kind, config, None, store, changed, go_on).await {}
}

/// Like [`reflect`], but ends when there is more than `limits` allow.
pub async fn reflect_within<K>(
    api: Api<K>,
    config: watcher::Config,
    limits: Limits,
    store: Store<K>,
    mut changed: impl FnMut(&K),
) -> TooLarge
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let kind = K::DynamicType::default();
    let changed = |change: &Change<K>| changed(change.object());
    let broken = |broken: Broken<'_>| match broken {
        Broken::Watch(_) => Continue(BACKOFF_CEILING),
        Broken::TooLarge(what) => ControlFlow::Break(what),
    };
    let config = config.page_size(LIMITED_PAGE);
    follow(api, &kind, config, Some(limits), store, changed, broken).await
}

/// Like [`reflect`], for a kind that is known only at run time, and with whole changes. Calls
/// `broken` after each failure: it returns the maximum delay before the next attempt, or ends the
/// watch with a value.
pub async fn follow<K, E>(
    api: Api<K>,
    kind: &K::DynamicType,
    config: watcher::Config,
    limits: Option<Limits>,
    store: Store<K>,
    mut changed: impl FnMut(&Change<K>),
    mut broken: impl FnMut(Broken<'_>) -> ControlFlow<E, Duration>,
) -> E
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let api = raw(api, kind);
    let kind = K::kind(kind);
    let mut backoff = Backoff::new();
    let mut tally = Tally { limits, sizes: BTreeMap::new(), bytes: 0 };
    loop {
        let mut listed = Vec::new();
        let stream = watcher::watcher(api.clone(), config.clone());
        tokio::pin!(stream);
        while let Some(event) = stream.next().await {
            if let Some(what) = tally.exceeded_by(&kind, &event)
                && let ControlFlow::Break(end) = broken(Broken::TooLarge(what))
            {
                return end;
            }
            match event {
                Err(error) => {
                    let ceiling = match broken(Broken::Watch(&error)) {
                        ControlFlow::Break(end) => return end,
                        Continue(ceiling) => ceiling,
                    };
                    let wait = backoff.failed(is_expired(&error), ceiling);
                    if wait >= ceiling {
                        tracing::warn!(%kind, %error, "watch keeps failing");
                    } else {
                        tracing::debug!(%kind, %error, "watch failed, restarting");
                    }
                    tokio::time::sleep(wait).await;
                    if never_resumes(&error) {
                        break;
                    }
                    continue;
                }
                // The list itself may still fail.
                Ok(Event::Init) => {
                    store.list_begins();
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    listed.push(read(&kind, object));
                    continue;
                }
                Ok(Event::InitDone) => {
                    let changes = store.replaced(std::mem::take(&mut listed));
                    store.mark_ready();
                    changes.iter().for_each(&mut changed);
                }
                Ok(Event::Apply(object)) => {
                    store.applied(read(&kind, object)).iter().for_each(&mut changed);
                }
                Ok(Event::Delete(object)) => {
                    store.deleted(object.into()).iter().for_each(&mut changed);
                }
            }
            backoff.worked();
        }
    }
}

/// The sizes of what a watch has delivered.
struct Tally {
    limits: Option<Limits>,
    sizes: BTreeMap<ObjectKey, usize>,
    bytes: usize,
}

impl Tally {
    /// Counts an event; returns what exceeds the limits.
    fn exceeded_by(&mut self, kind: &str, event: &watcher::Result<Event<Raw>>) -> Option<TooLarge> {
        let limits = self.limits?;
        let (object, bytes) = match event {
            Err(error) => return too_large(error),
            Ok(Event::Init) => {
                self.sizes.clear();
                self.bytes = 0;
                return None;
            }
            Ok(Event::InitDone) => return None,
            Ok(Event::InitApply(object) | Event::Apply(object)) => (object, Some(object.bytes())),
            Ok(Event::Delete(object)) => (object, None),
        };
        let key = key_of(object.meta());
        let before = match bytes {
            Some(bytes) => self.sizes.insert(key, bytes),
            None => self.sizes.remove(&key),
        };
        self.bytes = self.bytes + bytes.unwrap_or_default() - before.unwrap_or_default();
        limits.exceeded(kind, self.sizes.len(), self.bytes)
    }
}

impl Limits {
    fn exceeded(&self, kind: &str, objects: usize, bytes: usize) -> Option<TooLarge> {
        if objects > self.objects {
            return Some(TooLarge::new(format!("it has more than {} {kind}s", self.objects)));
        }
        let mebibytes = self.bytes / (1 << 20);
        (bytes > self.bytes)
            .then(|| TooLarge::new(format!("its {kind}s take more than {mebibytes} MiB")))
    }
}

/// Brings a store up to the present: lists a kind from etcd, apart from the watch. `covers` decides
/// which objects of the store the list would contain. Returns what could not be read: of these objects
/// the store may hold an older state.
///
/// # Errors
/// As the first failed page, and [`TooLarge`] where there is more than `limits` allow. The store then
/// stays as it is.
pub async fn read_now<K>(
    api: Api<K>,
    labels: &str,
    limits: Option<Limits>,
    store: &Store<K>,
    covers: impl Fn(&K) -> bool,
) -> kube::Result<Vec<String>>
where
    K: Resource + DeserializeOwned,
    K::DynamicType: Default,
{
    read_now_of(api, &K::DynamicType::default(), labels, limits, store, covers).await
}

/// [`read_now`] of a kind that is known at run time only.
///
/// # Errors
/// As those of [`read_now`].
pub async fn read_now_of<K>(
    api: Api<K>,
    kind: &K::DynamicType,
    labels: &str,
    limits: Option<Limits>,
    store: &Store<K>,
    covers: impl Fn(&K) -> bool,
) -> kube::Result<Vec<String>>
where
    K: Resource + DeserializeOwned,
{
    let api = raw(api, kind);
    let kind = K::kind(kind);
    // Without a resourceVersion: every page is of the state of etcd at the first request.
    let page_size = if limits.is_some() { LIMITED_PAGE } else { PAGE };
    let mut page = ListParams::default().labels(labels).limit(page_size);
    let (mut listed, mut held) = (Vec::new(), BTreeSet::new());
    let mut bytes = 0;
    loop {
        let list = api.list(&page).await?;
        bytes += list.items.iter().map(Raw::bytes).sum::<usize>();
        let objects = listed.len() + held.len() + list.items.len();
        if let Some(what) = limits.and_then(|limits| limits.exceeded(&kind, objects, bytes)) {
            return Err(kube::Error::Service(what.into()));
        }
        for object in list.items {
            let key = key_of(object.meta());
            if store.holds(&key, object.meta()) {
                held.insert(key);
            } else {
                listed.push(read(&kind, object));
            }
        }
        let ListMeta { continue_, resource_version, .. } = list.metadata;
        page.continue_token = continue_.filter(|token| !token.is_empty());
        if page.continue_token.is_none() {
            let version = resource_version.and_then(|version| version.parse().ok());
            let unreadable = listed.iter().filter_map(|object| object.0.as_ref().err());
            let unreadable = unreadable
                .map(|one| format!("{kind} {}: {}", key_of(one.metadata()), one.reason))
                .collect();
            let version = version.unwrap_or_default();
            store.learn_list(LiveList { read: listed, held, version }, covers);
            return Ok(unreadable);
        }
    }
}

/// Decodes an object of a kind, and logs a failure.
fn read<K: Resource + DeserializeOwned>(kind: &str, object: Raw) -> Guarded<K> {
    let object = Guarded::from(object);
    if let Err(unreadable) = &object.0 {
        let key = key_of(object.metadata());
        tracing::warn!(%kind, %key, reason = unreadable.reason, "cannot read an object");
    }
    object
}

/// The same API for objects as the server sent them.
fn raw<K: Resource>(api: Api<K>, kind: &K::DynamicType) -> Api<Raw> {
    let resource = ApiResource::erase::<K>(kind);
    match api.namespace().map(str::to_owned) {
        Some(namespace) => Api::namespaced_with(api.into_client(), &namespace, &resource),
        None => Api::all_with(api.into_client(), &resource),
    }
}

/// Whether the whole watch was refused because its resourceVersion is expired. kube lists again if
/// the stream reports this, but retries the same resourceVersion for ever if the HTTP status does.
fn never_resumes(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Whether an API server responds but no longer knows the resourceVersion: it has restarted, or has
/// compacted its history.
fn is_expired(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) if status.code == 410
    )
}

/// Delays that grow while attempts fail. Without jitter, so that a simulation is reproducible.
struct Backoff {
    next: Duration,
    since: Instant,
    /// Whether the last failure was an expired resourceVersion.
    expired: bool,
}

impl Backoff {
    fn new() -> Self {
        Self { next: BACKOFF_FLOOR, since: instant(), expired: false }
    }

    fn worked(&mut self) {
        self.next = BACKOFF_FLOOR;
        self.expired = false;
    }

    /// How long to wait after a failure. A failure after a long quiet period counts as a first one.
    /// So does an expired resourceVersion after failures of another kind: it means that an API
    /// server is back, and a longer delay would only keep the store stale.
    fn failed(&mut self, expired: bool, ceiling: Duration) -> Duration {
        let now = instant();
        let before = std::mem::replace(&mut self.expired, expired);
        let back = expired && !before;
        if back || now.saturating_duration_since(self.since) > BACKOFF_RESET {
            self.next = BACKOFF_FLOOR;
        }
        let wait = self.next.min(ceiling);
        self.next = (wait * 2).min(ceiling);
        self.since = now + wait;
        wait
    }
}

/// Watch configuration for a whole kind: a paged list, then the watch. Pages are read from etcd:
/// when kube pages, it omits the `resourceVersion=0` that would read from the API server's cache.
pub fn everything() -> watcher::Config {
    watcher::Config::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_and_a_long_quiet_period_resets_them() {
        let mut backoff = Backoff::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = backoff.failed(false, BACKOFF_CEILING);
            tokio::time::sleep(wait).await;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
        tokio::time::sleep(BACKOFF_RESET + Duration::from_secs(1)).await;
        assert_eq!(backoff.failed(false, BACKOFF_CEILING), BACKOFF_FLOOR);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_version_after_other_failures_resets_the_delay() {
        let mut backoff = Backoff::new();
        let mut waits = Vec::new();
        for expired in [false, false, false, true, true, true, false, true] {
            let wait = backoff.failed(expired, BACKOFF_CEILING);
            tokio::time::sleep(wait).await;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 500, 1000, 2000, 4000, 500]);
    }

    #[test]
    fn every_form_of_an_expired_version_is_recognised() {
        let status = |code| Box::new(kube::core::Status { code, ..kube::core::Status::default() });
        assert!(is_expired(&watcher::Error::WatchError(status(410))));
        let refused = kube::Error::Api(status(410));
        assert!(is_expired(&watcher::Error::WatchStartFailed(refused)));
        assert!(!is_expired(&watcher::Error::WatchError(status(429))));
    }
}
