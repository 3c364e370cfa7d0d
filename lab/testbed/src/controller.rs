//! The Refit controller, installed from `deploy/` and run as a real process.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use kube::Client;
use refit_install::{Choices, Part as Manifests, manifests, objects as of_manifests};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    alertmanager,
    certs::{Certs, HOOK_CLIENT},
    directory::free_port,
    fault::FaultProxy,
    fixtures,
    managers::probe,
    objects::{self, EXTENSION_CONFIG, Objects},
    process::{Part, Program},
    prometheus,
    tap::Tap,
    wait::eventually,
};

/// How long the controller may take to become ready, and Cluster API to discover it.
const READY: Duration = Duration::from_mins(2);
/// The label of namespaces in which Cluster API calls Refit's hooks.
pub const OPT_IN: (&str, &str) = ("refit.dev/in-place", "enabled");
/// Name of Refit's ExtensionConfig.
pub const EXTENSION: &str = "refit";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:refit-system:refit-controller";
const GROUPS: [&str; 2] = ["system:serviceaccounts", "system:serviceaccounts:refit-system"];
/// Additional permissions of the controller for HostPlans that are stored next to Machines.
const MANAGEMENT_PLANS: [&str; 2] = [
    include_str!("../../../deploy/management-plans/role.yaml"),
    include_str!("../../../deploy/management-plans/role_binding.yaml"),
];

/// The running Refit controller.
pub struct Controller {
    part: Part,
    health: u16,
    /// Port at which the controller asks for Prometheus.
    prometheus: u16,
    alertmanager: u16,
    /// Port of the hooks.
    pub hooks: u16,
    tap: Option<Tap>,
    client: Client,
    ca_bundle: String,
}

impl Controller {
    /// Installs and starts the controller, and registers it with Cluster API.
    pub async fn start(
        client: &Client,
        url: &str,
        certs: &Certs,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        install(client).await?;
        let program = program("refit-controller", "refit-controller").await?;
        let certificates = directory.join("refit-controller-hooks");
        certs.write_server(&certificates)?;
        let kubeconfig = kubeconfig(directory);
        certs.write_kubeconfig(&kubeconfig, url, SERVICE_ACCOUNT, &GROUPS)?;
        let (hooks, health) = (free_port()?, free_port()?);
        let (prometheus, alertmanager) = (free_port()?, free_port()?);
        let program = Program {
            name: "refit-controller".to_owned(),
            path: program,
            args: vec![
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--webhook-bind=127.0.0.1:{hooks}"),
                format!("--health-bind=127.0.0.1:{health}"),
                format!("--cert-dir={}", certificates.display()),
                format!("--client-ca={}", certificates.join("ca.crt").display()),
                format!("--client-name={HOOK_CLIENT}"),
                "--plan-location=Management".to_owned(),
                format!("--prometheus-url=http://127.0.0.1:{prometheus}"),
                format!("--alertmanager-url=http://127.0.0.1:{alertmanager}"),
                "--silence-matcher=namespace=$(namespace)".to_owned(),
                "--shutdown-delay-seconds=1".to_owned(),
                // Short, because the next controller waits for the lease of a killed one.
                "--lease-duration-seconds=6".to_owned(),
                "--lease-renew-deadline-seconds=4".to_owned(),
                "--lease-retry-period-seconds=1".to_owned(),
                "--log=refit_controller=debug,info".to_owned(),
            ],
            env: BTreeMap::new(),
            restart: true,
        };
        let tap = if fixtures::recording() { Some(Tap::start(certs, hooks).await?) } else { None };
        let controller = Self {
            part: Part::start(program, directory)?,
            health,
            prometheus,
            alertmanager,
            hooks,
            tap,
            client: client.clone(),
            ca_bundle: certs.ca_bundle(),
        };
        controller.ready().await?;
        controller.register().await?;
        Ok(controller)
    }

    /// Starts the controller again, with a proxy between it and the API server.
    pub async fn behind_proxy(
        &self,
        certs: &Certs,
        url: &str,
        directory: &Path,
    ) -> anyhow::Result<FaultProxy> {
        let config = certs.config(url, SERVICE_ACCOUNT, &GROUPS).await?;
        let proxy = FaultProxy::start(certs, &config).await?;
        self.part.kill().await;
        certs.write_kubeconfig(&kubeconfig(directory), &proxy.url, SERVICE_ACCOUNT, &GROUPS)?;
        self.part.start_again();
        self.ready().await?;
        Ok(proxy)
    }

    /// Returns the process of the controller.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Returns the recording proxy for the hooks, while fixtures are recorded.
    pub fn tap(&self) -> Option<&Tap> {
        self.tap.as_ref()
    }

