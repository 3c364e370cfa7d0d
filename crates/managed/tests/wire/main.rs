//! What goes over the wire to servers outside of the Kubernetes API (rows 20-22, 38, 43, 44, 69, 85 and 88 of
//! `docs/facts/openshift-upgrades.md#rows`).

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../common/bed.rs"]
mod bed;
mod dependencies;
mod dvo;
mod graph;
mod ocm;
mod registry;
mod servers;
