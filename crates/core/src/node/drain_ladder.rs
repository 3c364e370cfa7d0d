//! How a pod is removed: the rungs of the escalation.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::DrainRung;

use super::{
    drain_policy::DrainPolicy,
    drain_report::DrainRefusal,
    drain_sort::{PodView, asked_at},
    snapshot::PodRef,
};

/// How long a pod may terminate before it is reported as slow: twice the usual grace period.
const USUAL_END: SignedDuration = SignedDuration::from_secs(60);

/// One pod to remove, and the call to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The pod.
    pub pod: PodRef,
    /// The call to use.
    pub how: How,
}

/// The call that removes a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An eviction, which respects budgets.
    Evict {
        /// Grace period in seconds; `None` for the pod's own.
        grace_seconds: Option<u32>,
    },
    /// A deletion, which ignores budgets.
    Delete {
        /// Grace period in seconds; `None` for the pod's own.
        grace_seconds: Option<u32>,
    },
    /// A deletion with a grace period of zero: it does not wait for the containers to stop.
    Force,
}

impl How {
    fn rung(self) -> DrainRung {
        match self {
            Self::Evict { .. } => DrainRung::Evict,
            Self::Delete { .. } => DrainRung::Delete,
            Self::Force => DrainRung::Force,
        }
    }
}

/// Timestamps from which the deadlines of a drain count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// When the drain began.
    pub(super) drain: Timestamp,
    /// When the turn of the pods that leave now began.
    pub(super) turn: Timestamp,
    /// The current time.
    pub(super) now: Timestamp,
}

impl Since {
    /// When the deadlines of a pod start: not before its turn, so that earlier pods do not use up
    /// its time, and not before its creation, so that a replaced pod does not either.
    fn start_for(&self, pod: &PodView) -> Timestamp {
        pod.created_at.map_or(self.turn, |created| created.max(self.turn))
    }

    fn passed(&self, from: Timestamp, limit: Option<SignedDuration>) -> bool {
        limit.is_some_and(|limit| self.now.duration_since(from) >= limit)
    }

    /// Whether the drain has taken long enough to notify. Later pods do not postpone this.
    pub(super) fn is_long(&self, policy: &DrainPolicy) -> bool {
        self.passed(self.turn, policy.notify_after)
    }
}

/// How to remove a pod whose turn it is; `None` to wait.
pub(super) fn removal(pod: &PodView, policy: &DrainPolicy, since: &Since) -> Option<Removal> {
    let from = since.start_for(pod);
    let grace_seconds =
        policy.grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
    let late = since.passed(from, policy.force_after);
    let how = match (pod.terminating, late) {
        (true, true) if may_be_forced(pod, policy, since) => How::Force,
        (true, _) => return None,
        (false, true) => How::Force,
        (false, false) if since.passed(from, policy.delete_after) => How::Delete { grace_seconds },
        (false, false) => How::Evict { grace_seconds },
    };
    Some(Removal { pod: pod.pod.clone(), how })
}

/// Whether a terminating pod has used up its time: its grace period, or `force_after` since its
/// deletion was requested. A pod that was already deleted by force is not forced again: its grace
/// period does not hold it up.
fn may_be_forced(pod: &PodView, policy: &DrainPolicy, since: &Since) -> bool {
    if pod.deletion_grace_seconds == Some(0) {
        return false;
    }
    let over = pod.deletion_at.is_none_or(|end| end <= since.now);
    over || asked_at(pod).is_some_and(|asked| since.passed(asked, policy.force_after))
}

/// The highest rung of these removals.
pub(super) fn rung_of(removals: &[Removal]) -> DrainRung {
    let rungs = removals.iter().map(|removal| removal.how.rung());
    rungs.max().unwrap_or_default()
}

/// The pods on a rung.
pub(super) fn on_rung(removals: &[Removal], rung: DrainRung) -> impl Iterator<Item = &PodRef> {
    let all = removals.iter();
    all.filter(move |removal| removal.how.rung() == rung).map(|removal| &removal.pod)
}

