//! Records decisions in the UpdateGroup and in events on the owner, so that the cluster always
//! shows why nothing happens.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use refit_cluster_api::kinds::update_in_progress;
use refit_core::{
    change::{Coverage, NotReady, Policy, Verdict, can_update::Judgement},
    group::{COVERED, answer_blocks, show_policy},
};
use refit_kinds::{
    conditions,
    refit::{CONFIGURATION, ChangePart, UpdateGroup, UpdateGroupStatus, UpdaterAction},
};
use refit_runtime::{
    apply,
    events::{Announcement, EventType},
};

use crate::{
    api_error::cause,
    context::Context,
    groups::{Group, ensure_group, machines_of, owner_generation, owner_object},
    node_update::swap_group,
};

/// How many uncovered paths a status lists.
const MAX_LINES: usize = 64;
/// How long the response waits for the record of its decision.
const RECORD_DEADLINE: Duration = Duration::from_secs(2);
/// How often a write is tried on conflicts.
const ATTEMPTS: usize = 3;

/// Records a decision that differs from the last one; the error is why it could not. Only a response that
/// lets Updaters work depends on it: which of them do is read from the record.
pub(super) async fn record(
    ctx: &Context,
    group: &Group,
    policy: &Policy,
    judgement: &Judgement,
) -> Result<(), String> {
    let verdict = &judgement.verdict;
    // The deletion of one Machine is unrelated to whether its group's change is covered.
    if matches!(verdict, Verdict::NotReady(NotReady::Deleting { .. })) {
        return Ok(());
    }
    let write = try_record(ctx, group, policy, judgement);
    match tokio::time::timeout(RECORD_DEADLINE, write).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(group = %group.key, %error, "cannot record a decision");
            Err(cause(&error))
        }
        Err(_) => {
            tracing::warn!(group = %group.key, "decision not recorded in time");
            let seconds = RECORD_DEADLINE.as_secs();
            Err(format!("the API server did not respond within {seconds} s"))
        }
    }
}

async fn try_record(
    ctx: &Context,
    group: &Group,
    policy: &Policy,
    judgement: &Judgement,
) -> kube::Result<()> {
    let api: Api<UpdateGroup> = Api::namespaced(ctx.client.clone(), &group.key.namespace);
    let mut found = ensure_group(ctx, group).await?;
    let machines = machines_of(&ctx.stores, &group.key);
    let is_under_way = machines.iter().any(|machine| update_in_progress(machine.as_ref()));
    for attempt in 1..=ATTEMPTS {
        let status = found.status.clone().unwrap_or_default();
        let generation = owner_generation(&ctx.stores, group);
        let now = ctx.clock.now_seconds();
        let Some(next) = next_status(&status, now, policy, judgement, generation, is_under_way)
        else {
            return Ok(());
        };
        if let Some(announcement) = announcement(ctx, group, &status, &judgement.verdict) {
            ctx.recorder.announce(&announcement).await;
        }
        match swap_group(ctx, &found, &status, &next).await {
            Err(error) if apply::is_conflict(&error) && attempt < ATTEMPTS => {
                found = api.get(&group.key.name).await?;
            }
            outcome => return outcome,
        }
    }
    Ok(())
}

/// The status with the decision; `None` if it is recorded already.
fn next_status(
    status: &UpdateGroupStatus,
    now: jiff::Timestamp,
    policy: &Policy,
    Judgement { coverage, verdict }: &Judgement,
    owner_generation: Option<i64>,
    is_under_way: bool,
) -> Option<UpdateGroupStatus> {
    let mut next = show_policy(status, policy, now);
    let status_word = match verdict {
        Verdict::Cover { .. } => "True",
        Verdict::NotReady(_) => "Unknown",
        Verdict::Replace { .. } | Verdict::Preserve { .. } | Verdict::Disabled => "False",
    };
    let message = verdict.message();
    // Only an outdated block must be detected later.
    let generation = owner_generation.filter(|_| answer_blocks(verdict));
    let condition = (COVERED, status_word, verdict.reason(), message.as_str());
    conditions::set(&mut next.conditions, now, generation, condition);
    next.uncovered = verdict.uncovered().iter().take(MAX_LINES).cloned().collect();
    if matches!(verdict, Verdict::Cover { .. }) {
        next.change = change_parts(status, coverage, owner_generation, is_under_way);
        next.change_generation = owner_generation.filter(|_| !next.change.is_empty());
    }
    (next != *status).then_some(next)
}

