//! Which pods must leave a node, and whether the drain goes on.

use super::snapshot::{NodeView, PodRef};

/// A pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// The pod.
    pub pod: PodRef,
    /// A DaemonSet made it: it would come back at once.
    pub daemon_set: bool,
    /// A mirror pod: the kubelet runs it from a file.
    pub mirror: bool,
    /// It has ended.
    pub finished: bool,
    /// It is being deleted.
    pub terminating: bool,
}

/// Pods that must leave before the node is disturbed (`spec/node.md 2.7`): all but those of
/// DaemonSets, mirror pods and those that have ended. One that is being deleted is still there.
pub fn evictable(pods: &[PodView]) -> impl Iterator<Item = &PodView> {
    pods.iter().filter(|pod| !pod.daemon_set && !pod.mirror && !pod.finished)
}

/// Whether some other node could take the pods of this one: Ready, open, and with no taint that
/// this node does not have too (`spec/node.md 2.8`).
pub(super) fn another_could_take(node: &NodeView, nodes: &[NodeView]) -> bool {
    nodes
        .iter()
        .filter(|other| other.name != node.name && other.ready && !other.unschedulable)
        .any(|other| other.taints.iter().all(|taint| node.taints.contains(taint)))
}
