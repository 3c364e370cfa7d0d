//! The clauses about what a provider writes at any time.

use jiff::Timestamp;
use refit_kinds::refit::{Gate, ProviderStatus, Stage};

use super::{
    Verdict,
    run::{Event, Purpose, Run, Seen},
};

/// How long a provider may take to note an order.
const OBSERVED_WITHIN_SECONDS: i64 = 60;
/// How many writes are too many while there is nothing to do: one may still be on its way.
const WRITES_WHILE_WAITING: usize = 2;

/// Kept if no run has the problem.
pub(super) fn verdict(runs: &[Run], problem: fn(&Run) -> Option<String>) -> Verdict {
    Verdict::of_first(runs.iter().filter_map(problem))
}

/// The first report with a problem.
fn each(run: &Run, problem: impl Fn(&Seen, &ProviderStatus) -> Option<String>) -> Option<String> {
    run.seen().find_map(|seen| {
        let found = problem(seen, seen.status.as_ref().ok()?)?;
        Some(run.located(seen, &found))
    })
}

/// Two reports, one after the other.
struct Pair<'a> {
    before: &'a ProviderStatus,
    after: &'a ProviderStatus,
    /// The object with the later one.
    seen: &'a Seen,
    /// Whether the watch may have missed writes between them.
    has_gap: bool,
}

fn pairs(run: &Run) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    let (mut last, mut has_gap) = (None, false);
    for event in &run.events {
        has_gap = has_gap || *event == Event::Relisted;
        let Some(seen) = event.seen() else { continue };
        let Ok(after) = &seen.status else { continue };
        if let Some(before) = last.replace(after) {
            pairs.push(Pair { before, after, seen, has_gap });
        }
        has_gap = false;
    }
    pairs
}

/// The first report with a problem, compared with the one before. Missed writes in between are no excuse: this
/// is for what may never be withdrawn.
fn withdrawn(
    run: &Run,
    problem: impl Fn(&ProviderStatus, &ProviderStatus) -> Option<String>,
) -> Option<String> {
    let found = |pair: &Pair| Some(run.located(pair.seen, &problem(pair.before, pair.after)?));
    pairs(run).iter().find_map(found)
}

/// Not tested, because what looks like one write may be several.
fn not_tested_across_gap(run: &Run, seen: &Seen, problem: &str) -> Verdict {
    let why = format!("{problem}, but the watch was interrupted before and may have missed writes");
    Verdict::NotTested(run.located(seen, &why))
}

pub(super) fn closed_gate(run: &Run) -> Option<String> {
    each(run, |seen, status| {
        let open = seen.gate();
        (status.passed > open)
            .then(|| format!("passed is {:?}, and the open gate is {open:?}", status.passed))
    })
}

pub(super) fn passed_went_back(run: &Run) -> Option<String> {
    withdrawn(run, |before, after| {
        (after.passed < before.passed)
            .then(|| format!("passed went from {:?} to {:?}", before.passed, after.passed))
    })
}

pub(super) fn malformed(run: &Run) -> Option<String> {
    run.seen().find_map(|seen| {
        let why = seen.status.as_ref().err()?;
        Some(format!("run {}: {why}", run.purpose))
    })
}

pub(super) fn ready_early(run: &Run) -> Option<String> {
    each(run, |seen, status| {
        let early = status.ready && status.passed < Gate::Disrupt && seen.stage() == Stage::Ongoing;
        early.then(|| format!("ready is true, and passed is {:?}", status.passed))
    })
}

pub(super) fn ready_withdrawn(run: &Run) -> Option<String> {
    withdrawn(run, |before, after| {
        (before.ready && !after.ready).then(|| "ready was withdrawn".to_owned())
    })
}

pub(super) fn progress(run: &Run) -> Option<String> {
    each(run, |_, status| {
        let percent = status.progress.as_ref()?.percent;
        (!(0..=100).contains(&percent)).then(|| format!("progress.percent is {percent}"))
    })
}

