//! HTTP of the hook server: paths, limits, deadlines and the probes.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use ::http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use refit_core::change::{NotReady, Verdict, update_machine::Answer};
use refit_kinds::{
    external_upgrade,
    hooks::{CLIENT_FLAGS, GROUP, MAX_BODY_BYTES, VERSION},
    keys,
};
use serde::Serialize;
use tower::{BoxError, Service};

use super::{
    body::{Bodies, BodyError},
    can_update,
    update_machine::{Served, update_machine},
    wire::{self, Hook},
};
use crate::{
    client_trust::{ClientRefusal, ClientTrust},
    context::Context,
    upgrade_task::external::{self, NotJudged},
};

/// Cluster API's timeout if a request has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest timeout that Cluster API allows for a handler (`docs/facts/hooks.md#discovery`).
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay until the next UpdateMachine call after a missed deadline, in seconds.
const LATE_RETRY_SECONDS: i32 = 5;
/// When a client repeats a request that could not be judged.
const RETRY_AFTER_SECONDS: u16 = 5;

/// Serves hooks and probes, or probes and metrics.
#[derive(Clone)]
pub(crate) struct HookService {
    shared: Arc<Shared>,
    hooks: bool,
}

struct Shared {
    ctx: Arc<Context>,
    synced_once: AtomicBool,
    bodies: Bodies,
    clients: Option<Arc<ClientTrust>>,
}

/// The service of one process, for these clients.
pub(crate) fn service(ctx: Arc<Context>, clients: Option<Arc<ClientTrust>>) -> HookService {
    let bodies = Bodies::new(ctx.metrics.hook_body_bytes.clone());
    let shared = Shared { ctx, synced_once: AtomicBool::new(false), bodies, clients };
    HookService { shared: Arc::new(shared), hooks: true }
}

impl Service<Request<Incoming>> for HookService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

/// The endpoint of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Hook(Hook),
    ExternalUpgrade,
    ExternalUpgradeDescription,
    Healthz,
    Readyz,
    Metrics,
    Unknown,
}

/// Parses a path. Hook and handler are case-insensitive, and a trailing slash is allowed: a
/// redirect would be an error for Cluster API (`docs/facts/hooks.md#paths-and-http`).
fn route(path: &str) -> Route {
    let path = path.to_lowercase();
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    match segments.as_slice() {
        ["healthz" | "livez"] => Route::Healthz,
        ["readyz"] => Route::Readyz,
        ["metrics"] => Route::Metrics,
        [group, version, hook, handler @ ..] if *group == GROUP && *version == VERSION => Hook::ALL
            .into_iter()
            .find(|known| {
                known.name().to_lowercase() == *hook && known.handler().as_slice() == handler
            })
            .map_or(Route::Unknown, Route::Hook),
        [external_upgrade::GROUP, external_upgrade::VERSION, external_upgrade::REQUEST] => {
            Route::ExternalUpgrade
        }
        [external_upgrade::GROUP, external_upgrade::VERSION, external_upgrade::DESCRIPTION] => {
            Route::ExternalUpgradeDescription
        }
        _ => Route::Unknown,
    }
}

impl HookService {
    /// The service with metrics and without hooks, for plain HTTP without client certificates.
    pub(crate) fn probes(&self) -> Self {
        Self { shared: self.shared.clone(), hooks: false }
    }

