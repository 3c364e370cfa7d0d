//! Power cuts while real kubeadm replaces the manifests of the only control plane of a cluster, whose etcd is on the same
//! disk: each of four manifests, 0, 5 and 20 seconds after its replacement, on ext4 and on XFS.
//!
//! In half of the cuts the agent is stopped while kubeadm runs, so that it does not sync what kubeadm writes: on each file
//! system at least one manifest must be damaged, and restored. If none is, the first cut is repeated, which damages one
//! most often.
//!
//! A passed cut is recorded in the cache, for the agent and the versions that it was made with; the next run makes only
//! the others.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use lab_hosts::{
    base::{self, Debian},
    cluster_nodes::Programs,
    disk::FileSystem,
    eventually,
    host::{Host, with_reports},
    isolation::{self, Isolation, runtime},
    kubernetes::{self, Cluster, IGNORED},
    kubernetes_build::{self, ETCD_TAG, KubernetesBuild, NEXT_ETCD_TAG},
    management::{Management, Objects, Shape, send},
    packages::sha256,
    plans::{self, Order},
    print_line,
};
use refit_core::node::Reboot;
use refit_kinds::{
    json::{is_true, text},
    refit::{Gate, KubeadmArgs, PlanSettings, PlanState, Role, StepType},
};
use refit_runtime::clock::instant;
use serde_json::{Value, json};
use strum::{Display, VariantArray};

/// How long each wait may take. It only ends a test that hangs.
const WAIT_SECONDS: u64 = 1200;
/// How long after the replacement of a manifest the power is cut, in seconds.
const DELAYS: [u64; 3] = [0, 5, 20];
/// How often the first cut is repeated at most, until one has damaged a manifest.
const REPETITIONS: usize = 6;
/// Where kubeadm writes credentials.
const CREDENTIALS: [&str; 3] = ["etc/kubernetes", "etc/kubernetes/pki", "etc/kubernetes/pki/etcd"];
/// The steps of a plan up to the end of kubeadm.
const STEPS: [StepType; 4] =
    [StepType::Stage, StepType::KubeadmInstall, StepType::Snapshot, StepType::KubeadmUpgrade];

/// The static pods, in the order in which kubeadm replaces their manifests.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, VariantArray)]
#[strum(serialize_all = "kebab-case")]
enum Component {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
}

impl Component {
    fn manifest(self) -> String {
        format!("etc/kubernetes/manifests/{self}.yaml")
    }

    /// Its image after the upgrade.
    fn image(self, version: &str) -> String {
        let tag = if self == Self::Etcd { NEXT_ETCD_TAG } else { version };
        format!("registry.k8s.io/{self}:{tag}")
    }
}

/// One power cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    file_system: FileSystem,
    component: Component,
    seconds: u64,
    /// Whether the agent is stopped while kubeadm runs.
    unsynced: bool,
}

impl Cut {
    /// All cuts on a file system.
    fn all(file_system: FileSystem) -> Vec<Self> {
        let pairs = Component::VARIANTS
            .iter()
            .flat_map(|component| DELAYS.map(|seconds| (*component, seconds)));
        let cut = |(at, (component, seconds)): (usize, (Component, u64))| Self {
            file_system,
            component,
            seconds,
            unsynced: at.is_multiple_of(2),
        };
        pairs.enumerate().map(cut).collect()
    }
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let synced = if self.unsynced { "not synced" } else { "synced" };
        write!(f, "{:?}, {} + {} s, {synced}", self.file_system, self.component, self.seconds)
    }
}

/// What a cut left of a manifest.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
enum Left {
    /// The new one.
    #[strum(to_string = "whole")]
    Whole,
    /// The previous one.
    #[strum(to_string = "the old one")]
    Old,
    /// None, or an empty file.
    #[strum(to_string = "damaged")]
    Damaged,
}

/// What a cut left on the disk.
struct Found {
    manifest: Left,
    /// The certificates, keys and kubeconfigs without content.
    empty: Vec<String>,
}

