//! What a plan waits for, and why: one variant for every refusal to act.
//!
//! Nothing waits silently: every decision not to proceed returns a [`Refusal`], which appears in
//! `NodeUpdate.status.blockedBy`, in `UpdateGroup.status.waiting` and in the response of the
//! UpdateMachine hook.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{Blocker, NodeName, StepType},
    version::{KubernetesVersion, StatedVersion},
};
use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

pub use self::reason::{EndsBy, Reason};
use crate::{
    gates::ClosedGate,
    node::{DrainRefusal, Specificity},
};

mod reason;
mod sentence;
#[cfg(test)]
mod tests;

/// The object of a wait for a Machine that Cluster API has not created yet.
pub const MISSING_MACHINE: &str = "a missing Machine";

/// Why an update does not proceed at the moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, EnumDiscriminants)]
#[strum_discriminants(
    name(RefusalReason),
    doc = "Why an update does not continue.",
    derive(EnumString, IntoStaticStr, VariantNames)
)]
pub enum Refusal {
    /// Every slot of the group is in use.
    SlotBusy {
        /// A Machine that holds a slot.
        machine: String,
    },
    /// The rollout waits for an approval after its first machines.
    ApprovalRequired {
        /// The owner of the group, as a command names it.
        owner: String,
        /// Number of the rollout.
        number: i64,
        /// What the rollout updates machines to.
        target: String,
        /// How many machines have begun.
        begun: usize,
    },
    /// The failures of the rollout have stopped it.
    RolloutStopped {
        /// The owner of the group, as a command names it.
        owner: String,
        /// What the rollout updates machines to.
        target: String,
        /// The machines that failed.
        machines: Vec<String>,
        /// Reason and step of their failure, if it is the same.
        cause: Option<String>,
    },
    /// An operator holds the machine.
    Held {
        /// The Machine.
        machine: String,
        /// Why it is held.
        reason: String,
    },
    /// An operator leaves the machine out of the rollout.
    Skipped {
        /// The Machine.
        machine: String,
        /// Why it is left out.
        reason: String,
    },
    /// The machine that was updated last has not been back long enough.
    Soaking {
        /// When it has been.
        until: Timestamp,
    },
    /// No maintenance window of the group is open for long enough.
    WindowClosed {
        /// When the next one opens in which the update fits.
        opens: Timestamp,
        /// When the present one closes, if one is open.
        closes: Option<Timestamp>,
        /// How long the update is expected to take.
        needs: Expected,
    },
    /// No maintenance window of the group will be open for long enough, or they cannot be read.
    NoWindow {
        /// The owner of the group, as a command names it.
        owner: String,
        /// What is wrong.
        why: String,
    },
    /// Health gates of the group are closed.
    GateClosed {
        /// The owner of the group, as a command names it.
        owner: String,
        /// The gates.
        closed: Vec<ClosedGate>,
    },
    /// Another machine of the group comes first.
    OutOfTurn {
        /// The Machine.
        machine: String,
    },
    /// Too few of the group's other machines are available.
    GroupUnavailable {
        /// Number of other machines that are available.
        available: i32,
        /// Number of other machines that must be available.
        needed: i32,
        /// Whether the group has fewer Machines than its owner asks for.
        lacks_machines: bool,
    },
    /// Another member of the control plane is not healthy.
    ControlPlaneUnhealthy {
        /// The member's node or Machine.
        member: String,
        /// What is wrong with the member.
        why: String,
    },
    /// etcd would lose its quorum.
    EtcdQuorum {
        /// How many members it has.
        members: usize,
    },
    /// A kubelet would become newer than an API server of its cluster.
    ControlPlaneBehind {
        /// Lowest version in the control plane; absent if none is known.
        version: StatedVersion,
        /// Target version.
        goal: KubernetesVersion,
    },
    /// An Updater of the update does not exist, or is not valid.
    UpdaterUnusable {
        /// Its name.
        updater: String,
        /// What is wrong with it.
        why: String,
    },
    /// Calls of an Updater fail.
    UpdaterFails {
        /// Its name.
        updater: String,
        /// What failed.
        message: String,
    },
    /// An Updater reports that it is done, and the machine's objects do not show it.
    UpdaterNotVerified {
        /// Its name.
        updater: String,
        /// What they do not show.
        why: String,
    },
    /// Two sources would install an OS image each.
    OsImageConflict {
        /// The sources.
        sources: String,
    },
    /// Two sources would change the operating system of the host, one of them its packages.
    OsPackagesConflict {
        /// The sources.
        sources: String,
    },
    /// The KubeadmConfig of the machine does not have any more what the update is to apply.
    ConfigurationChanged {
        /// Kind and name of the object.
        object: String,
        /// What differs.
        why: String,
    },
    /// The KubeadmConfig of the machine and its HostSettings both set something.
    ConfigurationConflict {
        /// What both set, such as `file /etc/motd`.
        what: String,
    },
    /// The agent on the host never reported, or not recently.
    NoFreshReport {
        /// The node.
        node: NodeName,
    },
    /// The agent cannot read facts of its host that a plan rests on.
    HostUnreadable {
        /// The node.
        node: NodeName,
        /// The first of these facts, and why it cannot be read.
        why: String,
    },
    /// The agent on the host does not support a step of the plan.
    AgentTooOld {
        /// The node.
        node: NodeName,
        /// The step.
        step: StepType,
    },
    /// An object carries host settings in an annotation, which is not honoured.
    HostSettingsAnnotation {
        /// The object that carries the annotation, such as `MachineDeployment edge-1-md-0`.
        object: String,
    },
    /// A HostSettings of the namespace cannot be read, so it is unknown to which owners it applies.
    HostSettingsUnreadable {
        /// Name of the HostSettings.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two HostSettings apply to an owner, and none is more specific than the other.
    HostSettingsConflict {
        /// Names of the HostSettings.
        names: [String; 2],
        /// Kind and name of the owner.
        owner: String,
        /// How both select the owner.
        by: Specificity,
    },
    /// A NodeDisruptionPolicy of the namespace cannot be read, so it is unknown to which owners it
    /// applies.
    DisruptionPolicyUnreadable {
        /// Name of the NodeDisruptionPolicy.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two NodeDisruptionPolicies apply to an owner, and none is more specific than the other.
    DisruptionPolicyConflict {
        /// Names of the NodeDisruptionPolicies.
        names: [String; 2],
        /// Kind and name of the owner.
        owner: String,
        /// How both select the owner.
        by: Specificity,
    },
    /// A PodDisruptionBudget does not allow the eviction of a pod.
    PodDisruptionBudget {
        /// `namespace/name` of the budget; empty if the API server does not name it.
        budget: String,
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// The API server rejects an eviction for another reason.
    EvictionRefused {
        /// `namespace/name` of the pod.
        pod: String,
        /// Message of the API server.
        message: String,
    },
    /// The workload cluster's API server does not respond.
    ApiUnreachable {
        /// Name of the Cluster.
        cluster: String,
    },
    /// The workload cluster's API server sends more than Refit accepts from one cluster.
    ClusterTooLarge {
        /// Name of the Cluster.
        cluster: String,
        /// What it sends too much of.
        what: String,
    },
    /// The node is not Ready.
    NodeNotReady {
        /// The node.
        node: NodeName,
    },
    /// The node runs short of disk, memory or process ids.
    NodePressure {
        /// The node.
        node: NodeName,
        /// Its condition, with its message.
        what: String,
    },
    /// An administrator or another program has cordoned the node.
    NodeCordoned {
        /// The node.
        node: NodeName,
    },
    /// A certificate on the host expires soon or has expired, and the update does not renew it.
    CertificateExpires {
        /// The node.
        node: NodeName,
        /// Path of the certificate on the host.
        certificate: String,
        /// When it expires.
        until: Timestamp,
    },
    /// The distribution names the versions of kubelet and images by different rules: it could not be seen whether an update
    /// has reached its goal.
    VersionsNotComparable {
        /// The node.
        node: NodeName,
        /// What its kubelet reports.
        kubelet: StatedVersion,
        /// A static pod of the same release.
        component: String,
        /// The tag of its image.
        tag: String,
    },
    /// The node is Ready but does not match the target yet.
    NodeNotVerified {
        /// The node.
        node: NodeName,
        /// What does not match.
        why: String,
    },
    /// The Machine has no Node.
    NoNode {
        /// The Machine.
        machine: String,
    },
    /// An older NodeUpdate of the Machine must end first.
    OlderUpdateUnfinished {
        /// The NodeUpdate.
        node_update: String,
    },
    /// The host still runs the plan of another NodeUpdate.
    OlderPlanRunning {
        /// The node.
        node: NodeName,
        /// The NodeUpdate that the plan belongs to.
        node_update: String,
    },
    /// The Machine is being deleted, and its host has not stopped yet.
    MachineDeleting {
        /// The Machine.
        machine: String,
    },
    /// The pods of a Machine that is being deleted have no other node to go to.
    RoomForOthers {
        /// The Machine that is being deleted.
        machine: String,
    },
    /// An operator paused the Machine or its Cluster.
    Paused {
        /// Kind and name of the paused object.
        object: String,
    },
    /// Cluster API would replace the machine as soon as one of its components restarts.
    WouldBeReplaced {
        /// The Machine.
        machine: String,
        /// Kind and name of the control plane.
        owner: String,
    },
    /// The update may go no further yet.
    UntilReached {
        /// The NodeUpdate.
        node_update: String,
        /// Where it waits.
        hold: Hold,
    },
    /// The Machine has no owner that limits how many machines may be down.
    NoGroup {
        /// The Machine.
        machine: String,
    },
    /// The UpdateGroup does not exist yet.
    GroupNotReady,
    /// An API server rejects a request, by authorization or by validation.
    ApiRefused {
        /// The rejected request.
        what: String,
        /// Message of the API server.
        message: String,
    },
    /// An API server answers with an error that may pass.
    ApiErrors {
        /// The request.
        what: String,
        /// Message of the API server.
        message: String,
    },
    /// A node that is being drained still has pods or volumes.
    #[strum(transparent)]
    #[strum_discriminants(strum(disabled))]
    Drain(DrainRefusal),
}

/// How long an update is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// As past ones took.
    Shown(SignedDuration),
    /// As the windows estimate it, because past ones do not show it.
    Estimated(SignedDuration),
}

impl Expected {
    /// The time.
    pub fn time(self) -> SignedDuration {
        match self {
            Self::Shown(time) | Self::Estimated(time) => time,
        }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minutes = (self.time().as_secs() + 59) / 60;
        match self {
            Self::Shown(_) => write!(f, "about {minutes} min"),
            Self::Estimated(_) => write!(f, "an estimated {minutes} min"),
        }
    }
}

/// Where an update waits for `spec.until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// The host has prepared.
    AfterStage,
    /// kubeadm has upgraded a worker.
    AfterUpgrade,
    /// A control plane machine has prepared. It does not wait after kubeadm's upgrade.
    ControlPlane,
}

impl Hold {
    /// The value of `spec.until` that ends the wait, and why it is needed.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::AfterStage => ("Upgrade or Disrupt", "until then its host may only prepare"),
            Self::AfterUpgrade => ("Disrupt", "until then its node may not be disturbed"),
            Self::ControlPlane => (
                "Disrupt",
                "kubeadm's upgrade of a control plane machine cannot be rolled back, so nothing waits \
                 after it",
            ),
        }
    }
}

