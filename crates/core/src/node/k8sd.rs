//! The part of k8sd: it has snapd refresh the snap of the node, and is asked until the change has ended
//! (`docs/facts/k8sd.md`).
//!
//! ```text
//! Pending --begun--> Running --accepted--> Running, with the id of the change --Done--> Done
//!    ^                  |                     |
//!    '--- delay --------'--- failed attempt --'
//! ```
//!
//! A refresh that fails is repeated for ever: snapd has restored the snap that was there before. Between two attempts
//! nothing runs on the node, and the update can be stopped. As long as the end of a change is not known, it may run.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    canonical::RefreshStatus,
    refit::{GoalOption, K8sdRefresh, PartState, PartStatus},
};

use super::parts::shown;

/// How often snapd's change is looked at, in seconds.
const POLL_SECONDS: i64 = 5;
/// Delay before the third attempt, in seconds; the second one follows at once. It doubles with each.
const FIRST_DELAY_SECONDS: i64 = 5;
/// Longest delay between two attempts, in seconds.
const LONGEST_DELAY_SECONDS: i64 = 600;
/// How often in a row snapd may not know a change until it counts as lost. snapd forgets old changes, and answers
/// like this for a moment while it restarts.
const UNKNOWN_CHANGES: i32 = 6;
/// How long k8sd may not answer looks at a change until that counts as a failure.
const RESTART: SignedDuration = SignedDuration::from_secs(30);
/// Longest delay between two looks at a change while k8sd does not answer, in seconds.
const LONGEST_POLL_SECONDS: i64 = 30;
/// Longest id of a change.
const ID_BYTES: usize = 64;
/// State of snapd's change that has succeeded.
const DONE: &str = "Done";
/// State of snapd's change that has failed.
const ERROR: &str = "Error";

/// What k8sd is asked next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum K8sdCall {
    /// To refresh the snap.
    Refresh(GoalOption),
    /// How far this change is.
    Status {
        /// Its id.
        change_id: String,
    },
}

/// The next call for a part that has begun: the status of the change, once there is one.
pub fn k8sd_call(part: &PartStatus, option: &GoalOption) -> K8sdCall {
    match part.refresh.as_ref().and_then(|refresh| refresh.change_id.clone()) {
        Some(change_id) => K8sdCall::Status { change_id },
        None => K8sdCall::Refresh(option.clone()),
    }
}

/// The state of the part that begins an attempt. It is written before the request: after a crash it is known that a
/// refresh may run.
pub fn attempt_begun(part: &PartStatus, now: Timestamp) -> PartStatus {
    let refresh = part.refresh.clone().unwrap_or_default();
    PartStatus {
        state: PartState::Running,
        started_at: part.started_at.clone().or(Some(Time(now))),
        next_call_at: None,
        refresh: Some(K8sdRefresh {
            change_id: None,
            silent_since: None,
            began_at: Some(Time(now)),
            ..refresh
        }),
        ..part.clone()
    }
}

/// The state of the part after k8sd has accepted a request. An empty id means that there was nothing to refresh.
pub fn after_refresh(part: &PartStatus, change_id: &str, now: Timestamp) -> PartStatus {
    if change_id.is_empty() {
        return done(part, now);
    }
    let is_valid =
        change_id.len() <= ID_BYTES && change_id.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_valid {
        return after_k8sd_failure(
            part,
            "k8sd answers an invalid change id",
            Request::Unknown,
            now,
        );
    }
    let refresh = part.refresh.clone().unwrap_or_default();
    PartStatus {
        failures: 0,
        message: format!("snapd refreshes the snap: change {change_id}"),
        next_call_at: after(now, POLL_SECONDS),
        refresh: Some(K8sdRefresh {
            change_id: Some(change_id.to_owned()),
            began_at: Some(Time(now)),
            ..refresh
        }),
        ..part.clone()
    }
}

/// How attempts follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// How long one may take; `None` for any time.
    pub limit: Option<SignedDuration>,
    /// One that has failed is repeated at once, each time.
    pub repeat_at_once: bool,
}

