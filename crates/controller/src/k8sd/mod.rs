//! Calls of k8sd on the Node of a Machine, through the port of the pod there that forwards to it
//! (`docs/facts/k8sd.md`).

mod certificates;
mod pins;
mod proxies;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::node::{K8sdCall, K8sdRequest};
use refit_kinds::{
    canonical::{Answer, Change, RefreshRequest, RefreshStatus},
    refit::MachineUid,
};
use refit_runtime::{
    ObjectKey,
    client::{
        ClientStack, JsonPost, PINNED_DEADLINE, PinnedConnection, PinnedOpenError, PinnedPostError,
    },
    foreign::ForeignObject,
    port_forward::port_forward,
    tls::{Fingerprint, Pin},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use self::certificates::BegunAttempts;
pub(crate) use self::proxies::Proxies;
use crate::{api_error::cause, cluster_view::ClusterView, context::Context};

/// Port of the pod that forwards to k8sd.
const PROXY_PORT: u16 = 2380;
/// Port of k8sd, unless the machine's bootstrap config names another one.
const DEFAULT_PORT: i64 = 2380;
/// How long a call may take, from the handshake on.
const CALL_DEADLINE: Duration = PINNED_DEADLINE;
/// How long a call may take that only reads, with all that comes before it.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// Header with the token of the node.
const NODE_TOKEN: HeaderName = HeaderName::from_static("node-token");
/// Header with the token of the cluster.
const CLUSTER_TOKEN: HeaderName = HeaderName::from_static("capi-auth-token");
/// Key of the token of the cluster, in the Secret with the tokens.
const CLUSTER_TOKEN_KEY: &str = "value";
/// The status codes of a success, and of a token that k8sd does not accept.
const OK: u16 = 200;
const UNAUTHORIZED: u16 = 401;
/// The first status code of an error of the server itself.
const SERVER_ERROR: u16 = 500;
/// How long a token and a port are trusted before they are read again.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// What snapd answers while it works on a change of the snap.
const IN_PROGRESS: &str = "in progress";
/// How much is shown of an answer that makes no sense.
const EXCERPT_CHARACTERS: usize = 200;

/// What k8sd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum K8sdAnswer {
    /// It has accepted a refresh.
    Begun(Change),
    /// How far a change is.
    Status(RefreshStatus),
}

/// Why k8sd gave no usable answer, in words for a status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum K8sdError {
    /// Something that a call needs is missing.
    #[error("{0}")]
    NotSent(String),
    /// k8sd has refused the request.
    #[error("{0}")]
    Refused(String),
    /// The request was sent, and what became of it is not known.
    #[error("{0}")]
    Lost(String),
}

impl K8sdError {
    /// What became of the request.
    pub(crate) fn request(&self) -> K8sdRequest {
        match self {
            Self::NotSent(_) => K8sdRequest::NotSent,
            Self::Refused(_) => K8sdRequest::Refused,
            Self::Lost(_) => K8sdRequest::Unknown,
        }
    }
}

/// The Machine whose k8sd is called.
pub(crate) struct Target<'a> {
    /// The Machine.
    pub(crate) machine: &'a Machine,
    /// Its Node.
    pub(crate) node: &'a str,
    /// Its cluster.
    pub(crate) cluster: &'a ObjectKey,
    /// What is known of the cluster.
    pub(crate) view: &'a ClusterView,
}

impl Target<'_> {
    /// Whether a Node of its cluster is Ready.
    pub(crate) fn is_ready(&self, node: &str) -> bool {
        self.view.nodes.get(&ObjectKey::new("", node)).is_some_and(|node| node.view.ready)
    }
}

/// An endpoint of k8sd.
#[derive(Clone, Copy, Debug)]
struct Endpoint {
    path: &'static str,
    /// Whether a request changes the node.
    changes: bool,
    /// Whether k8sd may have done a part of the work when it reports an error of its own.
    in_parts: bool,
    token: Token,
}

impl Endpoint {
    /// One that only reads, with the token of the node.
    const fn read(path: &'static str) -> Self {
        Self { path, changes: false, in_parts: false, token: Token::Node }
    }
}