impl Found {
    fn on(host: &Host, cut: Cut, goal: &str) -> anyhow::Result<Self> {
        let manifest = match host.read(&cut.component.manifest()).as_str() {
            "" => Left::Damaged,
            text if text.contains(&cut.component.image(goal)) => Left::Whole,
            _ => Left::Old,
        };
        let mut empty = Vec::new();
        for directory in CREDENTIALS {
            let path = host.root().join(directory);
            let entries = fs::read_dir(&path)
                .with_context(|| format!("failed to list {}", path.display()))?;
            for entry in entries {
                let entry = entry?;
                let found = entry.metadata()?;
                if found.is_file() && found.len() == 0 {
                    empty.push(format!("{directory}/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        Ok(Self { manifest, empty })
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.manifest)?;
        if !self.empty.is_empty() {
            write!(f, "; empty: {}", self.empty.join(", "))?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    if let Err(error) = kubernetes_build::programs() {
        print_line(&format!("error: {error:#}"));
        return ExitCode::FAILURE;
    }
    let tests: [isolation::Test; 2] = [
        ("a_power_cut_after_kubeadm_replaced_a_manifest_is_survived_on_ext4", on_ext4),
        ("a_power_cut_after_kubeadm_replaced_a_manifest_is_survived_on_xfs", on_xfs),
    ];
    isolation::main_on(Debian { packages: &base::KUBERNETES, ..Debian::NEWEST }, &tests)
}

fn on_ext4(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(cuts(isolation, FileSystem::Ext4))
}

fn on_xfs(isolation: &Isolation) -> anyhow::Result<()> {
    runtime()?.block_on(cuts(isolation, FileSystem::Xfs))
}

/// Makes the cuts on one file system that have not passed yet.
async fn cuts(isolation: &Isolation, file_system: FileSystem) -> anyhow::Result<()> {
    let agent = Programs::agent_next_to(&std::env::current_exe()?)?;
    let build = KubernetesBuild::new(isolation, agent.as_ref()).await?;
    let goal = build.versions[1].version.as_str();
    let record = Record::of(&isolation.base, agent.as_ref(), &build)?;
    let all = Cut::all(file_system);
    let left: Vec<Cut> = all.iter().copied().filter(|cut| !record.has(*cut)).collect();
    print_line(&format!("{file_system:?}: {} of {} cuts are left", left.len(), all.len()));
    if left.is_empty() && record.shows_damage(file_system) {
        return Ok(());
    }
    build.serve().await?;
    let cluster = cluster(isolation, &build, file_system).await?;
    let mut failures = Vec::new();
    let again = all.first().into_iter().cycle().take(REPETITIONS).copied();
    let again = again.take_while(|_| !record.shows_damage(file_system));
    for cut in left.into_iter().chain(again) {
        let begun = instant();
        let outcome = one(&cluster, goal, cut).await;
        match with_reports(outcome, &cluster.hosts).await {
            Ok(found) => {
                let seconds = begun.elapsed().as_secs();
                print_line(&format!("{cut}: survived after {seconds} s; the manifest was {found}"));
                record.add(cut, &found)?;
            }
            Err(error) => {
                print_line(&format!("{cut}: {error:#}"));
                failures.push(cut.to_string());
            }
        }
    }
    ensure!(
        failures.is_empty(),
        "not survived: {}; the same command makes these cuts again",
        failures.join("; ")
    );
    ensure!(record.shows_damage(file_system), "no cut has damaged a manifest:\n{}", record.text());
    Ok(())
}

/// A cluster of one control plane that knows Refit's kinds and asks for a newer etcd, whose host is saved and does not
/// run.
async fn cluster(
    isolation: &Isolation,
    build: &KubernetesBuild,
    file_system: FileSystem,
) -> anyhow::Result<Cluster> {
    let version = &build.versions[0].version;
    let objects = Objects::of(Shape { control_planes: 1, workers: 0, version }).await?;
    let management = Management::serve(objects.into_management()).await?;
    let nodes = kubernetes::nodes(&management).await?;
    let cluster = Cluster::create(isolation, build, 1, nodes, file_system).await?;
    let ready = with_reports(prepared(&cluster, &management).await, &cluster.hosts).await;
    ready.map(|()| cluster)
}

async fn prepared(cluster: &Cluster, management: &Management) -> anyhow::Result<()> {
    let host = cluster.hosts.first().context("the cluster has a host")?;
    // It installs Refit's kinds and the rights of agents.
    let controller = management.drive(&cluster.kubeconfig).await?;
    eventually("the agent has reported", Duration::from_secs(WAIT_SECONDS), async || {
        let status = plans::status(cluster, host).await;
        status.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await?;
    controller.stop().await;
    let path = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    let config = send(&cluster.client, "GET", path, &Value::Null).await?;
    let before = text(&config, "/data/ClusterConfiguration");
    let after = before.replace(ETCD_TAG, NEXT_ETCD_TAG);
    ensure!(before != after, "kubeadm's configuration does not name etcd's tag: {before}");
    let body = json!({"data": {"ClusterConfiguration": after}});
    send(&cluster.client, "PATCH", path, &body).await?;
    host.shut_down().await?;
    host.save_disk().await
}

/// One upgrade with a cut; returns what the cut left.
async fn one(cluster: &Cluster, goal: &str, cut: Cut) -> anyhow::Result<Found> {
    let host = cluster.hosts.first().context("the cluster has a host")?;
    host.restore_disk().await?;
    host.boot().await?;
    is_running(cluster).await?;
    let order = Order {
        id: "cut",
        role: Role::FirstControlPlane,
        goal,
        reboot: Reboot::IfNeeded,
        gate: Gate::Disrupt,
    };
    let settings = PlanSettings {
        kubeadm: Some(KubeadmArgs {
            skip_phases: vec!["addon".to_owned()],
            ignore_preflight_errors: IGNORED.map(str::to_owned).to_vec(),
            ..KubeadmArgs::default()
        }),
        ..PlanSettings::default()
    };
    plans::order_part_with(cluster, host, order, &STEPS, &settings).await?;
    if cut.unsynced {
        stop_the_agent(host).await?;
    }
    replaced(cluster, host, cut.component, goal).await?;
    tokio::time::sleep(Duration::from_secs(cut.seconds)).await;
    host.cut().await?;
    let found = Found::on(host, cut, goal)?;
    host.start().await?;
    let status = plans::ended(cluster, host, order.id, WAIT_SECONDS).await?;
    ensure!(status.state == PlanState::Succeeded, "{cut}: {status:?}");
    at_goal(cluster, goal).await?;
    Ok(found)
}

/// Stops the process of the agent that runs kubeadm, once it has started it.
async fn stop_the_agent(host: &Host) -> anyhow::Result<()> {
    let script = "pid=$(pgrep --full '^[^ ]*kubeadm upgrade') && kill -STOP $(ps -o ppid= -p $pid)";
    eventually("kubeadm runs", Duration::from_secs(WAIT_SECONDS), async || {
        let stopped = host.exec(["sh", "-c", script]).await;
        stopped.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await
}

/// Waits until kubeadm has replaced a manifest.
async fn replaced(
    cluster: &Cluster,
    host: &Host,
    component: Component,
    goal: &str,
) -> anyhow::Result<()> {
    let looking = async {
        while !host.read(&component.manifest()).contains(&component.image(goal)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        biased;
        () = looking => Ok(()),
        ended = plans::ended(cluster, host, "cut", WAIT_SECONDS) => {
            anyhow::bail!("the plan ended before {component} was replaced: {:?}", ended?)
        }
    }
}

/// When the kubelet last renewed the Lease of its Node.
async fn renewed(cluster: &Cluster) -> anyhow::Result<String> {
    let node = &cluster.nodes.first().context("the cluster has a node")?.name;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let lease = send(&cluster.client, "GET", &path, &Value::Null).await?;
    Ok(text(&lease, "/spec/renewTime").to_owned())
}

/// Waits until the kubelet of a host that was restored reports again: what its API answers first may be as old as the
/// saved disk.
async fn is_running(cluster: &Cluster) -> anyhow::Result<()> {
    let mut first = None;
    eventually("the kubelet reports", Duration::from_secs(WAIT_SECONDS), async || {
        let now = renewed(cluster).await.map_err(|error| format!("{error:#}"))?;
        let first = first.get_or_insert_with(|| now.clone());
        (now != *first).then_some(()).ok_or(now)
    })
    .await
}

/// Waits until every static pod runs at its goal.
async fn at_goal(cluster: &Cluster, goal: &str) -> anyhow::Result<()> {
    let node = &cluster.nodes.first().context("the cluster has a node")?.name;
    eventually("all static pods run", Duration::from_secs(WAIT_SECONDS), async || {
        for component in Component::VARIANTS {
            let path = format!("/api/v1/namespaces/kube-system/pods/{component}-{node}");
            let pod = send(&cluster.client, "GET", &path, &Value::Null).await;
            let pod = pod.map_err(|error| format!("{error:#}"))?;
            let image = text(&pod, "/spec/containers/0/image");
            if image != component.image(goal) || !is_true(&pod, "Ready") {
                return Err(format!("{component} has {image}, or is not Ready"));
            }
        }
        Ok(())
    })
    .await
}

/// The cuts that passed.
struct Record(PathBuf);

impl Record {
    /// The record of this agent and these versions, next to the root of hosts.
    fn of(base: &Path, agent: &Path, build: &KubernetesBuild) -> anyhow::Result<Self> {
        let digest = sha256(&fs::read(agent)?);
        let digest = digest.get(..12).context("a digest has 64 digits")?;
        let [from, to] = &build.versions;
        let name = format!("kubeadm-cuts-{}-{}-{digest}.txt", from.version, to.version);
        Ok(Self(base.with_file_name(name)))
    }

    fn has(&self, cut: Cut) -> bool {
        self.text().lines().any(|line| line.starts_with(&format!("{cut}: ")))
    }

    /// Whether a cut on a file system has damaged a manifest: otherwise none shows that one is restored.
    fn shows_damage(&self, file_system: FileSystem) -> bool {
        let (start, found) = (format!("{file_system:?}, "), format!(": {}", Left::Damaged));
        self.text().lines().any(|line| line.starts_with(&start) && line.contains(&found))
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    fn add(&self, cut: Cut, found: &Found) -> anyhow::Result<()> {
        let written = OpenOptions::new().create(true).append(true).open(&self.0);
        let written = written.and_then(|mut file| writeln!(file, "{cut}: {found}"));
        written.with_context(|| format!("failed to write {}", self.0.display()))
    }
}
