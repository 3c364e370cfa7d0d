//! The delivery of notifications: at least once each, in the order in which they were added, until a day has passed.

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{Delivery, DeliveryState, MAX_DELIVERY_ERROR, Receiver};

use super::{bounded, is_waiting, messages::Entry};

/// How long after its time a notification is given up.
pub const GIVE_UP_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// How long after the first failed attempt a notification is tried again; after each further one, twice as long.
pub const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(30);
/// How long it waits at least, whatever the receiver asks for.
pub const SHORTEST_RETRY: SignedDuration = SignedDuration::from_secs(1);
/// How long it waits at most, whatever the receiver asks for.
pub const LAST_RETRY: SignedDuration = SignedDuration::from_mins(30);

/// What is next for the notifications of an object, for one receiver.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<'a> {
    /// All of them are delivered or given up.
    Nothing,
    /// The first one is tried again then.
    At(Timestamp),
    /// This one is to be delivered now.
    Due(Entry<'a>),
    /// This one was not delivered within a day.
    Expired(Entry<'a>),
}

/// Decides what is next. A notification waits for those before it.
pub fn next<'a>(entries: &[Entry<'a>], receiver: Receiver, now: Timestamp) -> Next<'a> {
    let waiting = entries.iter().find_map(|entry| {
        let mut of_receiver = entry.deliveries().iter().filter(|one| one.receiver == receiver);
        of_receiver.find(|delivery| is_waiting(delivery)).map(|delivery| (*entry, delivery))
    });
    let Some((entry, delivery)) = waiting else { return Next::Nothing };
    let until = entry.time().saturating_add(GIVE_UP_AFTER).unwrap_or(Timestamp::MAX);
    if until <= now {
        return Next::Expired(entry);
    }
    // A later time was noted by a clock that was stepped back since.
    let last = now.saturating_add(LAST_RETRY).unwrap_or(Timestamp::MAX);
    let retry = delivery.retry_time.as_ref().map(|time| time.0);
    match retry.filter(|at| *at > now && *at <= last) {
        Some(at) => Next::At(at.min(until)),
        None => Next::Due(entry),
    }
}

/// What has become of an attempt to deliver a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The receiver has it.
    Delivered,
    /// It may be delivered later.
    Failed {
        /// Why, without secrets.
        why: String,
        /// When the receiver asks for it again.
        after: Option<SignedDuration>,
    },
    /// The receiver takes fewer messages at a time: this one has not failed.
    Limited {
        /// Why, without secrets.
        why: String,
        /// When the receiver asks for it again.
        after: Option<SignedDuration>,
    },
    /// It is given up.
    GivenUp {
        /// Why, without secrets.
        why: String,
    },
}

impl Attempt {
    /// What an answer means. `words` is what the receiver has answered, if that is known to have no secrets.
    pub fn of_answer(status: u16, retry_after: Option<&str>, words: &str, now: Timestamp) -> Self {
        let why = match words {
            "" => format!("HTTP {status}"),
            words => format!("HTTP {status}: {words}"),
        };
        match status {
            200..=299 => Self::Delivered,
            300..=399 => {
                Self::Failed { why: format!("{why}: redirects are not followed"), after: None }
            }
            429 => Self::Limited { why, after: retry_after.and_then(|of| seconds(of, now)) },
            // The message is wrong, or its receiver is gone for good. Of the others, an operator may mend the cause.
            400 | 410 | 413 | 415 | 422 => Self::GivenUp { why },
            _ => Self::Failed { why, after: retry_after.and_then(|of| seconds(of, now)) },
        }
    }
}

/// The time of a header Retry-After: seconds, or a date.
fn seconds(header: &str, now: Timestamp) -> Option<SignedDuration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<u32>() {
        return Some(SignedDuration::from_secs(seconds.into()));
    }
    let at = rfc2822::parse(header).ok()?.timestamp();
    Some(at.duration_since(now).max(SignedDuration::ZERO))
}

/// How long a receiver is spared after so many failed attempts in a row, unless it asks for another time.
pub fn back_off(failed_attempts: i32, after: Option<SignedDuration>) -> SignedDuration {
    let doublings = u32::try_from(failed_attempts.saturating_sub(1)).unwrap_or_default();
    let wait = FIRST_RETRY.saturating_mul(2_i32.saturating_pow(doublings.min(16)));
    after.unwrap_or(wait).clamp(SHORTEST_RETRY, LAST_RETRY)
}

/// Notes an attempt.
pub fn mark(delivery: &mut Delivery, attempt: &Attempt, now: Timestamp) {
    delivery.retry_time = None;
    match attempt {
        Attempt::Delivered => {
            delivery.state = DeliveryState::Sent;
            delivery.last_error.clear();
        }
        Attempt::Failed { why, after } => {
            delivery.failed_attempts = delivery.failed_attempts.saturating_add(1);
            put_off(delivery, why, *after, now);
        }
        Attempt::Limited { why, after } => put_off(delivery, why, *after, now),
        Attempt::GivenUp { why } => {
            delivery.state = DeliveryState::Failed;
            delivery.last_error = bounded(why, MAX_DELIVERY_ERROR);
        }
    }
}

fn put_off(delivery: &mut Delivery, why: &str, after: Option<SignedDuration>, now: Timestamp) {
    delivery.last_error = bounded(why, MAX_DELIVERY_ERROR);
    let at = now.saturating_add(back_off(delivery.failed_attempts, after));
    delivery.retry_time = at.ok().map(Time);
}

/// Why a notification is given up after a day.
pub fn expired(delivery: &Delivery) -> Attempt {
    let hours = GIVE_UP_AFTER.as_hours();
    let why = match &*delivery.last_error {
        "" => format!("not delivered within {hours} h"),
        last => format!("not delivered within {hours} h: {last}"),
    };
    Attempt::GivenUp { why }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
