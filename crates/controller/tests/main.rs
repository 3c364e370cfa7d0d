//! The controller, through its hooks and the API servers that it watches.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod binary;
mod canonical;
mod certificates;
mod common;
mod external_upgrade;
mod hook_server;
mod hooks;
mod hostile_clients;
mod node_updates;
mod process;