/// The refusal to report for a leaving pod that is still there, if any.
pub(super) fn slow(pod: &PodView, policy: &DrainPolicy, since: &Since) -> Option<DrainRefusal> {
    let name = pod.pod.to_string();
    if pod.terminating {
        let asked = asked_at(pod)?;
        return (since.now.duration_since(asked) >= USUAL_END)
            .then_some(DrainRefusal::PodTerminating { pod: name });
    }
    let came_back = pod.created_at.is_some_and(|created| created > since.drain);
    (came_back && since.is_long(policy)).then_some(DrainRefusal::PodCameBack { pod: name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn minutes(n: i64) -> SignedDuration {
        SignedDuration::from_mins(n)
    }

    fn since(now_minutes: i64) -> Since {
        Since { drain: at(0), turn: at(0), now: at(now_minutes * 60) }
    }

    fn ladder() -> DrainPolicy {
        DrainPolicy {
            delete_after: Some(minutes(30)),
            force_after: Some(minutes(60)),
            ..DrainPolicy::default()
        }
    }

    fn ending(asked_minutes: i64, grace_minutes: i64) -> PodView {
        PodView {
            terminating: true,
            deletion_at: Some(at((asked_minutes + grace_minutes) * 60)),
            deletion_grace_seconds: Some(grace_minutes * 60),
            ..PodView::default()
        }
    }

    fn how(pod: &PodView, policy: &DrainPolicy, now_minutes: i64) -> Option<How> {
        removal(pod, policy, &since(now_minutes)).map(|removal| removal.how)
    }

    const EVICT: How = How::Evict { grace_seconds: None };
    const DELETE: How = How::Delete { grace_seconds: None };

    #[test]
    fn each_rung_has_its_deadline() {
        let pod = PodView::default();
        let table = [(0, EVICT), (29, EVICT), (30, DELETE), (59, DELETE), (60, How::Force)];
        for (now, expected) in table {
            assert_eq!(how(&pod, &ladder(), now), Some(expected), "{now}");
        }
        // By default, a drain waits for a budget forever.
        assert_eq!(how(&pod, &DrainPolicy::default(), 1_000_000), Some(EVICT));
    }

    #[test]
    fn a_later_pod_has_its_own_deadlines() {
        let late = PodView { created_at: Some(at(50 * 60)), ..PodView::default() };
        assert_eq!(how(&late, &ladder(), 60), Some(EVICT));
        assert_eq!(how(&late, &ladder(), 80), Some(DELETE));
        let early = PodView { created_at: Some(at(-50 * 60)), ..PodView::default() };
        assert_eq!(how(&early, &ladder(), 29), Some(EVICT));
    }

    #[test]
    fn a_running_grace_period_is_not_cut_early() {
        let table = [
            // Deletion requested immediately, with a grace period of a day: its hour has passed.
            (0, 24 * 60, 59, None),
            (0, 24 * 60, 60, Some(How::Force)),
            // A budget allowed the eviction late: the pod gets its own grace period.
            (59, 5, 61, None),
            (59, 5, 64, Some(How::Force)),
            // Late, with a grace period of a day: one hour from then.
            (59, 24 * 60, 118, None),
            (59, 24 * 60, 119, Some(How::Force)),
        ];
        for (asked, grace, now, expected) in table {
            assert_eq!(
                how(&ending(asked, grace), &ladder(), now),
                expected,
                "asked at {asked} for {grace}, now {now}"
            );
        }
    }

    #[test]
    fn a_forced_deletion_is_not_repeated() {
        assert_eq!(how(&ending(0, 0), &ladder(), 600), None);
    }

    #[test]
    fn the_policys_grace_period_is_used_in_the_call() {
        let policy = DrainPolicy { grace: Some(SignedDuration::from_secs(7)), ..ladder() };
        let grace_seconds = Some(7);
        let pod = PodView::default();
        assert_eq!(how(&pod, &policy, 0), Some(How::Evict { grace_seconds }));
        assert_eq!(how(&pod, &policy, 30), Some(How::Delete { grace_seconds }));
    }

    #[test]
    fn a_pod_that_ends_in_time_is_not_reported() {
        let policy = ladder();
        let slow_reason = |pod: &PodView, now| slow(pod, &policy, &since(now)).map(|s| s.reason());
        assert_eq!(slow_reason(&ending(5, 30), 5), None);
        assert_eq!(slow_reason(&ending(5, 30), 6), Some("PodTerminating"));
        let back = PodView { created_at: Some(at(60)), ..PodView::default() };
        assert_eq!(slow_reason(&back, 14), None);
        assert_eq!(slow_reason(&back, 15), Some("PodCameBack"));
        assert_eq!(slow_reason(&PodView::default(), 15), None);
    }
}
