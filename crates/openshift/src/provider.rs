//! The providers of UpgradeConfigs: which upgrade is wanted, by the policies of OpenShift Cluster Manager (OCM) or by the
//! object in the cluster (`docs/facts/openshift-upgrades.md#providers`).
//!
//! For OCM, three requests follow each other: the cluster ([`OcmClient::cluster_request`]), its policies
//! ([`policies_request`]), and the state of the next one ([`state_path`]). [`wanted_spec`] decides by the answers.

use std::{fmt, sync::LazyLock};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use regex::Regex;
use semver::Version;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Compat,
    config::Platform,
    kinds::CLUSTER_VERSION,
    upgrade_config::{Desired, Phase, UpgradeConfig, UpgradeConfigSpec},
};

/// Namespace of the Secret with the token for OCM.
pub const PULL_SECRET_NAMESPACE: &str = "openshift-config";
/// Name of that Secret.
pub const PULL_SECRET: &str = "pull-secret";
const PULL_SECRET_KEY: &str = ".dockerconfigjson";
const PULL_SECRET_REGISTRY: &str = "cloud.openshift.com";
/// The part of a URL that selects the agent.
const AGENT: &str = "ocm-agent.openshift-ocm-agent-operator.svc.cluster.local:8081";
const CLUSTERS: &str = "/api/clusters_mgmt/v1/clusters";
/// The path of the service log: entries are posted to it, and searched for.
pub const CLUSTER_LOGS: &str = "/api/service_logs/v1/cluster_logs";

/// Why a provider cannot decide which upgrade is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The Secret has no token for OCM.
    #[error(
        "invalid Secret {PULL_SECRET_NAMESPACE}/{PULL_SECRET}: {problem}, expected a token in auths[\"{PULL_SECRET_REGISTRY}\"].auth of {PULL_SECRET_KEY}"
    )]
    PullSecret {
        /// What is missing. It never holds a value of the Secret.
        problem: &'static str,
    },
    /// The cluster has no ID that OCM could know.
    #[error(
        "invalid spec.clusterID {id:?} of ClusterVersion {CLUSTER_VERSION}, expected a UUID: restore it"
    )]
    ClusterId {
        /// The ID.
        id: String,
    },
    /// OCM does not know the cluster.
    #[error(
        "OCM returned {clusters} clusters with ID for clusterID {external_id:?} of the ClusterVersion, expected 1: check the pull secret, and whether OCM has disabled the owner of the cluster"
    )]
    ClusterNotFound {
        /// The ID of the ClusterVersion.
        external_id: String,
        /// How many clusters it returned.
        clusters: u64,
    },
    /// An answer of OCM does not have its format.
    #[error("cannot parse OCM's answer about {what}: {reason}, check configManager.ocmBaseUrl")]
    Answer {
        /// What was asked for.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The version of a policy is not one.
    #[error(
        "invalid version {version:?} of upgrade policy {policy}, expected X.Y.Z: correct the policy in OCM"
    )]
    Version {
        /// ID of the policy.
        policy: String,
        /// The version.
        version: String,
    },
    /// The Secret with the token for OCM cannot be read.
    #[error("cannot read Secret {PULL_SECRET_NAMESPACE}/{PULL_SECRET}: {why}")]
    Secret {
        /// Why, without its content.
        why: String,
    },
    /// A request to OCM had no answer, or was refused.
    #[error("{why}")]
    Request {
        /// The status of the answer.
        status: Option<u16>,
        /// A sentence with the request, and what to check.
        why: String,
    },
    /// A policy has no time.
    #[error("upgrade policy {policy} has no next_run: schedule the policy in OCM")]
    NotScheduled {
        /// ID of the policy.
        policy: String,
    },
    /// The grace period of a cluster is not a number of minutes.
    #[error(
        "invalid node_drain_grace_period {minutes} of cluster {cluster}, expected minutes from 0 to 2147483647: correct it in OCM"
    )]
    GracePeriod {
        /// ID of the cluster.
        cluster: String,
        /// The value.
        minutes: String,
    },
}

/// The base URL of OCM: `http` or `https`, a host, and nothing after the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcmUrl(String);

impl OcmUrl {
    /// Parses the URL, `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        static URL: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^https?://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^\s?#]*)?$")
                .expect("a test compiles it")
        });
        URL.is_match(text).then(|| Self(text.to_owned()))
    }

    /// Returns the URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns which client it selects.
    pub fn client(&self) -> OcmClient {
        if self.0.contains(AGENT) { OcmClient::Agent } else { OcmClient::Api }
    }
}

/// How OCM is reached. Requests of both have the header of [`AccessToken::authorization`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcmClient {
    /// Its API, through the proxy of the environment.
    Api,
    /// The agent in the cluster, without a proxy. It knows only this cluster.
    Agent,
}

/// A request to OCM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// The path, after that of the base URL.
    pub path: String,
    /// Names and values of the query, which are not encoded yet.
    pub query: Vec<(&'static str, String)>,
}

