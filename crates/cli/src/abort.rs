//! `refit abort`: asks unfinished updates to stop.

use std::process::ExitCode;

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
    client, exit,
    global::{GlobalArgs, program},
    printer::Printer,
    target::Target,
};

/// Flags of `refit abort`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit abort machine/edge-1-md-0-x7k2p
  refit abort cluster/edge-1 --dry-run

An update stops before kubeadm starts on its machine, and the agent rolls back what it changed. \
Once kubeadm has started, the update runs to completion: a half-upgraded machine is never left \
behind.

An abort does not change the owner's version, so its rollout waits at the stopped machines. To continue, use `refit retry`. To keep the other machines as they are, pause the owner (annotation cluster.x-k8s.io/paused).

-o json writes one array of {namespace, nodeUpdate, machine, phase, action, message}; action is \
abort (stops now), already (requested before) or tooLate (the update ends first).

Exit codes:
  0  a stop was requested for every unfinished update, or no update is unfinished
  1  the cluster cannot be read or written
  2  the command line is invalid")]
pub(crate) struct Args {
    #[command(flatten)]
    ask: AskArgs,
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
    let args = &args.ask;
    let printer = args.printer(global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let found = args.target.gather(&cluster).await?;
        let mut rows = Vec::new();
        for update in &found.updates {
            rows.extend(ask(&cluster, update, args.dry_run, decide).await?);
        }
        show(printer, args, &rows)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Decides what to do about an update; returns `None` if it has ended.
fn decide(update: &NodeUpdate) -> Option<Decision<Row>> {
    let phase = update.status.as_ref().map(|s| s.phase).unwrap_or_default();
    if phase.is_final() {
        return None;
    }
    let version = &update.spec.goal.kubernetes_version;
    let (action, message) = if is_past_return(phase) {
        let text =
            format!("past the point of no return: the update to {version} runs to completion");
        (Action::TooLate, text)
    } else {
        let text = if matches!(phase, Phase::Pending | Phase::Waiting) {
            "not started: stops immediately"
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
        past_return: is_past_return(phase),
    };
    let patch = (!already).then(|| {
        json!({
            "metadata": {"annotations": {keys::GOAL_CHANGED: null}},
            "spec": {"stage": Stage::Abort},
        })
    });
    Some(Decision { row, patch })
}

fn show(printer: Printer, args: &AskArgs, rows: &[Row]) -> anyhow::Result<()> {
    let empty = format!("{}: no update is in progress", args.target);
    report(printer, rows, &empty, |row| {
        let what = match (row.action, args.dry_run) {
            (Action::Already, _) => "stop was already requested",
            (Action::Abort, true) => "stop would be requested",
            (Action::Abort, false) => "stop requested",
            (Action::TooLate, _) => "too late to stop",
        };
        format!("{} ({}): {what}; {}", row.node_update, row.phase, row.message)
    })?;
    if printer.is_json() || rows.is_empty() {
        return Ok(());
    }
    if args.dry_run {
        printer.note("dry run: nothing was written")?;
    }
    printer.note(&advice(rows, &args.target))?;
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
         continue: `{} retry {target}`. To keep the other machines as they are, pause the owner \
         (annotation cluster.x-k8s.io/paused).",
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
        decide(&update(phase, stage)).map(|decision| decision.row.action)
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
