use proptest::prelude::*;

use super::*;

/// A platform with two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    first: Done,
    second: Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Yes,
    No,
    Error,
}

fn progress(done: Done, write: &'static str) -> Progress<&'static str> {
    match done {
        Done::Yes => Progress::Done,
        Done::No => Progress::NotYet { why: "it waits".into(), writes: vec![write] },
        Done::Error => Progress::error("it is refused"),
    }
}

const STEPS: &[Step<Site, &'static str>] = &[
    Step { name: "First", progress: |site| progress(site.first, "first") },
    Step { name: "Second", progress: |site| progress(site.second, "second") },
];

const SITE: Site = Site { first: Done::No, second: Done::No };

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(minute * 60).unwrap()
}

fn version(text: &str) -> KubernetesVersion {
    text.parse().unwrap()
}

fn request() -> Request {
    Request {
        version: version("v1.36.0"),
        start_at: Some(at(100)),
        start_within: Some(SignedDuration::from_mins(120)),
        stops: false,
        by: None,
        generation: 1,
        is_for_another: false,
    }
}

fn facts(site: &Site, minute: i64) -> Facts<'_, Site, &'static str> {
    Facts {
        current: Some(version("v1.35.0")),
        is_current: false,
        lacks_version: true,
        is_stopping: false,
        commenced: None,
        ended: None,
        invalid: None,
        preparations: Preparations::Due(&[]),
        steps: STEPS,
        stop: |site| progress(site.second, "stop"),
        known: site,
        now: at(minute),
    }
}

/// The look at a minute, after one at the beginning.
fn looked(
    site: Site,
    minute: i64,
    change: impl Fn(&mut Request, &mut Facts<'_, Site, &'static str>),
) -> Looked<&'static str> {
    let before = look(&[], &request(), &facts(&SITE, 0)).history;
    let (mut request, mut facts) = (request(), facts(&site, minute));
    change(&mut request, &mut facts);
    look(&before, &request, &facts)
}

fn shown<'a>(looked: &'a Looked<&'static str>) -> (UpgradePhase, &'a str) {
    (looked.history[0].phase, &looked.ready.reason)
}

#[test]
fn an_upgrade_waits_for_its_time_and_is_looked_at_then() {
    let first = looked(SITE, 99, |_, _| {});
    assert_eq!(shown(&first), (UpgradePhase::Pending, "Scheduled"));
    assert_eq!((first.again, &*first.writes), (Some(at(100)), &[][..]));
    assert_eq!(first.history[0].preceding_version, Some(version("v1.35.0")));
    let begun = looked(SITE, 100, |_, _| {});
    assert_eq!(shown(&begun), (UpgradePhase::Upgrading, "StepInProgress"));
    assert_eq!(begun.writes, ["first"]);
    assert_eq!(begun.ready.message, "First: it waits");
    assert_eq!(begun.history[0].start_time, Some(Time(at(100))));
}

#[test]
fn an_upgrade_without_a_time_begins_at_once() {
    let begun = look(&[], &Request { start_at: None, ..request() }, &facts(&SITE, 7));
    assert_eq!(shown(&begun), (UpgradePhase::Upgrading, "StepInProgress"));
}

#[test]
fn an_upgrade_that_did_not_begin_in_time_has_failed() {
    let late = looked(SITE, 220, |_, _| {});
    assert_eq!(shown(&late), (UpgradePhase::Failed, "NotBegunInTime"));
    assert!(late.writes.is_empty());
    let invalid = looked(SITE, 220, |_, facts| facts.invalid = Some(("Bad", "no".into())));
    assert!(invalid.ready.message.contains("because no. Nothing was changed"));
    let in_time = looked(SITE, 219, |_, _| {});
    assert_eq!(in_time.history[0].phase, UpgradePhase::Upgrading);
    let for_ever = looked(SITE, 9999, |request, _| request.start_within = None);
    assert_eq!(for_ever.history[0].phase, UpgradePhase::Upgrading);
    let commenced = look(
        &in_time.history,
        &request(),
        &Facts { commenced: Some(at(219)), ..facts(&SITE, 9999) },
    );
    assert_eq!(commenced.history[0].phase, UpgradePhase::Upgrading, "it is finished");
}

