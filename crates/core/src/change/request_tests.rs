use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Blocker, Goal, MachineRef, NodeUpdate, NodeUpdateSpec, NodeUpdateStatus, Origin, Phase,
    Progress, Stage, StepState, StepStatus,
};

use super::request::{Answer, Decision, MachineFacts, decide};
use crate::node::{HOST_LOST, MEMBER_MISSING, SUPERSEDED};

const UNFINISHED: [Phase; 9] = [
    Phase::Pending,
    Phase::Waiting,
    Phase::Staging,
    Phase::Upgrading,
    Phase::Draining,
    Phase::Disrupting,
    Phase::Verifying,
    Phase::Uncordoning,
    Phase::Stopping,
];

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn goal(version: &str) -> Goal {
    Goal::of_version(version.parse().unwrap())
}

fn facts(kubelet: &str) -> MachineFacts {
    MachineFacts {
        name: "m".into(),
        uid: "u".into(),
        kubelet_version: kubelet.parse().ok(),
        ..MachineFacts::default()
    }
}

fn update(ordinal: u32, version: &str, phase: Phase) -> NodeUpdate {
    let goal = goal(version);
    let mut update = NodeUpdate::new(
        &format!("m-{ordinal}"),
        NodeUpdateSpec {
            stage: Stage::Ongoing,
            machine_ref: MachineRef { name: "m".into(), uid: "u".into() },
            origin: Origin::Hook,
            goal_hash: goal.hash(),
            goal,
        },
    );
    update.status = Some(NodeUpdateStatus {
        phase,
        finished_at: phase.is_final().then(|| Time(now() - SignedDuration::from_hours(1))),
        ..NodeUpdateStatus::default()
    });
    update
}

fn decide_for(machine: &MachineFacts, version: &str, updates: &[NodeUpdate]) -> Decision {
    decide(machine, &goal(version), &updates.iter().collect::<Vec<_>>(), now())
}

fn answer(decision: Decision) -> Answer {
    match decision {
        Decision::Answer(answer) => answer,
        other => panic!("an answer was expected, not {other:?}"),
    }
}

#[test]
fn the_first_request_creates_ordinal_one() {
    assert_eq!(decide_for(&facts("v1.34.2"), "v1.35.0", &[]), Decision::Create { ordinal: 1 });
}

#[test]
fn a_repeated_goal_reports_progress_and_creates_nothing() {
    for phase in UNFINISHED {
        let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[update(1, "v1.35.0", phase)]));
        assert!(!got.is_done() && !got.message.is_empty(), "{phase:?}");
    }
}

#[test]
fn a_node_update_without_status_is_unfinished() {
    let mut fresh = update(1, "v1.35.0", Phase::Pending);
    fresh.status = None;
    assert_eq!(answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[fresh])).message, "pending");
}

#[test]
fn done_only_if_the_live_version_matches_the_goal() {
    let done = update(1, "v1.35.0", Phase::Succeeded);
    assert!(
        answer(decide_for(&facts("v1.35.0"), "v1.35.0", std::slice::from_ref(&done))).is_done()
    );
    assert_eq!(decide_for(&facts("v1.34.2"), "v1.35.0", &[done]), Decision::Create { ordinal: 2 });
}

#[test]
fn a_lagging_report_is_waited_for() {
    let mut done = update(1, "v1.35.0", Phase::Succeeded);
    done.status.as_mut().unwrap().finished_at = Some(Time(now() - SignedDuration::from_secs(20)));
    for kubelet in ["v1.34.2", ""] {
        let got = answer(decide_for(&facts(kubelet), "v1.35.0", std::slice::from_ref(&done)));
        assert_eq!(got.message, "waiting until Machine m reports kubelet v1.35.0");
        assert!(!got.is_done());
    }
}

#[test]
fn going_back_to_the_previous_version_is_a_new_update() {
    let there = update(1, "v1.34.2", Phase::Succeeded);
    let away = update(2, "v1.35.0", Phase::Succeeded);
    let got = decide_for(&facts("v1.35.0"), "v1.34.2", &[there, away]);
    assert_eq!(got, Decision::Create { ordinal: 3 });
}

