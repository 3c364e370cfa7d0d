//! A proxy for a workload API server. It serves `/eviction`, which the in-memory server lacks,
//! returns errors in the form of a kube-apiserver, sends watch events one per line, and turns merge
//! patches into updates. Everything else passes unchanged.
//!
//! A Cluster's `spec.controlPlaneEndpoint` names this proxy, so all users of the kubeconfig Secret
//! of that Cluster connect to it: Cluster API's managers, the Refit controller and the kubelets.

mod evict;
mod lines;
mod patch;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::Client;
use refit_runtime::{
    Clock,
    tls::{self, Authority, KeyAndCert, ReloadableCert},
};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::lines::Lines;
use crate::{
    certs::{self, NAMES},
    objects::{self, Objects},
};

/// How often the certificate authority of a cluster is read until it exists.
const POLL: Duration = Duration::from_millis(300);

type Body = Either<UnsyncBoxBody<Bytes, hyper::Error>, Full<Bytes>>;

/// A proxy for one workload API server that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Port on 127.0.0.1.
    pub port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Listens for `cluster`. It starts to serve when the certificate authority of the cluster and
    /// the endpoint of its API server exist.
    pub async fn start(management: Client, namespace: &str, cluster: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((NAMES[1], 0)).await;
        let listener = listener.context("failed to listen on 127.0.0.1")?;
        let port = listener.local_addr()?.port();
        let objects = Objects::in_namespace(management, namespace);
        let cluster = cluster.to_owned();
        let task = tokio::spawn(async move {
            let (authority, upstream) = loop {
                match find_upstream(&objects, &cluster).await {
                    Ok(Some(known)) => break known,
                    Ok(None) => {}
                    Err(error) => tracing::warn!("{error:#}"),
                }
                tokio::time::sleep(POLL).await;
            };
            match Backend::new(&authority, upstream) {
                Ok(backend) => serve(listener, &authority, Arc::new(backend)).await,
                Err(error) => tracing::error!("failed to create the proxy: {error:#}"),
            }
        });
        Ok(Self { port, task })
    }
}

/// Returns the authority of a cluster and the port of its API server, once both exist.
async fn find_upstream(
    objects: &Objects,
    cluster: &str,
) -> anyhow::Result<Option<(KeyAndCert, u16)>> {
    let Some(object) = objects.find(objects::CLUSTER, cluster).await? else {
        return Ok(None);
    };
    // A ClusterClass generates the name, and sets it later.
    let name = objects::text(&object, "/spec/infrastructureRef/name");
    if name.is_empty() {
        return Ok(None);
    }
    let Some(infrastructure) = objects.find(objects::DEV_CLUSTER, name).await? else {
        return Ok(None);
    };
    let port = objects::number(&infrastructure, "/spec/controlPlaneEndpoint/port");
    let authority = authority(objects, &format!("{cluster}-ca")).await?;
    Ok(authority.filter(|_| port > 0).zip(u16::try_from(port).ok()))
}

/// Returns the authority of a cluster, once its Secret exists.
async fn authority(secrets: &Objects, name: &str) -> anyhow::Result<Option<KeyAndCert>> {
    let Some(secret) = secrets.find(objects::SECRET, name).await? else {
        return Ok(None);
    };
    let part = |key: &str| -> anyhow::Result<String> {
        let encoded = secret["data"][key].as_str().unwrap_or_default();
        let decoded = BASE64_STANDARD.decode(encoded);
        let decoded = decoded.with_context(|| format!("Secret {name}: {key} is not base64"))?;
        String::from_utf8(decoded).with_context(|| format!("Secret {name}: {key} is not UTF-8"))
    };
    Ok(Some(KeyAndCert { cert_pem: part("tls.crt")?, key_pem: as_pkcs8(&part("tls.key")?)? }))
}

/// Converts an RSA key from PKCS #1 to PKCS #8, which the TLS libraries require.
fn as_pkcs8(pem: &str) -> anyhow::Result<String> {
    const NAME: &str = "RSA PRIVATE KEY";
    /// Version 0 and the algorithm rsaEncryption (RFC 8017, A.1).
    const HEAD: [u8; 18] = [
        0x02, 0x01, 0x00, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
        0x01, 0x05, 0x00,
    ];
    if !pem.contains(NAME) {
        return Ok(pem.to_owned());
    }
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    let text: String = lines.map(str::trim).collect();
    let key = BASE64_STANDARD.decode(text).context("the key of the cluster is not PEM")?;
    let mut inner = HEAD.to_vec();
    inner.extend(der(0x04, &key));
    let whole = BASE64_STANDARD.encode(der(0x30, &inner));
    Ok(format!("-----BEGIN PRIVATE KEY-----\n{whole}\n-----END PRIVATE KEY-----\n"))
}

/// Encodes a value in DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    if length < 0x80 {
        out.extend(u8::try_from(length));
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
        out.extend(u8::try_from(bytes.len()).map(|count| 0x80 | count));
        out.extend(bytes);
    }
    out.extend(content);
    out
}

async fn serve(listener: TcpListener, authority: &KeyAndCert, backend: Arc<Backend>) {
    let acceptor = match acceptor(authority) {
        Ok(acceptor) => acceptor,
        Err(error) => {
            tracing::error!("failed to start the proxy: {error:#}");
            return;
        }
    };
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(POLL).await;
            continue;
        };
        let (acceptor, backend) = (acceptor.clone(), backend.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| answer(backend.clone(), request));
            // A client may close the connection at any time.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        });
    }
}

