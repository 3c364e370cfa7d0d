use proptest::prelude::*;
use refit_kinds::refit::{ClusterCounts, StepCondition};
use serde_json::json;

use super::*;

const MILESTONES: Milestones =
    Milestones { commenced: "Begun", control_plane: "Head", workers: "Rest" };

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(minute * 60).unwrap()
}

/// A record that was requested for minute 100.
fn record(phase: UpgradePhase) -> UpgradeRecord {
    serde_json::from_value(json!({
        "version": "v1.36.0", "phase": phase, "requestedTime": at(0).to_string(), "generation": 3,
    }))
    .unwrap()
}

fn upgrading(done: &[&str]) -> UpgradeRecord {
    let step = |name: &&str| StepCondition {
        type_: (*name).to_owned(),
        status: "True".to_owned(),
        reason: "StepDone".to_owned(),
        message: String::new(),
        start_time: Time(at(100)),
        complete_time: Some(Time(at(100))),
        last_transition_time: Time(at(100)),
    };
    UpgradeRecord {
        start_time: Some(Time(at(100))),
        conditions: done.iter().map(step).collect(),
        ..record(UpgradePhase::Upgrading)
    }
}

fn failed() -> UpgradeRecord {
    let (reason, message) = ("Cancelled".to_owned(), "it was stopped on request".to_owned());
    UpgradeRecord { reason, message, ..record(UpgradePhase::Failed) }
}

fn both() -> Receivers {
    [Receiver::CloudEvents, Receiver::Slack].into()
}

/// What a look at a minute adds, and the record then.
fn noted(
    before: Option<&UpgradeRecord>,
    mut next: UpgradeRecord,
    minute: i64,
    unhealthy: Option<&str>,
) -> (Vec<UpgradeEvent>, UpgradeRecord) {
    next.notifications = before.map(|before| before.notifications.clone()).unwrap_or_default();
    let known = next.notifications.len();
    let ready = Ready {
        is_ready: next.phase == UpgradePhase::Completed,
        reason: "Why".into(),
        message: "the reason is this".into(),
    };
    note(
        &mut next,
        &Shown {
            before,
            begins_at: at(100),
            ready: &ready,
            unhealthy: unhealthy.map(|why| ("Nodes", why)),
            receivers: &both(),
            milestones: &MILESTONES,
            now: at(minute),
        },
    );
    (next.notifications.iter().skip(known).map(|added| added.event).collect(), next)
}

/// The record before and after a look, its minute, a check that fails, and what is notified of.
type Case<'a> =
    (Option<&'a UpgradeRecord>, &'a UpgradeRecord, i64, Option<&'a str>, &'a [UpgradeEvent]);

#[test]
fn an_upgrade_notifies_of_each_point_that_it_reaches() {
    use UpgradeEvent as E;
    use UpgradePhase as P;
    let (pending, started) = (record(P::Pending), upgrading(&[]));
    let (begun, head) = (upgrading(&["Begun"]), upgrading(&["Begun", "Head"]));
    let rest = upgrading(&["Begun", "Head", "Rest"]);
    let completed = UpgradeRecord { phase: P::Completed, ..rest.clone() };
    let cancelling = UpgradeRecord { reason: "Cancelling".into(), ..started.clone() };
    let cases: [Case<'_>; 17] = [
        (None, &pending, 0, None, &[E::Scheduled]),
        (None, &started, 100, None, &[E::Started]),
        (Some(&pending), &pending, 99, Some("no"), &[E::Scheduled, E::HealthCheckFailed]),
        (Some(&pending), &pending, 129, None, &[]),
        (Some(&pending), &pending, 130, None, &[E::Delayed]),
        (Some(&pending), &started, 100, None, &[E::Started]),
        (Some(&started), &started, 101, Some("no"), &[E::HealthCheckFailed]),
        (Some(&started), &started, 130, Some("no"), &[E::HealthCheckFailed, E::Delayed]),
        (Some(&started), &cancelling, 130, Some("no"), &[]),
        (Some(&started), &begun, 130, Some("no"), &[E::ControlPlaneStarted]),
        (Some(&begun), &head, 900, None, &[E::ControlPlaneFinished]),
        (Some(&begun), &rest, 900, None, &[E::ControlPlaneFinished, E::WorkersFinished]),
        (Some(&rest), &completed, 900, None, &[E::Completed]),
        (Some(&completed), &completed, 900, Some("no"), &[]),
        (Some(&started), &failed(), 220, Some("no"), &[E::Failed]),
        // Its status was lost, or it was requested with a time long ago.
        (None, &head, 900, None, &[E::Started, E::ControlPlaneStarted, E::ControlPlaneFinished]),
        (None, &failed(), 900, None, &[E::Failed]),
    ];
    for (before, next, minute, unhealthy, wanted) in cases {
        let (added, _) = noted(before, next.clone(), minute, unhealthy);
        assert_eq!(added, wanted, "{before:?} -> {next:?} at {minute}");
    }
}

