//! The server side: handshakes, deadlines, shutdown, certificates.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{Pki, validity};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use refit_runtime::{
    gate::Open,
    net::{Dialer, MemoryNetwork, Stream},
    serve::{PeerCertificates, serve},
    tls::{
        KeyAndCert, ReloadableCert, api_server_config, client_config, hook_server_config,
        server_config,
    },
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

const NAME: &str = "hooks.test";

/// A server that responds after the number of seconds in the path.
struct Server {
    network: MemoryNetwork,
    pki: Pki,
    cert: Arc<ReloadableCert>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    finished: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let network = MemoryNetwork::default();
        let pki = Pki::new(&[NAME]);
        let cert = ReloadableCert::new(&pki.server).unwrap();
        let tls = server_config(cert.clone()).unwrap();
        let stop = CancellationToken::new();
        let finished = Arc::new(AtomicUsize::new(0));
        let count = finished.clone();
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let count = count.clone();
            async move {
                let seconds = request.uri().path()[1..].parse().unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
            }
        });
        let serving =
            serve(network.listen(NAME, 443), Some(tls), service, stop.clone().cancelled_owned());
        Self { network, pki, cert, stop, task: tokio::spawn(serving), finished }
    }

    async fn dial(&self) -> std::io::Result<Stream> {
        let dialer = Dialer::Memory(self.network.clone(), Arc::new(Open));
        dialer.dial(NAME, 443).await
    }

    async fn connect(&self) -> std::io::Result<TlsStream<Stream>> {
        let config = client_config(self.pki.ca().as_bytes()).unwrap();
        self.connect_with(config).await
    }

    async fn connect_with(
        &self,
        config: rustls::ClientConfig,
    ) -> std::io::Result<TlsStream<Stream>> {
        let name = ServerName::try_from(NAME).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, self.dial().await?).await
    }
}

