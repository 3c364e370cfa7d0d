//! The way through a version graph.

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::{refit::MAX_HOPS, version::KubernetesVersion};

use super::document::{Risk, VersionGraph};

/// How many versions or risks a message names.
const NAMED: usize = 3;
/// How many characters of a text of the graph a message shows.
const MAX_TEXT: usize = 200;

/// What a way may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Only versions of this channel; all without it.
    pub channel: Option<&'a str>,
    /// Names of the risks that are accepted.
    pub risks: &'a [String],
}

/// Why there is no way from a version to another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// A version is missing.
    #[error("{version} is not in {graph}{hint}")]
    NotInGraph {
        /// The version.
        version: KubernetesVersion,
        /// The graph, or the channel.
        graph: String,
        /// Which versions or channels are meant, perhaps.
        hint: String,
    },
    /// No edges that may be taken lead from one to the other.
    #[error("{graph} has no path {ends}{hint}")]
    NoEdges {
        /// The graph, or the channel.
        graph: String,
        /// The first and the last version.
        ends: String,
        /// How far it goes, and what stands in the way.
        hint: String,
    },
    /// It is longer than an UpgradeTask can be.
    #[error(
        "the shortest path {ends} takes {hops} versions on the way, more than {MAX_HOPS}: upgrade to one of them first"
    )]
    TooLong {
        /// The first and the last version.
        ends: String,
        /// How many versions are on the way.
        hops: usize,
    },
    /// There are only ways with risks.
    #[error(
        "the way {ends} has risks that are not accepted: {risks}. Add to acceptedRisks: {names}; or request another version"
    )]
    Risks {
        /// The first and the last version.
        ends: String,
        /// The risks, with their edges.
        risks: String,
        /// Their names.
        names: String,
    },
}

impl NoPath {
    /// The reason that a status shows.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotInGraph { .. } => "VersionNotInGraph",
            Self::NoEdges { .. } | Self::TooLong { .. } => "NoPathInGraph",
            Self::Risks { .. } => "RiskNotAccepted",
        }
    }
}

type Edge = (usize, usize);

impl VersionGraph {
    /// The versions between two: of the paths with the fewest edges, the one with the highest version first.
    ///
    /// # Errors
    /// No path may be taken.
    pub fn path(
        &self,
        (from, to): (&KubernetesVersion, &KubernetesVersion),
        allowed: Allowed<'_>,
    ) -> Result<Vec<KubernetesVersion>, NoPath> {
        let ends = (self.find(from, allowed)?, self.find(to, allowed)?);
        let usable = |edge: Edge| !self.skips(edge) && self.unaccepted(edge, allowed).is_empty();
        let found = self.shortest(ends, allowed, usable).ok_or_else(|| self.why(ends, allowed))?;
        let hops = found.len().saturating_sub(1);
        if hops > MAX_HOPS {
            return Err(NoPath::TooLong { ends: self.shown(ends), hops });
        }
        Ok(found[..hops].iter().map(|at| self.nodes[*at].version.clone()).collect())
    }

