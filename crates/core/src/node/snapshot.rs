//! The input of a decision, and its result.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, LazyLock},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    refit::{
        ClaimId, Gate, GroupFailure, HostPlanSpec, MachineUid, NodeName, NodeUpdate,
        NodeUpdateSpec, NodeUpdateStatus, PlanId, PlanSettings, ProviderObject, ProviderSpec,
        UpdateGroupStatus, UpdatePart,
    },
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    drain_ladder::Removal,
    drain_policy::DrainChoice,
    host::{Host, Reboot},
    seen::{Seen, Workload},
    workers::Workers,
};
use crate::{
    gates::GatesRead,
    group::{Limits, Other, Pace, Queued, RolloutKey},
    report::Refusal,
};

/// All known facts about one NodeUpdate.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The NodeUpdate.
    pub update: Arc<NodeUpdate>,
    /// Every other NodeUpdate that names a Machine of this name, whatever its uid.
    pub siblings: Vec<Arc<NodeUpdate>>,
    /// The Machine with that name.
    pub machine: Option<Arc<Machine>>,
    /// Kind and name of the paused object: the Machine, its Cluster or its UpdateGroup.
    pub paused: Option<String>,
    /// The Machine's owner or Cluster disables the guard against remediation.
    pub unguarded: bool,
    /// Policy of the drain.
    pub drain: DrainChoice,
    /// Host settings, in addition to the Kubernetes version.
    pub settings: PlanSettings,
    /// The KubeadmConfig of the Machine.
    pub configuration: ConfigurationValues,
    /// Why the settings cannot be read: nothing new starts until they can.
    pub settings_refused: Option<Refusal>,
    /// Why an Updater of this update cannot be called: nothing new starts until it can.
    pub updater_refused: Option<Refusal>,
    /// When hosts reboot.
    pub reboot: Reboot,
    /// The control plane that replaces its outdated members; `None` while it is paused.
    pub replacer: Option<Replacer>,
    /// The version in the spec of the Machine's owner.
    pub owner_version: StatedVersion,
    /// The Machine's group.
    pub group: GroupState,
    /// The Machine's cluster.
    pub workload: Workload,
    /// The objects of providers for the Machine, of all its NodeUpdates.
    pub providers: Providers,
    /// Maximum age of an agent's report.
    pub report_stale_after: SignedDuration,
    /// How long an agent may be silent before its host counts as lost; `None` for ever.
    pub host_lost_after: Option<SignedDuration>,
    /// A request that an API server has just rejected, if any.
    pub refused: Option<Refusal>,
}

impl Snapshot {
    /// The Machine of the NodeUpdate, compared by uid and not only by name.
    pub fn own_machine(&self) -> Option<&Machine> {
        let uid = &self.update.spec.machine_ref.uid;
        self.machine.as_deref().filter(|machine| MachineUid::of(&machine.metadata) == *uid)
    }

    /// The host of the Machine; without a plan if its cluster is not known.
    pub(super) fn host_as_seen(&self) -> Host<'_> {
        match &self.workload {
            Workload::Seen(seen) => self.host(seen),
            Workload::NotSynced | Workload::Unreachable { .. } | Workload::TooLarge { .. } => {
                Host::unseen(&self.update)
            }
        }
    }

    /// The host of the Machine, as its cluster shows it.
    pub(super) fn host<'a>(&'a self, seen: &'a Seen) -> Host<'a> {
        Host::new(&self.update, seen)
    }

    /// All updaters of the update that work through gates.
    pub(super) fn workers<'a>(&'a self, seen: &'a Seen) -> Workers<'a> {
        Workers::new(&self.update, self.host(seen), self.providers.known())
    }

    /// Whether an order allows a provider to disturb the machine, which it may not do yet.
    pub(super) fn opens(&self, order: &ProviderOrder) -> bool {
        let plan_id = PlanId::of(&self.update.metadata);
        let mut own = self.providers.known().iter();
        let own = own.find(|object| object.updater == order.updater && object.plan_id == plan_id);
        let before = own.map(|object| object.spec.gate).unwrap_or_default();
        order.spec.gate >= Gate::Upgrade && order.spec.gate > before
    }

    /// Whether a write may rest on a view from before a provider's object was made.
    pub(super) fn may_miss_provider(&self, write: &Write) -> bool {
        let Providers::Known(known) = &self.providers else {
            return false;
        };
        let plan_id = PlanId::of(&self.update.metadata);
        let is_known = |part: &&UpdatePart| {
            known.iter().any(|one| one.updater == part.updater && one.plan_id == plan_id)
        };
        let status = self.update.status.as_ref();
        let was_made = |part: &UpdatePart| {
            status.is_some_and(|status| status.part(&part.updater).gate.is_some())
        };
        let releases = matches!(write, Write::Management(ManagementWrite::ReleaseSlot(_)));
        let mut missing = self.update.spec.provider_parts().filter(|part| !is_known(part));
        missing.any(|part| releases || was_made(part))
    }
}

