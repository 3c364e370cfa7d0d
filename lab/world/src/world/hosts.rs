//! Hosts of a world: their state, their disks, and what the environment sees of them.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use lab_simhost::{DiskState, HostState, kubelet::HostView};
use serde::{Deserialize, Serialize};

use super::{World, lock};
use crate::env::state::HostRecord;

/// A host that has booted.
#[derive(Clone)]
pub(crate) struct HostHandle {
    pub(crate) state: Arc<Mutex<HostState>>,
    pub(crate) disk: Arc<Mutex<DiskState>>,
}

/// A host in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostSnapshot {
    /// The host itself.
    pub state: HostState,
    /// What its agent wrote durably.
    pub disk: DiskState,
}

impl HostHandle {
    /// A host on which kubeadm just ended.
    pub(crate) fn boot(record: &HostRecord, now: Timestamp, hurry: u32) -> Self {
        let state = HostState::new(&record.node, record.control_plane, &record.version, now);
        let state = state.hurried(hurry);
        Self { state: Arc::new(Mutex::new(state)), disk: Arc::default() }
    }

    pub(crate) fn restore(snapshot: &HostSnapshot, hurry: u32) -> Self {
        Self {
            state: Arc::new(Mutex::new(snapshot.state.clone().hurried(hurry))),
            disk: Arc::new(Mutex::new(snapshot.disk.clone())),
        }
    }

    pub(crate) fn snapshot(&self) -> HostSnapshot {
        HostSnapshot { state: lock(&self.state).clone(), disk: lock(&self.disk).clone() }
    }

    /// What the environment sees now, and when that changes by itself.
    pub(crate) fn view(&self, now: Timestamp) -> (HostView, Option<Timestamp>) {
        let mut state = lock(&self.state);
        let view = HostView::of(&mut state, now);
        let due = state.next_due(now).into_iter().chain(state.next_uptime_change(now));
        (view, due.min())
    }

    /// Whether its API server and its etcd member answer now.
    pub(crate) fn control_plane(&self, now: Timestamp) -> (bool, bool) {
        let mut state = lock(&self.state);
        state.tick(now);
        (state.api_server_up(now), state.etcd_up(now))
    }
}

impl World {
    /// Looks at the host of a node, or does something to it behind everybody's back.
    pub fn with_host<T>(&self, node: &str, act: impl FnOnce(&mut HostState) -> T) -> Option<T> {
        let host = {
            let hosts = lock(&self.inner.hosts);
            let found = hosts.iter().find(|(key, _)| key.rsplit('/').next() == Some(node));
            found.map(|(_, host)| host.clone())
        }?;
        let outcome = {
            let mut state = lock(&host.state);
            state.tick(self.now());
            act(&mut state)
        };
        self.inner.woken.notify_one();
        Some(outcome)
    }

    /// Names of the nodes whose hosts have booted.
    pub fn host_nodes(&self) -> Vec<String> {
        let hosts = lock(&self.inner.hosts);
        let nodes = hosts.keys().map(|key| key.rsplit('/').next().unwrap_or(key));
        nodes.map(str::to_owned).collect()
    }
}