#[test]
fn each_event_is_notified_of_once_although_it_is_seen_again() {
    let (added, known) = noted(None, upgrading(&[]), 130, Some("node n1 is not Ready"));
    assert_eq!(added.len(), 3, "{added:?}");
    let (added, known) = noted(Some(&known), upgrading(&["Begun"]), 131, None);
    assert_eq!(added, [UpgradeEvent::ControlPlaneStarted]);
    // A step that was done and is not done any more is done again.
    let (added, known) = noted(Some(&known), upgrading(&[]), 132, Some("another"));
    assert!(added.is_empty(), "{added:?}");
    let (added, _) = noted(Some(&known), upgrading(&["Begun"]), 133, None);
    assert!(added.is_empty(), "{added:?}");
}

#[test]
fn an_upgrade_that_is_put_off_is_notified_of_again() {
    let (_, started) = noted(None, upgrading(&[]), 101, Some("no"));
    let later = |record| UpgradeRecord { generation: 4, ..record };
    let (_, waits) = noted(Some(&started), later(record(UpgradePhase::Pending)), 50, None);
    let events = waits.notifications.iter().map(|one| (one.event, one.earlier));
    let wanted = [
        (UpgradeEvent::HealthCheckFailed, true),
        (UpgradeEvent::Started, true),
        (UpgradeEvent::Scheduled, false),
    ];
    assert_eq!(events.collect::<Vec<_>>(), wanted, "none was delivered");
    let (added, _) = noted(Some(&waits), later(upgrading(&[])), 100, None);
    assert_eq!(added, [UpgradeEvent::Started]);
}

#[test]
fn a_notification_is_a_sentence_with_its_cause() {
    let message = |before: Option<&UpgradeRecord>, next, minute, unhealthy| {
        let (_, record) = noted(before, next, minute, unhealthy);
        record.notifications.last().unwrap().message.clone()
    };
    let pending = record(UpgradePhase::Pending);
    for (text, wanted) in [
        (
            message(None, pending.clone(), 0, None),
            "The upgrade to v1.36.0 begins at 1970-01-01T01:40:00Z.",
        ),
        (
            message(Some(&pending), pending.clone(), 99, Some("Nodes: n1 is not Ready")),
            "The upgrade to v1.36.0 cannot begin at present: Nodes: n1 is not Ready.",
        ),
        (
            message(Some(&pending), pending.clone(), 130, None),
            "The upgrade to v1.36.0 was to begin at 1970-01-01T01:40:00Z, and waits: the reason is this.",
        ),
        (
            message(Some(&pending), failed(), 130, None),
            "The upgrade to v1.36.0 has failed: it was stopped on request.",
        ),
        (
            message(Some(&pending), record(UpgradePhase::Completed), 100, None),
            "The reason is this.",
        ),
    ] {
        assert_eq!(text, wanted);
    }
    let long = message(Some(&pending), pending.clone(), 99, Some(&"ä".repeat(2000)));
    assert_eq!(long.chars().count(), MAX_NOTIFICATION_MESSAGE);
    assert!(long.ends_with("..."));
}

