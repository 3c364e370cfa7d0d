//! OpenShift Cluster Manager, or its agent in the cluster.

use std::collections::BTreeMap;

use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, client::Body};
use refit_openshift::{
    notify::{LogEvent, OcmState, PolicyStateWrite},
    provider::{
        self, AccessToken, CLUSTER_LOGS, Cluster, Get, LogEntry, OcmClient, OcmUrl, PULL_SECRET,
        PULL_SECRET_NAMESPACE, PolicyState, ProviderError, UpgradePolicy,
    },
    retry::{self, Outcome},
};
use serde_json::Value;

use super::{
    Remote,
    http::{self as web, Answer, NoAnswer, NoAnswerKind, Web},
};

/// How many characters of OCM's reason an error has.
const MAX_SHOWN: usize = 300;

/// A connection to OCM, with the token of one cluster.
pub struct Ocm {
    web: Web,
    url: OcmUrl,
    authorization: HeaderValue,
    cluster_id: String,
}

impl std::fmt::Debug for Ocm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ocm").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Ocm {
    pub(super) async fn connect(
        remote: &Remote,
        url: &OcmUrl,
        cluster_id: &str,
    ) -> Result<Self, ProviderError> {
        let secrets: Api<Secret> = Api::namespaced(remote.cluster.clone(), PULL_SECRET_NAMESPACE);
        let secret = secrets
            .get(PULL_SECRET)
            .await
            .map_err(|error| ProviderError::Secret { why: web::cause(&error) })?;
        let token = AccessToken::from_pull_secret(cluster_id, &secret)?;
        let mut authorization = HeaderValue::try_from(token.authorization()).map_err(|_| {
            ProviderError::PullSecret { problem: "auth is not the value of a header" }
        })?;
        authorization.set_sensitive(true);
        let web = match url.client() {
            OcmClient::Api => &remote.web,
            OcmClient::Agent => &remote.direct,
        };
        let (web, url, cluster_id) = (web.clone(), url.clone(), cluster_id.to_owned());
        Ok(Self { web, url, authorization, cluster_id })
    }

    /// Whether the API of OCM is asked, or its agent.
    pub fn client(&self) -> OcmClient {
        self.url.client()
    }

    /// The cluster, as OCM knows it.
    pub async fn cluster(&self) -> Result<Cluster, ProviderError> {
        let body = self.get(&self.client().cluster_request(&self.cluster_id)).await?;
        self.client().parse_cluster(&self.cluster_id, &body)
    }

    /// The upgrade policies of the cluster.
    pub async fn policies(&self, cluster: &Cluster) -> Result<Vec<UpgradePolicy>, ProviderError> {
        provider::parse_policies(&self.get(&provider::policies_request(cluster)).await?)
    }

    /// The state of a policy.
    pub async fn state(
        &self,
        cluster: &Cluster,
        policy_id: &str,
    ) -> Result<PolicyState, ProviderError> {
        let path = provider::state_path(cluster, policy_id);
        provider::parse_state(&self.get(&Get { path, query: Vec::new() }).await?)
    }

    /// Sets the state of a policy.
    pub async fn set_state(
        &self,
        cluster: &Cluster,
        policy_id: &str,
        state: OcmState,
        description: &str,
    ) -> Result<(), ProviderError> {
        let path = provider::state_path(cluster, policy_id);
        let write = PolicyStateWrite { value: state, description: description.to_owned() };
        self.write(Method::PATCH, &path, &serde_json::json!(write)).await
    }

    /// Posts an entry in the service log, of [`refit_openshift::notify::service_log`].
    pub async fn post_log(&self, entry: &Value) -> Result<(), ProviderError> {
        self.write(Method::POST, CLUSTER_LOGS, entry).await
    }

    /// The latest entries of an event in the service log. It has none if OCM does not let the cluster read them.
    pub async fn logs(
        &self,
        cluster: &Cluster,
        event: LogEvent,
    ) -> Result<Vec<LogEntry>, ProviderError> {
        match self.get(&provider::logs_request(cluster, event.summary())).await {
            Ok(body) => provider::parse_logs(&body),
            Err(ProviderError::Request { status: Some(status @ 400..500), why }) => {
                tracing::warn!(
                    status,
                    why,
                    "cannot read the service log, the entry may be posted twice"
                );
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    async fn get(&self, get: &Get) -> Result<Vec<u8>, ProviderError> {
        let query = web::encoded(get.query.iter().map(|(name, value)| (*name, &**value)));
        let query = if query.is_empty() { query } else { format!("?{query}") };
        let path = format!("{}{query}", get.path);
        self.ask((&Method::GET, &path), None, retry::Request::Read).await
    }

    async fn write(&self, method: Method, path: &str, body: &Value) -> Result<(), ProviderError> {
        self.ask((&method, path), Some(body), retry::Request::Write).await.map(drop)
    }

    /// Sends a request, again if that is due, and returns the body of a successful answer.
    async fn ask(
        &self,
        (method, path): (&Method, &str),
        body: Option<&Value>,
        request: retry::Request,
    ) -> Result<Vec<u8>, ProviderError> {
        let mut repeated = 0;
        loop {
            let answer = self.once(method, path, body).await;
            let outcome = match &answer {
                Ok(answer) => Outcome::Status(answer.status.as_u16()),
                Err(NoAnswer { kind: NoAnswerKind::Unsent, .. }) => Outcome::Unsent,
                Err(NoAnswer { kind: NoAnswerKind::Broken, .. }) => Outcome::Broken,
                Err(NoAnswer { kind: NoAnswerKind::Late, .. }) => Outcome::Late,
            };
            let Some(delay) = retry::delay(request, outcome, repeated, fastrand::f64()) else {
                let what = format!("{method} {}", path.split('?').next().unwrap_or_default());
                return finished(&what, answer);
            };
            repeated += 1;
            tokio::time::sleep(delay.unsigned_abs()).await;
        }
    }

    async fn once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, NoAnswer> {
        let url = web::url(&format!("{}{path}", self.url.as_str().trim_end_matches('/')))?;
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(ACCEPT, "application/json")
            .header(AUTHORIZATION, &self.authorization);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| Body::from(body.to_string().into_bytes()));
        let request = request
            .body(body.unwrap_or_else(Body::empty))
            .map_err(|error| NoAnswer::unsent(error.to_string()))?;
        self.web.send(request, web::DEADLINE).await
    }
}

/// The body of a successful answer to a request, `METHOD PATH`.
fn finished(what: &str, answer: Result<Answer, NoAnswer>) -> Result<Vec<u8>, ProviderError> {
    let Answer { status, body, .. } = answer.map_err(|error| ProviderError::Request {
        status: None,
        why: format!(
            "OCM does not answer {what}: {error}, check configManager.ocmBaseUrl and the proxy"
        ),
    })?;
    if status.is_success() {
        return Ok(body);
    }
    let remedy = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "check the pull secret, and whether OCM has disabled the owner of the cluster"
        }
        StatusCode::NOT_FOUND => "check configManager.ocmBaseUrl",
        _ => "the next look asks again",
    };
    let status = status.as_u16();
    let why = format!("OCM answers {what} with HTTP status {status}{}, {remedy}", reason(&body));
    Err(ProviderError::Request { status: Some(status), why })
}

/// OCM's reason for an error, in its own format.
fn reason(body: &[u8]) -> String {
    let error: BTreeMap<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| error.get(name).and_then(Value::as_str);
    let known = [("", "code"), ("", "reason"), ("operation ", "operation_id")];
    let known = known.map(|(before, name)| Some(format!("{before}{}", field(name)?)));
    let text = known.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let text: String = text.chars().take(MAX_SHOWN).collect();
    if text.is_empty() { text } else { format!(" ({text})") }
}
