//! Port-forwards, through kube's client over HTTP connections in memory.

use std::time::Duration;

use crate::common::{PODS, World};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use kube::{Api, Client};
use lab_apiserver::auth::{Authentication, Identity, Required};
use lab_apiserver::{ApiServer, Down, Options, PodIdentity};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::{BoxError, Service as _};

/// A client that opens a connection for each request, as this caller.
fn client(server: &ApiServer, identity: &Identity) -> Client {
    let (server, identity) = (server.clone(), identity.clone());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (mut server, identity) = (server.clone(), identity.clone());
        let service = tower::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(identity.clone());
            server.call(request)
        });
        async move {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(far), TowerToHyperService::new(service))
                .with_upgrades();
            tokio::spawn(served);
            let (mut send, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
            tokio::spawn(connection.with_upgrades());
            let response: Response<Incoming> = send.send_request(request).await?;
            Ok::<_, BoxError>(response)
        }
    });
    Client::new(service, "default")
}

fn pods(server: &ApiServer) -> Api<Pod> {
    Api::default_namespaced(client(server, &Identity::admin()))
}

fn pod(name: &str, node: Option<&str>) -> Value {
    let containers = json!([{"name": "c", "image": "i"}]);
    let spec = json!({"containers": containers, "nodeName": node});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Answers each byte with its successor, on port 2380 of the pods of node `n1`.
fn serve_successors(server: &ApiServer) {
    server.serve_ports(Box::new(|pod: &PodIdentity, port| {
        if pod.node != "n1" || port != 2380 {
            return None;
        }
        let (near, far) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(far);
            let mut chunk = vec![0; 700];
            while let Ok(count @ 1..) = reader.read(&mut chunk).await {
                let next: Vec<u8> = chunk[..count].iter().map(|b| b.wrapping_add(1)).collect();
                writer.write_all(&next).await.unwrap();
            }
        });
        Some(near)
    }));
}

async fn error_of(mut forward: Portforwarder, port: u16) -> Option<String> {
    let stream = forward.take_stream(port);
    let error = forward.take_error(port).unwrap().await;
    drop(stream);
    error
}

fn code_of(result: kube::Result<Portforwarder>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
        Ok(_) => 101,
    }
}

