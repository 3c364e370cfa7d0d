//! Port-forwards through a real kube-apiserver to the streaming server of a kubelet.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    fs, io,
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use lab_simhost::k8sd::{K8sd, REFRESH, REFRESH_STATUS, RefreshScript};
use lab_testbed::{
    Line,
    apiserver::ApiServer,
    certs::Certs,
    directory::{self, free_port},
    eventually, objects, parts,
    process::{Part, Program},
};
use refit_runtime::{
    Clock,
    client::{ClientStack, JsonPost, PINNED_DEADLINE, PinnedConnection},
    port_forward::{PortForwardError, PortStream, port_forward},
    tls::Pin,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const SOON: Duration = Duration::from_mins(1);
const NAMESPACE: &str = "kube-system";
const NODE: &str = "n1";
/// The pod of that node.
const POD: &str = "k8sd-proxy-n1";
/// Bytes that take many messages.
const MUCH: usize = 8 << 20;
/// What the documentation grants in workload clusters.
const ROLE: &str = include_str!("../../../deploy/canonical/workload_role.yaml");
const CHANNEL: &str = "1.34-classic/stable";
/// Tokens have 32 hexadecimal digits.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Logs of all tests.
static DIRECTORY: LazyLock<PathBuf> =
    LazyLock::new(|| directory::run(Clock::real(), "port-forwards").unwrap());

/// An API server, and a Node with a kubelet and a pod whose ports are those of this machine.
struct Lab {
    server: ApiServer,
    certs: Certs,
    /// A client with the rights of [`ROLE`].
    client: Client,
    _kubelet: Part,
}

impl Lab {
    async fn start(name: &str) -> Self {
        let parts = parts::find(Line::V1_14).unwrap();
        let directory = DIRECTORY.join(name);
        fs::create_dir(&directory).unwrap();
        let certs = Certs::new(Clock::real()).unwrap();
        let server = ApiServer::start(&parts, &certs, &directory).await.unwrap();
        let port = free_port().unwrap();
        certs.write_server(&directory.join("kubelet")).unwrap();
        let file = |name: &str| directory.join("kubelet").join(name).display().to_string();
        let kubelet = Program {
            name: "kubelet".to_owned(),
            path: parts.kubelet.expect("`cargo xtask testbed build` builds it"),
            args: vec![
                format!("-listen=127.0.0.1:{port}"),
                format!("-cert={}", file("tls.crt")),
                format!("-key={}", file("tls.key")),
                format!("-pod={NAMESPACE}/{POD}"),
            ],
            ..Program::default()
        };
        let kubelet = Part::start(kubelet, &directory).unwrap();
        let mut role = objects::documents(ROLE, &[]).unwrap();
        let rules = role.remove(0)["rules"].take();
        let client = client_of(&certs, &server, "refit").await;
        let lab = Self { server, certs, client, _kubelet: kubelet };
        lab.add_node(NODE, port).await;
        eventually("the namespace exists", SOON, async || {
            lab.add_pod(POD, Some(NODE)).await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        lab.grant("refit", rules).await;
        eventually("rights and kubelet are there", SOON, async || {
            TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
            let forwarded = port_forward(&lab.client, NAMESPACE, POD, 1).await;
            forwarded.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        lab
    }

    async fn add_node(&self, name: &str, kubelet: u16) {
        let nodes: Api<Node> = Api::all(self.server.client.clone());
        let node = json!({
            "metadata": {"name": name},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet}},
            },
        });
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }

    /// Adds a running pod, or one that waits for a Node.
    async fn add_pod(&self, name: &str, node: Option<&str>) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.server.client.clone(), NAMESPACE);
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "k8sd-proxy"}},
            "spec": {"nodeName": node, "containers": [{"name": "socat", "image": "socat"}]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await?;
        if node.is_some() {
            let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
            pods.patch_status(name, &PatchParams::default(), &running).await?;
        }
        Ok(())
    }

    /// Grants a user rights by these rules.
    async fn grant(&self, user: &str, rules: Value) {
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
            "metadata": {"name": user}, "rules": rules,
        });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        for object in [role, binding] {
            objects::apply(&self.server.client, &object).await.unwrap();
        }
    }

    async fn forward(&self, port: u16) -> PortStream {
        port_forward(&self.client, NAMESPACE, POD, port).await.unwrap()
    }

    /// Why a port of a pod cannot be forwarded, without the port and the pod.
    async fn refusal(&self, client: &Client, pod: &str) -> String {
        let error = port_forward(client, NAMESPACE, pod, 2380).await.unwrap_err();
        assert!(matches!(error, PortForwardError::Connect { .. }), "{error:?}");
        let text = error.to_string();
        let prefix = format!("cannot forward port 2380 of pod {NAMESPACE}/{pod}: ");
        text.strip_prefix(&prefix).expect(&text).trim_end().to_owned()
    }
}

async fn client_of(certs: &Certs, server: &ApiServer, user: &str) -> Client {
    let config = certs.config(&server.url, user, &[]).await.unwrap();
    ClientStack::production("port-forwards").client(&config).unwrap()
}

/// A port of this machine on which a pod listens.
async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Data of which no two parts of 64 KiB are the same.
fn pattern() -> Vec<u8> {
    (0..u32::try_from(MUCH / 4).unwrap()).flat_map(u32::to_le_bytes).collect()
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it ends within a minute")
}

