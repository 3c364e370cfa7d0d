//! In namespaces that hold replacements, the API server refuses what would replace a machine.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{CONTROL_PLANE, DEV_MACHINE, EVENT, MACHINE, annotation, name, text},
    recorder::Recorder,
};
use refit_kinds::keys;
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::{look, tasks};

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

/// What the owner has declared is not held: dates, strategy `OnDelete`, and numbers of replicas.
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

    let now = Clock::real().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    cluster.change_workers("dated", &json!({"rollout": {"after": now}})).await?;
    let on_delete = json!({"rollout": {"strategy": {"type": "OnDelete", "rollingUpdate": null}}});
    cluster.change_workers("left", &on_delete).await?;
    let version = json!({"template": {"spec": {"version": TO}}});
    cluster.change_workers("left", &version).await?;
    let left = cluster.worker_machines("left").await?;
    let left = name(left.first().context("there is no worker")?);
    cluster.objects.delete(MACHINE, left).await?;
    let scaled = cluster.worker_machines("scaled").await?;
    let chosen = name(scaled.first().context("there is no worker")?);
    let mark = [("cluster.x-k8s.io/delete-machine", Some(""))];
    cluster.objects.annotate(MACHINE, chosen, &mark).await?;
    cluster.change_workers("scaled", &json!({"replicas": 2})).await?;
    eventually("the chosen Machine is deleted", WITHIN, async || {
        let found = cluster.objects.find(MACHINE, chosen).await.map_err(error_text)?;
        found.map_or(Ok(()), |_| Err("it is not".to_owned()))
    })
    .await?;
    cluster.change_workers("scaled", &json!({"replicas": 3})).await?;

    cluster.workers_are_at("left", TO, WITHIN).await?;
    for (group, wanted) in
        [("dated", &[2, 1, 2, 1, 2][..]), ("left", &[1, 0, 1]), ("scaled", &[3, 2, 3])]
    {
        let group = format!("declared-{group}");
        eventually("the declared machines are replaced", WITHIN, async || {
            let found = recorder.counts(&group);
            (found == wanted).then_some(()).ok_or_else(|| format!("{group}: {found:?}"))
        })
        .await?;
    }
    Ok(())
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
