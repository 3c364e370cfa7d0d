//! Commands, and the hosts that run them.
//!
//! A command runs as a *unit* under a name that the journal knows, outside the agent: on a real
//! host a transient systemd unit, on a simulated one an entry in its state. An agent that was
//! killed finds it again by that name.

pub mod command;
pub mod program;
pub mod real;
pub mod sim;
pub mod sim_state;
pub mod sim_trouble;
mod sim_uptime;

use futures::future::BoxFuture;
use jiff::Timestamp;
use refit_api::refit::HostFacts;

pub use command::{CAPABILITIES, Command, InvalidStep, KubernetesVersion};
pub use program::{Invocation, Program, ProgramError};

/// The static pods of a control plane that carry its version.
pub const CONTROL_PLANE: [&str; 3] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

/// A command to run, and the name to run it under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the unit: the same for the same attempt, whoever starts it.
    pub unit: String,
    /// Id of the step.
    pub step: String,
    /// What to run.
    pub command: Command,
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
}

impl Evidence {
    /// `Done` where it holds, else what is missing.
    pub fn from_check(done: bool, what: impl FnOnce() -> String) -> Self {
        if done {
            Self::Done
        } else {
            Self::Missing { what: what() }
        }
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
}

/// A host.
pub trait Host: Send + Sync + 'static {
    /// What it looks like now.
    fn facts(&self) -> BoxFuture<'_, Result<HostFacts, HostError>>;
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