const REFRESH: Endpoint = Endpoint { changes: true, ..Endpoint::read("snap/refresh") };
const REFRESH_STATUS: Endpoint = Endpoint::read("snap/refresh-status");

/// The token that an endpoint expects.
#[derive(Clone, Copy, Debug)]
enum Token {
    Node,
    Cluster,
}

/// Calls k8sd on Nodes.
#[derive(Debug)]
pub(crate) struct K8sd {
    stack: ClientStack,
    known: Mutex<BTreeMap<MachineUid, Known>>,
    /// Attempts to have certificates issued.
    pub(crate) begun: BegunAttempts,
}

/// What was read about the k8sd of a Machine.
#[derive(Clone)]
struct Known {
    tokens: Tokens,
    port: i64,
    /// uid of its Node.
    node: String,
    /// The certificate that the Node showed first; `None` before the first call.
    pin: Option<Fingerprint>,
    read_at: Timestamp,
}

/// What the Secret with the tokens has.
#[derive(Clone)]
struct Tokens {
    node: Option<ByteString>,
    cluster: Option<ByteString>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Known {
    /// The header with a token, which Canonical's providers have made.
    fn header(
        &self,
        of: &Target<'_>,
        token: Token,
    ) -> Result<(HeaderName, HeaderValue), K8sdError> {
        let Tokens { node, cluster } = &self.tokens;
        let secret = tokens_name(of);
        let machine = of.machine.name_any();
        let (header, key, value, missing) = match token {
            Token::Node => (
                NODE_TOKEN,
                node_token_key(&machine),
                node,
                format!("node-token for machine {machine:?} not found"),
            ),
            Token::Cluster => (
                CLUSTER_TOKEN,
                CLUSTER_TOKEN_KEY.to_owned(),
                cluster,
                format!("token of cluster {} not found", of.cluster.name),
            ),
        };
        let missing = || not_sent(format!("{missing}: Secret {secret} has no key {key}"));
        let value = HeaderValue::from_bytes(&value.as_ref().ok_or_else(missing)?.0);
        let mut value = value.map_err(|_| {
            not_sent(format!("Secret {secret}: key {key} has characters that no header has"))
        })?;
        value.set_sensitive(true);
        Ok((header, value))
    }
}

impl K8sd {
    /// Calls that pass the rules of this stack.
    pub(crate) fn new(stack: ClientStack) -> Self {
        Self { stack, known: Mutex::default(), begun: BegunAttempts::default() }
    }

    /// Whether k8sd can be called: its pod and its token are there.
    pub(crate) async fn reach(&self, ctx: &Context, of: &Target<'_>) -> Result<(), K8sdError> {
        proxy_pod(of).await?;
        self.known(ctx, of, Token::Node).await?.header(of, Token::Node).map(drop)
    }

    /// Calls k8sd.
    pub(crate) async fn call(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        call: &K8sdCall,
    ) -> Result<K8sdAnswer, K8sdError> {
        match call {
            K8sdCall::Refresh(option) => {
                let body = RefreshRequest::from(option);
                self.post(ctx, of, REFRESH, &body).await.map(K8sdAnswer::Begun)
            }
            K8sdCall::Status { change_id } => {
                let body = Change { change_id: change_id.clone() };
                self.post(ctx, of, REFRESH_STATUS, &body).await.map(K8sdAnswer::Status)
            }
        }
    }

