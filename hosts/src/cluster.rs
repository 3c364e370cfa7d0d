//! Management and workload API on the bridge, Cluster API's side and Refit's controller.
//!
//! The objects come from a sandbox that ran in simulated time: a cluster whose machines are Ready.
//! Real hosts then take the places of the simulated ones.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _, api::ListParams, config::Kubeconfig};
use refit_apiserver::{
    AnswerBody, ApiServer, Options, StoreSnapshot,
    auth::{Authentication, MASTERS, PeerCertificate, Required},
};
use refit_controller::{ControllerOptions, HookServer, Process, Settings};
use refit_core::safeguards::Safeguards;
use refit_kube::{
    Clock,
    client::ClientStack,
    net::Listener,
    serve,
    tls::{self, Authority, ReloadableCert, Validity},
};
use refit_sandbox::world::{self, World, WorldOptions};
use serde_json::{Value, json};

use crate::net;

/// Key of the cluster.
pub const CLUSTER: &str = "default/edge-1";
const MANAGEMENT_PORT: u16 = 6443;
const WORKLOAD_PORT: u16 = 6444;
const HOOK_PORT: u16 = 9443;
/// How far back in time the sandbox begins.
const AGE: SignedDuration = SignedDuration::from_mins(5);

/// Two API servers on the bridge and what runs beside them, until the runtime ends.
pub struct Cluster {
    /// Client of the management cluster that may do everything.
    pub management: Client,
    /// Client of the workload cluster that may do everything.
    pub workload: Client,
    management_config: kube::Config,
    workload_authority: Authority,
    /// Names of the control plane nodes, in order.
    pub control_planes: Vec<String>,
    /// Names of the workers, in order.
    pub workers: Vec<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

/// What a node has of its cluster.
#[derive(Debug)]
pub struct NodeFiles {
    /// PEM of the cluster's authority.
    pub ca: String,
    /// The kubelet's kubeconfig.
    pub kubelet_conf: String,
    /// PEM of the kubelet's certificate and key.
    pub credentials: String,
    /// An administrator's kubeconfig.
    pub admin_conf: String,
}

/// The objects of a cluster that has come up.
struct Objects {
    management: StoreSnapshot,
    workload: StoreSnapshot,
}

fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().expect("a valid time"),
        until: "2120-01-01T00:00:00Z".parse().expect("a valid time"),
    }
}

/// Lets a sandbox of these manifests run until now. Not in a runtime: it has one of its own.
fn bring_up(manifests: Vec<Value>) -> anyhow::Result<Objects> {
    let runtime = world::runtime()?;
    let outcome = runtime.block_on(async {
        let options = WorldOptions {
            epoch: Clock::real().now_seconds() - AGE,
            hurry: 10,
            ..WorldOptions::new(manifests)
        };
        let world = World::new(options).await?;
        loop {
            let left = Clock::real().now().duration_since(world.now());
            let left = Duration::try_from(left).unwrap_or_default();
            if left < Duration::from_millis(10) {
                break;
            }
            world.pass(left.min(Duration::from_secs(10))).await;
        }
        anyhow::ensure!(world.is_ready(), "the sandbox does not get ready");
        Ok(Objects {
            management: world.management().snapshot(),
            workload: world
                .workload(CLUSTER)
                .context("no workload API")?
                .snapshot(),
        })
    });
    runtime.shutdown_background();
    outcome
}

/// Manifests of the example cluster with this many workers.
fn manifests(workers: u32) -> anyhow::Result<Vec<Value>> {
    let text = include_str!("../../examples/cluster.yaml");
    let text = text.replace("replicas: 5", &format!("replicas: {workers}"));
    text.split("\n---\n")
        .map(|part| serde_saphyr::from_str(part).context("the example cannot be read"))
        .collect()
}

impl Cluster {
    /// Serves a cluster of three control plane machines and this many workers, whose machines are at
    /// the first version of the packages. Nobody drives it yet.
    pub async fn start(workers: u32) -> anyhow::Result<Self> {
        let manifests = manifests(workers)?;
        let objects = tokio::task::spawn_blocking(move || bring_up(manifests)).await??;
        let management_authority = Authority::new("management", validity())?;
        let workload_authority = Authority::new("edge-1", validity())?;
        serve_api(objects.management, &management_authority, MANAGEMENT_PORT).await?;
        serve_api(objects.workload, &workload_authority, WORKLOAD_PORT).await?;
        let management_config = admin_config(&management_authority, MANAGEMENT_PORT).await?;
        let workload_config = admin_config(&workload_authority, WORKLOAD_PORT).await?;
        let stack = ClientStack::production("refit-hosts");
        let workload = stack.client(&workload_config)?;
        let (control_planes, workers) = nodes(&workload).await?;
        let cluster = Self {
            management: stack.client(&management_config)?,
            workload,
            management_config,
            workload_authority,
            control_planes,
            workers,
        };
        cluster.give_nodes_their_rights().await?;
        Ok(cluster)
    }

