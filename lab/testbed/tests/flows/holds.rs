//! In namespaces that hold replacements, the API server refuses what would replace a machine.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use lab_testbed::{
    Bed, Cluster, ClusterSpec, cli,
    cluster::{TO, error_text},
    eventually,
    objects::{CONTROL_PLANE, DEV_MACHINE, EVENT, MACHINE, annotation, name, text},
    recorder::Recorder,
};
use refit_kinds::{canonical::CERTIFICATES_EXPIRY, keys};
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::{look, planned::Planned, tasks};

const WITHIN: Duration = Duration::from_mins(6);
const REPLACE: [(&str, Option<&str>); 1] = [("refit.dev/on-uncovered", Some("Replace"))];

/// Groups of one machine, which Cluster API replaces by means of a second machine. A worker is updated in place
/// once its owner wants no surge.
pub(super) async fn of_one(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    tasks::grant(bed).await?;
    futures::try_join!(control_plane_of_one(bed), worker_of_one(bed))?;
    Ok(())
}

async fn control_plane_of_one(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec { control_planes: 1, surge: 1, holds: true, ..ClusterSpec::default() };
    let cluster = bed.cluster("held-plane", &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    let planned = Planned::version(bed, &cluster, "kcp/held-plane", TO).await?;
    planned.is_blocked("held-plane", "ReplacementHeld")?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    is_paused(&cluster).await?;
    ensure!(look::identities(&cluster).await? == before, "the Machine is another one");
    ensure!(recorder.counts("held-plane") == [1], "{:?}", recorder.counts("held-plane"));

    cluster.objects.annotate(CONTROL_PLANE, "held-plane", &REPLACE).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    ensure!(recorder.counts("held-plane") == [1, 2, 1], "{:?}", recorder.counts("held-plane"));
    let machines = cluster.objects.list(DEV_MACHINE).await?;
    ensure!(machines.len() == 1, "{} infrastructure machines are left", machines.len());
    Ok(())
}

/// Refit pauses a control plane of one machine, whether Cluster API has been refused a second one before or not.
pub(super) async fn is_paused(cluster: &Cluster) -> anyhow::Result<()> {
    eventually("Refit pauses the control plane", WITHIN, async || {
        let plane = cluster.control_plane().await.map_err(error_text)?;
        let paused = annotation(&plane, keys::PAUSED);
        (paused == Some(keys::HELD)).then_some(()).ok_or_else(|| format!("{paused:?}"))
    })
    .await
}

async fn worker_of_one(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 1, 1, 0)],
        version: TO,
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("held-worker", &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    let refusals = Refusals::since_now(&cluster).await?;
    let planned = Planned::version(bed, &cluster, "md/held-worker-md", TO).await?;
    planned.is_blocked("held-worker-md", "ReplacementHeld")?;
    cluster.change_workers("md", &json!({"template": {"spec": {"version": TO}}})).await?;
    let why = "MachineDeployment held-worker/held-worker-md: a further one would replace another";
    refusals.wait("FailedCreate", why).await?;
    ensure!(recorder.counts("held-worker-md") == [1], "{:?}", recorder.counts("held-worker-md"));
    let strategy = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    cluster.change_workers("md", &json!({"rollout": {"strategy": strategy}})).await?;
    cluster.workers_are_at("md", TO, WITHIN).await?;
    ensure!(look::identities(&cluster).await? == before, "the worker is another one");
    ensure!(recorder.counts("held-worker-md") == [1], "{:?}", recorder.counts("held-worker-md"));
    look::nothing_is_left(&cluster).await
}

/// What the owner has declared is predicted and not held: dates, strategy `OnDelete`, and numbers of replicas.
pub(super) async fn declared(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("dated", 2, 0, 1), ("left", 1, 0, 1), ("scaled", 3, 0, 1)],
        version: TO,
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("declared", &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    after_a_date(bed, &cluster).await?;
    on_delete(bed, &cluster).await?;
    scaled(bed, &cluster).await?;
    cluster.workers_are_at("left", TO, WITHIN).await?;
    replaced(&recorder, "declared-dated", &[2, 1, 2, 1, 2]).await?;
    replaced(&recorder, "declared-left", &[1, 0, 1]).await?;
    replaced(&recorder, "declared-scaled", &[3, 2, 3]).await?;
    before_certificates_expire(bed, &cluster).await?;
    replaced(&recorder, "declared", &[1, 2, 1]).await
}

/// All workers of a group are older than a date.
async fn after_a_date(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let spec = json!({"rollout": {"after": written(Clock::real().now())}});
    let planned = planned(bed, &cluster.deployment("dated").await?, &spec).await?;
    is_predicted(&planned, "RolloutAfter", [0, 2, 2])?;
    cluster.change_workers("dated", &spec).await
}

/// Cluster API replaces the only worker of a group once it has been deleted.
async fn on_delete(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let strategy = json!({"rollout": {"strategy": {"type": "OnDelete", "rollingUpdate": null}}});
    cluster.change_workers("left", &strategy).await?;
    let version = json!({"template": {"spec": {"version": TO}}});
    let planned = planned(bed, &cluster.deployment("left").await?, &version).await?;
    is_predicted(&planned, "OnDelete", [0, 0, 0])?;
    cluster.change_workers("left", &version).await?;
    let left = cluster.worker_machines("left").await?;
    cluster.objects.delete(MACHINE, name(left.first().context("there is no worker")?)).await
}