/// The KubeadmConfig of a Machine: only a plan that applies something of it needs its values.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ConfigurationValues {
    /// It was not read.
    #[default]
    Unread,
    /// Its spec, as it was read right before a plan is made; `None` if the Machine has none.
    Read(Option<Arc<Value>>),
}

/// The objects of providers for a Machine.
#[derive(Clone, Debug)]
pub enum Providers {
    /// All of them.
    Known(Vec<Arc<ProviderObject>>),
    /// The first list of one of their kinds is not complete.
    NotSynced,
    /// One of their kinds cannot be read.
    Unusable(Refusal),
}

impl Providers {
    /// The objects, as far as they are known.
    pub(super) fn known(&self) -> &[Arc<ProviderObject>] {
        match self {
            Self::Known(objects) => objects,
            Self::NotSynced | Self::Unusable(_) => &[],
        }
    }
}

/// State of a Machine's group.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per decision, and most are `Present`")]
pub enum GroupState {
    /// The Machine has no known owner.
    None,
    /// The UpdateGroup does not exist yet.
    Missing,
    /// The group.
    Present(Group),
}

/// A group of machines.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its status, as read.
    pub status: UpdateGroupStatus,
    /// Limits on unavailable machines.
    pub limits: Limits,
    /// When the next machine may begin.
    pub pace: Pace,
    /// What was found when the gates of its pacing were checked, if they were.
    pub gates: Option<Arc<GatesRead>>,
    /// The other Machines.
    pub others: Others,
}

impl Group {
    /// What was found of the gates that the group has now.
    pub(super) fn gates_read(&self) -> Option<&GatesRead> {
        self.gates.as_deref().filter(|read| read.gates == self.pace.pacing.gates)
    }
}

/// The other Machines of a group. Most decisions need none of them, and reading them takes time in
/// proportion to the group: they are read on first use. They may then be newer than the rest, and never
/// older; a machine is disturbed by a decision right after everything was read again.
#[derive(Clone, Debug)]
pub struct Others(Arc<LazyLock<OtherMachines, Box<dyn FnOnce() -> OtherMachines + Send>>>);

impl Others {
    /// The Machines that `read` returns on first use.
    pub fn read_on_use(read: impl FnOnce() -> OtherMachines + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(read))))
    }
}

impl Deref for Others {
    type Target = OtherMachines;

    fn deref(&self) -> &OtherMachines {
        &self.0
    }
}

/// What a decision about a Machine may need to know of the others of its group.
#[derive(Clone, Debug, Default)]
pub struct OtherMachines {
    /// Which of them are available.
    pub machines: Vec<Other>,
    /// Those that wait only for their turn.
    pub queue: Vec<Queued>,
    /// Those of their updates that have failed.
    pub failures: Vec<(RolloutKey, GroupFailure)>,
    /// The versions that their kubelets report.
    pub run: Vec<StatedVersion>,
    /// Those that Cluster API drains before it deletes them.
    pub leaving: Vec<Leaving>,
    /// Whether the group's last other NodeUpdate with the same target version and the role of the
    /// first control plane passed `kubeadm-upgrade`; `None` if there is no such NodeUpdate.
    pub last_first_passed: Option<bool>,
}

/// A Machine that is being deleted, and whose Node Cluster API drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Name of the Machine.
    pub machine: String,
    /// Its Node.
    pub node: NodeName,
}

/// Identifies a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// uid: an eviction applies to this pod, not to a later one with the same name.
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An eviction that the API server rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRefusal {
    /// The pod.
    pub pod: PodRef,
    /// Why it was rejected.
    pub refusal: Refusal,
}

/// What to do about a NodeUpdate: at most one write, then another decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The desired status.
    pub status: NodeUpdateStatus,
    /// The next write.
    pub write: Option<Write>,
    /// Events to emit before that write.
    pub announce: Vec<Announcement>,
    /// What blocks the update.
    pub blockers: Vec<Refusal>,
    /// When to decide again even if nothing changes; `None` to wait for a change.
    pub requeue: Option<Duration>,
}