/// What Updaters do about the change, with what earlier calls for the same change have found. Machines that
/// are under way were moved by an earlier call, so what it found stays.
fn change_parts(
    status: &UpdateGroupStatus,
    coverage: &Coverage,
    owner_generation: Option<i64>,
    is_under_way: bool,
) -> Vec<ChangePart> {
    let goes_on = is_under_way || status.change_generation == owner_generation;
    let mut all = if goes_on { status.change.clone() } else { Vec::new() };
    for claimed in coverage.of_updaters().take(MAX_LINES) {
        let (updater, path) = (&claimed.updater, claimed.line());
        let action = if claimed.is_left { UpdaterAction::Leave } else { UpdaterAction::Update };
        match all.iter_mut().find(|known| known.updater == *updater) {
            Some(known) if known.paths.contains(&path) || known.paths.len() >= MAX_LINES => {}
            Some(known) => known.paths.push(path),
            None => all.push(ChangePart {
                updater: updater.clone(),
                action,
                paths: vec![path],
                configuration: None,
            }),
        }
    }
    if let Some(part) = all.iter_mut().find(|part| part.updater == CONFIGURATION) {
        // Each call may be about another machine: all of them get what any of them lacks.
        match (&mut part.configuration, coverage.configuration.clone()) {
            (Some(known), Some(found)) => known.merge(found),
            (known, found) => *known = known.take().or(found),
        }
    }
    all
}

/// The event on the owner for a changed decision. Its occurrence is derived from the stored status,
/// so that a crash between event and status neither loses nor duplicates it.
fn announcement(
    ctx: &Context,
    group: &Group,
    status: &UpdateGroupStatus,
    verdict: &Verdict,
) -> Option<Announcement> {
    // Such decisions alternate with each machine of a healthy rollout.
    if matches!(verdict, Verdict::NotReady(NotReady::AnotherMachine { .. })) {
        return None;
    }
    let before = conditions::get(&status.conditions, COVERED);
    if before.is_some_and(|c| c.reason == verdict.reason() && c.message == verdict.message()) {
        return None;
    }
    let type_ = match verdict {
        Verdict::Cover { .. }
        | Verdict::Disabled
        | Verdict::NotReady(
            NotReady::ControlPlaneBehind { .. } | NotReady::ApiServerBehind { .. },
        ) => EventType::Normal,
        Verdict::Replace { .. } | Verdict::Preserve { .. } | Verdict::NotReady(_) => {
            EventType::Warning
        }
    };
    Some(Announcement {
        about: owner_object(&ctx.stores, group),
        type_,
        reason: verdict.reason().to_owned(),
        message: verdict.message(),
        occurrence: before.map_or_else(|| "first".to_owned(), occurrence),
    })
}

fn occurrence(before: &Condition) -> String {
    format!("after {} of {}", before.reason, before.last_transition_time.0)
}

#[cfg(test)]
mod tests {
    use refit_core::{
        change::{
            Difference, OnUncovered, Part, Patches, Unclaimed, cover::Claimed, diff::Change,
            path::Path,
        },
        group::POLICY_UNDERSTOOD,
    };
    use refit_kinds::{keys, refit::Disruption};

    use super::*;

    fn now() -> jiff::Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn judged(verdict: Verdict) -> Judgement {
        Judgement { coverage: Coverage::default(), verdict }
    }

    fn covered() -> Verdict {
        Verdict::Cover { patches: Patches::default(), affects_availability: true }
    }

