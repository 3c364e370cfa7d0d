//! The agent against simulated and real hosts.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a panic fails the test")]

mod agent;
mod apt;
mod binary;
mod common;
mod dnf;
mod documented_traps;
mod journal;
mod os_packages;
mod rpm_repair;
mod served;
mod undo;
mod unreadable;
