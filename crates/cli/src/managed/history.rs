//! `refit history`: what became of the upgrades of a cluster.

use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{ClusterUpgrade, UpgradePhase, UpgradeRecord};

use super::{ClusterName, EXIT_NOTHING, of_cluster, why};
use crate::{
    client, exit,
    global::GlobalArgs,
    printer::{Format, Printer, columns, duration},
};

/// Flags of `refit history`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit history edge-1
  refit history edge-1 -o json

One section per version, the newest first: who has requested it, the versions on the way, when it \
began, how long it took, and each step. The last 30 versions are kept.

-o json writes status.history of the ClusterUpgrade.

Exit codes:
  0  the history is shown
  1  the cluster cannot be read
  3  the cluster has no history")]
pub(crate) struct HistoryArgs {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterName,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit history`.
pub(crate) fn history(args: &HistoryArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let upgrade = of_cluster(&cluster, &args.cluster.0).await?;
        let history = upgrade.status.as_ref().map_or(&[][..], |status| &status.history);
        if printer.is_json() {
            printer.result(&serde_json::to_string_pretty(history)?)?;
        } else {
            for line in text(&upgrade, history, cluster.clock.now()) {
                printer.result(&line)?;
            }
        }
        Ok(if history.is_empty() { ExitCode::from(EXIT_NOTHING) } else { ExitCode::SUCCESS })
    })
}

fn text(upgrade: &ClusterUpgrade, history: &[UpgradeRecord], now: Timestamp) -> Vec<String> {
    if history.is_empty() {
        return vec![format!("nothing was begun yet. {}", why(upgrade)).trim_end().to_owned()];
    }
    let mut lines = Vec::new();
    for (at, record) in history.iter().enumerate() {
        if at > 0 {
            lines.push(String::new());
        }
        lines.push(heading(record));
        lines.extend(facts(record, now).into_iter().map(|fact| format!("  {fact}")));
        let shown = if at == 0 && !record.phase.has_ended() { why(upgrade) } else { "" };
        if !shown.is_empty() && record.conditions.is_empty() {
            lines.push(format!("  {shown}"));
        }
        lines.extend(steps(record, now).into_iter().map(|line| format!("  {line}")));
    }
    lines
}

fn heading(record: &UpgradeRecord) -> String {
    let from = record.preceding_version.as_ref().map(|from| format!(" from {from}"));
    let from = from.unwrap_or_default();
    let reason =
        if record.reason.is_empty() { String::new() } else { format!(" ({})", record.reason) };
    format!("{}{from}: {}{reason}", record.version, record.phase)
}

fn facts(record: &UpgradeRecord, now: Timestamp) -> Vec<String> {
    let by = record.requested_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let mut facts = vec![format!("requested{by} at {}", record.requested_time.0)];
    if !record.hops.is_empty() {
        let hops: Vec<String> = record.hops.iter().map(ToString::to_string).collect();
        facts.push(format!("over {}, then {}", hops.join(", "), record.version));
    }
    if let Some(began) = &record.start_time {
        let took = took(began, record.complete_time.as_ref(), now);
        let task = record.task.as_ref().map(|task| format!("; UpgradeTask {task}"));
        facts.push(format!("began at {}, {took}{}", began.0, task.unwrap_or_default()));
    }
    if let Some(began) = &record.worker_start_time {
        let ended = record.worker_complete_time.as_ref();
        let until = ended.or(record.complete_time.as_ref());
        facts.push(format!("workers began at {}, {}", began.0, took(began, until, now)));
    }
    if record.phase == UpgradePhase::Failed {
        facts.push(record.message.clone());
    }
    facts
}

fn took(began: &Time, ended: Option<&Time>, now: Timestamp) -> String {
    let until = ended.map_or(now, |ended| ended.0);
    let seconds = duration(until.duration_since(began.0).as_secs());
    if ended.is_some() { format!("took {seconds}") } else { format!("{seconds} so far") }
}

/// The steps, the oldest first.
fn steps(record: &UpgradeRecord, now: Timestamp) -> Vec<String> {
    if record.conditions.is_empty() {
        return Vec::new();
    }
    let heading = ["STEP", "STATE", "BEGAN", "TOOK", "WHY"].map(str::to_owned).to_vec();
    let rows = record.conditions.iter().rev().map(|step| {
        let is_done = step.status == "True";
        let ended = step.complete_time.as_ref().or(record.complete_time.as_ref());
        let seconds = ended.map_or(now, |ended| ended.0).duration_since(step.start_time.0);
        vec![
            step.type_.clone(),
            step.reason.trim_start_matches("Step").to_owned(),
            step.start_time.0.to_string(),
            duration(seconds.as_secs()),
            if is_done { String::new() } else { step.message.clone() },
        ]
    });
    columns(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
}
