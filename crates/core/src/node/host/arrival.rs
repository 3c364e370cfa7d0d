//! When the report of an agent arrived.

use jiff::Timestamp;
use refit_kinds::refit::HostPlan;

/// When the last report in a HostPlan arrived, by the clock of the one who watches it.
///
/// A report states a time by the clock of its host, which may be wrong: of a host that is late, each
/// report would look old, and of a host that is ahead, a dead agent would look alive. Here that time
/// only distinguishes one report from the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The time that the report states; `None` before the first report.
    stated: Option<Timestamp>,
    at: Timestamp,
}

impl Arrival {
    /// The arrival of what a HostPlan contains at `now`, with the arrival of what it contained before,
    /// if that is known. When a report arrived that was there at the first look, is not known: it
    /// counts from the time that it states, and at the latest from now.
    #[must_use]
    pub fn of(before: Option<Self>, plan: &HostPlan, now: Timestamp) -> Self {
        let stated = plan.status.as_ref().and_then(|status| status.reported_at.as_ref());
        let stated = stated.map(|time| time.0);
        match before {
            Some(before) if before.stated == stated => before,
            Some(_) => Self { stated, at: now },
            None => Self { stated, at: stated.map_or(now, |stated| stated.min(now)) },
        }
    }

    /// When the report arrived; `None` before the first report.
    pub fn reported_at(&self) -> Option<Timestamp> {
        self.stated.map(|_| self.at)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use refit_kinds::refit::HostPlanStatus;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn arrival(before: Option<Arrival>, stated: Option<i64>, now: i64) -> Arrival {
        let reported_at = stated.map(|second| Time(at(second)));
        let status = HostPlanStatus { reported_at, ..HostPlanStatus::default() };
        let plan = HostPlan { status: Some(status), ..HostPlan::default() };
        Arrival::of(before, &plan, at(now))
    }

    #[test]
    fn a_report_counts_from_its_arrival_whatever_time_its_host_states() {
        for offset in [-1200, 0, 1200] {
            let mut known = arrival(None, None, 5_000);
            assert_eq!(known.reported_at(), None);
            for now in [5_010, 5_310, 5_610] {
                known = arrival(Some(known), Some(now + offset), now);
                assert_eq!(known.reported_at(), Some(at(now)), "{offset}");
                let again = arrival(Some(known), Some(now + offset), now + 100);
                assert_eq!(again, known, "the same report does not arrive again");
            }
        }
    }

    #[test]
    fn a_report_that_was_there_before_is_never_younger_than_it_states() {
        for (stated, counts_from) in [(4_000, 4_000), (5_000, 5_000), (6_200, 5_000)] {
            let known = arrival(None, Some(stated), 5_000);
            assert_eq!(known.reported_at(), Some(at(counts_from)));
            let later = arrival(Some(known), Some(stated), 6_100);
            assert_eq!(later.reported_at(), Some(at(counts_from)), "an agent that died");
        }
    }

    #[test]
    fn a_report_of_a_host_whose_clock_was_set_back_has_arrived() {
        let known = arrival(Some(arrival(None, Some(9_000), 5_000)), Some(5_100), 5_100);
        assert_eq!(known.reported_at(), Some(at(5_100)));
        assert_eq!(arrival(Some(known), None, 5_200).reported_at(), None, "its status is gone");
    }
}
