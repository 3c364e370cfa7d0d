//! A workload cluster as its watches show it.

use std::sync::Arc;

use jiff::Timestamp;
use refit_kinds::{
    refit::{HostPlan, NodeName},
    version::{KubernetesVersion, StatedVersion, tag_of_image},
};

use super::{budgets::DrainAhead, drain_sort::DrainView, snapshot::EvictionRefusal};

/// State of a workload cluster.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per decision, and most are `Seen`")]
pub enum Workload {
    /// Its first lists are not complete.
    NotSynced,
    /// Its API server does not respond.
    Unreachable {
        /// Name of the Cluster.
        cluster: String,
    },
    /// Its API server sends more than Refit accepts from one cluster.
    TooLarge {
        /// Name of the Cluster.
        cluster: String,
        /// What it sends too much of: `it has more than 500 Pods`.
        what: String,
    },
    /// Data from its watches.
    Seen(Seen),
}

/// Data from the watches of a workload cluster.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Since when the watches have been complete: earlier, a report may have been missed.
    pub complete_since: Timestamp,
    /// The HostPlan of the Machine's Node.
    pub host_plan: Option<Arc<HostPlan>>,
    /// When the last report in it arrived, by the clock of the controller ([`super::Arrival`]).
    pub reported_at: Option<Timestamp>,
    /// Name of the Machine's Node; empty if it has none.
    pub node_name: NodeName,
    /// Every Node of the cluster, in order of name.
    pub nodes: Vec<Arc<NodeView>>,
    /// Mirror pods of the control plane, in order.
    pub static_pods: Vec<StaticPod>,
    /// The cluster's control plane Machines.
    pub control_plane: Vec<ControlPlaneMember>,
    /// The version that the API server reports, where the control plane has no Machines.
    pub api_server: StatedVersion,
    /// Pods on the Node and related objects; `None` if they were not listed.
    pub drain: Option<DrainView>,
    /// The same, read before the drain; `None` if it was not.
    pub ahead: Option<DrainAhead>,
    /// Evictions that were just rejected; `None` if no eviction was attempted.
    pub evictions: Option<Vec<EvictionRefusal>>,
}

impl Seen {
    /// The Machine's Node.
    pub fn node(&self) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.name == self.node_name).map(AsRef::as_ref)
    }
}

/// A Machine of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlaneMember {
    /// Name of the Machine.
    pub machine: String,
    /// Its Node, if it has one.
    pub node: Option<NodeName>,
    /// Whether the Machine is being deleted.
    pub deleting: bool,
    /// Whether its update to a version has begun and has not ended.
    pub updating: bool,
}

/// A Node of a workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// `lastHeartbeatTime` of the condition Ready.
    pub heartbeat: Option<Timestamp>,
    /// Version of the kubelet, from the Node's status.
    pub kubelet_version: StatedVersion,
    /// Boot id; it changes with each boot.
    pub boot_id: String,
    /// Whether the Node is cordoned.
    pub unschedulable: bool,
    /// The NodeUpdate that cordoned the Node: [`refit_kinds::keys::CORDONED_BY`].
    pub cordoned_by: Option<String>,
    /// Whether external load balancers exclude it:
    /// [`refit_kinds::keys::EXCLUDE_FROM_LOAD_BALANCERS`].
    pub excluded: bool,
    /// The NodeUpdate that excluded it: [`refit_kinds::keys::EXCLUDED_BY`].
    pub excluded_by: Option<String>,
    /// The first condition that is True and reports that the node runs short of something, with its message:
    /// `DiskPressure: the disk is full`.
    pub pressure: Option<String>,
    /// Keys of taints that repel pods, except that of a cordon.
    pub taints: Vec<String>,
}

impl NodeView {
    /// Whether Refit cordoned the node.
    pub fn cordoned_by_us(&self) -> bool {
        self.unschedulable && self.cordoned_by.is_some()
    }
}

/// The version in an image tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageVersion {
    /// The image has no tag.
    #[default]
    Untagged,
    /// A version.
    Version(KubernetesVersion),
    /// The tag is not a version: it never matches a goal.
    Other,
}

impl ImageVersion {
    /// Parses a tag.
    pub fn of_tag(tag: &str) -> Self {
        KubernetesVersion::of_image_tag(tag).map_or(Self::Other, Self::Version)
    }

    /// Parses the tag of an image.
    pub fn of_image(image: Option<&str>) -> Self {
        image.and_then(tag_of_image).map_or(Self::Untagged, Self::of_tag)
    }
}

/// A mirror pod of a control plane node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPod {
    /// The node.
    pub node: NodeName,
    /// Label `component`, such as `kube-apiserver`.
    pub component: String,
    /// Version of its image.
    pub version: ImageVersion,
    /// Whether condition Ready is True.
    pub ready: bool,
}
