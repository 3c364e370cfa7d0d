//! What an UpgradeTask does next.
//!
//! A task for a group brings its Machines to what their owner requests, a few at a time. It selects and requests;
//! the NodeUpdates do the work, and the group's pacing decides when each begins. Nothing is remembered between two
//! looks but what the objects show: after a crash, the next look continues at the same place.
//!
//! ```text
//! pause the owner -> set its version -> mark the Machines -> request NodeUpdates, in a window
//!   -> write each Machine whose update has succeeded -> let the owner go on
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`mod@actions`] | the next writes of a task for one group |
//! | [`member`] | what a Machine of the group waits for |
//! | [`mod@status`] | what the task shows |
//! | `sets` | the replicas of MachineSets while Machines move between them |
//! | [`mod@cluster`] | the next writes of a task for a whole Cluster, and what it shows |
//! | [`mod@option`] | a task that installs an option by annotation: its writes, and what it shows |
//! | [`mod@specs`] | whether requested specs are those that Refit writes |
//! | [`mod@roll_back`] | whether the workers of a stopped upgrade return to the version before |
//! | `hops` | which group of a Cluster goes to which version next |

pub mod actions;
pub mod cluster;
mod hops;
pub mod member;
pub mod option;
pub mod roll_back;
mod sets;
pub mod specs;
pub mod status;

#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::{
    conditions, keys,
    refit::{OnAbort, Owner, PacingOrder, Stage, TaskPhase, UpgradeTask, UpgradeTaskSpec, Via},
    version::{KubernetesVersion, StatedVersion},
};

pub use self::{
    actions::{Action, actions},
    cluster::{ClusterAction, ClusterSeen, GroupNow, child_name, cluster_actions, cluster_status},
    hops::{GroupVersion, HopTo, unreachable},
    member::{Member, MemberState, SpecState},
    sets::{SetSeen, SetWrite, SetsSeen, choose_leaving},
    status::{Refused, status, unread},
};

/// Who has paused an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Paused {
    /// It is not paused.
    #[default]
    No,
    /// The UpgradeTask of this name.
    ByTask(String),
    /// Refit, because its only Machine would be replaced. A task that updates the Machine takes this pause over.
    ByHold,
    /// Another client.
    ByOthers,
}

impl Paused {
    /// Whether this task has paused the owner.
    pub fn is_by(&self, task: &str) -> bool {
        self.task() == Some(task)
    }

    /// Name of the task that has paused the owner.
    pub fn task(&self) -> Option<&str> {
        match self {
            Self::ByTask(name) => Some(name),
            Self::No | Self::ByHold | Self::ByOthers => None,
        }
    }

    /// Reads the annotations of an owner. The value of the pause names who has set it: the name of a task may outlive its
    /// pause, if another client removes only that.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        match (annotations.get(keys::PAUSED).map(String::as_str), annotations.get(keys::TASK)) {
            (None, _) => Self::No,
            (Some(keys::HELD), _) => Self::ByHold,
            (Some(keys::TASK), Some(task)) => Self::ByTask(task.clone()),
            (Some(_), _) => Self::ByOthers,
        }
    }
}

/// The owner of a task's group.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerSeen {
    /// Its type.
    pub owner: Owner,
    /// Who has paused it.
    pub paused: Paused,
    /// It is being deleted.
    pub deleting: bool,
    /// The version in its spec.
    pub version: StatedVersion,
    /// A topology of its Cluster writes its spec.
    pub of_topology: bool,
    /// What its spec requests of its Machines, as a hash.
    pub request: String,
    /// Its status, for its current spec, shows all Machines as up to date.
    pub is_up_to_date: bool,
    /// Cluster API, going on now, would replace no Machine.
    pub replaces_none: bool,
}

/// Why a task for a group cannot work now.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Obstacle {
    /// The namespace did not opt in.
    NotOptedIn {
        /// Its name.
        namespace: String,
    },
    /// An object that the task names does not exist.
    Missing {
        /// Kind and name.
        object: String,
    },
    /// Refit cannot upgrade what the task names.
    NotSupported {
        /// Why not.
        why: String,
    },
    /// The Cluster is paused.
    ClusterPaused {
        /// Its name.
        cluster: String,
    },
    /// Cluster API updates a Machine in place itself.
    UpdatedByClusterApi {
        /// Name of the Machine.
        machine: String,
    },
    /// An older task of the same owner has not ended.
    OlderTask {
        /// Its name.
        task: String,
    },
}

