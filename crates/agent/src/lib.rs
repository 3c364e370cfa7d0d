//! The host side: a durable journal, typed steps and their drivers.
//!
//! | module | is for |
//! |---|---|
//! | `disk` | what survives the process |
//! | [`journal`] | the append-only record of what was started and how it ended |
//! | [`state`] | what the journal says, as a pure fold |
//! | `engine` | what comes next, as pure functions |
//! | `judge` | what to do about a step that has started, as a pure function |
//! | `reason` | why a step failed, and what may end that |
//! | `undo` | what is rolled back, and what is left |
//! | `report` | what the API is told, from journal and host alone |
//! | `reporter` | telling it: on each change, and as a heartbeat |
//! | [`host`] | commands, and the host that runs them |
//! | `trust` | which plans are believed, where signed ones are asked for |
//! | [`install`] | the agent on its host: installing, exchanging and removing itself |
//! | `run` | the process: watch, act, report |
//!
//! A step is journalled before its command starts and after it ended. Commands run outside the
//! agent and are found again by name, so killing the agent at any point loses nothing.

mod disk;
mod driver;
mod engine;
pub mod host;
pub mod install;
pub mod journal;
mod judge;
mod reason;
mod report;
mod reporter;
mod run;
pub mod state;
mod trust;
mod undo;

pub use disk::{Disk, RealDisk};
pub use host::{Host, RealHost};
pub use run::{AgentOptions, run, run_for, run_with};
pub use trust::{Extras, PlanTrust};
