//! Measures the server with a fleet: posts and lists 30,000 Machines of 4 KiB, and checks time and
//! memory.

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use lab_apiserver::{ApiServer, Options};
use serde_json::{Value, json};
use tower::ServiceExt;

const MACHINES: usize = 30_000;
const MACHINE_BYTES: usize = 4096;
const POST_LIMIT: Duration = Duration::from_secs(30);
const LIST_LIMIT: Duration = Duration::from_secs(1);
const MEMORY_LIMIT_MIB: f64 = 400.0;
const MACHINES_PATH: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";

fn crd() -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.x-k8s.io"},
        "spec": {
            "group": "cluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "Machine", "plural": "machines"},
            "versions": [{
                "name": "v1beta2",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": open, "status": open},
                }},
                "subresources": {"status": {}},
            }],
        },
    })
}

fn machine(index: usize) -> Vec<u8> {
    let group = index / 100;
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {
            "name": format!("fleet-{group:03}-md-0-{index:05}"),
            "labels": {
                "cluster.x-k8s.io/cluster-name": format!("fleet-{group:03}"),
                "cluster.x-k8s.io/deployment-name": format!("fleet-{group:03}-md-0"),
                "machine-template-hash": "2718281828",
            },
            "annotations": {},
            "finalizers": ["machine.cluster.x-k8s.io"],
        },
        "spec": {
            "clusterName": format!("fleet-{group:03}"),
            "version": "v1.34.2",
            "providerID": format!("docker:////fleet-{group:03}-{index:05}"),
            "bootstrap": {
                "configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig",
                    "name": format!("fleet-{group:03}-md-0-{index:05}")},
                "dataSecretName": format!("fleet-{group:03}-md-0-{index:05}"),
            },
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "DockerMachine", "name": format!("fleet-{group:03}-md-0-{index:05}")},
            "deletion": {"nodeDrainTimeoutSeconds": 600},
        },
    });
    let size = object.to_string().len();
    object["metadata"]["annotations"]["refit.dev/padding"] = json!("");
    let overhead = object.to_string().len() - size;
    let padding = "x".repeat(MACHINE_BYTES - size - overhead);
    object["metadata"]["annotations"]["refit.dev/padding"] = json!(padding);
    object.to_string().into_bytes()
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * 4096.0
}

async fn send(server: &ApiServer, method: &str, path: &str, body: Vec<u8>) -> usize {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("user-agent", "bench/1")
        .body(Full::new(Bytes::from(body)))
        .expect("the parts are well-formed");
    let answer = server.clone().oneshot(request).await.expect("no fault is set");
    assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
    let mut body = answer.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.expect("no fault is set");
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    bytes
}

fn verdict(good: bool) -> &'static str {
    if good { "pass" } else { "FAIL" }
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

async fn run() -> bool {
    let start = jiff::Timestamp::UNIX_EPOCH;
    let server = ApiServer::new(Options::new(Arc::new(move || start)));
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    send(&server, "POST", crds, crd().to_string().into_bytes()).await;
    let before = resident_bytes();
    let clock = Instant::now();
    let mut posted = 0;
    for index in 0..MACHINES {
        let body = machine(index);
        posted += body.len();
        send(&server, "POST", MACHINES_PATH, body).await;
    }
    let post_time = clock.elapsed();
    let clock = Instant::now();
    let listed = send(&server, "GET", MACHINES_PATH, Vec::new()).await;
    let list_time = clock.elapsed();
    let clock = Instant::now();
    let selector = "?labelSelector=cluster.x-k8s.io%2Fcluster-name%3Dfleet-007";
    let selected = send(&server, "GET", &format!("{MACHINES_PATH}{selector}"), Vec::new()).await;
    let select_time = clock.elapsed();
    let grown = (resident_bytes() - before) / (1024.0 * 1024.0);
    let clock = Instant::now();
    let snapshot = server.snapshot();
    let snapshot_time = clock.elapsed();

    let kept = server.stored_bytes();
    let good = [post_time < POST_LIMIT, list_time < LIST_LIMIT, grown < MEMORY_LIMIT_MIB];
    println!("{MACHINES} Machines of {MACHINE_BYTES} bytes, ring of 10000");
    println!(
        "post:   {:6.2} s  (limit {:3} s)    {}",
        post_time.as_secs_f64(),
        POST_LIMIT.as_secs(),
        verdict(good[0])
    );
    println!(
        "list:   {:6.3} s  (limit {:3} s)    {}  ({:.0} MiB to the last byte)",
        list_time.as_secs_f64(),
        LIST_LIMIT.as_secs(),
        verdict(good[1]),
        mib(listed)
    );
    println!("memory: {grown:6.0} MiB (limit {MEMORY_LIMIT_MIB:.0} MiB) {}", verdict(good[2]));
    println!(
        "select: {:6.1} ms for {:.1} MiB of one cluster; snapshot of {} objects: {:.2} ms",
        select_time.as_secs_f64() * 1e3,
        mib(selected),
        snapshot.len(),
        snapshot_time.as_secs_f64() * 1e3,
    );
    println!(
        "kept / posted: {:.0} MiB / {:.0} MiB = {:.2}; resident / posted = {:.2}",
        mib(kept),
        mib(posted),
        mib(kept) / mib(posted),
        grown / mib(posted)
    );
    good.iter().all(|good| *good)
}

fn main() -> std::process::ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a current-thread runtime can be created");
    if runtime.block_on(run()) {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}