pub(super) fn failure_form(run: &Run) -> Option<String> {
    each(run, |_, status| failure_fault(status))
}

fn failure_fault(status: &ProviderStatus) -> Option<String> {
    let ProviderStatus { failure_reason: reason, failure_message: message, ready, .. } = status;
    if reason.is_empty() {
        return (!message.is_empty()).then(|| "failureMessage without a failureReason".to_owned());
    }
    let is_camel_case = reason.starts_with(|first: char| first.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric());
    if !is_camel_case {
        return Some(format!("failureReason {reason:?} is not a CamelCase word"));
    }
    if message.is_empty() {
        return Some(format!("failureReason {reason} without a failureMessage"));
    }
    ready.then(|| format!("ready is true, with failureReason {reason}"))
}

pub(super) fn observes_generations(runs: &[Run]) -> Verdict {
    let Some(first) = runs.first() else {
        return Verdict::Kept;
    };
    match first.refusal() {
        Some(refusal) if runs.iter().all(|run| run.orders().next().is_none()) => {
            Verdict::NotTested(refusal.to_string())
        }
        Some(_) | None => Verdict::combined(runs.iter().map(unobserved)),
    }
}

/// Whether each order of a run was noted in time.
fn unobserved(run: &Run) -> Verdict {
    let orders = run.events.iter().enumerate();
    let orders = orders.filter_map(|(index, event)| Some((index, event.order()?)));
    Verdict::combined(orders.map(|(index, order)| {
        let failed = run.events[..index].iter().filter_map(Event::seen);
        // A final failure ends the work, until the abort.
        if order.stage() == Stage::Ongoing && failed.into_iter().any(Seen::has_failed_for_good) {
            return Verdict::Kept;
        }
        noted(run, order, &run.events[index + 1..])
    }))
}

/// Whether an order was noted in what followed it.
fn noted(run: &Run, order: &Seen, rest: &[Event]) -> Verdict {
    let is_noted = |seen: &Seen| seen.generation() == order.generation() && seen.is_observed();
    let Some(end) = rest.iter().position(|event| event.seen().is_some_and(is_noted)) else {
        return never_noted(run, order, rest);
    };
    let Some(seen) = rest[end].seen() else { return Verdict::Kept };
    // A provider that is restarted has its minute from then on.
    let until_next = rest.iter().take_while(|event| event.order().is_none());
    let restarted = until_next.filter_map(|event| match event {
        Event::Restarted(at) => Some(*at),
        Event::Ordered(_)
        | Event::Refused(_)
        | Event::Seen(_)
        | Event::Waited
        | Event::Interrupted
        | Event::Relisted
        | Event::Deleted
        | Event::Gone => None,
    });
    let start = restarted.fold(order.at, Timestamp::max);
    let seconds = seen.at.duration_since(start).as_secs();
    if seconds <= OBSERVED_WITHIN_SECONDS {
        return Verdict::Kept;
    }
    let late = format!("it was noted after {seconds} seconds");
    let is_delayed = |event: &Event| matches!(event, Event::Interrupted | Event::Relisted);
    if rest[..end].iter().any(is_delayed) {
        let why = format!("{late}, but the watch was interrupted meanwhile");
        return Verdict::NotTested(run.located(seen, &why));
    }
    Verdict::Broken(run.located(seen, &late))
}

fn never_noted(run: &Run, order: &Seen, rest: &[Event]) -> Verdict {
    // In this run the next order follows at once, or is refused and ends the run.
    let is_overtaken = order.stage() == Stage::Ongoing
        && run.purpose == Purpose::AbortAtStage
        && rest.iter().any(|event| event.order().is_some() || event.refusal().is_some());
    if is_overtaken {
        return Verdict::Kept;
    }
    let never = format!("generation {} was never noted", order.generation());
    Verdict::Broken(if run.has_reported() {
        run.located(order, &never)
    } else {
        format!("{never}: is the provider running, and does it watch this namespace?")
    })
}