/// A cluster, as OCM knows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// Its ID in OCM.
    pub id: String,
    /// Its release.
    pub version: ClusterRelease,
    /// How long a PodDisruptionBudget may block a drain.
    pub node_drain_grace_period: GracePeriod,
}

/// The release of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterRelease {
    /// Such as `stable` or `eus`, empty for `stable`.
    pub channel_group: String,
}

/// A duration of OCM. Its unit is not read: OCM writes minutes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GracePeriod {
    /// The number of minutes.
    pub value: f64,
}

/// A policy: an upgrade that a user has scheduled in OCM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UpgradePolicy {
    /// Its ID.
    pub id: String,
    /// The version, empty if the cluster is up to date.
    pub version: String,
    /// When the upgrade starts.
    pub next_run: Option<Timestamp>,
    /// Whether an extra node is added, which `None` leaves to us.
    pub capacity_reservation: Option<bool>,
}

impl UpgradePolicy {
    /// Returns the time of the upgrade, as `spec.upgradeAt` has it.
    pub fn upgrade_at(&self) -> Option<String> {
        let at = Timestamp::from_second(self.next_run?.as_second());
        at.ok().map(|at| at.to_string())
    }
}

/// How far the upgrade of a policy is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicyState {
    /// Such as `scheduled`, in any case.
    pub value: String,
    /// A sentence.
    pub description: String,
}

/// An entry in the service log, as OCM lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LogEntry {
    /// Its text.
    pub description: String,
    /// When OCM has created it.
    pub created_at: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(default)]
struct List<T> {
    total: u64,
    items: Vec<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { total: 0, items: Vec::new() }
    }
}

impl OcmClient {
    /// Returns the request for the cluster with the `spec.clusterID` of the ClusterVersion.
    pub fn cluster_request(self, external_id: &str) -> Get {
        match self {
            Self::Api => Get {
                path: CLUSTERS.to_owned(),
                query: vec![
                    ("search", format!("external_id = '{external_id}'")),
                    ("size", "1".to_owned()),
                ],
            },
            Self::Agent => Get { path: "/".to_owned(), query: Vec::new() },
        }
    }

    /// Parses its answer.
    pub fn parse_cluster(self, external_id: &str, body: &[u8]) -> Result<Cluster, ProviderError> {
        const WHAT: &str = "the cluster";
        let List { total: clusters, items } = match self {
            Self::Api => parse::<List<Cluster>>(WHAT, body)?,
            Self::Agent => List { total: 1, items: vec![parse::<Cluster>(WHAT, body)?] },
        };
        let not_found = |clusters| ProviderError::ClusterNotFound {
            external_id: external_id.to_owned(),
            clusters,
        };
        if clusters != 1 {
            return Err(not_found(clusters));
        }
        let cluster = items.into_iter().next().filter(|cluster| !cluster.id.is_empty());
        let cluster = cluster.ok_or_else(|| not_found(0))?;
        check_id(WHAT, &cluster.id)?;
        Ok(cluster)
    }
}

/// Returns the request for the policies of a cluster. It asks for one only, as the original.
pub fn policies_request(cluster: &Cluster) -> Get {
    let one = || "1".to_owned();
    Get {
        path: format!("{CLUSTERS}/{}/upgrade_policies", cluster.id),
        query: vec![("page", one()), ("size", one())],
    }
}

/// Parses its answer.
pub fn parse_policies(body: &[u8]) -> Result<Vec<UpgradePolicy>, ProviderError> {
    const WHAT: &str = "the upgrade policies";
    let policies = parse::<List<UpgradePolicy>>(WHAT, body)?.items;
    for policy in &policies {
        check_id(WHAT, &policy.id)?;
    }
    Ok(policies)
}

/// Returns the path of the state of a policy: it is read, and patched when the upgrade proceeds.
pub fn state_path(cluster: &Cluster, policy_id: &str) -> String {
    format!("{CLUSTERS}/{}/upgrade_policies/{policy_id}/state", cluster.id)
}

/// Parses the state of a policy.
pub fn parse_state(body: &[u8]) -> Result<PolicyState, ProviderError> {
    parse("the state of an upgrade policy", body)
}

/// Returns the request for the entries with a headline in the service log of a cluster, the newest first.
pub fn logs_request(cluster: &Cluster, summary: &str) -> Get {
    Get {
        path: CLUSTER_LOGS.to_owned(),
        query: vec![
            ("search", format!("cluster_id = '{}' and summary = '{summary}'", cluster.id)),
            ("order", "created_at desc".to_owned()),
            ("page", "1".to_owned()),
            ("size", "20".to_owned()),
        ],
    }
}

/// Parses its answer.
pub fn parse_logs(body: &[u8]) -> Result<Vec<LogEntry>, ProviderError> {
    Ok(parse::<List<LogEntry>>("the service log", body)?.items)
}

fn parse<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ProviderError> {
    serde_json::from_slice(body)
        .map_err(|error| ProviderError::Answer { what, reason: error.to_string() })
}

fn check_id(what: &'static str, id: &str) -> Result<(), ProviderError> {
    if is_id(id) {
        return Ok(());
    }
    Err(ProviderError::Answer { what, reason: format!("invalid ID {id:?}") })
}

