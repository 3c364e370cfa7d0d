//! What is done to a pod that has to leave: the rungs of the escalation.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::DrainRung;

use super::{
    drain_policy::DrainPolicy,
    drain_report::DrainRefusal,
    drain_sort::{PodView, asked_at},
    snapshot::PodRef,
};

/// How long a pod may be ending before it is called slow: twice the usual grace.
const USUAL_END: SignedDuration = SignedDuration::from_secs(60);

/// One pod that is asked to go, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The pod.
    pub pod: PodRef,
    /// By which call.
    pub how: How,
}

/// The call by which a pod is asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// An eviction: budgets hold.
    Evict {
        /// Its grace in seconds; `None`: its own.
        grace_seconds: Option<u32>,
    },
    /// A deletion, budgets or not.
    Delete {
        /// Its grace in seconds; `None`: its own.
        grace_seconds: Option<u32>,
    },
    /// A deletion without grace: nobody waits for its containers.
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

/// From when the times of a drain count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// When the drain began.
    pub(super) drain: Timestamp,
    /// When the turn of the pods came that leave now.
    pub(super) turn: Timestamp,
    /// The time.
    pub(super) now: Timestamp,
}

impl Since {
    /// From when the deadlines of a pod count: the pods before it must not use up its time, nor an
    /// older pod that it stands in for.
    fn of(&self, pod: &PodView) -> Timestamp {
        pod.created_at.map_or(self.turn, |created| created.max(self.turn))
    }

    fn passed(&self, from: Timestamp, limit: Option<SignedDuration>) -> bool {
        limit.is_some_and(|limit| self.now.duration_since(from) >= limit)
    }

    /// Whether somebody is to be told that this takes long. A pod that came later does not move it.
    pub(super) fn is_long(&self, policy: &DrainPolicy) -> bool {
        self.passed(self.turn, policy.notify_after)
    }
}

/// What is done to a pod whose turn it is; `None`: it is waited for.
pub(super) fn removal(pod: &PodView, policy: &DrainPolicy, since: &Since) -> Option<Removal> {
    let from = since.of(pod);
    let grace_seconds =
        policy.grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
    let late = since.passed(from, policy.force_after);
    let how = match (pod.terminating, late) {
        (true, true) if may_be_cut(pod, policy, since) => How::Force,
        (true, _) => return None,
        (false, true) => How::Force,
        (false, false) if since.passed(from, policy.delete_after) => How::Delete { grace_seconds },
        (false, false) => How::Evict { grace_seconds },
    };
    Some(Removal { pod: pod.pod.clone(), how })
}

/// Whether a pod that is ending has had its time: its grace, or as long as force waits, from when it
/// was asked. One that was forced before is not forced again: what holds it is no grace.
fn may_be_cut(pod: &PodView, policy: &DrainPolicy, since: &Since) -> bool {
    if pod.deletion_grace_seconds == Some(0) {
        return false;
    }
    let over = pod.deletion_at.is_none_or(|end| end <= since.now);
    over || asked_at(pod).is_some_and(|asked| since.passed(asked, policy.force_after))
}

/// The highest rung that these removals stand on.
pub(super) fn rung_of(removals: &[Removal]) -> DrainRung {
    let rungs = removals.iter().map(|removal| removal.how.rung());
    rungs.max().unwrap_or_default()
}

/// The pods that stand on a rung.
pub(super) fn on_rung(removals: &[Removal], rung: DrainRung) -> impl Iterator<Item = &PodRef> {
    let there = removals.iter();
    there.filter(move |removal| removal.how.rung() == rung).map(|removal| &removal.pod)
}

/// What is to be said of a pod that leaves and is still there, if anything.
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
    fn each_rung_has_its_time() {
        let pod = PodView::default();
        let table = [(0, EVICT), (29, EVICT), (30, DELETE), (59, DELETE), (60, How::Force)];
        for (now, expected) in table {
            assert_eq!(how(&pod, &ladder(), now), Some(expected), "{now}");
        }
        // Without a word of policy a budget is waited for, for ever.
        assert_eq!(how(&pod, &DrainPolicy::default(), 1_000_000), Some(EVICT));
    }

    #[test]
    fn a_pod_that_came_later_has_its_own_time() {
        let late = PodView { created_at: Some(at(50 * 60)), ..PodView::default() };
        assert_eq!(how(&late, &ladder(), 60), Some(EVICT));
        assert_eq!(how(&late, &ladder(), 80), Some(DELETE));
        let early = PodView { created_at: Some(at(-50 * 60)), ..PodView::default() };
        assert_eq!(how(&early, &ladder(), 29), Some(EVICT));
    }

    #[test]
    fn a_grace_that_runs_is_not_cut_before_its_time() {
        let table = [
            // Asked at once, with a day of grace: its hour is over.
            (0, 24 * 60, 59, None),
            (0, 24 * 60, 60, Some(How::Force)),
            // A budget let it go late: it gets the grace that it asks for.
            (59, 5, 61, None),
            (59, 5, 64, Some(How::Force)),
            // Late, with a day of grace: an hour from then.
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
    fn what_was_forced_is_not_forced_again() {
        assert_eq!(how(&ending(0, 0), &ladder(), 600), None);
    }

    #[test]
    fn grace_by_policy_goes_with_the_call() {
        let policy = DrainPolicy { grace: Some(SignedDuration::from_secs(7)), ..ladder() };
        let grace_seconds = Some(7);
        let pod = PodView::default();
        assert_eq!(how(&pod, &policy, 0), Some(How::Evict { grace_seconds }));
        assert_eq!(how(&pod, &policy, 30), Some(How::Delete { grace_seconds }));
    }

    #[test]
    fn a_pod_that_ends_in_time_is_nobodys_business() {
        let policy = ladder();
        let of = |pod: &PodView, now| slow(pod, &policy, &since(now)).map(|s| s.reason());
        assert_eq!(of(&ending(5, 30), 5), None);
        assert_eq!(of(&ending(5, 30), 6), Some("PodTerminating"));
        let back = PodView { created_at: Some(at(60)), ..PodView::default() };
        assert_eq!(of(&back, 14), None);
        assert_eq!(of(&back, 15), Some("PodCameBack"));
        assert_eq!(of(&PodView::default(), 15), None);
    }
}
