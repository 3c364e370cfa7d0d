//! Merge patches as a read and an update.
//!
//! The in-memory server keeps what it patched in another form than what was created, and then finds
//! it no more: its etcd fails to list the pods, and its field selectors match every one of them. What
//! was updated it keeps as it should.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::Value;

use super::{Backend, Body, response, streamed, told};

/// How often an update that somebody else was faster than is made again.
const ATTEMPTS: usize = 10;

/// Whether a request is one that is carried out here.
pub(super) fn is_merge(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    // The server takes one for the other too.
    let merges = ["application/merge-patch+json", "application/strategic-merge-patch+json"];
    request.method() == Method::PATCH && merges.contains(&kind)
}

/// Reads, merges, updates.
pub(super) async fn answer(
    backend: &Backend,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let patch: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
    // A writer who names a version means that one.
    let fixed = !patch["metadata"]["resourceVersion"].is_null();
    let path = parts.uri.path();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let found = backend.send(plain(Method::GET, path, Bytes::new())?).await?;
        if !found.status().is_success() {
            return told(found, path).await;
        }
        let mut object: Value =
            serde_json::from_slice(&found.into_body().collect().await?.to_bytes())?;
        let before = object.clone();
        json_patch::merge(&mut object, &patch);
        if object == before {
            return Ok(response(StatusCode::OK, &object));
        }
        let put = plain(Method::PUT, path, object.to_string().into())?;
        let updated = backend.send(put).await?;
        if updated.status() == StatusCode::CONFLICT && !fixed && attempt < ATTEMPTS {
            continue;
        }
        if !updated.status().is_success() {
            return told(updated, path).await;
        }
        return Ok(updated.map(streamed));
    }
}

fn plain(method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json");
    Ok(request.body(Full::from(body))?)
}
