//! Saves the whole state of a world.

use std::collections::BTreeMap;
#[cfg(feature = "sabotage")]
use std::path::Path;

use jiff::Timestamp;
use lab_apiserver::StoreSnapshot;
use serde::{Deserialize, Serialize};

use crate::{
    env::state::EnvState,
    pki::Identity,
    world::{Actor, HostSnapshot, Inner, World, lock},
};

/// Everything that outlives the processes: stores, hosts, disks, certificates, time and counters.
///
/// Taking a snapshot copies pointers, not objects. A snapshot contains private keys, but only those
/// of a sandbox.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub(crate) time: Timestamp,
    pub(crate) seed: u64,
    pub(crate) management: StoreSnapshot,
    pub(crate) management_identity: Identity,
    pub(crate) hook_identity: Identity,
    pub(crate) workloads: BTreeMap<String, WorkloadSnapshot>,
    pub(crate) env: EnvState,
    pub(crate) hosts: BTreeMap<String, HostSnapshot>,
    pub(crate) incarnations: Vec<(Actor, u32)>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("time", &self.time).finish_non_exhaustive()
    }
}

/// One workload cluster in a snapshot.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct WorkloadSnapshot {
    pub(crate) store: StoreSnapshot,
    pub(crate) identity: Identity,
}

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error("failed to access {path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The file is not a snapshot.
    #[error("{path} is not a snapshot of a world: {source}")]
    Content {
        /// Path of the file.
        path: String,
        /// The underlying error.
        source: serde_json::Error,
    },
}

impl World {
    /// Saves the current state of the world.
    pub fn snapshot(&self) -> Snapshot {
        take(&self.inner)
    }
}

/// Saves the current state of a world. The caller must not hold any of its locks.
pub(crate) fn take(inner: &Inner) -> Snapshot {
    let workloads = lock(&inner.workloads)
        .iter()
        .map(|(key, workload)| {
            let part = WorkloadSnapshot {
                store: workload.server.snapshot(),
                identity: workload.identity.clone(),
            };
            (key.clone(), part)
        })
        .collect();
    let hosts =
        lock(&inner.hosts).iter().map(|(key, host)| (key.clone(), host.snapshot())).collect();
    Snapshot {
        time: inner.clock.now(),
        seed: inner.seed,
        management: inner.management.snapshot(),
        management_identity: inner.management_identity.clone(),
        hook_identity: inner.hook_identity.clone(),
        workloads,
        env: lock(&inner.env).clone(),
        hosts,
        incarnations: lock(&inner.incarnations)
            .iter()
            .map(|(actor, count)| (actor.clone(), *count))
            .collect(),
    }
}

/// Writes a value to a file as JSON.
#[cfg(feature = "sabotage")]
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<(), SnapshotError> {
    let name = path.display().to_string();
    let file_error = |source| SnapshotError::File { path: name.clone(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(file_error)?;
    }
    let bytes = serde_json::to_vec(value)
        .map_err(|source| SnapshotError::Content { path: name.clone(), source })?;
    std::fs::write(path, bytes).map_err(file_error)
}

/// Reads a value written by [`write`].
#[cfg(feature = "sabotage")]
pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, SnapshotError> {
    let name = path.display().to_string();
    let bytes =
        std::fs::read(path).map_err(|source| SnapshotError::File { path: name.clone(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| SnapshotError::Content { path: name, source })
}
