//! The real kubectl against the project's API server.
//!
//! [`Kubectl`] runs the kubectl that `cargo xtask kubectl` builds; [`Cluster`] serves an API server
//! over HTTPS on loopback for it. Run the tests with `cargo test -p lab-kubectl-suite --features
//! real`.

mod cluster;
mod kubectl;

pub use cluster::{Cluster, ClusterError};
pub use kubectl::{Kubectl, MissingKubectl, Output};
