//! A world that keeps running and serves kubectl.
//!
//! | module | is for |
//! |---|---|
//! | [`bring_up()`] | brings up a cluster whose machines are Ready, within seconds |
//! | [`openshift`] | the other kind of sandbox: an OpenShift cluster, at a multiple of real time |
//! | `serve` | serves the APIs on loopback, over TLS |
//! | `kubeconfig` | the kubeconfig for the APIs |
//! | `secret` | the kubeconfig Secrets of workload clusters |
//!
//! It runs in real time, except at the start: the machines come up in simulated time that ends now,
//! so the cluster appears to be some minutes old. From then on hosts work a number of times faster
//! than real ones, and everything else runs at normal speed.
//!
//! The world's own processes keep their in-memory network. The listeners on loopback serve the same
//! API servers to all other clients, which must authenticate: with the kubeconfig's client
//! certificate, or with a ServiceAccount token. Both sides use the kubeconfig Secrets, so the
//! in-memory network also serves a workload cluster at its loopback address.

mod bring_up;
mod kubeconfig;
pub mod openshift;
mod secret;
mod serve;

use std::path::PathBuf;

use refit_runtime::tls::TlsError;

pub use bring_up::{BringUp, bring_up};
pub use serve::{Ports, Sandbox, SandboxOptions, runtime};

use crate::world::WorldError;

/// Why a live sandbox cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The port is in use.
    #[error(
        "port {port} of 127.0.0.1 is in use; stop the process that `ss -ltnp 'sport = :{port}'` \
         shows, or choose another port with {option}"
    )]
    PortInUse {
        /// The port.
        port: u16,
        /// The option that chooses it.
        option: &'static str,
    },
    /// The listener cannot be opened.
    #[error("failed to listen on 127.0.0.1:{port}: {source}")]
    Listen {
        /// The port; 0 for any.
        port: u16,
        /// The underlying error.
        source: std::io::Error,
    },
    /// A certificate cannot be created.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The kubeconfig cannot be written.
    #[error("failed to write {path}: {source}")]
    Kubeconfig {
        /// Path of the kubeconfig.
        path: PathBuf,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The world cannot be created.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The OpenShift cluster cannot be created, or it has ended.
    #[error("the simulated OpenShift cluster failed: {0:#}")]
    OpenShift(anyhow::Error),
    /// The runtime cannot be created.
    #[error("failed to create a runtime: {0}")]
    Runtime(#[from] std::io::Error),
}