/// The state of the part after a look at the change.
pub fn after_status(
    part: &PartStatus,
    found: &RefreshStatus,
    attempts: Attempts,
    now: Timestamp,
) -> PartStatus {
    let RefreshStatus { status, completed, error_message } = found;
    let change = part.refresh.as_ref().and_then(|refresh| refresh.change_id.as_deref());
    let change = change.unwrap_or_default();
    match (*completed, status.as_str()) {
        (true, DONE) => done(part, now),
        (true, ERROR) => attempt_failed(part, error_message, attempts, now),
        (true, other) => {
            let why = format!("invalid refresh status: change {change} ended as {other:?}");
            attempt_failed(part, &why, attempts, now)
        }
        (false, "") => {
            let failures = part.failures.saturating_add(1);
            let why = format!("snapd does not know change {change}");
            if failures >= UNKNOWN_CHANGES {
                return attempt_lost(part, &why, now);
            }
            let next_call_at = after(now, POLL_SECONDS);
            PartStatus { failures, message: why, next_call_at, ..silent(part, now) }
        }
        (false, other) => {
            let began = part.refresh.as_ref().and_then(|refresh| refresh.began_at.as_ref());
            if let Some((began, limit)) = began.zip(attempts.limit)
                && now.duration_since(began.0) >= limit
            {
                let why = format!("change {change} has not ended within {} s", limit.as_secs());
                return attempt_lost(part, &why, now);
            }
            let refresh = part.refresh.clone();
            PartStatus {
                failures: 0,
                message: shown(&format!("snapd refreshes the snap: change {change} is {other:?}")),
                next_call_at: after(now, POLL_SECONDS),
                refresh: refresh.map(|refresh| K8sdRefresh { silent_since: None, ..refresh }),
                ..part.clone()
            }
        }
    }
}

/// What became of a request without a usable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// It was not sent.
    NotSent,
    /// k8sd has refused it: no change has begun.
    Refused,
    /// It may have begun a change all the same.
    Unknown,
}

/// The state of the part after a call without a usable answer. A refresh that has begun goes on meanwhile: k8sd
/// restarts with its snap.
pub fn after_k8sd_failure(
    part: &PartStatus,
    why: &str,
    request: Request,
    now: Timestamp,
) -> PartStatus {
    let failures = part.failures.saturating_add(1);
    let polls = part.refresh.as_ref().is_some_and(|refresh| refresh.change_id.is_some());
    let delay = delay_seconds(failures);
    let delay = if polls { delay.clamp(POLL_SECONDS, LONGEST_POLL_SECONDS) } else { delay };
    let state = match request {
        Request::Refused if !polls => PartState::Pending,
        Request::Refused | Request::NotSent | Request::Unknown => part.state,
    };
    let next_call_at = after(now, delay);
    let part = if polls { silent(part, now) } else { part.clone() };
    PartStatus { state, failures, message: shown(why), next_call_at, ..part }
}

/// Notes since when looks at a change have failed. The first one began when it was due.
fn silent(part: &PartStatus, now: Timestamp) -> PartStatus {
    let due = part.next_call_at.clone().filter(|due| due.0 <= now).unwrap_or(Time(now));
    let refresh = part
        .refresh
        .clone()
        .map(|refresh| K8sdRefresh { silent_since: refresh.silent_since.or(Some(due)), ..refresh });
    PartStatus { refresh, ..part.clone() }
}

/// Whether k8sd may not answer because it restarts: each refresh of the snap restarts it, and the kubelet.
pub(super) fn may_restart(part: &PartStatus, now: Timestamp) -> bool {
    let since = part.refresh.as_ref().and_then(|refresh| refresh.silent_since.as_ref());
    since.is_some_and(|since| now.duration_since(since.0) < RESTART)
}

pub(super) fn done(part: &PartStatus, now: Timestamp) -> PartStatus {
    PartStatus {
        state: PartState::Done,
        failures: 0,
        message: String::new(),
        next_call_at: None,
        finished_at: Some(Time(now)),
        ..part.clone()
    }
}

/// An attempt has failed, and nothing of it runs any more.
pub(super) fn attempt_failed(
    part: &PartStatus,
    why: &str,
    attempts: Attempts,
    now: Timestamp,
) -> PartStatus {
    let failed = PartStatus { state: PartState::Pending, ..attempt_lost(part, why, now) };
    if attempts.repeat_at_once {
        return PartStatus { next_call_at: None, ..failed };
    }
    failed
}

