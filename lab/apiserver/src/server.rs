//! The server as a tower service: a request passes faults, then the verb under the lock, and yields
//! a response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::DuplexStream;

use crate::answer::{refusal, respond};
use crate::auth::{self, Access, Authentication};
use crate::error::ApiError;
use crate::faults::{FaultAction, FaultState, Faults, RequestInfo, refused};
use crate::path::{Head, Query, Route, Target, route, verb};
use crate::portforward::{Handshake, PodIdentity, PortHandler};
use crate::protobuf::PROTOBUF;
use crate::requests::{RequestObserver, Requests};
use crate::resources::Resource;
use crate::snapshot::StoreSnapshot;
use crate::store::{Observer, Store, Webhook, key_of, range};
use crate::verbs::{Call, Reply, dispatch};
use crate::write::{WriteOptions, to_bytes};

/// An error of any kind, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// The server's clock.
pub type ClockFn = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The configuration of a server.
#[derive(Clone)]
pub struct Options {
    /// The clock.
    pub clock: ClockFn,
    /// Seed of uids and generated names.
    pub seed: u64,
    /// Number of writes that the history keeps.
    pub ring: usize,
    /// The version that `/version` returns.
    pub git_version: String,
    /// Maximum size of a request body.
    pub body_limit_bytes: usize,
    /// Namespaces that exist from the start.
    pub namespaces: Vec<String>,
    /// Whether callers must authenticate and RBAC is enforced.
    pub authentication: Authentication,
    /// Stands in for the mutating webhooks of custom kinds.
    pub webhook: Option<Webhook>,
}

impl Options {
    /// The default configuration with this clock.
    pub fn new(clock: ClockFn) -> Self {
        Self {
            clock,
            seed: 1,
            ring: 10_000,
            git_version: "v1.35.0".to_owned(),
            body_limit_bytes: 3 * 1024 * 1024,
            namespaces: ["default", "kube-node-lease", "kube-public", "kube-system"]
                .map(str::to_owned)
                .to_vec(),
            authentication: Authentication::Open,
            webhook: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("seed", &self.seed)
            .field("ring", &self.ring)
            .field("git_version", &self.git_version)
            .finish_non_exhaustive()
    }
}

/// State shared by all handles, requests and watches of one server.
pub(crate) struct Shared {
    store: Mutex<Store>,
    faults: Mutex<FaultState>,
    access: Access,
    documents: crate::openapi::Cache,
    requests: Requests,
    ports: RwLock<Option<PortHandler>>,
    clock: ClockFn,
    body_limit_bytes: usize,
}

impl Shared {
    /// Locks the store. A panic in an observer does not stop the server.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, FaultState> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) fn watch_epoch(&self) -> u64 {
        self.faults().epoch()
    }

    pub(crate) fn is_down(&self, user_agent: &str) -> bool {
        self.faults().is_down(user_agent)
    }

    /// Opens a stream to a port of a pod; `None` if nothing listens there.
    pub(crate) fn open_port(&self, pod: &PodIdentity, port: u16) -> Option<DuplexStream> {
        let handler = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        handler.as_ref()?(pod, port)
    }

    /// Checks permissions beyond a request's verb.
    fn permit(&self, call: &Call) -> Result<(), ApiError> {
        let request = (call.verb, &call.target);
        if call.handshake.is_some() {
            return auth::before_upgrade(&self.access, &self.store, &call.identity, &call.target);
        }
        let body = (call.head.content_type.as_str(), &call.body);
        auth::before_write(&self.access, &self.store, &call.identity, request, body)
    }

    /// Handles an access review; `None` for any other request.
    pub(crate) fn review(&self, call: &Call) -> Option<Result<Value, ApiError>> {
        let request = (call.verb, &call.target);
        let (access, store) = (&self.access, &self.store);
        auth::serve_review(access, store, self.now(), &call.identity, request, &call.body)
    }

    /// Performs the follow-up of a write in other control plane components.
    pub(crate) fn written(&self, store: &mut Store, target: &Target) {
        auth::after_write(&self.access, store, target);
    }

    /// How long a lagging cache holds back this client's watch.
    pub(crate) fn watch_lag(
        &self,
        user_agent: &str,
        resource: &str,
        now: Timestamp,
    ) -> Option<Duration> {
        let until = self.faults().stale(user_agent, resource, now)?.until;
        let wait = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        // tokio's clock has millisecond precision: waiting longer is fine, waiting shorter would
        // spin.
        Some(wait + Duration::from_millis(1))
    }

    pub(crate) fn stale_revision(
        &self,
        user_agent: &str,
        resource: &str,
        now: Timestamp,
    ) -> Option<u64> {
        self.faults().stale(user_agent, resource, now).map(|view| view.revision)
    }
}

