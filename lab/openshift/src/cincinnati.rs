//! A version graph in the format of Cincinnati, version 1 (`docs/facts/openshift-upgrades.md#validation`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::wire::{Answers, Asked, Troubles, lock};

/// Its path.
pub const PATH: &str = "/api/upgrades_info/v1/graph";

/// The graphs of channels.
#[derive(Clone, Debug, Default)]
pub struct Cincinnati {
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
    /// Versions that no channel offers at present.
    withdrawn: Arc<Mutex<BTreeSet<String>>>,
    troubles: Troubles,
}

#[derive(Debug, Default)]
struct Channel {
    versions: BTreeSet<String>,
    /// From and to.
    edges: BTreeSet<(String, String)>,
    /// From and to, and the name of the risk.
    conditional: BTreeMap<(String, String), String>,
}

impl Cincinnati {
    /// Its troubles.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Adds a version to a channel.
    pub fn add(&self, channel: &str, version: &str) {
        self.with(channel, [version], |_| {});
    }

    /// Adds an update to a channel.
    pub fn offer(&self, channel: &str, from: &str, to: &str) {
        let edge = (from.to_owned(), to.to_owned());
        self.with(channel, [from, to], |channel| {
            channel.edges.insert(edge);
        });
    }

    /// Adds an update with a known risk to a channel.
    pub fn offer_with_risk(&self, channel: &str, from: &str, to: &str, risk: &str) {
        let edge = (from.to_owned(), to.to_owned());
        self.with(channel, [from, to], |channel| {
            channel.conditional.insert(edge, risk.to_owned());
        });
    }

    /// Withdraws an update from a channel.
    pub fn withdraw(&self, channel: &str, from: &str, to: &str) {
        let edge = (from.to_owned(), to.to_owned());
        self.with(channel, [], |channel| {
            channel.edges.remove(&edge);
            channel.conditional.remove(&edge);
        });
    }

    /// Lets no channel offer a version, or offers it again.
    pub fn withdraw_version(&self, version: &str, is_withdrawn: bool) {
        let mut withdrawn = lock(&self.withdrawn);
        if is_withdrawn {
            withdrawn.insert(version.to_owned());
        } else {
            withdrawn.remove(version);
        }
    }

    fn with<const N: usize>(
        &self,
        channel: &str,
        versions: [&str; N],
        change: impl FnOnce(&mut Channel),
    ) {
        let mut channels = lock(&self.channels);
        let channel = channels.entry(channel.to_owned()).or_default();
        channel.versions.extend(versions.map(ToOwned::to_owned));
        change(channel);
    }
}

impl Answers for Cincinnati {
    fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    fn answer(&self, asked: &Asked) -> (StatusCode, Value) {
        if (&asked.method, &*asked.path) != (&Method::GET, PATH) {
            return (StatusCode::NOT_FOUND, json!({}));
        }
        if !["application/json", "*/*"].iter().any(|kind| asked.header("accept").contains(kind)) {
            let answer = error("invalid_content_type", "invalid Content-Type requested");
            return (StatusCode::NOT_ACCEPTABLE, answer);
        }
        let channel = asked.parameter("channel");
        if channel.is_empty() {
            let answer = error("missing_params", "mandatory client parameters 'channel'");
            return (StatusCode::BAD_REQUEST, answer);
        }
        let channels = lock(&self.channels);
        let none = Channel::default();
        let graph = channels.get(channel).unwrap_or(&none);
        let withdrawn = lock(&self.withdrawn);
        (StatusCode::OK, graph.shown(channel, asked.parameter("arch"), &withdrawn))
    }

    fn failed(&self, status: StatusCode) -> Value {
        error("failed_upstream_request", status.canonical_reason().unwrap_or_default())
    }
}

fn error(kind: &str, value: &str) -> Value {
    json!({"kind": kind, "value": value})
}

impl Channel {
    /// The graph for an architecture, that of amd64 if it is not asked for.
    fn shown(&self, channel: &str, arch: &str, withdrawn: &BTreeSet<String>) -> Value {
        let arch = if arch.is_empty() { "amd64" } else { arch };
        let arch = if arch == "amd64" { "x86_64" } else { arch };
        let node = |version: &String| {
            json!({
                "version": version,
                "payload": format!("quay.io/openshift-release-dev/ocp-release:{version}-{arch}"),
                "metadata": {"io.openshift.upgrades.graph.release.channels": channel},
            })
        };
        let at = |version: &String| self.versions.iter().position(|known| known == version);
        let is_offered = |version: &String| !withdrawn.contains(version);
        let edges = self.edges.iter().filter(|(_, to)| is_offered(to));
        let edges = edges.filter_map(|(from, to)| Some([at(from)?, at(to)?]));
        let conditional = self.conditional.iter().filter(|((_, to), _)| is_offered(to));
        let conditional = conditional.map(|((from, to), risk)| {
            json!({
                "edges": [{"from": from, "to": to}],
                "risks": [{
                    "url": format!("https://issues.redhat.com/browse/{risk}"),
                    "name": risk,
                    "message": "Some clusters are affected.",
                    "matchingRules": [{"type": "Always"}],
                }],
            })
        });
        json!({
            "version": 1,
            "nodes": self.versions.iter().map(node).collect::<Vec<_>>(),
            "edges": edges.collect::<Vec<_>>(),
            "conditionalEdges": conditional.collect::<Vec<_>>(),
        })
    }
}