    /// Serves one request with any type of body.
    async fn answer<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let mut route = route(request.uri().path());
        // Metrics name machines and clusters: network policies admit other clients to them than to hooks.
        let served = match route {
            Route::Hook(_) | Route::ExternalUpgrade | Route::ExternalUpgradeDescription => {
                self.hooks
            }
            Route::Metrics => !self.hooks,
            Route::Healthz | Route::Readyz | Route::Unknown => true,
        };
        if !served {
            route = Route::Unknown;
        }
        let method = request.method().clone();
        let wanted = match route {
            Route::Hook(_) | Route::ExternalUpgrade => Method::POST,
            Route::Healthz
            | Route::Readyz
            | Route::Metrics
            | Route::ExternalUpgradeDescription
            | Route::Unknown => Method::GET,
        };
        match route {
            Route::Unknown => refuse(
                StatusCode::NOT_FOUND,
                "NotFound",
                &format!("unknown path; hooks are at /{GROUP}/{VERSION}/<hook>[/<handler>]"),
            ),
            _ if method != wanted => refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                &format!("want {wanted}"),
            ),
            Route::Healthz => text(StatusCode::OK, "ok"),
            Route::Readyz => self.ready(),
            Route::Metrics => metrics(&self.shared.ctx),
            Route::Hook(hook) => self.hook(hook, request).await,
            Route::ExternalUpgrade => self.external_upgrade(request).await,
            Route::ExternalUpgradeDescription => json(&external_upgrade::openapi()),
        }
    }

    /// Ready once the caches have been complete. A watch that breaks later does not make the
    /// process unready: it can still serve Discovery and respond with a Failure
    /// (`docs/facts/hooks.md#manager-startup`).
    fn ready(&self) -> Response<Full<Bytes>> {
        let Shared { ctx, synced_once, .. } = self.shared.as_ref();
        if ctx.is_ending() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the process is shutting down");
        }
        if ctx.stores.synced() {
            synced_once.store(true, Ordering::Relaxed);
        }
        if synced_once.load(Ordering::Relaxed) {
            text(StatusCode::OK, "ok")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "the caches are not synced yet")
        }
    }

    /// Serves a request of another client than Cluster API, which is never in Discovery: Cluster API refuses an
    /// extension with a hook that it does not know.
    async fn external_upgrade<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let Shared { ctx, bodies, clients, .. } = self.shared.as_ref();
        let deadline = deadline(request.uri(), ctx.settings.hook_margin);
        let served = async {
            let refusal = external_client(ctx, clients.as_deref(), &request).err();
            let body = request.into_body();
            let read = match refusal {
                Some(_) => bodies.discard(body).await,
                None => bodies.read(body).await,
            };
            match (read, refusal) {
                (Err(error), _) => refuse_body(&error),
                (Ok(_), Some(why)) => refuse(StatusCode::FORBIDDEN, "Forbidden", &why),
                (Ok(_), None) if !ctx.stores.synced() => {
                    unavailable("the caches are not synced yet")
                }
                (Ok(held), None) => {
                    let answer = external::serve(ctx, held.content.as_ref()).await;
                    answer.map_or_else(|why| not_judged(&why), |answer| json(&answer))
                }
            }
        };
        let served = tokio::time::timeout(deadline, served).await;
        served.unwrap_or_else(|_| unavailable("the request took too long"))
    }

    async fn hook<B>(&self, hook: Hook, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let ctx = &self.shared.ctx;
        let started = ctx.clock.now();
        let deadline = deadline(request.uri(), ctx.settings.hook_margin);
        let (response, verdict) =
            match tokio::time::timeout(deadline, self.serve(hook, request)).await {
                Ok(outcome) => outcome,
                Err(_) => late(hook),
            };
        let took = Duration::try_from(ctx.clock.now().duration_since(started)).unwrap_or_default();
        ctx.metrics.hook(hook.name(), verdict, took);
        tracing::debug!(hook = hook.name(), verdict, millis = took.as_millis(), "hook answered");
        response
    }

    /// Reads the body and serves the hook; returns the response and its metric label.
    async fn serve<B>(
        &self,
        hook: Hook,
        request: Request<B>,
    ) -> (Response<Full<Bytes>>, &'static str)
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let Shared { ctx, bodies, .. } = self.shared.as_ref();
        let refusal = self.client_refusal(hook, &request);
        let body = request.into_body();
        // A response that does not depend on the body waits for no budget.
        let read = if hook == Hook::Discovery || refusal.is_some() {
            bodies.discard(body).await
        } else {
            bodies.read(body).await
        };
        // A body holds its share of the budget until its response.
        let held = match read {
            Ok(held) => held,
            Err(error) => return (refuse_body(&error), "Refused"),
        };
        let body = held.content.as_ref();
        if let Some(why) = refusal {
            return (json(&wire::failure(hook, &client_failure(&why))), why.reason());
        }
        match hook {
            Hook::Discovery => (json(&wire::discovery()), "Success"),
            Hook::CanUpdateMachine => {
                let verdict = can_update::machine(ctx, body).await;
                (json(&wire::can_update_machine(&verdict)), verdict.reason())
            }
            Hook::CanUpdateMachineSet => {
                let verdict = can_update::machine_set(ctx, body).await;
                (json(&wire::can_update_machine_set(&verdict)), verdict.reason())
            }
            Hook::UpdateMachine => match update_machine(ctx, body).await {
                Ok(Served { answer, verdict }) => (json(&wire::update_machine(&answer)), verdict),
                Err(why) => (json(&wire::failure(hook, &why.to_string())), why.reason()),
            },
        }
    }

    /// Why the caller may not call the hook. Discovery answers every caller: Cluster API does not
    /// start without it (`docs/facts/hooks.md#manager-startup`).
    fn client_refusal<B>(&self, hook: Hook, request: &Request<B>) -> Option<ClientRefusal> {
        let Shared { ctx, clients, .. } = self.shared.as_ref();
        let clients = clients.as_ref().filter(|_| hook != Hook::Discovery)?;
        clients.check(request.extensions().get(), ctx.clock.now()).err()
    }
}