#[test]
fn a_failure_is_reported_and_not_retried_unrequested() {
    let mut failed = update(1, "v1.35.0", Phase::Failed);
    let status = failed.status.as_mut().unwrap();
    status.failure_reason = "KubeadmUpgradeFailed".into();
    status.failure_message = "etcd is not healthy; repair the member".into();
    let mut machine = facts("v1.34.2");
    let got = answer(decide_for(&machine, "v1.35.0", std::slice::from_ref(&failed)));
    assert_eq!(
        got.message,
        "failed: KubeadmUpgradeFailed; etcd is not healthy; repair the member. To try again, \
         annotate the Machine with refit.dev/retry=m-1"
    );
    assert_eq!(got.retry_after_seconds, 15);
    machine.retry = Some("m-0".into());
    assert!(matches!(
        decide_for(&machine, "v1.35.0", std::slice::from_ref(&failed)),
        Decision::Answer(_)
    ));
    machine.retry = Some("m-1".into());
    assert_eq!(decide_for(&machine, "v1.35.0", &[failed]), Decision::Create { ordinal: 2 });
}

#[test]
fn one_retry_creates_exactly_one_ordinal() {
    let mut machine = facts("v1.34.2");
    machine.retry = Some("m-1".into());
    let first = update(1, "v1.35.0", Phase::Failed);
    let second = update(2, "v1.35.0", Phase::Failed);
    let got = answer(decide_for(&machine, "v1.35.0", &[first, second]));
    assert!(got.message.starts_with("failed: Unknown; see NodeUpdate m-2."), "{}", got.message);
}

#[test]
fn an_aborted_update_is_reported_and_can_be_retried() {
    let mut machine = facts("v1.34.2");
    let aborted = update(1, "v1.35.0", Phase::Stopped);
    let got = answer(decide_for(&machine, "v1.35.0", std::slice::from_ref(&aborted)));
    assert!(got.message.starts_with("stopped: NodeUpdate m-1 was aborted."), "{}", got.message);
    assert_eq!(got.retry_after_seconds, 15);
    machine.retry = Some("m-1".into());
    assert_eq!(decide_for(&machine, "v1.35.0", &[aborted]), Decision::Create { ordinal: 2 });
}

#[test]
fn an_update_that_stopped_for_another_goal_is_made_again_when_its_goal_returns() {
    let mut stopped = update(1, "v1.35.0", Phase::Stopped);
    stopped.status.as_mut().unwrap().failure_reason = SUPERSEDED.to_owned();
    let got = decide_for(&facts("v1.34.2"), "v1.35.0", &[stopped]);
    assert_eq!(got, Decision::Create { ordinal: 2 });
}

#[test]
fn an_update_that_stopped_for_a_missing_member_is_made_again_once_none_is_missing() {
    let mut stopped = update(1, "v1.35.0", Phase::Stopped);
    stopped.status.as_mut().unwrap().failure_reason = MEMBER_MISSING.to_owned();
    let mut machine = facts("v1.34.2");
    machine.lacks_member = true;
    let got = answer(decide_for(&machine, "v1.35.0", std::slice::from_ref(&stopped)));
    assert_eq!(got.message, "waiting until the group has all its Machines");
    machine.lacks_member = false;
    assert_eq!(decide_for(&machine, "v1.35.0", &[stopped]), Decision::Create { ordinal: 2 });
}

#[test]
fn an_update_whose_host_was_lost_is_made_again_when_the_host_reports() {
    let mut lost = update(1, "v1.35.0", Phase::Failed);
    lost.status.as_mut().unwrap().failure_reason = HOST_LOST.to_owned();
    let mut machine = facts("v1.34.2");
    machine.host_reports = false;
    let got = answer(decide_for(&machine, "v1.35.0", std::slice::from_ref(&lost)));
    assert!(got.message.starts_with("failed: HostLost"), "{}", got.message);
    machine.host_reports = true;
    assert_eq!(decide_for(&machine, "v1.35.0", &[lost]), Decision::Create { ordinal: 2 });
}

#[test]
fn an_abort_in_progress_is_reported() {
    for phase in UNFINISHED {
        let mut aborting = update(1, "v1.35.0", phase);
        aborting.spec.stage = Stage::Abort;
        aborting.status.as_mut().unwrap().message = "the host works on".into();
        let message = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[aborting])).message;
        let wanted = match phase {
            Phase::Pending | Phase::Waiting | Phase::Staging | Phase::Stopping => {
                "stopping at the next safe step"
            }
            Phase::Draining => "draining the node",
            _ => "the host works on",
        };
        assert_eq!(message, wanted, "{phase:?}");
    }
}

