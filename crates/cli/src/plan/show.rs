//! Prints a plan as text.

use std::io;

use refit_kinds::refit::Disruption;
use refit_predict::{
    GroupPrediction, PredictedOutcome, Prediction,
    timeline::{Source, Timeline},
};

use super::{
    ahead,
    waves::{waves, word},
};
use crate::printer::{Printer, columns, duration};

/// How many waves of turns a group shows.
const MOST_WAVES: usize = 12;

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
        let time =
            group.seconds.map_or("-".to_owned(), |seconds| format!("~{}", duration(seconds)));
        rows.push(vec![
            title(group),
            group.turn.to_string(),
            version(group),
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

/// The version before and after the change.
pub(super) fn version(group: &GroupPrediction) -> String {
    if group.from == group.to {
        group.to.to_string()
    } else {
        format!("{} -> {}", group.from, group.to)
    }
}

/// `Kind/name`.
pub(super) fn title(group: &GroupPrediction) -> String {
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
    lines.extend(group.timeline.iter().flat_map(|timeline| turns(group, timeline)));
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

/// The turns of the machines.
fn turns(group: &GroupPrediction, timeline: &Timeline) -> Vec<String> {
    let waves = waves(timeline);
    let time = |seconds: i64| format!("+{}", duration(seconds));
    let rows = waves.iter().take(MOST_WAVES).map(|wave| {
        let cells =
            [time(wave.start), time(wave.end), word(wave.action).to_owned(), wave.machines()];
        cells.to_vec()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let after = group.after.as_ref().map_or(String::new(), |after| format!(", after {after}"));
    let mut lines = vec![format!("  turns ({}{after}):", takes(timeline))];
    lines.extend(columns(&rows).into_iter().map(|line| format!("    {line}")));
    if let Some(more) = waves.len().checked_sub(MOST_WAVES).filter(|more| *more > 0) {
        lines.push(format!("    and {more} more, until {}", time(timeline.end())));
    }
    lines.push(format!("  available: at least {}", timeline.availability.least));
    lines
}

/// How long a machine takes, and how that is known.
pub(super) fn takes(timeline: &Timeline) -> String {
    let takes = &timeline.takes;
    let each = duration(takes.seconds());
    match takes.source {
        Source::History => format!("{each} for each machine, as before"),
        Source::Mixed => {
            format!("{each} assumed for each machine: past updates show only some of the steps")
        }
        Source::Assumed => format!("{each} assumed for each machine: no past update shows it"),
    }
}

/// What an update in place does to what runs on a machine.
pub(super) fn happens(disruption: Disruption) -> &'static str {
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
    let timelines = plan.groups.iter().filter_map(|group| group.timeline.as_ref());
    let end = timelines.map(Timeline::end).max();
    let end = end.map(|end| format!(", in ~{}", duration(end))).unwrap_or_default();
    let counts = format!("{in_place} in place, {new} created, {deleted} deleted{end}");
    match plan.outcome {
        PredictedOutcome::Unchanged => "Nothing changes.".to_owned(),
        PredictedOutcome::InPlace => printer.good(&format!("Every machine stays: {counts}.")),
        PredictedOutcome::Blocked => printer.notable(&format!("Blocked: {counts}.")),
        PredictedOutcome::Replaced => printer.bad(&format!("Machines are replaced: {counts}.")),
    }
}
