//! Why a response to Cluster API must wait.

use std::fmt;

use refit_kinds::{
    keys,
    version::{KubernetesVersion, StatedVersion},
};
use strum::IntoStaticStr;

use crate::report::Refusal;

/// Why a response must wait. Cluster API receives a Failure and calls again; an empty Success would
/// delete machines and be cached for a day
/// (`docs/facts/machine-deployment.md#canupdatemachineset`).
///
/// Variants that only [`super::can_update()`] decides cannot be constructed outside this crate.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum NotReady {
    /// The caches are not complete.
    NotSynced,
    /// The request is invalid.
    BadRequest {
        /// What is wrong with it.
        reason: String,
    },
    /// The namespace did not opt in.
    NotOptedIn {
        /// Its name.
        namespace: String,
    },
    /// The live object is not known.
    ObjectUnknown {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The Machine has no owner that Refit knows.
    OwnerUnknown {
        /// Name of the Machine.
        machine: String,
    },
    /// An UpgradeTask works through the Machines of the group itself.
    TaskAtWork {
        /// Its name.
        task: String,
    },
    /// The Machine is being deleted.
    #[non_exhaustive]
    Deleting {
        /// Name of the Machine.
        machine: String,
    },
    /// Another machine of the control plane has unfinished work.
    #[non_exhaustive]
    #[strum(serialize = "AnotherMachineUpdating")]
    AnotherMachine {
        /// Name of that Machine.
        machine: String,
        /// The unfinished work.
        what: Unfinished,
    },
    /// Its update would be refused: an operator holds the machine or leaves it out of the rollout, or it is not known which
    /// NodeDisruptionPolicy applies.
    #[non_exhaustive]
    #[strum(transparent)]
    Refused(Refusal),
    /// A machine whose update is withdrawn has unfinished work.
    #[non_exhaustive]
    Returning {
        /// Name of that Machine.
        machine: String,
        /// The unfinished work.
        what: Unfinished,
    },
    /// Hosts without a recent report from their agent.
    #[non_exhaustive]
    NoFreshReport {
        /// Nodes, or Machines without a Node, in order.
        nodes: Vec<String>,
    },
    /// The control plane must be updated first.
    #[non_exhaustive]
    ControlPlaneBehind {
        /// Name of a control plane Machine.
        machine: String,
        /// Its current version.
        runs: StatedVersion,
        /// The target version.
        target: KubernetesVersion,
    },
    /// The API server of a control plane without Machines must be updated first.
    #[non_exhaustive]
    #[strum(serialize = "ControlPlaneBehind")]
    ApiServerBehind {
        /// The version that it reports.
        runs: StatedVersion,
        /// The target version.
        target: KubernetesVersion,
    },
    /// The kubelet of a control plane Machine is further behind the target than kubeadm can go: an
    /// earlier update of it has not succeeded.
    #[non_exhaustive]
    KubeletBehind {
        /// Name of the Machine.
        machine: String,
        /// The version of its kubelet.
        runs: KubernetesVersion,
        /// The target version.
        target: KubernetesVersion,
    },
    /// The owner does not request the desired objects of the call: it was repeated later, or made on an
    /// outdated view.
    OwnerDiffers {
        /// Kind and name of the owner.
        owner: String,
    },
    /// According to the caches, the owner does not request the desired objects, and the owner could not
    /// be read from the API server.
    OwnerUnread {
        /// Kind and name of the owner.
        owner: String,
        /// What failed.
        error: String,
    },
    /// An Updater claims a change of an infrastructure machine, and it is not known whether the API server
    /// would accept it: if it does not, Cluster API deletes machines without asking again.
    ProviderUnknown {
        /// Kind and name of the infrastructure machine or its template.
        object: String,
        /// Why it is not known.
        why: String,
    },
    /// An Updater claims a change of an infrastructure machine, and Refit may not ask whether the API server
    /// would accept it.
    ProviderForbidden {
        /// Kind and name of the infrastructure machine or its template.
        object: String,
        /// The words of the API server.
        why: String,
    },
    /// What Updaters are to do could not be recorded in the UpdateGroup.
    NotRecorded {
        /// What failed.
        error: String,
    },
    /// The policy lets Cluster API replace machines, but it could not be read from the API server.
    Unconfirmed {
        /// What failed.
        error: String,
    },
    /// The verdict took too long.
    Deadline,
}

