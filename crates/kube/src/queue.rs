//! Reconcile keys: deduplicated, delayed, backed off.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Notify, time::Instant};

/// First wait after a failed reconcile.
const BACKOFF_FLOOR: Duration = Duration::from_secs(1);
/// Longest wait after failed reconciles.
const BACKOFF_CEILING: Duration = Duration::from_secs(60);

/// What a reconcile asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until something changes.
    Done,
    /// Come back after this time, or earlier if something changes.
    RequeueAfter(Duration),
}

/// A queue of keys. A key that waits is there once; one that is being worked on is not given out a
/// second time until it is done.
pub struct Queue<K>(Arc<Shared<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> std::fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    due: BTreeMap<K, Instant>,
    running: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                due: BTreeMap::new(),
                running: BTreeSet::new(),
                failures: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }))
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Asks for a reconcile now.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Asks for a reconcile after a time. An earlier request stays.
    #[expect(clippy::disallowed_methods, reason = "waits are measured, not told")]
    pub fn add_after(&self, key: K, delay: Duration) {
        let due = Instant::now() + delay;
        let mut state = self.lock();
        let entry = state.due.entry(key).or_insert(due);
        *entry = (*entry).min(due);
        drop(state);
        self.0.changed.notify_one();
    }

    /// How many keys wait or are worked on.
    pub fn depth(&self) -> usize {
        let state = self.lock();
        state.due.len() + state.running.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::disallowed_methods, reason = "waits are measured, not told")]
    fn take(&self) -> Result<K, Option<Instant>> {
        let mut state = self.lock();
        let now = Instant::now();
        let free = |state: &State<K>| {
            state
                .due
                .iter()
                .filter(|(key, _)| !state.running.contains(*key))
                .min_by(|(k1, t1), (k2, t2)| t1.cmp(t2).then_with(|| k1.cmp(k2)))
                .map(|(key, due)| (key.clone(), *due))
        };
        match free(&state) {
            None => Err(None),
            Some((_, due)) if due > now => Err(Some(due)),
            Some((key, _)) => {
                state.due.remove(&key);
                state.running.insert(key.clone());
                Ok(key)
            }
        }
    }

    async fn next(&self) -> K {
        loop {
            match self.take() {
                Ok(key) => return key,
                Err(None) => self.0.changed.notified().await,
                Err(Some(due)) => {
                    tokio::select! {
                        biased;
                        () = self.0.changed.notified() => {}
                        () = tokio::time::sleep_until(due) => {}
                    }
                }
            }
        }
    }

    fn done<E: std::fmt::Display>(&self, key: K, outcome: &Result<Action, E>) {
        let delay = {
            let mut state = self.lock();
            state.running.remove(&key);
            match outcome {
                Ok(action) => {
                    state.failures.remove(&key);
                    match action {
                        Action::Done => None,
                        Action::RequeueAfter(delay) => Some(*delay),
                    }
                }
                Err(_) => {
                    let failures = state.failures.entry(key.clone()).or_insert(0);
                    let wait = BACKOFF_FLOOR * 2_u32.pow((*failures).min(6));
                    *failures = failures.saturating_add(1);
                    Some(wait.min(BACKOFF_CEILING))
                }
            }
        };
        match delay {
            Some(delay) => self.add_after(key, delay),
            // A key that was added while it ran is due already.
            None => self.0.changed.notify_one(),
        }
    }

    /// Works on keys for ever, at most `concurrency` at once and never one key twice at once.
    /// A failed reconcile comes back after a growing wait. Dropping the future stops the work.
    pub async fn work<F, Fut, E>(&self, name: &str, concurrency: usize, mut reconcile: F)
    where
        F: FnMut(K) -> Fut,
        Fut: Future<Output = Result<Action, E>>,
        E: std::fmt::Display,
        K: std::fmt::Debug,
    {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((key, outcome)) = running.next(), if !running.is_empty() => {
                    if let Err(error) = &outcome {
                        tracing::warn!(controller = name, ?key, error = format!("{error:#}"), "reconcile failed");
                    }
                    self.done(key, &outcome);
                }
                key = self.next(), if running.len() < concurrency => {
                    let future = reconcile(key.clone());
                    running.push(async move { (key, future.await) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    async fn run_for(
        seconds: u64,
        queue: &Queue<&'static str>,
        reconcile: impl Fn(&'static str) -> Result<Action, String>,
    ) -> Vec<&'static str> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let work = queue.work("test", 2, |key| {
            seen.borrow_mut().push(key);
            let outcome = reconcile(key);
            async move { outcome }
        });
        let _ = tokio::time::timeout(Duration::from_secs(seconds), work).await;
        Rc::try_unwrap(seen)
            .map(RefCell::into_inner)
            .unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_waits_is_there_once() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        let seen = run_for(5, &queue, |_| Ok(Action::Done)).await;
        assert_eq!(seen, ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_comes_back_with_growing_waits() {
        let queue = Queue::default();
        queue.add("a");
        // At 0, 1, 3, 7 and 15 s.
        let seen = run_for(20, &queue, |_| Err("no".to_owned())).await;
        assert_eq!(seen.len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_request_wins_over_a_later_one() {
        let queue = Queue::default();
        queue.add_after("a", Duration::from_secs(100));
        queue.add_after("a", Duration::from_secs(1));
        queue.add_after("a", Duration::from_secs(50));
        let seen = run_for(10, &queue, |_| Ok(Action::Done)).await;
        assert_eq!(seen, ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_requeue_comes_back_on_time() {
        let queue = Queue::default();
        queue.add("a");
        let seen = run_for(31, &queue, |_| {
            Ok(Action::RequeueAfter(Duration::from_secs(10)))
        })
        .await;
        assert_eq!(seen.len(), 4);
    }
}
