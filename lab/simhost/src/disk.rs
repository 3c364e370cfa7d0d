//! A disk in memory: unsynced data is lost with the process.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use refit_agent::Disk;
use refit_runtime::gate::{Effect, Fate, Gate, never};
use serde::{Deserialize, Serialize};

/// The durable content of a simulated disk. Part of a snapshot of the world.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// Content by path.
    pub files: BTreeMap<String, String>,
}

/// A disk in memory, as one run of a process sees it.
///
/// Unsynced data lives in this handle. A restarted process gets another handle on the same
/// [`DiskState`], which does not see that data.
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
    unsynced: Mutex<BTreeMap<String, String>>,
    gate: Arc<dyn Gate>,
    forgetful: bool,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk").field("forgetful", &self.forgetful).finish_non_exhaustive()
    }
}

impl SimDisk {
    /// Creates a disk over `state`. Each durable append passes `gate` as [`Effect::Journal`].
    pub fn new(state: Arc<Mutex<DiskState>>, gate: Arc<dyn Gate>) -> Self {
        Self { state, unsynced: Mutex::default(), gate, forgetful: false }
    }

    /// If `true`, the disk accepts every write and keeps nothing. Sabotages the journal.
    #[must_use]
    pub fn forgetful(mut self, forgetful: bool) -> Self {
        self.forgetful = forgetful;
        self
    }

    /// Discards unsynced data.
    pub fn crash(&self) {
        lock(&self.unsynced).clear();
    }

    async fn durable(
        &self,
        what: &str,
        write: impl FnOnce(&mut DiskState) + Send,
    ) -> io::Result<()> {
        let effect = Effect::Journal { record: what.to_owned() };
        if self.gate.before(&effect) == Fate::Dead {
            return never().await;
        }
        if !self.forgetful {
            write(&mut lock(&self.state));
        }
        if self.gate.after(&effect) == Fate::Dead {
            return never().await;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(bytes: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Disk for SimDisk {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            if self.gate.fate() == Fate::Dead {
                return never().await;
            }
            let durable = lock(&self.state).files.get(path).cloned();
            let unsynced = lock(&self.unsynced).get(path).cloned();
            Ok(match (durable, unsynced) {
                (None, None) => None,
                (durable, unsynced) => {
                    Some((durable.unwrap_or_default() + &unsynced.unwrap_or_default()).into_bytes())
                }
            })
        })
    }

    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            if self.gate.fate() == Fate::Dead {
                return never().await;
            }
            let text = text(bytes)?;
            lock(&self.unsynced).entry(path.to_owned()).or_default().push_str(&text);
            Ok(())
        })
    }

    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let Some(bytes) = lock(&self.unsynced).remove(path) else {
                return Ok(());
            };
            self.durable(what, |state| {
                state.files.entry(path.to_owned()).or_default().push_str(&bytes);
            })
            .await
        })
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let text = text(bytes)?;
            lock(&self.unsynced).remove(path);
            self.durable(what, |state| {
                state.files.insert(path.to_owned(), text);
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests {
    use refit_agent::RealDisk;
    use refit_runtime::gate::Open;

    use super::*;

    fn sim(state: &Arc<Mutex<DiskState>>) -> SimDisk {
        SimDisk::new(state.clone(), Arc::new(Open))
    }

    async fn content(disk: &dyn Disk) -> Option<String> {
        let bytes = disk.read("f").await.unwrap()?;
        Some(String::from_utf8(bytes).unwrap())
    }

    async fn behaves_like_a_file(disk: &dyn Disk) {
        assert_eq!(content(disk).await, None);
        disk.append("f", b"a").await.unwrap();
        disk.append("f", b"b").await.unwrap();
        disk.sync("f", "ab").await.unwrap();
        assert_eq!(content(disk).await.as_deref(), Some("ab"));
        disk.write_atomic("f", b"c", "c").await.unwrap();
        disk.append("f", b"d").await.unwrap();
        assert_eq!(content(disk).await.as_deref(), Some("cd"));
    }

    #[tokio::test]
    async fn real_and_simulated_disks_agree() {
        let directory = tempfile::tempdir().unwrap();
        let real = RealDisk::open(directory.path().join("state/refit")).unwrap();
        behaves_like_a_file(&real).await;
        behaves_like_a_file(&sim(&Arc::default())).await;
    }

    #[tokio::test]
    async fn unsynced_bytes_are_lost_in_a_crash() {
        let state = Arc::default();
        let disk = sim(&state);
        disk.append("f", b"kept").await.unwrap();
        disk.sync("f", "").await.unwrap();
        disk.append("f", b" lost").await.unwrap();
        assert_eq!(content(&sim(&state)).await.as_deref(), Some("kept"));
        disk.crash();
        assert_eq!(content(&disk).await.as_deref(), Some("kept"));
    }

    #[tokio::test]
    async fn a_forgetful_disk_accepts_and_keeps_nothing() {
        let state = Arc::default();
        let disk = sim(&state).forgetful(true);
        disk.append("f", b"x").await.unwrap();
        disk.sync("f", "").await.unwrap();
        disk.write_atomic("f", b"y", "").await.unwrap();
        assert_eq!(content(&disk).await, None);
    }

    #[test]
    fn a_disk_state_survives_serialisation() {
        let mut state = DiskState::default();
        state.files.insert("f".to_owned(), "line\n".to_owned());
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<DiskState>(&text).unwrap(), state);
    }

    /// Kills the process at its first effect, before or after it.
    struct Killer {
        before: Fate,
    }

    impl Gate for Killer {
        fn before(&self, _: &Effect) -> Fate {
            self.before
        }
        fn after(&self, _: &Effect) -> Fate {
            Fate::Dead
        }
        fn fate(&self) -> Fate {
            Fate::Alive
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_kill_before_the_sync_loses_the_record() {
        for (before, expected) in [(Fate::Dead, None), (Fate::Alive, Some("x"))] {
            let state = Arc::default();
            let disk = SimDisk::new(Arc::clone(&state), Arc::new(Killer { before }));
            disk.append("f", b"x").await.unwrap();
            let answer =
                tokio::time::timeout(std::time::Duration::from_secs(1), disk.sync("f", "")).await;
            assert!(answer.is_err(), "a dead process gets no answer");
            assert_eq!(content(&sim(&state)).await.as_deref(), expected);
        }
    }
}
