//! The watch that feeds a store.

use std::{fmt::Debug, hash::Hash, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Store, kind};
use crate::{clock::instant, guard::Guarded};

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
    K::DynamicType: Default + Eq + Hash,
{
    let api = guarded(api);
    let mut backoff = Backoff::new();
    loop {
        let mut listed = Vec::new();
        let stream = watcher::watcher(api.clone(), config.clone());
        tokio::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Err(error) => {
                    let wait = backoff.failed();
                    if wait >= BACKOFF_CEILING {
                        tracing::warn!(kind = kind::<K>(), %error, "a watch keeps breaking off");
                    } else {
                        tracing::debug!(kind = kind::<K>(), %error, "a watch broke off and starts again");
                    }
                    tokio::time::sleep(wait).await;
                    if never_resumes(&error) {
                        break;
                    }
                    continue;
                }
                // The list itself may fail yet.
                Ok(Event::Init) => {
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    listed.push(object);
                    continue;
                }
                Ok(Event::InitDone) => {
                    let changes = store.replaced(std::mem::take(&mut listed));
                    store.mark_ready();
                    for object in changes {
                        changed(&object);
                    }
                }
                Ok(Event::Apply(object)) => {
                    if let Some(object) = store.applied(object) {
                        changed(&object);
                    }
                }
                Ok(Event::Delete(object)) => {
                    if let Some(object) = store.deleted(object) {
                        changed(&object);
                    }
                }
            }
            backoff.worked();
        }
    }
}

/// The same API for objects that may be unreadable.
fn guarded<K>(api: Api<K>) -> Api<Guarded<K>>
where
    K: Resource,
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    match api.namespace().map(str::to_owned) {
        Some(namespace) => Api::namespaced_with(api.into_client(), &namespace, &kind),
        None => Api::all_with(api.into_client(), &kind),
    }
}

/// Whether a watch was refused as a whole because its place in the history is lost. kube lists
/// again where the stream says so, and asks for the same place for ever where the status does.
fn never_resumes(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Waits that grow while nothing works. Without jitter, so that a simulation repeats itself.
struct Backoff {
    next: Duration,
    since: Instant,
}

impl Backoff {
    fn new() -> Self {
        Self {
            next: BACKOFF_FLOOR,
            since: instant(),
        }
    }

    fn worked(&mut self) {
        self.next = BACKOFF_FLOOR;
    }

    /// How long to wait after a failure. One after a long quiet time is a first one.
    fn failed(&mut self) -> Duration {
        let now = instant();
        if now.saturating_duration_since(self.since) > BACKOFF_RESET {
            self.next = BACKOFF_FLOOR;
        }
        let wait = self.next;
        self.next = (wait * 2).min(BACKOFF_CEILING);
        self.since = now + wait;
        wait
    }
}

/// Watch configuration for a whole kind: a list from the API server's cache, then the watch.
pub fn everything() -> watcher::Config {
    watcher::Config::default().any_semantic()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_a_long_quiet_time_makes_them_short_again() {
        let mut backoff = Backoff::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = backoff.failed();
            tokio::time::sleep(wait).await;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
        tokio::time::sleep(BACKOFF_RESET + Duration::from_secs(1)).await;
        assert_eq!(backoff.failed(), BACKOFF_FLOOR);
    }
}
