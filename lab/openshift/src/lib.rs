//! A simulated OpenShift cluster and the services that its upgrades depend on.
//!
//! [`Cluster`] creates OpenShift's objects through a Kubernetes API and then plays its operators, which take as long as the
//! real ones. All of its state is in that API, so a simulation that is started again continues.
//!
//! | module | holds |
//! |---|---|
//! | [`cluster`] | the handle of a simulated cluster |
//! | [`crds`] | OpenShift's kinds |
//! | [`ocm`] | OpenShift Cluster Manager, and its agent in the cluster |
//! | [`cincinnati`] | a version graph |
//! | [`registry`] | the registry of the release images |
//! | [`prometheus`], [`alertmanager`] | the monitoring of the cluster |
//! | [`site`] | a cluster and all of these, served in memory |
//! | [`wire`] | what the servers have in common |

pub mod alertmanager;
pub mod cincinnati;
pub mod cluster;
pub mod crds;
pub mod ocm;
mod operators;
pub mod prometheus;
pub mod registry;
pub mod site;
pub mod wire;

pub use cluster::{Blueprint, Cluster, Release, Workers};
pub use site::Site;
