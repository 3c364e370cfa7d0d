//! The part of k8sd that has it issue the certificates of its node again (`docs/facts/k8sd.md#certificates`).
//!
//! ```text
//! Pending --begun--> Running --issued--> Done
//!    ^                 | |
//!    '-- refused ------' '-- no answer --> Running, and the next attempt begins a minute later at the earliest
//! ```
//!
//! Each attempt asks for a new plan: what an earlier one has issued is replaced. So an attempt that was interrupted, by
//! a crash too, counts as one without an answer, and another one follows.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{K8sdRefresh, PartState, PartStatus};

use super::k8sd::{Attempts, Request, after, attempt_failed, attempt_lost, done};

/// How long an attempt without an answer may still write certificates on its node, in seconds: longer than a call may
/// take. Two attempts at once could mix the certificate of one with the key of the other.
const LOST_SECONDS: i64 = 60;
/// Attempts follow one another ever later. Each is one call, whose own deadline ends it.
const ATTEMPTS: Attempts = Attempts { limit: None, repeat_at_once: false };

/// Why an attempt has issued no certificates, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatesFailure {
    /// The reason.
    pub why: String,
    /// What became of the request.
    pub request: Request,
}

/// Whether the next call of a part that has not ended begins an attempt.
pub fn begins_attempt(part: &PartStatus) -> bool {
    part.state == PartState::Pending || part.next_call_at.is_some()
}

/// The state of the part after an attempt, which has issued certificates that expire at a time.
pub fn after_certificates(
    part: &PartStatus,
    issued: Result<Timestamp, CertificatesFailure>,
    now: Timestamp,
) -> PartStatus {
    let CertificatesFailure { why, request } = match issued {
        Ok(expires) => {
            let refresh = part.refresh.clone().unwrap_or_default();
            let refresh = K8sdRefresh { certificates_expire_at: Some(Time(expires)), ..refresh };
            return done(&PartStatus { refresh: Some(refresh), ..part.clone() }, now);
        }
        Err(failure) => failure,
    };
    match request {
        Request::NotSent | Request::Refused => attempt_failed(part, &why, ATTEMPTS, now),
        Request::Unknown => {
            let lost = attempt_lost(part, &why, now);
            let next_call_at = lost.next_call_at.clone().max(after(now, LOST_SECONDS));
            PartStatus { next_call_at, ..lost }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::k8sd::attempt_begun;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failure(request: Request) -> Result<Timestamp, CertificatesFailure> {
        Err(CertificatesFailure { why: "invalid token".into(), request })
    }

    /// The state after an attempt at a time.
    fn attempt(part: &PartStatus, request: Option<Request>, now: i64) -> PartStatus {
        let begun = attempt_begun(part, at(now));
        assert!(!begins_attempt(&begun));
        after_certificates(&begun, request.map_or(Ok(at(now + 3600)), failure), at(now))
    }

    fn next_in(part: &PartStatus, now: i64) -> i64 {
        part.next_call_at.as_ref().map_or(0, |next| next.0.as_second() - now)
    }

    #[test]
    fn issued_certificates_end_the_part_and_their_expiry_is_kept() {
        let part = attempt(&PartStatus::default(), None, 5);
        assert_eq!((part.state, part.finished_at.clone()), (PartState::Done, Some(Time(at(5)))));
        assert_eq!(part.refresh.unwrap().certificates_expire_at, Some(Time(at(3605))));
    }

    #[test]
    fn an_attempt_that_was_refused_is_repeated_at_once_and_then_ever_later() {
        let mut part = PartStatus::default();
        let mut delays = Vec::new();
        for _ in 0..10 {
            part = attempt(&part, Some(Request::Refused), 0);
            assert_eq!(part.state, PartState::Pending, "it can be stopped");
            delays.push(next_in(&part, 0));
        }
        assert_eq!(delays, [0, 5, 10, 20, 40, 80, 160, 320, 600, 600]);
        let refresh = part.refresh.unwrap();
        assert_eq!((refresh.failed_attempts, &*refresh.last_failure), (10, "invalid token"));
    }

    #[test]
    fn an_attempt_without_an_answer_may_still_run() {
        let mut part = PartStatus::default();
        let mut delays = Vec::new();
        for _ in 0..8 {
            part = attempt(&part, Some(Request::Unknown), 0);
            assert_eq!(part.state, PartState::Running, "it cannot be stopped");
            assert!(begins_attempt(&part));
            delays.push(next_in(&part, 0));
        }
        assert_eq!(delays, [60, 60, 60, 60, 60, 80, 160, 320]);
    }

    proptest! {
        #[test]
        fn every_attempt_counts_and_only_a_success_ends_the_part(
            outcomes in prop::collection::vec(0..4_u8, 1..30),
        ) {
            let mut part = PartStatus::default();
            let mut failed = 0;
            for (now, outcome) in (0..).zip(outcomes) {
                let request = match outcome {
                    0 => None,
                    1 => Some(Request::NotSent),
                    2 => Some(Request::Refused),
                    _ => Some(Request::Unknown),
                };
                part = attempt(&part, request, now);
                failed += i32::from(request.is_some());
                let refresh = part.refresh.clone().unwrap();
                prop_assert_eq!(refresh.failed_attempts, failed);
                prop_assert_eq!(part.state.has_ended(), request.is_none());
                prop_assert_eq!(refresh.certificates_expire_at.is_some(), request.is_none());
                prop_assert!(next_in(&part, now) <= 600);
                if request.is_none() {
                    return Ok(());
                }
            }
        }
    }
}