/// IDs become parts of paths and queries.
fn is_id(id: &str) -> bool {
    let is_id_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !id.is_empty() && id.bytes().all(is_id_byte)
}

/// Returns the policy that runs next. One without a time comes first, as a zero time of Go.
pub fn next_policy(policies: &[UpgradePolicy]) -> Option<&UpgradePolicy> {
    policies.iter().min_by_key(|policy| policy.next_run)
}

/// Decides which upgrade a policy wants, `None` if it wants none: it is not scheduled yet, it is over, or the cluster is up
/// to date.
pub fn wanted_spec(
    cluster: &Cluster,
    policy: &UpgradePolicy,
    state: &PolicyState,
    platform: Platform,
    compat: Compat,
) -> Result<Option<UpgradeConfigSpec>, ProviderError> {
    let passive = ["pending", "completed", "cancelled"];
    let is_passive = passive.iter().any(|passive| state.value.eq_ignore_ascii_case(passive));
    if is_passive || policy.version.is_empty() {
        return Ok(None);
    }
    let channel = channel(&cluster.version.channel_group, &policy.version).ok_or_else(|| {
        ProviderError::Version { policy: policy.id.clone(), version: policy.version.clone() }
    })?;
    let upgrade_at = policy.upgrade_at();
    let upgrade_at =
        upgrade_at.ok_or_else(|| ProviderError::NotScheduled { policy: policy.id.clone() })?;
    let capacity_reservation = match compat {
        Compat::Repaired => policy.capacity_reservation.unwrap_or(true),
        Compat::Strict => true,
    };
    Ok(Some(UpgradeConfigSpec {
        desired: Desired {
            version: Some(policy.version.clone()),
            channel: Some(channel),
            image: None,
        },
        upgrade_at,
        pdb_force_drain_timeout: grace_minutes(cluster)?,
        type_: platform.upgrade_type(),
        capacity_reservation: Some(capacity_reservation),
    }))
}

/// Returns the channel of a version, `None` if the version is not one. Channels of `eus` exist for even minor versions.
fn channel(group: &str, version: &str) -> Option<String> {
    let version = Version::parse(version).ok()?;
    let (group, minor) = match group {
        "" => ("stable", version.minor),
        "eus" => ("eus", version.minor.saturating_add(version.minor % 2)),
        other => (other, version.minor),
    };
    Some(format!("{group}-{}.{minor}", version.major))
}

fn grace_minutes(cluster: &Cluster) -> Result<i32, ProviderError> {
    let minutes = cluster.node_drain_grace_period.value;
    if !(0.0..=f64::from(i32::MAX)).contains(&minutes) {
        let (cluster, minutes) = (cluster.id.clone(), minutes.to_string());
        return Err(ProviderError::GracePeriod { cluster, minutes });
    }
    #[expect(clippy::cast_possible_truncation, reason = "within the range, fractions are dropped")]
    Ok(minutes as i32)
}

/// Decides which upgrade the object in the cluster wants. In the original it wants none before its history has an entry,
/// and once it is complete: then the manager deletes it. Repaired, the object always stays (deviation M6).
pub fn local_spec(existing: Option<&UpgradeConfig>, compat: Compat) -> Option<UpgradeConfigSpec> {
    let existing = existing?;
    let is_open = match compat {
        Compat::Repaired => true,
        Compat::Strict => existing.entry().is_some_and(|entry| entry.phase != Phase::Upgraded),
    };
    is_open.then(|| existing.spec.clone())
}

/// The token for OCM. It is shown nowhere but in its header.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    cluster_id: String,
    secret: String,
}

impl AccessToken {
    /// Reads the token out of the pull secret, for the `spec.clusterID` of the ClusterVersion.
    pub fn from_pull_secret(cluster_id: &str, secret: &Secret) -> Result<Self, ProviderError> {
        let wrong = |problem| ProviderError::PullSecret { problem };
        let data = secret.data.as_ref().and_then(|data| data.get(PULL_SECRET_KEY));
        let data = data.ok_or(wrong("it does not have its key"))?;
        let config: Value =
            serde_json::from_slice(&data.0).map_err(|_| wrong("its value is not JSON"))?;
        let auths = config.get("auths").ok_or(wrong("it has no auths"))?;
        let registry = auths.get(PULL_SECRET_REGISTRY).ok_or(wrong("it has no such registry"))?;
        let token = registry.get("auth").and_then(Value::as_str);
        let token = token.ok_or(wrong("the registry has no auth"))?;
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("auth is empty or is not one word of ASCII characters"));
        }
        if !is_id(cluster_id) {
            return Err(ProviderError::ClusterId { id: cluster_id.to_owned() });
        }
        Ok(Self { cluster_id: cluster_id.to_owned(), secret: token.to_owned() })
    }

    /// Returns the value of the header `Authorization`, which is a secret.
    pub fn authorization(&self) -> String {
        format!("AccessToken {}:{}", self.cluster_id, self.secret)
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("cluster_id", &self.cluster_id).finish_non_exhaustive()
    }
}
