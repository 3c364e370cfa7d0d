//! The agent on its host: installing, exchanging and removing itself.
//!
//! | module | is for |
//! |---|---|
//! | [`layout`] | where the program and its versions are |
//! | [`mod@unit`] | the files of the service |
//! | [`service`] | installing and removing the service |
//! | [`exchange`] | one version for another, between two steps, and back where the new one fails |
//!
//! An installer puts a program beside the one that runs and says that it is wanted. The running
//! agent exchanges itself when no step is under way. The version of before watches over the new
//! one until that has reported, and takes its place again if it does not.

pub mod exchange;
pub mod layout;
pub mod service;
pub mod unit;

pub use exchange::{ExchangeError, TRIAL_SECONDS};
pub use layout::{BASE, FileError, Layout, Link};
pub use service::{InstallError, Installation, Outcome, SystemdUnits};
