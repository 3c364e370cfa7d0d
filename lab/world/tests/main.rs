//! Whole worlds: clusters, controllers and agents in one process.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a panic fails the test")]

mod common;
mod environment;
mod external_upgrade;
mod holds;
mod metrics;
mod openshift;
mod outages;
mod quorum;
mod rbac;
mod replicas;
mod sandbox;
mod scale;
mod signed;
mod simulate;
mod sweep;
mod trouble;
mod upgrade;
