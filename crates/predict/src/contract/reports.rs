//! The clauses about what a provider writes at any time.

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

/// The first report with a problem, compared with the one before.
fn pairs(
    run: &Run,
    problem: impl Fn(&ProviderStatus, &ProviderStatus) -> Option<String>,
) -> Option<String> {
    let reports = run.seen().filter_map(|seen| Some((seen, seen.status.as_ref().ok()?)));
    let reports: Vec<_> = reports.collect();
    reports.windows(2).find_map(|two| {
        let [(_, before), (seen, after)] = two else {
            return None;
        };
        Some(run.located(seen, &problem(before, after)?))
    })
}

pub(super) fn closed_gate(run: &Run) -> Option<String> {
    each(run, |seen, status| {
        let open = seen.gate();
        (status.passed > open)
            .then(|| format!("passed is {:?}, and the open gate is {open:?}", status.passed))
    })
}

pub(super) fn passed_went_back(run: &Run) -> Option<String> {
    pairs(run, |before, after| {
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
    pairs(run, |before, after| {
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

/// An order that was not noted in time.
pub(super) fn unobserved(run: &Run) -> Option<String> {
    let mut failed = false;
    for (index, event) in run.events.iter().enumerate() {
        if let Event::Seen(seen) = event {
            failed = failed || seen.has_failed_for_good();
        }
        let Event::Ordered(order) = event else {
            continue;
        };
        let rest = &run.events[index + 1..];
        let noted = rest.iter().find_map(|event| match event {
            Event::Seen(seen) => {
                (seen.generation() == order.generation() && seen.is_observed()).then_some(seen)
            }
            Event::Ordered(_) | Event::Waited | Event::Deleted | Event::Gone => None,
        });
        // A final failure ends the work, until the abort.
        if failed && order.stage() == Stage::Ongoing {
            continue;
        }
        let Some(noted) = noted else {
            // An order that was followed by the next one at once may be skipped.
            let next = rest.iter().find(|event| !matches!(event, Event::Seen(_)));
            if let Some(Event::Ordered(_)) = next
                && order.stage() == Stage::Ongoing
                && run.purpose == Purpose::AbortAtStage
            {
                continue;
            }
            let generation = order.generation();
            let never = format!("generation {generation} was never noted");
            return Some(if run.has_reported() {
                run.located(order, &never)
            } else {
                format!("{never}: is the provider running, and does it watch this namespace?")
            });
        };
        let seconds = noted.at.duration_since(order.at).as_secs();
        if seconds > OBSERVED_WITHIN_SECONDS {
            return Some(run.located(noted, &format!("it was noted after {seconds} seconds")));
        }
    }
    None
}

pub(super) fn no_return(run: &Run) -> Option<String> {
    let withdrawn = pairs(run, |before, after| {
        (before.past_no_return && !after.past_no_return)
            .then(|| "pastNoReturn was withdrawn".to_owned())
    });
    let at_stage = each(run, |seen, status| {
        (status.past_no_return && seen.gate() <= Gate::Stage)
            .then(|| "pastNoReturn is set at the gate Stage".to_owned())
    });
    // A run with nothing to change has no first change.
    let late = pairs(run, |before, after| {
        let at_once =
            !before.past_no_return && after.past_no_return && !before.ready && after.ready;
        (at_once && run.purpose == Purpose::Update)
            .then(|| "pastNoReturn and ready were set in one write".to_owned())
    });
    withdrawn.or(at_stage).or(late)
}

/// Writes while there was nothing to do.
pub(super) fn noise(run: &Run) -> Option<String> {
    let waits = run.events.iter().enumerate().filter(|(_, event)| **event == Event::Waited);
    waits.into_iter().find_map(|(start, _)| {
        let writes = run.events[start + 1..].iter().map_while(|event| match event {
            Event::Seen(seen) => Some(seen),
            Event::Ordered(_) | Event::Waited | Event::Deleted | Event::Gone => None,
        });
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
            Event::Waited | Event::Gone => continue,
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

/// A gate that was passed after the abort was noted.
pub(super) fn passed_after_abort(run: &Run) -> Option<String> {
    let mut passed = Gate::Closed;
    // The answer to an order has the status, too: the watch may begin late.
    let states = run.events.iter().filter_map(|event| match event {
        Event::Seen(seen) => Some((seen, false)),
        Event::Ordered(order) => Some((order, true)),
        Event::Waited | Event::Deleted | Event::Gone => None,
    });
    for (seen, is_answer) in states {
        let Ok(status) = &seen.status else { continue };
        let aborts = seen.stage() == Stage::Abort && seen.is_observed() && !status.past_no_return;
        if aborts && !is_answer && status.passed > passed {
            return Some(run.located(seen, "a gate was passed after the abort"));
        }
        passed = passed.max(status.passed);
    }
    None
}
