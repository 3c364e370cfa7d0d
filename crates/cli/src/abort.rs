//! `refit abort`: asks unfinished updates to stop, and their owners for the previous version.

use std::{process::ExitCode, time::Duration};

use kube::ResourceExt as _;
use refit_core::node::is_past_return;
use refit_kinds::{
    keys,
    refit::{NodeUpdate, Phase, Stage},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    ask::{AskArgs, Decision, ask, report},
    client::{self, Cluster},
    exit,
    global::{GlobalArgs, program},
    printer::Printer,
    target::{Target, TargetKind},
    upgrade::revert::{self, revert},
};

/// Exit code if something could not be stopped or set back.
const EXIT_GOES_ON: u8 = 3;
/// Interval between two looks at updates that are being stopped.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Flags of `refit abort`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit abort machine/edge-1-md-0-x7k2p
  refit abort md/edge-1-md-0 --revert
  refit abort cluster/edge-1 --dry-run

A control plane machine stops before kubeadm starts on it, a worker before its drain has ended; the \
agent rolls back what it changed, and the node is uncordoned. After that, the update runs to \
completion: a half-upgraded machine is never left behind.

An abort alone does not change the owner's version, so its rollout waits at the stopped machines. With \
--revert, the command waits until they have stopped and sets the owner's version back to the one that \
its machines run; then every machine is as before. That is not possible once one of them runs the new \
version. To continue instead, use `refit retry`. To keep the other machines as they are, pause the \
owner (annotation cluster.x-k8s.io/paused).

-o json writes one array: {namespace, nodeUpdate, machine, phase, action, message} for each update, \
where action is abort (stops now), already (requested before) or tooLate (the update ends first); and \
with --revert {object, action, from, to, message} for each owner, where action is reverted or kept.

Exit codes:
  0  a stop was requested for every unfinished update, or no update is unfinished
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  an update could not be stopped, or a version not set back; the output shows what happens instead
  130, 143  interrupted by Ctrl-C or SIGTERM; the requested stops stay")]
pub(crate) struct Args {
    #[command(flatten)]
    ask: AskArgs,
    /// Also set the version of the owners back, so that every machine is as before.
    #[arg(long)]
    revert: bool,
}

/// A row of the report.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyRow {
    Update(Row),
    Owner(revert::Row),
}

/// The action on one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// The update stop requested.
    Abort,
    /// An abort was requested before.
    Already,
    /// The abort is requested, but the update runs to completion.
    TooLate,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    node_update: String,
    machine: String,
    phase: String,
    action: Action,
    message: String,
    #[serde(skip)]
    past_return: bool,
}

/// Runs `refit abort`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = args.ask.printer(global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        abort(&cluster, args, printer).await
    })
}

async fn abort(cluster: &Cluster, args: &Args, printer: Printer) -> anyhow::Result<ExitCode> {
    let Args { ask: asked, revert: with_owners } = args;
    let found = asked.target.gather(cluster).await?;
    let mut rows = Vec::new();
    for update in &found.updates {
        let row = ask(cluster, update, asked.dry_run, decide).await?;
        rows.extend(row.map(AnyRow::Update));
    }
    if !printer.is_json() {
        show(printer, asked, &rows)?;
    }
    if *with_owners {
        if !asked.dry_run {
            until_stopped(cluster, &asked.target, printer).await?;
        }
        for owner in owners(cluster, &asked.target).await? {
            let Some(row) = revert(cluster, &owner, asked.dry_run).await? else { continue };
            if !printer.is_json() {
                printer.result(&owner_line(&row, asked.dry_run))?;
            }
            rows.push(AnyRow::Owner(row));
        }
    }
    if printer.is_json() {
        report(printer, &rows, "", |_| String::new())?;
    } else if *with_owners {
        printer.note(&format!("`{} watch {}` shows the machines", program(), asked.target))?;
    }
    let goes_on = rows.iter().any(|row| match row {
        AnyRow::Update(row) => row.past_return,
        AnyRow::Owner(row) => row.action == revert::Action::Kept,
    });
    Ok(if goes_on { ExitCode::from(EXIT_GOES_ON) } else { ExitCode::SUCCESS })
}