#[test]
fn an_upgrade_passes_over_its_preparations_once_it_is_under_way() {
    const PREPARATIONS: &[Step<Site, &str>] =
        &[Step { name: "Preparation", progress: |_| Progress::waits("for another client") }];
    let waiting = looked(SITE, 100, |_, facts| {
        facts.preparations = Preparations::Due(PREPARATIONS);
    });
    assert_eq!(waiting.ready.message, "Preparation: for another client");
    let preparations = Preparations::Behind(PREPARATIONS);
    let begun = look(&waiting.history, &request(), &Facts { preparations, ..facts(&SITE, 101) });
    assert_eq!(begun.ready.message, "First: it waits");
    let steps: Vec<_> = begun.history[0].conditions.iter().map(|step| &*step.type_).collect();
    assert_eq!(steps, ["First"], "what was not done is not shown");
}

#[test]
fn an_upgrade_that_is_invalid_does_not_begin_and_shows_why() {
    for minute in [50, 150] {
        let bad = looked(SITE, minute, |_, facts| {
            facts.invalid = Some(("VersionNotReachable", "it cannot go back".into()));
        });
        assert_eq!(shown(&bad), (UpgradePhase::Pending, "VersionNotReachable"));
        assert!(bad.writes.is_empty());
    }
}

#[test]
fn a_cluster_that_has_the_version_is_completed_without_a_step() {
    let done = looked(SITE, 100, |_, facts| facts.is_current = true);
    assert_eq!(shown(&done), (UpgradePhase::Completed, "Completed"));
    assert!(done.ready.is_ready && done.history[0].start_time.is_none());
}

#[test]
fn each_step_is_worked_on_when_those_before_it_are_done() {
    let (yes, no, error) = (Done::Yes, Done::No, Done::Error);
    let cases = [
        ((no, no), "StepInProgress", vec!["first"]),
        ((error, yes), "StepError", vec![]),
        ((yes, no), "StepInProgress", vec!["second"]),
        ((yes, error), "StepError", vec![]),
        ((yes, yes), "Completed", vec![]),
    ];
    for ((first, second), reason, writes) in cases {
        let seen = looked(Site { first, second }, 100, |_, _| {});
        assert_eq!((&*seen.ready.reason, seen.writes), (reason, writes));
    }
}

#[test]
fn a_step_that_does_not_stand_any_more_is_worked_on_again() {
    let ahead = Site { first: Done::Yes, second: Done::No };
    let before = looked(ahead, 100, |_, _| {}).history;
    assert!(before[0].conditions[1].complete_time.is_some(), "the newest comes first");
    let after = look(&before, &request(), &facts(&SITE, 101));
    let step = after.history[0].conditions.iter().find(|step| step.type_ == "First").unwrap();
    assert_eq!((&*step.status, &step.complete_time), ("False", &None));
    assert_eq!(step.start_time, Time(at(100)), "when it was begun stays");
    assert_eq!(after.writes, ["first"]);
}

#[test]
fn an_upgrade_that_has_not_begun_is_stopped_at_once() {
    let stopped = looked(SITE, 50, |request, _| request.stops = true);
    assert_eq!(shown(&stopped), (UpgradePhase::Failed, "Cancelled"));
    let never = look(&[], &Request { stops: true, ..request() }, &facts(&SITE, 0));
    assert_eq!(shown(&never), (UpgradePhase::Failed, "Cancelled"), "it has ended, too");
}

