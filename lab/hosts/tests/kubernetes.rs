//! Real kubeadm, kubelet and control plane: Refit upgrades one cluster, and a shell script upgrades
//! another one of the same shape.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    balancer::{self, Availability},
    base::{self, Debian},
    cluster_nodes::Programs,
    disk::FileSystem,
    eventually,
    host::with_reports,
    isolation::{self, Isolation, runtime},
    kubernetes::{self, Cluster, IGNORED},
    kubernetes_build::{self, KubernetesBuild},
    management::{Management, Objects, Shape, send},
    only_machine::{self, OnlyMachine},
    print_line, script,
    workload::{self, Workload},
};
use refit_kinds::{
    json::{is_true, name, text},
    keys,
    refit::Goal,
};
use refit_runtime::clock::instant;
use serde_json::{Value, json};

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";
const NODE_UPDATES: &str = "/apis/refit.dev/v1alpha1/nodeupdates";

/// Timeout of the upgrade of a cluster.
const UPGRADE_SECONDS: u64 = 2400;

/// Static pods that read kubeadm's certificates.
const COMPONENTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Longest allowed time without a successful request if there are several API servers: a request in
/// progress is lost when its API server ends, and is repeated.
const LONGEST_GAP: Duration = Duration::from_secs(5);

static NUMBERS: AtomicU8 = AtomicU8::new(1);
static BUILD: OnceLock<KubernetesBuild> = OnceLock::new();

fn main() -> ExitCode {
    if let Err(error) = kubernetes_build::programs() {
        print_line(&format!("error: {error:#}"));
        return ExitCode::FAILURE;
    }
    let tests: [isolation::Test; 2] = [
        ("the_only_machine_of_an_edited_control_plane_is_upgraded_by_real_kubeadm", single_node),
        ("three_control_planes_and_a_worker_are_upgraded_while_their_api_answers", three_and_one),
    ];
    isolation::main_on(Debian { packages: &base::KUBERNETES, ..Debian::NEWEST }, &tests)
}

fn single_node(isolation: &Isolation) -> anyhow::Result<()> {
    both_ways(isolation, 1, 0)
}

fn three_and_one(isolation: &Isolation) -> anyhow::Result<()> {
    both_ways(isolation, 3, 1)
}

/// Builds what all hosts share, once.
fn kubernetes_build(isolation: &Isolation) -> anyhow::Result<&'static KubernetesBuild> {
    if let Some(build) = BUILD.get() {
        return Ok(build);
    }
    let agent = Programs::agent_next_to(&std::env::current_exe()?)?;
    let build = runtime()?.block_on(KubernetesBuild::new(isolation, agent.as_ref()))?;
    Ok(BUILD.get_or_init(|| build))
}

/// Upgrades with Refit, then with the script.
fn both_ways(isolation: &Isolation, control_planes: u32, workers: u32) -> anyhow::Result<()> {
    let build = kubernetes_build(isolation)?;
    let way = |first, through_refit| {
        let shape = Shape { control_planes, workers, version: &build.versions[0].version };
        runtime()?.block_on(upgrade(isolation, build, shape, first, through_refit))
    };
    // Host numbers are unique within a run.
    let numbers = NUMBERS.fetch_add(20, Ordering::SeqCst);
    let by_refit = way(numbers, true)?;
    let by_script = way(numbers + 10, false)?;
    let overhead = by_refit.as_secs_f64() / by_script.as_secs_f64() * 100.0 - 100.0;
    print_line(&format!(
        "{control_planes}+{workers}: {:.1} s by script, {:.1} s through Refit: {overhead:+.1} %",
        by_script.as_secs_f64(),
        by_refit.as_secs_f64()
    ));
    Ok(())
}

