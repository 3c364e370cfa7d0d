//! OpenShift Cluster Manager (OCM): its API for one cluster and its upgrade policies (`clusters_mgmt/v1`) and for the service
//! log (`service_logs/v1`). Its agent in the cluster has the form in which `GET /` is the cluster.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use refit_openshift::notify::OcmState;
use semver::Version;
use serde_json::{Map, Value, json};

use crate::wire::{Answers, Asked, Troubles, lock};

/// Host name of the agent.
pub const AGENT_HOST: &str = "ocm-agent.openshift-ocm-agent-operator.svc.cluster.local";
/// Port of the agent.
pub const AGENT_PORT: u16 = 8081;

const CLUSTERS: &str = "/api/clusters_mgmt/v1/clusters";
const CLUSTER_LOGS: &str = "/api/service_logs/v1/cluster_logs";

/// A cluster that OCM manages.
#[derive(Clone, Debug)]
pub struct Managed {
    /// Its ID in OCM.
    pub id: String,
    /// `spec.clusterID` of its ClusterVersion.
    pub external_id: String,
    /// `auths["cloud.openshift.com"].auth` of its pull secret.
    pub token: String,
    /// Such as `stable`.
    pub channel_group: String,
    /// For how long a PodDisruptionBudget may block a drain.
    pub grace_minutes: u32,
}

/// An upgrade policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The version.
    pub version: String,
    /// When the upgrade starts.
    pub next_run: Timestamp,
    /// How far it is.
    pub state: String,
    /// The text of the notification that has set the state.
    pub description: String,
}

/// A state that a policy was given through the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified {
    /// When.
    pub at: Timestamp,
    /// The policy.
    pub policy: String,
    /// The state.
    pub state: String,
    /// Its text.
    pub description: String,
}

/// OCM, or its agent: clones share what they know.
#[derive(Clone, Debug)]
pub struct Ocm {
    state: Arc<Mutex<State>>,
    is_agent: bool,
    troubles: Troubles,
}

#[derive(Debug)]
struct State {
    cluster: Managed,
    is_banned: bool,
    policies: BTreeMap<String, Policy>,
    logs: Vec<Value>,
    notified: Vec<Notified>,
    refuses_states: bool,
}

/// An answer, or an error and its reason.
type Reply = Result<(StatusCode, Value), (StatusCode, String)>;

impl Ocm {
    /// The API, with a cluster that has no policies.
    pub fn new(cluster: Managed) -> Self {
        let state = State {
            cluster,
            is_banned: false,
            policies: BTreeMap::new(),
            logs: Vec::new(),
            notified: Vec::new(),
            refuses_states: false,
        };
        Self { state: Arc::new(Mutex::new(state)), is_agent: false, troubles: Troubles::default() }
    }

    /// Its agent, which has troubles of its own.
    #[must_use]
    pub fn agent(&self) -> Self {
        Self { is_agent: true, troubles: Troubles::default(), ..self.clone() }
    }

    /// Its troubles.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// Schedules an upgrade, or changes it.
    pub fn schedule(&self, id: &str, version: &str, next_run: Timestamp) {
        lock(&self.state).policies.insert(id.to_owned(), Policy::new(version, next_run));
    }

    /// Deletes a policy.
    pub fn delete(&self, id: &str) {
        lock(&self.state).policies.remove(id);
    }

    /// Sets the state of a policy, as users and OCM itself do.
    pub fn set_state(&self, id: &str, state: &str, description: &str) {
        if let Some(policy) = lock(&self.state).policies.get_mut(id) {
            (policy.state, policy.description) = (state.to_owned(), description.to_owned());
        }
    }

    /// Disables the owner of the cluster, or enables them: then OCM does not know the cluster.
    pub fn set_banned(&self, is_banned: bool) {
        lock(&self.state).is_banned = is_banned;
    }

    /// The path of the policies.
    pub fn policies_path(&self) -> String {
        lock(&self.state).policies_path()
    }

    /// Sets whether the API refuses each new state of a policy.
    pub fn refuse_states(&self, refuses: bool) {
        lock(&self.state).refuses_states = refuses;
    }

    /// The policies by their IDs.
    pub fn policies(&self) -> BTreeMap<String, Policy> {
        lock(&self.state).policies.clone()
    }

    /// The states that policies were given through the API, in that order.
    pub fn notified(&self) -> Vec<Notified> {
        lock(&self.state).notified.clone()
    }

    /// A policy.
    pub fn policy(&self, id: &str) -> Option<Policy> {
        lock(&self.state).policies.get(id).cloned()
    }

