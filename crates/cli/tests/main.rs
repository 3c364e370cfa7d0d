//! The program `refit`, as an operator runs it.

#![allow(clippy::needless_pass_by_value, clippy::unwrap_used, reason = "a panic fails the test")]

mod adopt;
mod bundle;
mod commands;
mod contract;
#[cfg(feature = "sandbox")]
mod demo;
mod except;
mod install;
mod managed;
#[cfg(feature = "sandbox")]
mod pace;
mod sandbox;
mod sandbox_openshift;
mod stage;
mod upgrade;
mod watch;
