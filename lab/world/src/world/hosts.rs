//! The hosts of a world: their state, their disks, and the environment's view of them.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use lab_simhost::{DiskState, HostState, kubelet::HostView};
use serde::{Deserialize, Serialize};

use super::{Inner, World, lock};
use crate::env::state::HostRecord;

/// A host that has booted.
#[derive(Clone)]
pub(crate) struct HostHandle {
    pub(crate) state: Arc<Mutex<HostState>>,
    pub(crate) disk: Arc<Mutex<DiskState>>,
    /// The environment's last view of it.
    seen: Arc<Mutex<Option<Arc<HostView>>>>,
}

/// A host in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostSnapshot {
    /// State of the host.
    pub state: HostState,
    /// The agent's durable data.
    pub disk: DiskState,
}

impl HostHandle {
    /// Creates a host on which kubeadm has just finished.
    pub(crate) fn boot(record: &HostRecord, now: Timestamp, hurry: u32) -> Self {
        let state = HostState::new(&record.node, record.control_plane, &record.version, now);
        let state = state.hurried(hurry);
        Self::of(state, DiskState::default())
    }

    pub(crate) fn restore(snapshot: &HostSnapshot, hurry: u32) -> Self {
        Self::of(snapshot.state.clone().hurried(hurry), snapshot.disk.clone())
    }

    fn of(state: HostState, disk: DiskState) -> Self {
        Self {
            state: Arc::new(Mutex::new(state)),
            disk: Arc::new(Mutex::new(disk)),
            seen: Arc::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> HostSnapshot {
        HostSnapshot { state: lock(&self.state).clone(), disk: lock(&self.disk).clone() }
    }

    /// The environment's view of the host, the same one while nothing changes, and when it next changes
    /// without further action.
    pub(crate) fn view(&self, now: Timestamp) -> (Arc<HostView>, Option<Timestamp>) {
        let mut state = lock(&self.state);
        let mut seen = lock(&self.seen);
        let view = match seen.take().filter(|seen| seen.is_of(&mut state, now)) {
            Some(same) => same,
            None => Arc::new(HostView::of(&mut state, now)),
        };
        *seen = Some(view.clone());
        let due = state.next_due(now).into_iter().chain(state.next_uptime_change(now));
        (view, due.min())
    }

    /// Whether its API server and its etcd member are up.
    pub(crate) fn control_plane(&self, now: Timestamp) -> (bool, bool) {
        let mut state = lock(&self.state);
        state.tick(now);
        (state.api_server_up(now), state.etcd_up(now))
    }
}

impl World {
    /// Reads or modifies the host of a node directly. No component is notified.
    pub fn with_host<T>(&self, node: &str, act: impl FnOnce(&mut HostState) -> T) -> Option<T> {
        self.inner.with_host(node, act)
    }

    /// Names of the nodes whose hosts have booted.
    pub fn host_nodes(&self) -> Vec<String> {
        let hosts = lock(&self.inner.hosts);
        let nodes = hosts.keys().map(|key| key.rsplit('/').next().unwrap_or(key));
        nodes.map(str::to_owned).collect()
    }
}

impl Inner {
    /// As [`World::with_host`].
    pub(crate) fn with_host<T>(
        &self,
        node: &str,
        act: impl FnOnce(&mut HostState) -> T,
    ) -> Option<T> {
        let host = {
            let hosts = lock(&self.hosts);
            let found = hosts.iter().find(|(key, _)| key.rsplit('/').next() == Some(node));
            found.map(|(_, host)| host.clone())
        }?;
        let outcome = {
            let mut state = lock(&host.state);
            state.tick(self.clock.now());
            act(&mut state)
        };
        self.woken.notify_one();
        Some(outcome)
    }
}