/// One write, by destination. Each is guarded by the resourceVersion that was read, or is safe to
/// repeat.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A write to the management cluster.
    Management(ManagementWrite),
    /// Writes the HostPlan's spec, in the cluster that stores HostPlans.
    HostPlan(HostPlanSpec),
    /// A write to the workload cluster.
    Workload(WorkloadWrite),
    /// Writes the object of a provider, in the management cluster; the first order makes it.
    Provider(ProviderOrder),
    /// Writes the spec of a provider's object of another NodeUpdate, by its name.
    OlderProvider(String, ProviderSpec),
    /// Asks whether an Updater can be called, and writes the answer into the status.
    AskUpdater(String),
    /// Calls an Updater, or reads whether its objects show what it has done, and writes the result into the
    /// status.
    Updater(String),
}

/// A control plane that replaces its outdated members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacer {
    /// Its kind and name.
    pub object: String,
    /// Its status, and the conditions of its members, are of its present spec.
    pub has_observed: bool,
}

/// An order to a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderOrder {
    /// The Updater with the provider's template.
    pub updater: String,
    /// What becomes the contract's part of the object's spec.
    pub spec: ProviderSpec,
    /// The claim of a slot that was returned unused.
    pub returned_claim: ClaimId,
}

/// A write to the management cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagementWrite {
    /// Writes [`Decision::status`].
    Status,
    /// Writes the group's status, with this Machine's slot.
    ClaimSlot(UpdateGroupStatus),
    /// Writes the group's status, without this Machine's slot.
    ReleaseSlot(UpdateGroupStatus),
    /// Sets (`Some`) and removes (`None`) annotations of the Machine.
    Guard(BTreeMap<String, Option<String>>),
    /// Removes them at the end of the update.
    Unguard(BTreeMap<String, Option<String>>),
    /// Removes Cluster API's mark of an update in progress from the Machine, which cancels it.
    Withdraw,
    /// The same for a missing member of the group, with a note that it is to be requested again.
    WithdrawForMember,
    /// Creates the Machine's next NodeUpdate, which an operator has asked for.
    Again {
        /// Its ordinal.
        ordinal: u32,
        /// Its spec.
        spec: Box<NodeUpdateSpec>,
    },
    /// Sets the Machine's condition `MachineUpToDate`, or removes it.
    MachineCondition(Option<Condition>),
}

/// A write to the workload cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadWrite {
    /// Makes the Node unschedulable and records that Refit did.
    Cordon,
    /// Makes the Node schedulable and removes the record.
    Uncordon,
    /// Excludes the Node from its load balancers and records that Refit did.
    Exclude,
    /// Returns the Node to its load balancers and removes the record.
    Include,
    /// Evicts pods, or deletes them.
    Evict(Vec<Removal>),
}

impl Write {
    /// Writes [`Decision::status`].
    pub const STATUS: Self = Self::Management(ManagementWrite::Status);

    /// The request to the API server, as a refusal names it.
    pub fn target(&self) -> &'static str {
        use ManagementWrite::{
            Again, ClaimSlot, Guard, MachineCondition, ReleaseSlot, Status, Unguard, Withdraw,
            WithdrawForMember,
        };
        use WorkloadWrite::{Cordon, Evict, Exclude, Include, Uncordon};
        match self {
            Self::Management(Status) => "a write to the NodeUpdate",
            Self::Management(Again { .. }) => "the creation of a NodeUpdate",
            Self::Management(ClaimSlot(_) | ReleaseSlot(_)) => "a write to the UpdateGroup",
            Self::Management(Guard(_) | Unguard(_) | Withdraw | WithdrawForMember) => {
                "a write to the Machine"
            }
            Self::Management(MachineCondition(_)) => "a write to the Machine's status",
            Self::HostPlan(_) => "a write to the HostPlan",
            Self::Provider(_) | Self::OlderProvider(..) => "a write to the object of a provider",
            Self::AskUpdater(_) | Self::Updater(_) => "a call of an Updater",
            Self::Workload(Cordon | Uncordon | Exclude | Include) => "a write to the Node",
            Self::Workload(Evict(_)) => "an eviction",
        }
    }
}

/// An event for the Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Severity of the event.
    pub severity: Severity,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Message of the event.
    pub message: String,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The update proceeds as planned.
    Normal,
    /// An operator should check.
    Warning,
}
