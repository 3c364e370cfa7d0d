//! Shared by all shells: clock, client stack, watches, events and TLS.
//!
//! | module | purpose |
//! |---|---|
//! | [`clock`] | the only source of time |
//! | [`net`] | dialling and listening, over TCP or in memory |
//! | [`gate`] | the gate that every write of a process passes |
//! | [`lease`] | leader election, and the fence that the leader's writes pass |
//! | [`client`] | builds every Kubernetes client |
//! | [`workload`] | reaching workload clusters through their kubeconfig Secret |
//! | [`store`] | one watch per kind: store and trigger from the same stream |
//! | [`queue`] | reconcile keys: deduplicated, delayed, backed off |
//! | [`apply`] | patches and applies, built as values |
//! | [`events`] | events on state changes |
//! | [`foreign`] | objects of kinds that are known at run time only |
//! | [`replica`], [`liveness`] | one of several replicas: Lease, probes, shutdown |
//! | [`process`] | logs, credentials and signals of long-running programs |
//! | [`plan_signing`] | signatures of HostPlans |
//! | [`tls`] | certificates and server configuration with reload |
//! | `port_forward` | streams to ports of pods (Cargo feature) |
//! | `serve` | HTTP over TLS over any stream (Cargo feature) |
//!
//! This crate makes no decisions.

pub mod apply;
pub mod client;
pub mod clock;
pub mod events;
pub mod foreign;
pub mod gate;
mod guard;
pub mod lease;
pub mod liveness;
pub mod net;
pub mod plan_signing;
#[cfg(feature = "port-forward")]
pub mod port_forward;
pub mod process;
pub mod queue;
pub mod replica;
#[cfg(feature = "serve")]
pub mod serve;
pub mod store;
pub mod tls;
pub mod workload;

pub use clock::Clock;
pub use store::{ObjectKey, Store};
