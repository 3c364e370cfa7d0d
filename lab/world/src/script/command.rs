//! The commands of a script.

use std::{collections::BTreeMap, path::PathBuf};

use jiff::SignedDuration;
use refit_controller::{Canonical, Settings};
use refit_core::annotation::Compat;
use refit_kinds::refit::{Receiver, Until};
use serde_json::Value;

use super::{
    field::{Field, Setting},
    files,
    k8sd::Refresh,
};
use crate::{provider::Misbehaviour, receivers::Refuses, update_server::UpdateServer};

/// A line of a script, or several lines if it has a here-document.
#[derive(Clone, Debug)]
pub(crate) struct Statement<C = Command> {
    /// Line number, from 1.
    pub(super) line: usize,
    /// The source text; comments and empty lines are statements too.
    pub(crate) text: String,
    /// The parsed command; `None` for a comment or an empty line.
    pub(super) command: Option<C>,
}

/// A command.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Creates the world.
    Load(Load),
    /// Lets time pass.
    Pass(SignedDuration),
    /// Waits for a goal, with a time limit.
    Wait(Goal, SignedDuration),
    /// Runs a statement later.
    At(SignedDuration, Box<Statement>),
    /// Runs an action that takes no time.
    Now(Action),
}

/// What a world is created from.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each turns on a process of its own")]
pub(crate) struct Load {
    /// The manifests.
    pub(super) files: Vec<String>,
    /// Whether there is a second replica of the controller.
    pub(super) standby: bool,
    /// Whether the server of `examples/hook-updater` runs.
    pub(super) updater: bool,
    /// Whether `examples/provider` runs.
    pub(super) provider: bool,
    /// Whether a provider brings machines to versions.
    pub(super) version_provider: bool,
    /// Whether there are receivers of notifications.
    pub(super) receivers: bool,
    /// Who serves the annotations of Canonical's providers.
    pub(super) canonical: CanonicalAnnotations,
    /// Whether the controller asks the server of the version graph.
    pub(super) version_graph: bool,
    /// The seed of everything random, such as names; `None` for the default.
    pub(super) seed: Option<u64>,
    /// How often the leader of two controllers renews the Lease; `None` for the default.
    pub(super) lease: Option<SignedDuration>,
}

impl Load {
    /// The controller's settings.
    pub(super) fn settings(&self, settings: Settings) -> Settings {
        let version_graph = self.version_graph.then(UpdateServer::source);
        Settings { version_graph, ..self.canonical.settings(settings) }
    }
}

/// Who serves the annotations of Canonical's providers, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CanonicalAnnotations {
    /// Nothing does.
    #[default]
    Unserved,
    /// refit-controller, without the bugs of Canonical's controllers.
    Corrected,
    /// refit-controller, as Canonical's controllers do.
    Strict,
    /// Canonical's own controllers, next to a refit-controller that does not know whether they run.
    ByCanonical,
}

impl CanonicalAnnotations {
    /// The controller's settings.
    fn settings(self, settings: Settings) -> Settings {
        let (canonical, canonical_compat) = match self {
            Self::Unserved => (Canonical::Off, Compat::Corrected),
            Self::Corrected => (Canonical::ControllersAbsent, Compat::Corrected),
            Self::Strict => (Canonical::ControllersAbsent, Compat::Strict),
            Self::ByCanonical => (Canonical::On, Compat::Corrected),
        };
        Settings { canonical, canonical_compat, ..settings }
    }
}

/// The goal of a wait.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// No more writes.
    Quiet,
    /// An object meets a condition.
    Object(Reference, Condition),
}

/// The condition that an object must meet.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The object and all of its machines are ready.
    Ready,
    /// It runs what its spec requests, and no update is in progress.
    Updated,
    /// It does not exist.
    Gone,
    /// An update or its group is blocked, optionally for this reason.
    Blocked(Option<String>),
    /// An update is in this phase.
    Phase(String),
    /// An update is at this step.
    Step(String),
    /// A field has a value.
    Field(Setting),
    /// A status condition has this status.
    Status(String, String),
}

/// An action that takes no time.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Creates objects or merges them into existing ones.
    Apply(Option<String>, Source),
    /// Sets fields.
    Change(Reference, Vec<Setting>),
    /// Deletes an object.
    Delete(Reference),
    /// Injects a failure, for some time or until it is mended.
    Break(Trouble, Option<SignedDuration>),
    /// Ends a failure.
    Mend(Place),
    /// Kills a process; with a duration, it restarts only after that time.
    Kill(Process, Option<SignedDuration>),
    /// Sends the first UpdateMachine request of a Machine's update again.
    Repeat(String),
    /// Creates the next NodeUpdate of a machine by hand.
    Update {
        /// Name of the machine.
        machine: String,
        /// The version of the goal.
        version: String,
        /// How far it may go.
        until: Until,
    },
    /// Brings a host to a version by hand, without an update.
    Upgrade {
        /// Name of the node.
        node: String,
        /// The version.
        version: String,
    },
    /// Shows a part of the world.
    Show(Show),
    /// Prints the help text of the language.
    Help,
}

/// Where the objects to apply come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Files.
    Files(Vec<String>),
    /// The script itself.
    Here(String),
}

impl Source {
    /// The objects. Files are searched in these directories.
    pub(super) fn objects(&self, directories: &[PathBuf]) -> Result<Vec<Value>, Wrong> {
        Ok(match self {
            Self::Here(text) => files::objects("<<END", text)?,
            Self::Files(names) => {
                let mut objects = Vec::new();
                for name in names {
                    let path = files::find(directories, name)?;
                    objects.extend(files::objects(name, &files::read(&path, name)?)?);
                }
                objects
            }
        })
    }
}

