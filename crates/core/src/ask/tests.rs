use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Goal, GoalCertificates, GoalPart, NodeUpdate, Phase, Stage, Until, UpdatePart,
};
use strum::VariantArray as _;

use super::{
    Ask, MachineFacts, Wait, adopting, ask,
    testing::{goal, now, update},
};
use crate::node::{HOST_LOST, MEMBER_MISSING, SUPERSEDED};

fn facts(kubelet: &str) -> MachineFacts {
    MachineFacts {
        name: "m".into(),
        uid: "u".into(),
        kubelet_version: kubelet.parse().ok(),
        ..MachineFacts::default()
    }
}

fn ended_with(ordinal: u32, phase: Phase, reason: &str) -> NodeUpdate {
    let mut ended = update(ordinal, "v1.35.0", phase);
    reason.clone_into(&mut ended.status.as_mut().unwrap().failure_reason);
    ended
}

fn unfinished() -> impl Iterator<Item = Phase> {
    Phase::VARIANTS.iter().copied().filter(|phase| !phase.is_final())
}

/// What becomes of a request, in two words.
fn asked(machine: &MachineFacts, goal: &Goal, updates: &[NodeUpdate]) -> String {
    let name = |update: &NodeUpdate| update.metadata.name.clone().unwrap();
    let updates: Vec<&NodeUpdate> = updates.iter().collect();
    match ask(machine, goal, &updates, now()) {
        Ask::Create { ordinal, until: Until::Disrupt, .. } => format!("create {ordinal}"),
        Ask::Create { ordinal, until, .. } => format!("create {ordinal} until {until}"),
        Ask::Abort(update) => format!("abort {}", name(update)),
        Ask::Wait(Wait::Deletion) => "wait Deletion".to_owned(),
        Ask::Wait(Wait::Report) => "wait Report".to_owned(),
        Ask::Wait(Wait::Members) => "wait Members".to_owned(),
        Ask::Wait(Wait::Running(update)) => format!("running {}", name(update)),
        Ask::Wait(Wait::Failed(update)) => format!("failed {}", name(update)),
        Ask::Wait(Wait::Stopped(update)) => format!("stopped {}", name(update)),
        Ask::Wait(Wait::Stopping(update)) => format!("stopping {}", name(update)),
        Ask::Wait(Wait::Finishing(update)) => format!("finishing {}", name(update)),
        Ask::Done => "done".to_owned(),
    }
}

/// The same for a Machine whose kubelet reports v1.34.2.
fn of(version: &str, updates: &[NodeUpdate]) -> String {
    asked(&facts("v1.34.2"), &goal(version), updates)
}

#[test]
fn certificates_that_were_issued_meanwhile_decide_nothing_about_an_upgrade() {
    let of_certificates = |ordinal, phase| {
        let mut renewal = update(ordinal, "v1.35.0", phase);
        let certificates = Some(GoalCertificates::default());
        renewal.spec.goal = Goal { certificates, ..Goal::default() };
        renewal
    };
    let upgrade = |phase| update(1, "v1.35.0", phase);
    for (before, renewal, expected) in [
        (None, Phase::Succeeded, "create 3"),
        (None, Phase::Waiting, "abort m-2"),
        (None, Phase::Disrupting, "finishing m-2"),
        (Some(Phase::Failed), Phase::Succeeded, "failed m-1"),
        (Some(Phase::Failed), Phase::Failed, "failed m-1"),
        (Some(Phase::Failed), Phase::Waiting, "failed m-1"),
        (Some(Phase::Stopped), Phase::Succeeded, "stopped m-1"),
    ] {
        let before = before.map(upgrade);
        let all: Vec<_> = before.into_iter().chain([of_certificates(2, renewal)]).collect();
        assert_eq!(of("v1.35.0", &all), expected, "{renewal:?}");
    }
    let done = [upgrade(Phase::Succeeded), of_certificates(2, Phase::Waiting)];
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.35.0"), &done), "done");
    let retried = MachineFacts { retry: Some("m-1".into()), ..facts("v1.34.2") };
    let failed = [upgrade(Phase::Failed), of_certificates(2, Phase::Succeeded)];
    assert_eq!(asked(&retried, &goal("v1.35.0"), &failed), "create 3");
}