    async fn post<T: DeserializeOwned>(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        endpoint: Endpoint,
        body: &(impl Serialize + Sync),
    ) -> Result<T, K8sdError> {
        let exchange = Box::pin(self.exchange(ctx, of, endpoint, body));
        if endpoint.changes {
            return exchange.await;
        }
        tokio::time::timeout(READ_DEADLINE, exchange).await.unwrap_or_else(|_| {
            let seconds = READ_DEADLINE.as_secs();
            Err(K8sdError::Lost(format!(
                "k8sd on node {} did not answer within {seconds} s",
                of.node
            )))
        })
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        endpoint: Endpoint,
        body: &impl Serialize,
    ) -> Result<T, K8sdError> {
        let pod = proxy_pod(of).await?;
        let known = self.known(ctx, of, endpoint.token).await?;
        let post = JsonPost {
            path: format!("/1.0/{}", endpoint.path),
            headers: vec![known.header(of, endpoint.token)?],
            body: serde_json::to_vec(body).map_err(|error| not_sent(error.to_string()))?,
            changes: endpoint.changes,
        };
        let connection = self.connect(ctx, of, &pod, &known).await?;
        let answer = connection.post(post).await.map_err(|error| {
            let why = unreached(&error);
            match error {
                PinnedPostError::NotLeader(_) | PinnedPostError::Request { .. } => why,
                PinnedPostError::Transport { .. }
                | PinnedPostError::Timeout { .. }
                | PinnedPostError::TooLarge { .. } => K8sdError::Lost(why.to_string()),
            }
        })?;
        if answer.status == UNAUTHORIZED {
            // The token may have been replaced.
            self.forget(of);
        }
        let answered = answered(answer.status, &answer.body);
        if endpoint.in_parts && answer.status >= SERVER_ERROR {
            return answered.map_err(|error| K8sdError::Lost(error.to_string()));
        }
        answered
    }

    /// A connection to k8sd whose certificate is the one that the Node showed first.
    async fn connect(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        pod: &str,
        known: &Known,
    ) -> Result<PinnedConnection<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>, K8sdError>
    {
        let pin = known.pin.map_or(Pin::FirstUse, Pin::Known);
        let client = workload(ctx, of.cluster).await?;
        let stream = port_forward(&client, proxies::NAMESPACE, pod, PROXY_PORT).await;
        let stream = stream.map_err(|error| unreached(&error))?;
        let host = format!("{}:{}", of.node, known.port);
        let opened = PinnedConnection::open(&self.stack, stream, &host, pin, CALL_DEADLINE).await;
        let connection = opened.map_err(|error| match error {
            PinnedOpenError::Changed { changed, .. } => {
                self.forget(of);
                not_sent(format!(
                    "the certificate of k8sd on node {} has changed: {changed}. If that is expected, remove the key {} \
                     from the Secret {}",
                    of.node,
                    known.node,
                    pins::secret_name(&of.cluster.name)
                ))
            }
            error @ (PinnedOpenError::Handshake { .. }
            | PinnedOpenError::Timeout { .. }
            | PinnedOpenError::ServerName(_)
            | PinnedOpenError::Tls(_)) => unreached(&error),
        })?;
        if known.pin.is_none() {
            pins::keep(ctx, of.cluster, &known.node, connection.fingerprint()).await?;
            self.forget(of);
        }
        Ok(connection)
    }

    /// What a call needs to know of the Machine's k8sd.
    async fn known(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        token: Token,
    ) -> Result<Known, K8sdError> {
        let uid = MachineUid::of(&of.machine.metadata);
        let now = ctx.clock.now();
        let node = of.view.nodes.get(&ObjectKey::new("", of.node)).and_then(|node| node.uid());
        let node = node.ok_or_else(|| not_sent(format!("Node {} does not exist", of.node)))?;
        let is_current =
            |known: &Known| known.node == node && now.duration_since(known.read_at) < RECHECK;
        // A token that is missing may be there soon.
        let has_token = |known: &Known| match token {
            Token::Node => known.tokens.node.is_some(),
            Token::Cluster => known.tokens.cluster.is_some(),
        };
        let known = self.lock().get(&uid).cloned();
        if let Some(known) = known.filter(|known| is_current(known) && has_token(known)) {
            return Ok(known);
        }
        let known = Known {
            tokens: tokens(ctx, of).await?,
            port: port(ctx, of.machine).await?,
            pin: pins::read(ctx, of.cluster, &node).await?,
            node,
            read_at: now,
        };
        let mut all = self.lock();
        all.retain(|_, known| now.duration_since(known.read_at) < RECHECK);
        all.insert(uid, known.clone());
        drop(all);
        Ok(known)
    }

