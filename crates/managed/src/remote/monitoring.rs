//! Prometheus and Alertmanager of the cluster.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    client::Body,
};
use refit_kinds::refit::AlertMatcher;
use refit_openshift::{
    Compat,
    health::alerts,
    maintenance::{CREATED_BY, Silence, SilenceWrite},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    Remote,
    http::{Answer, DEADLINE, Web, cause, encoded, url},
};

const NAMESPACE: &str = "openshift-monitoring";
const PROMETHEUS: &str = "prometheus-k8s";
const ALERTMANAGER: &str = "alertmanager-main";
const PORT: &str = "web";
/// The ServiceAccount that both accept.
const SERVICE_ACCOUNT: &str = "prometheus-k8s";
/// What the name of the Secret with its token contains. Clusters since 4.16 have none.
const TOKEN_SECRET: &str = "prometheus-k8s-token";
/// How long a token that is requested is valid.
const TOKEN_LIFE: SignedDuration = SignedDuration::from_hours(24);
/// How long before its end it is requested again.
const TOKEN_SPARE: SignedDuration = SignedDuration::from_hours(1);
const CA_BUNDLE: &str = "serving-certs-ca-bundle";
const CA_KEY: &str = "service-ca.crt";
/// How many characters of an answer an error has.
const MAX_SHOWN: usize = 200;

/// What is kept from one look to the next.
#[derive(Default)]
pub(super) struct Kept {
    token: Option<Token>,
    /// The client, by the authority that it trusts.
    web: Option<(String, Web)>,
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    expires: Timestamp,
}

/// A connection to Prometheus and Alertmanager, for one look.
pub struct Monitoring {
    cluster: kube::Client,
    web: Web,
    authorization: HeaderValue,
    uses_routes: bool,
    compat: Compat,
    kept: Arc<Mutex<Kept>>,
    prometheus: OnceCell<String>,
    alertmanager: OnceCell<String>,
}

impl std::fmt::Debug for Monitoring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitoring").finish_non_exhaustive()
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitoring {
    pub(super) async fn connect(remote: &Remote) -> Result<Self, String> {
        let authorization = match secret_token(&remote.cluster).await? {
            Some(token) => token,
            None => requested_token(remote).await?,
        };
        Ok(Self {
            cluster: remote.cluster.clone(),
            web: trusting_service_ca(remote).await?,
            authorization,
            uses_routes: remote.uses_routes,
            compat: remote.compat,
            kept: remote.monitoring.clone(),
            prometheus: OnceCell::new(),
            alertmanager: OnceCell::new(),
        })
    }

    /// The series that a query of Prometheus results in: the labels and the value of each.
    pub async fn query(
        &self,
        promql: &str,
    ) -> Result<Vec<(BTreeMap<String, String>, String)>, String> {
        let path = format!("/api/v1/query?{}", encoded([("query", promql)]));
        let answer = self.ask((PROMETHEUS, &self.prometheus), (Method::GET, &path), None).await?;
        alerts::samples(answer.status.as_u16(), &answer.body, self.compat)
    }

    /// All silences, of any creator and state.
    pub async fn silences(&self) -> Result<Vec<Silence>, String> {
        let body = self.alertmanager(Method::GET, "/api/v2/silences", None).await?;
        serde_json::from_slice(&body)
            .map_err(|error| format!("the answer of Alertmanager cannot be read: {error}"))
    }

    /// Writes to Alertmanager.
    pub async fn write(&self, write: &SilenceWrite) -> Result<(), String> {
        match write {
            SilenceWrite::Create(silence) => {
                let matchers: Vec<Value> =
                    silence.matchers.iter().map(AlertMatcher::to_alertmanager).collect();
                let body = json!({
                    "matchers": matchers,
                    "startsAt": silence.starts_at,
                    "endsAt": silence.ends_at,
                    "createdBy": CREATED_BY,
                    "comment": silence.comment,
                });
                self.alertmanager(Method::POST, "/api/v2/silences", Some(&body)).await
            }
            SilenceWrite::Delete { id } => {
                let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
                let path = format!("/api/v2/silence/{id}");
                self.alertmanager(Method::DELETE, &path, None).await
            }
        }
        .map(drop)
    }

    async fn alertmanager(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, String> {
        let target = (ALERTMANAGER, &self.alertmanager);
        let Answer { status, body, .. } = self.ask(target, (method.clone(), path), body).await?;
        if status.is_success() {
            return Ok(body);
        }
        let shown: String = String::from_utf8_lossy(&body).trim().chars().take(MAX_SHOWN).collect();
        let why = if shown.is_empty() { shown } else { format!(": {shown}") };
        Err(format!(
            "Alertmanager answers {method} {path} with HTTP status {}{why}, check Service {NAMESPACE}/{ALERTMANAGER} and its Pods",
            status.as_u16()
        ))
    }

    async fn ask(
        &self,
        (name, address): (&str, &OnceCell<String>),
        (method, path): (Method, &str),
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let address = address.get_or_try_init(|| self.address(name)).await?;
        let why = |why: String| format!("{name} in {NAMESPACE} does not answer: {why}");
        let url = url(&format!("https://{address}{path}")).map_err(|error| why(error.why))?;
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(ACCEPT, "application/json")
            .header(AUTHORIZATION, &self.authorization);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| Body::from(body.to_string().into_bytes()));
        let request = request.body(body.unwrap_or_else(Body::empty));
        let request = request.map_err(|error| why(error.to_string()))?;
        let answer = self.web.send(request, DEADLINE).await.map_err(|error| why(error.why))?;
        if answer.status == StatusCode::UNAUTHORIZED {
            // The next look requests another token.
            lock(&self.kept).token = None;
        }
        Ok(answer)
    }

    async fn address(&self, name: &str) -> Result<String, String> {
        if self.uses_routes {
            return route_host(&self.cluster, name).await;
        }
        let service = service(&self.cluster, (NAMESPACE, name)).await;
        let service = service.map_err(|error| unread(&error, (NAMESPACE, name)))?;
        let service = service.ok_or_else(|| {
            format!(
                "Service {NAMESPACE}/{name} does not exist, restore the monitoring of the cluster"
            )
        })?;
        address(&service, (NAMESPACE, name, PORT))
    }
}

