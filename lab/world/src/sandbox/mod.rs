//! A world that stays up and answers kubectl.
//!
//! | module | is for |
//! |---|---|
//! | [`bring_up()`] | a cluster whose machines are Ready, within seconds |
//! | `serve` | the APIs on loopback, over TLS |
//! | `kubeconfig` | the file that leads there |
//! | `secret` | the kubeconfig Secrets of workload clusters, which lead there, too |
//!
//! It runs in real time. Only the start does not: the machines come up in simulated time that ends
//! now, so the cluster looks as if it had been made some minutes ago. From then on hosts work a
//! number of times faster than real ones, and everything else as fast as it does in life.
//!
//! The world's own processes keep their in-memory network. What listens on loopback serves the same
//! API servers to everybody else, who has to say who they are: with the kubeconfig's client
//! certificate, or with a ServiceAccount's token. A kubeconfig Secret is read on both sides, so the
//! in-memory network answers at the loopback address of a workload cluster as well.

mod bring_up;
mod kubeconfig;
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
    /// The port is taken.
    #[error(
        "port {port} of 127.0.0.1 is in use; end what listens there (`ss -ltnp 'sport = :{port}'` \
         names it), or choose another port with --port"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// A port cannot be listened at.
    #[error("127.0.0.1:{port} cannot be listened at: {source}")]
    Listen {
        /// The port; 0 for any.
        port: u16,
        /// Why.
        source: std::io::Error,
    },
    /// Certificates cannot be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The kubeconfig cannot be written.
    #[error("{path} cannot be written: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The world cannot be made.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A runtime cannot be made.
    #[error("a runtime cannot be made: {0}")]
    Runtime(#[from] std::io::Error),
}
