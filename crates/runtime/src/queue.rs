//! Reconcile keys: deduplicated, delayed, backed off.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Notify, time::Instant};

use crate::clock::instant;

/// First delay after a failed reconcile.
const BACKOFF_FLOOR: Duration = Duration::from_secs(1);
/// Maximum delay after failed reconciles.
const BACKOFF_CEILING: Duration = Duration::from_mins(1);

/// How many turns a worker takes before other futures of its task have theirs.
const TURNS_WITHOUT_PAUSE: u32 = 64;

/// When a key is reconciled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// When something changes.
    Done,
    /// After this duration, or earlier if something changes.
    RequeueAfter(Duration),
}

/// A queue of keys. A waiting key is queued once; a key in progress is not handed out again until
/// it is done.
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
    /// When each requested key is due.
    due: BTreeMap<K, Instant>,
    /// The same keys in order, without those in progress.
    order: BTreeSet<(Instant, K)>,
    running: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> State<K> {
    /// Records that a key is due at `due`, or earlier if it was requested before.
    fn ask(&mut self, key: K, due: Instant) {
        match self.due.insert(key.clone(), due) {
            Some(known) if known <= due => {
                self.due.insert(key, known);
                return;
            }
            Some(known) => {
                self.order.remove(&(known, key.clone()));
            }
            None => {}
        }
        if !self.running.contains(&key) {
            self.order.insert((due, key));
        }
    }

    /// Hands out the first due key, or returns when the next one is due.
    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        match self.order.pop_first() {
            None => Err(None),
            Some((due, key)) if due > now => {
                self.order.insert((due, key));
                Err(Some(due))
            }
            Some((_, key)) => {
                self.due.remove(&key);
                self.running.insert(key.clone());
                Ok(key)
            }
        }
    }

    /// Records that a key is no longer in progress. It may have been requested meanwhile.
    fn release(&mut self, key: &K) {
        if self.running.remove(key)
            && let Some(due) = self.due.get(key)
        {
            self.order.insert((*due, key.clone()));
        }
    }
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                due: BTreeMap::new(),
                order: BTreeSet::new(),
                running: BTreeSet::new(),
                failures: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }))
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Requests a reconcile now.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Requests a reconcile after a delay. An earlier request is kept.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().ask(key, instant() + delay);
        self.0.changed.notify_one();
    }

    /// How many keys wait or are in progress.
    pub fn depth(&self) -> usize {
        let state = self.lock();
        state.due.len() + state.running.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next key. The poll that ends the wait hands out the key, so a dropped wait
    /// loses no key. It loses no notification either, because each wait first checks the queue.
    async fn next(&self) -> K {
        loop {
            let wait = self.lock().take(instant());
            match wait {
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

    fn done<E>(&self, key: K, outcome: &Result<Action, E>) {
        let mut state = self.lock();
        state.release(&key);
        let delay = if let Ok(action) = outcome {
            state.failures.remove(&key);
            match action {
                Action::Done => None,
                Action::RequeueAfter(delay) => Some(*delay),
            }
        } else {
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let wait = BACKOFF_FLOOR * 2_u32.pow((*failures).min(6));
            *failures = failures.saturating_add(1);
            Some(wait.min(BACKOFF_CEILING))
        };
        if let Some(delay) = delay {
            state.ask(key, instant() + delay);
        }
        drop(state);
        // Also without a delay: a key that was added during its reconcile may be due.
        self.0.changed.notify_one();
    }

    /// Reconciles keys until dropped, at most `concurrency` at once and never one key twice at
    /// once. A failed reconcile is retried after an increasing delay. If the future is dropped, its
    /// keys in progress are due again at once for the next worker.
    pub async fn work<F, Fut, E>(&self, name: &str, concurrency: usize, mut reconcile: F)
    where
        F: FnMut(K) -> Fut,
        Fut: Future<Output = Result<Action, E>>,
        E: std::fmt::Display,
        K: std::fmt::Debug,
    {
        let concurrency = concurrency.max(1);
        // Declared before the futures, so that it is dropped after them.
        let mut taken = Taken { queue: self, keys: BTreeSet::new() };
        let mut running = FuturesUnordered::new();
        // Turns since the last pause. A reconcile that only reads caches has no pause of its own.
        let mut turns = 0;
        loop {
            if turns == TURNS_WITHOUT_PAUSE {
                turns = 0;
                tokio::task::yield_now().await;
            }
            turns += 1;
            let is_full = running.len() >= concurrency;
            let turn = async {
                tokio::select! {
                    biased;
                    Some((key, outcome)) = running.next(), if !running.is_empty() => {
                        Turn::Ended(key, outcome)
                    }
                    key = self.next(), if !is_full => Turn::Begins(key),
                }
            };
            match noting_pauses(turn, &mut turns).await {
                Turn::Ended(key, outcome) => {
                    if let Err(error) = &outcome {
                        tracing::warn!(
                            controller = name,
                            ?key,
                            error = format!("{error:#}"),
                            "reconcile failed"
                        );
                    }
                    taken.keys.remove(&key);
                    self.done(key, &outcome);
                }
                Turn::Begins(key) => {
                    taken.keys.insert(key.clone());
                    let future = reconcile(key.clone());
                    running.push(async move { (key, future.await) });
                }
            }
        }
    }
}

/// What happens next in a worker.
enum Turn<K, E> {
    /// A reconcile has ended.
    Ended(K, Result<Action, E>),
    /// A key is due.
    Begins(K),
}

/// Waits for a future, and sets `turns` to zero when it pauses.
async fn noting_pauses<T>(future: impl Future<Output = T>, turns: &mut u32) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            *turns = 0;
        }
        polled
    })
    .await
}