/// Unfinished work on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// A NodeUpdate with this name.
    NodeUpdate(String),
    /// Cluster API's own marks are still set.
    Marked,
}

impl NotReady {
    /// CamelCase reason for status and metrics.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSynced => f.write_str("Refit is starting and has not read the cluster yet"),
            Self::BadRequest { reason } => write!(f, "the request cannot be served: {reason}"),
            Self::NotOptedIn { namespace } => write!(
                f,
                "namespace {namespace} has not opted in: kubectl label namespace {namespace} \
                 {}={}",
                keys::IN_PLACE,
                keys::OPTED_IN
            ),
            Self::ObjectUnknown { kind, name } => {
                write!(f, "Refit does not know {kind} {name} (yet)")
            }
            Self::OwnerUnknown { machine } => write!(
                f,
                "Machine {machine} has no owner that Refit knows, neither a control plane nor a \
                 MachineSet"
            ),
            Self::TaskAtWork { task } => write!(
                f,
                "UpgradeTask {task} works through the Machines itself, and one orchestrator at a time works on a group: \
                 leave its owner paused until the task has ended, or abort the task"
            ),
            Self::Deleting { machine } => write!(f, "Machine {machine} is being deleted"),
            Self::AnotherMachine { machine, what } => match what {
                Unfinished::NodeUpdate(name) => write!(
                    f,
                    "Machine {machine} of the same control plane is not finished (NodeUpdate \
                     {name})"
                ),
                Unfinished::Marked => write!(
                    f,
                    "Machine {machine} of the same control plane is still being updated in place"
                ),
            },
            Self::Refused(refusal) => f.write_str(&refusal.sentence()),
            Self::Returning { machine, what } => match what {
                Unfinished::NodeUpdate(name) => write!(
                    f,
                    "the version that Machine {machine} runs is requested again, and NodeUpdate \
                     {name} has not ended: wait, or end it with `refit abort machine/{machine}`"
                ),
                Unfinished::Marked => write!(
                    f,
                    "the version that Machine {machine} runs is requested again, and its update is \
                     being withdrawn"
                ),
            },
            Self::NoFreshReport { nodes } => write!(
                f,
                "no recent report of refit-agent from {}: check that it runs there",
                nodes.join(", ")
            ),
            Self::ControlPlaneBehind { machine, runs, target } => write!(
                f,
                "kubelets must not be newer than the API server: control plane Machine {machine} \
                 runs {runs}, but {target} is desired"
            ),
            Self::ApiServerBehind { runs: StatedVersion::Absent, target } => write!(
                f,
                "kubelets must not be newer than the API server: {target} is desired, and the \
                 version of the API server is not known (yet)"
            ),
            Self::ApiServerBehind { runs, target } => write!(
                f,
                "kubelets must not be newer than the API server, which runs {runs}, but {target} \
                 is desired"
            ),
            Self::KubeletBehind { machine, runs, target } => write!(
                f,
                "Machine {machine} runs kubelet {runs}, and kubeadm cannot skip a minor version on \
                 the way to {target}: pause its control plane, bring the machine to v{}.{} with a \
                 NodeUpdate of your own, and end the pause",
                runs.major(),
                runs.minor() + 1
            ),
            Self::OwnerDiffers { owner } => write!(
                f,
                "the call names a version or an infrastructure template that {owner} does not request"
            ),
            Self::OwnerUnread { owner, error } => write!(
                f,
                "whether {owner} requests the version and the infrastructure template of the call could \
                 not be confirmed: {error}"
            ),
            Self::ProviderUnknown { object, why } => write!(
                f,
                "an Updater claims a change of {object}, and whether its provider accepts the change is \
                 not known: {why}"
            ),
            Self::ProviderForbidden { object, why } => write!(
                f,
                "an Updater claims a change of {object}, and Refit lacks the permission to ask whether its \
                 provider accepts the change: {why}"
            ),
            Self::NotRecorded { error } => {
                write!(f, "what Updaters are to do about the change could not be recorded: {error}")
            }
            Self::Unconfirmed { error } => write!(
                f,
                "machines would be replaced, and the policy that allows it could not be confirmed: \
                 {error}"
            ),
            Self::Deadline => f.write_str("timed out; Cluster API will call again"),
        }
    }
}