/// Creates a cluster and upgrades it; returns the duration.
async fn upgrade(
    isolation: &Isolation,
    build: &KubernetesBuild,
    shape: Shape<'_>,
    first: u8,
    through_refit: bool,
) -> anyhow::Result<Duration> {
    build.serve().await?;
    let begun = instant();
    let objects = Objects::of(shape).await?;
    let management = Management::serve(objects.into_management()).await?;
    let nodes = kubernetes::nodes(&management).await?;
    let wanted = usize::try_from(shape.control_planes + shape.workers)?;
    ensure!(nodes.len() == wanted, "{wanted} nodes: {nodes:?}");
    let cluster = Cluster::create(isolation, build, first, nodes, FileSystem::Ext4).await?;
    let workload = Workload::start(&cluster.client, wanted.max(2)).await?;
    print_line(&format!("a cluster of {wanted} in {:.1} s", begun.elapsed().as_secs_f64()));
    let outcome = go(&cluster, &management, &workload, build, through_refit).await;
    let took = with_reports(outcome, &cluster.hosts).await?;
    cluster.end().await?;
    Ok(took)
}

async fn go(
    cluster: &Cluster,
    management: &Management,
    workload: &Workload,
    build: &KubernetesBuild,
    through_refit: bool,
) -> anyhow::Result<Duration> {
    let version = build.versions[1].version.as_str();
    let availability = Availability::watch(cluster.client.clone());
    let identities: Vec<String> =
        cluster.hosts.iter().map(|host| host.read("etc/machine-id")).collect();
    let machines = uids(management).await?;
    let only = if cluster.nodes.len() == 1 && through_refit {
        only_machine::opt_in(management).await?;
        Some(OnlyMachine::watch(management).await?)
    } else {
        None
    };
    if through_refit {
        prepare(cluster, management).await?;
    }
    let begun = instant();
    if through_refit {
        let second = async {
            match &only {
                Some(only) => only.has_second().await,
                None => std::future::pending().await,
            }
        };
        // The workers are upgraded when the control plane is done; print the progress meanwhile.
        let ordered = futures::future::try_join(
            management.upgrade(version, UPGRADE_SECONDS),
            updated(management, 1, cluster.nodes.len()),
        );
        tokio::select! {
            biased;
            error = second => return Err(error),
            done = ordered => drop(done?),
        }
        cluster.ready(version, 60).await?;
    } else {
        script::upgrade(cluster, version).await?;
    }
    let took = begun.elapsed();
    let (api, pods) = (availability.results(), workload.observations());
    print_line(&format!(
        "{} in {:.1} s; API: {} answers, {} failures, longest gap {:.1} s; application: at least {} \
         ran, at most {} of those reported as not Ready, {} pods in all",
        if through_refit { "Refit" } else { "script" },
        took.as_secs_f64(),
        api.answered,
        api.failed,
        api.longest_gap.as_secs_f64(),
        pods.fewest,
        pods.unheard,
        pods.pods.len()
    ));
    let after: Vec<String> = cluster.hosts.iter().map(|host| host.read("etc/machine-id")).collect();
    ensure!(after == identities, "machine ids stay");
    ensure!(uids(management).await? == machines, "the machines are the same, by uid");
    unharmed(cluster, &api, &pods, workload.budget())?;
    runs(cluster, version).await?;
    if let Some(only) = only {
        only.is_kept(management, version).await?;
        print_line(&format!("as one machine after {:.1} s", begun.elapsed().as_secs_f64()));
        renew(cluster, management, version).await?;
    }
    Ok(took)
}

/// Checks that the API stayed available and the application kept running, as far as Refit promises
/// it.
fn unharmed(
    cluster: &Cluster,
    api: &balancer::ProbeResults,
    pods: &workload::Observations,
    budget: usize,
) -> anyhow::Result<()> {
    // One API server is unavailable while it is replaced; behind a balancer others respond.
    ensure!(
        cluster.nodes.len() == 1 || api.longest_gap <= LONGEST_GAP,
        "the API did not answer for {:.1} s",
        api.longest_gap.as_secs_f64()
    );
    ensure!(
        pods.fewest >= budget,
        "only {} pods of the application ran at some time: {}",
        pods.fewest,
        pods.then
    );
    // On a node that is not drained, a new kubelet may recreate the containers of its pods.
    ensure!(
        cluster.nodes.len() == 1 || pods.restarts == 0,
        "a container of the application was started {} times",
        pods.restarts + 1
    );
    Ok(())
}