/// An in-process Kubernetes API server. Clones are handles to the same server.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiServer(revision {})", self.revision())
    }
}

impl ApiServer {
    /// A new server with its initial namespaces.
    pub fn new(options: Options) -> Self {
        let now = (options.clock)();
        let mut store = Store::new(options.seed, options.ring, now, options.git_version.clone());
        let resource = store.registry.stored(crate::gc::NAMESPACES).cloned();
        let resource = resource.expect("namespaces are built in");
        "refit-apiserver".clone_into(&mut store.actor);
        let write =
            WriteOptions { manager: "kube-apiserver".to_owned(), ..WriteOptions::default() };
        for name in &options.namespaces {
            let body = json!({"metadata": {"name": name}});
            if let Err(error) = store.create(&resource, "", body, &write) {
                tracing::warn!(%name, %error, "initial namespace rejected");
            }
        }
        Self::with_store(store, options)
    }

    /// A server that continues from a snapshot. Seed and version come from the snapshot; clock,
    /// ring and limits from the options; faults and observers start empty.
    pub fn restore(snapshot: StoreSnapshot, options: Options) -> Self {
        let store = Store::from_snapshot(snapshot, options.ring, (options.clock)());
        Self::with_store(store, options)
    }

    fn with_store(mut store: Store, options: Options) -> Self {
        "refit-apiserver".clone_into(&mut store.actor);
        store.webhook = options.webhook;
        let access = Access::new(options.authentication, &mut store);
        Self {
            shared: Arc::new(Shared {
                access,
                store: Mutex::new(store),
                faults: Mutex::default(),
                documents: crate::openapi::Cache::default(),
                requests: Requests::default(),
                ports: RwLock::default(),
                clock: options.clock,
                body_limit_bytes: options.body_limit_bytes,
            }),
        }
    }

    /// Takes a snapshot of the whole store.
    pub fn snapshot(&self) -> StoreSnapshot {
        self.shared.lock().snapshot()
    }

    /// Registers an observer of every committed write. It runs under the lock and must not call the
    /// server.
    pub fn observe(&self, observer: Observer) {
        self.shared.lock().observe(observer);
    }

    /// Registers an observer of every write request, also of those that change nothing or are rejected.
    pub fn observe_requests(&self, observer: RequestObserver) {
        self.shared.requests.observe(observer);
    }

    /// Serves the ports of all pods: `pods/portforward` opens its streams with this handler, instead
    /// of an earlier one. Without a handler, every connection is refused.
    ///
    /// A port-forward needs a client over HTTP/1.1 whose server allows upgrades. It ends like a watch when
    /// the API goes down, and when the pod is deleted.
    pub fn serve_ports(&self, handler: PortHandler) {
        *self.shared.ports.write().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    /// The faults of this server.
    pub fn faults(&self) -> Faults<'_> {
        Faults(&self.shared)
    }

    /// The store's revision, which is the resourceVersion of the last write.
    pub fn revision(&self) -> u64 {
        self.shared.lock().revision
    }

    /// Sets the version that `/version` returns.
    pub fn set_git_version(&self, version: &str) {
        version.clone_into(&mut self.shared.lock().git_version);
    }

    /// One stored object, bypassing HTTP and faults.
    pub fn get_value(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        let id = crate::resources::resource_id(group, plural);
        let entry = self.shared.lock().get(&id, &key_of(namespace, name))?;
        Some(entry.value())
    }

    /// The stored objects of a resource by namespace and name, bypassing HTTP and faults.
    pub fn list_values(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
        let id = crate::resources::resource_id(group, plural);
        let table = self.shared.lock().table(&id).cloned().unwrap_or_default();
        range(&table, namespace).map(|(_, entry)| entry.value()).collect()
    }

    /// Every object, by resource, namespace and name.
    pub fn dump(&self) -> Vec<(Arc<Resource>, Value)> {
        let (registry, tables) = {
            let store = self.shared.lock();
            (store.registry.clone(), store.tables.clone())
        };
        let mut all = Vec::new();
        for (id, table) in &tables {
            if let Some(resource) = registry.stored(id) {
                all.extend(table.values().map(|entry| (resource.clone(), entry.value())));
            }
        }
        all
    }

    /// Total bytes of all stored objects, without their index.
    pub fn stored_bytes(&self) -> usize {
        let tables = self.shared.lock().tables.clone();
        tables.values().flat_map(|table| table.values()).map(|entry| entry.bytes.len()).sum()
    }
}

impl<B> tower::Service<Request<B>> for ApiServer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(serve(self.shared.clone(), request))
    }
}

