//! Commands, and the hosts that run them.
//!
//! A command runs as a *unit* under a name that the journal knows, outside the agent: on a real
//! host a transient systemd unit. An agent that was killed finds it again by that name.
//!
//! | on a real host | is for |
//! |---|---|
//! | `real`, `unit` | starting units, asking how far they are, looking at the host |
//! | `carry_out` | what runs inside a unit |
//! | `packages` | apt, dnf, tarballs |
//! | `kubeadm`, `kubelet`, `snapshot` | Kubernetes itself |
//! | `trident` | OS images |
//! | `files`, `ntp`, `images`, `runtime`, [`bundle`] | everything else |
//! | `site`, `program` | the host as all of them see it: folders, programs, a log |

pub mod bundle;
mod carry_out;
mod command;
mod files;
mod images;
mod kubeadm;
mod kubelet;
mod look;
mod ntp;
mod packages;
mod program;
mod real;
mod runtime;
mod site;
mod snapshot;
mod trident;
mod unit;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use jiff::Timestamp;
use refit_kinds::refit::{FailureKind, HostFacts, PlanId};

pub use carry_out::{JobFile, carry_out};
pub use command::{Command, CommandRules, Undo};
pub use files::secret::{NoSecrets, NodeSecrets};
pub use packages::{Order, Packages, Want};
pub use program::{Invocation, Program, ProgramError};
pub use real::RealHost;
pub use site::{Site, Tool};
pub use trident::{OsImage, Situation, TridentCli};
pub use work::WorkError;

/// The static pods of a control plane that carry its version.
pub const CONTROL_PLANE: [&str; 3] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// A command to run, and the name to run it under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The plan: its snapshot is kept under this name.
    pub plan: PlanId,
    /// Name of the unit: the same for the same attempt, whoever starts it.
    pub unit: String,
    /// Id of the step.
    pub step: String,
    /// What to run.
    pub command: Command,
    /// How long it may take before it counts as hung.
    pub timeout_seconds: u32,
}

impl Job {
    /// A command of a plan, with as much time as such commands get.
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

/// How far a unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitState {
    /// The host knows none of that name: it never started, or it ended and was collected.
    Unknown,
    /// It runs.
    Running,
    /// It ended.
    Exited {
        /// Exit code; 0 is success.
        code: i32,
        /// The end of its output, secrets masked.
        output_tail: String,
    },
}

/// What the host was like when an attempt started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// When.
    pub at: Timestamp,
    /// In which boot.
    pub boot_id: String,
}

/// What the host's own state says about a command, whatever its unit said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Its work is done.
    Done,
    /// It is not.
    Missing {
        /// What is missing, as a whole sentence.
        what: String,
    },
    /// It is not, and the host says what may change that.
    Refused {
        /// What may end it.
        kind: FailureKind,
        /// CamelCase reason, such as `DiskFull`.
        reason: &'static str,
        /// What is wrong and what to do, as a whole sentence.
        what: String,
    },
}

impl Evidence {
    /// `Done` where it holds, else what is missing.
    pub fn from_check(done: bool, what: impl FnOnce() -> String) -> Self {
        if done { Self::Done } else { Self::Missing { what: what() } }
    }
}

/// Why a host could not be asked or told.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A file could not be read or written.
    #[error("{path} could not be used: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program answered something that we do not understand.
    #[error("{program} answered what cannot be read: {answer}")]
    Answer {
        /// The program.
        program: String,
        /// What it said.
        answer: String,
    },
    /// Something else on the host could not be done.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A host.
pub trait Host: Send + Sync + 'static {
    /// What it looks like now.
    fn facts(&self) -> BoxFuture<'_, Result<HostFacts, HostError>>;
    /// The versions of these packages; one that is not there is left out.
    fn versions<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<BTreeMap<String, String>, HostError>>;
    /// Starts a unit. One of that name that is there already, running or ended, is left alone.
    fn start<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), HostError>>;
    /// How far a unit is.
    fn poll<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, Result<UnitState, HostError>>;
    /// Looks at the host itself, not at the unit, whether the work of a command is done.
    fn look<'a>(
        &'a self,
        job: &'a Job,
        since: &'a Since,
    ) -> BoxFuture<'a, Result<Evidence, HostError>>;
    /// Waits until it is worth polling a running unit again, at most a second on a real host.
    fn wait<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()>;
    /// Lets go of an ended unit: the journal knows how it ended. Best effort.
    fn release<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()>;
}
