//! A managed upgrade of an OpenShift cluster at a real API server, by the real program with the rights of its manifest.
//!
//! OpenShift's operators and machines are simulated, and faster than real ones, and OCM is a server on loopback. Prometheus and
//! Alertmanager are the real ones; a proxy in the program's environment knows their names, and ends TLS as theirs in a cluster.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use lab_openshift::{
    Blueprint, Cluster, alertmanager, crds,
    ocm::{Managed, Ocm},
    prometheus,
    site::from_any_thread,
    wire,
};
use lab_testbed::{
    Line, alertmanager as real_alertmanager,
    apiserver::ApiServer,
    certs::{Certs, validity},
    controller::program,
    directory::{self, free_port},
    eventually, parts,
    process::{Part, Program},
    prometheus as real_prometheus,
};
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP, Platform},
    kinds::{MACHINE_API, MachineSet},
    maintenance::CREATED_BY,
    steps,
    upgrade_config::{NAME, NAMESPACE, Phase, UpgradeCondition, UpgradeConfig},
};
use refit_runtime::{
    Clock,
    net::Listener,
    tls::{Authority, ReloadableCert, server_config},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

/// How many times faster than real ones the machines and operators are.
const PACE: u16 = 60;
const POLICY: &str = "policy-1";
const VERSION: &str = "4.16.4";
const KUBELET: &str = "v1.29.4";
/// The program looks once a minute.
const WITHIN: Duration = Duration::from_mins(20);
const ACCOUNT: &str = "managed-upgrade-operator";
const LEASE: &str = "managed-upgrade-operator-lock";
/// The alert that fires until etcd's metrics can be scraped.
const ALERT: &str = "EtcdMembersDown";

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_upgraded_as_ocm_requests_it_even_if_the_program_is_killed() {
    refit_runtime::tls::install_provider();
    let clock = Clock::real();
    let directory = directory::run(clock, "openshift").unwrap();
    let certs = Certs::new(clock).unwrap();
    let parts = parts::find(Line::V1_14).unwrap();
    let server = ApiServer::start(&parts, &certs, &directory).await.unwrap();
    let client = &server.client;

    let authority = Authority::new("service-ca", validity(clock)).unwrap();
    let blueprint =
        Blueprint { service_ca: authority.material().cert_pem.clone(), ..Blueprint::default() };
    let outside = Outside::start(clock, &authority, &blueprint, &directory).await;
    let kinds = crds::crds().into_iter().map(|crd| json!(crd)).collect::<Vec<Value>>();
    refit_install::apply(client, &kinds, |_| {}).await.unwrap();
    let cluster = Cluster::new(client.clone());
    cluster.create(&blueprint, clock.now_seconds()).await.unwrap();
    cluster.set_pace(PACE).await.unwrap();
    install(client).await;
    let operators = tokio::spawn(Cluster::run(client.clone(), clock));
    configure(client, outside.ocm_port).await;

    let program = managed(&server, &certs, &directory, &outside).await;
    outside.ocm.schedule(POLICY, VERSION, clock.now_seconds());
    let api: Api<UpgradeConfig> = Api::namespaced(client.clone(), NAMESPACE);
    until(&api, "a critical alert of the cluster holds the upgrade", |upgrade| {
        upgrade.entry().is_some_and(|entry| {
            entry.conditions.iter().any(|one| one.status == "False" && one.message.contains(ALERT))
        })
    })
    .await;
    let etcd = TcpListener::bind((Ipv4Addr::LOCALHOST, outside.ports.etcd)).await.unwrap();
    tokio::spawn(empty_metrics(etcd));
    until(&api, "the upgrade is commenced", |upgrade| is_done(upgrade, "UpgradeCommenced")).await;
    program.crash();
    let upgraded = |upgrade: &UpgradeConfig| phase(upgrade) == Some(Phase::Upgraded);
    until(&api, "the cluster is upgraded", upgraded).await;

    let upgrade = api.get(NAME).await.unwrap();
    let entry = upgrade.entry().unwrap();
    assert_eq!(entry.preceding_version, "4.16.3");
    // Those of notifications begin with State.
    let is_of_step = |one: &&UpgradeCondition| !one.type_.starts_with("State");
    let done = entry.conditions.iter().filter(is_of_step).filter(|one| one.status == "True");
    let steps: BTreeSet<&str> = steps::of(Platform::Osd).iter().map(|step| step.name).collect();
    assert_eq!(steps.len(), 16);
    assert_eq!(done.map(|one| &*one.type_).collect::<BTreeSet<&str>>(), steps);
    let policy = outside.ocm.policy(POLICY).unwrap();
    assert_eq!(policy.state, "completed");
    let logs = outside.ocm.logs();
    let summaries: Vec<&str> = logs.iter().filter_map(|log| log["summary"].as_str()).collect();
    assert_eq!(
        summaries,
        [
            "Cluster has encountered healthcheck failure during upgrade",
            "Cluster is starting with control and worker plane upgrade",
            "Cluster has finished control plane upgrade",
            "Cluster has finished with worker plane upgrade",
        ]
    );
    let by_program = format!("--created-by={CREATED_BY}");
    let silences = async |expired| {
        real_alertmanager::silences(outside.ports.alertmanager, &by_program, expired).await.unwrap()
    };
    let (active, expired) = (silences(false).await, silences(true).await);
    assert!(active.is_empty() && expired.len() >= 2, "{active:?} {expired:?}");
    let synced = promtool(outside.ports.prometheus, "upgradeoperator_upgradeconfig_sync_timestamp");
    assert!(synced.await.contains("upgradeoperator_upgradeconfig_sync_timestamp"));
    let sets: Api<MachineSet> = Api::namespaced(client.clone(), MACHINE_API);
    let sets = sets.list(&ListParams::default()).await.unwrap();
    assert!(
        sets.items.iter().all(|set| !set.metadata.name.as_deref().unwrap().ends_with("-upgrade"))
    );
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(nodes.items.len(), 6);
    for node in nodes {
        let info = node.status.unwrap().node_info.unwrap();
        assert_eq!(info.kubelet_version, KUBELET, "{:?}", node.metadata.name);
    }
    program.end().await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases.get(LEASE).await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.unwrap_or_default(), "", "SIGTERM releases the Lease");
    operators.abort();
}