    /// What kubeadm leaves on a node of this name.
    pub fn node_files(&self, node: &str) -> anyhow::Result<NodeFiles> {
        let authority = &self.workload_authority;
        let user = format!("system:node:{node}");
        let own = authority.client_in(&user, &["system:nodes"], validity())?;
        let ca = authority.material().cert_pem.clone();
        let file = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        let kubelet_conf = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters:\n- name: default\n  \
             cluster:\n    certificate-authority-data: {}\n    server: {}\ncontexts:\n- name: \
             default\n  context:\n    cluster: default\n    user: default\nusers:\n- name: \
             default\n  user:\n    client-certificate: {file}\n    client-key: {file}\n",
            STANDARD.encode(&ca),
            url(WORKLOAD_PORT)
        );
        Ok(NodeFiles {
            kubelet_conf,
            credentials: own.cert_pem + &own.key_pem,
            admin_conf: admin_kubeconfig(authority, WORKLOAD_PORT)?.to_string(),
            ca,
        })
    }

    /// What the node authorizer allows a kubelet.
    async fn give_nodes_their_rights(&self) -> anyhow::Result<()> {
        let rbac = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
            "metadata": {"name": "test:nodes"},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes", "nodes/status", "pods", "pods/status"], "verbs": ["*"]},
            ],
        });
        let binding = json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": "test:nodes"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "test:nodes"},
            "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "system:nodes"}],
        });
        let path = format!("/apis/{rbac}/v1");
        send(
            &self.workload,
            "POST",
            &format!("{path}/clusterroles"),
            &role,
        )
        .await?;
        send(
            &self.workload,
            "POST",
            &format!("{path}/clusterrolebindings"),
            &binding,
        )
        .await?;
        Ok(())
    }

    /// Starts Cluster API's side and Refit's controller against the API servers on the bridge.
    pub async fn drive(&self) -> anyhow::Result<()> {
        let config = self.management_config.clone();
        let kubeconfig = admin_kubeconfig(&self.workload_authority, WORKLOAD_PORT)?.to_string();
        let body = json!({"data": {"value": STANDARD.encode(kubeconfig)}});
        let secrets = "/api/v1/namespaces/default/secrets";
        send(
            &self.management,
            "PATCH",
            &format!("{secrets}/edge-1-kubeconfig"),
            &body,
        )
        .await?;
        let hooks = Authority::new("hooks", validity())?;
        let ca = STANDARD.encode(&hooks.material().cert_pem);
        let body = json!({"data": {"ca.crt": ca}});
        let path = "/api/v1/namespaces/refit-system/secrets/refit-webhook-tls";
        send(&self.management, "PATCH", path, &body).await?;
        let body = json!({"spec": {"clientConfig": {
            "url": url(HOOK_PORT), "caBundle": ca, "service": null,
        }}});
        let path = "/apis/runtime.cluster.x-k8s.io/v1beta2/extensionconfigs/refit";
        send(&self.management, "PATCH", path, &body).await?;
        let clock = Clock::real();
        let cert = ReloadableCert::new(&hooks.server(&[net::SWITCH], validity())?)?;
        let listener = Listener::tcp(format!("{}:{HOOK_PORT}", net::SWITCH).parse()?).await?;
        let controller = refit_controller::run(ControllerOptions {
            stack: ClientStack::production("refit-controller/test"),
            config: config.clone(),
            clock,
            hooks: HookServer {
                listener,
                cert,
                client_ca_pem: None,
            },
            safeguards: Safeguards::default(),
            settings: Settings::default(),
            process: Process::default(),
        });
        let capi = refit_capi::run(refit_capi::CapiOptions {
            stack: ClientStack::production("refit-capi/test"),
            config,
            clock,
        });
        tokio::spawn(ended("refit-controller", controller));
        tokio::spawn(ended("refit-capi", capi));
        Ok(())
    }

    /// Asks for another version of control plane and workers, as a user does.
    pub async fn upgrade(&self, version: &str) -> anyhow::Result<()> {
        let body = json!({"spec": {"version": version}});
        let group = "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default";
        let path = format!("{group}/kubeadmcontrolplanes/edge-1");
        send(&self.management, "PATCH", &path, &body).await?;
        let body = json!({"spec": {"template": {"spec": {"version": version}}}});
        let group = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default";
        let path = format!("{group}/machinedeployments/edge-1-md-0");
        send(&self.management, "PATCH", &path, &body)
            .await
            .map(drop)
    }

    /// The Nodes, by name.
    pub async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes = Api::<Node>::all(self.workload.clone());
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// All objects of a custom kind of the management cluster, such as
    /// `/apis/cluster.x-k8s.io/v1beta2/machines`.
    pub async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let answer = send(&self.management, "GET", path, &Value::Null).await?;
        Ok(answer["items"].as_array().cloned().unwrap_or_default())
    }
}

