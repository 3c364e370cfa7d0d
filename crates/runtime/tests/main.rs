//! Clients, watches, servers and leases over real connections.

#![allow(
    clippy::duration_suboptimal_units,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a panic fails the test"
)]

mod client;
mod common;
mod lease;
mod pinned;
mod port_forward;
mod processes;
mod reflect;
mod serve;
mod tcp;