/// Ports on loopback.
struct Ports {
    /// Of the program's metrics.
    metrics: u16,
    custom_metrics: u16,
    /// Of etcd's metrics.
    etcd: u16,
    prometheus: u16,
    alertmanager: u16,
}

/// The servers outside of the Kubernetes API.
struct Outside {
    ocm: Ocm,
    ocm_port: u16,
    ports: Ports,
    proxy: SocketAddr,
    _monitoring: [Part; 2],
}

impl Outside {
    async fn start(
        clock: Clock,
        authority: &Authority,
        blueprint: &Blueprint,
        directory: &Path,
    ) -> Self {
        let ocm = Ocm::new(Managed {
            id: "ocm-1".to_owned(),
            external_id: blueprint.cluster_id.clone(),
            token: blueprint.ocm_token.clone(),
            channel_group: "stable".to_owned(),
            grace_minutes: 60,
        });
        let (listener, ocm_at) = listen().await;
        tokio::spawn(wire::serve(ocm.clone(), listener, None, from_any_thread(clock)));
        let hosts = [prometheus::HOST, alertmanager::HOST];
        let material = authority.server(&hosts, validity(clock)).unwrap();
        let tls = server_config(ReloadableCert::new(&material).unwrap()).unwrap();
        let [metrics, custom_metrics, etcd, prometheus_port, alertmanager_port] =
            std::array::from_fn(|_| free_port().unwrap());
        let targets =
            [("managed-upgrade-operator", metrics), ("custom", custom_metrics), ("etcd", etcd)];
        let monitoring = [
            real_prometheus::start(prometheus_port, &targets, &rules(), directory).unwrap(),
            real_alertmanager::start(alertmanager_port, directory).unwrap(),
        ];
        let names = [
            (format!("{}:{}", prometheus::HOST, prometheus::PORT), prometheus_port),
            (format!("{}:{}", alertmanager::HOST, alertmanager::PORT), alertmanager_port),
        ];
        let proxy = proxy(names.into(), &tls).await;
        let ports = Ports {
            metrics,
            custom_metrics,
            etcd,
            prometheus: prometheus_port,
            alertmanager: alertmanager_port,
        };
        Self { ocm, ocm_port: ocm_at.port(), ports, proxy, _monitoring: monitoring }
    }
}

/// The rules that Refit ships, and one of the cluster.
fn rules() -> Value {
    let manifests = include_str!("../../../deploy/openshift/monitoring.yaml");
    let manifests = serde_saphyr::from_multiple::<Value>(manifests).unwrap();
    let shipped = manifests.into_iter().find(|one| one["kind"] == "PrometheusRule").unwrap();
    let mut groups = shipped["spec"]["groups"].as_array().unwrap().clone();
    groups.push(json!({"name": "etcd", "rules": [{
        "alert": ALERT,
        "expr": "up{job=\"etcd\"} == 0",
        "labels": {"severity": "critical", "namespace": "openshift-etcd"},
    }]}));
    json!({"groups": groups})
}

/// Answers every request with no metrics.
async fn empty_metrics(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let _ = stream.write_all(answer).await;
    }
}

