//! A management cluster on the bridge: its API, Cluster API's side and Refit's controller.
//!
//! The objects come from a sandbox that ran in simulated time: a cluster whose machines are Ready.
//! Real hosts then replace the simulated ones.

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
use kube::{Client, config::Kubeconfig};
use lab_apiserver::{
    AnswerBody, ApiServer, Options, StoreSnapshot,
    auth::{Authentication, MASTERS, PeerCertificate, Required},
};
use lab_world::world::{self, World, WorldOptions};
use refit_controller::{
    ClientTrust, ControllerOptions, HOLD_CALLERS, HookServer, Process, Settings,
};
use refit_core::node::Reboot;
use refit_kinds::refit::Goal;
use refit_runtime::{
    Clock,
    client::ClientStack,
    net::Listener,
    serve,
    tls::{self, Authority, ClientIdentity, ReloadableCert, Validity},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{eventually, net};

/// Key of the cluster.
pub const CLUSTER: &str = "default/edge-1";
const PORT: u16 = 6443;
const HOOK_PORT: u16 = 9443;
/// Name of the administrator.
const ADMIN: &str = "kubernetes-admin";
/// Name in the client certificate of Cluster API's side.
const HOOK_CLIENT: &str = "cluster-api";
/// How long before the current time the sandbox starts.
const AGE: SignedDuration = SignedDuration::from_mins(5);
/// Path of all KubeadmControlPlanes.
pub(crate) const CONTROL_PLANES: &str =
    "/apis/controlplane.cluster.x-k8s.io/v1beta2/kubeadmcontrolplanes";
/// Version of the example cluster.
const EXAMPLE_VERSION: &str = "v1.34.2";

/// The cluster that the sandbox brings up.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Number of control plane machines.
    pub control_planes: u32,
    /// Number of workers.
    pub workers: u32,
    /// Kubernetes version, `vX.Y.Z`.
    pub version: &'a str,
}

/// The objects of a cluster that is up.
pub struct Objects {
    pub(crate) management: StoreSnapshot,
    pub(crate) workload: StoreSnapshot,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Objects")
    }
}

impl Objects {
    /// Returns the objects of the management cluster.
    pub fn into_management(self) -> StoreSnapshot {
        self.management
    }

    /// Runs a sandbox of this shape up to the current time.
    pub async fn of(shape: Shape<'_>) -> anyhow::Result<Self> {
        let manifests = manifests(shape)?;
        // On another thread: the sandbox has its own runtime.
        tokio::task::spawn_blocking(move || bring_up(manifests)).await?
    }
}

/// A management API server on the bridge, until the runtime ends.
pub struct Management {
    /// A client with all permissions.
    pub client: Client,
    config: kube::Config,
    /// The account of Cluster API's managers, which admission policies know.
    capi_config: kube::Config,
    /// How Cluster API's side calls hooks.
    hook_client: ClientIdentity,
    hook_clients: Arc<ClientTrust>,
}

impl std::fmt::Debug for Management {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Management")
    }
}

/// A controller that runs until it is stopped or the runtime ends.
#[derive(Debug)]
pub struct Controller(JoinHandle<()>);

impl Controller {
    /// Stops the controller as a kill would.
    pub async fn stop(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

impl Management {
    /// Creates a NodeUpdate directly, as a user without Cluster API does.
    pub async fn ask(
        &self,
        machine: &str,
        uid: &str,
        ordinal: u32,
        goal: &Goal,
    ) -> anyhow::Result<()> {
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1",
            "kind": "NodeUpdate",
            "metadata": {"name": format!("{machine}-{ordinal}")},
            "spec": {
                "machineRef": {"name": machine, "uid": uid},
                "origin": "Task",
                "goal": goal,
                "goalHash": goal.hash(),
            },
        });
        let path = "/apis/refit.dev/v1alpha1/namespaces/default/nodeupdates";
        send(&self.client, "POST", path, &body).await.map(drop)
    }

    /// Serves these objects. No controller runs yet.
    pub async fn serve(objects: StoreSnapshot) -> anyhow::Result<Self> {
        let authority = Authority::new("management", validity())?;
        serve_api(objects, &authority, PORT).await?;
        let config = admin_config(&authority, PORT).await?;
        let capi_config = config_of(HOLD_CALLERS[0], &authority, &url(PORT)).await?;
        let client = ClientStack::production("refit-hosts").client(&config)?;
        let clients = Authority::new("hook-clients", validity())?;
        let hook_client = clients.client(HOOK_CLIENT, validity())?.into();
        let pem = clients.material().cert_pem.as_bytes();
        let hook_clients = ClientTrust::of(pem, [HOOK_CLIENT])?;
        Ok(Self { client, config, capi_config, hook_client, hook_clients })
    }