/// The keys in progress in one [`Queue::work`].
struct Taken<'a, K: Ord + Clone> {
    queue: &'a Queue<K>,
    keys: BTreeSet<K>,
}

impl<K: Ord + Clone> Drop for Taken<'_, K> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        for key in std::mem::take(&mut self.keys) {
            state.release(&key);
            state.ask(key, instant());
        }
        drop(state);
        self.queue.0.changed.notify_one();
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
        Rc::try_unwrap(seen).map(RefCell::into_inner).unwrap_or_default()
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
        let seen = run_for(31, &queue, |_| Ok(Action::RequeueAfter(Duration::from_secs(10)))).await;
        assert_eq!(seen.len(), 4);
    }

    /// Works on `queue` for some seconds with reconciles that take one second each, and returns
    /// which key began when, in seconds.
    async fn trace(
        seconds: u64,
        queue: &Queue<&'static str>,
        concurrency: usize,
    ) -> Vec<(u64, &'static str)> {
        let begin = instant();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let work = queue.work("test", concurrency, |key| {
            seen.borrow_mut().push((begin.elapsed().as_secs(), key));
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, String>(Action::Done)
            }
        });
        let _ = tokio::time::timeout(Duration::from_secs(seconds), work).await;
        seen.take()
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_due_at_once_go_out_in_order() {
        let queue = Queue::default();
        for key in ["c", "a", "b"] {
            queue.add(key);
        }
        assert_eq!(trace(10, &queue, 1).await, [(0, "a"), (1, "b"), (2, "c")]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_concurrency_run_at_once() {
        let queue = Queue::default();
        for key in ["a", "b", "c", "d", "e"] {
            queue.add(key);
        }
        let starts: Vec<_> = trace(10, &queue, 2).await.iter().map(|s| s.0).collect();
        assert_eq!(starts, [0, 0, 1, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_requested_during_its_reconcile_runs_again() {
        let queue = Queue::default();
        queue.add("a");
        let ask = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            queue.add("a");
            queue.add("a");
            std::future::pending::<()>().await;
        };
        let seen = tokio::select! {
            biased;
            () = ask => unreachable!(),
            seen = trace(10, &queue, 4) => seen,
        };
        assert_eq!(seen, [(0, "a"), (1, "a")]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_key_is_lost_between_many_adders_and_two_workers() {
        let queue = Queue::default();
        let seen = RefCell::new(BTreeMap::<u32, u32>::new());
        let work = || {
            queue.work("test", 3, |key: u32| {
                *seen.borrow_mut().entry(key).or_default() += 1;
                async move {
                    tokio::time::sleep(Duration::from_millis(u64::from(key % 7))).await;
                    Ok::<_, String>(Action::Done)
                }
            })
        };
        let add = |part: u32| {
            let queue = &queue;
            async move {
                for key in 0..100 {
                    queue.add(part * 1000 + key);
                    if key % 5 == 0 {
                        tokio::time::sleep(Duration::from_millis(u64::from(part))).await;
                    }
                }
            }
        };
        let adders = async {
            futures::join!(add(1), add(2), add(3), add(4));
            tokio::time::sleep(Duration::from_mins(1)).await;
        };
        tokio::select! {
            biased;
            () = work() => unreachable!(),
            () = work() => unreachable!(),
            () = adders => {}
        }
        assert_eq!(seen.borrow().len(), 400);
        assert_eq!(queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_dropped_takes_no_key_with_it() {
        let queue = Queue::default();
        for _ in 0..3 {
            let wait = tokio::time::timeout(Duration::from_secs(1), queue.next());
            assert!(wait.await.is_err());
        }
        // Notified, but dropped before its check.
        let mut wait = Box::pin(queue.next());
        assert!(futures::poll!(&mut wait).is_pending());
        queue.add("a");
        drop(wait);
        let next = tokio::time::timeout(Duration::from_secs(1), queue.next());
        assert_eq!(next.await, Ok("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_in_progress_are_due_again_after_a_dropped_worker() {
        let queue = Queue::default();
        queue.add("a");
        let work = queue.work("test", 1, |_| std::future::pending::<Result<Action, String>>());
        assert!(tokio::time::timeout(Duration::from_secs(1), work).await.is_err());
        assert_eq!(queue.depth(), 1);
        assert_eq!(trace(3, &queue, 1).await, [(0, "a")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_makes_the_next_wait_short_again() {
        let queue = Queue::default();
        queue.add("a");
        let begin = instant();
        let seen = RefCell::new(Vec::new());
        let work = queue.work("test", 1, |_| {
            let mut seen = seen.borrow_mut();
            seen.push(begin.elapsed().as_secs());
            let outcome = match seen.len() {
                3 => Ok(Action::RequeueAfter(Duration::from_secs(1))),
                _ => Err("no"),
            };
            async move { outcome }
        });
        let _ = tokio::time::timeout(Duration::from_secs(6), work).await;
        assert_eq!(*seen.borrow(), [0, 1, 3, 4, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_reconciles_without_a_pause_let_others_have_their_turn() {
        let (queue, reconciled, seen) =
            (Queue::default(), RefCell::new(0), RefCell::new(Vec::new()));
        (0..1000).for_each(|key| queue.add(key));
        let work = queue.work("test", 16, |_: u32| {
            *reconciled.borrow_mut() += 1;
            async { Ok::<_, String>(Action::Done) }
        });
        let other = async {
            while *reconciled.borrow() < 1000 {
                seen.borrow_mut().push(*reconciled.borrow());
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = work => unreachable!(),
            () = other => {}
        }
        let most = seen.borrow().windows(2).map(|two| two[1] - two[0]).max();
        assert!(most.is_some_and(|most| most <= TURNS_WITHOUT_PAUSE), "{most:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_does_not_wait_for_the_backoff() {
        let queue = Queue::default();
        queue.add("a");
        let begin = instant();
        let seen = RefCell::new(Vec::new());
        let work = queue.work("test", 1, |_| {
            seen.borrow_mut().push(begin.elapsed().as_millis());
            async { Err::<Action, _>("no") }
        });
        let change = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            queue.add("a");
            tokio::time::sleep(Duration::from_millis(300)).await;
        };
        tokio::select! {
            biased;
            () = work => unreachable!(),
            () = change => {}
        }
        assert_eq!(*seen.borrow(), [0, 300]);
    }
}