#[test]
fn slack_gets_only_the_failures_of_upgrades_that_a_plan_has_requested() {
    let receivers = |next: UpgradeRecord, by: Option<&str>| {
        let next = UpgradeRecord { requested_by: by.map(str::to_owned), ..next };
        let (_, record) = noted(None, next, 100, None);
        let last = record.notifications.last().cloned().unwrap();
        last.deliveries.iter().map(|one| one.receiver).collect::<Vec<_>>()
    };
    let all = [Receiver::CloudEvents, Receiver::Slack];
    let plan = Some("ClusterUpgradePlan spring");
    assert_eq!(receivers(upgrading(&[]), Some("jane")), all);
    assert_eq!(receivers(upgrading(&[]), plan), [Receiver::CloudEvents]);
    assert_eq!(receivers(failed(), plan), all);
}

#[test]
fn the_record_of_an_earlier_version_keeps_only_what_was_not_delivered() {
    let (_, mut record) = noted(None, upgrading(&["Begun", "Head"]), 100, None);
    for delivery in &mut record.notifications[0].deliveries {
        delivery.state = DeliveryState::Sent;
    }
    record.notifications[1].deliveries[0].state = DeliveryState::Failed;
    let left = |record: &UpgradeRecord| {
        record.notifications.iter().map(|one| one.event).collect::<Vec<_>>()
    };
    keep_waiting(&mut record, &both());
    let wanted = [UpgradeEvent::ControlPlaneStarted, UpgradeEvent::ControlPlaneFinished];
    assert_eq!(left(&record), wanted);
    keep_waiting(&mut record, &[Receiver::CloudEvents].into());
    assert_eq!(left(&record), wanted[1..], "Slack is not configured any more");
}

#[test]
fn notifications_that_were_not_delivered_are_kept_when_an_upgrade_begins_again() {
    let (_, mut before) = noted(None, failed(), 100, None);
    set_aside(&mut before.notifications);
    let mut again = UpgradeRecord { generation: 4, ..failed() };
    again.notifications = before.notifications;
    let ready = Ready { is_ready: false, reason: "Why".into(), message: "so".into() };
    let mut look = |receivers: &Receivers| {
        let shown = Shown {
            before: None,
            begins_at: at(100),
            ready: &ready,
            unhealthy: None,
            receivers,
            milestones: &MILESTONES,
            now: at(120),
        };
        note(&mut again, &shown);
        let all = again.notifications.iter();
        all.map(|one| (one.event, one.generation, one.earlier)).collect::<Vec<_>>()
    };
    let (earlier, now) = ((UpgradeEvent::Failed, 3, true), (UpgradeEvent::Failed, 4, false));
    assert_eq!(look(&both()), [earlier, now]);
    assert_eq!(look(&both()), [earlier, now], "a second look adds nothing");
    assert_eq!(look(&Receivers::new()), [now], "nothing waits for it any more");
}

#[test]
fn an_upgrade_keeps_the_newest_of_what_was_set_aside() {
    let (_, mut record) = noted(None, failed(), 100, None);
    let one = record.notifications[0].clone();
    record.notifications =
        (0..40).map(|generation| UpgradeNotification { generation, ..one.clone() }).collect();
    set_aside(&mut record.notifications);
    assert_eq!(
        record.notifications.len() + UpgradeEvent::VARIANTS.len(),
        MAX_UPGRADE_NOTIFICATIONS
    );
    assert_eq!(record.notifications.last().unwrap().generation, 39);
}

#[test]
fn an_upgrade_whose_task_was_deleted_is_not_delayed() {
    // The step by which it was commenced does not stand any more.
    let (added, _) = noted(Some(&upgrading(&[])), upgrading(&["Head"]), 900, None);
    assert_eq!(added, [UpgradeEvent::ControlPlaneFinished]);
}