    /// Starts the Prometheus that the controller asks. It scrapes the controller.
    pub fn start_prometheus(&self, directory: &Path) -> anyhow::Result<Part> {
        let targets = [("refit-controller", self.health)];
        prometheus::start(self.prometheus, &targets, &prometheus::rules(true)?, directory)
    }

    /// Starts the Alertmanager that the controller creates silences in.
    pub fn start_alertmanager(&self, directory: &Path) -> anyhow::Result<Part> {
        alertmanager::start(self.alertmanager, directory)
    }

    /// The silences for a namespace: those in force, or those that have expired.
    pub async fn silences(&self, namespace: &str, expired: bool) -> anyhow::Result<Vec<Value>> {
        alertmanager::silences(self.alertmanager, &format!("namespace={namespace}"), expired).await
    }

    /// Waits until the controller is ready.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let ready =
            eventually("our controller becomes ready", READY, async || probe(self.health).await);
        ready.await.with_context(|| self.part.tail())
    }

    /// Registers the hooks with Cluster API, and waits until they are discovered.
    pub async fn register(&self) -> anyhow::Result<()> {
        let mut extension = of_manifests(&manifests(&[Manifests::Extension], &Choices::default()));
        let mut extension = extension.pop().context("deploy/ has no ExtensionConfig")?;
        // The controller runs outside the cluster: use its URL, without the Secret of the Service's
        // certificate.
        extension["metadata"]["annotations"] = json!({});
        let port = self.tap.as_ref().map_or(self.hooks, |tap| tap.port);
        extension["spec"]["clientConfig"] = json!({
            "url": format!("https://localhost:{port}/"),
            "caBundle": self.ca_bundle,
        });
        objects::apply(&self.client, &extension).await?;
        self.discovered().await
    }

    /// Waits until Cluster API has discovered the hooks.
    pub async fn discovered(&self) -> anyhow::Result<()> {
        let objects = Objects::of_cluster(self.client.clone());
        eventually("Cluster API has discovered our hooks", READY, async || {
            let found = objects.get(EXTENSION_CONFIG, EXTENSION).await;
            let found = found.map_err(|error| format!("{error:#}"))?;
            let current = condition_is_current(&found, "Discovered");
            (objects::is_true(&found, "Discovered") && current)
                .then_some(())
                .ok_or_else(|| objects::condition_text(&found, "Discovered"))
        })
        .await
    }
}

fn kubeconfig(directory: &Path) -> PathBuf {
    directory.join("refit-controller.kubeconfig")
}

/// Whether a condition describes the current generation.
fn condition_is_current(object: &Value, kind: &str) -> bool {
    let seen = refit_kinds::json::whole_condition(object, kind)
        .map(|condition| &condition["observedGeneration"]);
    seen.is_none_or(|seen| seen.is_null() || *seen == object["metadata"]["generation"])
}

/// Applies the manifests of an installation, except the workloads.
async fn install(client: &Client) -> anyhow::Result<()> {
    let parts = [Manifests::Namespace, Manifests::Crds, Manifests::Rbac];
    let mut all = of_manifests(&manifests(&parts, &Choices::default()));
    for text in MANAGEMENT_PLANS {
        all.extend(objects::documents(text, &[])?);
    }
    refit_install::apply(client, &all, |_| {}).await?;
    Ok(())
}

/// Environment variable with the directory of programs that are already built. `cargo test --workspace` builds those that have
/// tests of their own; without it, each is built alone, with other features and therefore other dependencies.
const BUILT: &str = "REFIT_PROGRAMS";

/// The path of a program of this workspace, which cargo builds unless it is in the directory `REFIT_PROGRAMS`.
pub async fn program(package: &str, name: &str) -> anyhow::Result<PathBuf> {
    let built = env::var_os(BUILT).map(|directory| Path::new(&directory).join(name));
    if let Some(built) = built.filter(|path| path.is_file()) {
        return Ok(built);
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // Remove cargo's variables for the package of this test. Build scripts that watch them would
    // otherwise cause half of all crates to be rebuilt, here and in the next test.
    for (key, _) in env::vars_os() {
        let key = key.to_string_lossy();
        if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&*key);
        }
    }
    let built = build
        .args(["build", "--quiet", "--message-format=json", "--package", package, "--bin", name])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("failed to start cargo")?;
    anyhow::ensure!(built.status.success(), "failed to build {name}");
    let text = String::from_utf8_lossy(&built.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = messages
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    found.with_context(|| format!("cargo did not report the path of {name}"))
}