    /// The entries of the service log, in the order in which they were posted.
    pub fn logs(&self) -> Vec<Value> {
        lock(&self.state).logs.clone()
    }
}

impl Answers for Ocm {
    fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    fn answer(&self, asked: &Asked) -> (StatusCode, Value) {
        let mut state = lock(&self.state);
        let Managed { external_id, token, .. } = &state.cluster;
        let reply = if asked.header("authorization") != format!("AccessToken {external_id}:{token}")
        {
            Err((StatusCode::UNAUTHORIZED, "Account cannot be authenticated".to_owned()))
        } else if self.is_agent && asked.path == "/" {
            Ok((StatusCode::OK, state.cluster.shown_by_agent()))
        } else if self.is_agent && asked.path == CLUSTERS {
            Err(not_found(&asked.path))
        } else {
            state.reply(asked)
        };
        reply.unwrap_or_else(|(status, reason)| (status, error(&asked.path, status, &reason)))
    }

    fn failed(&self, status: StatusCode) -> Value {
        error(CLUSTERS, status, status.canonical_reason().unwrap_or_default())
    }
}

fn not_found(what: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("The requested resource '{what}' doesn't exist"))
}

fn error(path: &str, status: StatusCode, reason: &str) -> Value {
    let code = status.as_u16();
    let (service, name) = if path.starts_with("/api/service_logs") {
        ("service_logs", "SERVICE-LOGS")
    } else {
        ("clusters_mgmt", "CLUSTERS-MGMT")
    };
    json!({
        "kind": "Error",
        "id": code.to_string(),
        "href": format!("/api/{service}/v1/errors/{code}"),
        "code": format!("{name}-{code}"),
        "reason": reason,
        "operation_id": "1f2e3d4c",
    })
}

fn list(kind: &str, asked: &Asked, found: Vec<Value>) -> Value {
    let number = |name, default: usize| asked.parameter(name).parse().unwrap_or(default);
    let (page, size, total) = (number("page", 1), number("size", 100), found.len());
    let skipped = size.saturating_mul(page.saturating_sub(1));
    let items: Vec<Value> = found.into_iter().skip(skipped).take(size).collect();
    json!({"kind": kind, "page": page, "size": items.len(), "total": total, "items": items})
}

/// The conditions `NAME = 'VALUE'` of a search, all of which hold.
fn search(asked: &Asked) -> Result<Vec<(&str, &str)>, (StatusCode, String)> {
    let text = asked.parameter("search");
    let invalid = || (StatusCode::BAD_REQUEST, format!("Can't parse search '{text}'"));
    let (mut rest, mut conditions) = (text, Vec::new());
    while !rest.is_empty() {
        let (name, after) = rest.split_once(" = '").ok_or_else(invalid)?;
        let (value, after) = after.split_once('\'').ok_or_else(invalid)?;
        conditions.push((name, value));
        rest = match after.strip_prefix(" and ") {
            Some(next) => next,
            None if after.is_empty() => after,
            None => return Err(invalid()),
        };
    }
    Ok(conditions)
}

impl Managed {
    fn shown(&self) -> Value {
        json!({
            "kind": "Cluster",
            "id": self.id,
            "href": format!("{CLUSTERS}/{}", self.id),
            "external_id": self.external_id,
            "state": "ready",
            "managed": true,
            "version": {"kind": "Version", "channel_group": self.channel_group},
            "node_drain_grace_period": {"value": self.grace_minutes, "unit": "minutes"},
        })
    }

    /// The agent keeps only what the operator reads.
    fn shown_by_agent(&self) -> Value {
        json!({
            "id": self.id,
            "version": {"channel_group": self.channel_group},
            "node_drain_grace_period": {"value": self.grace_minutes, "unit": "minutes"},
        })
    }
}

impl Policy {
    fn new(version: &str, next_run: Timestamp) -> Self {
        Self {
            version: version.to_owned(),
            next_run,
            state: OcmState::Scheduled.to_string(),
            description: "Upgrade is scheduled".to_owned(),
        }
    }

    fn is_over(&self) -> bool {
        use OcmState::{Cancelled, Completed, Failed};
        [Cancelled, Completed, Failed].iter().any(|over| over.to_string() == self.state)
    }
}

impl State {
    fn policies_path(&self) -> String {
        format!("{CLUSTERS}/{}/upgrade_policies", self.cluster.id)
    }