#[test]
fn a_value_that_changes_meanwhile_stops_no_update_and_is_made_after_it() {
    let with = |hash: &str| Goal {
        parts: vec![GoalPart { updater: "memory".into(), hash: hash.into() }],
        ..goal("v1.35.0")
    };
    for phase in Phase::VARIANTS.iter().copied() {
        let mut known = update(1, "v1.35.0", phase);
        known.spec.goal = with("8");
        let wanted = match phase {
            Phase::Succeeded => "create 2",
            Phase::Failed => "failed 1",
            Phase::Stopped => "stopped 1",
            _ => "running 1",
        };
        let of_other = asked(&facts("v1.35.0"), &with("16"), std::slice::from_ref(&known));
        assert_eq!(of_other.replace("m-", ""), wanted, "{phase:?}");
    }
    let mut done = update(1, "v1.35.0", Phase::Succeeded);
    done.spec.goal = with("8");
    assert_eq!(asked(&facts("v1.35.0"), &with("8"), &[done]), "done");
}

#[test]
fn the_first_request_creates_ordinal_one() {
    assert_eq!(of("v1.35.0", &[]), "create 1");
}

#[test]
fn a_repeated_goal_waits_for_its_update_and_creates_nothing() {
    for phase in unfinished() {
        let updates = [update(1, "v1.35.0", phase)];
        assert_eq!(of("v1.35.0", &updates), "running m-1", "{phase:?}");
    }
}

#[test]
fn a_node_update_without_status_is_unfinished() {
    let mut fresh = update(1, "v1.35.0", Phase::Pending);
    fresh.status = None;
    assert_eq!(of("v1.35.0", &[fresh]), "running m-1");
}

#[test]
fn done_only_if_the_live_version_matches_the_goal() {
    let done = [update(1, "v1.35.0", Phase::Succeeded)];
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.35.0"), &done), "done");
    assert_eq!(of("v1.35.0", &done), "create 2");
}

#[test]
fn a_lagging_report_is_waited_for() {
    let mut done = update(1, "v1.35.0", Phase::Succeeded);
    done.status.as_mut().unwrap().finished_at = Some(Time(now() - SignedDuration::from_secs(20)));
    for kubelet in ["v1.34.2", ""] {
        let updates = std::slice::from_ref(&done);
        assert_eq!(asked(&facts(kubelet), &goal("v1.35.0"), updates), "wait Report");
    }
}

#[test]
fn going_back_to_the_previous_version_is_a_new_update() {
    let updates = [update(1, "v1.34.2", Phase::Succeeded), update(2, "v1.35.0", Phase::Succeeded)];
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.34.2"), &updates), "create 3");
}

#[test]
fn a_failed_or_aborted_update_is_repeated_only_on_request() {
    for (phase, waits) in [(Phase::Failed, "failed m-1"), (Phase::Stopped, "stopped m-1")] {
        let updates = [update(1, "v1.35.0", phase)];
        let mut machine = facts("v1.34.2");
        for (retry, wanted) in [(None, waits), (Some("m-0"), waits), (Some("m-1"), "create 2")] {
            machine.retry = retry.map(Into::into);
            assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), wanted, "{retry:?}");
        }
    }
}

#[test]
fn one_retry_creates_exactly_one_ordinal() {
    let mut machine = facts("v1.34.2");
    machine.retry = Some("m-1".into());
    let updates = [update(1, "v1.35.0", Phase::Failed), update(2, "v1.35.0", Phase::Failed)];
    assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), "failed m-2");
}

#[test]
fn an_update_that_stopped_for_another_goal_is_made_again_when_its_goal_returns() {
    assert_eq!(of("v1.35.0", &[ended_with(1, Phase::Stopped, SUPERSEDED)]), "create 2");
}

#[test]
fn an_update_that_stopped_for_a_missing_member_is_made_again_once_none_is_missing() {
    let updates = [ended_with(1, Phase::Stopped, MEMBER_MISSING)];
    let mut machine = facts("v1.34.2");
    machine.lacks_member = true;
    assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), "wait Members");
    machine.lacks_member = false;
    assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), "create 2");
}

#[test]
fn an_update_whose_host_was_lost_is_made_again_when_the_host_reports() {
    let updates = [ended_with(1, Phase::Failed, HOST_LOST)];
    let mut machine = facts("v1.34.2");
    assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), "failed m-1");
    machine.host_reports = true;
    assert_eq!(asked(&machine, &goal("v1.35.0"), &updates), "create 2");
}

#[test]
fn another_goal_stops_only_an_unstarted_update() {
    for phase in unfinished() {
        let wanted = match phase {
            Phase::Pending | Phase::Waiting | Phase::Staging => "abort m-1",
            _ => "finishing m-1",
        };
        assert_eq!(of("v1.35.1", &[update(1, "v1.35.0", phase)]), wanted, "{phase:?}");
    }
}

