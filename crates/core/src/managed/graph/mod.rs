//! Version graphs: which versions a Cluster may be upgraded to, and over which ones.
//!
//! | module | about |
//! |---|---|
//! | `document` | reads a graph in Cincinnati's format |
//! | `path` | finds the way from one version to another |

mod document;
mod path;

use std::sync::Arc;

use refit_kinds::{refit::ClusterUpgradeSpec, version::KubernetesVersion};

pub use self::{
    document::{DocumentError, MAX_DOCUMENT, MAX_EDGES, MAX_NODES, VersionGraph},
    path::{Allowed, NoPath},
};
use crate::task::GroupVersion;

/// Key of a ConfigMap with the document of a graph.
pub const CONFIG_MAP_KEY: &str = "graph.json";

/// What is known of the version graph of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphRead {
    /// The controller has none: every version may be requested.
    NotConfigured,
    /// It was read.
    Known(Arc<VersionGraph>),
    /// It could not be read; a sentence.
    Unknown(String),
}

/// Why a version cannot be taken: a reason and a sentence.
pub type NotTaken = (&'static str, String);

impl GraphRead {
    /// Reads a document.
    pub fn of(document: &[u8]) -> Self {
        match VersionGraph::read(document) {
            Ok(graph) => Self::Known(Arc::new(graph)),
            Err(error) => Self::Unknown(format!("the version graph is not valid: {error}")),
        }
    }

    /// The versions that a Cluster takes on its way to a version; without a graph, those that are requested.
    ///
    /// The control plane takes the way. Workers follow it, or skip a part of it where the version skew allows that; each
    /// version that they run needs a way, too.
    ///
    /// # Errors
    /// The graph has no such way, or is not known.
    pub fn hops(
        &self,
        spec: &ClusterUpgradeSpec,
        (control_plane, workers): (&GroupVersion, &[GroupVersion]),
        version: &KubernetesVersion,
    ) -> Result<Vec<KubernetesVersion>, NotTaken> {
        let requested = spec.hops.as_deref();
        let graph = match (self, &spec.channel) {
            (Self::NotConfigured, Some(channel)) => {
                return Err((
                    "ChannelWithoutGraph",
                    format!(
                        "the controller has no version graph, and so no channel {channel}: set --version-graph of the \
                         controller, or remove channel"
                    ),
                ));
            }
            (Self::NotConfigured, None) => return Ok(requested.unwrap_or_default().to_vec()),
            (Self::Unknown(why), _) => return Err(("GraphUnknown", why.clone())),
            (Self::Known(graph), _) => graph,
        };
        let allowed = Allowed { channel: spec.channel.as_deref(), risks: &spec.accepted_risks };
        let refused = |error: NoPath| (error.reason(), error.to_string());
        // A control plane that was stopped between two versions goes to the higher one first.
        let stopped = &control_plane.highest;
        let from = if stopped <= version { stopped } else { &control_plane.version };
        let hops = if let Some(requested) = requested {
            let mut hops: Vec<_> =
                requested.iter().filter(|hop| from < *hop && *hop < version).collect();
            hops.sort();
            let mut way: Vec<_> = [from].into_iter().chain(hops.clone()).chain([version]).collect();
            way.dedup();
            graph.check(&way, allowed).map_err(refused)?;
            hops.into_iter().cloned().collect()
        } else {
            let is_stopped = control_plane.version < *from && from < version;
            let first = is_stopped.then(|| from.clone());
            let path = graph.path((from, version), allowed).map_err(refused)?;
            first.into_iter().chain(path).collect()
        };
        for worker in workers.iter().filter(|worker| worker.version != *from) {
            graph.path((&worker.version, version), allowed).map_err(|error| {
                let of = &worker.owner;
                (error.reason(), format!("{} {}: {error}", of.kind, of.name))
            })?;
        }
        Ok(hops)
    }
}

#[cfg(test)]
mod tests;