    /// Whether these versions are a way from the first to the last one.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self, way: &[&KubernetesVersion], allowed: Allowed<'_>) -> Result<(), NoPath> {
        way.windows(2).try_for_each(|pair| {
            let edge = (self.find(pair[0], allowed)?, self.find(pair[1], allowed)?);
            if !self.edges.contains_key(&edge) || self.skips(edge) {
                let hint = if self.skips(edge) {
                    ", because Kubernetes skips no minor version"
                } else {
                    " in one step: correct hops, or leave the way to the graph without hops"
                };
                return Err(self.no_edges(edge, allowed, hint.to_owned()));
            }
            match self.unaccepted(edge, allowed) {
                risks if risks.is_empty() => Ok(()),
                _ => Err(self.risks_of(edge, &[edge], allowed)),
            }
        })
    }

    fn find(&self, version: &KubernetesVersion, allowed: Allowed<'_>) -> Result<usize, NoPath> {
        let found = self.index_of(version);
        if let Some(at) = found.filter(|at| self.is_in_channel(*at, allowed)) {
            return Ok(at);
        }
        let hint = match found.map(|at| &self.nodes[at].channels) {
            Some(channels) if channels.is_empty() => "; it is in no channel".to_owned(),
            Some(channels) => format!("; it is in {}", some_of(channels)),
            None => {
                let known = self.nodes.iter().enumerate();
                let known = known.filter(|(at, _)| self.is_in_channel(*at, allowed));
                let (below, above): (Vec<_>, Vec<_>) =
                    known.map(|(_, node)| &node.version).partition(|known| *known < version);
                let nearest: Vec<_> = below.last().into_iter().chain(above.first()).collect();
                if nearest.is_empty() {
                    "; it has no version".to_owned()
                } else {
                    format!("; the nearest in it: {}", some_of(nearest))
                }
            }
        };
        Err(NoPath::NotInGraph { version: version.clone(), graph: named(allowed), hint })
    }

    fn is_in_channel(&self, at: usize, allowed: Allowed<'_>) -> bool {
        allowed.channel.is_none_or(|channel| self.nodes[at].channels.contains(channel))
    }

    /// Whether an edge skips a minor version.
    fn skips(&self, (from, to): Edge) -> bool {
        let minor = |at: usize| self.nodes[at].version.minor();
        minor(to) > minor(from) + 1
    }

    /// The risks of an edge that are not accepted. Whatever a risk depends on, it is taken to apply.
    fn unaccepted(&self, edge: Edge, allowed: Allowed<'_>) -> Vec<&Risk> {
        let entries = self.edges.get(&edge).into_iter().flatten();
        let risks = entries.flat_map(|entry| &self.risks[*entry]);
        risks.filter(|risk| !allowed.risks.contains(&risk.name)).collect()
    }

    /// The edges from a node.
    fn edges_from(&self, from: usize) -> impl Iterator<Item = Edge> {
        self.edges.range((from, 0)..(from + 1, 0)).map(|(edge, _)| *edge)
    }

    /// The shortest path over these edges, without its beginning.
    fn shortest(
        &self,
        (from, to): Edge,
        allowed: Allowed<'_>,
        takes: impl Fn(Edge) -> bool,
    ) -> Option<Vec<usize>> {
        // Each edge leads to a higher place: from the target downwards, every node is decided once.
        let mut next: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for at in (from..to).rev().filter(|at| self.is_in_channel(*at, allowed)) {
            let onward = self.edges_from(at).filter(|edge| takes(*edge)).filter_map(|(_, then)| {
                let rest = if then == to { 0 } else { next.get(&then)?.0 };
                Some((rest + 1, then))
            });
            let best = onward.min_by_key(|(length, then)| (*length, std::cmp::Reverse(*then)));
            next.extend(best.map(|best| (at, best)));
        }
        let mut path = Vec::new();
        let mut at = from;
        while at != to {
            at = next.get(&at)?.1;
            path.push(at);
        }
        Some(path)
    }

    /// Why no path may be taken.
    fn why(&self, ends: Edge, allowed: Allowed<'_>) -> NoPath {
        if let Some(path) = self.shortest(ends, allowed, |edge| !self.skips(edge)) {
            return self.risks_of(ends, &steps(ends.0, &path), allowed);
        }
        let skipping = self.shortest(ends, allowed, |_| true).and_then(|path| {
            let (from, to) = steps(ends.0, &path).into_iter().find(|edge| self.skips(*edge))?;
            let of = |at: usize| &self.nodes[at].version;
            Some(format!(
                "; its edge {} -> {} skips a minor version, which Kubernetes does not",
                of(from),
                of(to)
            ))
        });
        let reached = self.reached(ends, allowed);
        let nearest = reached.iter().rev().map(|at| &self.nodes[*at].version);
        let hint = if reached.is_empty() {
            format!("; no edge leads from {} towards it", self.nodes[ends.0].version)
        } else {
            format!("; the nearest versions that it reaches: {}", some_of(nearest))
        };
        self.no_edges(ends, allowed, hint + &skipping.unwrap_or_default())
    }

    fn no_edges(&self, ends: Edge, allowed: Allowed<'_>, hint: String) -> NoPath {
        NoPath::NoEdges { graph: named(allowed), ends: self.shown(ends), hint }
    }

    /// How a message names two versions.
    fn shown(&self, (from, to): Edge) -> String {
        format!("from {} to {}", self.nodes[from].version, self.nodes[to].version)
    }

    /// The nodes between two that can be reached from the first.
    fn reached(&self, (from, to): Edge, allowed: Allowed<'_>) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([from]);
        for at in from..to {
            if reached.contains(&at) {
                let onward = self.edges_from(at).filter(|edge| {
                    edge.1 < to
                        && !self.skips(*edge)
                        && self.is_in_channel(edge.1, allowed)
                        && self.unaccepted(*edge, allowed).is_empty()
                });
                reached.extend(onward.map(|(_, then)| then).collect::<Vec<_>>());
            }
        }
        reached.remove(&from);
        reached
    }

    /// The risks of a path that are not accepted.
    fn risks_of(&self, ends: Edge, path: &[Edge], allowed: Allowed<'_>) -> NoPath {
        let of = |at: usize| &self.nodes[at].version;
        let mut known = BTreeSet::new();
        let mut shown = Vec::new();
        for edge in path {
            for Risk { name, message, url } in self.unaccepted(*edge, allowed) {
                if known.insert(name.clone()) {
                    let (message, url) = (shortened(message), shortened(url));
                    let message = message.trim_end_matches('.');
                    shown.push(format!(
                        "{} of {} -> {} ({message}, see {url})",
                        shortened(name),
                        of(edge.0),
                        of(edge.1)
                    ));
                }
            }
        }
        NoPath::Risks {
            ends: self.shown(ends),
            risks: shown.into_iter().take(NAMED).collect::<Vec<_>>().join(", "),
            names: some_of(known),
        }
    }
}

/// The edges of a path from a node.
fn steps(from: usize, path: &[usize]) -> Vec<Edge> {
    let starts = [from].into_iter().chain(path.iter().copied());
    starts.zip(path.iter().copied()).collect()
}

/// How a message names what is looked through.
fn named(allowed: Allowed<'_>) -> String {
    match allowed.channel {
        Some(channel) => format!("channel {channel} of the version graph"),
        None => "the version graph".to_owned(),
    }
}

/// The first of several, and how many there are more.
fn some_of<T: std::fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| shortened(&one.to_string())).collect();
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        rest => format!("{named} and {rest} more"),
    }
}

fn shortened(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(MAX_TEXT).collect()
}
