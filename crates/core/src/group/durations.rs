//! Recorded durations of steps, and predictions from them.

use jiff::SignedDuration;
use refit_kinds::refit::{StepDurations, StepState, StepStatus, UpdateGroupStatus};

/// How many durations of a step are kept: enough for a median that adapts within a day's rollout,
/// few enough to keep the object at a few kilobytes.
pub const MAX_DURATIONS: usize = 16;

/// Adds the durations of an update's finished steps, newest last; those that were skipped took no time.
pub fn record_durations(status: &mut UpdateGroupStatus, steps: &[StepStatus]) {
    for step in steps {
        let times = || step.started_at.as_ref().zip(step.finished_at.as_ref());
        let seconds = match step.state {
            StepState::Done => times().map(|(started, finished)| {
                finished.0.as_second().saturating_sub(started.0.as_second()).max(0)
            }),
            StepState::Skipped => Some(0),
            StepState::Pending | StepState::Running | StepState::Failed | StepState::Undone => None,
        };
        let Some(seconds) = seconds else { continue };
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let place = status.durations.iter().position(|known| known.step == step.name);
        let place = place.unwrap_or_else(|| {
            status.durations.push(StepDurations { step: step.name.clone(), seconds: Vec::new() });
            status.durations.len() - 1
        });
        let known = &mut status.durations[place];
        known.seconds.push(seconds);
        let surplus = known.seconds.len().saturating_sub(MAX_DURATIONS);
        known.seconds.drain(..surplus);
    }
}

/// The median of past durations of a step; `None` without any.
pub fn median_seconds(durations: &[StepDurations], step: &str) -> Option<i32> {
    let seconds = sorted(durations, step)?;
    seconds.get(seconds.len() / 2).copied()
}

/// What 95 of 100 updates take at most for these steps; `None` if the past does not show it for all.
pub fn expected_rest<'a>(
    durations: &[StepDurations],
    steps: impl IntoIterator<Item = &'a str>,
) -> Option<SignedDuration> {
    let seconds = steps.into_iter().map(|step| {
        let seconds = sorted(durations, step)?;
        let rank = (seconds.len() * 95).div_ceil(100);
        seconds.get(rank.checked_sub(1)?).copied().map(i64::from)
    });
    let seconds: Option<Vec<i64>> = seconds.collect();
    seconds.filter(|all| !all.is_empty()).map(|all| SignedDuration::from_secs(all.iter().sum()))
}

fn sorted(durations: &[StepDurations], step: &str) -> Option<Vec<i32>> {
    let mut seconds = durations.iter().find(|known| known.step == step)?.seconds.clone();
    seconds.sort_unstable();
    Some(seconds)
}