    /// Has the next call read everything again.
    fn forget(&self, of: &Target<'_>) {
        self.lock().remove(&MachineUid::of(&of.machine.metadata));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<MachineUid, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_sent(why: impl Into<String>) -> K8sdError {
    K8sdError::NotSent(why.into())
}

fn unreached(error: &impl std::error::Error) -> K8sdError {
    not_sent(format!("failed to reach k8sd through proxy client: {error}"))
}

/// What k8sd answers, or what it reports as wrong.
fn answered<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, K8sdError> {
    let answer: Result<Answer<T>, _> = serde_json::from_slice(body);
    let unreadable = |why: String| K8sdError::Lost(format!("failed to parse HTTP response: {why}"));
    if status != OK {
        let why = answer.as_ref().map_or_else(|_| excerpt(body), |answer| answer.error.clone());
        let text = format!("HTTP request failed with status code: {status} ({why})");
        // Only what k8sd itself answers is certain. A change that is in progress may be ours.
        let is_certain = answer.is_ok() && !why.contains(IN_PROGRESS);
        return Err(if is_certain { K8sdError::Refused(text) } else { K8sdError::Lost(text) });
    }
    let answer = answer.map_err(|error| unreadable(error.to_string()))?;
    if !answer.error.is_empty() {
        return Err(K8sdError::Refused(format!("k8sd request failed: {}", answer.error)));
    }
    answer.metadata.ok_or_else(|| unreadable("it has no metadata".to_owned()))
}

/// The beginning of a body that is not k8sd's.
fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(EXCERPT_CHARACTERS).collect()
}

/// The pod on the Machine's Node that forwards to k8sd.
async fn proxy_pod(of: &Target<'_>) -> Result<String, K8sdError> {
    if !of.view.proxies.are_listed().await {
        return Err(not_sent("the pods that forward to k8sd are not listed yet"));
    }
    let missing = || not_sent(format!("missing k8sd proxy pod for node {}", of.node));
    of.view.proxies.on_node(of.node).ok_or_else(missing)
}

/// Name of the Secret with the tokens of a cluster and its nodes.
fn tokens_name(of: &Target<'_>) -> String {
    format!("{}-token", of.cluster.name)
}

fn node_token_key(machine: &str) -> String {
    format!("node-token-{machine}")
}

/// The tokens of the node and of the cluster.
async fn tokens(ctx: &Context, of: &Target<'_>) -> Result<Tokens, K8sdError> {
    let name = tokens_name(of);
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &of.cluster.namespace);
    let unread =
        |error: kube::Error| not_sent(format!("Secret {name} cannot be read: {}", cause(&error)));
    let secret = secrets.get(&name).await.map_err(unread)?;
    let mut data = secret.data.unwrap_or_default();
    let node = data.remove(&node_token_key(&of.machine.name_any()));
    Ok(Tokens { node, cluster: data.remove(CLUSTER_TOKEN_KEY) })
}

/// The port of k8sd in the Machine's bootstrap config.
async fn port(ctx: &Context, machine: &Machine) -> Result<i64, K8sdError> {
    let config = bootstrap_config(ctx, machine).await?;
    let port = config.pointer("/spec/controlPlane/microclusterPort").and_then(Value::as_i64);
    Ok(port.unwrap_or(DEFAULT_PORT))
}

/// The Machine's bootstrap config; `Null` if it has none.
async fn bootstrap_config(ctx: &Context, machine: &Machine) -> Result<Value, K8sdError> {
    let Some(config) = &machine.spec.bootstrap.config_ref else {
        return Ok(Value::Null);
    };
    let object = ForeignObject {
        group: config.api_group.clone(),
        version: None,
        kind: config.kind.clone(),
        namespace: machine.namespace().unwrap_or_default(),
        name: config.name.clone(),
    };
    ctx.foreign.read(&ctx.client, &object).await.map_err(|error| {
        let what = format!("{} {}", object.kind, object.name);
        not_sent(format!("{what} cannot be read: {}", cause(&error)))
    })
}

async fn workload(ctx: &Context, cluster: &ObjectKey) -> Result<Client, K8sdError> {
    let client = ctx.workloads.client(&cluster.namespace, &cluster.name).await;
    client.map_err(|error| not_sent(error.to_string()))
}