async fn ended(name: &str, process: impl Future<Output = anyhow::Result<()>>) {
    let outcome = process.await;
    tracing::error!(name, ?outcome, "a process of the test ended");
}

fn url(port: u16) -> String {
    format!("https://{}:{port}", net::SWITCH)
}

async fn nodes(client: &Client) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let nodes = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let (planes, workers): (Vec<_>, Vec<_>) = nodes.items.iter().partition(|node| {
        node.labels()
            .contains_key("node-role.kubernetes.io/control-plane")
    });
    let names = |nodes: Vec<&Node>| nodes.into_iter().map(kube::ResourceExt::name_any).collect();
    Ok((names(planes), names(workers)))
}

/// Sends a request; a PATCH is a merge patch.
pub async fn send(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> anyhow::Result<Value> {
    let kind = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(body)?
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", kind);
    let answer = client.request(request.body(bytes)?).await;
    answer.with_context(|| format!("{method} {path}"))
}

fn admin_kubeconfig(authority: &Authority, port: u16) -> anyhow::Result<Value> {
    let admin = authority.client_in("kubernetes-admin", &[MASTERS], validity())?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": url(port),
            "certificate-authority-data": STANDARD.encode(&authority.material().cert_pem),
        }}],
        "users": [{"name": "u", "user": {
            "client-certificate-data": STANDARD.encode(&admin.cert_pem),
            "client-key-data": STANDARD.encode(&admin.key_pem),
        }}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }))
}

async fn admin_config(authority: &Authority, port: u16) -> anyhow::Result<kube::Config> {
    let text = admin_kubeconfig(authority, port)?.to_string();
    let kubeconfig = Kubeconfig::from_yaml(&text)?;
    Ok(kube::Config::from_custom_kubeconfig(
        kubeconfig,
        &kube::config::KubeConfigOptions::default(),
    )
    .await?)
}

/// Serves the objects of a store on the bridge, over TLS, to callers who say who they are.
async fn serve_api(store: StoreSnapshot, authority: &Authority, port: u16) -> anyhow::Result<()> {
    let clock = Clock::real();
    let key = *b"a key of a test, 32 bytes long..";
    let server = ApiServer::restore(
        store,
        Options {
            authentication: Authentication::Required(Required::new(key)),
            ..Options::new(Arc::new(move || clock.now()))
        },
    );
    let cert = ReloadableCert::new(&authority.server(&[net::SWITCH], validity())?)?;
    let ca = authority.material().cert_pem.clone();
    let tls = tls::api_server_config(cert, ca.as_bytes())?;
    let listener = Listener::tcp(format!("{}:{port}", net::SWITCH).parse()?).await?;
    tokio::spawn(serve::serve(listener, Some(tls), Served(server), pending()));
    Ok(())
}

/// An API server behind hyper that is told which certificate a caller showed.
#[derive(Clone)]
struct Served(ApiServer);

impl tower::Service<Request<Incoming>> for Served {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let extensions = request.extensions_mut();
        if let Some(serve::PeerCertificate(der)) = extensions.remove() {
            extensions.insert(PeerCertificate(der));
        }
        let answer = self.0.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                // The head is out, then the stream breaks: the client sees a transport error.
                let broken = futures::stream::iter([Err(error)]);
                Response::new(http_body_util::StreamBody::new(broken).boxed_unsync())
            }))
        })
    }
}