#[tokio::test(start_paused = true)]
async fn many_bytes_pass_in_both_directions() {
    let world = World::new();
    world.create(PODS, &pod("p", Some("n1"))).await;
    serve_successors(&world.server);
    let mut forward = pods(&world.server).portforward("p", &[2380]).await.unwrap();
    let mut stream = forward.take_stream(2380).unwrap();
    // kube's client hangs if more is in flight in both directions than the connection buffers.
    let sent: Vec<u8> = (0..50_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let wanted: Vec<u8> = sent.iter().map(|byte| byte.wrapping_add(1)).collect();
    for _ in 0..60 {
        stream.write_all(&sent).await.unwrap();
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).await.unwrap();
        assert!(received == wanted);
    }
    drop(stream);
    forward.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_port_names_the_pod_in_its_error_channel() {
    let world = World::new();
    let stored = world.create(PODS, &pod("p", Some("n1"))).await;
    let pods = pods(&world.server);
    let uid = stored["metadata"]["uid"].as_str().unwrap();
    let text = |port: u16| {
        Some(format!(
            "error forwarding port {port} to pod p, uid {uid}: connect: connection refused"
        ))
    };
    let without_handler = pods.portforward("p", &[2380]).await.unwrap();
    assert_eq!(error_of(without_handler, 2380).await, text(2380));
    serve_successors(&world.server);
    let refused = pods.portforward("p", &[80]).await.unwrap();
    assert_eq!(error_of(refused, 80).await, text(80));
}

#[tokio::test(start_paused = true)]
async fn one_connection_carries_several_ports() {
    let world = World::new();
    world.create(PODS, &pod("p", Some("n1"))).await;
    serve_successors(&world.server);
    let mut forward = pods(&world.server).portforward("p", &[80, 2380]).await.unwrap();
    let error = forward.take_error(80).unwrap();
    assert!(error.await.unwrap().contains("port 80 "));
    let mut stream = forward.take_stream(2380).unwrap();
    stream.write_all(b"abc").await.unwrap();
    let mut read = [0; 3];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"bcd");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_exist_or_runs_nowhere_is_an_error() {
    let world = World::new();
    world.create(PODS, &pod("p", None)).await;
    let pods = pods(&world.server);
    assert_eq!(code_of(pods.portforward("missing", &[2380]).await), 404);
    let unassigned = pods.portforward("p", &[2380]).await.err().unwrap().to_string();
    assert!(unassigned.contains("pod p does not have a host assigned"), "{unassigned}");
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_known_subprotocol_reach_no_port() {
    let world = World::new();
    world.create(PODS, &pod("p", Some("n1"))).await;
    let (code, status) = world.post(&format!("{PODS}/p/portforward"), &Value::Null).await;
    assert_eq!(code, 501, "{status}");
    let (code, _) = world.get(&format!("{PODS}/p/portforward?ports=2380")).await;
    assert_eq!(code, 501);
}

/// A server at which jane may do these verbs on `pods/portforward`.
async fn enforced(version: &str, verbs: &[&str]) -> (ApiServer, Identity) {
    let noon = "2026-01-01T12:00:00Z".parse().unwrap();
    let mut options = Options::new(std::sync::Arc::new(move || noon));
    options.git_version = version.to_owned();
    options.authentication = Authentication::Required(Required::new("a key for tests"));
    let server = ApiServer::new(options);
    let admin = client(&server, &Identity::admin());
    let post = async |path: &str, body: Value| {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        admin.request::<Value>(request).await.unwrap();
    };
    post(PODS, pod("p", Some("n1"))).await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["pods/portforward"], "verbs": verbs}]);
    post(&format!("{roles}/roles"), json!({"metadata": {"name": "r"}, "rules": rules})).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}],
    });
    post(&format!("{roles}/rolebindings"), binding).await;
    (server, Identity::new("jane", &[]))
}

#[tokio::test(start_paused = true)]
async fn a_port_forward_needs_get_and_since_1_35_create() {
    for (version, verbs, wanted) in [
        ("v1.34.2", &["get"][..], 101),
        ("v1.34.2", &["create"], 403),
        ("v1.35.0", &["get"], 403),
        ("v1.35.0", &["create"], 403),
        ("v1.35.0", &["get", "create"], 101),
    ] {
        let (server, jane) = enforced(version, verbs).await;
        let pods = Api::<Pod>::default_namespaced(client(&server, &jane));
        let code = code_of(pods.portforward("p", &[2380]).await);
        assert_eq!(code, wanted, "{version} {verbs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn port_forwards_end_with_their_pod_and_with_the_api() {
    type End = fn(&World);
    let delete: End = |world| {
        let world = world.clone();
        tokio::spawn(async move {
            world.delete(&format!("{PODS}/p"), &json!({"gracePeriodSeconds": 0})).await
        });
    };
    let down: End = |world| world.server.faults().set_down(Some(Down::Refuse));
    let drop_watches: End = |world| world.server.faults().drop_watches();
    for end in [delete, down, drop_watches] {
        let world = World::new();
        world.create(PODS, &pod("p", Some("n1"))).await;
        serve_successors(&world.server);
        let mut forward = pods(&world.server).portforward("p", &[2380]).await.unwrap();
        let mut stream = forward.take_stream(2380).unwrap();
        stream.write_all(b"a").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'b');
        world.server.faults().set_latency(Duration::from_secs(1));
        let quiet = tokio::time::timeout(Duration::from_mins(1), stream.read_u8()).await;
        assert!(quiet.is_err(), "a port-forward stays open");
        end(&world);
        let ended = tokio::time::timeout(Duration::from_mins(1), stream.read_u8()).await;
        assert!(ended.unwrap().is_err());
    }
}
