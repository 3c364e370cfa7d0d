//! A proxy between Cluster API and Refit's hooks while fixtures are recorded. It keeps requests and
//! responses.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use refit_runtime::tls::{ClientIdentity, ReloadableCert, client_config, server_config};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{
    certs::{Certs, NAMES},
    fixtures, lock,
    objects::text,
    parts::Line,
};

/// Fields of a request whose values must not be recorded, at any depth.
const SECRETS: [&str; 7] = [
    "caCertHashes",
    "certificateKey",
    "content",
    "passwd",
    "password",
    "sshAuthorizedKeys",
    "token",
];
/// Replaces the value of such a field.
const STRIPPED: &str = "(stripped)";
/// Number of leading characters of a message that distinguish one failure from another.
const MESSAGE: usize = 24;

/// A recorded call of a hook.
#[derive(Clone, Debug)]
struct Exchange {
    path: String,
    request: Value,
    response: Value,
}

/// A recording proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Tap {
    /// Port on 127.0.0.1.
    pub port: u16,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The recorded hooks.
struct Hooks {
    port: u16,
    connector: TlsConnector,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
}

impl Tap {
    /// Forwards all calls to the hooks on `port`.
    pub async fn start(certs: &Certs, port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((NAMES[1], 0)).await?;
        let own = listener.local_addr()?.port();
        let cert = ReloadableCert::new(&certs.server()?)?;
        let acceptor = TlsAcceptor::from(server_config(cert)?);
        let exchanges: Arc<Mutex<Vec<Exchange>>> = Arc::default();
        let mut config = client_config(certs.ca_pem().as_bytes())?;
        config.client_auth_cert_resolver = Arc::new(ClientIdentity::from(certs.hook_client()?));
        let hooks = Arc::new(Hooks {
            port,
            connector: TlsConnector::from(Arc::new(config)),
            exchanges: exchanges.clone(),
        });
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, hooks) = (acceptor.clone(), hooks.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    // If the hooks do not respond, the connection closes as theirs would.
                    let service = service_fn(move |request| pass(hooks.clone(), request));
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { port: own, exchanges, task })
    }

    /// Writes one call of each category about a namespace; without a namespace, the Discovery call.
    pub fn write(&self, line: Line, name: &str, namespace: Option<&str>) -> anyhow::Result<()> {
        let mut categories = BTreeSet::new();
        let mut kept = Vec::new();
        for exchange in lock(&self.exchanges).iter() {
            if exchange.namespace() == namespace && categories.insert(exchange.category()) {
                kept.push(exchange.fixture());
            }
        }
        let text =
            serde_json::to_string_pretty(&kept).context("failed to serialize the exchanges")?;
        fixtures::write(&fixture(line, name), &format!("{text}\n"))
    }
}

/// Path of the file with recorded calls.
pub fn fixture(line: Line, name: &str) -> PathBuf {
    fixtures::directory().join(format!("hooks/{line}/{name}.json"))
}

impl Exchange {
    /// The namespace of the object in the request.
    fn namespace(&self) -> Option<&str> {
        let places = [
            "/current/machine/metadata/namespace",
            "/current/machineSet/metadata/namespace",
            "/desired/machine/metadata/namespace",
        ];
        places.iter().find_map(|place| self.request.pointer(place)?.as_str())
    }

    /// The category of a call; one call of each category is recorded.
    fn category(&self) -> (String, String, BTreeSet<String>) {
        let message = text(&self.response, "/message");
        let status = text(&self.response, "/status");
        let message = match status {
            "Failure" => message.chars().take(MESSAGE).collect(),
            _ => self.response["retryAfterSeconds"].as_i64().is_none_or(|s| s == 0).to_string(),
        };
        let members = self.response.as_object().into_iter().flatten();
        let patches = members.map(|(key, _)| key.clone()).filter(|key| key.ends_with("Patch"));
        let hook = text(&self.request, "/kind");
        (format!("{hook} {status}"), message, patches.collect())
    }

    fn fixture(&self) -> Value {
        let mut request = self.request.clone();
        strip(&mut request);
        json!({"path": self.path, "request": request, "response": self.response})
    }
}

/// Replaces the secrets in a request.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if SECRETS.contains(&key.as_str()) && !member.is_null() {
                    *member = json!(STRIPPED);
                } else {
                    strip(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

async fn pass(
    hooks: Arc<Hooks>,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let stream = TcpStream::connect((NAMES[1], hooks.port)).await?;
    let stream = hooks.connector.connect(ServerName::try_from(NAMES[0])?, stream).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with the response: each connection carries one request.
    tokio::spawn(connection);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let onward = Request::builder()
        .method(parts.method)
        .uri(path)
        .header(header::HOST, NAMES[0])
        .body(Full::new(body.clone()))?;
    let (head, response_body) = sender.send_request(onward).await?.into_parts();
    let response_body = response_body.collect().await?.to_bytes();
    lock(&hooks.exchanges).push(Exchange {
        path: path.to_owned(),
        request: serde_json::from_slice(&body).unwrap_or_default(),
        response: serde_json::from_slice(&response_body).unwrap_or_default(),
    });
    let mut response = Response::new(Full::new(response_body));
    *response.status_mut() = head.status;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_of_a_request_is_kept() {
        let mut request = json!({"desired": {"bootstrapConfig": {"spec": {
            "files": [{"path": "/etc/a", "content": "secret-1"}],
            "users": [{"name": "u", "passwd": "secret-2", "sshAuthorizedKeys": ["secret-3"]}],
            "joinConfiguration": {
                "discovery": {"bootstrapToken": {"token": "secret-4", "caCertHashes": ["secret-5"]}},
                "controlPlane": {"certificateKey": "secret-6"},
            },
        }}}});
        strip(&mut request);
        let text = request.to_string();
        assert!(!text.contains("secret-"), "{text}");
        assert!(text.contains("/etc/a"), "{text}");
    }
}
