//! What a decision is made of, and what it is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    refit::{
        HostPlan, HostPlanSpec, HostSettings, MachineUid, NodeName, NodeUpdate, NodeUpdateStatus,
        UpdateGroupStatus,
    },
    version::{KubernetesVersion, StatedVersion, tag_of_image},
};

use super::{
    drain_ladder::Removal, drain_policy::DrainChoice, drain_sort::DrainView, host_steps::Reboot,
};
use crate::{
    group::{Limits, Other},
    report::Refusal,
};

/// Everything that is known of one NodeUpdate.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The NodeUpdate.
    pub update: Arc<NodeUpdate>,
    /// Every other NodeUpdate that names a Machine of this name, whatever its uid.
    pub siblings: Vec<Arc<NodeUpdate>>,
    /// The Machine of that name.
    pub machine: Option<Arc<Machine>>,
    /// Kind and name of what an operator paused: the Machine or its Cluster.
    pub paused: Option<String>,
    /// The Machine's owner or Cluster wants no guard against remediation.
    pub unguarded: bool,
    /// How a drain goes about its work here.
    pub drain: DrainChoice,
    /// What the hosts here need next to a Kubernetes version.
    pub settings: HostSettings,
    /// Why that cannot be read: nothing new begins before it can.
    pub settings_refused: Option<Refusal>,
    /// When hosts reboot.
    pub reboot: Reboot,
    /// The version that the spec of the Machine's owner asks for.
    pub owner_version: StatedVersion,
    /// The Machine's group.
    pub group: GroupState,
    /// The Machine's cluster.
    pub workload: Workload,
    /// How old an agent's report may be.
    pub report_stale_after: SignedDuration,
    /// What an API server has just refused; `None` if it refused nothing.
    pub refused: Option<Refusal>,
}

impl Snapshot {
    /// The Machine that the NodeUpdate is about: its uid, and not its name alone.
    pub fn own_machine(&self) -> Option<&Machine> {
        let uid = &self.update.spec.machine_ref.uid;
        self.machine.as_deref().filter(|machine| MachineUid::of(&machine.metadata) == *uid)
    }
}

/// What is known of a Machine's group.
#[derive(Clone, Debug)]
pub enum GroupState {
    /// The Machine has no owner that is known.
    None,
    /// The group's object is not there yet.
    Missing,
    /// The group.
    Present(Group),
}

/// A group of machines.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its status, as it was read.
    pub status: UpdateGroupStatus,
    /// How many may be down.
    pub limits: Limits,
    /// The other Machines.
    pub others: Vec<Other>,
    /// Whether the last other NodeUpdate of the group to the same version that was the first
    /// control plane passed `kubeadm-upgrade`; `None` without one.
    pub last_first_passed: Option<bool>,
}

/// What is known of a workload cluster.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Its first lists are not complete.
    NotSynced,
    /// Its API server does not answer.
    Unreachable {
        /// Name of the Cluster.
        cluster: String,
    },
    /// What its watches saw.
    Seen(Seen),
}

/// What the watches of a workload cluster saw.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The HostPlan of the Machine's Node.
    pub host_plan: Option<Arc<HostPlan>>,
    /// Name of the Machine's Node; empty if it has none.
    pub node_name: NodeName,
    /// Every Node of the cluster, in order.
    pub nodes: Vec<NodeView>,
    /// Mirror pods of the control plane, in order.
    pub static_pods: Vec<StaticPod>,
    /// The cluster's control plane Machines.
    pub control_plane: Vec<ControlPlaneMember>,
    /// Pods on the Node and what concerns them; `None` if nothing looked.
    pub drain: Option<DrainView>,
    /// Evictions that were just refused; `None` if none was tried.
    pub evictions: Option<Vec<EvictionRefusal>>,
}

impl Seen {
    /// The Machine's Node.
    pub fn node(&self) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.name == self.node_name)
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
}

/// A Node of a workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// Condition Ready is True.
    pub ready: bool,
    /// `lastHeartbeatTime` of the condition Ready.
    pub heartbeat: Option<Timestamp>,
    /// Version of the kubelet, as the Node shows it.
    pub kubelet_version: StatedVersion,
    /// Changes with each boot.
    pub boot_id: String,
    /// No new pods.
    pub unschedulable: bool,
    /// The NodeUpdate that cordoned it: [`refit_kinds::keys::CORDONED_BY`].
    pub cordoned_by: Option<String>,
    /// External load balancers leave it out: [`refit_kinds::keys::EXCLUDE_FROM_LOAD_BALANCERS`].
    pub excluded: bool,
    /// The NodeUpdate that took it out of them: [`refit_kinds::keys::EXCLUDED_BY`].
    pub excluded_by: Option<String>,
    /// Keys of taints that keep pods away, but for the one of a cordon.
    pub taints: Vec<String>,
}

