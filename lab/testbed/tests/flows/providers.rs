//! A provider, the one of `examples/provider-go`, brings the Machines of one cluster to versions: the agents of its
//! hosts do nothing.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use lab_simhost::service::HostService;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{
        self, CLUSTER, CLUSTER_ROLE, HOST_PLAN, HOST_UPGRADE, NODE_UPDATE, Objects, UPDATER, name,
        text,
    },
    process::Part,
    wait,
};
use refit_runtime::net::Listener;
use serde_json::{Value, json};

use super::{contract, look};

const WITHIN: Duration = Duration::from_mins(6);
/// How long a Machine whose update has failed must stay as it is. Cluster API calls again within this time.
const QUIET: Duration = Duration::from_secs(20);
/// The first version of the workers' upgrades.
const NEXT: &str = "v1.35.0";
/// Why the service refuses an upgrade.
const REFUSAL: &str = "this host is frozen until Monday";
/// Label of the cluster whose machines the provider upgrades.
const LABEL: &str = "hosts.example/upgraded";
const USER: &str = "system:serviceaccount:hosts-provider:hosts-provider";
/// The component that gives Refit its permissions on the kinds of providers.
const COMPONENT: [&str; 3] = [
    include_str!("../../../../deploy/providers/base_role.yaml"),
    include_str!("../../../../deploy/providers/role.yaml"),
    include_str!("../../../../deploy/providers/role_binding.yaml"),
];
/// What both examples of a provider install.
const PROVIDERS: [&str; 4] = [
    include_str!("../../../../examples/provider/crds.yaml"),
    include_str!("../../../../examples/provider/provider.yaml"),
    include_str!("../../../../examples/provider-go/crds.yaml"),
    include_str!("../../../../examples/provider-go/provider.yaml"),
];

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec { workers: vec![("md", 2, 0, 1)], ..ClusterSpec::default() };
    let cluster = bed.cluster("providers", &spec).await?;
    let service = Arc::new(bed.hosts().service(&cluster.namespace));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    tokio::select! {
        () = service.clone().serve(Listener::listening(listener)?) => bail!("the host service has stopped"),
        result = flow(bed, &cluster, &service, port) => result,
    }
}

async fn flow(
    bed: &Bed,
    cluster: &Cluster,
    service: &HostService,
    port: u16,
) -> anyhow::Result<()> {
    install(bed).await?;
    let provider = provider(bed)?;
    updater(bed, cluster, port).await.with_context(|| provider.tail())?;
    let before = look::identities(cluster).await?;
    let plans = plans(cluster).await?;

    let upgraded = control_plane(cluster, service, &provider).await;
    upgraded.with_context(|| provider.tail())?;
    roles(cluster, service, TO, &["ControlPlane", "ControlPlane", "FirstControlPlane"]).await?;
    workers(cluster, NEXT).await.with_context(|| provider.tail())?;
    roles(cluster, service, NEXT, &["Worker", "Worker"]).await?;
    refused(cluster, service).await.with_context(|| provider.tail())?;
    service.refuse(None);
    let machines = cluster.control_plane_machines().await?;
    let machine = name(machines.first().context("there is no Machine")?);
    contract::by_hosts_provider(bed, cluster, machine, &provider, port).await?;

    let after = look::identities(cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    let now = self::plans(cluster).await?;
    ensure!(plans == now, "HostPlans {plans:#?} became {now:#?}");
    Ok(())
}

/// Installs the component and both providers as an operator does.
async fn install(bed: &Bed) -> anyhow::Result<()> {
    for yaml in COMPONENT.iter().chain(&PROVIDERS) {
        for object in objects::documents(yaml, &[])? {
            objects::apply(bed.client(), &object).await?;
        }
    }
    // A bed has no controller that aggregates ClusterRoles.
    let all = Objects::of_cluster(bed.client().clone());
    let roles = all.select(CLUSTER_ROLE, "refit.dev/aggregate-to-controller=true").await?;
    let rules: Vec<&Value> =
        roles.iter().filter_map(|role| role["rules"].as_array()).flatten().collect();
    ensure!(rules.len() == 5, "the providers' ClusterRoles have the rules {rules:#?}");
    all.merge(CLUSTER_ROLE, "refit-providers", &json!({"rules": rules})).await?;
    Ok(())
}

/// Starts the provider, with only the permissions that it ships.
fn provider(bed: &Bed) -> anyhow::Result<Part> {
    let kubeconfig = bed.directory.join("hosts-provider.kubeconfig");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:hosts-provider"];
    bed.certs().write_kubeconfig(&kubeconfig, bed.url(), USER, &groups)?;
    bed.hosts_provider(&kubeconfig, &bed.directory)
}

async fn updater(bed: &Bed, cluster: &Cluster, port: u16) -> anyhow::Result<()> {
    let label = json!({"metadata": {"labels": {LABEL: "true"}}});
    cluster.objects.merge(CLUSTER, &cluster.name, &label).await?;
    let template = json!({
        "apiVersion": "hosts.example/v1",
        "kind": "HostUpgradeTemplate",
        "metadata": {"name": "hosts", "namespace": cluster.namespace},
        "spec": {"template": {"spec": {"url": format!("http://127.0.0.1:{port}")}}},
    });
    cluster.objects.apply(&template).await?;
    let updater = json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "Updater",
        "metadata": {"name": "host-upgrade"},
        "spec": {
            "selector": {"clusterSelector": {"matchLabels": {LABEL: "true"}}},
            "claims": [
                {"group": "cluster.x-k8s.io", "kind": "Machine", "paths": ["/spec/version"]},
            ],
            "action": "Update",
            "disruption": "Drain",
            "template": {
                "apiVersion": "hosts.example/v1", "kind": "HostUpgradeTemplate", "name": "hosts",
            },
        },
    });
    let all = Objects::of_cluster(bed.client().clone());
    all.apply(&updater).await?;
    eventually("the Updater is accepted", WITHIN, async || {
        let found = all.get(UPDATER, "host-upgrade").await.map_err(error_text)?;
        let accepted = objects::is_true(&found, "Accepted");
        accepted.then_some(()).ok_or_else(|| objects::condition_text(&found, "Accepted"))
    })
    .await
}

