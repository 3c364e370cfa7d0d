use refit_kinds::refit::ClusterUpgrade;
use serde_json::json;

use super::*;
use crate::managed::notifications::messages::Outbox as _;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An upgrade with notifications at these seconds, the deliveries of which are these.
fn upgrade(notifications: &[(&str, i64, Delivery)]) -> ClusterUpgrade {
    let notifications: Vec<_> = notifications
        .iter()
        .map(|(event, second, delivery)| {
            json!({
                "event": event, "time": at(*second).to_string(), "phase": "Upgrading", "reason": "",
                "message": "It is so.", "generation": 1, "deliveries": [delivery],
            })
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "ClusterUpgrade",
        "metadata": {"name": "edge-1", "namespace": "edge", "uid": "u1"},
        "spec": {"version": "v1.36.0"},
        "status": {"history": [{
            "version": "v1.36.0", "phase": "Upgrading", "requestedTime": at(0).to_string(),
            "notifications": notifications,
        }]},
    }))
    .unwrap()
}

fn waiting() -> Delivery {
    Delivery::to(Receiver::Slack)
}

fn with(state: DeliveryState) -> Delivery {
    Delivery { state, ..waiting() }
}

fn retried(second: i64) -> Delivery {
    Delivery { failed_attempts: 1, retry_time: Some(Time(at(second))), ..waiting() }
}

const DAY: i64 = 24 * 3600;

#[test]
fn notifications_are_delivered_in_their_order_until_a_day_has_passed() {
    let shown = |upgrade: &ClusterUpgrade, second| {
        let entries = upgrade.entries();
        match next(&entries, Receiver::Slack, at(second)) {
            Next::Nothing => "nothing".to_owned(),
            Next::At(time) => format!("at {}", time.as_second()),
            Next::Due(entry) => format!("due {}", entry.event()),
            Next::Expired(entry) => format!("expired {}", entry.event()),
        }
    };
    let (sent, failed) = (with(DeliveryState::Sent), with(DeliveryState::Failed));
    let other = Delivery::to(Receiver::CloudEvents);
    for (first, second, now, wanted) in [
        (waiting(), waiting(), 10, "due Scheduled"),
        (sent.clone(), waiting(), 10, "due Started"),
        (failed, waiting(), 10, "due Started"),
        (other, waiting(), 10, "due Started"),
        (sent.clone(), sent.clone(), 10, "nothing"),
        (retried(40), waiting(), 10, "at 40"),
        (retried(40), waiting(), 40, "due Scheduled"),
        (retried(1810), waiting(), 10, "at 1810"),
        (retried(1811), waiting(), 10, "due Scheduled"),
        (retried(DAY + 9), waiting(), DAY - 10, "at 86400"),
        (retried(DAY + 99), waiting(), DAY, "expired Scheduled"),
        (sent, waiting(), DAY + 4, "due Started"),
    ] {
        let upgrade = upgrade(&[("Scheduled", 0, first), ("Started", 5, second)]);
        assert_eq!(shown(&upgrade, now), wanted, "{:?} at {now}", upgrade.status);
    }
}

#[test]
fn the_answer_of_a_receiver_decides_whether_it_is_tried_again() {
    let now = at(1_445_412_000);
    let failed = |why: &str, after: Option<i64>| Attempt::Failed {
        why: why.to_owned(),
        after: after.map(SignedDuration::from_secs),
    };
    let limited = |after: Option<i64>| Attempt::Limited {
        why: "HTTP 429".to_owned(),
        after: after.map(SignedDuration::from_secs),
    };
    let given_up = |why: &str| Attempt::GivenUp { why: why.to_owned() };
    for (status, retry_after, words, wanted) in [
        (200, None, "ok", Attempt::Delivered),
        (202, None, "", Attempt::Delivered),
        (204, Some("9"), "", Attempt::Delivered),
        (302, None, "", failed("HTTP 302: redirects are not followed", None)),
        (400, None, "invalid_payload", given_up("HTTP 400: invalid_payload")),
        (401, None, "", failed("HTTP 401", None)),
        (403, None, "invalid_token", failed("HTTP 403: invalid_token", None)),
        (404, Some("9"), "no_service", failed("HTTP 404: no_service", Some(9))),
        (410, Some("9"), "no_service", given_up("HTTP 410: no_service")),
        (413, None, "", given_up("HTTP 413")),
        (415, None, "", given_up("HTTP 415")),
        (422, None, "", given_up("HTTP 422")),
        (408, None, "", failed("HTTP 408", None)),
        (429, Some("120"), "", limited(Some(120))),
        (429, Some("Wed, 21 Oct 2015 07:28:00 GMT"), "", limited(Some(480))),
        (429, Some("Wed, 21 Oct 2009 07:28:00 GMT"), "", limited(Some(0))),
        (429, Some("soon"), "", limited(None)),
        (503, Some("7"), "", failed("HTTP 503", Some(7))),
        (500, None, "", failed("HTTP 500", None)),
    ] {
        assert_eq!(Attempt::of_answer(status, retry_after, words, now), wanted, "{status}");
    }
}

#[test]
fn a_receiver_is_tried_again_after_a_time_that_doubles_up_to_half_an_hour() {
    let mut delivery = waiting();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let failed = Attempt::Failed { why: "HTTP 503".into(), after: None };
        mark(&mut delivery, &failed, at(0));
        waits.push(delivery.retry_time.as_ref().unwrap().0.as_second());
    }
    assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]);
    assert_eq!((delivery.failed_attempts, &*delivery.last_error), (9, "HTTP 503"));
    for (after, wanted) in [(0, 1), (5, 5), (100, 100), (999_999, 1800)] {
        let after = Some(SignedDuration::from_secs(after));
        assert_eq!(back_off(1, after), SignedDuration::from_secs(wanted));
    }
    let limited =
        Attempt::Limited { why: "HTTP 429".into(), after: Some(SignedDuration::from_secs(7)) };
    mark(&mut delivery, &limited, at(1));
    assert_eq!((delivery.failed_attempts, &*delivery.last_error), (9, "HTTP 429"));
    assert_eq!(delivery.retry_time, Some(Time(at(8))));
    mark(&mut delivery, &Attempt::Delivered, at(1));
    assert_eq!(delivery.state, DeliveryState::Sent);
    assert_eq!((&*delivery.last_error, delivery.retry_time), ("", None));
}

#[test]
fn a_notification_that_is_given_up_shows_why() {
    let mut delivery = retried(40);
    delivery.last_error = "HTTP 503".into();
    let attempt = expired(&delivery);
    mark(&mut delivery, &attempt, at(DAY));
    assert_eq!(delivery.state, DeliveryState::Failed);
    assert_eq!(delivery.last_error, "not delivered within 24 h: HTTP 503");
    assert_eq!(expired(&waiting()), Attempt::GivenUp { why: "not delivered within 24 h".into() });
    let long = Attempt::GivenUp { why: "x".repeat(900) };
    mark(&mut delivery, &long, at(DAY));
    assert_eq!(delivery.last_error.len(), MAX_DELIVERY_ERROR);
}
