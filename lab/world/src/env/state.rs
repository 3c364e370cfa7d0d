//! The environment's own state outside the API: clusters that it has set up and hosts that it runs.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{HostViews, Settled, infrastructure::OpenMachines};

/// The environment's part of a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EnvState {
    /// Clusters by `namespace/name`.
    pub clusters: BTreeMap<String, ClusterState>,
    /// Hosts by `namespace/cluster/node`.
    pub hosts: BTreeMap<String, HostRecord>,
    /// The Machines that may need a write.
    #[serde(skip)]
    pub open: OpenMachines,
    /// The hosts as the last pass saw them.
    #[serde(skip)]
    pub views: Arc<HostViews>,
    /// The revision of the infrastructure machines, and the hosts, for which requested failures were last
    /// applied.
    #[serde(skip)]
    pub failures_seen: Option<(u64, Vec<String>)>,
    /// The workload clusters that needed no write, by key.
    #[serde(skip)]
    pub settled: BTreeMap<String, Settled>,
}

impl EnvState {
    /// The state for another world with the same objects: revisions count from the start of a world.
    pub(crate) fn for_restore(&self) -> Self {
        let (clusters, hosts) = (self.clusters.clone(), self.hosts.clone());
        Self { clusters, hosts, ..Self::default() }
    }
}

/// One workload cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterState {
    /// Host name or address of its API.
    pub host: String,
    /// Port of its API.
    pub port: u16,
    /// The machine that runs `kubeadm init`; all others join.
    pub first_machine: String,
    /// Whether `kubeadm init` has finished and the API is up.
    pub initialized: bool,
    /// Whether it is a cluster of Canonical Kubernetes.
    #[serde(default)]
    pub k8sd: bool,
}

/// One host, from its request until its infrastructure machine is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostRecord {
    /// Key of its cluster.
    pub cluster: String,
    /// Name of its Node, Machine and infrastructure machine.
    pub node: String,
    /// Namespace of its Machine.
    pub namespace: String,
    /// uid of the infrastructure machine.
    pub infrastructure_uid: String,
    /// Storage name of the infrastructure machine, such as `dockermachines.infrastructure...`.
    pub infrastructure_resource: String,
    /// Provider ID of the machine.
    pub provider_id: String,
    /// Whether it runs control plane components.
    pub control_plane: bool,
    /// Kubernetes version installed on it.
    pub version: String,
    /// Whether it is a host of Canonical Kubernetes.
    #[serde(default)]
    pub k8sd: bool,
    /// The option by which its snap was installed, such as `channel=1.34-classic/stable`.
    #[serde(default)]
    pub snap: String,
    /// When kubeadm has finished on it.
    pub boot_at: Timestamp,
    /// The failure requested last, as written in its annotation.
    #[serde(default)]
    pub fail_step: String,
}

impl HostRecord {
    /// Key of the host.
    pub(crate) fn key(&self) -> String {
        host_key(&self.cluster, &self.node)
    }
}

/// Key of a cluster.
pub(crate) fn cluster_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Key of a host.
pub(crate) fn host_key(cluster: &str, node: &str) -> String {
    format!("{cluster}/{node}")
}
