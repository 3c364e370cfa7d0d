//! One read for all who ask for it at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// Reads of the same. Only one is made at a time, and it serves everyone who asked for one before it began: a group of any
/// size costs the servers little, and no one is served what is older than the question.
#[derive(Debug)]
pub(crate) struct SharedRead<T> {
    begun: AtomicU64,
    last: Mutex<Option<LastRead<T>>>,
}

#[derive(Debug)]
struct LastRead<T> {
    number: u64,
    outcome: T,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::default(), last: Mutex::default() }
    }
}

impl<T: Clone> SharedRead<T> {
    /// Makes a read, or waits for one that began after this call.
    pub(crate) async fn share(&self, read: impl Future<Output = T>) -> T {
        let before = self.begun.load(Ordering::Relaxed);
        let mut last = self.last.lock().await;
        if let Some(shared) = last.as_ref().filter(|last| last.number > before) {
            return shared.outcome.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let outcome = read.await;
        *last = Some(LastRead { number, outcome: outcome.clone() });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use super::*;

    /// A read that takes a second.
    async fn count(reads: &Cell<u32>) {
        reads.set(reads.get() + 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_read_serves_all_who_asked_before_it_began() {
        let (shared, reads) = (SharedRead::default(), Cell::new(0));
        let ask = |after| {
            let (shared, reads) = (&shared, &reads);
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                shared.share(count(reads)).await;
                reads.get()
            }
        };
        let served_by = futures::join!(ask(0), ask(100), ask(200), ask(1500), ask(3000));
        assert_eq!(served_by, (1, 2, 2, 3, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_given_up_serves_no_one() {
        let (shared, reads) = (SharedRead::default(), Cell::new(0));
        let short = Duration::from_millis(100);
        assert!(tokio::time::timeout(short, shared.share(count(&reads))).await.is_err());
        shared.share(count(&reads)).await;
        assert_eq!(reads.get(), 2);
    }
}
