//! The simulated cluster, on an API server in this process and with a paused clock.

#![expect(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "helpers of tests, which fail where something is missing"
)]

mod common;
mod machines;
mod nodes;
mod update;
