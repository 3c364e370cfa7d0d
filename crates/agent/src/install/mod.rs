//! The agent on its host: installing, exchanging and removing itself.
//!
//! | module | is for |
//! |---|---|
//! | `layout` | where the program and its versions are |
//! | `unit` | the files of the service |
//! | `service` | installing and removing the service |
//! | `exchange` | one version for another, between two steps, and back where the new one fails |
//!
//! An installer puts a program beside the one that runs and says that it is wanted. The running
//! agent exchanges itself when no step is under way. The version of before watches over the new
//! one until that has reported, and takes its place again if it does not.

mod exchange;
mod layout;
mod service;
mod unit;

pub use exchange::{
    ExchangeError, TRIAL_SECONDS, confirmed, end_trial, exchanged, guard, own_version,
};
pub use layout::{BASE, FileError, Layout, Link};
pub use service::{ExchangeOutcome, InstallError, Installation, SystemdUnits};
pub use unit::{setting, unit};
