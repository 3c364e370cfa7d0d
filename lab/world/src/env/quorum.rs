//! Whether the API of a workload cluster is up: one API server must run, and etcd needs more than
//! half of its members.

use std::{collections::BTreeMap, sync::Arc};

use super::state::ClusterState;
use crate::world::{Inner, WorldError, lock};

/// The state of one cluster's control plane hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPlane {
    /// Members of etcd.
    pub(crate) members: usize,
    /// Members that are up.
    pub(crate) members_up: usize,
    /// API servers that are up.
    pub(crate) servers_up: usize,
}

impl ControlPlane {
    fn add(&mut self, server_up: bool, member_up: bool) {
        self.members += 1;
        self.members_up += usize::from(member_up);
        self.servers_up += usize::from(server_up);
    }

    /// Whether a request can be served. An API server without an etcd quorum is not ready, and a
    /// load balancer sends it no requests.
    pub(crate) fn answers(self) -> bool {
        self.servers_up > 0 && self.members_up > self.members / 2
    }
}

/// Starts and stops the APIs of all clusters that are set up, according to their hosts.
pub(crate) fn apply(inner: &Arc<Inner>) -> Result<(), WorldError> {
    let (clusters, mut planes) = look(inner);
    for (key, cluster) in clusters {
        let plane = planes.remove(&key).unwrap_or_default();
        // While `kubeadm init` runs, the first host is not a member yet.
        if plane.answers() {
            begin(inner, &key, &cluster)?;
        } else {
            end(inner, &key, &cluster);
        }
    }
    Ok(())
}

/// The clusters that are set up, and the state of their control planes.
fn look(inner: &Inner) -> (BTreeMap<String, ClusterState>, BTreeMap<String, ControlPlane>) {
    let now = inner.clock.now();
    let env = lock(&inner.env);
    let hosts = lock(&inner.hosts);
    let mut planes: BTreeMap<String, ControlPlane> = BTreeMap::new();
    for (key, record) in env.hosts.iter().filter(|(_, host)| host.control_plane) {
        if let Some(host) = hosts.get(key) {
            let plane = planes.entry(record.cluster.clone()).or_default();
            let (server_up, member_up) = host.control_plane(now);
            plane.add(server_up, member_up);
        }
    }
    let clusters = env.clusters.iter().filter(|(_, known)| known.initialized);
    let clusters = clusters.map(|(key, known)| (key.clone(), known.clone()));
    (clusters.collect(), planes)
}

fn begin(inner: &Arc<Inner>, key: &str, cluster: &ClusterState) -> Result<(), WorldError> {
    let mut workloads = lock(&inner.workloads);
    let Some(workload) = workloads.get_mut(key).filter(|w| w.serving.is_none()) else {
        return Ok(());
    };
    let (host, port) = (&cluster.host, cluster.port);
    workload.serving = Some(inner.serve(host, port, &workload.server, &workload.identity)?);
    drop(workloads);
    publish_api_state(inner, key, true);
    Ok(())
}

fn end(inner: &Inner, key: &str, cluster: &ClusterState) {
    let serving = lock(&inner.workloads).get_mut(key).and_then(|workload| workload.serving.take());
    if let Some(serving) = serving {
        tracing::info!(cluster = key, "stopping the API server");
        // New connections are refused, existing ones are cut.
        inner.network.close(&cluster.host, cluster.port);
        serving.abort();
        publish_api_state(inner, key, false);
    }
}

fn publish_api_state(inner: &Inner, key: &str, answers: bool) {
    inner.apis.send_modify(|apis| {
        apis.insert(key.to_owned(), answers);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(members: usize, members_up: usize, servers_up: usize) -> ControlPlane {
        ControlPlane { members, members_up, servers_up }
    }

    #[test]
    fn an_api_needs_one_server_and_more_than_half_of_etcd() {
        for (members, members_up, servers_up, answers) in [
            (0, 0, 0, false),
            (1, 1, 1, true),
            (1, 1, 0, false),
            (2, 1, 1, false),
            (3, 2, 1, true),
            (3, 1, 1, false),
            (4, 2, 2, false),
            (5, 3, 3, true),
        ] {
            let plane = plane(members, members_up, servers_up);
            assert_eq!(plane.answers(), answers, "{plane:?}");
        }
    }
}
