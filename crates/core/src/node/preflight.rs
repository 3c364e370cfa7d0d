//! What must hold before a machine is begun: one list, for the gate, the status, `refit plan` and
//! `refit doctor` (`docs/preflight.md`).

use jiff::{SignedDuration, Timestamp};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::NodeName,
    version::{KubernetesVersion, StatedVersion},
};
use strum::IntoStaticStr;

use super::{
    budgets::Exhausted,
    drain::another_could_take,
    drain_policy::DrainPolicy,
    health,
    seen::{NodeView, Seen, Workload},
    snapshot::Group,
    verify::named_differently,
};
use crate::{group, report::Refusal};

/// How long a certificate must still be valid that the update does not renew.
const CERTIFICATE_MARGIN: SignedDuration = SignedDuration::from_hours(24);

/// A check of the preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum Check {
    /// The workload cluster's API server responds.
    WorkloadApi,
    /// The Machine is not being deleted.
    Deleting,
    /// The Machine has a Node.
    Node,
    /// The kubelet does not become newer than an API server.
    Skew,
    /// The versions of a control plane node can be compared with a goal.
    Versions,
    /// The other members of the control plane are healthy.
    ControlPlane,
    /// The Node is Ready.
    NodeReady,
    /// The Node does not run short of disk, memory or process ids.
    Pressure,
    /// The Node has no cordon, or Refit's own.
    Cordon,
    /// Certificates that the update does not renew are valid long enough.
    Certificates,
    /// Enough other machines of the group are available.
    Availability,
    /// etcd keeps its quorum while the machine is down.
    Quorum,
    /// PodDisruptionBudgets let the pods leave the Node.
    Budgets,
}

impl Check {
    /// Every check, in the order in which refusals count.
    pub const ALL: [Self; 13] = [
        Self::WorkloadApi,
        Self::Deleting,
        Self::Node,
        Self::Skew,
        Self::Versions,
        Self::ControlPlane,
        Self::NodeReady,
        Self::Pressure,
        Self::Cordon,
        Self::Certificates,
        Self::Availability,
        Self::Quorum,
        Self::Budgets,
    ];

    /// From which point on the check must pass.
    pub(super) fn at(self) -> Point {
        match self {
            Self::WorkloadApi
            | Self::Deleting
            | Self::Node
            | Self::Skew
            | Self::Versions
            | Self::Pressure
            | Self::Cordon
            | Self::Certificates => Point::Prepare,
            Self::ControlPlane | Self::NodeReady => Point::Disturb,
            Self::Availability | Self::Quorum | Self::Budgets => Point::Claim,
        }
    }
}

/// A point of an update before its machine is disturbed. What must pass at one must also pass at the later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    /// Before the host may prepare.
    Prepare,
    /// Before the machine may be disturbed.
    Disturb,
    /// When it is its turn to claim a slot.
    Claim,
}

/// What a refusal means for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The update waits until someone or something changes it.
    Waits,
    /// The update waits, most likely not for long: pods that are restarting end it.
    Passes,
    /// The update does not wait: its drain overrides it.
    Overridden,
}

/// A check that does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The check.
    pub check: Check,
    /// What it found.
    pub refusal: Refusal,
    /// What that means.
    pub weight: Weight,
}

/// What the checks read about a machine.
#[derive(Clone, Copy, Debug)]
pub struct Preflight<'a> {
    /// Its Machine.
    pub machine: &'a Machine,
    /// Its Node; empty if it has none.
    pub node: &'a NodeName,
    /// Whether it belongs to a control plane.
    pub control_plane: bool,
    /// The version to which the kubelet is updated, if any.
    pub goal: Option<&'a KubernetesVersion>,
    /// Its cluster.
    pub workload: &'a Workload,
    /// Its group, if it is known.
    pub group: Option<&'a Group>,
    /// How the node is drained; `None` if its pods stay.
    pub drain: Option<&'a DrainPolicy>,
    /// How far the update has come.
    pub begun: Begun,
    /// The current time.
    pub now: Timestamp,
}

/// How far an update has come with its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has no slot.
    No,
    /// It has a slot, and was held with it while the machine was up.
    Held,
    /// It has a slot: if the machine is down, only this update can repair it.
    Slot,
}

impl<'a> Preflight<'a> {
    /// Every check that does not pass, in order.
    pub fn findings(&self) -> Vec<Found> {
        Check::ALL.iter().filter_map(|check| self.check(*check)).collect()
    }

    /// The first check up to a point of an update for which the update waits.
    pub(super) fn refusal(&self, until: Point) -> Option<Refusal> {
        self.first(|check| check.at() <= until)
    }

