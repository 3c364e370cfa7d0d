//! Prints a plan as text.

use std::io;

use refit_kinds::refit::Disruption;
use refit_predict::{GroupPrediction, PredictedOutcome, Prediction};

use super::ahead;
use crate::printer::{Printer, columns, duration};

/// Prints a plan.
pub(crate) fn show(printer: Printer, plan: &Prediction) -> io::Result<()> {
    if plan.groups.is_empty() {
        printer.result("Nothing to plan: no group of machines is affected.")?;
    } else {
        for line in table(printer, plan) {
            printer.result(&line)?;
        }
    }
    for group in &plan.groups {
        for line in details(printer, group) {
            printer.result(&line)?;
        }
    }
    for note in &plan.notes {
        printer.note(&format!("note: {note}"))?;
    }
    if !plan.groups.is_empty() {
        printer.result("")?;
        printer.result(&last_word(printer, plan))?;
    }
    Ok(())
}

fn table(printer: Printer, plan: &Prediction) -> Vec<String> {
    let heading =
        ["GROUP", "TURN", "VERSION", "MACHINES", "IN PLACE", "NEW", "DELETED", "TIME", "OUTCOME"];
    let mut rows = vec![heading.map(|word| printer.bold(word)).to_vec()];
    for group in &plan.groups {
        let counts = group.machines;
        let version = if group.from == group.to {
            group.to.to_string()
        } else {
            format!("{} -> {}", group.from, group.to)
        };
        let time = match (group.seconds, counts.in_place) {
            (_, 0) => "-".to_owned(),
            (Some(seconds), _) => format!("~{}", duration(seconds)),
            (None, _) => "unknown".to_owned(),
        };
        rows.push(vec![
            title(group),
            group.turn.to_string(),
            version,
            counts.now.to_string(),
            counts.in_place.to_string(),
            counts.new.to_string(),
            counts.deleted.to_string(),
            time,
            coloured(printer, group.outcome),
        ]);
    }
    columns(&rows)
}

fn title(group: &GroupPrediction) -> String {
    format!("{}/{}", group.kind, group.name)
}

fn coloured(printer: Printer, outcome: PredictedOutcome) -> String {
    let word = outcome.word();
    match outcome {
        PredictedOutcome::Unchanged => word.to_owned(),
        PredictedOutcome::InPlace => printer.good(word),
        PredictedOutcome::Blocked => printer.notable(word),
        PredictedOutcome::Replaced => printer.bad(word),
    }
}

fn details(printer: Printer, group: &GroupPrediction) -> Vec<String> {
    let mut lines = Vec::new();
    for path in &group.paths {
        lines.push(format!("  {path}"));
    }
    lines.extend(
        group.disruption.map(|disruption| format!("  each machine: {}", happens(disruption))),
    );
    for blocked in &group.blocked_by {
        let reason = printer.notable(&format!("blocked ({})", blocked.reason));
        lines.push(format!("  {reason}: {}", blocked.message));
    }
    lines.extend(ahead::warnings(printer, group));
    lines.extend(ahead::drains(printer, group));
    for cause in &group.causes {
        let reason = printer.bad(&format!("replaced ({:?})", cause.reason));
        lines.push(format!("  {reason}: {}", cause.message));
        if !cause.remedy.is_empty() {
            lines.push(format!("    to change that: {}", cause.remedy));
        }
    }
    for note in &group.notes {
        lines.push(format!("  note: {note}"));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
        lines.insert(1, printer.bold(&title(group)));
    }
    lines
}

/// What an update in place does to what runs on a machine.
fn happens(disruption: Disruption) -> &'static str {
    match disruption {
        Disruption::None => "nothing on it is disturbed",
        Disruption::Restart => "the kubelet or other services restart, and pods stay",
        Disruption::Drain => "its node is drained",
        Disruption::Reboot => "its node is drained, and it reboots",
    }
}

fn last_word(printer: Printer, plan: &Prediction) -> String {
    let sum = |count: fn(&GroupPrediction) -> i64| plan.groups.iter().map(count).sum::<i64>();
    let in_place = sum(|group| group.machines.in_place);
    let (new, deleted) = (sum(|group| group.machines.new), sum(|group| group.machines.deleted));
    let counts = format!("{in_place} in place, {new} created, {deleted} deleted");
    match plan.outcome {
        PredictedOutcome::Unchanged => "Nothing changes.".to_owned(),
        PredictedOutcome::InPlace => printer.good(&format!("Every machine stays: {counts}.")),
        PredictedOutcome::Blocked => printer.notable(&format!("Blocked: {counts}.")),
        PredictedOutcome::Replaced => printer.bad(&format!("Machines are replaced: {counts}.")),
    }
}