/// The order in each HostPlan, by name.
async fn plans(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Value>> {
    let plans = cluster.objects.list(HOST_PLAN).await?;
    Ok(plans.into_iter().map(|plan| (name(&plan).to_owned(), plan["spec"].clone())).collect())
}

/// The control plane is upgraded, once the service answers. The provider is killed while a host is upgraded.
async fn control_plane(
    cluster: &Cluster,
    service: &HostService,
    provider: &Part,
) -> anyhow::Result<()> {
    service.set_down(true);
    cluster.change_control_plane(&json!({"version": TO})).await?;
    eventually("the update shows that the service does not answer", WITHIN, async || {
        let waits = waits(cluster).await;
        let shows_it = waits.contains("UpdaterFails") && waits.contains("503");
        if shows_it { Ok(()) } else { Err(waits) }
    })
    .await?;
    service.set_down(false);
    eventually("a host is upgraded", WITHIN, async || {
        let all = cluster.objects.list(HOST_UPGRADE).await.map_err(error_text)?;
        let at_work =
            |one: &&Value| one["status"]["pastNoReturn"] == true && one["status"]["ready"] == false;
        let why = || waits(cluster);
        match all.iter().find(at_work) {
            Some(_) => Ok(()),
            None => Err(why().await),
        }
    })
    .await?;
    let (before, _) = provider.ends();
    provider.crash();
    cluster.control_plane_is_at(TO, WITHIN).await?;
    let (after, how) = provider.ends();
    ensure!(after == before + 1, "the provider ended {after} times, the last time it {how}");
    succeeded(cluster, TO, 3).await
}

async fn workers(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers("md", &change).await?;
    cluster.workers_are_at("md", version, WITHIN).await?;
    succeeded(cluster, version, 2).await
}

/// What each NodeUpdate waits for.
async fn waits(cluster: &Cluster) -> String {
    let updates = cluster.objects.list(NODE_UPDATE).await.unwrap_or_default();
    let lines = updates.iter().map(|one| {
        let status = &one["status"];
        format!("{}: {} {} {}", name(one), status["phase"], status["blockedBy"], status["message"])
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Every update to a version has passed all gates of its HostUpgrade, and nothing of it is left.
async fn succeeded(cluster: &Cluster, version: &str, count: usize) -> anyhow::Result<()> {
    look::nothing_is_left(cluster).await?;
    let updates = look::of_goal(cluster, version).await?;
    ensure!(updates.len() == count, "{} NodeUpdates to {version}", updates.len());
    for update in &updates {
        let upgrade = format!("{}-host-upgrade", name(update));
        let upgrade = cluster.objects.get(HOST_UPGRADE, &upgrade).await?;
        let (spec, status) = (&upgrade["spec"], &upgrade["status"]);
        ensure!(
            spec["gate"] == "Disrupt"
                && spec["goal"]["kubernetesVersion"] == version
                && spec["machineRef"] == update["spec"]["machineRef"]
                && status["passed"] == "Disrupt"
                && status["ready"] == true
                && status["pastNoReturn"] == true
                && status["observedGeneration"] == upgrade["metadata"]["generation"]
                && text(&upgrade, "/status/failureReason").is_empty(),
            "{upgrade:#}"
        );
    }
    Ok(())
}

/// Each Machine was upgraded once, and had its role.
async fn roles(
    cluster: &Cluster,
    service: &HostService,
    version: &str,
    wanted: &[&str],
) -> anyhow::Result<()> {
    let mut roles = Vec::new();
    for machine in cluster.machines().await? {
        let host = service.record(text(&machine, "/status/nodeRef/name"));
        roles.extend(
            host.upgrades.into_iter().filter(|(to, _)| to == version).map(|(_, role)| role),
        );
    }
    roles.sort();
    ensure!(roles == wanted, "upgrades to {version} had the roles {roles:?}");
    Ok(())
}

/// The service refuses an upgrade for good: the update fails with its words, and no Machine is replaced.
async fn refused(cluster: &Cluster, service: &HostService) -> anyhow::Result<()> {
    service.refuse(Some(REFUSAL));
    let change = json!({"template": {"spec": {"version": TO}}});
    cluster.change_workers("md", &change).await?;
    let before = look::identities(cluster).await?;
    let failed = eventually("the update has failed", WITHIN, async || {
        let updates = cluster.objects.list(NODE_UPDATE).await.map_err(error_text)?;
        let mut failed = updates.into_iter().filter(|one| text(one, "/status/phase") == "Failed");
        match failed.next() {
            Some(failed) => Ok(failed),
            None => Err(waits(cluster).await),
        }
    })
    .await?;
    let (reason, message) =
        (text(&failed, "/status/failureReason"), text(&failed, "/status/failureMessage"));
    ensure!(reason == "HostRefused" && message.contains(REFUSAL), "{failed:#}");
    wait::never("a Machine is changed", QUIET, async || {
        let now = look::identities(cluster).await.map_err(error_text)?;
        if now == before { Ok(()) } else { Err(format!("{before:?} became {now:?}")) }
    })
    .await?;
    for machine in cluster.worker_machines("md").await? {
        let kubelet = text(&machine, "/status/nodeInfo/kubeletVersion");
        ensure!(kubelet == NEXT, "{} runs {kubelet}", name(&machine));
    }
    Ok(())
}
