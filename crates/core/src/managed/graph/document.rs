//! The document of a version graph, in Cincinnati's format (`docs/facts/cincinnati.md`).

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::version::KubernetesVersion;
use serde::Deserialize;

/// Maximum size of a document, in bytes.
pub const MAX_DOCUMENT: usize = 4 << 20;
/// How many versions a graph may have.
pub const MAX_NODES: usize = 10_000;
/// How many edges a graph may have, with the conditional ones.
pub const MAX_EDGES: usize = 100_000;

/// Why a document is not a version graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is too large to be read.
    #[error("it has more than {MAX_DOCUMENT} bytes")]
    TooLarge,
    /// It is no JSON, or not of the format.
    #[error("it is not a graph in Cincinnati's format: {0}")]
    Format(String),
    /// It has more than the controller works with.
    #[error("it has {count} {what}, more than {max}")]
    TooMany {
        /// Nodes or edges.
        what: &'static str,
        /// How many it has.
        count: usize,
        /// How many it may have.
        max: usize,
    },
    /// The version of a node is not one of Kubernetes.
    #[error("nodes[{index}]: {reason}")]
    Version {
        /// Index of the node.
        index: usize,
        /// Names the version, and why it is invalid.
        reason: String,
    },
    /// Two nodes have the same version.
    #[error("nodes[{index}]: {version} is a version of an earlier node, too")]
    Duplicate {
        /// Index of the second node.
        index: usize,
        /// The version.
        version: KubernetesVersion,
    },
    /// An edge is from or to a node that is missing.
    #[error("edges[{index}]: {node} is not the index of a node, of which there are {nodes}")]
    Index {
        /// Index of the edge.
        index: usize,
        /// The index of the node.
        node: u64,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A conditional edge is from or to a version that is not a node.
    #[error("conditionalEdges[{index}]: {version:?} is not the version of a node")]
    UnknownVersion {
        /// Index of the entry.
        index: usize,
        /// The version.
        version: String,
    },
    /// A conditional edge has no condition.
    #[error("conditionalEdges[{index}]: it has no risks; edges without a risk belong into edges")]
    NoRisks {
        /// Index of the entry.
        index: usize,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    nodes: Vec<NodeEntry>,
    #[serde(default)]
    edges: Option<Vec<(u64, u64)>>,
    #[serde(default)]
    conditional_edges: Option<Vec<ConditionalEntry>>,
}

#[derive(Debug, Deserialize)]
struct NodeEntry {
    version: String,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default, rename = "io.openshift.upgrades.graph.release.channels")]
    channels: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ConditionalEntry {
    edges: Vec<ConditionalEdge>,
    risks: Vec<Risk>,
}

#[derive(Debug, Deserialize)]
struct ConditionalEdge {
    from: String,
    to: String,
}

/// What may happen to a cluster that takes an edge.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Risk {
    /// By which it is accepted.
    pub(super) name: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) url: String,
}

/// A version, and the channels that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) version: KubernetesVersion,
    pub(super) channels: BTreeSet<String>,
}

/// Which version of Kubernetes may be upgraded to which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionGraph {
    /// In the order of their versions.
    pub(super) nodes: Vec<Node>,
    /// The edges to higher versions, from node to node, with the entries of `risks` that must be accepted.
    pub(super) edges: BTreeMap<(usize, usize), Vec<usize>>,
    pub(super) risks: Vec<Vec<Risk>>,
}

