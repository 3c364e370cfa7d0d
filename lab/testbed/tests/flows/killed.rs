//! Processes that are killed in the middle of an update: the result is that of an undisturbed run.

use std::{collections::BTreeMap, time::Duration};

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually, history,
    managers::Manager,
    objects::{NODE_UPDATE, name, text, uid},
    recorder::Recorder,
};
use serde_json::json;

use super::look;

const WITHIN: Duration = Duration::from_mins(8);
/// How long Refit's hooks are down: Cluster API's managers give up after 60 s.
const AWAY: Duration = Duration::from_secs(90);
/// How often the Refit controller is killed in each half.
const KILLS: usize = 5;
/// Maximum number of kills during one NodeUpdate, so that others are disturbed too.
const KILLS_OF_ONE: usize = 2;
/// Managers that keep no state in memory.
const MANAGERS: [Manager; 3] = [Manager::Core, Manager::Bootstrap, Manager::ControlPlane];

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _alone = bed.alone().await;
    let spec =
        ClusterSpec { workers: vec![("a", 3, 0, 1), ("b", 3, 1, 0)], ..ClusterSpec::default() };
    let cluster = bed.cluster("killed", &spec).await?;
    let before = look::identities(&cluster).await?;
    let surged = uids(&cluster, "b").await?;
    let recorder = Recorder::start(&cluster).await?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    kill(bed, &cluster, KILLS / 2).await?;
    for manager in MANAGERS {
        bed.managers().part(manager).crash();
    }
    kill(bed, &cluster, KILLS - KILLS / 2).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    let version = json!({"template": {"spec": {"version": TO}}});
    for workers in ["a", "b"] {
        cluster.change_workers(workers, &version).await?;
    }
    kill(bed, &cluster, KILLS / 2).await?;
    away(bed, &cluster).await?;
    kill(bed, &cluster, KILLS - KILLS / 2).await?;
    for workers in ["a", "b"] {
        cluster.workers_are_at(workers, TO, WITHIN).await?;
    }
    as_undisturbed(&recorder, &cluster, &surged).await?;
    let mut after = look::identities(&cluster).await?;
    let kept = before.iter().filter(|(key, all)| after.remove(*key).as_ref() == Some(*all));
    ensure!(
        kept.count() == before.len() - 1 && after.len() == 1,
        "of {before:#?} one was to be replaced by one; new are {after:#?}"
    );
    look::nothing_is_left(&cluster).await
}

/// Kills the Refit controller several times in the middle of updates, each time in another phase of
/// a NodeUpdate.
async fn kill(bed: &Bed, cluster: &Cluster, times: usize) -> anyhow::Result<()> {
    let controller = bed.controller();
    let mut done: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..times {
        eventually("an update goes on", WITHIN, async || {
            let (update, phase) = unfinished(cluster, &done).await?;
            done.entry(update).or_default().push(phase);
            Ok(())
        })
        .await?;
        let (ends, _) = controller.part().ends();
        controller.part().crash();
        eventually("our controller has ended", WITHIN, async || {
            let (now, _) = controller.part().ends();
            (now > ends).then_some(()).ok_or_else(|| "it runs".to_owned())
        })
        .await?;
        controller.ready().await?;
    }
    Ok(())
}

/// Returns a NodeUpdate in progress, in a phase in which the controller was not killed yet.
async fn unfinished(
    cluster: &Cluster,
    done: &BTreeMap<String, Vec<String>>,
) -> Result<(String, String), String> {
    let updates = cluster.objects.list(NODE_UPDATE).await.map_err(error_text)?;
    let at = updates.iter().map(|update| (name(update), text(update, "/status/phase")));
    let found = at.clone().find(|(update, phase)| {
        let kills = done.get(*update).map_or(&[][..], Vec::as_slice);
        !["", "Succeeded", "Failed", "Stopped"].contains(phase)
            && kills.len() < KILLS_OF_ONE
            && !kills.iter().any(|other| other == phase)
    });
    let found = found.map(|(update, phase)| (update.to_owned(), phase.to_owned()));
    found.ok_or_else(|| format!("{:?}", at.collect::<Vec<_>>()))
}

/// Stops the Refit controller in the middle of an update for longer than Cluster API's managers
/// wait for it at their start: they exit, and restart until the hooks respond.
async fn away(bed: &Bed, cluster: &Cluster) -> anyhow::Result<()> {
    let started = [Manager::Core, Manager::ControlPlane];
    let no_kills = BTreeMap::new();
    eventually("an update goes on", WITHIN, async || {
        unfinished(cluster, &no_kills).await.map(drop)
    })
    .await?;
    bed.controller().part().kill().await;
    let core = || bed.managers().part(Manager::Core).ends();
    let (before, _) = core();
    for manager in started {
        bed.managers().part(manager).crash();
    }
    tokio::time::sleep(AWAY).await;
    // The core manager calls Refit's hooks. The control plane manager relies on what core recorded
    // about them in the ExtensionConfig, so it exits only if core exited first.
    let (ends, how) = core();
    ensure!(
        ends > before + 1,
        "core started without our hooks ({how}): this flow shows nothing then"
    );
    bed.controller().part().start_again();
    bed.controller().ready().await?;
    for manager in started {
        bed.managers().ready(manager).await?;
    }
    Ok(())
}

/// Every machine was updated once, one after the other, as in the flows without kills.
async fn as_undisturbed(
    recorder: &Recorder,
    cluster: &Cluster,
    surged: &[String],
) -> anyhow::Result<()> {
    let history = recorder.history().await;
    for group in ["killed", "killed-a"] {
        let wanted: Vec<String> = (1..=3)
            .flat_map(|n| ["begins", "ends"].map(|turn| format!("{group}/machine-{n} {turn}")))
            .collect();
        let order = history::order(&history, group);
        ensure!(order == wanted, "{group}: {order:?}");
    }
    let now = uids(cluster, "b").await?;
    let kept = now.iter().filter(|uid| surged.contains(uid)).count();
    ensure!(
        kept == 2 && now.len() == 3,
        "two of {surged:?} were to be kept, and one to be new: {now:?}"
    );
    let updates = cluster.objects.list(NODE_UPDATE).await?;
    let wanted = 3 + 3 + 2;
    ensure!(updates.len() == wanted, "{} NodeUpdates instead of {wanted}", updates.len());
    Ok(())
}

async fn uids(cluster: &Cluster, workers: &str) -> anyhow::Result<Vec<String>> {
    let machines = cluster.worker_machines(workers).await?;
    Ok(machines.iter().map(|machine| uid(machine).to_owned()).collect())
}