#[test]
fn an_upgrade_that_has_begun_is_stopped_by_its_platform() {
    let stopping = |site| {
        let before = looked(SITE, 100, |_, _| {}).history;
        let request = Request { stops: true, generation: 2, ..request() };
        look(&before, &request, &Facts { commenced: Some(at(100)), ..facts(&site, 105) })
    };
    let under_way = stopping(SITE);
    assert_eq!(shown(&under_way), (UpgradePhase::Upgrading, "Cancelling"));
    assert_eq!(under_way.writes, ["stop"]);
    let ended = stopping(Site { second: Done::Yes, ..SITE });
    assert_eq!(shown(&ended), (UpgradePhase::Failed, "Cancelled"));
}

#[test]
fn an_upgrade_that_is_requested_again_while_it_is_stopped_begins_after_that() {
    let begun = looked(SITE, 100, |_, _| {}).history;
    let stopping = Request { stops: true, generation: 2, ..request() };
    let commenced = |site, minute| Facts { commenced: Some(at(100)), ..facts(site, minute) };
    let before = look(&begun, &stopping, &commenced(&SITE, 101)).history;
    let again = Request { generation: 3, start_at: None, ..request() };
    let still = look(&before, &again, &commenced(&SITE, 102));
    assert_eq!(shown(&still), (UpgradePhase::Upgrading, "Cancelling"));
    let stopped = Site { second: Done::Yes, ..SITE };
    let ended = look(&still.history, &again, &commenced(&stopped, 103));
    assert_eq!(shown(&ended), (UpgradePhase::Failed, "Cancelled"));
    let next = look(&ended.history, &again, &facts(&SITE, 104));
    assert_eq!(shown(&next), (UpgradePhase::Upgrading, "StepInProgress"));
}

#[test]
fn an_upgrade_that_is_requested_while_another_client_stops_it_begins_after_that() {
    let begun = looked(SITE, 100, |_, _| {}).history;
    let again = Request { generation: 2, start_at: None, ..request() };
    let stopping = Facts { commenced: Some(at(100)), is_stopping: true, ..facts(&SITE, 101) };
    let before = look(&begun, &again, &stopping).history;
    let ended = Some(Ended { reason: "TaskAborted", message: "it was stopped".into() });
    let stopped = Facts { ended, ..Facts { now: at(102), ..stopping } };
    let failed = look(&before, &again, &stopped);
    assert_eq!(shown(&failed), (UpgradePhase::Failed, "TaskAborted"));
    let next = look(&failed.history, &again, &facts(&SITE, 103));
    assert_eq!(shown(&next), (UpgradePhase::Upgrading, "StepInProgress"));
}

#[test]
fn a_failed_upgrade_begins_again_only_when_it_is_requested_again() {
    let mut failed = looked(SITE, 220, |_, _| {}).history;
    let notification = |receiver_state: &str| {
        serde_json::json!({
            "event": "Failed", "time": at(220), "phase": "Failed", "reason": "", "message": "No.",
            "generation": 1, "deliveries": [{"receiver": "Slack", "state": receiver_state}],
        })
    };
    let notifications = serde_json::json!([notification("Sent"), notification("Waiting")]);
    failed[0].notifications = serde_json::from_value(notifications).unwrap();
    let same = look(&failed, &request(), &facts(&SITE, 300));
    assert_eq!(shown(&same), (UpgradePhase::Failed, "NotBegunInTime"));
    let later = Request { generation: 2, start_at: None, ..request() };
    let again = look(&failed, &later, &Facts { current: None, ..facts(&SITE, 300) });
    assert_eq!(shown(&again), (UpgradePhase::Upgrading, "StepInProgress"));
    assert_eq!(again.history.len(), 1);
    assert_eq!(again.history[0].preceding_version, Some(version("v1.35.0")), "it is kept");
    let kept: Vec<_> = again.history[0].notifications.iter().map(|one| one.earlier).collect();
    assert_eq!(kept, [true], "what was not delivered is kept");
}