    fn reply(&mut self, asked: &Asked) -> Reply {
        let of_cluster = self.policies_path();
        let path = &*asked.path;
        let policy = path.strip_prefix(&of_cluster).and_then(|rest| rest.strip_prefix('/'));
        let policy = policy.and_then(|rest| rest.strip_suffix("/state"));
        match (&asked.method, policy) {
            (&Method::GET, None) if path == CLUSTERS => self.clusters(asked),
            (&Method::GET, None) if path == of_cluster => Ok(self.list_policies(asked)),
            (&Method::POST, None) if path == of_cluster => self.post_policy(asked),
            (&Method::GET, Some(id)) => Ok((StatusCode::OK, self.shown_state(id)?)),
            (&Method::PATCH, Some(id)) => self.patch_state(id, asked),
            (&Method::POST, None) if path == CLUSTER_LOGS => self.post_log(asked),
            (&Method::GET, None) if path == CLUSTER_LOGS => self.list_logs(asked),
            _ => Err(not_found(path)),
        }
    }

    fn clusters(&self, asked: &Asked) -> Reply {
        let conditions = search(asked)?;
        let is = |(name, value): &(&str, &str)| match *name {
            "external_id" => self.cluster.external_id == *value,
            "id" => self.cluster.id == *value,
            _ => false,
        };
        let is_found = !self.is_banned && conditions.iter().all(is);
        let found = is_found.then(|| self.cluster.shown()).into_iter().collect();
        Ok((StatusCode::OK, list("ClusterList", asked, found)))
    }

    fn list_policies(&self, asked: &Asked) -> (StatusCode, Value) {
        let policies = self.policies.iter().map(|(id, policy)| self.shown_policy(id, policy));
        (StatusCode::OK, list("UpgradePolicyList", asked, policies.collect()))
    }

    fn shown_policy(&self, id: &str, policy: &Policy) -> Value {
        json!({
            "kind": "UpgradePolicy",
            "id": id,
            "href": format!("{}/{id}", self.policies_path()),
            "schedule_type": "manual",
            "upgrade_type": "OSD",
            "version": policy.version,
            "next_run": policy.next_run,
            "cluster_id": self.cluster.id,
        })
    }

    /// Schedules an upgrade, unless another one is scheduled or under way: policies that are over are deleted. Without a time,
    /// which OCM itself requires, the upgrade starts now.
    fn post_policy(&mut self, asked: &Asked) -> Reply {
        let body = parsed(asked)?;
        let text = |name| body.get(name).and_then(Value::as_str);
        let invalid = |why: String| (StatusCode::BAD_REQUEST, why);
        let version = text("version").unwrap_or_default();
        if Version::parse(version).is_err() {
            return Err(invalid(format!("Invalid version '{version}', expected X.Y.Z")));
        }
        let next_run = text("next_run").map_or(Ok(asked.now), |time| {
            time.parse().map_err(|error| invalid(format!("Invalid next_run '{time}': {error}")))
        })?;
        if let Some((id, policy)) = self.policies.iter().find(|(_, policy)| !policy.is_over()) {
            let why = format!("The cluster has upgrade policy '{id}', which is {}", policy.state);
            return Err((StatusCode::CONFLICT, why));
        }
        let (id, policy) =
            (format!("policy-{}", asked.now.as_second()), Policy::new(version, next_run));
        let shown = self.shown_policy(&id, &policy);
        self.policies = BTreeMap::from([(id, policy)]);
        Ok((StatusCode::CREATED, shown))
    }

    fn shown_state(&self, id: &str) -> Result<Value, (StatusCode, String)> {
        let policy = self.policies.get(id).ok_or_else(|| not_found(id))?;
        Ok(json!({
            "kind": "UpgradePolicyState",
            "href": format!("{CLUSTERS}/{}/upgrade_policies/{id}/state", self.cluster.id),
            "value": policy.state,
            "description": policy.description,
        }))
    }

    fn patch_state(&mut self, id: &str, asked: &Asked) -> Reply {
        let body = parsed(asked)?;
        let text = |name| body.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let policy = self.policies.get_mut(id).ok_or_else(|| not_found(id))?;
        if self.refuses_states {
            let why = "The state of the upgrade policy can't be changed".to_owned();
            return Err((StatusCode::BAD_REQUEST, why));
        }
        if let Some(value) = text("value") {
            if value.parse::<OcmState>().is_err() {
                let why = format!("Invalid upgrade policy state '{value}'");
                return Err((StatusCode::BAD_REQUEST, why));
            }
            policy.state = value;
        }
        policy.description = text("description").unwrap_or_default();
        let (state, description) = (policy.state.clone(), policy.description.clone());
        let policy = id.to_owned();
        self.notified.push(Notified { at: asked.now, policy, state, description });
        Ok((StatusCode::OK, self.shown_state(id)?))
    }

