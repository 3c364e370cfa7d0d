//! The agent on a host: a durable journal, typed steps and their drivers.
//!
//! | module | is for |
//! |---|---|
//! | `disk` | files that outlive the process |
//! | [`journal`] | the append-only record of what was started and how it ended |
//! | [`state`] | the state of the journal, as a pure fold |
//! | `engine` | the next action, as pure functions |
//! | `judge` | what to do about a started step, as a pure function |
//! | [`kubeconfig`] | the host's identity for the API |
//! | `policy` | which steps the host's own policy allows |
//! | `reason` | why a step failed, and what can resolve it |
//! | `undo` | what is rolled back, and what remains |
//! | `report` | the report to the API, from journal and host alone |
//! | `bounds` | the limits of a report |
//! | `reporter` | sending the report: on each change, and as a heartbeat |
//! | [`host`] | commands, and the host that runs them |
//! | `trust` | which plans are trusted on a host that requires signed plans |
//! | [`install`] | installing, replacing and removing the agent on its host |
//! | `run` | the process: watch, act, report |
//!
//! A step is journalled before its command starts and after it ends. Commands run outside the agent
//! and are found again by name, so killing the agent at any point loses nothing.

mod bounds;
mod disk;
mod driver;
mod engine;
pub mod host;
pub mod install;
pub mod journal;
mod judge;
pub mod kubeconfig;
mod policy;
mod reason;
mod report;
mod reporter;
mod run;
pub mod state;
mod trust;
mod undo;

pub use disk::{Disk, RealDisk};
pub use host::{Host, RealHost};
pub use policy::{DEFAULT_POLICY, OwnPaths, PolicyFile};
pub use run::{AgentOptions, run, run_for, run_with};
pub use trust::{Extras, PlanTrust};