/// Scaled down, a group loses the chosen worker.
async fn scaled(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let workers = cluster.worker_machines("scaled").await?;
    let chosen = name(workers.first().context("there is no worker")?);
    let mark = [("cluster.x-k8s.io/delete-machine", Some(""))];
    cluster.objects.annotate(MACHINE, chosen, &mark).await?;
    let fewer = json!({"replicas": 2});
    let planned = planned(bed, &cluster.deployment("scaled").await?, &fewer).await?;
    is_predicted(&planned, "Replicas", [0, 0, 1])?;
    cluster.change_workers("scaled", &fewer).await?;
    eventually("the chosen Machine is deleted", WITHIN, async || {
        let found = cluster.objects.find(MACHINE, chosen).await.map_err(error_text)?;
        found.map_or(Ok(()), |_| Err("it is not".to_owned()))
    })
    .await?;
    cluster.change_workers("scaled", &json!({"replicas": 3})).await
}

/// The certificates of the only machine of a control plane expire soon, by the annotation in which Cluster API keeps the date.
async fn before_certificates_expire(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let machines = cluster.control_plane_machines().await?;
    let machine = name(machines.first().context("there is no control plane")?);
    let expires = written(Clock::real().now().checked_add(SignedDuration::from_hours(5 * 24))?);
    let expiry = [(CERTIFICATES_EXPIRY, Some(&*expires))];
    cluster.objects.annotate(MACHINE, machine, &expiry).await?;
    eventually("the status of the Machine has the date", WITHIN, async || {
        let found = cluster.objects.get(MACHINE, machine).await.map_err(error_text)?;
        let found = text(&found, "/status/certificatesExpiryDate");
        (found == expires).then_some(()).ok_or_else(|| found.to_owned())
    })
    .await?;
    let spec = json!({"rollout": {"before": {"certificatesExpiryDays": 7}}});
    let planned = planned(bed, &cluster.control_plane().await?, &spec).await?;
    is_predicted(&planned, "CertificatesExpire", [0, 1, 1])?;
    cluster.change_control_plane(&spec).await
}

/// What `refit plan` predicts for an owner with this change of its spec.
async fn planned(bed: &Bed, owner: &Value, spec: &Value) -> anyhow::Result<Value> {
    let owner_name = name(owner);
    let manifest = json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "metadata": {"name": owner_name, "namespace": owner["metadata"]["namespace"]},
        "spec": spec,
    });
    let file = bed.directory.join(format!("{owner_name}.json"));
    tokio::fs::write(&file, manifest.to_string()).await?;
    let file = file.to_str().context("the directory of the bed is UTF-8")?;
    let namespace = text(owner, "/metadata/namespace");
    let mut plan = cli::json(&bed.kubeconfig(), namespace, &["plan", "-f", file]).await?;
    Ok(plan["groups"][0].take())
}

/// Checks that a plan predicts a replacement, with this cause and these numbers of machines that are updated in place, created
/// and deleted.
fn is_predicted(planned: &Value, cause: &str, counts: [u64; 3]) -> anyhow::Result<()> {
    let machines = &planned["machines"];
    let found = ["inPlace", "new", "deleted"].map(|key| machines[key].as_u64().unwrap_or(99));
    let is_so = planned["outcome"] == "Replaced"
        && planned["causes"][0]["reason"] == cause
        && found == counts;
    ensure!(is_so, "{cause} {counts:?} is not in {planned:#}");
    Ok(())
}

fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Waits until a group has had these numbers of machines.
async fn replaced(recorder: &Recorder, group: &str, wanted: &[usize]) -> anyhow::Result<()> {
    eventually("the declared machines are replaced", WITHIN, async || {
        let found = recorder.counts(group);
        (found == wanted).then_some(()).ok_or_else(|| format!("{group}: {found:?}"))
    })
    .await
}

/// What Cluster API's managers are refused from some time on, by the events of its controllers.
pub(super) struct Refusals<'c> {
    cluster: &'c Cluster,
    since: u64,
}

impl<'c> Refusals<'c> {
    pub(super) async fn since_now(cluster: &'c Cluster) -> anyhow::Result<Self> {
        let (_, revision) = cluster.objects.list_at(EVENT).await?;
        Ok(Self { cluster, since: revision.parse()? })
    }

    /// Waits for an event with this reason and this text.
    pub(super) async fn wait(&self, reason: &str, why: &str) -> anyhow::Result<()> {
        eventually(&format!("{reason}: {why}"), WITHIN, async || {
            let events = self.cluster.objects.list(EVENT).await.map_err(error_text)?;
            let revision = |event: &Value| {
                text(event, "/metadata/resourceVersion").parse::<u64>().unwrap_or_default()
            };
            let of_reason =
                |event: &&Value| revision(event) > self.since && text(event, "/reason") == reason;
            let all: Vec<&str> =
                events.iter().filter(of_reason).map(|event| text(event, "/message")).collect();
            all.iter().any(|one| one.contains(why)).then_some(()).ok_or_else(|| format!("{all:?}"))
        })
        .await
    }
}
