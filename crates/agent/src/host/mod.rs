//! Commands, and the hosts that run them.
//!
//! A command runs outside the agent, as a *unit* whose name is in the journal. On a real host this
//! is a transient systemd unit. After a restart the agent finds the unit by its name.
//!
//! | on a real host | purpose |
//! |---|---|
//! | `real`, `unit` | starting units, polling them, inspecting the host |
//! | `carry_out` | the code that runs inside a unit |
//! | `packages` | apt, dnf, tarballs |
//! | `kubeadm`, `kubelet`, `kubelet_fetched`, `kubelet_probe`, `running`, `snapshot` | Kubernetes itself |
//! | `trident` | OS images |
//! | `reboot`, `boot` | rebooting between the work of other programs, and only if that is required |
//! | `files`, `ntp`, `units`, `commands`, `images`, `runtime`, [`bundle`] | everything else |
//! | `site`, `program` | the drivers' view of the host: directories, programs, a log |

mod boot;
pub mod bundle;
mod carry_out;
mod command;
mod commands;
pub(crate) mod facts;
mod files;
mod images;
mod kubeadm;
mod kubelet;
mod kubelet_fetched;
mod kubelet_probe;
mod look;
mod ntp;
mod packages;
mod program;
mod real;
mod reboot;
mod running;
mod runtime;
#[cfg(test)]
mod scripted;
mod site;
mod snapshot;
mod trident;
mod unit;
mod units;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use jiff::Timestamp;
use refit_kinds::refit::{FailureKind, HostFacts, PlanId};

pub use carry_out::{JobFile, carry_out};
pub use command::{Command, CommandRules, Undo};
pub use facts::Fact;
pub(crate) use files::home as home_of;
pub use files::secret::{NoSecrets, NodeSecrets};
pub(crate) use packages::FETCHED;
pub use packages::{Order, Packages, Want};
pub use program::{Invocation, Program, ProgramError};
pub use real::RealHost;
pub use site::{Site, Tool};
pub use trident::{OsImage, Situation, TridentCli};
pub use work::WorkError;

/// The static pods of a control plane whose images have the Kubernetes version.
pub const CONTROL_PLANE: [&str; 3] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// A command to run, and the name of its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The plan; its snapshot is stored under this name.
    pub plan: PlanId,
    /// Name of the unit. An attempt has the same name each time it is started.
    pub unit: String,
    /// Id of the step.
    pub step: String,
    /// The command to run.
    pub command: Command,
    /// How long the command may take before it counts as hung.
    pub timeout_seconds: u32,
}

impl Job {
    /// A command of a plan, with the timeout of its type.
    pub fn new(
        plan: impl Into<PlanId>,
        unit: &str,
        step: &str,
        command: impl Into<Command>,
    ) -> Self {
        let command = command.into();
        Self {
            plan: plan.into(),
            unit: unit.to_owned(),
            step: step.to_owned(),
            timeout_seconds: command.rules().timeout_seconds,
            command,
        }
    }
}

/// The state of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitState {
    /// The host has no unit of that name: it never started, or it ended and was collected.
    Unknown,
    /// The unit is running.
    Running,
    /// The unit has ended.
    Exited {
        /// Exit code; 0 is success.
        code: i32,
        /// The end of its output, secrets masked.
        output_tail: String,
    },
}

/// The state of the host when an attempt started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// Start time of the attempt.
    pub at: Timestamp,
    /// Boot ID at that time.
    pub boot_id: String,
}

/// What the state of the host shows about a command, independent of the result of its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The work of the command is done.
    Done,
    /// The work is not done.
    Missing {
        /// The missing part, as a whole sentence.
        what: String,
    },
    /// The work is not done, and the host shows which kind of failure it is.
    Refused {
        /// Whether a retry, a new plan or an operator can resolve it.
        kind: FailureKind,
        /// CamelCase reason, such as `DiskFull`.
        reason: &'static str,
        /// The problem and its remedy, as a whole sentence.
        what: String,
    },
}

impl Evidence {
    /// `Done` if `done` holds, otherwise what is missing.
    pub fn from_check(done: bool, what: impl FnOnce() -> String) -> Self {
        if done { Self::Done } else { Self::Missing { what: what() } }
    }
}

/// Why an operation on a host failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The output of a program could not be parsed.
    #[error("unexpected output of {program}: {answer}")]
    Answer {
        /// Name of the program.
        program: String,
        /// Its output.
        answer: String,
    },
    /// A fact of the host could not be read.
    #[error("cannot read {fact} of the host: {message}")]
    Unread {
        /// Name of the fact.
        fact: &'static str,
        /// Why it could not be read.
        message: String,
    },
    /// Other work on the host failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A host.
pub trait Host: Send + Sync + 'static {
    /// The current facts of the host. Those that cannot be read are listed in them.
    fn facts(&self) -> BoxFuture<'_, HostFacts>;
    /// The versions of these packages. Packages that are not installed are left out.
    fn versions<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<BTreeMap<String, String>, HostError>>;
    /// Starts a unit. An existing unit of that name, running or ended, is left alone.
    fn start<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), HostError>>;
    /// Returns the state of a unit.
    fn poll<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, Result<UnitState, HostError>>;
    /// Checks on the host itself, not on the unit, whether the work of a command is done.
    fn look<'a>(
        &'a self,
        job: &'a Job,
        since: &'a Since,
    ) -> BoxFuture<'a, Result<Evidence, HostError>>;
    /// Waits until it is worth polling a running unit again, at most a second on a real host.
    fn wait<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()>;
    /// Removes an ended unit; its result is in the journal. Best effort.
    fn release<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()>;
    /// Removes what plans have fetched, while no plan needs it. Best effort.
    fn remove_fetched(&self) -> BoxFuture<'_, ()>;
}