#[test]
fn a_late_abort_waits_for_the_update_to_end() {
    let mut late = update(1, "v1.35.0", Phase::Disrupting);
    late.spec.stage = Stage::Abort;
    let got = answer(decide_for(&facts("v1.34.2"), "v1.35.1", &[late]));
    assert_eq!(got.message, "waiting for NodeUpdate m-1 to v1.35.0 to finish first: disrupting");
}

#[test]
fn another_goal_stops_only_an_unstarted_update() {
    for phase in UNFINISHED {
        let got = decide_for(&facts("v1.34.2"), "v1.35.1", &[update(1, "v1.35.0", phase)]);
        match phase {
            Phase::Pending | Phase::Waiting | Phase::Staging => {
                assert!(matches!(&got, Decision::Abort { name, .. } if name == "m-1"), "{phase:?}");
            }
            _ => {
                let message = answer(got).message;
                let wanted = "waiting for NodeUpdate m-1 to v1.35.0 to finish first: ";
                assert!(message.starts_with(wanted), "{phase:?}: {message}");
            }
        }
    }
}

#[test]
fn none_is_created_while_an_older_one_is_unfinished() {
    let by_hand = update(2, "v1.35.1", Phase::Stopped);
    for (goal, phase, wanted) in [
        ("v1.35.0", Phase::Upgrading, "upgrading"),
        ("v1.35.2", Phase::Upgrading, "waiting for NodeUpdate m-1 to v1.35.0 to finish first"),
    ] {
        let updates = [update(1, "v1.35.0", phase), by_hand.clone()];
        let message = answer(decide_for(&facts("v1.34.2"), goal, &updates)).message;
        assert!(message.starts_with(wanted), "{goal}: {message}");
    }
    let updates = [update(1, "v1.35.0", Phase::Succeeded), by_hand];
    let got = decide_for(&facts("v1.34.2"), "v1.35.2", &updates);
    assert_eq!(got, Decision::Create { ordinal: 3 });
}

#[test]
fn an_abort_is_requested_once() {
    let mut aborting = update(1, "v1.35.0", Phase::Waiting);
    aborting.spec.stage = Stage::Abort;
    let got = answer(decide_for(&facts("v1.34.2"), "v1.35.1", &[aborting]));
    assert_eq!(got.message, "waiting for NodeUpdate m-1 to v1.35.0 to stop");
}

#[test]
fn another_goal_proceeds_after_the_older_update_ends() {
    for phase in [Phase::Succeeded, Phase::Failed, Phase::Stopped] {
        let got = decide_for(&facts("v1.34.2"), "v1.35.1", &[update(4, "v1.35.0", phase)]);
        assert_eq!(got, Decision::Create { ordinal: 5 }, "{phase:?}");
    }
}

#[test]
fn a_machine_with_another_uid_starts_at_a_free_ordinal() {
    let mut old = update(3, "v1.35.0", Phase::Succeeded);
    old.spec.machine_ref.uid = "gone".into();
    assert_eq!(decide_for(&facts("v1.35.0"), "v1.35.0", &[old]), Decision::Create { ordinal: 4 });
}

#[test]
fn ordinals_are_compared_as_numbers() {
    let updates = [update(9, "v1.34.2", Phase::Succeeded), update(10, "v1.35.0", Phase::Succeeded)];
    assert!(answer(decide_for(&facts("v1.35.0"), "v1.35.0", &updates)).is_done());
}

#[test]
fn the_message_comes_from_the_controller_or_the_blocker() {
    let mut waiting = update(1, "v1.35.0", Phase::Waiting);
    let status = waiting.status.as_mut().unwrap();
    status.blocked_by = vec![Blocker {
        reason: "PodDisruptionBudget".into(),
        object: "default/web".into(),
        pod: String::new(),
        message: String::new(),
        since: Time(now()),
    }];
    let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", std::slice::from_ref(&waiting)));
    assert_eq!(got.message, "waiting for default/web: PodDisruptionBudget");
    waiting.status.as_mut().unwrap().blocked_by[0].message = "evicting default/web-1".into();
    let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[waiting]));
    assert_eq!(got.message, "evicting default/web-1");
}