    /// Starts Refit's controller and Cluster API's side against the workload cluster of this
    /// kubeconfig.
    pub async fn drive(&self, kubeconfig: &str) -> anyhow::Result<Controller> {
        let controller = self.control(kubeconfig, Reboot::IfNeeded).await?;
        let capi = lab_cluster_api_shell::run(lab_cluster_api_shell::CapiOptions {
            stack: ClientStack::production("refit-capi/test"),
            config: self.capi_config.clone(),
            clock: Clock::real(),
            hook_client: Some(self.hook_client.clone()),
        });
        tokio::spawn(ended("refit-capi", capi));
        Ok(controller)
    }

    /// Starts Refit's controller. The previous controller must be stopped.
    pub async fn control(&self, kubeconfig: &str, reboot: Reboot) -> anyhow::Result<Controller> {
        let body = json!({"data": {"value": STANDARD.encode(kubeconfig)}});
        let path = "/api/v1/namespaces/default/secrets/edge-1-kubeconfig";
        send(&self.client, "PATCH", path, &body).await?;
        let hooks = Authority::new("hooks", validity())?;
        let ca = STANDARD.encode(&hooks.material().cert_pem);
        let body = json!({"data": {"ca.crt": ca}});
        let path = "/api/v1/namespaces/refit-system/secrets/refit-webhook-tls";
        send(&self.client, "PATCH", path, &body).await?;
        let body = json!({"spec": {"clientConfig": {
            "url": url(HOOK_PORT), "caBundle": ca, "service": null,
        }}});
        let path = "/apis/runtime.cluster.x-k8s.io/v1beta2/extensionconfigs/refit";
        send(&self.client, "PATCH", path, &body).await?;
        let cert = ReloadableCert::new(&hooks.server(&[net::SWITCH], validity())?)?;
        let listener = Listener::tcp(format!("{}:{HOOK_PORT}", net::SWITCH).parse()?).await?;
        let controller = refit_controller::run(ControllerOptions {
            stack: ClientStack::production("refit-controller/test"),
            config: self.config.clone(),
            clock: Clock::real(),
            hooks: HookServer { listener, cert, clients: Some(self.hook_clients.clone()) },
            settings: Settings { reboot, ..Settings::default() },
            process: Process::default(),
        });
        Ok(Controller(tokio::spawn(ended("refit-controller", controller))))
    }

    /// Sets the settings of all hosts.
    pub async fn set_host_settings(&self, settings: &Value) -> anyhow::Result<()> {
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1",
            "kind": "HostSettings",
            "metadata": {"name": "all"},
            "spec": {"appliesTo": {"all": {}}, "settings": settings},
        });
        let path = "/apis/refit.dev/v1alpha1/namespaces/default/hostsettings";
        if self.list(path).await?.is_empty() {
            return send(&self.client, "POST", path, &body).await.map(drop);
        }
        let body = json!({"spec": {"settings": settings}});
        send(&self.client, "PATCH", &format!("{path}/all"), &body).await.map(drop)
    }

    /// Sets another version on the control plane and, once all its machines are done, on the
    /// workers.
    pub async fn upgrade(&self, version: &str, seconds: u64) -> anyhow::Result<()> {
        let before = self.succeeded().await?;
        let body = json!({"spec": {"version": version}});
        let plane = send(&self.client, "PATCH", &owner("edge-1"), &body).await?;
        let wanted = plane["spec"]["replicas"].as_u64().unwrap_or_default();
        let wanted = before + usize::try_from(wanted)?;
        eventually("the control plane is updated", Duration::from_secs(seconds), async || {
            let done = self.succeeded().await;
            let done = done.map_err(|error| format!("{error:#}"))?;
            let line = || format!("{done} of {wanted} machines are done");
            (done >= wanted).then_some(()).ok_or_else(line)
        })
        .await?;
        let body = json!({"spec": {"template": {"spec": {"version": version}}}});
        send(&self.client, "PATCH", &owner("edge-1-md-0"), &body).await.map(drop)
    }

    async fn succeeded(&self) -> anyhow::Result<usize> {
        let updates = self.list("/apis/refit.dev/v1alpha1/nodeupdates").await?;
        let done = updates.iter().filter(|update| update["status"]["phase"] == "Succeeded");
        Ok(done.count())
    }

    /// Lists the objects of a custom kind, such as `/apis/cluster.x-k8s.io/v1beta2/machines`.
    pub async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let answer = send(&self.client, "GET", path, &Value::Null).await?;
        Ok(answer["items"].as_array().cloned().unwrap_or_default())
    }
}