    fn preserve() -> Judgement {
        judged(Verdict::Preserve {
            uncovered: (0..100).map(|n| format!("line {n}")).collect(),
            message: "m".into(),
        })
    }

    #[test]
    fn a_repeated_decision_is_not_written() {
        let (policy, preserve) = (Policy::default(), preserve());
        let first =
            next_status(&UpdateGroupStatus::default(), now(), &policy, &preserve, Some(2), false)
                .unwrap();
        assert_eq!(first.uncovered.len(), MAX_LINES);
        let covered = conditions::get(&first.conditions, COVERED).unwrap();
        assert_eq!(covered.observed_generation, Some(2));
        let later = now() + jiff::SignedDuration::from_secs(60);
        assert_eq!(next_status(&first, later, &policy, &preserve, Some(2), false), None);
    }

    #[test]
    fn the_updaters_of_a_change_are_kept_while_machines_are_under_way() {
        let with = |updater: &str| {
            let difference = Difference {
                part: Part::Infrastructure,
                kind: "M".into(),
                name: "m".into(),
                change: Change { path: Path::of(&["spec", updater]), from: None, to: None },
                why: Unclaimed::NoUpdater,
            };
            let claimed = Claimed {
                difference,
                updater: updater.into(),
                is_left: false,
                disruption: Disruption::Drain,
            };
            let coverage = Coverage { claimed: vec![claimed], ..Coverage::default() };
            Judgement { coverage, verdict: covered() }
        };
        let policy = Policy::default();
        let next = |status: &UpdateGroupStatus, updater: &str, generation, under_way| {
            next_status(status, now(), &policy, &with(updater), Some(generation), under_way)
                .unwrap()
        };
        let names = |status: &UpdateGroupStatus| {
            status.change.iter().map(|part| part.updater.clone()).collect::<Vec<_>>()
        };
        let memory = next(&UpdateGroupStatus::default(), "memory", 2, false);
        assert_eq!(names(&next(&memory, "cpus", 2, false)), ["memory", "cpus"]);
        assert_eq!(names(&next(&memory, "cpus", 3, true)), ["memory", "cpus"]);
        assert_eq!(names(&next(&memory, "cpus", 3, false)), ["cpus"]);
    }

    #[test]
    fn a_covered_change_clears_the_lines() {
        let policy = Policy::default();
        let blocked =
            next_status(&UpdateGroupStatus::default(), now(), &policy, &preserve(), Some(2), false)
                .unwrap();
        let cover = judged(covered());
        let free = next_status(&blocked, now(), &policy, &cover, Some(2), false).unwrap();
        assert!(free.uncovered.is_empty());
        assert!(conditions::is_true(&free.conditions, COVERED));
    }

    #[test]
    fn a_policy_that_is_not_understood_gets_a_condition_until_it_is() {
        let confused = Policy {
            on_uncovered: OnUncovered::Preserve,
            not_understood: Some((keys::ON_UNCOVERED.into(), "replace".into())),
            ..Policy::default()
        };
        let cover = judged(covered());
        let status =
            next_status(&UpdateGroupStatus::default(), now(), &confused, &cover, Some(2), false)
                .unwrap();
        let condition = conditions::get(&status.conditions, POLICY_UNDERSTOOD).unwrap();
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "UnknownValue")
        );
        let status =
            next_status(&status, now(), &Policy::default(), &cover, Some(2), false).unwrap();
        assert!(conditions::is_true(&status.conditions, POLICY_UNDERSTOOD));
    }

    #[test]
    fn a_group_without_trouble_has_no_condition_on_its_policy() {
        let cover = judged(covered());
        let status = next_status(
            &UpdateGroupStatus::default(),
            now(),
            &Policy::default(),
            &cover,
            Some(2),
            false,
        );
        assert_eq!(conditions::get(&status.unwrap().conditions, POLICY_UNDERSTOOD), None);
    }
}
