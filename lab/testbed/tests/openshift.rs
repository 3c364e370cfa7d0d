//! A managed upgrade of an OpenShift cluster at a real API server, by the real program with the rights of its manifest.
//!
//! OpenShift's operators and machines are simulated, and faster than real ones. OCM, Prometheus and Alertmanager are servers on
//! loopback; a proxy in the program's environment knows their names.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use lab_openshift::{
    Blueprint, Cluster,
    alertmanager::{self, Alertmanager},
    crds,
    ocm::{Managed, Ocm},
    prometheus::{self, Prometheus},
    wire,
};
use lab_testbed::{
    Line,
    apiserver::ApiServer,
    certs::{Certs, validity},
    controller::program,
    directory::{self, free_port},
    eventually, parts,
    process::{Part, Program},
};
use refit_openshift::{
    config::{CONFIG_KEY, CONFIG_MAP},
    kinds::{MACHINE_API, MachineSet},
    upgrade_config::{NAME, NAMESPACE, Phase, UpgradeConfig},
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

/// How many times faster than real ones the machines and operators are.
const PACE: u16 = 60;
const POLICY: &str = "policy-1";
const VERSION: &str = "4.16.4";
const KUBELET: &str = "v1.29.4";
/// The program looks once a minute.
const WITHIN: Duration = Duration::from_mins(20);
const ACCOUNT: &str = "managed-upgrade-operator";

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
    let outside = Outside::start(clock, &authority, &blueprint).await;
    let kinds = crds::crds().into_iter().map(|crd| json!(crd)).collect::<Vec<Value>>();
    refit_install::apply(client, &kinds, |_| {}).await.unwrap();
    let cluster = Cluster::new(client.clone());
    cluster.create(&blueprint, clock.now_seconds()).await.unwrap();
    cluster.set_pace(PACE).await.unwrap();
    install(client).await;
    let operators = tokio::spawn(Cluster::run(client.clone(), clock));
    configure(client, outside.ocm_port).await;

    let program = managed(&server, &certs, &directory, outside.proxy).await;
    outside.ocm.schedule(POLICY, VERSION, clock.now_seconds());
    let api: Api<UpgradeConfig> = Api::namespaced(client.clone(), NAMESPACE);
    until(&api, "the upgrade is commenced", |upgrade| is_done(upgrade, "UpgradeCommenced")).await;
    program.crash();
    let upgraded = |upgrade: &UpgradeConfig| phase(upgrade) == Some(Phase::Upgraded);
    until(&api, "the cluster is upgraded", upgraded).await;

    let upgrade = api.get(NAME).await.unwrap();
    let entry = upgrade.entry().unwrap();
    assert_eq!(entry.preceding_version, "4.16.3");
    let steps = entry.conditions.iter().filter(|one| one.status == "True").count();
    assert!(steps >= 16, "{:?}", entry.conditions);
    let policy = outside.ocm.policy(POLICY).unwrap();
    assert_eq!(policy.state, "completed");
    let logs = outside.ocm.logs();
    let summaries: Vec<&str> = logs.iter().filter_map(|log| log["summary"].as_str()).collect();
    assert_eq!(
        summaries,
        [
            "Cluster is starting with control and worker plane upgrade",
            "Cluster has finished control plane upgrade",
            "Cluster has finished with worker plane upgrade",
        ]
    );
    let silences = outside.alertmanager.silences(clock.now());
    assert!(silences.len() >= 2, "{silences:?}");
    assert!(silences.iter().all(|one| one["status"]["state"] == "expired"), "{silences:?}");
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
    operators.abort();
}

/// The servers outside of the Kubernetes API.
struct Outside {
    ocm: Ocm,
    ocm_port: u16,
    alertmanager: Alertmanager,
    proxy: SocketAddr,
}

impl Outside {
    async fn start(clock: Clock, authority: &Authority, blueprint: &Blueprint) -> Self {
        let ocm = Ocm::new(Managed {
            id: "ocm-1".to_owned(),
            external_id: blueprint.cluster_id.clone(),
            token: blueprint.ocm_token.clone(),
            channel_group: "stable".to_owned(),
            grace_minutes: 60,
        });
        let (listener, ocm_at) = listen().await;
        tokio::spawn(wire::serve(ocm.clone(), listener, None, clock));
        let hosts = [prometheus::HOST, alertmanager::HOST];
        let material = authority.server(&hosts, validity(clock)).unwrap();
        let tls = Some(server_config(ReloadableCert::new(&material).unwrap()).unwrap());
        let (listener, prometheus_at) = listen().await;
        tokio::spawn(Prometheus::default().serve(listener, tls.clone()));
        let alertmanager = Alertmanager::default();
        let (listener, alertmanager_at) = listen().await;
        tokio::spawn(alertmanager.clone().serve(listener, tls, clock));
        let names = [
            (format!("{}:{}", prometheus::HOST, prometheus::PORT), prometheus_at),
            (format!("{}:{}", alertmanager::HOST, alertmanager::PORT), alertmanager_at),
        ];
        let proxy = proxy(names.into()).await;
        Self { ocm, ocm_port: ocm_at.port(), alertmanager, proxy }
    }
}

async fn listen() -> (Listener, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    (Listener::tcp(address).await.unwrap(), address)
}

/// Serves a proxy that connects to these names.
async fn proxy(names: BTreeMap<String, SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(tunnel(stream, names.clone()));
        }
    });
    address
}

async fn tunnel(stream: TcpStream, names: BTreeMap<String, SocketAddr>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    stream.read_line(&mut first).await?;
    while stream.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let name = first.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let Some(address) = name.and_then(|name| names.get(name)) else {
        return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
    };
    let mut server = TcpStream::connect(address).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
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
async fn managed(server: &ApiServer, certs: &Certs, directory: &Path, proxy: SocketAddr) -> Part {
    let kubeconfig = directory.join("refit-managed.kubeconfig");
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let of_namespace = format!("system:serviceaccounts:{NAMESPACE}");
    let groups = ["system:serviceaccounts", &of_namespace, "system:authenticated"];
    certs.write_kubeconfig(&kubeconfig, &server.url, &user, &groups).unwrap();
    let bind = |flag: &str| format!("--{flag}=127.0.0.1:{}", free_port().unwrap());
    let env = [
        ("HTTPS_PROXY", format!("http://{proxy}")),
        ("NO_PROXY", "127.0.0.1".to_owned()),
        ("REFIT_LOG", "refit_managed=debug,info".to_owned()),
    ];
    let program = Program {
        name: "refit-managed".to_owned(),
        path: program("refit-managed", "refit-managed").await.unwrap(),
        args: vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            bind("metrics-bind-address"),
            bind("custom-metrics-bind-address"),
            bind("health-probe-bind-address"),
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