/// An attempt is given up, and may still run: until k8sd accepts another request, the machine counts as being
/// refreshed.
pub(super) fn attempt_lost(part: &PartStatus, why: &str, now: Timestamp) -> PartStatus {
    let refresh = part.refresh.clone().unwrap_or_default();
    let failed_attempts = refresh.failed_attempts.saturating_add(1);
    let why = shown(if why.is_empty() { "k8sd gives no reason" } else { why });
    PartStatus {
        failures: failed_attempts,
        message: why.clone(),
        next_call_at: after(now, delay_seconds(failed_attempts)),
        refresh: Some(K8sdRefresh {
            change_id: None,
            silent_since: None,
            failed_attempts,
            last_failed_at: Some(Time(now)),
            last_failure: why,
            ..refresh
        }),
        ..part.clone()
    }
}

/// The delay after this many failures in a row.
fn delay_seconds(failures: i32) -> i64 {
    match failures {
        ..=1 => 0,
        more => {
            let doubled = u32::try_from(more - 2).unwrap_or(0).min(10);
            (FIRST_DELAY_SECONDS << doubled).min(LONGEST_DELAY_SECONDS)
        }
    }
}

/// The time after a delay; `None` for now.
pub(super) fn after(now: Timestamp, seconds: i64) -> Option<Time> {
    let at = || now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    (seconds > 0).then(|| Time(at()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Attempts =
        Attempts { limit: Some(SignedDuration::from_hours(1)), repeat_at_once: false };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn running(change_id: &str) -> PartStatus {
        after_refresh(&attempt_begun(&PartStatus::default(), at(0)), change_id, at(0))
    }

    fn status(status: &str, completed: bool, error: &str) -> RefreshStatus {
        RefreshStatus { status: status.into(), completed, error_message: error.into() }
    }

    fn next_in(part: &PartStatus, now: i64) -> i64 {
        part.next_call_at.as_ref().map_or(0, |next| next.0.as_second() - now)
    }

    #[test]
    fn k8sd_is_asked_to_refresh_once_and_then_how_far_its_change_is() {
        let option = GoalOption::Revision("7".into());
        let begun = attempt_begun(&PartStatus::default(), at(0));
        assert_eq!(k8sd_call(&begun, &option), K8sdCall::Refresh(option.clone()));
        let accepted = after_refresh(&begun, "12", at(1));
        assert_eq!(k8sd_call(&accepted, &option), K8sdCall::Status { change_id: "12".into() });
        let polled = after_status(&accepted, &status("Doing", false, ""), LIMIT, at(6));
        assert_eq!(polled.state, PartState::Running);
        assert_eq!(next_in(&polled, 6), 5);
        let ended = after_status(&polled, &status("Done", true, ""), LIMIT, at(11));
        assert_eq!((ended.state, ended.finished_at), (PartState::Done, Some(Time(at(11)))));
    }

    #[test]
    fn a_refresh_with_nothing_to_do_is_done() {
        assert_eq!(running("").state, PartState::Done);
    }

    #[test]
    fn a_refresh_that_failed_is_repeated_at_once_and_then_ever_later() {
        let mut part = PartStatus::default();
        let mut delays = Vec::new();
        for attempt in 1..=10 {
            part = after_refresh(&attempt_begun(&part, at(0)), "1", at(0));
            part = after_status(&part, &status("Error", true, "no space left"), LIMIT, at(0));
            assert_eq!(part.state, PartState::Pending, "nothing runs on the node");
            let refresh = part.refresh.clone().unwrap();
            assert_eq!((refresh.failed_attempts, refresh.change_id), (attempt, None));
            assert_eq!(refresh.last_failure, "no space left");
            delays.push(next_in(&part, 0));
        }
        assert_eq!(delays, [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[test]
    fn a_k8sd_that_does_not_answer_may_restart_with_its_snap_for_half_a_minute() {
        let (mut part, mut second) = (running("3"), 0);
        let mut restarts = Vec::new();
        for _ in 0..6 {
            part = after_k8sd_failure(&part, "no route to it", Request::NotSent, at(second));
            restarts.push((second, may_restart(&part, at(second))));
            second += next_in(&part, second);
        }
        let expected = [(0, true), (5, true), (10, true), (20, true), (40, false), (70, false)];
        assert_eq!(restarts, expected);
        let answers = after_status(&part, &status("Doing", false, ""), LIMIT, at(80));
        let again = after_k8sd_failure(&answers, "no route to it", Request::NotSent, at(90));
        assert!(
            may_restart(&again, at(90)) && !may_restart(&again, at(115)),
            "from when it was due"
        );
        let refused = after_k8sd_failure(&PartStatus::default(), "no", Request::Refused, at(0));
        assert!(!may_restart(&refused, at(0)), "a request that is rejected fails at once");
    }

    #[test]
    fn a_change_that_ends_in_another_way_is_a_failed_attempt() {
        for other in ["Undone", "Hold", ""] {
            let ended = after_status(&running("3"), &status(other, true, ""), LIMIT, at(5));
            assert_eq!(ended.state, PartState::Pending);
            assert!(ended.message.starts_with("invalid refresh status"), "{}", ended.message);
        }
    }

    #[test]
    fn a_change_that_snapd_forgot_is_lost_after_some_looks() {
        let mut part = running("3");
        for look in 1..UNKNOWN_CHANGES {
            part = after_status(&part, &status("", false, ""), LIMIT, at(look.into()));
            assert_eq!((part.state, part.failures), (PartState::Running, look));
        }
        part = after_status(&part, &status("", false, ""), LIMIT, at(40));
        assert_eq!(part.state, PartState::Running, "it may still run");
        assert_eq!(part.refresh.clone().unwrap().change_id, None);
        assert!(part.message.contains("does not know change 3"), "{}", part.message);
    }

    #[test]
    fn a_change_without_end_is_given_up_and_tried_again() {
        let doing = status("Doing", false, "");
        let part = after_status(&running("3"), &doing, LIMIT, at(3599));
        assert_eq!(part.state, PartState::Running);
        let part = after_status(&part, &doing, LIMIT, at(3600));
        assert_eq!(part.state, PartState::Running, "it may still run");
        let option = GoalOption::Revision("7".into());
        assert_eq!(k8sd_call(&part, &option), K8sdCall::Refresh(option.clone()));
        assert!(part.message.contains("3600 s"), "{}", part.message);
    }

    #[test]
    fn k8sd_may_be_away_while_its_snap_is_refreshed() {
        let mut part = running("3");
        for _ in 0..100 {
            part = after_k8sd_failure(&part, "connection refused", Request::NotSent, at(0));
        }
        assert_eq!(part.state, PartState::Running);
        assert_eq!(part.refresh.clone().unwrap().change_id.as_deref(), Some("3"));
        assert_eq!(next_in(&part, 0), 30, "the end is seen soon after k8sd is back");
        assert_eq!(after_status(&part, &status("Doing", false, ""), LIMIT, at(9)).failures, 0);
    }

    #[test]
    fn requests_that_k8sd_rejects_are_repeated_ever_later() {
        let mut part = attempt_begun(&PartStatus::default(), at(0));
        let mut delays = Vec::new();
        for _ in 0..4 {
            part = after_k8sd_failure(&part, "invalid token", Request::Refused, at(0));
            assert_eq!(part.state, PartState::Pending, "it can be stopped");
            delays.push(next_in(&part, 0));
            part = attempt_begun(&part, at(0));
        }
        assert_eq!(delays, [0, 5, 10, 20]);
        assert_eq!(part.refresh.unwrap().failed_attempts, 0, "nothing was attempted");
    }

    #[test]
    fn a_refresh_whose_answer_was_lost_may_run() {
        let part = attempt_begun(&PartStatus::default(), at(0));
        let part = after_k8sd_failure(&part, "connection closed", Request::Unknown, at(0));
        assert_eq!(part.state, PartState::Running);
        let part = after_k8sd_failure(&part, "no proxy pod", Request::NotSent, at(5));
        assert_eq!(part.state, PartState::Running);
        assert_eq!(after_refresh(&part, "9", at(9)).refresh.unwrap().began_at, Some(Time(at(9))));
    }

    #[test]
    fn an_id_that_is_not_snapds_is_no_change() {
        for id in ["x".repeat(65), "1\n2".to_owned(), "../1".to_owned()] {
            let part = after_refresh(&attempt_begun(&PartStatus::default(), at(0)), &id, at(0));
            assert_eq!(part.refresh.unwrap().change_id, None);
        }
    }
}
