//! Kinds that an older API server serves in an older version only. They are read and written as the newer version.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tower::{BoxError, Layer, Service, ServiceExt as _};

use super::{converted::Converted, discipline::is_watch};

/// How often the API server is asked which versions it serves: Cluster API is upgraded meanwhile.
const EVERY: Duration = Duration::from_mins(5);
/// The same while it does not serve a kind, or has not answered.
const WHILE_MISSING: Duration = Duration::from_secs(30);
/// Delay after a failed request.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// How soon a 404 may have it asked again.
const AFTER_DOUBT: Duration = Duration::from_secs(1);

/// A kind, and the older version that is as good as the newer one.
#[derive(Debug)]
pub struct VersionedKind {
    /// API group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
    /// The version that this process reads and writes.
    pub newer: &'static str,
    /// The version that takes its place where the API server does not serve the newer one.
    pub older: &'static str,
    /// Whether the process can do nothing without this kind.
    pub required: bool,
    /// Gives an object of the older version the form of the newer one.
    pub read: fn(&mut Value),
}

impl VersionedKind {
    fn newer_version(&self) -> String {
        format!("{}/{}", self.group, self.newer)
    }

    fn older_version(&self) -> String {
        format!("{}/{}", self.group, self.older)
    }
}

/// How an API server serves a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// In the newer version.
    Newer,
    /// In the older version only.
    Older,
    /// In neither.
    Missing,
}

/// How an API server serves some kinds, as far as it is known. All clones share what they know.
#[derive(Clone, Debug)]
pub struct ServedVersions {
    kinds: &'static [VersionedKind],
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// In the order of the kinds; empty until the API server has answered.
    known: watch::Sender<Vec<Served>>,
    /// A kind was not found where it is thought to be served.
    doubt: Notify,
}

impl ServedVersions {
    /// Nothing is known yet of these kinds.
    pub fn new(kinds: &'static [VersionedKind]) -> Self {
        let shared = Shared { known: watch::Sender::default(), doubt: Notify::new() };
        Self { kinds, shared: Arc::new(shared) }
    }

    /// How a kind is served; in the newer version if it is not known.
    pub fn of(&self, kind: &str) -> Served {
        let at = self.kinds.iter().position(|known| known.kind == kind);
        at.and_then(|at| self.shared.known.borrow().get(at).copied()).unwrap_or(Served::Newer)
    }

    /// Waits until it is known how each kind is served.
    pub async fn known(&self) {
        // This owns the sender, so the channel stays open.
        let _ = self.shared.known.subscribe().wait_for(|known| !known.is_empty()).await;
    }

    /// Waits until a kind is served in another way than this.
    pub async fn changed(&self, kind: &str, from: Served) {
        let mut known = self.shared.known.subscribe();
        while self.of(kind) == from && known.changed().await.is_ok() {}
    }

    /// The version of the API that names objects of this kind, for a newer one.
    pub fn api_version(&self, api_version: &str, kind: &str) -> String {
        self.older_version(api_version, kind).unwrap_or_else(|| api_version.to_owned())
    }

    /// Asks the API server from time to time, and after a 404, until the future is dropped.
    pub async fn keep(&self, client: &Client) -> Infallible {
        loop {
            let again = match self.ask(client).await {
                Ok(()) if self.shared.known.borrow().contains(&Served::Missing) => WHILE_MISSING,
                Ok(()) => EVERY,
                Err(error) => {
                    tracing::warn!(%error, "cannot ask the API server which versions it serves");
                    AFTER_FAILURE
                }
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(again) => {}
                () = async {
                    tokio::time::sleep(AFTER_DOUBT).await;
                    self.shared.doubt.notified().await;
                } => {}
            }
        }
    }