fn wave(name: &str, size: i32, ended: Option<i64>) -> WaveStatus {
    let done = if ended.is_some() { size } else { 0 };
    WaveStatus {
        name: name.into(),
        size,
        counts: ClusterCounts { requested: size, completed: done, failed: 0 },
        since: Time(at(0)),
        ended: ended.map(|minute| Time(at(minute))),
    }
}

fn plan(phase: PlanPhase, reason: &str, waves: Vec<WaveStatus>) -> ClusterUpgradePlanStatus {
    let version = Some("v1.36.0".parse().unwrap());
    let mut status =
        ClusterUpgradePlanStatus { phase, version, waves, ..ClusterUpgradePlanStatus::default() };
    let what = (READY, "False", reason, "3 Clusters have failed");
    conditions::set(&mut status.conditions, at(0), Some(1), what);
    status
}

/// A plan after a look, and what it adds.
fn plan_noted(
    before: &ClusterUpgradePlanStatus,
    mut next: ClusterUpgradePlanStatus,
) -> (ClusterUpgradePlanStatus, Vec<String>) {
    note_plan(before, &mut next, &both(), at(7));
    let last = before.notifications.last().map_or(0, |known| known.number);
    let added = next.notifications.iter().filter(|one| one.number > last);
    let added = added.map(|one| format!("{} {}", one.event, one.message)).collect();
    (next, added)
}

