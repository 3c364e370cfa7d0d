//! Prints what is ahead of the machines of a group: warnings, and how their drains go.

use std::collections::BTreeMap;

use refit_predict::{DrainOutcome, GroupPrediction};

use crate::printer::Printer;

/// How many concerns of one reason are printed.
const MOST: usize = 3;

/// Lines about the warnings of a group.
pub(super) fn warnings(printer: Printer, group: &GroupPrediction) -> Vec<String> {
    let mut lines = Vec::new();
    for warning in &group.warnings {
        let title = printer.notable(&format!("warning ({})", warning.reason));
        lines.push(format!("  {title}: {}", warning.message));
        lines.push(format!("    to change that: {}", warning.remedy));
    }
    lines
}

/// Lines about the drains of a group, unless all of them succeed without a concern.
pub(super) fn drains(printer: Printer, group: &GroupPrediction) -> Vec<String> {
    let mut outcomes: BTreeMap<DrainOutcome, usize> = BTreeMap::new();
    for drain in &group.drains {
        *outcomes.entry(drain.outcome).or_default() += 1;
    }
    // What blocks is printed with the blockers.
    let blocks = |reason: &str| group.blocked_by.iter().any(|blocked| blocked.reason == reason);
    let concerns = group.drains.iter().flat_map(|drain| &drain.concerns);
    let concerns: Vec<_> = concerns.filter(|concern| !blocks(concern.reason)).collect();
    let is_smooth = |outcome| matches!(outcome, DrainOutcome::Succeeds | DrainOutcome::NotDrained);
    if concerns.is_empty() && outcomes.keys().all(|outcome| is_smooth(*outcome)) {
        return Vec::new();
    }
    let pods: usize = group.drains.iter().map(|drain| drain.pods).sum();
    let counts: Vec<String> =
        outcomes.iter().map(|(outcome, count)| format!("{outcome:?}: {count}")).collect();
    let nodes = group.drains.len();
    let mut lines =
        vec![format!("  drains of {nodes} nodes, {pods} pods leave. {}", counts.join(", "))];
    let mut by_reason: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for concern in concerns {
        by_reason.entry(concern.reason).or_default().push(concern);
    }
    for (reason, concerns) in by_reason {
        let title = printer.notable(&format!("drain ({reason})"));
        // Most pods have an emptyDir: an example is enough.
        let most = if reason.starts_with("LocalData") { 1 } else { MOST };
        for concern in concerns.iter().take(most) {
            lines.push(format!("  {title}: {}", concern.message));
        }
        let rest = concerns.len().saturating_sub(most);
        if rest > 0 {
            lines.push(format!("  {title}: {rest} more, which -o json names"));
        }
        if let Some(first) = concerns.first().filter(|first| !first.remedy.is_empty()) {
            lines.push(format!("    to change that: {}", first.remedy));
        }
    }
    lines
}