/// The result of a query.
async fn promtool(prometheus: u16, query: &str) -> String {
    let server = format!("http://127.0.0.1:{prometheus}");
    let mut tool = tokio::process::Command::new(real_prometheus::promtool());
    let ended = tool.args(["query", "instant", &server, query]).output().await.unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

async fn listen() -> (Listener, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    (Listener::tcp(address).await.unwrap(), address)
}

/// Serves a proxy that knows these names. It ends TLS in place of their servers, which are on these ports of loopback.
async fn proxy(names: BTreeMap<String, u16>, tls: &rustls::ServerConfig) -> SocketAddr {
    let mut tls = tls.clone();
    // The servers have no HTTP/2 without TLS.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(tunnel(stream, names.clone(), tls.clone()));
        }
    });
    address
}

async fn tunnel(
    stream: TcpStream,
    names: BTreeMap<String, u16>,
    tls: TlsAcceptor,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    stream.read_line(&mut first).await?;
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let name = first.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let Some(port) = name.and_then(|name| names.get(name)) else {
        return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let mut stream = tls.accept(stream).await?;
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await?;
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

/// Creates what `deploy/openshift` has for an API server without a scheduler or Prometheus' kinds.
async fn install(client: &Client) {
    let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/openshift"));
    let crd = "crds/upgrade.managed.openshift.io_upgradeconfigs.yaml";
    let mut objects: Vec<Value> = Vec::new();
    for file in ["namespace.yaml", crd, "rbac.yaml"] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        objects.extend(serde_saphyr::from_multiple::<Value>(&text).unwrap());
    }
    refit_install::apply(client, &objects, |_| {}).await.unwrap();
}

async fn configure(client: &Client, ocm_port: u16) {
    let config = format!(
        "\
upgradeType: OSD
configManager: {{source: OCM, ocmBaseUrl: 'http://127.0.0.1:{ocm_port}', watchInterval: 60}}
maintenance: {{controlPlaneTime: 90}}
scale: {{timeOut: 30}}
upgradeWindow: {{delayTrigger: 30, timeOut: 120}}
nodeDrain: {{timeOut: 45, expectedNodeDrainTime: 8}}
featureGate: {{enabled: [PreHealthCheck, ServiceLogNotification]}}
"
    );
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: config},
    });
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let apply = PatchParams::apply("testbed").force();
    api.patch(CONFIG_MAP, &apply, &Patch::Apply(&body)).await.unwrap();
}

/// Starts the program as its ServiceAccount.
async fn managed(server: &ApiServer, certs: &Certs, directory: &Path, outside: &Outside) -> Part {
    let kubeconfig = directory.join("refit-managed.kubeconfig");
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let of_namespace = format!("system:serviceaccounts:{NAMESPACE}");
    let groups = ["system:serviceaccounts", &of_namespace, "system:authenticated"];
    certs.write_kubeconfig(&kubeconfig, &server.url, &user, &groups).unwrap();
    let bind = |flag: &str, port: u16| format!("--{flag}=127.0.0.1:{port}");
    let env = [
        ("HTTPS_PROXY", format!("http://{}", outside.proxy)),
        ("NO_PROXY", "127.0.0.1".to_owned()),
        ("REFIT_LOG", "refit_managed=debug,info".to_owned()),
    ];
    let program = Program {
        name: "refit-managed".to_owned(),
        path: program("refit-managed", "refit-managed").await.unwrap(),
        args: vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            bind("metrics-bind-address", outside.ports.metrics),
            bind("custom-metrics-bind-address", outside.ports.custom_metrics),
            bind("health-probe-bind-address", free_port().unwrap()),
        ],
        env: env.map(|(key, value)| (key.to_owned(), value)).into(),
        restart: true,
    };
    Part::start(program, directory).unwrap()
}

async fn until(api: &Api<UpgradeConfig>, what: &str, holds: impl Fn(&UpgradeConfig) -> bool) {
    let found = eventually(what, WITHIN, async || {
        let upgrade = api.get_opt(NAME).await.map_err(|error| error.to_string())?;
        let upgrade = upgrade.ok_or("no UpgradeConfig")?;
        if holds(&upgrade) { Ok(()) } else { Err(format!("{:?}", upgrade.entry())) }
    });
    found.await.unwrap();
}

fn phase(upgrade: &UpgradeConfig) -> Option<Phase> {
    upgrade.entry().map(|entry| entry.phase)
}

fn is_done(upgrade: &UpgradeConfig, step: &str) -> bool {
    let conditions = upgrade.entry().map_or(&[][..], |entry| &entry.conditions);
    conditions.iter().any(|one| one.type_ == step && one.status == "True")
}
