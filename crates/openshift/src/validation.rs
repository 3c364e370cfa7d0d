//! Whether the request of an UpgradeConfig can be carried out, before its time
//! (`docs/facts/openshift-upgrades.md#validation`).

use serde::Deserialize;

use crate::{
    Compat,
    cluster_version::{VersionError, current, semver, unread_updates, upgrade_at},
    kinds::ClusterVersion,
    upgrade_config::UpgradeConfigSpec,
};

/// The version graph of a ClusterVersion without `spec.upstream`.
pub const DEFAULT_UPSTREAM: &str = "https://api.openshift.com/api/upgrades_info/v1/graph";
/// Label of a release image: its version.
pub const RELEASE_LABEL: &str = "io.openshift.release";

/// What a request is validated on. What has to be asked of another server is `None` until it was.
#[derive(Clone, Debug)]
pub struct Validating<'a> {
    /// The request.
    pub spec: &'a UpgradeConfigSpec,
    /// The ClusterVersion.
    pub cluster: &'a ClusterVersion,
    /// Whether faults of the original are repaired.
    pub compat: Compat,
    /// Whether a version of another channel is looked up in the version graph.
    pub asks_cincinnati: bool,
    /// The architecture that is asked for there ([`go_architecture`]).
    pub architecture: &'a str,
    /// The version in the label of the release image, or why it cannot be read.
    pub release: Option<&'a Result<String, String>>,
    /// The versions that the graph offers, or why it cannot be read.
    pub offered: Option<&'a Result<Vec<String>, String>>,
}

/// What a validation has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validity {
    /// The request can be carried out.
    Valid,
    /// The label of this release image is to be read first.
    AskRelease(ImageRef),
    /// The version graph is to be read first.
    AskGraph(GraphRequest),
    /// The release image has this version: it is to be written to `spec.desired.version`.
    SetVersion(String),
    /// The request cannot be carried out: it waits for another one, or for other offers.
    Invalid(String),
    /// The request cannot be carried out, or could not be validated: it is tried again soon.
    Error(String),
}

/// A release image by digest, such as `quay.io/openshift-release-dev/ocp-release@sha256:0a...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRef {
    /// Host of the registry, with its port if it has one.
    pub registry: String,
    /// Namespace and name of the repository.
    pub repository: String,
    /// The digest.
    pub digest: String,
}

/// A request to a version graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphRequest {
    /// The URL without its query.
    pub url: String,
    /// The architecture, as Go names it.
    pub architecture: String,
    /// The channel.
    pub channel: String,
    /// The version that the cluster runs.
    pub version: String,
    /// Identifies the cluster.
    pub cluster_id: String,
}

impl GraphRequest {
    /// Returns names and values of the query, which are not encoded yet.
    pub fn query(&self) -> [(&'static str, &str); 4] {
        [
            ("arch", &self.architecture),
            ("channel", &self.channel),
            ("id", &self.cluster_id),
            ("version", &self.version),
        ]
    }
}

/// Returns Go's name of an architecture, which version graphs use, by that of Rust ([`std::env::consts::ARCH`]).
pub fn go_architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

impl ImageRef {
    /// Parses the reference of an image.
    ///
    /// # Errors
    /// A sentence with the part that is missing.
    pub fn parse(image: &str) -> Result<Self, String> {
        let missing = |part| {
            Err(format!(
                "Failed to parse image:{image} must be a valid image pull spec: no {part} specified"
            ))
        };
        let (path, digest) = image.split_once('@').unwrap_or((image, ""));
        let parts: Vec<&str> = path.split('/').collect();
        // A host has a dot or a port; what has neither is a namespace.
        let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
        let (registry, repository) = match parts.split_first() {
            Some((first, rest)) if is_host(first) && !rest.is_empty() => (*first, rest),
            Some(_) | None => return missing("registry"),
        };
        let Some((name, namespace)) = repository.split_last() else { return missing("image name") };
        if namespace.is_empty() || namespace.iter().any(|part| part.is_empty()) {
            return missing("repository");
        }
        if name.is_empty() {
            return missing("image name");
        }
        if digest.split_once(':').is_none_or(|(kind, value)| kind.is_empty() || value.is_empty()) {
            return missing("image digest");
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.join("/"),
            digest: digest.to_owned(),
        })
    }
}

/// Validates a request.
pub fn validate(seen: &Validating<'_>) -> Validity {
    if let Err(error) = upgrade_at(seen.spec) {
        return Validity::Error(error.to_string());
    }
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let desired = &seen.spec.desired;
    if let Some(image) = given(&desired.image) {
        return of_image(seen, &image);
    }
    let version = given(&desired.version).unwrap_or_default();
    let channel = given(&desired.channel).unwrap_or_default();
    let lacks_source = match seen.compat {
        // One without a channel would begin, and then be an error for ever.
        Compat::Repaired => version.is_empty() || channel.is_empty(),
        Compat::Strict => version.is_empty() && channel.is_empty(),
    };
    if lacks_source {
        let why = "spec.desired has neither an image nor a version and a channel";
        return Validity::Invalid(why.to_owned());
    }
    match compare(seen.cluster, &version) {
        Ok(()) => of_channel(seen, &version, &channel),
        Err(why) => Validity::Error(why),
    }
}