impl Obstacle {
    /// Whether only a person ends it, or another task.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::NotSupported { .. } => true,
            Self::NotOptedIn { .. }
            | Self::ClusterPaused { .. }
            | Self::UpdatedByClusterApi { .. }
            | Self::OlderTask { .. } => false,
        }
    }

    /// Whether what the task names is a group of Refit, so that only the task itself waits.
    pub fn leaves_group(&self) -> bool {
        !Self::is_of_no_group(self.into())
    }

    /// Whether a reason is that of a task that names no group of Refit.
    pub fn is_of_no_group(reason: &str) -> bool {
        ["NotOptedIn", "Missing", "NotSupported"].contains(&reason)
    }

    /// What stands in the way, and what ends it.
    pub fn message(&self) -> String {
        match self {
            Self::NotOptedIn { namespace } => format!(
                "namespace {namespace} has not opted in: kubectl label namespace {namespace} \
                 refit.dev/in-place=enabled"
            ),
            Self::Missing { object } => format!("{object} does not exist in this namespace"),
            Self::NotSupported { why } => why.clone(),
            Self::ClusterPaused { cluster } => {
                format!("Cluster {cluster} is paused: the task goes on when it is not")
            }
            Self::UpdatedByClusterApi { machine } => format!(
                "Cluster API updates Machine {machine} in place itself, and one orchestrator at a time works on a \
                 group: the task begins when that rollout has ended. Where Cluster API has its feature gate \
                 InPlaceUpdates on, a task has via Spec"
            ),
            Self::OlderTask { task } => {
                format!(
                    "UpgradeTask {task} works on the same Machines: this one begins when it has ended"
                )
            }
        }
    }
}

/// Whether a task is to stop: on request, or because it is being deleted.
fn is_to_stop(task: &UpgradeTask) -> bool {
    task.spec.stage == Stage::Abort || task.metadata.deletion_timestamp.is_some()
}

/// Whether a task is for what its owner requested when it began, not for whatever it requests.
fn is_for_one_request(task: &UpgradeTask) -> bool {
    let UpgradeTaskSpec { version, request_ref, bundle, .. } = &task.spec;
    version.is_some() || request_ref.is_some() || bundle.is_some()
}

/// Everything that a task for a group is decided on.
#[derive(Clone, Debug)]
pub struct GroupSeen<'a> {
    /// The task.
    pub task: &'a UpgradeTask,
    /// What stands in the way.
    pub obstacle: Option<Obstacle>,
    /// The owner, if it is known.
    pub owner: Option<OwnerSeen>,
    /// The Machines of the group.
    pub machines: Vec<Member<'a>>,
    /// There are fewer of them than the owner requests.
    pub lacks_machines: bool,
    /// How many of them may be down at a time.
    pub slots: usize,
    /// Which of the waiting ones is next.
    pub order: Option<PacingOrder>,
    /// The group's pacing lets no further Machine begin.
    pub is_paced_to_a_halt: bool,
    /// The API server refuses what would replace the only Machine.
    pub is_held: bool,
    /// The MachineSets, for a MachineDeployment.
    pub sets: Option<SetsSeen>,
    /// The time of the look.
    pub now: Timestamp,
}

impl GroupSeen<'_> {
    fn name(&self) -> &str {
        self.task.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether the task is to stop: on request, or because it is being deleted.
    pub fn stops(&self) -> bool {
        is_to_stop(self.task)
    }

    /// Whether the Machines in progress are finished when the task stops.
    fn finishes(&self) -> bool {
        self.stops()
            && match self.task.spec.on_abort {
                OnAbort::Finish => true,
                OnAbort::RollBack => false,
            }
    }

    fn phase(&self) -> TaskPhase {
        self.task.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }

    /// The condition that shows how far the task is.
    fn ready(&self) -> Option<&Condition> {
        let status = self.task.status.as_ref()?;
        conditions::get(&status.conditions, status::READY)
    }

    /// Whether the task has ended so that Cluster API replaces the Machines, as the policy requires.
    fn has_delegated(&self) -> bool {
        let is_delegated = |ready: &Condition| ready.reason == status::REPLACED;
        self.phase().has_ended() && self.ready().is_some_and(is_delegated)
    }

    /// Whether the owner goes on only because the policy has Cluster API replace its Machines.
    pub fn goes_on_by_policy(&self) -> bool {
        let safe = |owner: &OwnerSeen| owner.replaces_none || owner.deleting;
        self.has_delegated() && !self.owner.as_ref().is_some_and(safe)
    }

    fn is_via_machines(&self) -> bool {
        match self.task.spec.via {
            Via::Machines => true,
            Via::Spec => false,
        }
    }

    /// The version that the Machines are brought to.
    pub fn target(&self) -> Option<&KubernetesVersion> {
        let of_owner = || self.owner.as_ref().and_then(|owner| owner.version.version());
        self.task.spec.version.as_ref().or_else(of_owner)
    }

    /// Whether the owner's spec requests something else than when the task began, and the task is for what it
    /// requested then.
    fn owner_was_edited(&self) -> bool {
        let recorded = self.task.status.as_ref().map_or("", |status| &status.owner_request);
        let Some(owner) = &self.owner else { return false };
        is_for_one_request(self.task) && !recorded.is_empty() && recorded != owner.request
    }

    /// Whether the owner's spec still has to get the task's version.
    fn sets_version(&self) -> Option<&KubernetesVersion> {
        let version = self.task.spec.version.as_ref()?;
        let owner = self.owner.as_ref()?;
        (!owner.version.is(version)).then_some(version)
    }

    /// The Machines that the task is for.
    fn members(&self) -> impl Iterator<Item = &Member<'_>> {
        let named = self.task.spec.machines.as_ref();
        self.machines.iter().filter(move |member| {
            named.is_none_or(|named| named.iter().any(|name| name == member.name))
        })
    }
}