/// Whether the client may request upgrades.
fn external_client<B>(
    ctx: &Context,
    clients: Option<&ClientTrust>,
    request: &Request<B>,
) -> Result<(), String> {
    let names = &ctx.settings.external_upgrade_clients;
    let clients = clients.filter(|_| !names.is_empty()).ok_or_else(|| {
        "no client may request external upgrades: set --client-ca and --external-upgrade-clients \
         on the controller"
            .to_owned()
    })?;
    let checked = clients.check_name(request.extensions().get(), names, ctx.clock.now());
    checked.map_err(|why| format!("{why}; --external-upgrade-clients names the clients"))
}

/// The answer to a request that could not be judged.
fn not_judged(why: &NotJudged) -> Response<Full<Bytes>> {
    let message = why.to_string();
    match why {
        NotJudged::Malformed(_) => refuse(StatusCode::BAD_REQUEST, "BadRequest", &message),
        NotJudged::NotOptedIn(_) => refuse(StatusCode::FORBIDDEN, "Forbidden", &message),
        NotJudged::NotFound(..) => refuse(StatusCode::NOT_FOUND, "NotFound", &message),
        NotJudged::NotReady(_) => unavailable(&message),
        NotJudged::Failed(error) => {
            tracing::warn!(error = format!("{error:#}"), "an external upgrade was not judged");
            unavailable(&message)
        }
    }
}

/// The answer that asks the client to come again.
fn unavailable(why: &str) -> Response<Full<Bytes>> {
    let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
    response
}

/// The message for a refused client: Cluster API writes it to its log.
fn client_failure(why: &ClientRefusal) -> String {
    format!(
        "{why}. Refit serves only Cluster API's managers: give the core and the kubeadm control \
         plane manager the flags {} and the certificate of Secret {} (refit install --for managers \
         prints how)",
        CLIENT_FLAGS.join(", "),
        keys::HOOK_CLIENT
    )
}

/// The response of a hook that ran out of time. UpdateMachine requests a retry instead of an error,
/// because an error's backoff grows to a quarter of an hour.
fn late(hook: Hook) -> (Response<Full<Bytes>>, &'static str) {
    let verdict = Verdict::NotReady(NotReady::Deadline);
    let response = match hook {
        Hook::Discovery => json(&wire::discovery()),
        Hook::CanUpdateMachine => json(&wire::can_update_machine(&verdict)),
        Hook::CanUpdateMachineSet => json(&wire::can_update_machine_set(&verdict)),
        Hook::UpdateMachine => {
            let answer = Answer::retry(NotReady::Deadline.to_string(), LATE_RETRY_SECONDS);
            json(&wire::update_machine(&answer))
        }
    };
    (response, verdict.reason())
}

