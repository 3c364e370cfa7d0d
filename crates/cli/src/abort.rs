//! `refit abort`: asks unfinished updates to stop.

use std::process::ExitCode;

use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use refit_kinds::{
    keys,
    refit::{NodeUpdate, Phase, Stage},
};
use refit_runtime::apply::is_conflict;
use serde::Serialize;
use serde_json::json;

use crate::{
    client::{self, Cluster, attempt_on},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    target::Target,
};

/// How often a NodeUpdate may change under our hands until we give up.
const ATTEMPTS: u32 = 5;

/// Flags of `refit abort`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit abort machine/edge-1-md-0-x7k2p
  refit abort cluster/edge-1 --dry-run

An update stops before the point of no return, and what it did until then is undone. Once kubeadm has begun on a
machine its update ends first: a half-upgraded machine helps nobody.

Aborting does not change what the owner asks for: its rollout waits at the machines that were stopped. To stay on the old
version set the owner's version back with kubectl; to go on after all: `refit retry`.

-o json writes one array of {namespace, nodeUpdate, machine, phase, action, message}; action is abort (asked to stop
now), already (asked before) or tooLate (asked; the update ends first).

Exit codes:
  0  every unfinished update was asked to stop, or there was none
  1  the cluster cannot be read or written; the text says why
  2  the command line is wrong")]
pub(crate) struct Args {
    /// cluster/NAME, kcp/NAME, md/NAME, ms/NAME or machine/NAME.
    #[arg(value_name = "KIND/NAME")]
    target: Target,
    /// Say what would happen, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What is done about one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// It is asked to stop.
    Abort,
    /// It was asked before.
    Already,
    /// It is asked, and ends first.
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
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let found = args.target.gather(&cluster).await?;
        let mut rows = Vec::new();
        for update in &found.updates {
            let Some(mut row) = decide(update) else {
                continue;
            };
            if row.action != Action::Already && !args.dry_run {
                match stop(&cluster, update).await? {
                    Some(now) => row = now,
                    // It ended while we looked.
                    None => continue,
                }
            }
            rows.push(row);
        }
        show(printer, args, &rows)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// What is to be done about an update; `None` where it has ended.
fn decide(update: &NodeUpdate) -> Option<Row> {
    let phase = update.status.as_ref().map(|s| s.phase).unwrap_or_default();
    if phase.is_final() {
        return None;
    }
    let version = &update.spec.goal.kubernetes_version;
    let past_return = (Phase::Upgrading..=Phase::Uncordoning).contains(&phase);
    let (action, message) = if past_return {
        let text = format!("past the point of no return, it ends first: on {version}");
        (Action::TooLate, text)
    } else {
        let text = match phase {
            Phase::Pending | Phase::Waiting => "nothing was begun: it stops at once".to_owned(),
            _ => "before the point of no return: the host stops at its next safe step".to_owned(),
        };
        (Action::Abort, text)
    };
    Some(Row {
        namespace: update.namespace().unwrap_or_default(),
        node_update: update.name_any(),
        machine: update.spec.machine_ref.name.clone(),
        phase: format!("{phase:?}"),
        action: if update.spec.stage == Stage::Abort { Action::Already } else { action },
        message,
        past_return,
    })
}

/// Asks an update to stop, and says what it will do as of that moment; `None` where it has ended.
async fn stop(cluster: &Cluster, update: &NodeUpdate) -> anyhow::Result<Option<Row>> {
    let api = cluster.here::<NodeUpdate>();
    let name = update.name_any();
    let mut update = update.clone();
    for _ in 0..ATTEMPTS {
        let Some(row) = decide(&update) else {
            return Ok(None);
        };
        if row.action == Action::Already {
            return Ok(Some(row));
        }
        let patch = json!({
            "metadata": {"resourceVersion": update.resource_version()},
            "spec": {"stage": Stage::Abort},
        });
        let params =
            PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch(&name, &params, &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Some(row)),
            Err(error) if is_conflict(&error) => match cluster.get::<NodeUpdate>(&name).await? {
                Some(now) => update = now,
                None => return Ok(None),
            },
            Err(error) => {
                let attempt = attempt_on::<NodeUpdate>("patch", &name);
                return Err(cluster.explain(error, &attempt));
            }
        }
    }
    anyhow::bail!("NodeUpdate {name} keeps changing: try again")
}

fn show(printer: Printer, args: &Args, rows: &[Row]) -> anyhow::Result<()> {
    if printer.is_json() {
        printer.result(&serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    if rows.is_empty() {
        printer.result(&format!("{}: no update is under way", args.target))?;
        return Ok(());
    }
    for row in rows {
        let what = match (row.action, args.dry_run) {
            (Action::Already, _) => "was asked to stop before",
            (Action::Abort, true) => "would be asked to stop",
            (Action::Abort, false) => "is asked to stop",
            (Action::TooLate, _) => "too late to stop",
        };
        let line = format!("{} ({}): {what}; {}", row.node_update, row.phase, row.message);
        printer.result(&line)?;
    }
    if args.dry_run {
        printer.note("dry run: nothing was written")?;
    }
    printer.note(&advice(rows, &args.target))?;
    Ok(())
}

/// What happens to the rest, and how to go on.
fn advice(rows: &[Row], target: &Target) -> String {
    if rows.iter().any(|row| row.past_return) {
        return "The group's other machines follow after that, as long as its owner asks for the new version: to \
                keep them as they are, pause the owner (annotation cluster.x-k8s.io/paused) or set its version \
                back."
            .to_owned();
    }
    format!(
        "The rollout waits at these machines, as long as the owner asks for the new version. To stay on the old \
         one set its version back; to go on: `{} retry {target}`",
        program()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(phase: Phase, stage: Stage) -> NodeUpdate {
        serde_json::from_value(json!({
            "metadata": {"name": "m-1", "namespace": "n"},
            "spec": {"stage": stage, "machineRef": {"name": "m", "uid": "u"}, "origin": "Hook",
                "goal": {"kubernetesVersion": "v1.35.0"}, "goalHash": "h"},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn action(phase: Phase, stage: Stage) -> Option<Action> {
        decide(&update(phase, stage)).map(|row| row.action)
    }

    #[test]
    fn updates_stop_until_kubeadm_begins() {
        for phase in [Phase::Pending, Phase::Waiting, Phase::Staging] {
            assert_eq!(action(phase, Stage::Ongoing), Some(Action::Abort), "{phase:?}");
            assert_eq!(action(phase, Stage::Abort), Some(Action::Already), "{phase:?}");
        }
        for phase in [Phase::Upgrading, Phase::Draining, Phase::Uncordoning] {
            assert_eq!(action(phase, Stage::Ongoing), Some(Action::TooLate), "{phase:?}");
        }
        for phase in [Phase::Succeeded, Phase::Failed, Phase::Stopped] {
            assert_eq!(action(phase, Stage::Ongoing), None, "{phase:?}");
        }
    }
}