#[test]
fn a_completed_upgrade_stays_completed_while_the_cluster_has_its_version() {
    let done = looked(Site { first: Done::Yes, second: Done::Yes }, 100, |_, _| {}).history;
    let later = Request { generation: 5, ..request() };
    let has_it = |minute| Facts { is_current: true, lacks_version: false, ..facts(&SITE, minute) };
    let same = look(&done, &later, &has_it(300));
    assert_eq!(shown(&same), (UpgradePhase::Completed, "Completed"));
    let changed = look(&same.history, &later, &facts(&SITE, 150));
    assert_eq!(
        shown(&changed),
        (UpgradePhase::Completed, "Completed"),
        "nothing was requested since"
    );
    let unasked = look(&done, &request(), &facts(&SITE, 150));
    assert_eq!(shown(&unasked), (UpgradePhase::Completed, "Completed"));
    let other = look(&done, &later, &facts(&SITE, 150));
    assert_eq!(shown(&other), (UpgradePhase::Upgrading, "StepInProgress"), "it has another one");
}

#[test]
fn an_upgrade_that_was_commenced_before_its_record_was_written_is_under_way() {
    let waiting = looked(SITE, 99, |_, _| {}).history;
    let commenced = |minute| Facts { commenced: Some(at(100)), ..facts(&SITE, minute) };
    for minute in [101, 9999] {
        let seen = look(&waiting, &request(), &commenced(minute));
        assert_eq!(shown(&seen), (UpgradePhase::Upgrading, "StepInProgress"));
        assert_eq!(seen.history[0].start_time, Some(Time(at(100))));
    }
    let stops = Request { stops: true, generation: 2, ..request() };
    let stopping = look(&waiting, &stops, &commenced(101));
    assert_eq!(
        (shown(&stopping), &*stopping.writes),
        ((UpgradePhase::Upgrading, "Cancelling"), &["stop"][..])
    );
}

#[test]
fn an_upgrade_that_waits_can_be_put_off() {
    let waits = looked(SITE, 100, |_, _| {}).history;
    let later = Request { start_at: Some(at(500)), generation: 2, ..request() };
    let put_off = look(&waits, &later, &facts(&SITE, 110));
    assert_eq!(shown(&put_off), (UpgradePhase::Pending, "Scheduled"));
    assert_eq!((put_off.again, &*put_off.writes), (Some(at(500)), &[][..]));
    assert_eq!(put_off.history[0].start_time, None);
    let commenced = Facts { commenced: Some(at(100)), ..facts(&SITE, 110) };
    let goes_on = look(&waits, &later, &commenced);
    assert_eq!(goes_on.history[0].phase, UpgradePhase::Upgrading, "what was commenced is finished");
}

#[test]
fn a_record_of_another_version_keeps_who_has_requested_it() {
    let begun = looked(SITE, 100, |request, _| request.by = Some("jane".into())).history;
    let other =
        Request { by: Some("joe".into()), generation: 7, is_for_another: true, ..request() };
    let seen = look(&begun, &other, &Facts { commenced: Some(at(100)), ..facts(&SITE, 105) });
    assert_eq!(
        (seen.history[0].requested_by.as_deref(), seen.history[0].generation),
        (Some("jane"), 1)
    );
}

#[test]
fn an_upgrade_under_way_without_a_record_continues() {
    let lost = look(&[], &request(), &Facts { commenced: Some(at(90)), ..facts(&SITE, 95) });
    assert_eq!(lost.history[0].phase, UpgradePhase::Upgrading);
    assert_eq!(lost.history[0].start_time, Some(Time(at(90))));
}