fn acceptor(authority: &KeyAndCert) -> anyhow::Result<TlsAcceptor> {
    let authority = Authority::from_pem(authority.clone())?;
    let server = authority.server(&NAMES, certs::validity(Clock::real()))?;
    let config = tls::server_config(ReloadableCert::new(&server)?)?;
    let mut config = Arc::unwrap_or_clone(config);
    // HTTP/1.1: one upstream connection per client connection, and connections may be upgraded.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The API server behind a proxy.
struct Backend {
    address: String,
    port: u16,
    connector: TlsConnector,
}

impl Backend {
    fn new(authority: &KeyAndCert, port: u16) -> anyhow::Result<Self> {
        let config = tls::client_config(authority.cert_pem.as_bytes())?;
        Ok(Self {
            // The in-memory server distinguishes clusters by the port in the Host header.
            address: format!("{}:{port}", NAMES[1]),
            port,
            connector: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Sends a request and returns the response without waiting for its body.
    async fn send<B>(&self, mut request: Request<B>) -> anyhow::Result<Response<Incoming>>
    where
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = TcpStream::connect((NAMES[1], self.port)).await?;
        let name = ServerName::try_from(NAMES[1])?;
        let stream = self.connector.connect(name, stream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection.with_upgrades());
        let host = HeaderValue::from_str(&self.address)?;
        request.headers_mut().insert(header::HOST, host);
        let writes = [Method::POST, Method::PUT].contains(request.method());
        let kind = request.headers().get(header::CONTENT_TYPE);
        if writes && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
            // In v1.12 the server has a route for this type only; it detects the real type from the
            // body.
            let taken = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
            request.headers_mut().insert(header::CONTENT_TYPE, taken);
        }
        Ok(sender.send_request(request).await?)
    }

    /// Sends a JSON request and reads the JSON response.
    async fn json(&self, method: Method, path: &str) -> anyhow::Result<(StatusCode, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::default())?;
        let (parts, body) = self.send(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((parts.status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

async fn answer(
    backend: Arc<Backend>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    let outcome = match evict::target(request.method(), request.uri().path()) {
        Some(pod) => evict::answer(&backend, &pod, request).await,
        None if patch::is_merge(&request) => patch::answer(&backend, request).await,
        None => pass(&backend, request).await,
    };
    Ok(outcome.unwrap_or_else(|error| {
        let message = format!("the workload API server does not answer: {error:#}");
        status(StatusCode::BAD_GATEWAY, "BadGateway", &message, json!({}))
    }))
}

async fn pass(backend: &Backend, mut request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
    let path = request.uri().path().to_owned();
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let upgrade = request.headers().contains_key(header::UPGRADE);
    let client_upgrade = upgrade.then(|| hyper::upgrade::on(&mut request));
    let mut answer = backend.send(request).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client_upgrade) = client_upgrade
    {
        let upstream_upgrade = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            if let (Ok(client), Ok(upstream)) = futures::join!(client_upgrade, upstream_upgrade) {
                let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            }
        });
        return Ok(answer.map(|_| Either::Right(Full::default())));
    }
    if answer.status().is_client_error() || answer.status().is_server_error() {
        return with_status_error(answer, &path).await;
    }
    if watches {
        let mut lines = Lines::default();
        let each = move |frame: Frame<Bytes>| frame.map_data(|data| lines.push(&data));
        return Ok(answer.map(|body| Either::Left(body.map_frame(each).boxed_unsync())));
    }
    Ok(answer.map(streamed))
}

/// Passes a response body through unchanged.
fn streamed(body: Incoming) -> Body {
    Either::Left(body.boxed_unsync())
}

/// Converts an error to the form of a kube-apiserver. The in-memory server sends the Go value of
/// its error with the Status inside, and plain text for some errors.
async fn with_status_error(
    answer: Response<Incoming>,
    path: &str,
) -> anyhow::Result<Response<Body>> {
    let (parts, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Ok(mut object) = serde_json::from_slice::<Value>(&body)
        && let Some(inner) = object.get_mut("ErrStatus").map(Value::take)
    {
        let mut whole = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure"});
        merge(&mut whole, inner);
        return Ok(response(parts.status, &whole));
    }
    let text = String::from_utf8_lossy(&body);
    let (code, reason) =
        if parts.status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("not found") {
            // The server patches by reading first, and drops the kind of the error.
            (StatusCode::NOT_FOUND, "NotFound")
        } else if parts.status == StatusCode::NOT_FOUND {
            // No object is missing; the route does not exist.
            let message = "the server could not find the requested resource";
            return Ok(status(parts.status, "NotFound", message, json!({})));
        } else {
            (parts.status, "InternalError")
        };
    let message = if text.is_empty() { path } else { &text };
    Ok(status(code, reason, message, json!({})))
}

fn merge(whole: &mut Value, part: Value) {
    if let (Some(whole), Value::Object(part)) = (whole.as_object_mut(), part) {
        whole.extend(part);
    }
}

/// A Status object with a failure.
fn status(code: StatusCode, reason: &str, message: &str, details: Value) -> Response<Body> {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code.as_u16(),
    });
    if details != json!({}) {
        body["details"] = details;
    }
    response(code, &body)
}

fn response(code: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(body.to_string())));
    *response.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_der_encoded() {
        assert_eq!(der(4, &[7]), [4, 1, 7]);
        assert_eq!(der(4, &[0; 200])[..3], [4, 0x81, 200]);
        assert_eq!(der(4, &[0; 300])[..4], [4, 0x82, 1, 44]);
    }

    #[test]
    fn a_pkcs8_key_is_unchanged() {
        let pem = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";
        assert_eq!(as_pkcs8(pem).unwrap(), pem);
        let old = "-----BEGIN RSA PRIVATE KEY-----\nAA==\n-----END RSA PRIVATE KEY-----\n";
        assert!(as_pkcs8(old).unwrap().starts_with("-----BEGIN PRIVATE KEY-----\nMBU"));
    }
}
