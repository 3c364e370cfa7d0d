//! Stands between Cluster API and our hooks while fixtures are recorded, and keeps what both say.

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
use refit_runtime::tls::{ReloadableCert, client_config, server_config};
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

/// Members of a request whose values are nobody's business, wherever they are.
const SECRETS: [&str; 7] = [
    "caCertHashes",
    "certificateKey",
    "content",
    "passwd",
    "password",
    "sshAuthorizedKeys",
    "token",
];
/// What stands in their place.
const STRIPPED: &str = "(stripped)";
/// How much of a message tells one refusal from another.
const MESSAGE: usize = 24;

/// One call of a hook.
#[derive(Clone, Debug)]
struct Exchange {
    path: String,
    request: Value,
    response: Value,
}

/// A tap, until it is dropped.
#[derive(Debug)]
pub struct Tap {
    /// Its port on 127.0.0.1.
    pub port: u16,
    heard: Arc<Mutex<Vec<Exchange>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The hooks behind a tap.
struct Hooks {
    port: u16,
    connector: TlsConnector,
    heard: Arc<Mutex<Vec<Exchange>>>,
}

impl Tap {
    /// Passes everything on to the hooks on `port`.
    pub async fn start(certs: &Certs, port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((NAMES[1], 0)).await?;
        let own = listener.local_addr()?.port();
        let cert = ReloadableCert::new(&certs.server()?)?;
        let acceptor = TlsAcceptor::from(server_config(cert, None)?);
        let heard: Arc<Mutex<Vec<Exchange>>> = Arc::default();
        let config = client_config(certs.ca_pem().as_bytes())?;
        let hooks = Arc::new(Hooks {
            port,
            connector: TlsConnector::from(Arc::new(config)),
            heard: heard.clone(),
        });
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, hooks) = (acceptor.clone(), hooks.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    // Where the hooks do not answer, the connection ends as theirs would.
                    let service = service_fn(move |request| pass(hooks.clone(), request));
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self { port: own, heard, task })
    }

    /// Writes what was said about a namespace, one call of each sort, and Discovery for none.
    pub fn write(&self, line: Line, name: &str, namespace: Option<&str>) -> anyhow::Result<()> {
        let mut sorts = BTreeSet::new();
        let mut kept = Vec::new();
        for exchange in lock(&self.heard).iter() {
            if exchange.namespace() == namespace && sorts.insert(exchange.sort()) {
                kept.push(exchange.fixture());
            }
        }
        let text = serde_json::to_string_pretty(&kept).context("it is JSON")?;
        fixtures::write(&fixture(line, name), &format!("{text}\n"))
    }
}

/// The file of recorded calls.
pub fn fixture(line: Line, name: &str) -> PathBuf {
    fixtures::folder().join(format!("hooks/{line}/{name}.json"))
}

impl Exchange {
    /// The namespace of what is asked about.
    fn namespace(&self) -> Option<&str> {
        let places = [
            "/current/machine/metadata/namespace",
            "/current/machineSet/metadata/namespace",
            "/desired/machine/metadata/namespace",
        ];
        places.iter().find_map(|place| self.request.pointer(place)?.as_str())
    }

    /// What makes it worth keeping beside the others.
    fn sort(&self) -> (String, String, BTreeSet<String>) {
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

/// Takes secrets out of a request.
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
    // It ends with the answer: nobody asks twice on one connection.
    tokio::spawn(connection);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let onward = Request::builder()
        .method(parts.method)
        .uri(path)
        .header(header::HOST, NAMES[0])
        .body(Full::new(body.clone()))?;
    let (answer, said) = sender.send_request(onward).await?.into_parts();
    let said = said.collect().await?.to_bytes();
    lock(&hooks.heard).push(Exchange {
        path: path.to_owned(),
        request: serde_json::from_slice(&body).unwrap_or_default(),
        response: serde_json::from_slice(&said).unwrap_or_default(),
    });
    let mut response = Response::new(Full::new(said));
    *response.status_mut() = answer.status;
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