impl VersionGraph {
    /// Reads a document.
    ///
    /// # Errors
    /// It is not a graph of versions of Kubernetes, or too large.
    pub fn read(document: &[u8]) -> Result<Self, DocumentError> {
        if document.len() > MAX_DOCUMENT {
            return Err(DocumentError::TooLarge);
        }
        let Document { nodes, edges, conditional_edges } = serde_json::from_slice(document)
            .map_err(|error| DocumentError::Format(shortened(&error.to_string())))?;
        let (edges, entries) = (edges.unwrap_or_default(), conditional_edges.unwrap_or_default());
        at_most("nodes", nodes.len(), MAX_NODES)?;
        let conditional: usize = entries.iter().map(|entry| entry.edges.len()).sum();
        at_most("edges", edges.len() + conditional, MAX_EDGES)?;
        let mut graph = Self { nodes: Vec::new(), edges: BTreeMap::new(), risks: Vec::new() };
        let ranks = graph.add_nodes(nodes)?;
        for (index, (from, to)) in edges.into_iter().enumerate() {
            let rank = |node: u64| {
                let found = usize::try_from(node).ok().and_then(|node| ranks.get(node).copied());
                found.ok_or(DocumentError::Index { index, node, nodes: ranks.len() })
            };
            graph.add_edge((rank(from)?, rank(to)?), None);
        }
        for (index, ConditionalEntry { edges, risks }) in entries.into_iter().enumerate() {
            if risks.is_empty() {
                return Err(DocumentError::NoRisks { index });
            }
            graph.risks.push(risks);
            for ConditionalEdge { from, to } in edges {
                let rank = |version: String| {
                    let found = parse(&version).ok().and_then(|version| graph.index_of(&version));
                    let version = shortened(&version);
                    found.ok_or(DocumentError::UnknownVersion { index, version })
                };
                let edge = (rank(from)?, rank(to)?);
                graph.add_edge(edge, Some(index));
            }
        }
        Ok(graph)
    }

    /// Adds the nodes in the order of their versions; returns the place of each.
    fn add_nodes(&mut self, entries: Vec<NodeEntry>) -> Result<Vec<usize>, DocumentError> {
        let mut sorted: BTreeMap<KubernetesVersion, (usize, BTreeSet<String>)> = BTreeMap::new();
        let count = entries.len();
        for (index, NodeEntry { version, metadata }) in entries.into_iter().enumerate() {
            let version =
                parse(&version).map_err(|reason| DocumentError::Version { index, reason })?;
            let channels = metadata.unwrap_or_default().channels.unwrap_or_default();
            let channels = channels.split(',').map(str::trim).filter(|name| !name.is_empty());
            let node = (index, channels.map(str::to_owned).collect());
            if sorted.insert(version.clone(), node).is_some() {
                return Err(DocumentError::Duplicate { index, version });
            }
        }
        let mut ranks = vec![0; count];
        for (rank, (version, (index, channels))) in sorted.into_iter().enumerate() {
            ranks[index] = rank;
            self.nodes.push(Node { version, channels });
        }
        Ok(ranks)
    }

    /// Adds an edge, unless Kubernetes cannot take it: it goes neither back nor to another major version. What one entry
    /// gives a condition has it, whatever other entries there are.
    fn add_edge(&mut self, (from, to): (usize, usize), condition: Option<usize>) {
        if from < to && self.nodes[from].version.major() == self.nodes[to].version.major() {
            self.edges.entry((from, to)).or_default().extend(condition);
        }
    }

    /// The place of a version.
    pub(super) fn index_of(&self, version: &KubernetesVersion) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.version.cmp(version)).ok()
    }
}

fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), DocumentError> {
    if count > max { Err(DocumentError::TooMany { what, count, max }) } else { Ok(()) }
}

/// Reads a version with or without its `v`. The error names it.
fn parse(text: &str) -> Result<KubernetesVersion, String> {
    let with_v = if text.starts_with('v') { text.to_owned() } else { format!("v{text}") };
    with_v.parse().map_err(|error: refit_kinds::version::VersionError| {
        let shown = shortened(text);
        format!("invalid Kubernetes version {shown:?}: {}; expected X.Y.Z or vX.Y.Z", error.reason)
    })
}

/// How many characters of a text of a document a message shows.
const MAX_SHOWN: usize = 160;

fn shortened(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
