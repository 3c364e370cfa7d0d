//! Brings the cluster up, changes the version as a user would, and watches the upgrade.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use kube::{Api, ResourceExt as _, api::ListParams};
use lab_world::world::{
    MachineFacts, MachineProgress, ProgressFeed, World, WorldOptions, facts, pace,
};
use refit_kinds::{
    refit::{NodeUpdate, UpdateGroup},
    version::StatedVersion,
};

use super::{
    fleet::{Fleet, group_name},
    outcome::{DemoOutcome, Timing},
    report::{Identity, Work, rows},
};
use crate::{
    printer::{Printer, duration},
    progress::{Board, Step, is_done},
};

/// Time limit for bringing the machines up, in simulated time.
const BRING_UP: Duration = Duration::from_hours(1);
/// The run counts as stuck after this many simulated seconds without a change.
const STUCK_SECONDS: i64 = 45 * 60;
/// Steps of a NodeUpdate that run in the cluster, not on the host.
const CLUSTER_STEPS: [&str; 4] = ["cordon", "drain", "node-ready", "uncordon"];
/// User agent of the client that reads machines before and after the run.
const READER: &str = "refit-demo-reader";

/// Runs the whole demo.
pub(super) async fn run(
    printer: Printer,
    fleet: &Fleet,
    speed: f64,
    no_surge: bool,
) -> anyhow::Result<ExitCode> {
    introduce(printer, fleet, speed, no_surge)?;
    let world = World::new(WorldOptions::new(fleet.objects.clone())).await?;
    let mut feed = world.subscribe()?;
    bring_up(printer, &world, fleet, &feed).await?;
    let before = identities(facts(&world).await?);
    printer.note("")?;
    printer.note(&printer.bold(&format!(
        "Setting version {} on every KubeadmControlPlane and MachineDeployment at once",
        fleet.target
    )))?;
    let start = world.now();
    world.upgrade(&fleet.target.to_string()).await?;
    let pacer = tokio::spawn(pace(speed));
    let watched = watch(printer, &world, fleet, &mut feed).await;
    pacer.abort();
    watched?;
    let fleet_seconds = world.now().duration_since(start).as_secs();
    let after = identities(facts(&world).await?);
    let work = work(&world).await?;
    let rules: Vec<_> = fleet.groups.iter().map(|group| group.rule.clone()).collect();
    let outcome = DemoOutcome {
        fleet,
        rows: rows(&before, &after, &rules, &work),
        timing: Timing { fleet_seconds, speed },
        violations: world.violations().iter().map(|v| format!("{v}")).collect(),
    };
    outcome.print(printer, no_surge)?;
    Ok(outcome.exit_code())
}

fn introduce(printer: Printer, fleet: &Fleet, speed: f64, no_surge: bool) -> anyhow::Result<()> {
    let clusters: Vec<&str> = fleet
        .objects
        .iter()
        .filter(|object| object["kind"] == "Cluster")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    printer.note(&printer.bold(&format!(
        "Refit demo: cluster {}, {} machines on simulated hosts",
        clusters.join(", "),
        fleet.machines()
    )))?;
    printer.note(&format!(
        "All times are simulated: {speed} simulated seconds pass in one second (--speed)."
    ))?;
    if no_surge {
        printer.note(
            "--no-surge: KubeadmControlPlane maxSurge 0, MachineDeployment maxSurge 0 and \
             maxUnavailable 1.",
        )?;
    }
    if no_surge && fleet.forbids_too_much() {
        printer.note(
            "Cluster API itself accepts maxSurge 0 only with 3 or more control plane machines; \
             the sandbox accepts it.",
        )?;
    }
    for title in &fleet.kept {
        printer.note(&format!("stored, without effect: {title}"))?;
    }
    printer.note("")?;
    for group in &fleet.groups {
        let machines = if group.replicas == 1 { "machine" } else { "machines" };
        let fate = match group.rule.replaces {
            _ if group.version == fleet.target => "unchanged: already at the target".to_owned(),
            0 => "all updated in place".to_owned(),
            n => format!("{n} of them replaced by Cluster API (maxSurge {})", group.rule.max_surge),
        };
        printer.note(&format!(
            "{}: {} {machines} at {}, {fate}",
            group.rule.group, group.replicas, group.version
        ))?;
    }
    Ok(())
}

async fn bring_up(
    printer: Printer,
    world: &World,
    fleet: &Fleet,
    feed: &ProgressFeed,
) -> anyhow::Result<()> {
    let start = world.now();
    let wanted = usize::try_from(fleet.machines()).context("the number of machines")?;
    let up = world.until("the machines are ready", BRING_UP, World::is_ready).await;
    if let Err(error) = up {
        let running = feed.current().iter().filter(|row| row.machine_phase == "Running").count();
        bail!("{error}: {running} of {wanted} machines run\n{}", blockers(world).await?);
    }
    let seconds = world.now().duration_since(start).as_secs();
    printer.note(&format!(
        "\n{wanted} machines are up and ready after {} of simulated time.",
        duration(seconds)
    ))?;
    Ok(())
}

/// Returns the length of the longest name.
fn widest(rows: &[MachineProgress]) -> usize {
    let names = rows.iter().map(|row| row.machine.len());
    names.max().unwrap_or_default()
}

