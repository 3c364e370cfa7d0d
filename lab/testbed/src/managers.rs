//! Cluster API: definitions, webhooks and managers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::{BodyExt as _, Collected, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kube::Client;
use refit_kinds::hooks::CLIENT_FLAGS;
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    certs::{Certs, HOOK_CLIENT_DIRECTORY},
    directory::free_port,
    objects::{self, text},
    parts::Parts,
    process::{Part, Program, go_env},
    wait::eventually,
};

/// How long a manager may take to become ready.
const READY: Duration = Duration::from_mins(3);
/// How many objects are applied at once.
const AT_ONCE: usize = 8;

/// One of Cluster API's managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// Clusters, Machines, MachineDeployments, extensions.
    Core,
    /// KubeadmConfigs.
    Bootstrap,
    /// KubeadmControlPlanes.
    ControlPlane,
    /// The in-memory infrastructure provider. It loses its state when it exits.
    Infrastructure,
}

impl Manager {
    /// All managers.
    pub const ALL: [Self; 4] =
        [Self::Core, Self::Bootstrap, Self::ControlPlane, Self::Infrastructure];

    /// Name of the manager's program and of its files in the cache.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Bootstrap => "bootstrap",
            Self::ControlPlane => "control-plane",
            Self::Infrastructure => "infrastructure",
        }
    }

    /// Namespace of the manager's installation.
    const fn namespace(self) -> &'static str {
        match self {
            Self::Core => "capi-system",
            Self::Bootstrap => "capi-kubeadm-bootstrap-system",
            Self::ControlPlane => "capi-kubeadm-control-plane-system",
            Self::Infrastructure => "capd-system",
        }
    }

    /// Name of the manager's ServiceAccount.
    const fn service_account(self) -> &'static str {
        match self {
            Self::Core => "capi-manager",
            Self::Bootstrap => "capi-kubeadm-bootstrap-manager",
            Self::ControlPlane => "capi-kubeadm-control-plane-manager",
            Self::Infrastructure => "capd-manager",
        }
    }

    /// Feature gates of the manager, if it has any.
    pub const fn gates(self, in_place: InPlace) -> Option<&'static str> {
        match (self, in_place) {
            (Self::Core, InPlace::On) => {
                Some("RuntimeSDK=true,InPlaceUpdates=true,ClusterTopology=true")
            }
            (Self::ControlPlane, InPlace::On) => Some("InPlaceUpdates=true,ClusterTopology=true"),
            (Self::Core, InPlace::Off) => Some("RuntimeSDK=true,ClusterTopology=true"),
            (Self::Infrastructure, _) | (Self::ControlPlane, InPlace::Off) => {
                Some("ClusterTopology=true")
            }
            (Self::Bootstrap, _) => None,
        }
    }
}

/// Cluster API's feature gate `InPlaceUpdates`, which hooks require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Cluster API calls the hooks.
    On,
    /// Cluster API replaces Machines.
    Off,
}

/// The running managers.
#[derive(Debug)]
pub struct Managers {
    parts: BTreeMap<Manager, (Part, u16)>,
}

impl Managers {
    /// Installs the definitions, starts the managers, and installs their webhooks.
    pub async fn start(
        ApiServer { client, url, .. }: &ApiServer,
        parts: &Parts,
        certs: &Certs,
        directory: &Path,
        in_place: InPlace,
    ) -> anyhow::Result<Self> {
        install_definitions(client, &parts.cluster_api).await?;
        bind_service_accounts(client).await?;
        certs.write_hook_client(directory)?;
        let mut started = Self { parts: BTreeMap::new() };
        let mut webhooks = BTreeMap::new();
        for manager in Manager::ALL {
            let certificates = directory.join(format!("{}-webhooks", manager.name()));
            certs.write_server(&certificates)?;
            write_kubeconfig(manager, certs, url, directory)?;
            let (port, health) = (free_port()?, free_port()?);
            let program =
                program(manager, in_place, &parts.cluster_api, directory, (port, health))?;
            started.parts.insert(manager, (Part::start(program, directory)?, health));
            webhooks.insert(manager, port);
        }
        for manager in Manager::ALL {
            started.ready(manager).await?;
            let port = webhooks[&manager];
            install_webhooks(client, parts, certs, manager, port).await?;
        }
        Ok(started)
    }

    /// Returns the process of a manager.
    pub fn part(&self, manager: Manager) -> &Part {
        &self.parts[&manager].0
    }

    /// Waits until a manager is ready.
    pub async fn ready(&self, manager: Manager) -> anyhow::Result<()> {
        let (part, health) = &self.parts[&manager];
        let what = format!("manager {} becomes ready", manager.name());
        let ready = eventually(&what, READY, async || probe(*health).await).await;
        ready.with_context(|| part.tail())
    }
}

fn kubeconfig(manager: Manager, directory: &Path) -> PathBuf {
    directory.join(format!("{}.kubeconfig", manager.name()))
}

/// Writes the kubeconfig with which a manager is its ServiceAccount to the API server.
fn write_kubeconfig(
    manager: Manager,
    certs: &Certs,
    url: &str,
    directory: &Path,
) -> anyhow::Result<()> {
    let (namespace, account) = (manager.namespace(), manager.service_account());
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let of_namespace = format!("system:serviceaccounts:{namespace}");
    let groups = ["system:serviceaccounts", &of_namespace];
    certs.write_kubeconfig(&kubeconfig(manager, directory), url, &user, &groups)
}

