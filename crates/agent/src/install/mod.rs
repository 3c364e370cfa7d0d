//! Installing, replacing and removing the agent on its host.
//!
//! | module | is for |
//! |---|---|
//! | `layout` | where the program and its versions are |
//! | `unit` | the files of the systemd service |
//! | `service` | installing and removing the service |
//! | `exchange` | replacing one version by another, and restoring it if the new one fails |
//!
//! An installer puts a program next to the running one and marks it as wanted. The running agent
//! replaces itself when no step is in progress. The previous version watches the new one until that
//! has reported, and is restored if it does not.

mod exchange;
mod layout;
mod service;
mod unit;

pub use exchange::{
    ExchangeError, TRIAL_SECONDS, confirmed, end_trial, exchanged, guard, own_version,
};
pub use layout::{BASE, FileError, Layout, Link, Lock};
pub use service::{ExchangeOutcome, InstallError, Installation, SystemdUnits};
pub use unit::{setting, unit};
