//! The clauses about what comes of an update.

use refit_kinds::refit::{Gate, Stage};

use super::{
    Verdict,
    run::{Event, Purpose, Run, Seen},
};

/// Whether a gate was passed each time that it was open.
pub(super) fn passes(runs: &[Run], gate: Gate) -> Verdict {
    // Neither has to: one is aborted before, the other refused.
    let counts = |run: &&Run| {
        !matches!(run.purpose, Purpose::AbortAtStage | Purpose::OtherMachine) && run.opened(gate)
    };
    let mut tested = runs.iter().filter(counts).peekable();
    if tested.peek().is_none() {
        let refused = runs.iter().find_map(Run::refusal);
        let why = || format!("the gate {:?} was not passed", gate.before());
        return Verdict::NotTested(refused.map_or_else(why, ToString::to_string));
    }
    let stuck = tested.find(|run| !run.has_passed(gate));
    Verdict::of_first(stuck.into_iter().map(stuck_at))
}

/// Where a run has ended that did not get on.
fn stuck_at(run: &Run) -> String {
    match run.last() {
        Some(seen) if seen.reports_final_failure() => {
            let message = seen.status.as_ref().map(|status| status.failure_message.as_str());
            run.located(seen, &format!("it failed: {}", message.unwrap_or_default()))
        }
        Some(seen) => run.located(seen, "it got no further in time"),
        None => format!("run {}: the object was never seen", run.purpose),
    }
}

/// Whether the whole update was made.
pub(super) fn reaches(run: &Run) -> Verdict {
    if !run.opened(Gate::Disrupt) {
        let refused = run.refusal().map(ToString::to_string);
        let why = refused.unwrap_or_else(|| "an earlier gate was not passed".to_owned());
        return Verdict::NotTested(format!("run {}: {why}", run.purpose));
    }
    Verdict::of_first((!is_ready(run)).then(|| stuck_at(run)).into_iter())
}

pub(super) fn restarted(run: &Run) -> Verdict {
    match &run.restarts {
        Ok(()) => reaches(run),
        Err(why) => Verdict::NotTested(why.clone()),
    }
}

/// Whether the machine has what the goal is.
pub(super) fn has_updated(run: &Run) -> bool {
    run.purpose == Purpose::Update && is_ready(run)
}

fn is_ready(run: &Run) -> bool {
    run.seen().any(|seen| {
        let is_ready =
            seen.status.as_ref().is_ok_and(|status| status.ready && status.passed == Gate::Disrupt);
        is_ready && seen.is_observed() && seen.stage() == Stage::Ongoing
    })
}

pub(super) fn undisturbed(runs: &[Run]) -> Verdict {
    let looks = runs.iter().filter_map(|run| Some((run, run.staged.as_ref()?)));
    let looks: Vec<_> = looks.collect();
    let Some((_, look)) = looks.first() else {
        return Verdict::NotTested("the gate Stage was not passed".to_owned());
    };
    if let Some(why) = look.unobservable() {
        return Verdict::NotTested(why);
    }
    let unread_node = look.node.as_ref().err();
    let mut changed = looks.iter().filter_map(|(run, staged)| {
        let what = run.before.change(staged)?;
        Some(format!("run {}: {what}", run.purpose))
    });
    match (Verdict::of_first(changed.by_ref()), unread_node) {
        (Verdict::Kept, Some(why)) => {
            Verdict::NotTested(format!("only verify was compared, the Node cannot be read: {why}"))
        }
        (verdict @ (Verdict::Kept | Verdict::Broken(_) | Verdict::NotTested(_)), _) => verdict,
    }
}

pub(super) fn verified(run: &Run) -> Verdict {
    let (Some(after), true) = (&run.after, is_ready(run)) else {
        return Verdict::NotTested("the provider was not ready".to_owned());
    };
    if let Some(Err(why)) = &after.verified {
        return Verdict::Broken(format!("ready is true, and {why}"));
    }
    match (&run.version, &after.node) {
        (Some(version), Ok(node)) if node.kubelet_version != *version => {
            let has = &node.kubelet_version;
            return Verdict::Broken(format!(
                "ready is true, and the kubelet runs {has}, not {version}"
            ));
        }
        (Some(_), Err(why)) => {
            return Verdict::NotTested(format!("the Node cannot be read: {why}"));
        }
        (None, _) if after.verified.is_none() => {
            return Verdict::NotTested("the Updater has no verify".to_owned());
        }
        (Some(_), Ok(_)) | (None, Ok(_) | Err(_)) => {}
    }
    let had_version = |version: &String| {
        run.before.node.as_ref().is_ok_and(|node| node.kubelet_version == *version)
    };
    let had_all = !matches!(run.before.verified, Some(Err(_)))
        && run.version.as_ref().is_none_or(had_version);
    if had_all {
        let why =
            "the machine had everything before: change what the Updater claims, and test again";
        return Verdict::NotTested(why.to_owned());
    }
    Verdict::Kept
}