/// Waits until every update of the target has ended.
async fn until_stopped(cluster: &Cluster, target: &Target, printer: Printer) -> anyhow::Result<()> {
    let mut shown = 0;
    loop {
        let found = target.gather(cluster).await?;
        let waiting = found.updates.iter().filter(|update| !update.phase().is_final()).count();
        if waiting == 0 {
            return Ok(());
        }
        if waiting != shown {
            shown = waiting;
            printer.note(&format!(
                "waiting until {waiting} {} ended; Ctrl-C changes no version",
                if waiting == 1 { "update has" } else { "updates have" }
            ))?;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The control planes and MachineDeployments of the target's Machines.
async fn owners(cluster: &Cluster, target: &Target) -> anyhow::Result<Vec<Target>> {
    let owners = target.owners(cluster).await?.into_iter();
    let has_version = |owner: &Target| match owner.kind {
        TargetKind::ControlPlane | TargetKind::MachineDeployment => true,
        TargetKind::Cluster | TargetKind::MachineSet | TargetKind::Machine => false,
    };
    Ok(owners.filter(has_version).collect())
}

fn owner_line(row: &revert::Row, dry_run: bool) -> String {
    let rest = if dry_run { " (dry run: nothing was written)" } else { "" };
    match row.action {
        revert::Action::Reverted => format!("{}{rest}", row.message),
        revert::Action::Kept => {
            format!("{}: the version stays {}; {}", row.object, row.from, row.message)
        }
    }
}

/// Decides what to do about an update; returns `None` if it has ended.
fn decide(update: &NodeUpdate) -> Option<Decision<Row>> {
    let phase = update.phase();
    if phase.is_final() {
        return None;
    }
    let past_return = update.status.as_ref().is_some_and(is_past_return);
    let (action, message) = if past_return {
        let text = format!(
            "the host is being changed, and {} when the update ends",
            update.spec.reached()
        );
        (Action::TooLate, text)
    } else {
        let text = if matches!(phase, Phase::Pending | Phase::Waiting) {
            "not started: stops immediately"
        } else if phase == Phase::Draining {
            "the node is being drained: rolls back and uncordons the node"
        } else {
            "before the point of no return: stops at the next safe step"
        };
        (Action::Abort, text.to_owned())
    };
    // An abort because of another goal ends with it; this one lasts.
    let already =
        update.spec.stage == Stage::Abort && !update.annotations().contains_key(keys::GOAL_CHANGED);
    let row = Row {
        namespace: update.namespace().unwrap_or_default(),
        node_update: update.name_any(),
        machine: update.spec.machine_ref.name.clone(),
        phase: format!("{phase:?}"),
        action: if already { Action::Already } else { action },
        message,
        past_return,
    };
    let patch = (!already).then(|| {
        json!({
            "metadata": {"annotations": {keys::GOAL_CHANGED: null}},
            "spec": {"stage": Stage::Abort},
        })
    });
    Some(Decision { row, patch })
}

fn show(printer: Printer, args: &AskArgs, rows: &[AnyRow]) -> anyhow::Result<()> {
    let empty = format!("{}: no update is in progress", args.target);
    let of_update = |row: &AnyRow| match row {
        AnyRow::Update(row) => Some(row.clone()),
        AnyRow::Owner(_) => None,
    };
    let rows: Vec<Row> = rows.iter().filter_map(of_update).collect();
    report(printer, &rows, &empty, |row| {
        let what = match (row.action, args.dry_run) {
            (Action::Already, _) => "stop was already requested",
            (Action::Abort, true) => "stop would be requested",
            (Action::Abort, false) => "stop requested",
            (Action::TooLate, _) => "too late to stop",
        };
        format!("{} ({}): {what}; {}", row.node_update, row.phase, row.message)
    })?;
    if rows.is_empty() {
        return Ok(());
    }
    if args.dry_run {
        printer.note("dry run: nothing was written")?;
    }
    printer.note(&advice(&rows, &args.target))?;
    Ok(())
}

/// Describes the remaining updates and how to continue.
fn advice(rows: &[Row], target: &Target) -> String {
    if rows.iter().any(|row| row.past_return) {
        return "The group's other machines follow after that while its owner requests the new \
            version. To keep them as they are, pause the owner (annotation cluster.x-k8s.io/paused)."
            .to_owned();
    }
    format!(
        "The rollout waits at these machines while the owner requests the new version. To \
         continue: `{0} retry {target}`. To return to the previous version: `{0} abort {target} \
         --revert`. To keep the other machines as they are, pause the owner (annotation \
         cluster.x-k8s.io/paused).",
        program()
    )
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::Role;

    use super::*;

    fn update(role: Role, phase: Phase, stage: Stage) -> NodeUpdate {
        serde_json::from_value(json!({
            "metadata": {"name": "m-1", "namespace": "n"},
            "spec": {"stage": stage, "machineRef": {"name": "m", "uid": "u"}, "origin": "Hook",
                "goal": {"kubernetesVersion": "v1.35.0"}, "goalHash": "h"},
            "status": {"phase": phase, "role": role},
        }))
        .unwrap()
    }

    fn action(role: Role, phase: Phase, stage: Stage) -> Option<Action> {
        decide(&update(role, phase, stage)).map(|decision| decision.row.action)
    }

    #[test]
    fn updates_stop_until_their_host_is_changed_for_good() {
        use Phase::*;
        let table = [
            (Role::ControlPlane, vec![Pending, Waiting, Staging], vec![Upgrading, Draining]),
            (Role::Worker, vec![Staging, Upgrading, Draining], vec![Disrupting, Uncordoning]),
        ];
        for (role, in_time, too_late) in table {
            for phase in in_time {
                assert_eq!(action(role, phase, Stage::Ongoing), Some(Action::Abort), "{phase:?}");
                assert_eq!(action(role, phase, Stage::Abort), Some(Action::Already), "{phase:?}");
            }
            for phase in too_late {
                assert_eq!(action(role, phase, Stage::Ongoing), Some(Action::TooLate), "{phase:?}");
            }
            for phase in [Succeeded, Failed, Stopped] {
                assert_eq!(action(role, phase, Stage::Ongoing), None, "{phase:?}");
            }
        }
    }
}
