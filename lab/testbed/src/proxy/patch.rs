//! Carries out merge patches as a read and an update.
//!
//! The in-memory server stores patched objects in another form than created ones and then fails to
//! find them: its etcd fails to list the pods, and its field selectors match all of them. Updated
//! objects are stored correctly.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::Value;

use super::{Backend, Body, response, streamed, with_status_error};

/// How often an update is retried after a conflict.
const ATTEMPTS: usize = 10;

/// Whether a request is a merge patch, which this module carries out.
pub(super) fn is_merge(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    // The server accepts either type as the other.
    let merges = ["application/merge-patch+json", "application/strategic-merge-patch+json"];
    request.method() == Method::PATCH && merges.contains(&kind)
}

/// Reads, merges and updates.
pub(super) async fn answer(
    backend: &Backend,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let patch: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
    // A client that sends a resourceVersion requires exactly that version.
    let fixed = !patch["metadata"]["resourceVersion"].is_null();
    let path = parts.uri.path();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let found = backend.send(plain(Method::GET, path, Bytes::new())?).await?;
        if !found.status().is_success() {
            return with_status_error(found, path).await;
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
            return with_status_error(updated, path).await;
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
