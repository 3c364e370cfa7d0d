//! POSTs to servers that are recognised by the fingerprint of their certificate, in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    common::{Pki, Switch, epoch, hangs, serve_with},
    lease::Replica,
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use refit_runtime::{
    Clock,
    client::{
        ClientStack, JsonPost, PINNED_DEADLINE, PinnedAnswer, PinnedConnection, PinnedOpenError,
        PinnedPostError,
    },
    gate::{Gate, Open},
    lease::Leadership,
    net::{Dialer, MemoryNetwork, Stream},
    tls::{Fingerprint, Pin},
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

const HOST: &str = "10.0.0.1:2380";
const IP: &str = "10.0.0.1";
const TOKEN: &str = "0123456789abcdef";

fn post() -> JsonPost {
    JsonPost {
        path: "/1.0/snap/refresh".to_owned(),
        headers: vec![(HeaderName::from_static("node-token"), HeaderValue::from_static(TOKEN))],
        body: br#"{"channel":"1.34"}"#.to_vec(),
        changes: true,
    }
}

/// A network with one server, and a process that calls it.
struct World {
    network: MemoryNetwork,
    pki: Pki,
    requests: Arc<AtomicUsize>,
}

impl World {
    /// A server that answers with the request's token and body.
    fn new() -> Self {
        Self::answering(|request| async move {
            let token = request.headers()["node-token"].clone();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let answer = [token.as_bytes(), b" ", &body].concat();
            Response::builder().status(201).body(Full::new(Bytes::from(answer))).unwrap()
        })
    }

    fn answering<F, Fut>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let network = MemoryNetwork::default();
        let (pki, requests) = (Pki::new(&[IP]), Arc::new(AtomicUsize::new(0)));
        let count = requests.clone();
        serve_with(network.listen(IP, 2380), &pki, move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            answer(request)
        });
        Self { network, pki, requests }
    }

    fn stack(&self, gate: Arc<dyn Gate>) -> ClientStack {
        let dialer = Dialer::Memory(self.network.clone(), gate.clone());
        ClientStack::new(dialer, gate, "test/1")
    }

    async fn open(
        &self,
        stack: &ClientStack,
        pin: Pin,
    ) -> Result<PinnedConnection<Stream>, PinnedOpenError> {
        let stream = stack.dialer().dial(IP, 2380).await.unwrap();
        PinnedConnection::open(stack, stream, HOST, pin, PINNED_DEADLINE).await
    }

    async fn post(&self, stack: &ClientStack) -> Result<PinnedAnswer, PinnedPostError> {
        self.open(stack, Pin::FirstUse).await.unwrap().post(post()).await
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(
            &CertificateDer::from_pem_slice(self.pki.server.cert_pem.as_bytes()).unwrap(),
        )
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_returns_the_response_and_the_fingerprint_to_pin() {
    let world = World::new();
    let stack = world.stack(Arc::new(Open));
    let first = world.post(&stack).await.unwrap();
    assert_eq!(first.status, 201);
    assert_eq!(first.body, format!("{TOKEN} {{\"channel\":\"1.34\"}}"));
    assert_eq!(first.fingerprint, world.fingerprint());
    let pinned = world.open(&stack, Pin::Known(first.fingerprint)).await.unwrap();
    assert_eq!(pinned.fingerprint(), first.fingerprint);
    assert_eq!(pinned.post(post()).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn a_changed_certificate_names_both_fingerprints_and_gets_no_request() {
    let world = World::new();
    let known = Fingerprint::of(b"another certificate");
    let error = world.open(&world.stack(Arc::new(Open)), Pin::Known(known)).await.unwrap_err();
    let PinnedOpenError::Changed { changed, .. } = &error else { panic!("{error}") };
    assert_eq!((changed.known, changed.seen), (known, world.fingerprint()));
    let seen = world.fingerprint();
    assert_eq!(
        error.to_string(),
        format!(
            "{HOST}: the server's certificate has changed: expected sha256 {known}, got {seen}"
        )
    );
    assert_eq!(world.requests(), 0);
}

/// Presents a certificate without holding its key.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesServerCert for Thief {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_hold_the_key_of_its_certificate_is_rejected() {
    let world = World::new();
    let other = Pki::new(&[IP]).server;
    let chain = vec![CertificateDer::from_pem_slice(world.pki.server.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(other.key_pem.as_bytes()).unwrap();
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let stolen = Arc::new(CertifiedKey::new(chain, key));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Thief(stolen.clone())));
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(far));
        let stack = world.stack(Arc::new(Open));
        let pin = Pin::Known(world.fingerprint());
        let outcome = PinnedConnection::open(&stack, near, HOST, pin, PINNED_DEADLINE).await;
        assert!(matches!(outcome, Err(PinnedOpenError::Handshake { .. })), "{outcome:?}");
    }
}