    /// The same for an update that does not disturb the machine: of the later checks, its own Node must be Ready.
    pub(super) fn refusal_to_touch(&self) -> Option<Refusal> {
        self.first(|check| check.at() == Point::Prepare || check == Check::NodeReady)
    }

    /// The same machine, if its node is drained although that was not certain when its slot was claimed.
    pub(super) fn of_drain(self, policy: &'a DrainPolicy) -> Self {
        Self { drain: Some(policy), begun: Begun::No, ..self }
    }

    /// Why the drain would not get far.
    pub(super) fn refusal_to_drain(&self) -> Option<Refusal> {
        self.first(|check| check == Check::Budgets)
    }

    /// The same for the checks of one point only.
    pub(super) fn refusal_at(&self, point: Point) -> Option<Refusal> {
        self.first(|check| check.at() == point)
    }

    fn first(&self, is_due: impl Fn(Check) -> bool) -> Option<Refusal> {
        let due = Check::ALL.iter().filter(|check| is_due(**check));
        let mut found = due.filter_map(|check| self.check(*check));
        found.find(|found| found.weight < Weight::Overridden).map(|found| found.refusal)
    }

    /// Runs one check.
    fn check(&self, check: Check) -> Option<Found> {
        let waits = |refusal| Found { check, refusal, weight: Weight::Waits };
        match check {
            Check::WorkloadApi => workload_refusal(self.workload),
            Check::Deleting => self.deleting(),
            Check::Node => no_node(self.machine, self.node),
            Check::Skew => self.behind(),
            Check::Versions => self.not_comparable(),
            Check::ControlPlane => self.peer_unhealthy(),
            Check::NodeReady => self.not_ready(),
            Check::Pressure => self.pressure(),
            Check::Cordon => self.cordoned(),
            Check::Certificates => self.certificate_ends(),
            Check::Availability => self.too_few_others(),
            Check::Quorum => self.no_quorum(),
            Check::Budgets => return self.exhausted_budget(),
        }
        .map(waits)
    }

