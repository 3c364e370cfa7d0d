//! Leader election, and the fence that the leader's writes pass (`docs/adr/0004`).
//!
//! A Lease object names the leader. No replica trusts another machine's clock: a replica takes over
//! once it has seen the Lease unchanged for the Lease's duration by its own clock. The leader
//! counts from the moment at which it *sent* its last successful renewal, so its own leadership
//! expires first.
//!
//! [`Leadership`] is checked at the moment of each write: [`ClientStack::fenced`] adds it to a
//! client stack. A write begins only before the renew deadline, and is dropped before another
//! replica can take the Lease.
//!
//! [`ClientStack::fenced`]: crate::client::ClientStack::fenced

mod elect;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};

use crate::{Clock, clock::instant};

pub use elect::{LeaseError, elect, release};

/// How long before the Lease expires a write must be over: clocks of two machines may run at
/// slightly different speeds.
const GRACE: Duration = Duration::from_secs(1);

/// The Lease of this replica, and how quickly another replica takes over. The defaults are those of
/// Kubernetes' own controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this replica. Two processes must never use the same identity, not even one after
    /// the other.
    pub identity: String,
    /// How long the Lease is valid without a renewal.
    pub duration: Duration,
    /// How long the leader continues without a successful renewal; shorter than the duration.
    pub renew_deadline: Duration,
    /// How often the leader renews the Lease, and how often other replicas read it.
    pub retry_period: Duration,
}

impl LeaseSettings {
    /// The default durations for a replica with this identity.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// What is wrong with the durations; `None` if they keep two replicas apart.
    pub fn problem(&self) -> Option<String> {
        let Self { duration, renew_deadline, retry_period, .. } = self;
        let seconds = Duration::as_secs_f64;
        if self.identity.is_empty() {
            return Some("the identity of this replica is empty".to_owned());
        }
        if *renew_deadline + 2 * GRACE > *duration {
            return Some(format!(
                "the renew deadline ({} s) must be at least {} s shorter than the lease duration \
                 ({} s): the last write must finish before another replica can lead",
                seconds(renew_deadline),
                seconds(&(2 * GRACE)),
                seconds(duration),
            ));
        }
        if retry_period.is_zero() || *retry_period * 2 > *renew_deadline {
            return Some(format!(
                "the retry period ({} s) must be more than 0 and at most half of the renew \
                 deadline ({} s): one failed renewal must not end leadership",
                seconds(retry_period),
                seconds(renew_deadline),
            ));
        }
        None
    }
}

/// A write was rejected because this replica does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not hold the Lease, or not for long enough: only the leader writes")]
pub struct NotLeader;

/// Whether a call failed because this replica does not lead.
pub fn is_fenced(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(source) if source.is::<NotLeader>())
}

/// Whether this replica leads. Checked at each write and shared by the whole process.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    state: Mutex<State>,
    /// Counts changes, to wake waiting tasks.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    held: Held,
    resigned: bool,
    /// Number of writes in flight.
    passes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Held {
    /// This is the only replica.
    Alone,
    No,
    Since(Renewal),
}

/// A renewal that the API server accepted.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    /// When it was sent, by the monotonic clock and by the wall clock, which also advances while
    /// the machine sleeps. The larger elapsed time counts.
    sent: Instant,
    sent_at: Timestamp,
    renew_deadline: Duration,
    duration: Duration,
}

impl Leadership {
    /// Leadership of a replica that must win the Lease first.
    pub fn candidate(clock: Clock) -> Self {
        Self::of(clock, Held::No)
    }

    /// Leadership of a single-replica process: always held.
    pub fn alone(clock: Clock) -> Self {
        Self::of(clock, Held::Alone)
    }

