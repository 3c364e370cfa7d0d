//! Machine identities: they distinguish a machine that was kept from one that was replaced.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::Machine;
use refit_core::progress::owner_of;
use refit_kinds::keys;
use refit_kinds::version::StatedVersion;
use serde::{Deserialize, Serialize};

use super::{World, WorldError};

/// User agent of the client that reads facts.
const READER: &str = "refit-sandbox-facts";

/// The identity of one machine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineFacts {
    /// Namespace of the Machine.
    pub namespace: String,
    /// Name of the Machine.
    pub name: String,
    /// Cluster that it belongs to.
    pub cluster: String,
    /// KubeadmControlPlane or MachineDeployment that it belongs to, as `Kind/name`.
    pub owner: String,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// uid of the Machine.
    pub uid: String,
    /// Provider ID of the Machine.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Name of the Node.
    pub node_name: String,
    /// uid of the Node.
    pub node_uid: String,
    /// Boot ID of the Node.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Version of the running kubelet.
    pub kubelet_version: StatedVersion,
}

/// Why facts cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// No client for an API can be created.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A request failed.
    #[error("failed to read {what}: {source}")]
    Read {
        /// The objects that were requested.
        what: String,
        /// The underlying error.
        source: Box<kube::Error>,
    },
}

/// Reads the facts of all machines, in order of namespace and name. Uses its own clients.
pub async fn facts(world: &World) -> Result<Vec<MachineFacts>, FactsError> {
    let read = |what: &str| {
        let what = what.to_owned();
        move |source| FactsError::Read { what, source: Box::new(source) }
    };
    let mut nodes: BTreeMap<(String, String), Node> = BTreeMap::new();
    for cluster in world.clusters() {
        let Ok(client) = world.workload_client(&cluster, READER) else {
            continue;
        };
        let api: Api<Node> = Api::all(client);
        let list = api.list(&ListParams::default()).await.map_err(read("the Nodes"))?;
        for node in list {
            nodes.insert((cluster.clone(), node.name_any()), node);
        }
    }
    let api: Api<Machine> = Api::all(world.client(READER)?);
    let machines = api.list(&ListParams::default()).await.map_err(read("the Machines"))?;
    let mut facts: Vec<MachineFacts> =
        machines.into_iter().map(|machine| facts_of(&machine, &nodes)).collect();
    facts.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Ok(facts)
}

fn facts_of(machine: &Machine, nodes: &BTreeMap<(String, String), Node>) -> MachineFacts {
    let namespace = machine.namespace().unwrap_or_default();
    let status = machine.status.as_ref();
    let node_name = status
        .and_then(|status| status.node_ref.as_ref())
        .map(|node| node.name.clone())
        .unwrap_or_default();
    let cluster = &machine.spec.cluster_name;
    let node = nodes.get(&(format!("{namespace}/{cluster}"), node_name.clone()));
    let info =
        node.and_then(|node| node.status.as_ref()).and_then(|status| status.node_info.as_ref());
    MachineFacts {
        name: machine.name_any(),
        cluster: cluster.clone(),
        owner: owner_of(machine),
        control_plane: machine.labels().contains_key(keys::CONTROL_PLANE),
        uid: machine.uid().unwrap_or_default(),
        provider_id: machine.spec.provider_id.clone().unwrap_or_default(),
        node_uid: node.and_then(kube::ResourceExt::uid).unwrap_or_default(),
        boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
        kubelet_version: info.map(|info| info.kubelet_version.as_str().into()).unwrap_or_default(),
        namespace,
        node_name,
    }
}
