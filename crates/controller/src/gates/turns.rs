//! Turns that are shared by all namespaces, of which each has few: no tenant can take them from the others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a gate waits for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many turns at once, and so many of one namespace.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    of_namespace: usize,
    namespaces: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _own: OwnedSemaphorePermit,
    _one_of_all: OwnedSemaphorePermit,
}

impl Turns {
    pub(super) fn new(all: usize, of_namespace: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), of_namespace, namespaces: Mutex::default() }
    }

    /// Waits for a turn of a namespace, for some time. The error is a sentence.
    pub(super) async fn next(&self, namespace: &str) -> Result<Turn, String> {
        let turn = tokio::time::timeout(PATIENCE, self.turn(namespace)).await;
        let late = |_| {
            Err(format!(
                "other gates of namespace {namespace} took all turns for {} s",
                PATIENCE.as_secs()
            ))
        };
        turn.unwrap_or_else(late)
    }

    async fn turn(&self, namespace: &str) -> Result<Turn, String> {
        let turns = {
            let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that no one uses are recreated on use.
            namespaces.retain(|_, turns| Arc::strong_count(turns) > 1);
            let new = || Arc::new(Semaphore::new(self.of_namespace));
            namespaces.entry(namespace.to_owned()).or_insert_with(new).clone()
        };
        let ends = |_| "the controller is shutting down".to_owned();
        let own = turns.acquire_owned().await.map_err(ends)?;
        let one_of_all = self.all.clone().acquire_owned().await.map_err(ends)?;
        Ok(Turn { _own: own, _one_of_all: one_of_all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_namespace_takes_no_turns_from_another() {
        let turns = Turns::new(3, 1);
        let first = turns.next("a").await.unwrap();
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, turns.next("a")).await.is_err());
        let other = tokio::time::timeout(soon, turns.next("b")).await.unwrap();
        drop((first, other));
        assert!(tokio::time::timeout(soon, turns.next("a")).await.is_ok());
        assert_eq!(turns.namespaces.lock().unwrap().len(), 1);
    }
}