    fn seen(&self) -> Option<&'a Seen> {
        match self.workload {
            Workload::Seen(seen) => Some(seen),
            Workload::NotSynced | Workload::Unreachable { .. } | Workload::TooLarge { .. } => None,
        }
    }

    fn node_view(&self) -> Option<&'a NodeView> {
        let mut nodes = self.seen()?.nodes.iter();
        nodes.find(|node| node.name == *self.node).map(AsRef::as_ref)
    }

    fn deleting(&self) -> Option<Refusal> {
        let meta = &self.machine.metadata;
        let machine = || meta.name.clone().unwrap_or_default();
        meta.deletion_timestamp.as_ref().map(|_| Refusal::MachineDeleting { machine: machine() })
    }

    /// A kubelet is never newer than an API server that it may talk to
    /// (`docs/facts/kubernetes.md#version-skew`).
    fn behind(&self) -> Option<Refusal> {
        if self.control_plane {
            return None;
        }
        let (goal, seen) = (self.goal?, self.seen()?);
        let version = health::lowest_version(seen);
        let is_new_enough = version.is_some_and(|version| !version.minor_below(goal));
        (!is_new_enough).then(|| Refusal::ControlPlaneBehind {
            version: version.cloned().map_or(StatedVersion::Absent, StatedVersion::Version),
            goal: goal.clone(),
        })
    }

    /// At its end, the update would wait for a version that the machine never shows.
    fn not_comparable(&self) -> Option<Refusal> {
        let is_due = self.control_plane && self.begun == Begun::No;
        let goal = self.goal.filter(|_| is_due)?;
        let seen = self.seen()?;
        let (pod, version) = named_differently(&seen.nodes, &seen.static_pods, self.node, goal)?;
        Some(Refusal::VersionsNotComparable {
            node: self.node.clone(),
            kubelet: self.node_view()?.kubelet_version.clone(),
            component: pod.component.clone(),
            tag: version.image_tag(),
        })
    }

    fn peer_unhealthy(&self) -> Option<Refusal> {
        let seen = self.seen()?;
        if self.control_plane {
            return health::control_plane_health(seen, self.node).err();
        }
        self.not_verified(seen)
    }

    /// A worker follows its control plane to another minor version when the last member has been verified with it: kubelets
    /// report a version before that.
    fn not_verified(&self, seen: &Seen) -> Option<Refusal> {
        let goal = self.goal.filter(|_| self.begun == Begun::No)?;
        let runs = self.node_view()?.kubelet_version.version()?;
        let member = seen.control_plane.iter().find(|member| member.updating)?;
        runs.minor_below(goal).then(|| Refusal::ControlPlaneUnhealthy {
            member: member.node.as_deref().unwrap_or(&member.machine).to_owned(),
            why: "its update has not been verified yet".to_owned(),
        })
    }

    /// A machine that holds a slot is down already, and only its update can repair it.
    fn not_ready(&self) -> Option<Refusal> {
        self.seen()?;
        let ready = self.node_view().is_some_and(|node| node.ready);
        let waits = !ready && !self.node.is_empty() && self.begun != Begun::Slot;
        waits.then(|| Refusal::NodeNotReady { node: self.node.clone() })
    }

    /// The refusal for a node that runs short of something: downloads and evicted pods would make it worse.
    fn pressure(&self) -> Option<Refusal> {
        let what = self.node_view()?.pressure.clone().filter(|_| self.begun == Begun::No)?;
        Some(Refusal::NodePressure { node: self.node.clone(), what })
    }

    /// An administrator who has cordoned a node may be working on it.
    fn cordoned(&self) -> Option<Refusal> {
        let node = self.node_view().filter(|_| self.begun != Begun::Slot)?;
        let is_foreign = node.unschedulable && !node.cordoned_by_us();
        is_foreign.then(|| Refusal::NodeCordoned { node: self.node.clone() })
    }

    fn certificate_ends(&self) -> Option<Refusal> {
        let plan = self.seen()?.host_plan.as_ref().filter(|_| self.begun == Begun::No)?;
        let certificates = &plan.status.as_ref()?.facts.certificates;
        let soon = self.now.saturating_add(CERTIFICATE_MARGIN).unwrap_or(Timestamp::MAX);
        let (certificate, until) = certificates.iter().min_by_key(|(_, until)| until.0)?;
        (until.0 <= soon).then(|| Refusal::CertificateExpires {
            node: self.node.clone(),
            certificate: certificate.clone(),
            until: until.0,
        })
    }

    fn too_few_others(&self) -> Option<Refusal> {
        let group = self.group?;
        group::enough_others(&group.status, group.limits, &group.others.machines).err()
    }

    fn no_quorum(&self) -> Option<Refusal> {
        let seen = self.seen().filter(|_| self.control_plane)?;
        health::quorum(seen, self.node).err()
    }

    /// How the pods will leave the node; `None` if they stay, or if the machine has begun.
    fn evicts(&self) -> Option<&'a DrainPolicy> {
        let (seen, node) = (self.seen()?, self.node_view()?);
        let is_left = !node.unschedulable && !another_could_take(node, &seen.nodes);
        let stay = is_left || has_annotation(self.machine, keys::EXCLUDE_NODE_DRAINING);
        self.drain.filter(|_| self.begun == Begun::No && !stay)
    }

    /// Whether the update waits for budgets, if there are any, before it begins with its machine.
    pub(super) fn waits_for_budgets(&self) -> bool {
        self.evicts().is_some_and(|policy| !self.overrides_budgets(policy))
    }

    /// A budget that lets no pod go: the node would be cordoned for nothing until it does.
    fn exhausted_budget(&self) -> Option<Found> {
        let (seen, policy, node) = (self.seen()?, self.evicts()?, self.node_view()?);
        let Exhausted { refusal, recovers } =
            seen.ahead.as_ref()?.exhausted(policy, node.ready, self.now)?;
        let weight = if self.overrides_budgets(policy) {
            Weight::Overridden
        } else if recovers {
            Weight::Passes
        } else {
            Weight::Waits
        };
        Some(Found { check: Check::Budgets, refusal, weight })
    }

    /// Whether the drain does not wait for budgets for ever.
    fn overrides_budgets(&self, policy: &DrainPolicy) -> bool {
        let deletion = self.machine.spec.deletion.as_ref();
        let timeout = deletion.and_then(|deletion| deletion.node_drain_timeout_seconds);
        policy.delete_after.or(policy.force_after).is_some()
            || timeout.is_some_and(|timeout| timeout > 0)
    }
}

/// Whether a Machine has an annotation.
pub(super) fn has_annotation(machine: &Machine, annotation: &str) -> bool {
    machine.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation))
}

/// The refusal for a Machine without a Node.
pub(super) fn no_node(machine: &Machine, node: &NodeName) -> Option<Refusal> {
    let name = || machine.metadata.name.clone().unwrap_or_default();
    node.is_empty().then(|| Refusal::NoNode { machine: name() })
}

/// The refusal while a workload cluster cannot be read.
pub fn workload_refusal(workload: &Workload) -> Option<Refusal> {
    match workload {
        Workload::Unreachable { cluster } => {
            Some(Refusal::ApiUnreachable { cluster: cluster.clone() })
        }
        Workload::TooLarge { cluster, what } => {
            Some(Refusal::ClusterTooLarge { cluster: cluster.clone(), what: what.clone() })
        }
        Workload::NotSynced | Workload::Seen(_) => None,
    }
}