/// Gives the ServiceAccounts of the managers all rights.
async fn bind_service_accounts(client: &Client) -> anyhow::Result<()> {
    let subject = |manager: Manager| {
        let (namespace, account) = (manager.namespace(), manager.service_account());
        json!({"kind": "ServiceAccount", "namespace": namespace, "name": account})
    };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "refit-testbed-cluster-api"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        },
        "subjects": Manager::ALL.map(subject),
    });
    objects::apply(client, &binding).await?;
    Ok(())
}

fn program(
    manager: Manager,
    in_place: InPlace,
    cluster_api: &Path,
    directory: &Path,
    (port, health): (u16, u16),
) -> anyhow::Result<Program> {
    let mut args = vec![
        format!("--kubeconfig={}", kubeconfig(manager, directory).display()),
        format!("--webhook-port={port}"),
        format!(
            "--webhook-cert-dir={}",
            directory.join(format!("{}-webhooks", manager.name())).display()
        ),
        format!("--health-addr=127.0.0.1:{health}"),
        format!("--diagnostics-address=127.0.0.1:{}", free_port()?),
        "--insecure-diagnostics=true".to_owned(),
        "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields".to_owned(),
        "--v=2".to_owned(),
    ];
    args.extend(manager.gates(in_place).map(|gates| format!("--feature-gates={gates}")));
    if matches!(manager, Manager::Core | Manager::ControlPlane) {
        let files = ["tls.crt", "tls.key"];
        args.extend(CLIENT_FLAGS.iter().zip(files).map(|(flag, file)| {
            format!("{flag}={}", directory.join(HOOK_CLIENT_DIRECTORY).join(file).display())
        }));
    }
    let mut env = go_env("512MiB");
    env.insert("POD_IP".to_owned(), "127.0.0.1".to_owned());
    Ok(Program {
        name: manager.name().to_owned(),
        path: cluster_api.join(manager.name()),
        args,
        env,
        restart: true,
    })
}

/// Calls a readiness probe over plain HTTP.
pub(crate) async fn probe(port: u16) -> Result<(), String> {
    let answer = get_readyz(port).await.map_err(|error| format!("{error:#}"))?;
    let status = answer.status();
    let body = answer.into_body().collect().await;
    if status.is_success() {
        return Ok(());
    }
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    Err(format!("{status}: {}", String::from_utf8_lossy(&body)))
}

async fn get_readyz(port: u16) -> anyhow::Result<http::Response<Incoming>> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with the response: each connection carries one request.
    tokio::spawn(connection);
    let request = http::Request::get("/readyz")
        .header(http::header::HOST, "127.0.0.1")
        .body(Empty::<bytes::Bytes>::new())?;
    Ok(sender.send_request(request).await?)
}

/// Applies the definitions, labelled with the versions of Cluster API's contract that they serve
/// (`docs/facts/machine.md#contract-labels`).
async fn install_definitions(client: &Client, cluster_api: &Path) -> anyhow::Result<()> {
    let mut definitions = Vec::new();
    for manager in Manager::ALL {
        let directory: PathBuf = cluster_api.join("crds").join(manager.name());
        for mut definition in objects::directory(&directory)? {
            let labels = &mut definition["metadata"]["labels"];
            labels["cluster.x-k8s.io/v1beta1"] = json!("v1beta1");
            labels["cluster.x-k8s.io/v1beta2"] = json!("v1beta2");
            definitions.push(definition);
        }
    }
    anyhow::ensure!(
        !definitions.is_empty(),
        "{} contains no CustomResourceDefinitions",
        cluster_api.display()
    );
    apply_all(client, &definitions).await?;
    let names: Vec<&str> = definitions.iter().map(objects::name).collect();
    eventually("the CustomResourceDefinitions are established", READY, async || {
        let found = objects::Objects::of_cluster(client.clone())
            .list(objects::DEFINITION)
            .await
            .map_err(|error| format!("{error:#}"))?;
        let missing = names.iter().find(|name| {
            !found.iter().any(|definition| {
                objects::name(definition) == **name && objects::is_true(definition, "Established")
            })
        });
        missing.map_or(Ok(()), |name| Err(format!("{name} is not established")))
    })
    .await
}

async fn apply_all(client: &Client, all: &[Value]) -> anyhow::Result<()> {
    stream::iter(all)
        .map(|object| objects::apply(client, object))
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| futures::future::ok(()))
        .await
}

/// Applies the webhooks of a manager, with URLs instead of Services.
async fn install_webhooks(
    client: &Client,
    parts: &Parts,
    certs: &Certs,
    manager: Manager,
    port: u16,
) -> anyhow::Result<()> {
    let file = parts.cluster_api.join(format!("webhooks/{}.yaml", manager.name()));
    let mut configurations = objects::file_documents(&file)?;
    for configuration in &mut configurations {
        let name = format!("{}-{}", manager.name(), objects::name(configuration));
        configuration["metadata"]["name"] = json!(name);
        let webhooks = configuration["webhooks"].as_array_mut();
        for webhook in webhooks.into_iter().flatten() {
            let path = text(webhook, "/clientConfig/service/path").to_owned();
            webhook["clientConfig"] = json!({
                "url": format!("https://127.0.0.1:{port}{path}"),
                "caBundle": certs.ca_bundle(),
            });
        }
    }
    apply_all(client, &configurations).await
}