impl NodeView {
    /// Whether the cordon on the node is ours.
    pub fn cordoned_by_us(&self) -> bool {
        self.unschedulable && self.cordoned_by.is_some()
    }
}

/// The version of an image, by its tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageVersion {
    /// It has no tag.
    #[default]
    Untagged,
    /// A version.
    Version(KubernetesVersion),
    /// A tag that is not a version: it is not the goal, whatever that is.
    Other,
}

impl ImageVersion {
    /// What a tag says.
    pub fn of_tag(tag: &str) -> Self {
        KubernetesVersion::of_image_tag(tag).map_or(Self::Other, Self::Version)
    }

    /// What an image's tag says.
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
    /// What its image is.
    pub version: ImageVersion,
    /// Condition Ready is True.
    pub ready: bool,
}

/// Names a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// uid: an eviction is of this pod, not of a later one of the same name.
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An eviction that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRefusal {
    /// The pod.
    pub pod: PodRef,
    /// Why.
    pub refusal: Refusal,
}

/// What is to be done about a NodeUpdate: at most one write, then another look.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status as it should be.
    pub status: NodeUpdateStatus,
    /// The one next write.
    pub write: Option<Write>,
    /// What to announce before that write.
    pub announce: Vec<Announcement>,
    /// What keeps the update from going on.
    pub blockers: Vec<Refusal>,
    /// When to look again even if nothing changes; `None`: only if something does.
    pub requeue: Option<Duration>,
}

/// One write, by where it goes. Each is guarded by the resourceVersion of what was read, or is
/// harmless to repeat.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// To the management cluster.
    Management(ManagementWrite),
    /// Writes the HostPlan's spec, in the cluster that keeps HostPlans.
    HostPlan(HostPlanSpec),
    /// To the workload cluster.
    Workload(WorkloadWrite),
}

/// A write to the management cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagementWrite {
    /// Writes [`Decision::status`].
    Status,
    /// Writes the group's status, with our slot in it.
    ClaimSlot(UpdateGroupStatus),
    /// Writes the group's status, without our slot.
    ReleaseSlot(UpdateGroupStatus),
    /// Sets (`Some`) and removes (`None`) annotations of the Machine.
    Guard(BTreeMap<String, Option<String>>),
    /// The same at the end.
    Unguard(BTreeMap<String, Option<String>>),
    /// Sets the Machine's condition `MachineUpToDate`, or removes it.
    MachineCondition(Option<Condition>),
}

/// A write to the workload cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadWrite {
    /// Makes the Node unschedulable and notes that we did.
    Cordon,
    /// Makes the Node schedulable and removes the note.
    Uncordon,
    /// Takes the Node out of its load balancers and notes that we did.
    Exclude,
    /// Gives it back to them and removes the note.
    Include,
    /// Evicts pods, or removes them in a harder way.
    Evict(Vec<Removal>),
}

impl Write {
    /// Writes [`Decision::status`].
    pub const STATUS: Self = Self::Management(ManagementWrite::Status);

    /// What is asked of the API server, as a refusal names it.
    pub fn target(&self) -> &'static str {
        use ManagementWrite::{ClaimSlot, Guard, MachineCondition, ReleaseSlot, Status, Unguard};
        use WorkloadWrite::{Cordon, Evict, Exclude, Include, Uncordon};
        match self {
            Self::Management(Status) => "a write to the NodeUpdate",
            Self::Management(ClaimSlot(_) | ReleaseSlot(_)) => "a write to the UpdateGroup",
            Self::Management(Guard(_) | Unguard(_)) => "a write to the Machine",
            Self::Management(MachineCondition(_)) => "a write to the Machine's status",
            Self::HostPlan(_) => "a write to the HostPlan",
            Self::Workload(Cordon | Uncordon | Exclude | Include) => "a write to the Node",
            Self::Workload(Evict(_)) => "an eviction",
        }
    }
}

/// An event on the Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Whether somebody should look.
    pub severity: Severity,
    /// CamelCase reason.
    pub reason: &'static str,
    /// What happened.
    pub message: String,
}

/// Whether somebody should look at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As planned.
    Normal,
    /// Somebody should look.
    Warning,
}