fn of_image(seen: &Validating<'_>, image: &str) -> Validity {
    let image = match ImageRef::parse(image) {
        Ok(image) => image,
        Err(why) => return Validity::Invalid(why),
    };
    match seen.release {
        None => Validity::AskRelease(image),
        Some(Err(why)) => Validity::Error(why.clone()),
        Some(Ok(version)) if seen.spec.desired.version.as_ref() != Some(version) => {
            Validity::SetVersion(version.clone())
        }
        Some(Ok(_)) => Validity::Valid,
    }
}

/// Whether a version is higher than the one of the cluster.
fn compare(cluster: &ClusterVersion, version: &str) -> Result<(), String> {
    let now = current(cluster).map_err(|error| error.to_string())?;
    let text = |error: VersionError| error.to_string();
    match semver(version).map_err(text)?.cmp_precedence(&semver(now).map_err(text)?) {
        std::cmp::Ordering::Less => {
            Err(format!("downgrades to desired version {version} from {now} are unsupported"))
        }
        std::cmp::Ordering::Equal => {
            Err(format!("desired version {version} matches the current version {now}"))
        }
        std::cmp::Ordering::Greater => Ok(()),
    }
}

/// Whether a channel offers a version: the cluster's own by what the cluster-version operator shows, another one by the
/// version graph.
fn of_channel(seen: &Validating<'_>, version: &str, channel: &str) -> Validity {
    let missing =
        || Validity::Invalid(format!("cannot find version {version} in available updates"));
    let ClusterVersion { spec, status, .. } = seen.cluster;
    if spec.channel == channel {
        let status = status.clone().unwrap_or_default();
        let conditional = status.conditional_updates.iter().map(|update| &update.release);
        let mut offered = status.available_updates.iter().flatten().chain(conditional);
        let is_offered = offered.any(|release| release.version == version);
        let unread = match seen.compat {
            Compat::Repaired => unread_updates(seen.cluster),
            Compat::Strict => None,
        };
        return match unread.filter(|_| !is_offered) {
            Some(why) => Validity::Invalid(format!(
                "cannot find version {version} in available updates: the cluster-version operator cannot read them: {why}"
            )),
            None if is_offered => Validity::Valid,
            None => missing(),
        };
    }
    if !seen.asks_cincinnati {
        return Validity::Valid;
    }
    match seen.offered {
        None => Validity::AskGraph(GraphRequest {
            url: if spec.upstream.is_empty() { DEFAULT_UPSTREAM } else { &spec.upstream }
                .to_owned(),
            architecture: seen.architecture.to_owned(),
            channel: channel.to_owned(),
            version: current(seen.cluster).unwrap_or_default().to_owned(),
            cluster_id: spec.cluster_id.clone(),
        }),
        Some(Err(why)) => Validity::Error(why.clone()),
        Some(Ok(offered)) if offered.is_empty() => {
            Validity::Invalid("no available upgrade for the given clusterversion".to_owned())
        }
        Some(Ok(offered)) if offered.iter().any(|one| one == version) => Validity::Valid,
        Some(Ok(_)) => missing(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Graph {
    nodes: Vec<Node>,
    #[serde(default)]
    edges: Vec<(usize, usize)>,
    #[serde(default)]
    conditional_edges: Vec<ConditionalEdges>,
}

#[derive(Deserialize)]
struct Node {
    version: String,
}

#[derive(Deserialize)]
struct ConditionalEdges {
    edges: Vec<ConditionalEdge>,
}

#[derive(Deserialize)]
struct ConditionalEdge {
    from: String,
    to: String,
}

/// The versions that a graph in Cincinnati's format offers to a cluster of this version, also those with known risks.
///
/// # Errors
/// A sentence, if the text is not such a graph or does not have the version.
pub fn offered_by(graph: &[u8], version: &str) -> Result<Vec<String>, String> {
    let graph: Graph = serde_json::from_slice(graph)
        .map_err(|error| format!("the answer is not a version graph: {error}"))?;
    let Some(now) = graph.nodes.iter().position(|node| node.version == version) else {
        return Err(format!("the version graph does not have the current version {version}"));
    };
    let edges = graph.edges.iter().filter(|(from, _)| *from == now);
    let next = edges.filter_map(|(_, to)| graph.nodes.get(*to)).map(|node| node.version.clone());
    let conditional = graph.conditional_edges.iter().flat_map(|risk| &risk.edges);
    let conditional = conditional.filter(|edge| edge.from == version).map(|edge| edge.to.clone());
    Ok(next.chain(conditional).collect())
}