/// How long a response may take: the caller's timeout, at most Cluster API's maximum, less a margin
/// for sending the response.
fn deadline(uri: &Uri, margin: Duration) -> Duration {
    let timeout = wire::timeout_of(uri.query()).unwrap_or(DEFAULT_TIMEOUT);
    let timeout = timeout.min(MAX_TIMEOUT);
    timeout.saturating_sub(margin).max(timeout / 2)
}

fn refuse_body(error: &BodyError) -> Response<Full<Bytes>> {
    match error {
        BodyError::Ended => refuse(StatusCode::BAD_REQUEST, "BadRequest", "the body ended early"),
        BodyError::Stalled => {
            refuse(StatusCode::REQUEST_TIMEOUT, "Timeout", "no byte of the body came for 5 s")
        }
        BodyError::TooLarge => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            &format!("the body exceeds the limit of {MAX_BODY_BYTES} bytes"),
        ),
    }
}

fn metrics(ctx: &Context) -> Response<Full<Bytes>> {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    with_type(StatusCode::OK, OPEN_METRICS, ctx.metrics.render(ctx).into())
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(value).expect("responses are plain structs");
    with_type(StatusCode::OK, "application/json", body.into())
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn refuse(code: StatusCode, reason: &str, message: &str) -> Response<Full<Bytes>> {
    let body = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code.as_u16(),
    });
    with_type(code, "application/json", body.to_string().into())
}

fn with_type(status: StatusCode, type_: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(type_));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_in_any_case() {
        let base = "/Hooks.Runtime.Cluster.X-K8s.IO/V1Alpha1";
        let table = [
            (format!("{base}/discovery"), Route::Hook(Hook::Discovery)),
            (format!("{base}/Discovery/"), Route::Hook(Hook::Discovery)),
            (
                format!("{base}/CanUpdateMachine/Can-Update-Machine"),
                Route::Hook(Hook::CanUpdateMachine),
            ),
            (
                format!("{base}/canupdatemachineset/can-update-machineset"),
                Route::Hook(Hook::CanUpdateMachineSet),
            ),
            (format!("{base}/updatemachine/UPDATE-MACHINE"), Route::Hook(Hook::UpdateMachine)),
            (external_upgrade::path("ExternalUpgrade/"), Route::ExternalUpgrade),
            (external_upgrade::path("openapi.json"), Route::ExternalUpgradeDescription),
            ("/healthz".into(), Route::Healthz),
            ("/readyz".into(), Route::Readyz),
            ("/metrics".into(), Route::Metrics),
        ];
        for (path, wanted) in table {
            assert_eq!(route(&path), wanted, "{path}");
        }
    }

    #[test]
    fn paths_of_other_versions_hooks_and_handlers_are_unknown() {
        let unknown = [
            "/",
            "/hooks.runtime.cluster.x-k8s.io/v1beta1/discovery",
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery/x",
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine",
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/can-update-machine",
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/beforeclusterupgrade/x",
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1",
            "/other/v1alpha1/discovery",
        ];
        for path in unknown {
            assert_eq!(route(path), Route::Unknown, "{path}");
        }
    }

    #[test]
    fn a_deadline_leaves_time_for_the_response() {
        let margin = Duration::from_secs(1);
        let deadline_of = |uri: &'static str| deadline(&Uri::from_static(uri), margin);
        assert_eq!(deadline_of("/x?timeout=10s"), Duration::from_secs(9));
        assert_eq!(deadline_of("/x"), Duration::from_secs(9));
        assert_eq!(deadline_of("/x?timeout=1s"), Duration::from_millis(500));
        assert_eq!(deadline_of("/x?timeout=soon"), Duration::from_secs(9));
        assert_eq!(deadline_of("/x?timeout=9999h"), Duration::from_secs(29));
    }
}
