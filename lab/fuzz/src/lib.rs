//! Fuzz targets for what is read from outside a process: each function takes arbitrary
//! bytes and panics if a property does not hold.
//!
//! | target | reads | in addition to "never panics" |
//! |---|---|---|
//! | [`hook_bodies`] | requests of Cluster API | covered changes are complete patches; messages show no credential; a time budget |
//! | [`kubeconfig`] | the Secret of a workload cluster | errors show no credential; no program runs, no file is read |
//! | [`host_plan`] | a HostPlan, as the agent does | printing and parsing change nothing; a signature stays valid |
//! | [`journal`] | the agent's journal | only a torn end is dropped; records before it survive |
//! | [`bundle_manifest`] | the manifest of a bundle | an accepted manifest has exactly one encoding |

// Code with the instrumentation of a fuzzing engine cannot be linked without it.
#[cfg(test)]
use bolero as _;

mod bundle_manifest;
mod edit;
mod hook_bodies;
mod host_plan;
mod journal;
mod kubeconfig;

pub use bundle_manifest::bundle_manifest;
pub use edit::{Edit, edited};
pub use hook_bodies::hook_bodies;
pub use host_plan::host_plan;
pub use journal::journal;
pub use kubeconfig::kubeconfig;
