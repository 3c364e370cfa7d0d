//! Whether the rest of a control plane is healthy.

use std::{collections::BTreeSet, sync::Arc};

use refit_kinds::{refit::NodeName, version::KubernetesVersion};

use super::seen::{ImageVersion, NodeView, Seen, StaticPod};
use crate::report::Refusal;

/// Checks that every other member of the control plane is healthy: its Node and its static pods,
/// including etcd, are Ready.
///
/// Members are checked in order, so the refusal names the same member while nothing changes.
pub fn control_plane_health(seen: &Seen, node: &NodeName) -> Result<(), Refusal> {
    for member in &seen.control_plane {
        if member.node.as_ref() == Some(node) {
            continue;
        }
        let why = match &member.node {
            _ if member.deleting => Some("its Machine is being deleted".to_owned()),
            None => Some("it has no Node".to_owned()),
            Some(node) => member_problem(&seen.nodes, &seen.static_pods, node),
        };
        if let Some(why) = why {
            let member = member.node.as_deref().unwrap_or(&member.machine).to_owned();
            return Err(Refusal::ControlPlaneUnhealthy { member, why });
        }
    }
    Ok(())
}

/// Checks that etcd keeps its quorum while its member on this node is down.
pub(super) fn quorum(seen: &Seen, node: &NodeName) -> Result<(), Refusal> {
    let of_etcd = |pod: &&StaticPod| pod.component == "etcd";
    let nodes: BTreeSet<&NodeName> =
        seen.static_pods.iter().filter(of_etcd).map(|pod| &pod.node).collect();
    let members = nodes.len();
    let others = members - usize::from(nodes.contains(node));
    // The only member needs no other.
    if others > 0 && others < members / 2 + 1 {
        return Err(Refusal::EtcdQuorum { members });
    }
    Ok(())
}

/// Why a member of a control plane is not healthy, by its Node and its static pods.
pub fn member_problem(
    nodes: &[Arc<NodeView>],
    static_pods: &[StaticPod],
    member: &NodeName,
) -> Option<String> {
    let Some(node) = nodes.iter().find(|node| node.name == *member) else {
        return Some("its Node does not exist".to_owned());
    };
    if !node.ready {
        return Some("its Node is not Ready".to_owned());
    }
    let pods: Vec<&StaticPod> = static_pods.iter().filter(|pod| pod.node == *member).collect();
    if let Some(pod) = pods.iter().find(|pod| !pod.ready) {
        return Some(format!("{} is not Ready", pod.component));
    }
    let shown = static_pods.iter().any(|pod| pod.component == "kube-apiserver");
    let has_api_server = pods.iter().any(|pod| pod.component == "kube-apiserver");
    (shown && !has_api_server).then(|| "its kube-apiserver pod does not exist".to_owned())
}

/// The lowest version of the control plane's API servers, or of its kubelets if the pods have no
/// version; without control plane Machines, the version that the API server reports; `None` if
/// nothing is known.
pub(super) fn lowest_version(seen: &Seen) -> Option<&KubernetesVersion> {
    if seen.control_plane.is_empty() {
        return seen.api_server.version();
    }
    let nodes = seen.control_plane.iter().filter_map(|member| member.node.as_ref());
    let version = |node: &NodeName| {
        let api_server = |pod: &&StaticPod| pod.node == *node && pod.component == "kube-apiserver";
        match seen.static_pods.iter().find(api_server).map(|pod| &pod.version) {
            Some(ImageVersion::Version(version)) => Some(version),
            Some(ImageVersion::Other) => None,
            Some(ImageVersion::Untagged) | None => {
                seen.nodes.iter().find(|known| known.name == *node)?.kubelet_version.version()
            }
        }
    };
    nodes.filter_map(version).min()
}