/// An object, named as in the script.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// Workload cluster; `None` for the management cluster.
    pub(super) cluster: Option<String>,
    /// Kind as written in the script.
    pub(super) kind: String,
    /// Namespace, if the script names it.
    pub(super) namespace: Option<String>,
    /// Name as written in the script.
    pub(super) name: String,
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(cluster) = &self.cluster {
            write!(f, "{cluster}:")?;
        }
        write!(f, "{}/", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// A failure to inject.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// A step on a host fails, hangs or is slow.
    Step {
        /// Node name of the host.
        node: String,
        /// Name of the step.
        step: String,
        /// How the step misbehaves.
        how: How,
    },
    /// The open streams to an API become half-open.
    Streams(String),
    /// An API rejects requests with an HTTP status.
    Requests {
        /// `management`, or a workload cluster.
        api: String,
        /// The status.
        code: u16,
        /// The resource and, after a slash, the subresource; any if `None`.
        resource: Option<String>,
        /// Number of requests.
        times: u32,
    },
    /// An API carries out requests, but its responses are lost.
    Answers {
        /// `management`, or a workload cluster.
        api: String,
        /// Number of requests.
        times: u32,
    },
    /// The last record of an agent's journal is torn, and the agent is killed.
    Journal(String),
    /// Refreshes of a node's snap misbehave.
    Refresh {
        /// Name of the node.
        node: String,
        /// How they misbehave.
        how: Refresh,
        /// Number of refreshes.
        times: u32,
    },
    /// A place is out of order.
    Place(Place),
}

/// How a step misbehaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// It fails this many times.
    Fails(u32),
    /// It hangs this many times.
    Hangs(u32),
    /// Its duration is multiplied by this number.
    Slow(u32),
}

/// The place of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Steps and disk of a host, by node name.
    Host(String),
    /// The disk of a host.
    Disk(String),
    /// The power of a host.
    Node(String),
    /// k8sd of a host, by node name.
    K8sd(String),
    /// The agent of a host and its connection to the API.
    Agent(String),
    /// An API server: `management`, or a workload cluster.
    Api(String),
    /// The speed of an API: each request is delayed.
    Latency(String, SignedDuration),
    /// The connection of a process to an API.
    Link(Process, String),
    /// The clock of a process, this far ahead of the others.
    Clock(Process, SignedDuration),
    /// What the processes see of a kind in an API.
    View(Option<String>, String),
    /// What `examples/provider` reports.
    Provider(Option<Misbehaviour>),
    /// An alert in Prometheus, and its labels.
    Alert(String, BTreeMap<String, String>),
    /// The queries of Prometheus that contain this text.
    Query(String),
    /// Prometheus.
    Prometheus,
    /// A receiver of notifications.
    Receiver(Receiver, Refuses),
    /// The server of the version graph.
    UpdateServer,
    /// Alertmanager.
    Alertmanager,
    /// The silences whose comment contains this text.
    Silence(String),
}

impl Place {
    /// Whether a failure here and one there have the same end.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        if let (Self::Latency(api, _), Self::Latency(other, _)) = (self, other) {
            return api == other;
        }
        if let (Self::Clock(process, _), Self::Clock(other, _)) = (self, other) {
            return process == other;
        }
        if let (Self::Alert(name, _), Self::Alert(other, _)) = (self, other) {
            return name == other;
        }
        if let (Self::Receiver(receiver, _), Self::Receiver(other, _)) = (self, other) {
            return receiver == other;
        }
        if let (Self::Provider(_), Self::Provider(_)) = (self, other) {
            return true;
        }
        self == other
    }
}

/// A process that a script can kill or disconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// refit-controller.
    Controller,
    /// The second replica of refit-controller.
    Standby,
    /// The Cluster API stand-in.
    Capi,
    /// The server of `examples/hook-updater`.
    Updater,
    /// `examples/provider`.
    Provider,
    /// The provider that brings machines to versions.
    VersionProvider,
    /// Canonical's controllers.
    CanonicalControllers,
    /// The agent of a host.
    Agent(String),
}

/// The subject of `show`.
#[derive(Clone, Debug)]
pub(crate) enum Show {
    /// A predefined table.
    Table(Table),
    /// The steps of a machine's newest update.
    Steps(String),
    /// Events, all of them or those of an object.
    Events(Option<Reference>),
    /// Fields of all objects of a kind: cluster, kind, fields.
    Kind(Option<String>, String, Vec<Field>),
    /// Fields of an object.
    Object(Reference, Vec<Field>),
}

/// The predefined tables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// Machines.
    Machines,
    /// Nodes.
    Nodes,
    /// Hosts.
    Hosts,
    /// Snaps of hosts on which k8sd runs.
    Snaps,
    /// Pods outside kube-system.
    Pods,
    /// NodeUpdates.
    Updates,
    /// UpdateGroups.
    Groups,
    /// HostPlans.
    Plans,
    /// What the receivers of notifications took.
    Received,
    /// The silences in Alertmanager.
    Silences,
    /// Processes.
    Processes,
}

/// An error in one line: the subject, the actual value, the expected value.
pub(crate) type Wrong = (String, String, String);

pub(super) fn wrong(what: &str, got: impl Into<String>, want: impl Into<String>) -> Wrong {
    (what.to_owned(), got.into(), want.into())
}