impl Refusal {
    /// CamelCase reason, as shown by `kubectl`.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// The reason as a typed value.
    pub fn typed_reason(&self) -> Reason {
        if let Self::Drain(drain) = self {
            return Reason::Drain(drain.into());
        }
        Reason::Update(self.into())
    }

    /// The object that blocks; empty for reasons without an object.
    pub fn object(&self) -> String {
        match self {
            Self::SlotBusy { machine }
            | Self::OutOfTurn { machine }
            | Self::Held { machine, .. }
            | Self::Skipped { machine, .. }
            | Self::NoNode { machine }
            | Self::MachineDeleting { machine }
            | Self::RoomForOthers { machine }
            | Self::WouldBeReplaced { machine, .. }
            | Self::NoGroup { machine } => machine.clone(),
            Self::ControlPlaneUnhealthy { member, .. } => member.clone(),
            Self::ApprovalRequired { owner, .. }
            | Self::RolloutStopped { owner, .. }
            | Self::GateClosed { owner, .. }
            | Self::NoWindow { owner, .. } => owner.clone(),
            Self::NoFreshReport { node }
            | Self::HostUnreadable { node, .. }
            | Self::AgentTooOld { node, .. }
            | Self::NodeNotReady { node }
            | Self::NodePressure { node, .. }
            | Self::NodeCordoned { node }
            | Self::CertificateExpires { node, .. }
            | Self::VersionsNotComparable { node, .. }
            | Self::NodeNotVerified { node, .. }
            | Self::OlderPlanRunning { node, .. } => node.to_string(),
            Self::PodDisruptionBudget { budget, pod } if budget.is_empty() => pod.clone(),
            Self::PodDisruptionBudget { budget, .. } => budget.clone(),
            Self::EvictionRefused { pod, .. } => pod.clone(),
            Self::ApiUnreachable { cluster } | Self::ClusterTooLarge { cluster, .. } => {
                cluster.clone()
            }
            Self::OlderUpdateUnfinished { node_update }
            | Self::UntilReached { node_update, .. } => node_update.clone(),
            Self::Paused { object }
            | Self::HostSettingsAnnotation { object }
            | Self::ConfigurationChanged { object, .. } => object.clone(),
            Self::UpdaterUnusable { updater, .. }
            | Self::UpdaterFails { updater, .. }
            | Self::UpdaterNotVerified { updater, .. } => {
                format!("Updater {updater}")
            }
            Self::OsImageConflict { sources } | Self::OsPackagesConflict { sources } => {
                sources.clone()
            }
            Self::HostSettingsUnreadable { name, .. } => format!("HostSettings {name}"),
            Self::HostSettingsConflict { names, .. } => {
                format!("HostSettings {}", names.join(", "))
            }
            Self::DisruptionPolicyUnreadable { name, .. } => {
                format!("NodeDisruptionPolicy {name}")
            }
            Self::DisruptionPolicyConflict { names, .. } => {
                format!("NodeDisruptionPolicy {}", names.join(", "))
            }
            Self::ApiRefused { what, .. }
            | Self::ApiErrors { what, .. }
            | Self::ConfigurationConflict { what } => what.clone(),
            Self::Drain(drain) => drain.object().to_owned(),
            Self::GroupUnavailable { lacks_machines: true, .. } => MISSING_MACHINE.to_owned(),
            Self::GroupUnavailable { lacks_machines: false, .. }
            | Self::EtcdQuorum { .. }
            | Self::ControlPlaneBehind { .. }
            | Self::Soaking { .. }
            | Self::WindowClosed { .. }
            | Self::GroupNotReady => String::new(),
        }
    }