    async fn ask(&self, client: &Client) -> kube::Result<()> {
        let mut served: BTreeSet<(String, &'static str)> = BTreeSet::new();
        let versions = |version: fn(&VersionedKind) -> String| {
            self.kinds.iter().map(version).collect::<BTreeSet<_>>()
        };
        for version in versions(VersionedKind::newer_version) {
            self.ask_version(client, version, &mut served).await?;
        }
        let is_newer = |kind: &VersionedKind| served.contains(&(kind.newer_version(), kind.plural));
        if !self.kinds.iter().all(is_newer) {
            for version in versions(VersionedKind::older_version) {
                self.ask_version(client, version, &mut served).await?;
            }
        }
        let found = self.kinds.iter().map(|kind| {
            if served.contains(&(kind.newer_version(), kind.plural)) {
                Served::Newer
            } else if served.contains(&(kind.older_version(), kind.plural)) {
                Served::Older
            } else {
                Served::Missing
            }
        });
        self.learn(found.collect());
        Ok(())
    }

    /// Adds what the API server serves of our kinds in one version of a group.
    async fn ask_version(
        &self,
        client: &Client,
        version: String,
        served: &mut BTreeSet<(String, &'static str)>,
    ) -> kube::Result<()> {
        let list = match client.list_api_group_resources(&version).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            list => list?,
        };
        let is_of =
            |kind: &&VersionedKind| [kind.newer_version(), kind.older_version()].contains(&version);
        for kind in self.kinds.iter().filter(is_of) {
            if list.resources.iter().any(|resource| resource.name == kind.plural) {
                served.insert((version.clone(), kind.plural));
            }
        }
        Ok(())
    }

    fn learn(&self, found: Vec<Served>) {
        for (at, kind) in self.kinds.iter().enumerate() {
            let VersionedKind { group, kind: name, newer, older, required, .. } = kind;
            let before = self.shared.known.borrow().get(at).copied();
            match found[at] {
                Served::Missing if *required => tracing::warn!(
                    kind = name,
                    group,
                    "the API server serves neither {newer} nor {older} of a kind that is needed",
                ),
                now if before == Some(now) => {}
                Served::Missing => tracing::info!(kind = name, group, "kind is not served"),
                Served::Older => tracing::info!(
                    kind = name,
                    group,
                    "{newer} is not served, reading and writing {older}",
                ),
                Served::Newer => tracing::debug!(kind = name, group, "{newer} is served"),
            }
        }
        self.shared.known.send_if_modified(|known| {
            let changed = *known != found;
            *known = found;
            changed
        });
    }

    /// The older version, where it takes the place of this one.
    fn older_version(&self, api_version: &str, kind: &str) -> Option<String> {
        let known = self.kinds.iter().find(|known| known.kind == kind)?;
        (self.of(kind) == Served::Older && known.newer_version() == api_version)
            .then(|| known.older_version())
    }

    fn any_is_older(&self) -> bool {
        self.shared.known.borrow().contains(&Served::Older)
    }

    /// The kind that a path is about, and whether it is about all objects of a namespace or of the cluster.
    fn kind_of_path(&self, path: &str) -> Option<(&'static VersionedKind, bool)> {
        let rest = path.strip_prefix("/apis/")?;
        let segments: Vec<&str> = rest.split('/').collect();
        let ([group, version, "namespaces", _, plural, ref more @ ..]
        | [group, version, plural, ref more @ ..]) = segments[..]
        else {
            return None;
        };
        let known = self
            .kinds
            .iter()
            .find(|known| (known.group, known.newer, known.plural) == (group, version, plural))?;
        Some((known, more.is_empty()))
    }
}

/// Sends requests for a kind that is served in an older version to that version.
#[derive(Clone)]
pub(super) struct ServedLayer(pub(super) Option<ServedVersions>);

impl<S> Layer<S> for ServedLayer {
    type Service = ServedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ServedService { inner, served: self.0.clone() }
    }
}

#[derive(Clone)]
pub(super) struct ServedService<S> {
    inner: S,
    served: Option<ServedVersions>,
}

impl<S, B> Service<Request<Body>> for ServedService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<Converted<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (inner, served) = (self.inner.clone(), self.served.clone());
        Box::pin(async move {
            let Some(served) = served else {
                let answer = inner.oneshot(request).await.map_err(Into::into)?;
                return Ok(answer.map(Converted::as_it_is));
            };
            let about = served.kind_of_path(request.uri().path());
            let older = about.filter(|(kind, _)| served.of(kind.kind) == Served::Older);
            if let Some((kind, _)) = older {
                *request.uri_mut() = in_version(request.uri(), kind)?;
            }
            if served.any_is_older() && !matches!(*request.method(), Method::GET | Method::DELETE) {
                request = written_as_served(&served, request).await?;
            }
            let watch = is_watch(&request);
            let mut answer = inner.oneshot(request).await.map_err(Into::into)?;
            if answer.status() == StatusCode::NOT_FOUND && about.is_some_and(|(_, all)| all) {
                served.shared.doubt.notify_one();
            }
            match older.filter(|_| answer.status().is_success()) {
                Some((kind, _)) => {
                    answer.headers_mut().remove(header::CONTENT_LENGTH);
                    Ok(answer.map(|body| Converted::new(body, kind.read, watch)))
                }
                None => Ok(answer.map(Converted::as_it_is)),
            }
        })
    }
}

/// The same path in the older version.
fn in_version(uri: &Uri, kind: &VersionedKind) -> Result<Uri, BoxError> {
    let (newer, older) = (kind.newer_version(), kind.older_version());
    let mut parts = uri.clone().into_parts();
    let text = parts.path_and_query.as_ref().map_or("", |known| known.as_str());
    let text = text.replacen(&format!("/apis/{newer}/"), &format!("/apis/{older}/"), 1);
    parts.path_and_query = Some(text.parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// Has the body of a write name the versions that are served, as version of the object itself and of its owners: the
/// garbage collector finds no owner in a version that is not served.
async fn written_as_served(
    served: &ServedVersions,
    request: Request<Body>,
) -> Result<Request<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let mut bytes: Bytes = body.collect_bytes().await?;
    if let Ok(mut object) = serde_json::from_slice::<Value>(&bytes) {
        let mut changed = name_served(served, &mut object);
        let owners = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
        for owner in owners.into_iter().flatten() {
            changed |= name_served(served, owner);
        }
        if changed {
            bytes = serde_json::to_vec(&object)?.into();
        }
    }
    let mut request = Request::from_parts(parts, Body::from(bytes));
    request.headers_mut().remove(header::CONTENT_LENGTH);
    Ok(request)
}

/// Changes the version of an object, or of a reference, to the one that is served.
fn name_served(served: &ServedVersions, object: &mut Value) -> bool {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let Some(older) = served.older_version(text("apiVersion"), text("kind")) else {
        return false;
    };
    object["apiVersion"] = older.into();
    true
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
