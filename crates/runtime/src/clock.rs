//! The only source of time.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Reads the time: the system clock, or a simulated clock that follows tokio's (paused) clock.
///
/// Cheap to copy. All code that compares, stores or waits for a timestamp uses this clock, so
/// production and simulation run the same code.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    simulated: Option<Simulated>,
}

#[derive(Clone, Copy, Debug)]
struct Simulated {
    epoch: Timestamp,
    started: Instant,
    /// By how many seconds this clock is ahead of the others of its simulation.
    ahead: Option<&'static AtomicI64>,
}

impl Clock {
    /// The system clock.
    pub fn real() -> Self {
        Self { simulated: None }
    }

    /// A clock that starts at `epoch` and advances with tokio's clock.
    #[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
    pub fn simulated(epoch: Timestamp) -> Self {
        Self { simulated: Some(Simulated { epoch, started: Instant::now(), ahead: None }) }
    }

    /// The same simulated clock as one host sees it: it is `ahead` seconds ahead, and steps when
    /// that number changes. The system clock is not affected.
    #[must_use]
    pub fn stepped_by(self, ahead: &'static AtomicI64) -> Self {
        Self { simulated: self.simulated.map(|clock| Simulated { ahead: Some(ahead), ..clock }) }
    }

    /// The current time, in whole microseconds.
    #[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
    pub fn now(&self) -> Timestamp {
        match self.simulated {
            None => {
                let now = Timestamp::now();
                Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
            }
            Some(Simulated { epoch, started, ahead }) => {
                let elapsed = Instant::now().saturating_duration_since(started);
                let ahead = ahead.map_or(0, |seconds| seconds.load(Ordering::Relaxed));
                SignedDuration::try_from(elapsed)
                    .ok()
                    .and_then(|elapsed| elapsed.checked_add(SignedDuration::from_secs(ahead)))
                    .and_then(|elapsed| epoch.checked_add(elapsed).ok())
                    .unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// The current time, in whole seconds, as API objects store it.
    pub fn now_seconds(&self) -> Timestamp {
        let now = self.now();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Whether the clock is simulated.
    pub fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// The duration from now until `when`; zero if `when` is past.
    pub fn until(&self, when: Timestamp) -> Duration {
        Duration::try_from(when.duration_since(self.now())).unwrap_or(Duration::ZERO)
    }

    /// The duration since `when`; zero if `when` is in the future.
    pub fn elapsed(&self, when: Timestamp) -> Duration {
        Duration::try_from(self.now().duration_since(when)).unwrap_or(Duration::ZERO)
    }

    /// Waits until `when`.
    pub async fn sleep_until(&self, when: Timestamp) {
        tokio::time::sleep(self.until(when)).await;
    }
}

/// A monotonic instant for measuring waits; never stored or reported.
#[expect(clippy::disallowed_methods, reason = "the only module that reads the clock")]
pub fn instant() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_follows_the_paused_runtime() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::simulated(epoch);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(clock.now_seconds().to_string(), "2026-01-01T00:01:30Z");
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_of_one_clock_leaves_the_others_alone() {
        static AHEAD: AtomicI64 = AtomicI64::new(0);
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let stepped = clock.stepped_by(&AHEAD);
        assert_eq!(stepped.now(), clock.now());
        AHEAD.store(-90, Ordering::Relaxed);
        assert_eq!(clock.now().duration_since(stepped.now()).as_secs(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn sleeping_until_a_past_time_returns_at_once() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::simulated(epoch);
        clock.sleep_until("2025-01-01T00:00:00Z".parse().unwrap()).await;
        assert_eq!(clock.now_seconds(), epoch);
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_timestamp_has_elapsed_zero() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::simulated(epoch);
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert_eq!(clock.elapsed(epoch), Duration::from_secs(7));
        assert_eq!(clock.elapsed(Timestamp::MAX), Duration::ZERO);
        assert_eq!(clock.until(epoch), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_until_a_fraction_of_a_millisecond_does_not_end_early() {
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let when: Timestamp = "2026-01-01T00:00:01.000100Z".parse().unwrap();
        clock.sleep_until(when).await;
        assert!(clock.now() >= when);
    }

    #[test]
    fn real_time_is_in_whole_microseconds() {
        assert_eq!(Clock::real().now().subsec_nanosecond() % 1000, 0);
    }
}
