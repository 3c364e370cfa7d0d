//! `refit contract test` against both examples of a provider, on real kube-apiserver and in `refit sandbox`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use lab_testbed::{
    Bed, Cluster, cli,
    controller::program,
    directory::free_port,
    eventually,
    objects::{self, DEV_MACHINE, MACHINE, Objects, SANDBOX_MACHINE, name, text},
    process::{Part, Program},
};
use serde_json::{Value, json};

/// A version that no other part of the flow uses.
const VERSION: &str = "v1.35.2";
/// How long the sandbox may take to start.
const STARTED: Duration = Duration::from_mins(2);
/// What the example in Rust installs.
const MEMORY_PROVIDER: [&str; 2] = [
    include_str!("../../../../examples/provider/crds.yaml"),
    include_str!("../../../../examples/provider/provider.yaml"),
];
/// What the example in Go installs.
const HOSTS_PROVIDER: [&str; 2] = [
    include_str!("../../../../examples/provider-go/crds.yaml"),
    include_str!("../../../../examples/provider-go/provider.yaml"),
];
/// The files for `--template` that the examples bring.
const MEMORY_TEST: &str = include_str!("../../../../examples/provider/test.yaml");
const HOSTS_TEST: &str = include_str!("../../../../examples/provider-go/test.yaml");
/// The port and the namespace in the examples' files.
const HOSTS_PORT: &str = ":8099";
const NAMESPACE: &str = "namespace: default\n";

/// Where the suite runs.
struct Place<'a> {
    /// Directory of logs, and of the file for `--template`.
    directory: &'a Path,
    kubeconfig: PathBuf,
    namespace: &'a str,
}

/// The provider in Go brings a Machine of a bed to a version.
pub(super) async fn by_hosts_provider(
    bed: &Bed,
    cluster: &Cluster,
    machine: &str,
    provider: &Part,
    port: u16,
) -> anyhow::Result<()> {
    let test = hosts_test(port, &cluster.namespace);
    keeps(&place(bed, cluster), provider, &test, machine, &["--to", VERSION]).await
}

/// The provider in Rust changes the memory of a Machine, whose infrastructure machine has the field.
pub(super) async fn by_memory_provider(
    bed: &Bed,
    cluster: &Cluster,
    machine: &Value,
) -> anyhow::Result<()> {
    install(bed.client(), &MEMORY_PROVIDER).await?;
    let infrastructure = text(machine, "/spec/infrastructureRef/name");
    let more = json!({"spec": {"memoryMiB": 12_288}});
    cluster.objects.merge(DEV_MACHINE, infrastructure, &more).await?;
    let place = place(bed, cluster);
    let provider = memory_provider(&place).await?;
    let test = MEMORY_TEST
        .replace("SandboxMachine", "DevMachine")
        .replace(NAMESPACE, &format!("namespace: {}\n", cluster.namespace));
    keeps(&place, &provider, &test, name(machine), &[]).await
}

/// Both providers keep the contract in `refit sandbox`, where the one in Go upgrades hosts through `--hosts-port`.
pub(super) async fn in_sandbox(bed: &Bed) -> anyhow::Result<()> {
    let directory = bed.directory.join("sandbox");
    fs::create_dir(&directory)?;
    let port = free_port()?;
    let sandbox = Program {
        name: "sandbox".to_owned(),
        path: program("refit", "refit").await?,
        args: ["sandbox", "--hosts-port", &port.to_string()].map(str::to_owned).into(),
        ..Program::default()
    };
    let sandbox = Part::start(sandbox, &directory)?;
    let kubeconfig = eventually("the sandbox prints its kubeconfig", STARTED, async || {
        let log = fs::read_to_string(sandbox.log()).unwrap_or_default();
        let path = log.lines().find(|line| line.starts_with('/') && line.ends_with("/kubeconfig"));
        path.map(PathBuf::from).ok_or(log)
    })
    .await?;
    let place = Place { directory: &directory, kubeconfig, namespace: "default" };
    let read = Kubeconfig::read_from(&place.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let objects = Objects::in_namespace(client.clone(), place.namespace);
    let machines = objects.list(MACHINE).await?;
    let machine = machines.first().context("the sandbox has no Machine")?;

    install(&client, &HOSTS_PROVIDER).await?;
    let provider = bed.hosts_provider(&place.kubeconfig, &directory)?;
    let test = hosts_test(port, place.namespace);
    keeps(&place, &provider, &test, name(machine), &["--to", VERSION]).await?;

    install(&client, &MEMORY_PROVIDER).await?;
    let infrastructure = text(machine, "/spec/infrastructureRef/name");
    objects.merge(SANDBOX_MACHINE, infrastructure, &json!({"spec": {"memoryMiB": 12_288}})).await?;
    let provider = memory_provider(&place).await?;
    keeps(&place, &provider, MEMORY_TEST, name(machine), &[]).await
}

/// Starts the provider in Rust, with all permissions.
async fn memory_provider(place: &Place<'_>) -> anyhow::Result<Part> {
    // A path of its own: a provider is killed by its command line.
    let path = place.directory.join("memory-provider");
    fs::copy(program("memory-provider", "memory-provider").await?, &path)?;
    let kubeconfig = place.kubeconfig.display().to_string();
    let provider = Program {
        name: "memory-provider".to_owned(),
        path,
        env: BTreeMap::from([("KUBECONFIG".to_owned(), kubeconfig)]),
        restart: true,
        ..Program::default()
    };
    Part::start(provider, place.directory)
}

fn place<'a>(bed: &'a Bed, cluster: &'a Cluster) -> Place<'a> {
    Place { directory: &bed.directory, kubeconfig: bed.kubeconfig(), namespace: &cluster.namespace }
}

async fn install(client: &Client, manifests: &[&str]) -> anyhow::Result<()> {
    for yaml in manifests {
        for object in objects::documents(yaml, &[])? {
            objects::apply(client, &object).await?;
        }
    }
    Ok(())
}

/// The example's file for `--template`, for hosts that are upgraded through this port.
fn hosts_test(port: u16, namespace: &str) -> String {
    HOSTS_TEST
        .replace(HOSTS_PORT, &format!(":{port} "))
        .replace(NAMESPACE, &format!("namespace: {namespace}\n"))
}

/// Runs the suite, which kills the provider after each gate opens. Every clause is tested and kept.
async fn keeps(
    place: &Place<'_>,
    provider: &Part,
    template: &str,
    machine: &str,
    options: &[&str],
) -> anyhow::Result<()> {
    let file = place.directory.join("contract-test.yaml");
    fs::write(&file, template)?;
    let file = file.display().to_string();
    // It may just be between two starts. A process of the same name may run for another flow.
    let restart =
        format!("until pkill -KILL -xf '{}'; do sleep 0.2; done", provider.command_line());
    let mut args = vec!["contract", "test", "--template", &file, "--machine", machine];
    args.extend(["--restart", &restart, "--timeout", "3m", "--settle", "2s"]);
    args.extend(options);
    let report = cli::json(&place.kubeconfig, place.namespace, &args).await?;
    let clauses = report["clauses"].as_array().context("the report has no clauses")?;
    let others: Vec<&Value> = clauses.iter().filter(|one| one["verdict"] != "kept").collect();
    ensure!(report["kept"] == true && others.is_empty(), "{others:#?}\n{}", provider.tail());
    Ok(())
}