    fn post_log(&mut self, asked: &Asked) -> Reply {
        let mut entry = parsed(asked)?;
        let is_missing = |name: &&str| entry.get(*name).and_then(Value::as_str).is_none();
        let needed = ["cluster_id", "severity", "service_name", "summary", "description"];
        if let Some(name) = needed.iter().find(|name| is_missing(name)) {
            return Err((StatusCode::BAD_REQUEST, format!("The field '{name}' is required")));
        }
        if entry["cluster_id"] != *self.cluster.id {
            return Err(not_found("cluster"));
        }
        let id = format!("log-{}", self.logs.len() + 1);
        entry.insert("href".to_owned(), json!(format!("{CLUSTER_LOGS}/{id}")));
        entry.insert("id".to_owned(), json!(id));
        for time in ["created_at", "timestamp"] {
            entry.insert(time.to_owned(), json!(asked.now));
        }
        let entry = Value::Object(entry);
        self.logs.push(entry.clone());
        Ok((StatusCode::CREATED, entry))
    }

    fn list_logs(&self, asked: &Asked) -> Reply {
        let conditions = search(asked)?;
        let is_found =
            |entry: &&Value| conditions.iter().all(|(name, value)| entry[*name] == **value);
        let found = self.logs.iter().rev().filter(is_found).cloned().collect();
        Ok((StatusCode::OK, list("ClusterLogList", asked, found)))
    }
}

fn parsed(asked: &Asked) -> Result<Map<String, Value>, (StatusCode, String)> {
    serde_json::from_slice(&asked.body)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("Can't parse the body: {error}")))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, header::AUTHORIZATION};

    use super::*;

    fn ocm() -> Ocm {
        Ocm::new(Managed {
            id: "1a2b".to_owned(),
            external_id: "cluster".to_owned(),
            token: "secret".to_owned(),
            channel_group: "stable".to_owned(),
            grace_minutes: 60,
        })
    }

    fn post(ocm: &Ocm, token: &str, body: &str) -> (StatusCode, Value) {
        let token = format!("AccessToken cluster:{token}").parse().unwrap();
        ocm.answer(&Asked {
            method: Method::POST,
            path: ocm.policies_path(),
            query: Vec::new(),
            headers: HeaderMap::from_iter([(AUTHORIZATION, token)]),
            body: Bytes::copy_from_slice(body.as_bytes()),
            now: "2026-03-02T08:00:00Z".parse().unwrap(),
        })
    }

    #[test]
    fn a_posted_policy_replaces_those_that_are_over() {
        let ocm = ocm();
        ocm.schedule("p-1", "4.16.4", Timestamp::UNIX_EPOCH);
        let (status, answer) = post(&ocm, "secret", r#"{"version": "4.17.1"}"#);
        assert_eq!(status, StatusCode::CONFLICT);
        let why = "The cluster has upgrade policy 'p-1', which is scheduled";
        assert_eq!(answer["reason"], why);
        ocm.set_state("p-1", "completed", "");
        let (status, answer) = post(&ocm, "secret", r#"{"version": "4.17.1"}"#);
        assert_eq!(status, StatusCode::CREATED);
        assert_eq!(answer["next_run"], "2026-03-02T08:00:00Z");
        let policies = ocm.policies();
        let known: Vec<_> = policies.iter().map(|(id, policy)| (&**id, &*policy.state)).collect();
        assert_eq!(known, [(answer["id"].as_str().unwrap(), "scheduled")]);
    }

    #[test]
    fn a_posted_policy_needs_the_token_and_a_valid_version_and_time() {
        let ocm = ocm();
        for (token, body, code) in [
            ("other", r#"{"version": "4.17.1"}"#, 401),
            ("secret", r#"{"version": "4.17"}"#, 400),
            ("secret", "{}", 400),
            ("secret", "version", 400),
            ("secret", r#"{"version": "4.17.1", "next_run": "soon"}"#, 400),
            ("secret", r#"{"version": "4.17.1", "next_run": "2026-03-02T12:00:00Z"}"#, 201),
        ] {
            assert_eq!(post(&ocm, token, body).0.as_u16(), code, "{body}");
        }
        let policies: Vec<Policy> = ocm.policies().into_values().collect();
        let next_run = "2026-03-02T12:00:00Z".parse().unwrap();
        assert_eq!(policies, [Policy::new("4.17.1", next_run)]);
    }
}