pub(super) fn no_return(run: &Run) -> Verdict {
    let withdrawn = withdrawn(run, |before, after| {
        (before.past_no_return && !after.past_no_return)
            .then(|| "pastNoReturn was withdrawn".to_owned())
    });
    let at_stage = each(run, |seen, status| {
        (status.past_no_return && seen.gate() <= Gate::Stage)
            .then(|| "pastNoReturn is set at the gate Stage".to_owned())
    });
    if let Some(problem) = withdrawn.or(at_stage) {
        return Verdict::Broken(problem);
    }
    // A run with nothing to change has no first change.
    let set_with_ready = |pair: &&Pair| {
        let Pair { before, after, .. } = pair;
        run.purpose == Purpose::Update
            && (!before.past_no_return && after.past_no_return)
            && (!before.ready && after.ready)
    };
    Verdict::combined(pairs(run).iter().filter(set_with_ready).map(|pair| {
        let at_once = "pastNoReturn and ready were set in one write";
        if pair.has_gap {
            not_tested_across_gap(run, pair.seen, at_once)
        } else {
            Verdict::Broken(run.located(pair.seen, at_once))
        }
    }))
}

/// Writes while there was nothing to do.
pub(super) fn noise(run: &Run) -> Option<String> {
    let waits = run.events.iter().enumerate().filter(|(_, event)| **event == Event::Waited);
    waits.into_iter().find_map(|(start, _)| {
        let writes = run.events[start + 1..].iter().map_while(Event::seen);
        let writes: Vec<&Seen> = writes.collect();
        let last = writes.last().filter(|_| writes.len() >= WRITES_WHILE_WAITING)?;
        Some(run.located(last, &format!("{} writes while there was nothing to do", writes.len())))
    })
}

/// What the provider has changed of what is not its own.
pub(super) fn changed_orders(run: &Run) -> Option<String> {
    let mut orders: Vec<&Seen> = Vec::new();
    for event in &run.events {
        let seen = match event {
            Event::Ordered(order) => {
                orders.push(order);
                continue;
            }
            // A deletion is a new generation, too.
            Event::Deleted => return None,
            Event::Refused(_)
            | Event::Restarted(_)
            | Event::Waited
            | Event::Interrupted
            | Event::Relisted
            | Event::Gone => continue,
            Event::Seen(seen) => seen,
        };
        let Some(order) = orders.iter().find(|order| order.generation() == seen.generation())
        else {
            return Some(run.located(seen, "spec was changed"));
        };
        let fields = order.orders().into_iter().zip(seen.orders());
        for ((field, wanted), (_, found)) in fields {
            if wanted != found {
                return Some(run.located(seen, &format!("{field} was {wanted} and is {found}")));
            }
        }
    }
    None
}

/// Whether no gate was passed after the abort was noted.
pub(super) fn passed_after_abort(run: &Run) -> Verdict {
    let (mut passed, mut has_gap) = (Gate::Closed, false);
    let mut verdicts = Vec::new();
    for event in &run.events {
        has_gap = has_gap || *event == Event::Relisted;
        // The answer to an order has the status, too: it may come before the watch delivers it.
        let Some(seen) = event.seen().or(event.order()) else { continue };
        let Ok(status) = &seen.status else { continue };
        let aborts = seen.stage() == Stage::Abort && seen.is_observed() && !status.past_no_return;
        if aborts && event.seen().is_some() && status.passed > passed {
            let problem = "a gate was passed after the abort";
            verdicts.push(if has_gap {
                not_tested_across_gap(run, seen, problem)
            } else {
                Verdict::Broken(run.located(seen, problem))
            });
        }
        passed = passed.max(status.passed);
        has_gap = false;
    }
    Verdict::combined(verdicts.into_iter())
}