/// Cluster API writes a condition for each change of a message.
#[test]
fn a_message_stays_while_its_counters_change() {
    let message = |change: &dyn Fn(&mut NodeUpdateStatus, i32), count| {
        let mut one = update(1, "v1.35.0", Phase::Draining);
        change(one.status.as_mut().unwrap(), count);
        answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[one])).message
    };
    let pods = |status: &mut NodeUpdateStatus, count| status.message = format!("{count} pods");
    let tries = |status: &mut NodeUpdateStatus, count| {
        status.message = format!("try {count}");
        status.steps = vec![StepStatus {
            name: "kubelet-install".into(),
            state: StepState::Running,
            attempt: count,
            message: "CommandFailed: no".into(),
            ..StepStatus::default()
        }];
    };
    let others = |status: &mut NodeUpdateStatus, count| {
        status.blocked_by = vec![Blocker {
            reason: "GroupUnavailable".into(),
            object: String::new(),
            pod: String::new(),
            message: format!("{count} are available"),
            since: Time(now()),
        }];
    };
    for (change, wanted) in [
        (&pods as &dyn Fn(&mut NodeUpdateStatus, i32), "draining the node"),
        (&tries, "step kubelet-install is tried again: CommandFailed: no"),
        (&others, "waiting until enough other machines of the group are available"),
    ] {
        assert_eq!([message(change, 1), message(change, 2)], [wanted, wanted]);
    }
}

#[test]
fn the_next_call_comes_after_half_of_the_remaining_time() {
    for (rest, seconds) in [(Some(-4), 1), (Some(0), 1), (Some(7), 4), (Some(900), 15), (None, 5)] {
        let mut update = update(1, "v1.35.0", Phase::Staging);
        update.status.as_mut().unwrap().progress =
            Some(Progress { percent: 10, remaining_seconds: rest });
        let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[update]));
        assert_eq!(got.retry_after_seconds, seconds, "{rest:?}");
    }
}

#[test]
fn a_late_update_is_polled_less_and_less_often() {
    let second = |second: i64| Some(Time(now() - SignedDuration::from_secs(second)));
    let running = |ago| StepStatus { started_at: second(ago), ..StepStatus::default() };
    let done = |ago| StepStatus { finished_at: second(ago), ..running(ago + 60) };
    let cases = [
        ("just begun", vec![running(0)], 10),
        ("a part has gone by", vec![running(11)], 5),
        ("nearly over", vec![running(19)], 1),
        ("over now", vec![running(20)], 1),
        ("late", vec![running(24)], 2),
        ("very late", vec![running(4000)], 15),
        ("between two steps", vec![done(8), StepStatus::default()], 6),
        ("a clock of a host that is ahead", vec![done(13), running(-3600)], 4),
        ("no step has begun", vec![], 10),
    ];
    for (case, steps, seconds) in cases {
        let mut update = update(1, "v1.35.0", Phase::Verifying);
        let status = update.status.as_mut().unwrap();
        status.steps = steps;
        status.progress = Some(Progress { percent: 90, remaining_seconds: Some(20) });
        let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[update]));
        assert_eq!(got.retry_after_seconds, seconds, "{case}");
    }
}

#[test]
fn a_wait_for_a_slot_or_pods_does_not_count_as_progress() {
    for phase in [Phase::Waiting, Phase::Staging, Phase::Draining] {
        let mut update = update(1, "v1.35.0", phase);
        let status = update.status.as_mut().unwrap();
        status.steps = vec![StepStatus {
            finished_at: Some(Time(now() - SignedDuration::from_secs(298))),
            ..StepStatus::default()
        }];
        status.progress = Some(Progress { percent: 40, remaining_seconds: Some(300) });
        let got = answer(decide_for(&facts("v1.34.2"), "v1.35.0", &[update]));
        assert_eq!(got.retry_after_seconds, 15, "{phase:?}");
    }
}

#[test]
fn a_machine_being_deleted_starts_no_update() {
    let mut machine = facts("v1.34.2");
    machine.deleting = true;
    let got = answer(decide_for(&machine, "v1.35.0", &[]));
    assert_eq!(got.message, "stopped: Machine m is being deleted");
    assert!(!got.is_done());
}