#[tokio::test]
async fn data_and_ends_pass_in_both_directions() {
    let lab = Lab::start("data").await;
    let (listener, port) = listen().await;
    let sent = pattern();

    // Both directions at once, and then the end of the target.
    let (mut reader, mut writer) = tokio::io::split(lab.forward(port).await);
    let (mut target, _) = within(listener.accept()).await.unwrap();
    let echo = async {
        let (mut input, mut output) = target.split();
        let count = u64::try_from(MUCH).unwrap();
        tokio::io::copy(&mut (&mut input).take(count), &mut output).await?;
        drop(target);
        Ok(())
    };
    let send = async {
        writer.write_all(&sent).await?;
        writer.flush().await
    };
    let mut received = Vec::new();
    within(async { tokio::try_join!(echo, send, reader.read_to_end(&mut received)) })
        .await
        .unwrap();
    assert!(received == sent, "{} bytes", received.len());

    // The client shuts down: the target gets everything, and the end.
    let mut stream = lab.forward(port).await;
    let (mut target, _) = within(listener.accept()).await.unwrap();
    let send = async {
        stream.write_all(&sent).await?;
        stream.shutdown().await
    };
    received.clear();
    within(async { tokio::try_join!(send, target.read_to_end(&mut received)) }).await.unwrap();
    assert!(received == sent, "{} bytes", received.len());

    // The client drops the stream.
    let mut stream = lab.forward(port).await;
    let (mut target, _) = within(listener.accept()).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    target.read_exact(&mut [0; 5]).await.unwrap();
    drop(stream);
    assert_eq!(within(target.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn errors_name_the_pod_the_port_and_the_reason() {
    let lab = Lab::start("errors").await;

    // Nothing listens there.
    let port = free_port().unwrap();
    let error = within(lab.forward(port).await.read(&mut [0; 1])).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let text = error.to_string();
    let wanted = format!(
        "port {port} of pod {NAMESPACE}/{POD} cannot be reached: error forwarding port {port} to pod"
    );
    assert!(text.starts_with(&wanted) && text.ends_with("connection refused"), "{text}");

    lab.add_pod("pending", None).await.unwrap();
    lab.add_pod("unknown", Some(NODE)).await.unwrap();
    lab.add_node("n2", free_port().unwrap()).await;
    lab.add_pod("unreachable", Some("n2")).await.unwrap();
    for (pod, wanted) in [
        ("missing", "pods \"missing\" not found"),
        ("pending", "pod pending does not have a host assigned"),
        ("unknown", "pod does not exist"),
        ("unreachable", "error dialing backend: dial tcp 127.0.0.1:"),
    ] {
        let text = lab.refusal(&lab.client, pod).await;
        assert!(text.starts_with(wanted), "{text}");
    }
}

#[tokio::test]
async fn a_port_forward_needs_get_and_create() {
    let lab = Lab::start("rights").await;
    let required = "(get and create of pods/portforward are required)";
    for verb in ["get", "create"] {
        let user = format!("may-{verb}");
        let client = client_of(&lab.certs, &lab.server, &user).await;
        let rights = json!([
            {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": [verb]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ]);
        lab.grant(&user, rights).await;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        eventually("the rights are in force", SOON, async || {
            pods.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        let text = lab.refusal(&client, POD).await;
        assert!(text.starts_with(&format!("pods \"{POD}\" is forbidden")), "{text}");
        assert!(text.ends_with(required), "{text}");
        // The API server does not name a missing `create`.
        assert_eq!(text.contains("cannot get resource"), verb == "create", "{text}");
    }
}

#[tokio::test]
async fn k8sd_refreshes_the_snap_of_a_node() {
    let lab = Lab::start("k8sd").await;
    let clock = Clock::real();
    let k8sd = K8sd::new(clock, NODE, TOKEN).unwrap();
    let (listener, port) = listen().await;
    tokio::spawn(serve(listener, k8sd.clone()));
    k8sd.script(RefreshScript { duration: Duration::from_millis(1), ..RefreshScript::default() });
    let call = async |path: &str, body: Value| {
        let stack = ClientStack::production("port-forwards");
        let stream = lab.forward(port).await;
        let connection =
            PinnedConnection::open(&stack, stream, "n1:2380", Pin::FirstUse, PINNED_DEADLINE).await;
        let token = (HeaderName::from_static("node-token"), HeaderValue::from_static(TOKEN));
        let post = JsonPost {
            path: path.to_owned(),
            headers: vec![token],
            body: body.to_string().into_bytes(),
            changes: path == REFRESH,
        };
        let answer = connection.unwrap().post(post).await.unwrap();
        serde_json::from_slice::<Value>(&answer.body).unwrap()["metadata"].take()
    };
    let change = call(REFRESH, json!({"channel": CHANNEL})).await;
    eventually("the change is done", SOON, async || {
        let status = call(REFRESH_STATUS, change.clone()).await;
        if status["status"] == "Done" { Ok(()) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();
    assert_eq!(k8sd.installed(), Some(format!("channel={CHANNEL}")));
}

/// What the proxy pod does: connects to k8sd.
async fn serve(listener: TcpListener, k8sd: Arc<K8sd>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let Some(mut server) = k8sd.connect() else { continue };
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    }
}