#[test]
fn an_abort_is_requested_once_and_a_late_one_is_waited_for() {
    for (phase, wanted) in [(Phase::Waiting, "stopping m-1"), (Phase::Disrupting, "finishing m-1")]
    {
        let mut aborting = update(1, "v1.35.0", phase);
        aborting.spec.stage = Stage::Abort;
        assert_eq!(of("v1.35.1", &[aborting]), wanted);
    }
}

#[test]
fn none_is_created_while_an_older_one_is_unfinished() {
    let with_older = |phase| [update(1, "v1.35.0", phase), update(2, "v1.35.1", Phase::Stopped)];
    assert_eq!(of("v1.35.0", &with_older(Phase::Upgrading)), "running m-1");
    assert_eq!(of("v1.35.2", &with_older(Phase::Upgrading)), "finishing m-1");
    assert_eq!(of("v1.35.2", &with_older(Phase::Succeeded)), "create 3");
}

#[test]
fn another_goal_proceeds_after_the_older_update_ends() {
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Stopped] {
        assert_eq!(of("v1.35.1", &[update(4, "v1.35.0", phase)]), "create 5", "{phase:?}");
    }
}

#[test]
fn a_machine_with_another_uid_starts_at_a_free_ordinal() {
    let mut old = update(3, "v1.35.0", Phase::Succeeded);
    old.spec.machine_ref.uid = "gone".into();
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.35.0"), &[old]), "create 4");
}

#[test]
fn ordinals_are_compared_as_numbers() {
    let updates = [update(9, "v1.34.2", Phase::Succeeded), update(10, "v1.35.0", Phase::Succeeded)];
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.35.0"), &updates), "done");
}

#[test]
fn a_machine_being_deleted_starts_no_update() {
    let mut machine = facts("v1.34.2");
    machine.deleting = true;
    assert_eq!(asked(&machine, &goal("v1.35.0"), &[]), "wait Deletion");
}

/// Otherwise a host that was silent for some minutes would end an operator's hold.
#[test]
fn an_update_that_is_made_again_by_itself_goes_no_further_than_the_last() {
    let mut machine = facts("v1.34.2");
    machine.host_reports = true;
    let lost = ended_with(1, Phase::Failed, HOST_LOST);
    let missing = ended_with(1, Phase::Stopped, MEMBER_MISSING);
    for mut update in [lost, missing] {
        update.spec.until = Until::Stage;
        assert_eq!(asked(&machine, &goal("v1.35.0"), &[update.clone()]), "create 2 until Stage");
        machine.retry = Some("m-1".into());
        assert_eq!(asked(&machine, &goal("v1.35.0"), &[update]), "create 2");
        machine.retry = None;
    }
}

#[test]
fn an_update_whose_node_was_upgraded_by_hand_is_adopted_by_the_next() {
    let adopts = |update: &NodeUpdate, adopt: &str| {
        let machine = MachineFacts { adopt: Some(adopt.to_owned()), ..facts("v1.35.0") };
        let asked = ask(&machine, &goal("v1.35.0"), &[update], now());
        matches!(asked, Ask::Create { ordinal: 2, until: Until::Disrupt, adopts: true })
    };
    for phase in [Phase::Failed, Phase::Stopped] {
        let ended = update(1, "v1.35.0", phase);
        assert!(adopts(&ended, "m-1"), "{phase:?}");
        assert!(!adopts(&ended, "m-0"), "{phase:?}");
    }
    for phase in unfinished() {
        assert!(!adopts(&update(1, "v1.35.0", phase), "m-1"), "{phase:?}");
    }
    // What it was for is not wanted any more.
    assert!(!adopts(&update(1, "v1.34.0", Phase::Failed), "m-1"));
}

#[test]
fn an_adopted_machine_is_done_and_is_not_upgraded_again() {
    let mut adopted = update(2, "v1.35.0", Phase::Succeeded);
    adopted.spec.parts = Some(adopting([UpdatePart::kubeadm()]));
    assert_eq!(adopted.spec.parts, Some(vec![UpdatePart::adopted()]));
    assert!(adopted.spec.adopts() && !adopted.spec.works_on_host());
    let failed = update(1, "v1.35.0", Phase::Failed);
    assert_eq!(asked(&facts("v1.35.0"), &goal("v1.35.0"), &[failed, adopted]), "done");
}