#[test]
fn a_token_is_not_shown() {
    assert!(!format!("{:?}", post()).contains(TOKEN));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_has_the_deadline_of_the_whole_call() {
    let world = World::answering(|_| std::future::pending());
    let error = world.post(&world.stack(Arc::new(Open))).await.unwrap_err();
    let late = format!("no answer from {HOST} to POST /1.0/snap/refresh within 60 s");
    assert_eq!(error.to_string(), late);
    let (near, _far) = tokio::io::duplex(1024);
    let stack = world.stack(Arc::new(Open));
    let deadline = Duration::from_secs(5);
    let outcome = PinnedConnection::open(&stack, near, HOST, Pin::FirstUse, deadline).await;
    let late = format!("no TLS handshake with {HOST} within 5 s");
    assert_eq!(outcome.unwrap_err().to_string(), late);
}

#[tokio::test(start_paused = true)]
async fn a_response_is_limited_to_one_mebibyte() {
    for (bytes, fits) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let body = Bytes::from(vec![b' '; bytes]);
        let world = World::answering(move |_| {
            let body = body.clone();
            async move { Response::new(Full::new(body)) }
        });
        let outcome = world.post(&world.stack(Arc::new(Open))).await;
        assert_eq!(outcome.is_ok(), fits);
        let too_large = matches!(outcome, Err(PinnedPostError::TooLarge { .. }));
        assert_eq!(too_large, !fits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_up_is_a_transport_error() {
    let world = World::answering(|_| async { panic!("hangs up") });
    let outcome = world.post(&world.stack(Arc::new(Open))).await;
    assert!(matches!(outcome, Err(PinnedPostError::Transport { .. })), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_before_a_post_sends_nothing_and_after_it_gets_no_response() {
    for (switch, sent) in [(Switch::before(1), 0), (Switch::after(1), 1)] {
        let world = World::new();
        assert!(hangs(world.post(&world.stack(switch.clone()))).await);
        assert_eq!(world.requests(), sent);
        assert_eq!(switch.effects(), ["api POST 10.0.0.1:2380/1.0/snap/refresh"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_that_changes_nothing_is_no_effect() {
    let world = World::new();
    let switch = Arc::new(Switch::default());
    let connection = world.open(&world.stack(switch.clone()), Pin::FirstUse).await.unwrap();
    connection.post(JsonPost { changes: false, ..post() }).await.unwrap();
    assert!(switch.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_sends_a_post_that_changes_the_server() {
    let world = World::new();
    let clock = Clock::simulated(epoch());
    let follower = world.stack(Arc::new(Open)).fenced(Leadership::candidate(clock));
    let outcome = world.post(&follower).await;
    assert!(matches!(outcome, Err(PinnedPostError::NotLeader(_))), "{outcome:?}");
    assert_eq!(world.requests(), 0);
    let connection = world.open(&follower, Pin::FirstUse).await.unwrap();
    connection.post(JsonPost { changes: false, ..post() }).await.unwrap();
    let leader = world.stack(Arc::new(Open)).fenced(Leadership::alone(clock));
    world.post(&leader).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_waits_for_a_response_as_long_as_it_renews_its_lease() {
    let api = crate::common::World::new();
    let leader = Replica::start(&api, "a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let slow = World::answering(|_| async {
        tokio::time::sleep(Duration::from_secs(40)).await;
        Response::new(Full::default())
    });
    let stack = slow.stack(Arc::new(Open)).fenced(leader.leadership.clone());
    assert_eq!(slow.post(&stack).await.unwrap().status, 200);
    let begun = api.clock.now();
    let cut = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        leader.cut();
    };
    let (outcome, ()) = tokio::join!(slow.post(&stack), cut);
    assert!(matches!(outcome, Err(PinnedPostError::Timeout { .. })), "{outcome:?}");
    let waited = api.clock.elapsed(begun);
    assert!(waited < Duration::from_secs(20), "another replica leads soon: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_server_name_is_rejected() {
    let (near, _far) = tokio::io::duplex(1024);
    let stack = World::new().stack(Arc::new(Open));
    let outcome =
        PinnedConnection::open(&stack, near, "10.0.0.1", Pin::FirstUse, PINNED_DEADLINE).await;
    assert!(matches!(outcome, Err(PinnedOpenError::ServerName(_))), "{outcome:?}");
}