#[test]
fn another_version_comes_after_the_one_under_way_and_replaces_one_that_waits() {
    let under_way = looked(SITE, 100, |_, _| {}).history;
    let newer = version("v1.37.0");
    assert_eq!(*version_at_work(&under_way, &newer, |_| true), version("v1.36.0"));
    assert_eq!(*version_at_work(&under_way, &newer, |_| false), newer, "it changes nothing yet");
    let waiting = looked(SITE, 50, |_, _| {}).history;
    assert_eq!(*version_at_work(&waiting, &newer, |_| true), newer);
    let next = look(&waiting, &Request { version: newer, ..request() }, &facts(&SITE, 60));
    assert_eq!(next.history.len(), 1, "what has not begun is not remembered");
    let done = looked(Site { first: Done::Yes, second: Done::Yes }, 100, |_, _| {}).history;
    let next =
        look(&done, &Request { version: version("v1.37.0"), ..request() }, &facts(&SITE, 200));
    let versions: Vec<String> =
        next.history.iter().map(|record| record.version.to_string()).collect();
    assert_eq!(versions, ["v1.37.0", "v1.36.0"], "the newest comes first");
}

#[test]
fn an_upgrade_that_its_platform_has_ended_has_failed() {
    let before = looked(SITE, 100, |_, _| {}).history;
    let ended = Ended { reason: "TaskAborted", message: "it was stopped".into() };
    let facts = Facts { commenced: Some(at(100)), ended: Some(ended), ..facts(&SITE, 105) };
    let seen = look(&before, &request(), &facts);
    assert_eq!(shown(&seen), (UpgradePhase::Failed, "TaskAborted"));
}

fn done() -> impl Strategy<Value = Done> {
    prop_oneof![Just(Done::Yes), Just(Done::No), Just(Done::Error)]
}

proptest! {
    /// Looks at any times with any facts: none writes before its time, after the end, or twice for the same.
    #[test]
    fn an_upgrade_begins_in_time_ends_once_and_rests(
        looks in prop::collection::vec((0_i64..400, done(), done(), any::<bool>(), 0_u8..20), 1..20),
        is_lost in prop::collection::vec(prop::bool::weighted(0.2), 20),
    ) {
        let mut minutes: Vec<i64> = looks.iter().map(|look| look.0).collect();
        minutes.sort_unstable();
        let mut history: Vec<UpgradeRecord> = Vec::new();
        let (mut commenced, mut generation) = (None, 1);
        for ((minute, (_, first, second, is_invalid, rare)), is_lost) in
            minutes.into_iter().zip(looks).zip(is_lost)
        {
            let site = Site { first, second };
            generation += i64::from(rare == 1);
            let request = Request { stops: rare == 0, generation, ..request() };
            let facts = Facts {
                commenced,
                invalid: is_invalid.then(|| ("Bad", "no".to_owned())),
                ..facts(&site, minute)
            };
            let was_commenced = commenced.is_some();
            let had_ended = history.first().is_some_and(|record| record.phase.has_ended());
            let seen = look(&history, &request, &facts);
            prop_assert!(seen.history.len() <= 1);
            let begins = !seen.writes.is_empty() && commenced.is_none();
            prop_assert!(!begins || (100..220).contains(&minute), "it begins in its time");
            prop_assert!(!begins || !request.stops, "what is stopped does not begin");
            if had_ended && history[0].generation == generation {
                prop_assert_eq!(&seen.history[0].phase, &history[0].phase, "the end stays");
                prop_assert!(seen.writes.is_empty() && seen.again.is_none());
            }
            prop_assert!(seen.again.is_none_or(|again| again > at(minute)), "it does not spin");
            // A request that came while the upgrade was stopped begins at the next look.
            if seen.history[0].generation == generation {
                let again = look(&seen.history, &request, &facts);
                prop_assert_eq!(&again.history, &seen.history, "the same look changes nothing");
            }
            if seen.writes.contains(&"first") {
                commenced = Some(at(minute));
            }
            let phase = seen.history[0].phase;
            prop_assert!(!was_commenced || phase != UpgradePhase::Pending);
            let late = seen.history[0].reason == "NotBegunInTime";
            prop_assert!(!(was_commenced && late), "what was commenced is not called unbegun");
            if !is_lost {
                history = seen.history;
            }
        }
    }
}
