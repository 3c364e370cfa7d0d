use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Blocker, NodeUpdate, NodeUpdateStatus, Phase, Progress, Stage, StepState, StepStatus,
};
use strum::VariantArray as _;

use super::update_machine::{Answer, stopping, waiting};
use crate::ask::{
    Wait,
    testing::{goal, now, update},
};

fn answer(wait: &Wait<'_>) -> Answer {
    waiting(wait, "m", &goal("v1.35.0"), now())
}

fn running(update: &NodeUpdate) -> Answer {
    answer(&Wait::Running(update))
}

#[test]
fn every_wait_has_a_message_and_is_not_done() {
    let one = |phase| update(1, "v1.35.0", phase);
    let (upgrading, waits) = (one(Phase::Upgrading), one(Phase::Waiting));
    let (failed, stopped) = (one(Phase::Failed), one(Phase::Stopped));
    let mut fresh = one(Phase::Pending);
    fresh.status = None;
    for (wait, message, seconds) in [
        (Wait::Deletion, "stopped: Machine m is being deleted", 15),
        (Wait::Report, "waiting until Machine m reports kubelet v1.35.0", 5),
        (Wait::Members, "waiting until the group has all its Machines", 5),
        (Wait::Running(&fresh), "pending", 5),
        (Wait::Running(&upgrading), "upgrading", 5),
        (
            Wait::Failed(&failed),
            "failed: Unknown; see NodeUpdate m-1. To try again, annotate the Machine with \
             refit.dev/retry=m-1",
            15,
        ),
        (
            Wait::Stopped(&stopped),
            "stopped: NodeUpdate m-1 was aborted. To continue, annotate the Machine with \
             refit.dev/retry=m-1",
            15,
        ),
        (Wait::Stopping(&waits), "waiting for NodeUpdate m-1 to v1.35.0 to stop", 5),
        (
            Wait::Finishing(&upgrading),
            "waiting for NodeUpdate m-1 to v1.35.0 to finish first: upgrading",
            5,
        ),
    ] {
        let got = answer(&wait);
        assert_eq!((&*got.message, got.retry_after_seconds), (message, seconds));
        assert!(!got.is_done());
    }
    for phase in Phase::VARIANTS.iter().copied().filter(|phase| !phase.is_final()) {
        assert!(!running(&one(phase)).message.is_empty(), "{phase:?}");
    }
    let got = stopping(&waits);
    let message = "stopping NodeUpdate m-1 to v1.35.0: the goal has changed";
    assert_eq!((&*got.message, got.retry_after_seconds), (message, 1));
}

#[test]
fn a_failure_is_reported_with_its_reason() {
    let mut failed = update(1, "v1.35.0", Phase::Failed);
    let status = failed.status.as_mut().unwrap();
    status.failure_reason = "KubeadmUpgradeFailed".into();
    status.failure_message = "etcd is not healthy; repair the member".into();
    assert_eq!(
        answer(&Wait::Failed(&failed)).message,
        "failed: KubeadmUpgradeFailed; etcd is not healthy; repair the member. To try again, \
         annotate the Machine with refit.dev/retry=m-1"
    );
}

#[test]
fn an_abort_in_progress_is_reported() {
    for phase in Phase::VARIANTS.iter().copied().filter(|phase| !phase.is_final()) {
        let mut aborting = update(1, "v1.35.0", phase);
        aborting.spec.stage = Stage::Abort;
        aborting.status.as_mut().unwrap().message = "the host works on".into();
        let message = running(&aborting).message;
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
    let got = running(&waiting);
    assert_eq!(got.message, "waiting for default/web: PodDisruptionBudget");
    waiting.status.as_mut().unwrap().blocked_by[0].message = "evicting default/web-1".into();
    let got = running(&waiting);
    assert_eq!(got.message, "evicting default/web-1");
}

/// Cluster API writes a condition for each change of a message.
#[test]
fn a_message_stays_while_its_counters_change() {
    let message = |change: &dyn Fn(&mut NodeUpdateStatus, i32), count| {
        let mut one = update(1, "v1.35.0", Phase::Draining);
        change(one.status.as_mut().unwrap(), count);
        running(&one).message
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
        let got = running(&update);
        assert_eq!(got.retry_after_seconds, seconds, "{rest:?}");
    }
}

#[test]
fn without_a_prediction_the_next_call_follows_at_once_where_the_end_is_near() {
    for (phase, ago, seconds) in [
        (Phase::Disrupting, 3, 5),
        (Phase::Verifying, 3, 1),
        (Phase::Uncordoning, 59, 1),
        (Phase::Verifying, 60, 5),
    ] {
        let mut update = update(1, "v1.35.0", phase);
        let status = update.status.as_mut().unwrap();
        let begun = Some(Time(now() - SignedDuration::from_secs(ago)));
        status.steps = vec![StepStatus { started_at: begun, ..StepStatus::default() }];
        assert_eq!(running(&update).retry_after_seconds, seconds, "{phase:?} {ago}");
    }
}

#[test]
fn a_late_update_is_polled_less_and_less_often() {
    let second = |second: i64| Some(Time(now() - SignedDuration::from_secs(second)));
    let begun = |ago| StepStatus { started_at: second(ago), ..StepStatus::default() };
    let done = |ago| StepStatus { finished_at: second(ago), ..begun(ago + 60) };
    let cases = [
        ("just begun", vec![begun(0)], 10),
        ("a part has gone by", vec![begun(11)], 5),
        ("nearly over", vec![begun(19)], 1),
        ("over now", vec![begun(20)], 1),
        ("late", vec![begun(24)], 2),
        ("very late", vec![begun(4000)], 15),
        ("between two steps", vec![done(8), StepStatus::default()], 6),
        ("a clock of a host that is ahead", vec![done(13), begun(-3600)], 4),
        ("no step has begun", vec![], 10),
    ];
    for (case, steps, seconds) in cases {
        let mut update = update(1, "v1.35.0", Phase::Verifying);
        let status = update.status.as_mut().unwrap();
        status.steps = steps;
        status.progress = Some(Progress { percent: 90, remaining_seconds: Some(20) });
        let got = running(&update);
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
        let got = running(&update);
        assert_eq!(got.retry_after_seconds, 15, "{phase:?}");
    }
}
