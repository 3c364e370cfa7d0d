//! The watch that feeds a store.

use std::{
    convert::Infallible,
    fmt::Debug,
    hash::Hash,
    ops::ControlFlow::{self, Continue},
    time::Duration,
};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    discovery::ApiResource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Change, Store, key_of};
use crate::{
    clock::instant,
    guard::{Guarded, Raw},
};

/// First wait after a broken watch.
const BACKOFF_FLOOR: Duration = Duration::from_millis(500);
/// Longest wait after a broken watch.
const BACKOFF_CEILING: Duration = Duration::from_secs(20);
/// How long a watch must hold for its next failure to count as the first; longer than a call that
/// ends at its deadline.
const BACKOFF_RESET: Duration = Duration::from_mins(1);

/// Watches a kind for ever into `store` and calls `changed` with each object that came, changed or
/// went, after the store has it. Dropping the future ends the watch.
///
/// An object that cannot be read is logged and left as it was ([`Store::unreadable`]); the others
/// go on.
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
    let go_on = |_: &watcher::Error| Continue::<Infallible, _>(BACKOFF_CEILING);
    match follow(api, &kind, config, store, changed, go_on).await {}
}

/// As [`reflect`], of a kind that is known at run time only, and with whole changes. Calls `broken`
/// after each failure: it returns the longest wait before the next attempt, or ends the watch with
/// a value.
pub async fn follow<K, E>(
    api: Api<K>,
    kind: &K::DynamicType,
    config: watcher::Config,
    store: Store<K>,
    mut changed: impl FnMut(&Change<K>),
    mut broken: impl FnMut(&watcher::Error) -> ControlFlow<E, Duration>,
) -> E
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let api = raw(api, kind);
    let kind = K::kind(kind);
    let mut backoff = Backoff::new();
    loop {
        let mut listed = Vec::new();
        let stream = watcher::watcher(api.clone(), config.clone());
        tokio::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Err(error) => {
                    let ceiling = match broken(&error) {
                        ControlFlow::Break(end) => return end,
                        Continue(ceiling) => ceiling,
                    };
                    let wait = backoff.failed(lost_its_place(&error), ceiling);
                    if wait >= ceiling {
                        tracing::warn!(%kind, %error, "a watch keeps breaking off");
                    } else {
                        tracing::debug!(%kind, %error, "a watch broke off and starts again");
                    }
                    tokio::time::sleep(wait).await;
                    if never_resumes(&error) {
                        break;
                    }
                    continue;
                }
                // The list itself may fail yet.
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

/// Reads an object of a kind, and logs one that cannot be read.
fn read<K: Resource + DeserializeOwned>(kind: &str, object: Raw) -> Guarded<K> {
    let object = Guarded::from(object);
    if let Err(unreadable) = &object.0 {
        let key = key_of(object.metadata());
        tracing::warn!(%kind, %key, reason = unreadable.reason, "an object cannot be read");
    }
    object
}

/// The same API for objects as they were sent.
fn raw<K: Resource>(api: Api<K>, kind: &K::DynamicType) -> Api<Raw> {
    let resource = ApiResource::erase::<K>(kind);
    match api.namespace().map(str::to_owned) {
        Some(namespace) => Api::namespaced_with(api.into_client(), &namespace, &resource),
        None => Api::all_with(api.into_client(), &resource),
    }
}

/// Whether a watch was refused as a whole because its place in the history is lost. kube lists
/// again where the stream says so, and asks for the same place for ever where the status does.
fn never_resumes(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Whether an API server answers, but no longer knows the place in its history: it has started anew,
/// or has forgotten it.
fn lost_its_place(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) if status.code == 410
    )
}

/// Waits that grow while nothing works. Without jitter, so that a simulation repeats itself.
struct Backoff {
    next: Duration,
    since: Instant,
    /// Whether the last failure was a place that was lost.
    lost: bool,
}

impl Backoff {
    fn new() -> Self {
        Self { next: BACKOFF_FLOOR, since: instant(), lost: false }
    }

    fn worked(&mut self) {
        self.next = BACKOFF_FLOOR;
        self.lost = false;
    }

    /// How long to wait after a failure. One after a long quiet time is a first one, and so is a lost
    /// place after failures of another kind: an API server that was away and is back says that, and
    /// waiting on would only make everybody late.
    fn failed(&mut self, lost: bool, ceiling: Duration) -> Duration {
        let now = instant();
        let before = std::mem::replace(&mut self.lost, lost);
        let back = lost && !before;
        if back || now.saturating_duration_since(self.since) > BACKOFF_RESET {
            self.next = BACKOFF_FLOOR;
        }
        let wait = self.next.min(ceiling);
        self.next = (wait * 2).min(ceiling);
        self.since = now + wait;
        wait
    }
}

/// Watch configuration for a whole kind: a list in pages, then the watch. Pages are read from etcd:
/// kube leaves out the `resourceVersion=0` that would ask the API server's cache where it pages.
pub fn everything() -> watcher::Config {
    watcher::Config::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_a_long_quiet_time_makes_them_short_again() {
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
    async fn an_api_server_that_is_back_is_asked_at_once_but_not_again_and_again() {
        let mut backoff = Backoff::new();
        let mut waits = Vec::new();
        for lost in [false, false, false, true, true, true, false, true] {
            let wait = backoff.failed(lost, BACKOFF_CEILING);
            tokio::time::sleep(wait).await;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 500, 1000, 2000, 4000, 500]);
    }

    #[test]
    fn a_lost_place_is_told_apart_in_each_way_that_it_is_said() {
        let status = |code| Box::new(kube::core::Status { code, ..kube::core::Status::default() });
        assert!(lost_its_place(&watcher::Error::WatchError(status(410))));
        let refused = kube::Error::Api(status(410));
        assert!(lost_its_place(&watcher::Error::WatchStartFailed(refused)));
        assert!(!lost_its_place(&watcher::Error::WatchError(status(429))));
    }
}