/// Whether an abort has ended the work.
pub(super) fn stops(run: &Run) -> Verdict {
    if let Some(refusal) = run.refusal() {
        return Verdict::NotTested(refusal.to_string());
    }
    let orders: Vec<_> = run.orders().collect();
    if !orders.iter().any(|order| order.stage() == Stage::Abort) {
        return Verdict::NotTested("the gate before was not passed".to_owned());
    }
    let past =
        run.seen().find(|seen| seen.status.as_ref().is_ok_and(|status| status.past_no_return));
    if past.is_some() {
        return Verdict::NotTested("the provider was past the point of no return".to_owned());
    }
    let has_stopped = run.seen().any(|seen| {
        let is_ready = seen.status.as_ref().is_ok_and(|status| status.ready);
        is_ready && seen.is_observed() && seen.stage() == Stage::Abort
    });
    Verdict::of_first((!has_stopped).then(|| stuck_at(run)).into_iter())
}

pub(super) fn undone(runs: &[Run]) -> Verdict {
    let has_ended = |run: &Run| match run.purpose {
        Purpose::AbortAtStage | Purpose::AbortAtUpgrade => stops(run) == Verdict::Kept,
        Purpose::Delete => run.events.contains(&Event::Gone),
        Purpose::Update | Purpose::Repeat | Purpose::OtherMachine => false,
    };
    let ends = runs.iter().filter(|run| has_ended(run));
    let ends: Vec<_> = ends.filter_map(|run| Some((run, run.after.as_ref()?))).collect();
    if ends.is_empty() {
        return Verdict::NotTested("no abort has ended".to_owned());
    }
    let listed = |run: &Run| {
        let last = run.last().and_then(|seen| seen.status.as_ref().ok());
        last.is_some_and(|status| !status.left_behind.is_empty())
    };
    let changed = ends.iter().filter(|(run, _)| !listed(run)).filter_map(|(run, after)| {
        let what = run.before.any_change(after)?;
        Some(format!("run {}: {what}, and leftBehind is empty", run.purpose))
    });
    Verdict::of_first(changed)
}

/// An object that stays although it is deleted.
pub(super) fn left_over(run: &Run) -> Option<String> {
    let has = |wanted: &Event| run.events.contains(wanted);
    if !has(&Event::Deleted) || has(&Event::Gone) {
        return None;
    }
    let finalizers = run.last().and_then(|seen| seen.object.pointer("/metadata/finalizers"));
    let finalizers = finalizers.map_or("none".to_owned(), ToString::to_string);
    Some(format!(
        "run {}: the deleted object is still there; finalizers: {finalizers}",
        run.purpose
    ))
}

pub(super) fn other_machine(run: &Run) -> Verdict {
    if is_ready(run) {
        return Verdict::Broken(
            "the provider was ready for a machineRef.uid that no Machine has: compare it with \
             metadata.uid of the Machine"
                .to_owned(),
        );
    }
    if run.seen().any(Seen::has_failed_for_good) {
        return Verdict::Kept;
    }
    if let Some(refusal) = run.refusal() {
        return Verdict::NotTested(refusal.to_string());
    }
    Verdict::Broken(format!("no failure with retriable: false; {}", stuck_at(run)))
}

/// Whether the API server admitted what the suite wrote. Refit would write the same.
pub(super) fn orders_admitted(runs: &[Run]) -> Verdict {
    if runs.is_empty() {
        return Verdict::NotTested("the suite sent no order".to_owned());
    }
    let refused = runs.iter().filter_map(|run| Some((run, run.refusal()?)));
    Verdict::of_first(refused.map(|(run, refusal)| {
        format!("run {}: {refusal}: {}", run.purpose, refusal.message.trim_end_matches('.'))
    }))
}

/// Whether nothing follows a final failure.
pub(super) fn final_failure(run: &Run) -> Verdict {
    let mut later = run.seen().skip_while(|seen| !seen.has_failed_for_good()).peekable();
    if later.peek().is_none() {
        return Verdict::NotTested("there was no final failure".to_owned());
    }
    // A deletion is a new generation, which need not be noted.
    let went_on = later.find(|seen| !seen.reports_final_failure());
    Verdict::of_first(
        went_on.into_iter().map(|seen| run.located(seen, "the provider went on after its failure")),
    )
}
