//! What a script can say.

use jiff::SignedDuration;

use super::field::{Field, Setting};

/// A line of a script, or several where it has a here-document.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    /// Line, from 1.
    pub(super) line: usize,
    /// As it stands in the script; comments and empty lines are statements too.
    pub(super) text: String,
    /// What it says; `None` for a comment.
    pub(super) command: Option<Command>,
}

/// A command.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Makes the world.
    Load(Vec<String>),
    /// Lets time pass.
    Pass(SignedDuration),
    /// Waits for something.
    Wait(Goal, SignedDuration),
    /// Does something later.
    At(SignedDuration, Box<Statement>),
    /// Does something that takes no time.
    Now(Action),
}

/// What a script waits for.
#[derive(Clone, Debug)]
pub(super) enum Goal {
    /// Nothing is written any more.
    Quiet,
    /// An object is as wanted.
    Object(Reference, Condition),
}

/// How an object is to be.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// Ready, and every machine of it.
    Ready,
    /// Runs what its spec says, and nothing is under way.
    Updated,
    /// Is not there.
    Gone,
    /// An update or its group is blocked.
    Blocked(Option<String>),
    /// An update is in this phase.
    Phase(String),
    /// An update takes this step.
    Step(String),
    /// A field has a value.
    Field(Setting),
    /// A condition has a status.
    Status(String, String),
}

/// What takes no time.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Creates or merges objects.
    Apply(Option<String>, Source),
    /// Sets fields.
    Change(Reference, Vec<Setting>),
    /// Deletes an object.
    Delete(Reference),
    /// Makes trouble, for some time or until mended.
    Break(Trouble, Option<SignedDuration>),
    /// Ends trouble.
    Mend(Place),
    /// Ends a process, for some time.
    Kill(Process, Option<SignedDuration>),
    /// Shows something.
    Show(Show),
    /// Prints the language.
    Help,
}

/// Where objects to apply come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Files.
    Files(Vec<String>),
    /// The script itself.
    Here(String),
}

/// An object by its names.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    /// Workload cluster; `None` for the management cluster.
    pub(super) cluster: Option<String>,
    /// Kind as it was named.
    pub(super) kind: String,
    /// Namespace, where it was named.
    pub(super) namespace: Option<String>,
    /// Name as it was named.
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

/// What goes wrong.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// A step of a host.
    Step {
        /// The host's node.
        node: String,
        /// The step.
        step: String,
        /// How it goes wrong.
        how: How,
    },
    /// A place.
    Place(Place),
}

/// How a step goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// It fails this often.
    Fails(u32),
    /// It hangs this often.
    Hangs(u32),
    /// It takes this many times as long.
    Slow(u32),
}

/// Where trouble is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Steps and disk of a host.
    Host(String),
    /// A host's disk.
    Disk(String),
    /// A host's power.
    Node(String),
    /// A host's agent and its way to the API.
    Agent(String),
    /// An API server: `management`, or a workload cluster.
    Api(String),
}

/// A process.
#[derive(Clone, Debug)]
pub(super) enum Process {
    /// refit-controller.
    Controller,
    /// What stands for Cluster API.
    Capi,
    /// The agent of a host.
    Agent(String),
}

/// What is shown.
#[derive(Clone, Debug)]
pub(super) enum Show {
    /// A table of its own.
    Table(Table),
    /// The steps of a machine's newest update.
    Steps(String),
    /// Events, all or those about an object.
    Events(Option<Reference>),
    /// Fields of all objects of a kind: cluster, kind, fields.
    Kind(Option<String>, String, Vec<Field>),
    /// Fields of an object.
    Object(Reference, Vec<Field>),
}

/// Tables that are made for one subject.
#[derive(Clone, Copy, Debug)]
pub(super) enum Table {
    /// Machines.
    Machines,
    /// Nodes.
    Nodes,
    /// Hosts.
    Hosts,
    /// Pods outside kube-system.
    Pods,
    /// NodeUpdates.
    Updates,
    /// UpdateGroups.
    Groups,
    /// HostPlans.
    Plans,
    /// Processes.
    Processes,
}

/// What is wrong with one line: what, what the script says, what it should say.
pub(super) type Wrong = (String, String, String);

pub(super) fn wrong(what: &str, got: impl Into<String>, want: impl Into<String>) -> Wrong {
    (what.to_owned(), got.into(), want.into())
}