/// Shows progress until every machine is done or nothing changes any more.
async fn watch(
    printer: Printer,
    world: &World,
    fleet: &Fleet,
    feed: &mut ProgressFeed,
) -> anyhow::Result<()> {
    let start = world.now();
    let target = StatedVersion::from(fleet.target.clone());
    let done_before: BTreeSet<String> = feed
        .current()
        .iter()
        .filter(|row| is_done(row, &target))
        .map(|row| row.machine.clone())
        .collect();
    let mut board = Board::new(printer, widest(&feed.current()));
    let mut moved = start;
    loop {
        let mut rows = feed.current();
        rows.sort_by(|a, b| (!a.control_plane, &a.machine).cmp(&(!b.control_plane, &b.machine)));
        let elapsed = world.now().duration_since(start).as_secs();
        for row in &rows {
            let untouched = done_before.contains(&row.machine);
            board.show(&row.machine, &step(row, &target, untouched), elapsed)?;
        }
        board.report_gone(|machine| !rows.iter().any(|row| row.machine == machine), elapsed)?;
        let done = rows.iter().filter(|row| is_done(row, &target)).count();
        board.sum_up(done, rows.len(), format!("{} of simulated time", duration(elapsed)));
        if world.is_updated(&fleet.target.to_string())
            && rows.iter().all(|row| is_done(row, &target))
        {
            board.finish()?;
            return Ok(());
        }
        if world.now().duration_since(moved).as_secs() > STUCK_SECONDS {
            board.finish()?;
            bail!(
                "no progress for {} of simulated time\n{}",
                duration(STUCK_SECONDS),
                blockers(world).await?
            );
        }
        tokio::select! {
            biased;
            changed = feed.next() => {
                if changed.is_none() {
                    bail!("the sandbox stopped before the upgrade finished");
                }
                moved = world.now();
            }
            () = tokio::time::sleep(Duration::from_mins(1)) => {}
        }
    }
}

/// Returns the current step of a machine; a machine that appeared during the run is new.
fn step(row: &MachineProgress, target: &StatedVersion, untouched: bool) -> Step {
    let mut step = crate::progress::step(row, target);
    if is_done(row, target) && row.phase.is_none() {
        let detail = if untouched { "runs the target already" } else { "a new machine" };
        detail.clone_into(&mut step.detail);
    }
    step
}

/// Collects the blocking reasons that groups and updates report.
async fn blockers(world: &World) -> anyhow::Result<String> {
    let client = world.client(READER)?;
    let mut lines = Vec::new();
    for group in Api::<UpdateGroup>::all(client.clone()).list(&ListParams::default()).await? {
        let status = group.status.unwrap_or_default();
        for condition in
            status.conditions.iter().filter(|c| c.type_ == "Blocked" && c.status == "True")
        {
            lines.push(format!(
                "  {}: {}",
                group.metadata.name.clone().unwrap_or_default(),
                condition.message
            ));
        }
    }
    for update in Api::<NodeUpdate>::all(client).list(&ListParams::default()).await? {
        let name = update.name_any();
        for blocker in update.status.unwrap_or_default().blocked_by {
            lines.push(format!("  {name}: {}: {}", blocker.reason, blocker.message));
        }
    }
    if lines.is_empty() {
        lines.push(
            "  no UpdateGroup or NodeUpdate states a reason; run with -v to see the controllers' \
             logs"
                .to_owned(),
        );
    }
    Ok(lines.join("\n"))
}

fn identities(facts: Vec<MachineFacts>) -> Vec<Identity> {
    let mut machines: Vec<_> = facts
        .into_iter()
        .map(|m| {
            let identity = Identity {
                machine: m.name,
                uid: m.uid,
                provider_id: m.provider_id,
                node_name: m.node_name,
                boot_id: m.boot_id,
                version: m.kubelet_version,
                group: group_name(&m.namespace, &m.owner),
            };
            (!m.control_plane, identity)
        })
        .collect();
    machines.sort_by(|a, b| (a.0, &a.1.machine).cmp(&(b.0, &b.1.machine)));
    machines.into_iter().map(|(_, identity)| identity).collect()
}

/// Summarizes the work on each machine from its newest NodeUpdate.
async fn work(world: &World) -> anyhow::Result<BTreeMap<String, Work>> {
    let updates: Api<NodeUpdate> = Api::all(world.client(READER)?);
    let mut list = updates.list(&ListParams::default()).await?.items;
    list.sort_by_key(|update| {
        refit_kinds::refit::ordinal_of(&update.name_any(), &update.spec.machine_ref.name)
    });
    Ok(list.iter().map(|update| (update.spec.machine_ref.name.clone(), work_of(update))).collect())
}

fn work_of(update: &NodeUpdate) -> Work {
    let Some(status) = &update.status else {
        return Work::default();
    };
    let between = |from: &Option<_>, to: &Option<_>| match (from, to) {
        (Some(from), Some(to)) => seconds(from, to),
        _ => 0,
    };
    let done = status.steps.iter().filter(|s| s.state == refit_kinds::refit::StepState::Done);
    let host = done.clone().filter(|s| !CLUSTER_STEPS.contains(&s.name.as_str()));
    Work {
        steps: done.count(),
        seconds: between(&status.started_at, &status.finished_at),
        host_seconds: host.map(|s| between(&s.started_at, &s.finished_at)).sum(),
    }
}

fn seconds(
    from: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
    to: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
) -> i64 {
    to.0.duration_since(from.0).as_secs()
}
