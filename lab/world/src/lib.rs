//! Simulated infrastructure on the embedded API: clusters, hosts, kubelets, sweeps.
//!
//! | module | is for |
//! |---|---|
//! | [`manifests`] | refusing manifests that cannot run, and definitions for kinds without a definition |
//! | [`world`] | a whole world in one process, on simulated time |
//! | `env` | everything around Cluster API and Refit that a real cluster has |
//! | [`sandbox`] | a world that stays up and answers kubectl |
//! | [`snapshot`] | a whole world at one moment, and going on from there |
//! | [`invariants`] | what must hold after every write, and who broke it |
//! | [`script`] | scenario scripts: a world, what happens to it, and what can be seen, as text |
//! | `sweep` | with the feature `sabotage`: killing every process at every effect |
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

mod direct;
mod env;
mod http;
pub mod invariants;
mod leaders;
pub mod manifests;
mod mirror;
pub mod pki;
pub mod sandbox;
pub mod script;
pub mod snapshot;
#[cfg(feature = "sabotage")]
pub mod sweep;
pub mod world;

pub use direct::DirectError;
