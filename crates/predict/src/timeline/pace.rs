//! When a machine that Cluster API has chosen has its turn: as soon as its host is prepared, a slot of its group is
//! free, the last machine has been back long enough, and a maintenance window is open.

use std::{cmp::Reverse, collections::BinaryHeap};

use jiff::{SignedDuration, Timestamp};
use refit_cluster_api::rollout::simulate::{Durations, Span};
use refit_core::group::{Pace, outside_of_windows};

use super::Takes;

/// Gives the machines of a group their turns.
pub(crate) struct Pacer {
    takes: Takes,
    /// How many machines have their turn at a time.
    slots: usize,
    pace: Pace,
    /// The time at which the simulation begins.
    now: Timestamp,
    /// When the machines that hold slots are back.
    busy: BinaryHeap<Reverse<i64>>,
    /// When machines were back, as far as the next ones wait for it.
    ends: Vec<i64>,
}

impl Pacer {
    /// A pacer for a rollout that begins at this time.
    pub(crate) fn new(takes: Takes, slots: usize, pace: Pace, now: Timestamp) -> Self {
        let slots = slots.max(1);
        Self { takes, slots, pace, now, busy: BinaryHeap::new(), ends: Vec::new() }
    }

    /// How long the machines take.
    pub(crate) fn takes(self) -> Takes {
        self.takes
    }

    /// The first time at which no machine has just come back.
    fn soaked(&mut self, mut at: i64) -> i64 {
        let Some(soak) = self.pace.pacing.soak_seconds.map(i64::from) else { return at };
        self.ends.retain(|end| end.saturating_add(soak) > at);
        self.ends.sort_unstable();
        for end in &self.ends {
            if *end <= at {
                at = at.max(end.saturating_add(soak));
            }
        }
        at
    }

    /// The first time in a window that is open long enough; the same time without windows.
    fn in_window(&self, at: i64) -> i64 {
        if self.pace.pacing.windows.is_none() {
            return at;
        }
        let time = self.now.saturating_add(SignedDuration::from_secs(at)).unwrap_or(self.now);
        let refusal = outside_of_windows(&self.pace, self.takes.at_most, time);
        let opens = refusal.and_then(|refusal| refusal.ends_at());
        opens.map_or(at, |opens| opens.duration_since(self.now).as_secs().max(at))
    }
}

impl Durations for Pacer {
    fn update(&mut self, _machine: &str, asked: i64) -> Span {
        let prepared = asked.saturating_add(self.takes.prepare_seconds);
        let mut start = prepared;
        if self.busy.len() >= self.slots
            && let Some(Reverse(free)) = self.busy.pop()
        {
            start = start.max(free);
        }
        let start = self.soaked(start);
        let start = self.in_window(start);
        let end = start.saturating_add(self.takes.update_seconds);
        self.busy.push(Reverse(end));
        if self.pace.pacing.soak_seconds.is_some() {
            self.ends.push(end);
        }
        Span { start, end }
    }

    fn creation(&self) -> i64 {
        self.takes.new_machine_seconds
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{Pacing, Windows};
    use serde_json::json;

    use super::{super::Source, *};

    fn pacer(slots: usize, pacing: Pacing) -> Pacer {
        let takes = Takes {
            source: Source::Assumed,
            prepare_seconds: 10,
            update_seconds: 100,
            new_machine_seconds: 600,
            at_most: None,
        };
        let now = "2026-03-02T08:00:00Z".parse().unwrap();
        Pacer::new(takes, slots, Pace { pacing, ..Pace::default() }, now)
    }

    fn turns(mut pacer: Pacer, asked: &[i64]) -> Vec<(i64, i64)> {
        let spans = asked.iter().map(|asked| pacer.update("m", *asked));
        spans.map(|span| (span.start, span.end)).collect()
    }

    #[test]
    fn a_machine_has_its_turn_when_its_host_is_prepared_and_a_slot_is_free() {
        let two = turns(pacer(2, Pacing::default()), &[0, 0, 0, 250]);
        assert_eq!(two, [(10, 110), (10, 110), (110, 210), (260, 360)]);
    }

    #[test]
    fn the_next_machine_waits_until_the_last_one_has_been_back_long_enough() {
        let pacing = Pacing { soak_seconds: Some(50), ..Pacing::default() };
        assert_eq!(turns(pacer(1, pacing.clone()), &[0, 0]), [(10, 110), (160, 260)]);
        // Two begin at once; the third one waits after both.
        assert_eq!(turns(pacer(2, pacing), &[0, 0, 0])[2], (160, 260));
    }

    #[test]
    fn a_machine_waits_for_the_next_maintenance_window() {
        let windows: Windows = serde_json::from_value(json!({
            "estimateSeconds": 900,
            "once": [{"from": "2026-03-02T09:00:00Z", "until": "2026-03-02T11:00:00Z"}],
        }))
        .unwrap();
        let pacing = Pacing { windows: Some(windows), ..Pacing::default() };
        assert_eq!(turns(pacer(1, pacing), &[0]), [(3600, 3700)]);
    }
}
