//! The turns of a timeline, together as far as they are at the same time.

use refit_predict::timeline::{Action, Timeline, Turn};

/// How many names of a wave are shown.
const MOST_NAMES: usize = 3;

/// Turns of the same kind at the same time.
pub(crate) struct Wave<'a> {
    /// What is done.
    pub(crate) action: Action,
    /// The turns.
    pub(crate) turns: Vec<&'a Turn>,
    /// From when on the machines are disturbed, in seconds.
    pub(crate) start: i64,
    /// When they are back, in seconds.
    pub(crate) end: i64,
}

/// The waves of a timeline, in their order.
pub(crate) fn waves(timeline: &Timeline) -> Vec<Wave<'_>> {
    let mut waves: Vec<Wave<'_>> = Vec::new();
    for turn in &timeline.turns {
        let (start, end) = (turn.disturbed_seconds, turn.end_seconds);
        let is_same =
            |wave: &&mut Wave<'_>| (wave.action, wave.start, wave.end) == (turn.action, start, end);
        match waves.last_mut().filter(is_same) {
            Some(wave) => wave.turns.push(turn),
            None => waves.push(Wave { action: turn.action, turns: vec![turn], start, end }),
        }
    }
    waves
}

/// What is done, in one word.
pub(crate) fn word(action: Action) -> &'static str {
    match action {
        Action::Update => "update",
        Action::Create => "create",
        Action::Delete => "delete",
    }
}

impl Wave<'_> {
    /// The machines, as far as they have names.
    pub(crate) fn machines(&self) -> String {
        let count = self.turns.len();
        let names = self.turns.iter().filter_map(|turn| turn.machine.as_deref());
        let names: Vec<&str> = names.take(MOST_NAMES).collect();
        match (count, names.len()) {
            (1, 0) => "a new machine".to_owned(),
            (_, 0) => format!("{count} new machines"),
            (_, shown) if count > shown => {
                format!("{count} machines: {} and {} more", names.join(", "), count - shown)
            }
            _ => names.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use refit_predict::{PredictedOutcome, timeline::Level};

    use super::{super::tests::plan_of_example, *};

    #[test]
    fn turns_at_the_same_time_are_one_wave() {
        let plan = plan_of_example("v1.34.2", "v1.35.0");
        assert_eq!(plan.outcome, PredictedOutcome::InPlace);
        let mut timeline = plan.groups[0].timeline.clone().unwrap();
        assert_eq!(waves(&timeline).len(), 3);
        let first = timeline.turns[0].clone();
        for turn in &mut timeline.turns {
            turn.disturbed_seconds = first.disturbed_seconds;
            turn.end_seconds = first.end_seconds;
        }
        timeline.turns.extend(
            (0..2).map(|index| Turn { machine: Some(format!("more-{index}")), ..first.clone() }),
        );
        timeline.availability.curve = vec![Level { seconds: 0, available: 3 }];
        let all = waves(&timeline);
        let shown: Vec<String> = all.iter().map(Wave::machines).collect();
        assert_eq!(shown, ["5 machines: edge-1-0, edge-1-1, edge-1-2 and 2 more"]);
        timeline.turns.truncate(1);
        timeline.turns[0].machine = None;
        assert_eq!(waves(&timeline)[0].machines(), "a new machine");
    }
}