/// One GET over HTTP/1.1; empty if the server closed the connection instead.
async fn get(stream: &mut TlsStream<Stream>, seconds: u64) -> String {
    let request = format!("GET /{seconds} HTTP/1.1\r\nhost: {NAME}\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return String::new();
    }
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    while !text.ends_with(b"done") {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_slow_handshake_delays_no_other_and_is_cut() {
    let server = Server::start();
    let mut silent = server.dial().await.unwrap();
    let mut stream = server.connect().await.unwrap();
    assert!(get(&mut stream, 0).await.starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(11), silent.read_to_end(&mut rest));
    assert!(closed.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    let server = Server::start();
    let mut never = server.connect().await.unwrap();
    let mut once = server.connect().await.unwrap();
    assert!(get(&mut once, 0).await.ends_with("done"));
    let mut half = server.connect().await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    for stream in [&mut never, &mut once, &mut half] {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(110), stream.read_to_end(&mut rest));
        assert!(closed.await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_tls_delays_no_other_connection() {
    let server = Server::start();
    let mut stream = server.dial().await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(get(&mut server.connect().await.unwrap(), 0).await.ends_with("done"));
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_finishes_open_requests() {
    let server = Server::start();
    let mut stream = server.connect().await.unwrap();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.stop.cancel();
    };
    let (text, ()) = futures::join!(get(&mut stream, 3), stop);
    assert!(text.ends_with("done"));
    assert!(server.dial().await.is_err(), "no new connection is accepted");
    server.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_waits_for_a_hook_and_no_longer() {
    let server = Server::start();
    let mut idle = server.connect().await.unwrap();
    get(&mut idle, 0).await;
    let mut long = server.connect().await.unwrap();
    let answer = tokio::spawn(async move { get(&mut long, 100).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.stop.cancel();
    let stopped = tokio::time::timeout(Duration::from_millis(11_100), server.task);
    assert!(stopped.await.is_ok());
    assert_eq!(answer.await.unwrap(), "");
    assert_eq!(server.finished.load(Ordering::SeqCst), 1);
}

async fn h2(server: &Server) -> hyper::client::conn::http2::SendRequest<Empty<Bytes>> {
    let mut config = client_config(server.pki.ca().as_bytes()).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TokioIo::new(server.connect_with(config).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn h2_request(seconds: u64) -> Request<Empty<Bytes>> {
    Request::get(format!("https://{NAME}/{seconds}")).body(Empty::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn http_2_is_used_if_tls_negotiates_it() {
    let server = Server::start();
    let mut sender = h2(&server).await;
    let (first, second) = futures::join!(
        sender.clone().send_request(h2_request(2)),
        sender.send_request(h2_request(1)),
    );
    for response in [first.unwrap(), second.unwrap()] {
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(&response.into_body().collect().await.unwrap().to_bytes()[..], b"done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_server_leaves_no_request_running() {
    let server = Server::start();
    let mut sender = h2(&server).await;
    let mut plain = server.connect().await.unwrap();
    let one = tokio::spawn(async move { get(&mut plain, 10).await });
    let two = tokio::spawn(async move { sender.send_request(h2_request(10)).await.is_ok() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.task.abort();
    assert_eq!(one.await.unwrap(), "");
    assert!(!two.await.unwrap());
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(server.finished.load(Ordering::SeqCst), 0);
}

fn identity(material: &KeyAndCert) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let cert = CertificateDer::from_pem_slice(material.cert_pem.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(material.key_pem.as_bytes()).unwrap();
    (vec![cert], key)
}

/// Trusts `ca`, and presents a certificate.
fn showing(ca: &str, material: &KeyAndCert) -> rustls::ClientConfig {
    let (chain, key) = identity(material);
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap()
}

/// What a server reports of the certificates that it gets; empty if it refuses the connection.
async fn shown(tls: Arc<rustls::ServerConfig>, client: rustls::ClientConfig) -> String {
    let network = MemoryNetwork::default();
    let service = tower::service_fn(|request: Request<Incoming>| async move {
        let shown = request.extensions().get::<PeerCertificates>().map(|chain| chain.0.len());
        let text = format!("shown: {shown:?} done");
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    });
    let listener = network.listen(NAME, 443);
    let task = tokio::spawn(serve(listener, Some(tls), service, std::future::pending()));
    let dialer = Dialer::Memory(network.clone(), Arc::new(Open));
    let stream = dialer.dial(NAME, 443).await.unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    // With TLS 1.3 a client learns of a refusal at its first read.
    let answer = match TlsConnector::from(Arc::new(client)).connect(name, stream).await {
        Ok(mut stream) => get(&mut stream, 0).await,
        Err(_) => String::new(),
    };
    task.abort();
    answer
}

#[tokio::test(start_paused = true)]
async fn a_server_gets_the_optional_client_certificate() {
    let (pki, strangers) = (Pki::new(&[NAME]), Pki::new(&[]));
    let cert = ReloadableCert::new(&pki.server).unwrap();
    let api = api_server_config(cert.clone(), pki.ca().as_bytes()).unwrap();
    let hooks = hook_server_config(cert).unwrap();
    let client_cert = |pki: &Pki| pki.authority.client_in("jane", &["dev"], validity()).unwrap();
    let nothing = || client_config(pki.ca().as_bytes()).unwrap();
    let cases = [
        (&api, nothing(), "shown: None"),
        (&api, showing(pki.ca(), &client_cert(&pki)), "shown: Some(1)"),
        (&api, showing(pki.ca(), &client_cert(&strangers)), ""),
        (&hooks, nothing(), "shown: None"),
        (&hooks, showing(pki.ca(), &client_cert(&pki)), "shown: Some(1)"),
        (&hooks, showing(pki.ca(), &client_cert(&strangers)), "shown: Some(1)"),
    ];
    for (server, client, expected) in cases {
        let answer = shown(server.clone(), client).await;
        assert!(answer.contains(expected), "{answer}");
        assert_eq!(answer.is_empty(), expected.is_empty());
    }
}

/// Signs with another key than that of the certificate that it presents.
#[derive(Debug)]
struct Forger(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Forger {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_certificate_without_its_key_is_refused() {
    let pki = Pki::new(&[NAME]);
    let hooks = hook_server_config(ReloadableCert::new(&pki.server).unwrap()).unwrap();
    let client = || pki.authority.client("capi", validity()).unwrap();
    let (known, (_, key)) = (identity(&client()), identity(&client()));
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let forged = rustls::sign::CertifiedKey::new(known.0, key);
    let mut config = client_config(pki.ca().as_bytes()).unwrap();
    config.client_auth_cert_resolver = Arc::new(Forger(Arc::new(forged)));
    assert_eq!(shown(hooks, config).await, "");
}

#[tokio::test(start_paused = true)]
async fn a_reloaded_certificate_is_presented_to_the_next_client() {
    let server = Server::start();
    let mut before = server.connect().await.unwrap();
    let next = Pki::new(&[NAME]);
    server.cert.reload(&next.server).unwrap();
    assert!(get(&mut before, 0).await.ends_with("done"), "who is connected stays so");
    assert!(server.connect().await.is_err());
    let config = client_config(next.ca().as_bytes()).unwrap();
    let mut after = server.connect_with(config).await.unwrap();
    assert!(get(&mut after, 0).await.ends_with("done"));
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_certificate_is_refused() {
    let (one, two) = (Pki::new(&[NAME]), Pki::new(&[NAME]));
    let mixed = KeyAndCert { cert_pem: one.server.cert_pem.clone(), key_pem: two.server.key_pem };
    assert!(ReloadableCert::new(&mixed).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_tls_speaks_http_1() {
    let network = MemoryNetwork::default();
    let service = tower::service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
    });
    let listener = network.listen("metrics", 80);
    tokio::spawn(serve(listener, None, service, std::future::pending()));
    let dialer = Dialer::Memory(network, Arc::new(Open));
    let mut stream = dialer.dial("metrics", 80).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: m\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("done"));
}
