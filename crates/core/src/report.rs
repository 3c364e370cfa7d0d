//! What a plan waits for, and why: a variant for every refusal to act.
//!
//! Nothing waits in silence: whatever decides not to go on says so with a [`Refusal`], and the
//! refusal ends up in `NodeUpdate.status.blockedBy`, in `UpdateGroup.status.waiting` and in the
//! answer of the UpdateMachine hook.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    refit::{Blocker, NodeName, StepType},
    version::KubernetesVersion,
};
use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

use crate::node::{DrainReason, DrainRefusal};

/// Why an update does not go on, for now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, EnumDiscriminants)]
#[strum_discriminants(
    name(RefusalReason),
    doc = "Why an update does not go on, without what it is about.",
    derive(EnumString, VariantNames)
)]
pub enum Refusal {
    /// Every slot of the group is taken.
    SlotBusy {
        /// A Machine that holds one.
        machine: String,
    },
    /// Too few of the group's other machines are available.
    GroupUnavailable {
        /// How many others are.
        available: i32,
        /// How many must be.
        needed: i32,
    },
    /// Another member of the control plane is not healthy.
    ControlPlaneUnhealthy {
        /// The member's node or Machine.
        member: String,
        /// What is wrong with it.
        why: String,
    },
    /// A kubelet would get newer than an API server of its cluster.
    ControlPlaneBehind {
        /// Lowest version in the control plane.
        version: KubernetesVersion,
        /// What was asked for.
        goal: KubernetesVersion,
    },
    /// The agent on the host never reported, or not lately.
    NoFreshReport {
        /// The node.
        node: NodeName,
    },
    /// The agent on the host does not know a step of the plan.
    AgentTooOld {
        /// The node.
        node: NodeName,
        /// The step.
        step: StepType,
    },
    /// What the hosts need beside a Kubernetes version cannot be read.
    HostSettingsUnreadable {
        /// The object that carries the annotation, such as `MachineDeployment edge-1-md-0`.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// A PodDisruptionBudget does not let a pod be evicted now.
    PodDisruptionBudget {
        /// `namespace/name` of the budget, empty where the API server does not say.
        budget: String,
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// The API server refuses an eviction for another reason.
    EvictionRefused {
        /// `namespace/name` of the pod.
        pod: String,
        /// What it said.
        message: String,
    },
    /// The workload cluster's API server does not answer.
    ApiUnreachable {
        /// Name of the Cluster.
        cluster: String,
    },
    /// The node is not Ready.
    NodeNotReady {
        /// The node.
        node: NodeName,
    },
    /// The node is Ready but not yet what was asked for.
    NodeNotVerified {
        /// The node.
        node: NodeName,
        /// What is missing.
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
    /// The host still works on the plan of another NodeUpdate.
    OlderPlanRunning {
        /// The node.
        node: NodeName,
        /// The NodeUpdate that the plan is of.
        node_update: String,
    },
    /// The Machine is being deleted, and its host has not stopped yet.
    MachineDeleting {
        /// The Machine.
        machine: String,
    },
    /// A person paused the Machine or its Cluster.
    Paused {
        /// Kind and name of what is paused.
        object: String,
    },
    /// The Machine belongs to nothing that would say how many may be down.
    NoGroup {
        /// The Machine.
        machine: String,
    },
    /// The group's object is not there yet.
    GroupNotReady,
    /// An API server answers, and refuses what is asked of it: by its rights or by its rules.
    ApiRefused {
        /// What was asked.
        what: String,
        /// What it said.
        message: String,
    },
    /// A node that is being drained is not empty yet.
    #[strum(transparent)]
    #[strum_discriminants(strum(disabled))]
    Drain(DrainRefusal),
}

/// The reason of a [`Refusal`] as statuses hold it, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Of an update.
    Update(RefusalReason),
    /// Of its drain.
    Drain(DrainReason),
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsBy {
    /// The progress of another update.
    Progress,
    /// Other machines that are available again, as one that is updated will be.
    OthersRecover,
    /// A change of the object, node or pod that it names.
    ObjectChange,
    /// The deadlines of a drain, as its policy has them.
    Deadline,
    /// A command of the operator.
    Command,
}

impl Reason {
    /// Reads a reason; `None` for one that is not ours or of a newer version.
    pub fn of(text: &str) -> Option<Self> {
        let drain = || text.parse().map(Self::Drain);
        text.parse().map(Self::Update).or_else(|_| drain()).ok()
    }

    /// Every reason, in the order of the variants.
    pub fn all() -> impl Iterator<Item = &'static str> {
        let own = RefusalReason::VARIANTS.iter().filter(|name| **name != "Drain");
        own.chain(DrainReason::VARIANTS).copied()
    }

    /// What ends the wait.
    pub fn ends_by(self) -> EndsBy {
        match self {
            Self::Update(reason) => reason.ends_by(),
            Self::Drain(reason) => match reason {
                DrainReason::EvictionUnavailable
                | DrainReason::PodTerminating
                | DrainReason::PodCameBack
                | DrainReason::VolumeAttached => EndsBy::Deadline,
                DrainReason::PodUnreplicated
                | DrainReason::PodLocalStorage
                | DrainReason::PodWaitCompleted
                | DrainReason::DrainRuleNotUnderstood => EndsBy::ObjectChange,
            },
        }
    }

    /// Whether an API server refused an eviction with it.
    pub fn is_of_eviction(self) -> bool {
        matches!(
            self,
            Self::Update(RefusalReason::PodDisruptionBudget | RefusalReason::EvictionRefused)
                | Self::Drain(DrainReason::EvictionUnavailable)
        )
    }
}

impl RefusalReason {
    fn ends_by(self) -> EndsBy {
        match self {
            Self::SlotBusy
            | Self::OlderUpdateUnfinished
            | Self::OlderPlanRunning
            | Self::GroupNotReady => EndsBy::Progress,
            Self::GroupUnavailable | Self::ControlPlaneUnhealthy => EndsBy::OthersRecover,
            Self::PodDisruptionBudget | Self::EvictionRefused | Self::Drain => EndsBy::Deadline,
            Self::AgentTooOld | Self::Paused => EndsBy::Command,
            Self::ControlPlaneBehind
            | Self::NoFreshReport
            | Self::HostSettingsUnreadable
            | Self::ApiUnreachable
            | Self::NodeNotReady
            | Self::NodeNotVerified
            | Self::NoNode
            | Self::MachineDeleting
            | Self::NoGroup
            | Self::ApiRefused => EndsBy::ObjectChange,
        }
    }
}

impl Refusal {
    /// CamelCase reason, as `kubectl` shows it.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// The same, typed.
    pub fn typed_reason(&self) -> Reason {
        if let Self::Drain(drain) = self {
            return Reason::Drain(drain.into());
        }
        Reason::Update(self.into())
    }

    /// The object that blocks; empty where there is none.
    pub fn object(&self) -> String {
        match self {
            Self::SlotBusy { machine }
            | Self::NoNode { machine }
            | Self::MachineDeleting { machine }
            | Self::NoGroup { machine } => machine.clone(),
            Self::ControlPlaneUnhealthy { member, .. } => member.clone(),
            Self::NoFreshReport { node }
            | Self::AgentTooOld { node, .. }
            | Self::NodeNotReady { node }
            | Self::NodeNotVerified { node, .. }
            | Self::OlderPlanRunning { node, .. } => node.to_string(),
            Self::PodDisruptionBudget { budget, pod } if budget.is_empty() => pod.clone(),
            Self::PodDisruptionBudget { budget, .. } => budget.clone(),
            Self::EvictionRefused { pod, .. } => pod.clone(),
            Self::ApiUnreachable { cluster } => cluster.clone(),
            Self::OlderUpdateUnfinished { node_update } => node_update.clone(),
            Self::Paused { object } | Self::HostSettingsUnreadable { object, .. } => object.clone(),
            Self::ApiRefused { what, .. } => what.clone(),
            Self::Drain(drain) => drain.object().to_owned(),
            Self::GroupUnavailable { .. }
            | Self::ControlPlaneBehind { .. }
            | Self::GroupNotReady => String::new(),
        }
    }

    /// The pod that cannot leave its node; empty where that is not the matter.
    pub fn pod(&self) -> &str {
        match self {
            Self::PodDisruptionBudget { pod, .. } | Self::EvictionRefused { pod, .. } => pod,
            Self::Drain(drain) => drain.pod(),
            Self::SlotBusy { .. }
            | Self::GroupUnavailable { .. }
            | Self::ControlPlaneUnhealthy { .. }
            | Self::ControlPlaneBehind { .. }
            | Self::NoFreshReport { .. }
            | Self::AgentTooOld { .. }
            | Self::HostSettingsUnreadable { .. }
            | Self::ApiUnreachable { .. }
            | Self::NodeNotReady { .. }
            | Self::NodeNotVerified { .. }
            | Self::NoNode { .. }
            | Self::OlderUpdateUnfinished { .. }
            | Self::OlderPlanRunning { .. }
            | Self::MachineDeleting { .. }
            | Self::Paused { .. }
            | Self::NoGroup { .. }
            | Self::GroupNotReady
            | Self::ApiRefused { .. } => "",
        }
    }

    /// What blocks and what ends it.
    pub fn sentence(&self) -> String {
        match self {
            Self::SlotBusy { machine } => {
                format!("waiting for {machine}: no more machines of the group may be down at once")
            }
            Self::GroupUnavailable { available, needed } => format!(
                "waiting until {needed} other machines of the group are available, now {available} are"
            ),
            Self::ControlPlaneUnhealthy { member, why } => {
                format!("waiting until control plane member {member} is healthy: {why}")
            }
            Self::ControlPlaneBehind { goal, .. } => format!(
                "waiting for the control plane: a kubelet of {goal} would be newer than its API server"
            ),
            Self::NoFreshReport { node } => format!(
                "waiting for a report of the agent on node {node}: look whether refit-agent runs there"
            ),
            Self::AgentTooOld { node, step } => format!(
                "waiting for a newer agent on node {node}: this one does not know step {step:?}"
            ),
            Self::HostSettingsUnreadable { object, why } => {
                format!(
                    "waiting until annotation refit.dev/host-settings of {object} is right: {why}"
                )
            }
            Self::PodDisruptionBudget { budget, pod } if budget.is_empty() => {
                format!("waiting to evict pod {pod}: its PodDisruptionBudget does not allow it now")
            }
            Self::PodDisruptionBudget { budget, pod } => format!(
                "waiting to evict pod {pod}: PodDisruptionBudget {budget} does not allow it now"
            ),
            Self::EvictionRefused { pod, message } => {
                format!("waiting to evict pod {pod}: the API server refuses it: {message}")
            }
            Self::ApiUnreachable { cluster } => {
                format!("waiting for the API server of cluster {cluster}: it does not answer")
            }
            Self::NodeNotReady { node } => format!("waiting until node {node} is Ready"),
            Self::NodeNotVerified { node, why } => format!("waiting for node {node}: {why}"),
            Self::NoNode { machine } => format!("waiting until Machine {machine} has a Node"),
            Self::OlderUpdateUnfinished { node_update } => {
                format!("waiting until the older NodeUpdate {node_update} has ended")
            }
            Self::OlderPlanRunning { node, node_update } => format!(
                "waiting until node {node} has ended the plan of {}",
                if node_update.is_empty() { "another NodeUpdate" } else { node_update }
            ),
            Self::MachineDeleting { machine } => {
                format!("Machine {machine} is being deleted: waiting until its host has stopped")
            }
            Self::Paused { object } => format!("waiting until {object} is no longer paused"),
            Self::NoGroup { machine } => format!(
                "Machine {machine} belongs to no control plane, MachineDeployment or MachineSet \
                 that is known, so nothing says whether it may be down"
            ),
            Self::GroupNotReady => "waiting for the UpdateGroup of the machine".to_owned(),
            Self::ApiRefused { what, message } => {
                format!(
                    "waiting for {what}, which the API server refuses: {}",
                    message.trim_end_matches('.')
                )
            }
            Self::Drain(drain) => drain.sentence(),
        }
    }

    /// The blocker as it stands in a status; it keeps `since` from an older one of the same reason,
    /// object and pod.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Refusal> {
        let s = String::from;
        vec![
            Refusal::SlotBusy { machine: s("m") },
            Refusal::GroupUnavailable { available: 3, needed: 4 },
            Refusal::ControlPlaneUnhealthy { member: s("cp-1"), why: s("etcd is not Ready") },
            Refusal::ControlPlaneBehind {
                version: KubernetesVersion::new(1, 34, 2),
                goal: KubernetesVersion::new(1, 35, 0),
            },
            Refusal::NoFreshReport { node: "n".into() },
            Refusal::AgentTooOld { node: "n".into(), step: StepType::Reboot },
            Refusal::HostSettingsUnreadable { object: s("Machine m"), why: s("unknown field") },
            Refusal::PodDisruptionBudget { budget: s("default/web"), pod: s("default/web-1") },
            Refusal::EvictionRefused { pod: s("default/web-1"), message: s("no") },
            Refusal::ApiUnreachable { cluster: s("edge-1") },
            Refusal::NodeNotReady { node: "n".into() },
            Refusal::NodeNotVerified { node: "n".into(), why: s("it runs v1.34.2") },
            Refusal::NoNode { machine: s("m") },
            Refusal::OlderUpdateUnfinished { node_update: s("m-1") },
            Refusal::OlderPlanRunning { node: "n".into(), node_update: s("m-1") },
            Refusal::MachineDeleting { machine: s("m") },
            Refusal::Paused { object: s("Cluster edge-1") },
            Refusal::NoGroup { machine: s("m") },
            Refusal::GroupNotReady,
            Refusal::ApiRefused { what: s("a write to the Node"), message: s("it is forbidden.") },
        ]
        .into_iter()
        .chain(drains().map(Refusal::Drain))
        .collect()
    }

    fn drains() -> impl Iterator<Item = DrainRefusal> {
        let pod = || String::from("default/web-1");
        let says = String::from;
        [
            DrainRefusal::EvictionUnavailable { pod: pod() },
            DrainRefusal::PodUnreplicated { pod: pod() },
            DrainRefusal::PodLocalStorage { pod: pod() },
            DrainRefusal::PodWaitCompleted { pod: pod(), says: says("its label") },
            DrainRefusal::DrainRuleNotUnderstood { pod: pod(), says: says("its label") },
            DrainRefusal::PodTerminating { pod: pod() },
            DrainRefusal::PodCameBack { pod: pod() },
            DrainRefusal::VolumeAttached {
                attachment: says("csi-1"),
                volume: says("pv-1"),
                node: "n".into(),
            },
        ]
        .into_iter()
    }

    #[test]
    fn every_refusal_has_its_reason_and_a_sentence() {
        let reasons: Vec<_> = all().iter().map(Refusal::reason).collect();
        assert_eq!(reasons, Reason::all().collect::<Vec<_>>());
        for refusal in all() {
            assert_eq!(Reason::of(refusal.reason()), Some(refusal.typed_reason()));
        }
        assert_eq!(Reason::of("Drain"), None);
        for refusal in all() {
            assert!(refusal.sentence().contains(' '), "{refusal:?}");
            assert!(!refusal.sentence().ends_with('.'), "{refusal:?}");
        }
    }

    #[test]
    fn a_blocker_keeps_its_beginning_while_reason_and_object_stay() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let refusal = Refusal::SlotBusy { machine: "m".into() };
        let first = refusal.blocker(&[], at(1));
        let second = refusal.blocker(std::slice::from_ref(&first), at(9));
        assert_eq!(first, second);
        let other = Refusal::SlotBusy { machine: "k".into() };
        assert_eq!(other.blocker(&[first], at(9)).since, Time(at(9)));
    }

    #[test]
    fn a_budget_that_is_not_named_still_names_the_pod() {
        let refusal =
            Refusal::PodDisruptionBudget { budget: String::new(), pod: "default/web-1".into() };
        assert_eq!(refusal.object(), "default/web-1");
        assert!(refusal.sentence().contains("default/web-1"));
    }
}