/// The token of a Secret, if one has it.
async fn secret_token(cluster: &kube::Client) -> Result<Option<HeaderValue>, String> {
    let secrets: Api<Secret> = Api::namespaced(cluster.clone(), NAMESPACE);
    let list = secrets.list_metadata(&ListParams::default()).await.map_err(|error| {
        format!("cannot list the Secrets of Namespace {NAMESPACE}: {}", cause(&error))
    })?;
    let mut names = list.items.iter().map(ResourceExt::name_any);
    let Some(name) = names.find(|name| name.contains(TOKEN_SECRET)) else { return Ok(None) };
    let secret = secrets
        .get(&name)
        .await
        .map_err(|error| format!("cannot read Secret {NAMESPACE}/{name}: {}", cause(&error)))?;
    let token = secret.data.unwrap_or_default().remove("token").unwrap_or_default();
    bearer(&token.0).map(Some).ok_or_else(|| {
        format!("invalid Secret {NAMESPACE}/{name}, expected the token of a ServiceAccount in its key token")
    })
}

/// A token that was requested, and is kept until it nearly expires.
async fn requested_token(remote: &Remote) -> Result<HeaderValue, String> {
    let now = remote.clock.now();
    let is_fresh = |token: &Token| token.expires.duration_since(now) > TOKEN_SPARE;
    if let Some(token) = lock(&remote.monitoring).token.clone().filter(is_fresh) {
        return Ok(token.header);
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(remote.cluster.clone(), NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_LIFE.as_secs()),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let why = |why: String| {
        format!("cannot request a token of ServiceAccount {NAMESPACE}/{SERVICE_ACCOUNT}: {why}")
    };
    let answer = accounts
        .create_token_request(SERVICE_ACCOUNT, &PostParams::default(), &request)
        .await
        .map_err(|error| why(cause(&error)))?;
    let status = answer.status.ok_or_else(|| why("the answer has no status".to_owned()))?;
    let header = bearer(status.token.as_bytes());
    let header = header.ok_or_else(|| why("the answer has no token".to_owned()))?;
    let expires = status.expiration_timestamp.0;
    lock(&remote.monitoring).token = Some(Token { header: header.clone(), expires });
    Ok(header)
}

fn bearer(token: &[u8]) -> Option<HeaderValue> {
    let token = std::str::from_utf8(token).ok()?.trim();
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    (!token.is_empty()).then_some(header)
}

/// A client that trusts the authorities of the system, and that of the cluster's Services.
async fn trusting_service_ca(remote: &Remote) -> Result<Web, String> {
    let why =
        |why: String| format!("cannot read {CA_KEY} of ConfigMap {NAMESPACE}/{CA_BUNDLE}: {why}");
    let bundles: Api<ConfigMap> = Api::namespaced(remote.cluster.clone(), NAMESPACE);
    let bundle = bundles.get(CA_BUNDLE).await.map_err(|error| why(cause(&error)))?;
    let pem = bundle.data.unwrap_or_default().remove(CA_KEY);
    let pem = pem.ok_or_else(|| why("the key is missing, annotate the ConfigMap with service.beta.openshift.io/inject-cabundle: \"true\"".to_owned()))?;
    if let Some((known, web)) = &lock(&remote.monitoring).web
        && *known == pem
    {
        return Ok(web.clone());
    }
    let stack = remote.stack.clone().with_extra_roots(pem.as_bytes());
    let web = Web::new(&stack.map_err(|error| why(error.to_string()))?);
    lock(&remote.monitoring).web = Some((pem, web.clone()));
    Ok(web)
}

/// Reads a Service.
pub(super) async fn service(
    cluster: &kube::Client,
    (namespace, name): (&str, &str),
) -> kube::Result<Option<Service>> {
    let services: Api<Service> = Api::namespaced(cluster.clone(), namespace);
    services.get_opt(name).await
}

pub(super) fn unread(error: &kube::Error, (namespace, name): (&str, &str)) -> String {
    format!("cannot read Service {namespace}/{name}: {}", cause(error))
}

/// Host and port of a Service.
pub(super) fn address(
    service: &Service,
    (namespace, name, port): (&str, &str, &str),
) -> Result<String, String> {
    let mut ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let found = ports.find(|one| one.name.as_deref() == Some(port));
    let number = found
        .map(|port| port.port)
        .ok_or_else(|| format!("Service {namespace}/{name} has no port {port:?}, restore it"))?;
    Ok(format!("{name}.{namespace}.svc.cluster.local:{number}"))
}

async fn route_host(cluster: &kube::Client, name: &str) -> Result<String, String> {
    let kind = ApiResource {
        group: "route.openshift.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "route.openshift.io/v1".to_owned(),
        kind: "Route".to_owned(),
        plural: "routes".to_owned(),
    };
    let routes: Api<DynamicObject> = Api::namespaced_with(cluster.clone(), NAMESPACE, &kind);
    let route = routes
        .get(name)
        .await
        .map_err(|error| format!("cannot read Route {NAMESPACE}/{name}: {}", cause(&error)))?;
    let host = route.data.pointer("/spec/host").and_then(Value::as_str);
    host.map(ToOwned::to_owned)
        .ok_or_else(|| format!("Route {NAMESPACE}/{name} has no spec.host, expected a host name"))
}