    /// When the wait ends without anything that happens, if that is known.
    pub fn ends_at(&self) -> Option<Timestamp> {
        if let Self::Soaking { until: end } | Self::WindowClosed { opens: end, .. } = self {
            return Some(*end);
        }
        None
    }

    /// The pod that cannot leave its node; empty for other reasons.
    pub fn pod(&self) -> &str {
        match self {
            Self::PodDisruptionBudget { pod, .. } | Self::EvictionRefused { pod, .. } => pod,
            Self::Drain(drain) => drain.pod(),
            Self::SlotBusy { .. }
            | Self::ApprovalRequired { .. }
            | Self::RolloutStopped { .. }
            | Self::Held { .. }
            | Self::Skipped { .. }
            | Self::Soaking { .. }
            | Self::WindowClosed { .. }
            | Self::NoWindow { .. }
            | Self::GateClosed { .. }
            | Self::OutOfTurn { .. }
            | Self::GroupUnavailable { .. }
            | Self::ControlPlaneUnhealthy { .. }
            | Self::EtcdQuorum { .. }
            | Self::ControlPlaneBehind { .. }
            | Self::UpdaterUnusable { .. }
            | Self::UpdaterFails { .. }
            | Self::UpdaterNotVerified { .. }
            | Self::OsImageConflict { .. }
            | Self::OsPackagesConflict { .. }
            | Self::ConfigurationChanged { .. }
            | Self::ConfigurationConflict { .. }
            | Self::NoFreshReport { .. }
            | Self::HostUnreadable { .. }
            | Self::AgentTooOld { .. }
            | Self::HostSettingsAnnotation { .. }
            | Self::HostSettingsUnreadable { .. }
            | Self::HostSettingsConflict { .. }
            | Self::DisruptionPolicyUnreadable { .. }
            | Self::DisruptionPolicyConflict { .. }
            | Self::ApiUnreachable { .. }
            | Self::ClusterTooLarge { .. }
            | Self::NodeNotReady { .. }
            | Self::NodePressure { .. }
            | Self::NodeCordoned { .. }
            | Self::CertificateExpires { .. }
            | Self::VersionsNotComparable { .. }
            | Self::NodeNotVerified { .. }
            | Self::NoNode { .. }
            | Self::OlderUpdateUnfinished { .. }
            | Self::OlderPlanRunning { .. }
            | Self::MachineDeleting { .. }
            | Self::RoomForOthers { .. }
            | Self::Paused { .. }
            | Self::WouldBeReplaced { .. }
            | Self::UntilReached { .. }
            | Self::NoGroup { .. }
            | Self::GroupNotReady
            | Self::ApiRefused { .. }
            | Self::ApiErrors { .. } => "",
        }
    }

    /// The blocker as it appears in a status. It keeps `since` from an older blocker with the same
    /// reason, object and pod.
    pub fn blocker(&self, old: &[Blocker], now: Timestamp) -> Blocker {
        let (reason, object, pod) = (self.reason(), self.object(), self.pod());
        let since = old
            .iter()
            .find(|b| b.reason == reason && b.object == object && b.pod == pod)
            .map_or_else(|| Time(now), |blocker| blocker.since.clone());
        Blocker {
            reason: reason.to_owned(),
            object,
            pod: pod.to_owned(),
            message: self.sentence(),
            since,
        }
    }
}