async fn serve<B>(
    shared: Arc<Shared>,
    request: Request<B>,
) -> Result<Response<AnswerBody>, io::Error>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let head = Head::read(&parts);
    let handshake = Handshake::read(&parts);
    let path = route(parts.uri.path());
    let query = match Query::parse(parts.uri.query().unwrap_or_default()) {
        Ok(query) => query,
        Err(error) => return Ok(refusal(&error)),
    };
    let (target, verb) = match &path {
        Route::Resource(target) => {
            (target.clone(), verb(&parts.method, target, query.flag("watch")).unwrap_or(""))
        }
        _ => (Target::default(), "get"),
    };
    let verdict = shared.faults().judge(&RequestInfo {
        verb,
        resource: &target.resource(),
        subresource: &target.subresource,
        namespace: target.namespace.as_deref().unwrap_or_default(),
        name: target.name.as_deref().unwrap_or_default(),
        user_agent: &head.user_agent,
    });
    if !verdict.delay.is_zero() {
        tokio::time::sleep(verdict.delay).await;
    }
    match verdict.action {
        Some(FaultAction::Refuse) => return Err(refused()),
        Some(FaultAction::Status(code)) => return Ok(refusal(&ApiError::of_code(code))),
        _ => {}
    }
    let field_selector = query.get("fieldSelector");
    let request = (&path, &target, verb, field_selector);
    let now = shared.now();
    let identity = match auth::admit(&shared.access, &shared.store, now, &parts, request) {
        Ok(identity) => identity,
        Err(error) => return Ok(refusal(&error)),
    };
    let body = match Limited::new(body, shared.body_limit_bytes).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Ok(refusal(&ApiError::too_large(shared.body_limit_bytes)));
        }
        Err(error) => {
            let why = format!("the request body ended early: {error}");
            return Ok(refusal(&ApiError::bad_request(why)));
        }
    };
    if shared.is_down(&head.user_agent) {
        // The API went down while this request waited: a dead client's request has no effect.
        return Err(refused());
    }
    let (head, body) = match as_json(head, body) {
        Ok(read) => read,
        Err(error) => return Ok(refusal(&error)),
    };
    let answer = match path {
        Route::Resource(target) => {
            let handshake = handshake.filter(|_| target.subresource == "portforward");
            let call = Call { verb, target, query, head, body, identity, handshake };
            let outcome = shared.permit(&call).and_then(|()| dispatch(&shared, &call));
            shared.requests.show(&shared.store, &call, outcome.as_ref().err());
            outcome.unwrap_or_else(|error| Reply::from_error(&error))
        }
        Route::Unknown => Reply::Text(404, "404 page not found\n"),
        Route::Health => Reply::Text(200, "ok"),
        Route::Version => {
            Reply::Json(200, to_bytes(&crate::discovery::version(&shared.lock().git_version)))
        }
        Route::OpenApiV2 => {
            let version = shared.lock().git_version.clone();
            let (kind, document) = crate::openapi::document_v2(&version, head.protobuf);
            Reply::Typed(kind, document)
        }
        Route::OpenApi(path) => {
            match crate::openapi::document(&shared.store, &shared.documents, &path) {
                Some(document) => Reply::Json(200, document),
                None => Reply::Text(404, "404 page not found\n"),
            }
        }
        Route::Discovery(segments) => {
            let registry = shared.lock().registry.clone();
            let aggregated = head
                .aggregated
                .then(|| crate::discovery::aggregated(&registry, &segments))
                .flatten();
            match aggregated {
                Some(document) => Reply::Typed(crate::discovery::AGGREGATED, to_bytes(&document)),
                None => match crate::discovery::document(&registry, &segments) {
                    Some(document) => Reply::Json(200, to_bytes(&document)),
                    None => Reply::Text(404, "404 page not found\n"),
                },
            }
        }
    };
    match verdict.action {
        Some(FaultAction::RefuseAfterCommit) => Err(refused()),
        Some(FaultAction::StatusAfterCommit(code)) => Ok(refusal(&ApiError::of_code(code))),
        _ => Ok(respond(answer)),
    }
}

/// Decodes a body in protocol buffers to JSON; any other body is returned unchanged.
fn as_json(mut head: Head, body: Bytes) -> Result<(Head, Bytes), ApiError> {
    if head.content_type != PROTOBUF || body.is_empty() {
        return Ok((head, body));
    }
    let object = crate::protobuf::decode(&body)
        .map_err(|why| ApiError::bad_request(format!("cannot decode the request body: {why}")))?;
    "application/json".clone_into(&mut head.content_type);
    Ok((head, to_bytes(&object)))
}
