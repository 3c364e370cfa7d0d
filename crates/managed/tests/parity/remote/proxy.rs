//! A forward proxy, and a process in whose environment it is.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex},
};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use refit_managed::remote::Remote;
use refit_openshift::{
    Compat, config::DependencyConfig, provider::OcmUrl, validation::GraphRequest,
};
use refit_runtime::{Clock, client::ClientStack, net::Listener};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::bed::{Bed, CLUSTER_ID, answering, reply, tls};

/// Set in the process that uses the proxy: the port of a server that it reaches without.
const CHILD: &str = "REFIT_TEST_PORT_WITHOUT_PROXY";
/// `me:hunter2`.
const LOGIN: &str = "Basic bWU6aHVudGVyMg==";
const GRAPH: &str = r#"{"nodes": [{"version": "1.0.0"}, {"version": "1.0.1"}], "edges": [[0, 1]]}"#;

pub(super) fn environment() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    match std::env::var(CHILD) {
        Ok(port) => runtime.block_on(inside(port.parse().unwrap())),
        Err(_) => runtime.block_on(outside()),
    }
}

async fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Starts the servers, the proxy and the process, and looks at what the proxy was asked.
async fn outside() {
    let bed = Bed::new().await;
    let (secure, secure_at) = listen().await;
    let graphs = Arc::default();
    let tls = tls(&bed.authority, "graph.example");
    tokio::spawn(answering(secure, Some(tls), Arc::clone(&graphs), |_| reply(200, GRAPH)));
    let (plain, plain_at) = listen().await;
    let plains = Arc::default();
    tokio::spawn(answering(plain, None, Arc::clone(&plains), |one| match &*one.line {
        "GET /api/v1/namespaces?" => reply(200, r#"{"items": [], "metadata": {}}"#),
        _ => reply(200, r#"{"id": "1a2b"}"#),
    }));
    let names = [("graph.example:443", secure_at), ("plain.example:80", plain_at)];
    let names = BTreeMap::from(names.map(|(name, at)| (name.to_owned(), at)));
    let (proxy_at, asked) = proxy(names).await;

    let directory = tempfile::tempdir().unwrap();
    let roots = directory.path().join("roots.pem");
    std::fs::write(&roots, &bed.authority.material().cert_pem).unwrap();
    for (http, https, no) in
        [("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"), ("http_proxy", "https_proxy", "no_proxy")]
    {
        let proxy = format!("http://me:hunter2@{proxy_at}");
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.env_clear().arg("row 107").env(CHILD, plain_at.port().to_string());
        process.env("SSL_CERT_FILE", &roots).env(http, &proxy).env(https, &proxy);
        process.env(no, ".svc,no.invalid,192.0.2.0/24");
        let output = tokio::task::spawn_blocking(move || process.output()).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = text + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{http}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        let wanted = ["CONNECT graph.example:443", "GET http://plain.example/up"];
        assert_eq!(asked, wanted, "{http}");
    }
    assert_eq!(graphs.lock().unwrap().len(), 2);
    let lines: Vec<String> = plains.lock().unwrap().iter().map(|one| one.line.clone()).collect();
    let once =
        ["GET /up", "GET /of-loopback", &*format!("GET {AGENT}/"), "GET /api/v1/namespaces?"];
    assert_eq!(lines, [once, once].concat());
}

/// A path that selects the agent of OCM.
const AGENT: &str = "/ocm-agent.openshift-ocm-agent-operator.svc.cluster.local:8081";

/// Uses the proxies of the environment. The address 0.0.0.0 is this machine, and for a proxy it is not the loopback.
async fn inside(port: u16) {
    let bed = Bed::new().await;
    let stack = ClientStack::production("refit-managed/test");
    let remote = Remote::new(stack.clone(), bed.client(), Clock::real(), Compat::Repaired);
    let remote = remote.unwrap();
    let request = GraphRequest {
        url: "https://graph.example/graph".to_owned(),
        architecture: "amd64".to_owned(),
        channel: "c".to_owned(),
        version: "1.0.0".to_owned(),
        cluster_id: "id".to_owned(),
    };
    assert_eq!(remote.graph(&request).await.unwrap(), ["1.0.1"]);
    let config = DependencyConfig { urls: Vec::new(), timeout: SignedDuration::from_secs(10) };
    for url in ["http://plain.example/up", &format!("http://localhost:{port}/of-loopback")] {
        assert_eq!(remote.unavailable(&[url.to_owned()], &config).await, []);
    }
    let agent = OcmUrl::parse(&format!("http://0.0.0.0:{port}{AGENT}")).unwrap();
    let ocm = remote.ocm(&agent, CLUSTER_ID).await.unwrap();
    assert_eq!(ocm.cluster().await.unwrap().id, "1a2b");
    // The API of Kubernetes, also by a stack with proxies.
    let url = format!("http://0.0.0.0:{port}").parse().unwrap();
    let stack = stack.with_proxies_of_environment().unwrap();
    let client = stack.client(&kube::Config::new(url)).unwrap();
    Api::<Namespace>::all(client).list(&kube::api::ListParams::default()).await.unwrap();
}

/// A proxy that demands a login, and knows these names.
async fn proxy(names: BTreeMap<String, SocketAddr>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let (names, shared) = (Arc::new(names), asked.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (names, asked) = (names.clone(), shared.clone());
            // A connection that breaks is an error of the process.
            tokio::spawn(async move { forward(stream, &names, &asked).await });
        }
    });
    (address, asked)
}

async fn forward(
    mut stream: TcpStream,
    names: &BTreeMap<String, SocketAddr>,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (line, rest) = head.split_once("\r\n").unwrap();
    let (method, target) = line.split_once(' ').unwrap();
    let target = target.strip_suffix(" HTTP/1.1").unwrap();
    asked.lock().unwrap().push(format!("{method} {target}"));
    if !rest
        .to_ascii_lowercase()
        .contains(&format!("proxy-authorization: {LOGIN}").to_ascii_lowercase())
    {
        return stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
    }
    let (name, first) = match target.strip_prefix("http://") {
        None => (target.to_owned(), None),
        Some(target) => {
            let (host, path) = target.split_once('/').unwrap();
            (format!("{host}:80"), Some(format!("{method} /{path} HTTP/1.1\r\n{rest}")))
        }
    };
    let Some(address) = names.get(&name) else {
        return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
    };
    let mut server = TcpStream::connect(address).await?;
    match first {
        None => stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        Some(first) => server.write_all(first.as_bytes()).await?,
    }
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}
