//! A simulated OpenShift cluster and the services that its upgrades depend on.
//!
//! [`Cluster`] creates OpenShift's objects through a Kubernetes API and then plays its operators, which take as long as the
//! real ones. All of its state is in that API, so a simulation that is started again continues.

pub mod alertmanager;
pub mod cluster;
pub mod crds;
mod operators;
pub mod prometheus;

pub use cluster::{Blueprint, Cluster, Release, Workers};