    fn of(clock: Clock, held: Held) -> Self {
        Self(Arc::new(Shared {
            clock,
            state: Mutex::new(State { held, resigned: false, passes: 0 }),
            changed: watch::channel(0).0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// How long ago a renewal was sent, by the clock that has advanced further.
    fn age(&self, renewal: &Renewal) -> Duration {
        let forward = instant().saturating_duration_since(renewal.sent);
        forward.max(self.0.clock.elapsed(renewal.sent_at))
    }

    /// Whether a write may begin now.
    pub fn is_held(&self) -> bool {
        self.left().is_some()
    }

    /// How much longer writes may begin; `None` if they may not.
    fn left(&self) -> Option<Duration> {
        self.left_of(&self.lock())
    }

    fn left_of(&self, state: &State) -> Option<Duration> {
        match state.held {
            _ if state.resigned => None,
            Held::No => None,
            Held::Alone => Some(Duration::MAX),
            Held::Since(renewal) => renewal
                .renew_deadline
                .checked_sub(self.age(&renewal))
                .filter(|left| !left.is_zero()),
        }
    }

    /// Permits one write to begin; the pass carries the write's deadline.
    pub fn pass(&self) -> Result<Pass, NotLeader> {
        // One lock for both checks: a concurrent `resign` either sees this write, or the write does
        // not begin.
        let mut state = self.lock();
        self.left_of(&state).ok_or(NotLeader)?;
        let within = match state.held {
            Held::No => return Err(NotLeader),
            Held::Alone => Duration::MAX,
            Held::Since(renewal) => (renewal.duration.saturating_sub(GRACE))
                .checked_sub(self.age(&renewal))
                .ok_or(NotLeader)?,
        };
        state.passes += 1;
        drop(state);
        Ok(Pass { leadership: self.clone(), within })
    }

    /// Waits until this replica leads.
    pub async fn held(&self) {
        let mut changed = self.0.changed.subscribe();
        while !self.is_held() {
            // This value owns the sender, so the channel stays open during the wait.
            let _ = changed.changed().await;
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&self) {
        let mut changed = self.0.changed.subscribe();
        while let Some(left) = self.left() {
            tokio::select! {
                biased;
                _ = changed.changed() => {}
                () = tokio::time::sleep(left), if left < Duration::MAX => {}
            }
        }
    }

    /// Permits no more writes, permanently; writes in flight continue.
    pub fn resign(&self) {
        self.change(|state| state.resigned = true);
    }

    /// Waits until no write is in flight.
    pub async fn idle(&self) {
        let mut changed = self.0.changed.subscribe();
        while self.lock().passes > 0 {
            let _ = changed.changed().await;
        }
    }

    fn renewed(&self, sent: Instant, sent_at: Timestamp, settings: &LeaseSettings) {
        self.change(|state| {
            state.held = Held::Since(Renewal {
                sent,
                sent_at,
                renew_deadline: settings.renew_deadline,
                duration: settings.duration,
            });
        });
    }

    fn taken_by_another(&self) {
        if matches!(self.lock().held, Held::Since(_)) {
            self.change(|state| state.held = Held::No);
        }
    }
}

/// The permission for one write, held while the write is in flight.
#[derive(Debug)]
pub struct Pass {
    leadership: Leadership,
    /// How long the write may take.
    pub(crate) within: Duration,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.leadership.lock();
        state.passes = state.passes.saturating_sub(1);
        let last = state.passes == 0;
        drop(state);
        if last {
            self.leadership.0.changed.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> LeaseSettings {
        LeaseSettings::new("refit-system", "refit-controller", "a")
    }

    fn candidate() -> Leadership {
        Leadership::candidate(Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap()))
    }

    fn renew(leadership: &Leadership) {
        leadership.renewed(instant(), leadership.0.clock.now(), &settings());
    }

    #[tokio::test(start_paused = true)]
    async fn writes_end_before_another_replica_can_take_the_lease() {
        let leadership = candidate();
        assert_eq!(leadership.pass().unwrap_err(), NotLeader);
        renew(&leadership);
        tokio::time::sleep(Duration::from_secs(9)).await;
        let pass = leadership.pass().unwrap();
        assert_eq!(pass.within, Duration::from_secs(5), "15 s less 9 s less grace");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(leadership.pass().is_err(), "no write begins after 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leadership_without_renewal_expires() {
        let leadership = candidate();
        renew(&leadership);
        let begin = leadership.0.clock.now();
        leadership.held().await;
        leadership.lost().await;
        assert_eq!(leadership.0.clock.elapsed(begin), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn writes_in_flight_finish_after_a_resignation() {
        let leadership = candidate();
        renew(&leadership);
        let pass = leadership.pass().unwrap();
        leadership.resign();
        assert!(leadership.pass().is_err());
        renew(&leadership);
        assert!(!leadership.is_held(), "a late renewal changes nothing");
        let waiting = tokio::time::timeout(Duration::from_secs(1), leadership.idle());
        assert!(waiting.await.is_err());
        drop(pass);
        leadership.idle().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_leader_can_wait_for_its_last_write() {
        let leadership = candidate();
        renew(&leadership);
        let pass = leadership.pass().unwrap();
        leadership.lost().await;
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(pass);
        };
        let waiting = async { tokio::join!(leadership.idle(), end) };
        let waited = tokio::time::timeout(Duration::from_secs(2), waiting);
        assert!(waited.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_replica_always_leads() {
        let alone = Leadership::alone(Clock::real());
        alone.held().await;
        assert_eq!(alone.pass().unwrap().within, Duration::MAX);
        let lost = tokio::time::timeout(Duration::from_hours(1000), alone.lost());
        assert!(lost.await.is_err());
    }

    #[test]
    fn times_that_do_not_keep_replicas_apart_are_refused() {
        assert_eq!(settings().problem(), None);
        let problem_after = |change: fn(&mut LeaseSettings)| {
            let mut settings = settings();
            change(&mut settings);
            settings.problem().unwrap_or_default()
        };
        assert!(problem_after(|s| s.renew_deadline = s.duration).contains("renew deadline (15 s)"));
        assert!(problem_after(|s| s.retry_period = Duration::ZERO).contains("retry period (0 s)"));
        assert!(problem_after(|s| s.identity.clear()).contains("identity"));
    }
}
