//! When each machine of a group has its turn, and how many are available meanwhile.

mod of_group;
pub(super) mod order;
mod pace;
mod takes;

use std::cmp::Reverse;

use refit_cluster_api::rollout::simulate::{Act, Event};
use serde::Serialize;

pub(super) use pace::Pacer;
pub use takes::{Source, Takes};

/// How many points the curve of availability has at most.
const MAX_POINTS: i64 = 200;

/// What is done to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Action {
    /// It is updated in place.
    Update,
    /// It is created.
    Create,
    /// It is deleted. How long that takes is not predicted.
    Delete,
}

/// What is done to a machine, and when, in seconds since the begin of the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// Name of the Machine; absent for one that is created, which has none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// What is done to it.
    pub action: Action,
    /// When Cluster API chooses it. Its host prepares.
    pub start_seconds: i64,
    /// From when on it is disturbed.
    pub disturbed_seconds: i64,
    /// When it is back.
    pub end_seconds: i64,
}

/// How many machines are available from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Seconds since the begin of the change.
    pub seconds: i64,
    /// Machines that are there, available, and not being disturbed.
    pub available: i64,
}

/// How many machines of a group are available during the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Availability {
    /// The fewest at any time.
    pub least: i64,
    /// Every change of the number; of more than 200, the fewest in each of 200 periods of equal length.
    pub curve: Vec<Level>,
}

/// The turns of the machines of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// What the times are derived from.
    pub takes: Takes,
    /// The turns, in the order in which they are decided.
    pub turns: Vec<Turn>,
    /// How many machines are available.
    pub availability: Availability,
}

impl Timeline {
    /// The turns of a group of which so many machines are available before; `None` without any turn.
    pub(super) fn of(takes: Takes, events: Vec<Event>, available: i64) -> Option<Self> {
        let turns: Vec<Turn> = events
            .into_iter()
            .map(|Event { machine, act, asked, span }| Turn {
                machine,
                action: match act {
                    Act::Update => Action::Update,
                    Act::Create => Action::Create,
                    Act::Delete => Action::Delete,
                },
                start_seconds: asked,
                disturbed_seconds: span.start,
                end_seconds: span.end,
            })
            .collect();
        let availability = Availability::of(&turns, available);
        (!turns.is_empty()).then_some(Self { takes, turns, availability })
    }

    /// When the first machine has its turn.
    pub fn start(&self) -> i64 {
        self.turns.iter().map(|turn| turn.start_seconds).min().unwrap_or_default()
    }

    /// When the last machine is back.
    pub fn end(&self) -> i64 {
        self.turns.iter().map(|turn| turn.end_seconds).max().unwrap_or_default()
    }

    /// The same turns, so many seconds later.
    pub(super) fn shift(&mut self, seconds: i64) {
        let later = |time: &mut i64| *time = time.saturating_add(seconds);
        for turn in &mut self.turns {
            later(&mut turn.start_seconds);
            later(&mut turn.disturbed_seconds);
            later(&mut turn.end_seconds);
        }
        for level in &mut self.availability.curve {
            later(&mut level.seconds);
        }
    }
}

impl Availability {
    fn of(turns: &[Turn], before: i64) -> Self {
        let mut changes: Vec<(i64, i64)> = Vec::new();
        for turn in turns {
            match turn.action {
                Action::Update => {
                    changes.extend([(turn.disturbed_seconds, -1), (turn.end_seconds, 1)]);
                }
                Action::Create => changes.push((turn.end_seconds, 1)),
                Action::Delete => changes.push((turn.disturbed_seconds, -1)),
            }
        }
        // A machine leaves because another one is back.
        changes.sort_unstable_by_key(|(seconds, change)| (*seconds, Reverse(*change)));
        let mut curve = vec![Level {
            seconds: turns.iter().map(|turn| turn.start_seconds).min().unwrap_or_default(),
            available: before,
        }];
        let (mut available, mut least) = (before, before);
        for (index, (seconds, change)) in changes.iter().enumerate() {
            available += change;
            if changes.get(index + 1).is_none_or(|next| next.0 > *seconds) {
                least = least.min(available);
                curve.push(Level { seconds: *seconds, available });
            }
        }
        Self { least, curve: thinned(curve) }
    }
}

/// The fewest of each period, if there are more points than a curve may have.
fn thinned(curve: Vec<Level>) -> Vec<Level> {
    let (Some(first), Some(last)) = (curve.first().copied(), curve.last().copied()) else {
        return curve;
    };
    if i64::try_from(curve.len()).is_ok_and(|points| points <= MAX_POINTS) {
        return curve;
    }
    let period = ((last.seconds - first.seconds) / (MAX_POINTS - 2)).max(1);
    let mut thin: Vec<Level> = vec![first];
    let inner = curve.get(1..curve.len() - 1).unwrap_or_default();
    for level in inner {
        let begin = first.seconds + (level.seconds - first.seconds) / period * period;
        match thin.last_mut().filter(|known| known.seconds == begin) {
            Some(known) => known.available = known.available.min(level.available),
            None => thin.push(Level { seconds: begin, available: level.available }),
        }
    }
    thin.push(last);
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(action: Action, start: i64, end: i64) -> Turn {
        Turn {
            machine: None,
            action,
            start_seconds: start,
            disturbed_seconds: start,
            end_seconds: end,
        }
    }

    fn levels(availability: &Availability) -> Vec<(i64, i64)> {
        availability.curve.iter().map(|level| (level.seconds, level.available)).collect()
    }

    #[test]
    fn a_machine_is_missing_while_it_is_disturbed() {
        let turns = [turn(Action::Update, 0, 100), turn(Action::Update, 100, 200)];
        let found = Availability::of(&turns, 3);
        assert_eq!(found.least, 2);
        assert_eq!(levels(&found), [(0, 3), (0, 2), (100, 2), (200, 3)]);
    }

    #[test]
    fn a_surge_adds_a_machine_before_one_leaves() {
        let turns = [turn(Action::Create, 0, 600), turn(Action::Delete, 600, 600)];
        let found = Availability::of(&turns, 1);
        assert_eq!((found.least, levels(&found).last()), (1, Some(&(600, 1))));
    }

    #[test]
    fn a_long_curve_keeps_its_end_and_the_fewest_of_each_period() {
        let turns: Vec<Turn> =
            (0..5_000).map(|index| turn(Action::Update, index * 10, index * 10 + 10)).collect();
        let found = Availability::of(&turns, 5_000);
        assert!(found.curve.len() <= 200, "{}", found.curve.len());
        assert_eq!(levels(&found).last(), Some(&(50_000, 5_000)));
        assert_eq!(found.curve[100].available, 4_999);
        assert!(found.curve.is_sorted_by_key(|level| level.seconds));
    }
}