/// Checks that each host has kubeadm of this version, and runs its static pods.
async fn runs(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    for (host, node) in cluster.hosts.iter().zip(&cluster.nodes) {
        let kubeadm = host.exec(["kubeadm", "version", "--output=short"]).await?;
        ensure!(kubeadm.trim() == version, "{} has kubeadm {kubeadm}", node.name);
        let components = if node.control_plane { &COMPONENTS[1..] } else { &[] };
        eventually("static pods have the version", Duration::from_mins(2), async || {
            for component in components {
                let pod = static_pod(cluster, component, node).await?;
                let image = text(&pod, "/spec/containers/0/image");
                let wanted = format!("registry.k8s.io/{component}:{version}");
                if image != wanted || !is_true(&pod, "Ready") {
                    return Err(format!(
                        "{} with {image} is not {wanted}, or not Ready",
                        name(&pod)
                    ));
                }
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Returns the mirror pod of a component on a node.
async fn static_pod(
    cluster: &Cluster,
    component: &str,
    node: &kubernetes::Node,
) -> Result<Value, String> {
    let path = format!("/api/v1/namespaces/kube-system/pods/{component}-{}", node.name);
    let pod = send(&cluster.client, "GET", &path, &Value::Null).await;
    pod.map_err(|error| format!("{error:#}"))
}

/// uid of each Machine, by name.
async fn uids(management: &Management) -> anyhow::Result<BTreeMap<String, String>> {
    let machines = management.list(MACHINES).await?;
    let word = |machine: &Value, key: &str| {
        machine["metadata"][key].as_str().unwrap_or_default().to_owned()
    };
    Ok(machines.iter().map(|m| (word(m, "name"), word(m, "uid"))).collect())
}

/// Starts the controller, writes the host settings that these hosts need, and waits for the reports
/// of their agents.
async fn prepare(cluster: &Cluster, management: &Management) -> anyhow::Result<()> {
    settle(management, &json!({})).await?;
    management.drive(&cluster.kubeconfig).await?;
    let plans =
        format!("/apis/refit.dev/v1alpha1/namespaces/{}/hostplans", keys::HOST_PLAN_NAMESPACE);
    eventually("all agents have reported", Duration::from_mins(2), async || {
        let answer = send(&cluster.client, "GET", &plans, &Value::Null).await;
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let plans = answer["items"].as_array().cloned().unwrap_or_default();
        let reported = plans.iter().filter(|plan| !plan["status"]["reportedAt"].is_null()).count();
        (reported == cluster.nodes.len()).then_some(()).ok_or_else(|| format!("{reported} have"))
    })
    .await
}

/// Writes the host settings that these hosts need, together with `more`.
async fn settle(management: &Management, more: &Value) -> anyhow::Result<()> {
    let mut settings = json!({"kubeadm": {
        "skipPhases": ["addon"],
        "ignorePreflightErrors": IGNORED,
    }});
    for (key, value) in more.as_object().into_iter().flatten() {
        settings[key] = value.clone();
    }
    management.set_host_settings(&settings).await
}

/// Renews the certificates of a single node that runs the target version already, with a separate
/// update that also recreates its static pods.
async fn renew(cluster: &Cluster, management: &Management, version: &str) -> anyhow::Result<()> {
    let (host, node) = (cluster.hosts.first()).zip(cluster.nodes.first()).context("a host")?;
    let certificates = || {
        let names = ["pki/apiserver.crt", "pki/etcd/server.crt", "scheduler.conf"];
        names.map(|name| host.read(&format!("etc/kubernetes/{name}")))
    };
    let before = certificates();
    // kubeadm's certificates are valid for one year.
    settle(management, &json!({"certificates": {"renewWithinDays": 400}})).await?;
    ask(management, 2, version).await?;
    updated(management, 2, 1).await?;
    let same = before.iter().zip(&certificates()).any(|(a, b)| a == b || b.is_empty());
    ensure!(!same, "certificates of {} stay", node.name);
    eventually("static pods are recreated", Duration::from_mins(2), async || {
        for component in COMPONENTS {
            let pod = static_pod(cluster, component, node).await?;
            let marks = &pod["metadata"]["annotations"];
            if !marks["refit.dev/certificates"].is_string() {
                return Err(format!("{component} is the old one: {marks}"));
            }
        }
        Ok(())
    })
    .await?;
    cluster.ready(version, 60).await
}

/// Requests an update of the only machine.
async fn ask(management: &Management, ordinal: u32, version: &str) -> anyhow::Result<()> {
    let machines = uids(management).await?;
    let (name, uid) = machines.first_key_value().context("there is a machine")?;
    let goal = Goal::of_version(version.parse()?);
    management.ask(name, uid, ordinal, &goal).await
}

/// Waits until this many machines have finished their update of an ordinal.
async fn updated(management: &Management, ordinal: u32, count: usize) -> anyhow::Result<()> {
    let begun = instant();
    let mut printed = BTreeMap::new();
    let ask = async || {
        let updates = of_ordinal(management, ordinal).await;
        let updates = updates.map_err(|error| format!("{error:#}"))?;
        let mut done = 0;
        let mut lines = Vec::new();
        for update in &updates {
            let status = &update["status"];
            let phase = status["phase"].as_str().unwrap_or_default();
            done += usize::from(phase == "Succeeded");
            let name = update["metadata"]["name"].to_string();
            let why: Vec<String> = (status["blockedBy"].as_array().into_iter().flatten())
                .map(|one| format!("{} {}", one["reason"], one["message"]))
                .collect();
            let line = format!(
                "{name} {phase} {} {} {}",
                status["message"],
                why.join(", "),
                status["failureMessage"]
            );
            if printed.get(&name) != Some(&line) {
                print_line(&format!("{:6.1} {line}", begun.elapsed().as_secs_f64()));
                printed.insert(name, line.clone());
            }
            if phase == "Failed" {
                return Ok(Err(line));
            }
            lines.push(line);
        }
        if done == count {
            return Ok(Ok(()));
        }
        Err(lines.join("\n"))
    };
    let outcome =
        eventually("every machine is updated", Duration::from_secs(UPGRADE_SECONDS), ask).await?;
    outcome.map_err(anyhow::Error::msg)?;
    let mut in_steps = 0.0;
    for update in of_ordinal(management, ordinal).await? {
        print_line(&timeline(&update));
        in_steps += seconds_in_steps(&update);
    }
    let between = begun.elapsed().as_secs_f64() - in_steps;
    print_line(&format!("{in_steps:.0} s in steps, {between:.0} s between them"));
    Ok(())
}

/// Returns each machine's update of this ordinal, if there is one.
async fn of_ordinal(management: &Management, ordinal: u32) -> anyhow::Result<Vec<Value>> {
    let end = format!("-{ordinal}");
    let mut updates = management.list(NODE_UPDATES).await?;
    updates.retain(|update| {
        let name = update["metadata"]["name"].as_str();
        name.is_some_and(|name| name.ends_with(&end))
    });
    Ok(updates)
}

/// Returns the duration of an update's steps in seconds, from the start to the end of each.
fn seconds_in_steps(update: &Value) -> f64 {
    let steps = update["status"]["steps"].as_array().into_iter().flatten();
    steps
        .filter_map(|step| {
            let time = |key: &str| step[key].as_str()?.parse::<jiff::Timestamp>().ok();
            Some(time("finishedAt")?.duration_since(time("startedAt")?).as_secs_f64())
        })
        .sum()
}

/// Formats when each step of an update ran.
fn timeline(update: &Value) -> String {
    let steps = update["status"]["steps"].as_array().cloned().unwrap_or_default();
    let spans = steps.iter().map(|step| {
        let word = |key: &str| step[key].as_str().unwrap_or_default().to_owned();
        let (from, to) = (word("startedAt"), word("finishedAt"));
        format!(" {} {}..{}", word("name"), clock(&from), clock(&to))
    });
    let spans: String = spans.collect();
    format!("{}:{spans}", update["metadata"]["name"])
}

fn clock(time: &str) -> String {
    time.get(11..19).unwrap_or("-").to_owned()
}
