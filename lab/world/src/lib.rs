//! Simulated infrastructure on the embedded API server: clusters, hosts, kubelets, sweeps.
//!
//! | module | is for |
//! |---|---|
//! | [`manifests`] | rejects manifests that cannot run, and generates missing CRDs |
//! | [`world`] | a whole world in one process, on simulated time |
//! | `env` | the rest of a real cluster: everything except Cluster API and Refit |
//! | `provider`, `version_provider` | a provider that misbehaves, and one that brings machines to versions |
//! | `canonical_controllers` | Canonical's controllers, which know nothing of Refit |
//! | `fleet` | with the feature `sabotage`: the Clusters of a fleet |
//! | [`openshift`] | a world with an OpenShift cluster, which refit-managed upgrades |
//! | [`sandbox`] | a world that keeps running and serves kubectl |
//! | [`snapshot`] | saves a whole world, which can be restored later |
//! | [`invariants`] | safety invariants, checked after every write |
//! | `holds` | judges whether Cluster API replaces a Machine that is held |
//! | [`script`] | scenario scripts: commands to a world, and its state as text |
//! | [`calls`] | counts the API calls of the controller during an upgrade by annotation |
//! | [`writes`] | counts the writes of Refit's processes during an upgrade |
//! | `sweep` | with the feature `sabotage`: kills every process at every effect |
//! | `simulate` | with the feature `sabotage`: seeded runs with faults of every kind |
//!
//! ```no_run
//! # async fn example(manifests: Vec<serde_json::Value>) -> Result<(), Box<dyn std::error::Error>> {
//! use lab_world::world::{World, WorldOptions, facts};
//!
//! let world = World::new(WorldOptions::new(manifests)).await?;
//! let before = facts(&world).await?;
//! world.upgrade("v1.35.0").await?;
//! # Ok(())
//! # }
//! ```

mod alertmanager;
pub mod calls;
mod canonical_controllers;
mod direct;
mod env;
#[cfg(feature = "sabotage")]
pub mod fleet;
mod holds;
mod http;
pub mod invariants;
mod leaders;
pub mod manifests;
mod mirror;
pub mod openshift;
pub mod pki;
mod prometheus;
mod provider;
#[cfg(feature = "sabotage")]
mod random;
mod receivers;
pub mod sandbox;
pub mod script;
#[cfg(feature = "sabotage")]
pub mod simulate;
pub mod snapshot;
#[cfg(feature = "sabotage")]
pub mod sweep;
mod update_server;
mod version_provider;
pub mod world;
pub mod writes;

pub use direct::DirectError;
