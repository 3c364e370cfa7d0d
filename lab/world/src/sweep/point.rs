//! One point of a sweep: a process dies at one effect.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use refit_runtime::gate::Effect;
use serde::{Deserialize, Serialize};

use super::{EndState, Recording, Sabotage, Scenario, StoredEffect, holds};
use crate::{
    snapshot::{self, Snapshot},
    world::{self, Actor, Kill, Side, World},
};

/// The effect at which a process dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Number of the effect in the undisturbed run, from 0.
    pub index: usize,
    /// The process.
    pub actor: Actor,
    /// The effect.
    pub effect: Effect,
    /// The side of the effect.
    pub side: Side,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, actor, effect, side } = self;
        let what = if matches!(side, Side::Paused | Side::Other) { "" } else { "killed " };
        write!(f, "{actor} {what}{side} effect {index}: {effect}")
    }
}

/// A point with everything that is needed to run it again.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PointFile {
    index: usize,
    actor: Actor,
    effect: StoredEffect,
    side: Side,
    sabotage: Option<Sabotage>,
    scenario: Scenario,
    expected: EndState,
    snapshot: Snapshot,
}

impl fmt::Debug for PointFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PointFile").field("index", &self.index).finish_non_exhaustive()
    }
}

impl PointFile {
    /// The point in the file.
    pub fn point(&self) -> Point {
        Point {
            index: self.index,
            actor: self.actor.clone(),
            effect: self.effect.clone().into(),
            side: self.side,
        }
    }

    /// Runs the point and returns its problems.
    pub fn run(&self) -> Vec<String> {
        let point = self.point();
        continue_at(&self.snapshot, &point, self.sabotage, &self.scenario, &self.expected)
    }
}

/// Runs a point of a recording and returns its problems.
pub(crate) fn run(recording: &Recording, point: &Point, sabotage: Option<Sabotage>) -> Vec<String> {
    let before = &recording.effects[point.index].before;
    continue_at(before, point, sabotage, &recording.scenario, &recording.end)
}

/// Saves a failing point. If the file cannot be written, that is logged and the failure still
/// counts.
pub(crate) fn save(
    directory: &Path,
    recording: &Recording,
    point: &Point,
    sabotage: Option<Sabotage>,
) -> Option<PathBuf> {
    let with = sabotage.map(|s| format!("-without-{s}")).unwrap_or_default();
    let path = directory.join(format!(
        "point-{}-{}{with}.json",
        point.index,
        point.side.to_string().replace(' ', "-")
    ));
    let file = PointFile {
        index: point.index,
        actor: point.actor.clone(),
        effect: StoredEffect::from(&point.effect),
        side: point.side,
        sabotage,
        scenario: recording.scenario.clone(),
        expected: recording.end.clone(),
        snapshot: recording.effects[point.index].before.clone(),
    };
    match snapshot::write(&path, &file) {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!("failed to save a failing point: {error}");
            None
        }
    }
}

fn continue_at(
    before: &Snapshot,
    point: &Point,
    sabotage: Option<Sabotage>,
    scenario: &Scenario,
    expected: &EndState,
) -> Vec<String> {
    let runtime = match world::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return vec![format!("failed to create a runtime: {error}")],
    };
    runtime.block_on(async {
        let mut options = scenario.options(Vec::new());
        if let Some(sabotage) = sabotage {
            sabotage.apply(&mut options);
        }
        let world = match World::restore(before, &options) {
            Ok(world) => world,
            Err(error) => return vec![format!("failed to restore the world: {error}")],
        };
        if let Some(sabotage) = sabotage
            && let Err(error) = sabotage.apply_to(&world).await
        {
            return vec![format!("failed to disable a safeguard: {error}")];
        }
        world.hub().arm(Kill {
            actor: point.actor.clone(),
            effect: point.effect.clone(),
            side: point.side,
        });
        let mut problems = Vec::new();
        if let Err(error) = scenario.finish(&world).await {
            problems.push(error.to_string());
        }
        if world.hub().fired().is_none() {
            problems.push("the kill did not happen: the effect was not repeated".to_owned());
        }
        if point.side.is_for_good() {
            problems.extend(holds::replaced(&world, expected));
            world.inner.supervise(&point.actor);
            world.pass(holds::RECOVERS).await;
        }
        problems.extend(world.violations_at_rest().iter().map(ToString::to_string));
        problems.extend(world.fence_breaks().iter().map(ToString::to_string));
        problems.extend(if scenario.holds {
            holds::problems(&world, expected)
        } else {
            EndState::of(&world).differences(expected)
        });
        problems
    })
}