/// Returns the path of the KubeadmControlPlane or MachineDeployment of this name.
pub(crate) fn owner(name: &str) -> String {
    let (group, kind) = if name == "edge-1" {
        ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes")
    } else {
        ("cluster.x-k8s.io", "machinedeployments")
    };
    format!("/apis/{group}/v1beta2/namespaces/default/{kind}/{name}")
}

pub(crate) fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().expect("a valid time"),
        until: "2120-01-01T00:00:00Z".parse().expect("a valid time"),
    }
}

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
        anyhow::ensure!(world.is_ready(), "the sandbox did not become ready in time");
        Ok(Objects {
            management: world.management().snapshot(),
            workload: world
                .workload(CLUSTER)
                .context("the workload cluster has no API server")?
                .snapshot(),
        })
    });
    runtime.shutdown_background();
    outcome
}

/// Returns the manifests of the example cluster in this shape.
fn manifests(shape: Shape<'_>) -> anyhow::Result<Vec<Value>> {
    let text = include_str!("../../../examples/cluster.yaml")
        .replace("replicas: 5", &format!("replicas: {}", shape.workers))
        .replace("replicas: 3", &format!("replicas: {}", shape.control_planes))
        .replace(EXAMPLE_VERSION, shape.version);
    text.split("\n---\n")
        .map(|part| serde_saphyr::from_str(part).context("failed to parse the example"))
        .collect()
}

async fn ended(name: &str, process: impl Future<Output = anyhow::Result<()>>) {
    let outcome = process.await;
    tracing::error!(name, ?outcome, "a process of the test exited");
}

pub(crate) fn url(port: u16) -> String {
    format!("https://{}:{port}", net::SWITCH)
}

/// Sends a request; a PATCH is a merge patch.
pub async fn send(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> anyhow::Result<Value> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
    let request = Request::builder().method(method).uri(path).header("Content-Type", kind);
    let answer = client.request(request.body(bytes)?).await;
    answer.with_context(|| format!("{method} {path}"))
}

pub(crate) fn admin_kubeconfig(authority: &Authority, port: u16) -> anyhow::Result<Value> {
    kubeconfig_of(ADMIN, authority, &url(port))
}

/// Returns the kubeconfig of a user with all permissions.
fn kubeconfig_of(user: &str, authority: &Authority, server: &str) -> anyhow::Result<Value> {
    let user = authority.client_in(user, &[MASTERS], validity())?;
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(&authority.material().cert_pem),
        }}],
        "users": [{"name": "u", "user": {
            "client-certificate-data": STANDARD.encode(&user.cert_pem),
            "client-key-data": STANDARD.encode(&user.key_pem),
        }}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }))
}

pub(crate) async fn admin_config(authority: &Authority, port: u16) -> anyhow::Result<kube::Config> {
    admin_config_at(authority, &url(port)).await
}

/// Returns an administrator's client configuration for one of several API servers.
pub(crate) async fn admin_config_at(
    authority: &Authority,
    server: &str,
) -> anyhow::Result<kube::Config> {
    config_of(ADMIN, authority, server).await
}

/// Returns the client configuration of a user with all permissions.
async fn config_of(
    user: &str,
    authority: &Authority,
    server: &str,
) -> anyhow::Result<kube::Config> {
    let text = kubeconfig_of(user, authority, server)?.to_string();
    let kubeconfig = Kubeconfig::from_yaml(&text)?;
    Ok(kube::Config::from_custom_kubeconfig(
        kubeconfig,
        &kube::config::KubeConfigOptions::default(),
    )
    .await?)
}

/// Serves the objects of a store on the bridge, over TLS, to authenticated callers.
pub(crate) async fn serve_api(
    store: StoreSnapshot,
    authority: &Authority,
    port: u16,
) -> anyhow::Result<()> {
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

/// An API server behind hyper that receives the caller's client certificate.
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
        if let Some(serve::PeerCertificates(chain)) = extensions.remove()
            && let Some(own) = chain.first()
        {
            extensions.insert(PeerCertificate(Arc::from(own.as_ref())));
        }
        let answer = self.0.call(request);
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|error| {
                // The headers are sent, then the stream breaks: the client sees a transport error.
                let broken = futures::stream::iter([Err(error)]);
                Response::new(http_body_util::StreamBody::new(broken).boxed_unsync())
            }))
        })
    }
}