#[test]
fn a_plan_notifies_of_each_point_that_it_reaches() {
    use PlanPhase as P;
    let new = ClusterUpgradePlanStatus::default();
    let first = plan(P::Progressing, "Progressing", vec![wave("canary", 1, None)]);
    let (known, added) = plan_noted(&new, first.clone());
    assert_eq!(added, ["WaveStarted Wave canary with 1 Cluster has begun."]);
    let (known, added) = plan_noted(&known, first);
    assert!(added.is_empty(), "{added:?}");
    let two = vec![wave("canary", 1, Some(5)), wave("all", 9, None)];
    let (known, added) = plan_noted(&known, plan(P::Progressing, "Progressing", two.clone()));
    assert_eq!(
        added,
        [
            "WaveCompleted Wave canary has ended: of 1 Cluster, 1 upgraded and 0 failed.",
            "WaveStarted Wave all with 9 Clusters has begun.",
        ]
    );
    let stopped = plan(P::Stopped, "TooManyFailures", two.clone());
    let (known, added) = plan_noted(&known, stopped.clone());
    assert_eq!(added, ["Stopped 3 Clusters have failed."]);
    let (known, added) = plan_noted(&known, stopped);
    assert!(added.is_empty(), "it has stopped before: {added:?}");
    // A Cluster of the first wave goes on again.
    let again = vec![wave("canary", 1, None), wave("all", 9, None)];
    let (known, _) = plan_noted(&known, plan(P::Progressing, "Progressing", again));
    let (known, added) = plan_noted(&known, plan(P::Progressing, "Progressing", two));
    assert!(added.is_empty(), "its end was notified of: {added:?}");
    let done = vec![wave("canary", 1, Some(5)), wave("all", 9, Some(6))];
    let (known, added) = plan_noted(&known, plan(P::Completed, "Completed", done));
    assert_eq!(added.len(), 2, "{added:?}");
    let other = Some("v1.37.0".parse().unwrap());
    let next = plan(P::Progressing, "Progressing", vec![wave("canary", 1, None)]);
    let (known, added) = plan_noted(&known, ClusterUpgradePlanStatus { version: other, ..next });
    assert_eq!(added.len(), 1, "another version begins with the first wave: {added:?}");
    let numbers: Vec<_> = known.notifications.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn the_last_wave_of_a_plan_may_be_added_again() {
    use PlanPhase as P;
    let one = vec![wave("rest", 2, Some(5))];
    let (known, _) =
        plan_noted(&ClusterUpgradePlanStatus::default(), plan(P::Completed, "Completed", one));
    let two = |ended| vec![wave("rest", 2, Some(5)), wave("rest", 1, ended)];
    let (known, added) = plan_noted(&known, plan(P::Progressing, "Progressing", two(None)));
    assert_eq!(added, ["WaveStarted Wave rest with 1 Cluster has begun."]);
    let (_, added) = plan_noted(&known, plan(P::Completed, "Completed", two(Some(6))));
    assert_eq!(added.len(), 2, "{added:?}");
}

#[test]
fn a_plan_drops_what_was_delivered_first_and_then_the_oldest() {
    let mut known = ClusterUpgradePlanStatus::default();
    for look in 0..MAX_PLAN_NOTIFICATIONS {
        let reason = if look % 2 == 0 { "Paused" } else { "TooManyFailures" };
        known = plan_noted(&known, plan(PlanPhase::Stopped, reason, Vec::new())).0;
    }
    for delivery in &mut known.notifications[7].deliveries {
        delivery.state = DeliveryState::Sent;
    }
    let first_two = |known: &ClusterUpgradePlanStatus| {
        assert_eq!(known.notifications.len(), MAX_PLAN_NOTIFICATIONS);
        let has = |number| known.notifications.iter().any(|one| one.number == number);
        (has(1), has(8))
    };
    assert_eq!(first_two(&known), (true, true));
    known = plan_noted(&known, plan(PlanPhase::Stopped, "Paused", Vec::new())).0;
    assert_eq!(first_two(&known), (true, false), "it was delivered");
    known = plan_noted(&known, plan(PlanPhase::Stopped, "TooManyFailures", Vec::new())).0;
    assert_eq!(first_two(&known), (false, false), "it is the oldest");
}

#[test]
fn without_a_receiver_nothing_is_noted() {
    let mut next = upgrading(&["Begun"]);
    let ready = Ready { is_ready: false, reason: String::new(), message: String::new() };
    let (receivers, milestones) = (&Receivers::new(), &MILESTONES);
    let shown = Shown {
        before: None,
        begins_at: at(0),
        ready: &ready,
        unhealthy: Some(("Nodes", "no")),
        receivers,
        milestones,
        now: at(900),
    };
    note(&mut next, &shown);
    assert!(next.notifications.is_empty());
    let mut next = plan(PlanPhase::Completed, "Completed", vec![wave("all", 1, Some(1))]);
    note_plan(&ClusterUpgradePlanStatus::default(), &mut next, receivers, at(9));
    assert!(next.notifications.is_empty());
}

proptest! {
    #[test]
    fn whatever_an_upgrade_goes_through_each_event_is_notified_of_once_and_a_second_look_adds_nothing(
        looks in prop::collection::vec((0_usize..7, 0_i64..300, any::<bool>()), 1..20),
    ) {
        let records = [
            record(UpgradePhase::Pending),
            upgrading(&[]),
            upgrading(&["Begun"]),
            upgrading(&["Begun", "Head"]),
            upgrading(&["Begun", "Head", "Rest"]),
            record(UpgradePhase::Completed),
            failed(),
        ];
        let mut before: Option<UpgradeRecord> = None;
        let mut minute = 0;
        for (which, later, is_healthy) in looks {
            minute += later;
            let unhealthy = (!is_healthy).then_some("no");
            let next = records[which].clone();
            let (_, known) = noted(before.as_ref(), next.clone(), minute, unhealthy);
            let mut events: Vec<_> = known.notifications.iter().map(|one| one.event).collect();
            let (added, _) = noted(Some(&known), next, minute, unhealthy);
            prop_assert!(added.is_empty(), "{added:?}");
            events.sort();
            let all = events.len();
            events.dedup();
            prop_assert_eq!(all, events.len());
            before = Some(known);
        }
    }
}
