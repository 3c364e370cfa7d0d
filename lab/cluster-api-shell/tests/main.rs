//! The stand-in for Cluster API, against API servers in process.

#![allow(
    clippy::needless_pass_by_value,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a panic fails the test"
)]

mod common;
mod remediation;
mod replacement;
mod rollout;
