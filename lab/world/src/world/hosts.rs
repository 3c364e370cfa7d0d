//! The hosts of a world: their state, their disks, and the environment's view of them.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use lab_simhost::{
    DiskState, HostState,
    k8sd::{K8sd, K8sdState, SigningRequests},
    kubelet::HostView,
};
use refit_runtime::tls::TlsError;
use serde::{Deserialize, Serialize};

use super::{Inner, World, lock};
use crate::env::{canonical, state::HostRecord};

/// A host that has booted.
#[derive(Clone)]
pub(crate) struct HostHandle {
    pub(crate) state: Arc<Mutex<HostState>>,
    pub(crate) disk: Arc<Mutex<DiskState>>,
    /// The k8sd of a host of Canonical Kubernetes.
    pub(crate) k8sd: Option<Arc<K8sd>>,
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
    /// What k8sd stores on a host of Canonical Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8sd: Option<K8sdState>,
}

impl HostHandle {
    /// Creates a host on which kubeadm, or the bootstrap of k8sd, has just finished.
    pub(crate) fn boot(key: &str, record: &HostRecord, inner: &Inner) -> Result<Self, TlsError> {
        let HostRecord { node, control_plane, version, .. } = record;
        let now = inner.clock.now();
        let (state, k8sd) = if record.k8sd {
            let k8sd = K8sd::new(inner.clock, node, &canonical::node_token(node))?;
            k8sd.install(&record.snap);
            (HostState::with_snap(node, *control_plane, version, now), Some(k8sd.state()))
        } else {
            (HostState::new(node, *control_plane, version, now), None)
        };
        Self::restore(key, &HostSnapshot { state, disk: DiskState::default(), k8sd }, inner)
    }

    /// A host as it was. Must be called in the runtime of its world.
    pub(crate) fn restore(
        key: &str,
        snapshot: &HostSnapshot,
        inner: &Inner,
    ) -> Result<Self, TlsError> {
        let HostSnapshot { state, disk, k8sd } = snapshot.clone();
        let is_worker = !state.control_plane;
        let restored = |stored| -> Result<_, TlsError> {
            let k8sd = K8sd::restore(inner.clock, stored, inner.woken.clone())?;
            k8sd.join(inner.signing_requests_of(key), is_worker);
            Ok(k8sd)
        };
        Ok(Self {
            state: Arc::new(Mutex::new(state.hurried(inner.hurry))),
            disk: Arc::new(Mutex::new(disk)),
            k8sd: k8sd.map(restored).transpose()?,
            seen: Arc::default(),
        })
    }

    pub(crate) fn snapshot(&self) -> HostSnapshot {
        HostSnapshot {
            state: lock(&self.state).clone(),
            disk: lock(&self.disk).clone(),
            k8sd: self.k8sd.as_ref().map(|k8sd| k8sd.state()),
        }
    }

    /// Lets a refresh of the snap that has ended take effect.
    fn settle(&self) {
        if let Some((option, ended)) = self.k8sd.as_ref().and_then(|k8sd| k8sd.refreshed()) {
            lock(&self.state).refreshed(&option, ended);
        }
    }

    /// The environment's view of the host, the same one while nothing changes, and when it next changes
    /// without further action.
    pub(crate) fn view(&self, now: Timestamp) -> (Arc<HostView>, Option<Timestamp>) {
        self.settle();
        let mut state = lock(&self.state);
        let mut seen = lock(&self.seen);
        let view = match seen.take().filter(|seen| seen.is_of(&mut state, now)) {
            Some(same) => same,
            None => Arc::new(HostView::of(&mut state, now)),
        };
        *seen = Some(view.clone());
        let refresh = self.k8sd.as_ref().and_then(|k8sd| k8sd.change_ends());
        let due =
            state.next_due(now).into_iter().chain(state.next_uptime_change(now)).chain(refresh);
        (view, due.min())
    }

    /// Whether its API server and its etcd member are up.
    pub(crate) fn control_plane(&self, now: Timestamp) -> (bool, bool) {
        self.settle();
        let mut state = lock(&self.state);
        state.tick(now);
        (state.api_server_up(now), state.etcd_up(now))
    }
}

impl Inner {
    /// The requests to sign certificates of the cluster of a host.
    fn signing_requests_of(&self, host: &str) -> Arc<SigningRequests> {
        let cluster = host.rsplit_once('/').map_or(host, |(cluster, _)| cluster);
        let name = cluster.rsplit('/').next().unwrap_or(cluster);
        let new = || SigningRequests::new(&canonical::node_token(name));
        lock(&self.signing_requests).entry(cluster.to_owned()).or_insert_with(new).clone()
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
