//! Records the undisturbed run.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use refit_runtime::gate::Effect;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EndState, Point, Scenario, SweepError, plans};
use crate::{
    snapshot::{self, Snapshot},
    world::{self, Actor, Side, World, lock},
};

/// Number of effects of a run, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Mutating API requests of Refit's processes.
    pub api: usize,
    /// Journal appends.
    pub journal: usize,
    /// Commands on hosts.
    pub host: usize,
}

impl Counts {
    /// Number of all effects.
    pub fn total(self) -> usize {
        self.api + self.journal + self.host
    }

    fn add(&mut self, effect: &Effect) {
        match effect {
            Effect::Api { .. } => self.api += 1,
            Effect::Journal { .. } => self.journal += 1,
            Effect::Host { .. } => self.host += 1,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api, journal, host } = self;
        write!(f, "effects: api {api}, journal {journal}, host {host}")
    }
}

/// One effect, and a snapshot of the world before it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) actor: Actor,
    pub(crate) effect: Effect,
    pub(crate) before: Snapshot,
}

/// An undisturbed run: its effects, each with a snapshot of the world before it, and its end state.
#[derive(Debug)]
pub struct Recording {
    pub(crate) effects: Vec<Recorded>,
    /// Number of effects.
    pub counts: Counts,
    /// The end state.
    pub end: EndState,
    pub(crate) scenario: Scenario,
}

impl Recording {
    /// The points of each effect: both sides of it and, with two controllers, the sides that affect
    /// replicas.
    pub fn points(&self) -> Vec<Point> {
        self.effects
            .iter()
            .enumerate()
            .flat_map(|(index, recorded)| {
                self.sides(recorded).iter().map(move |side| Point {
                    index,
                    actor: recorded.actor.clone(),
                    effect: recorded.effect.clone(),
                    side: *side,
                })
            })
            .collect()
    }

    fn sides(&self, recorded: &Recorded) -> &'static [Side] {
        use Side::{After, AfterForGood, Before, BeforeForGood, Both, Other, Paused};
        let Scenario { plans, extra, holds, .. } = &self.scenario;
        let is_covered = *plans && !plans::is_of_plan(&recorded.effect)
            || extra.is_some() && !is_of_extra(&recorded.effect)
            || *holds && !recorded.actor.is_controller();
        if is_covered {
            &[]
        } else if *holds {
            &[Before, After, BeforeForGood, AfterForGood]
        } else if !self.scenario.two_controllers {
            &[Before, After]
        } else if recorded.actor.is_controller() {
            &[Before, After, Paused, Other, Both]
        } else {
            // Other processes are covered by the sweep with one controller.
            &[]
        }
    }
}

/// Whether an effect is a write that extra Machines need, or decides on them: other sweeps cover the rest.
fn is_of_extra(effect: &Effect) -> bool {
    let paths = ["/clusterupgrades", "/machinedeployments", "/machines/", "/upgradetasks"];
    let is_of_update = |path: &str| path.ends_with("/status") && !path.contains("/clusterupgrades");
    matches!(effect, Effect::Api { path, .. }
        if paths.iter().any(|one| path.contains(one)) && !is_of_update(path))
}

/// Runs the demo scenario once without a kill.
pub fn record(manifests: &[Value]) -> Result<Recording, SweepError> {
    record_scenario(manifests, Scenario::demo())
}

/// Whether an effect belongs to leader election, which writes every few seconds.
fn is_election(effect: &Effect) -> bool {
    matches!(effect, Effect::Api { path, .. } if path.contains("/leases"))
}

/// Runs a scenario once without a kill.
pub fn record_scenario(manifests: &[Value], scenario: Scenario) -> Result<Recording, SweepError> {
    world::runtime()?.block_on(async {
        let world = World::new(scenario.options(manifests.to_vec())).await?;
        scenario.prepare(&world).await?;
        let effects: Arc<Mutex<Vec<Recorded>>> = Arc::default();
        let sink = effects.clone();
        let inner = Arc::downgrade(&world.inner);
        world.hub().record(Some(Box::new(move |actor, effect| {
            if let Some(inner) = inner.upgrade().filter(|_| !is_election(effect)) {
                let before = snapshot::take(&inner);
                lock(&sink).push(Recorded { actor: actor.clone(), effect: effect.clone(), before });
            }
        })));
        scenario.start(&world).await?;
        scenario.finish(&world).await?;
        world.hub().record(None);
        let mut problems: Vec<String> =
            world.violations_at_rest().iter().map(ToString::to_string).collect();
        problems.extend(world.fence_breaks().iter().map(ToString::to_string));
        let end = EndState::of(&world);
        problems.extend(end.unrest());
        if !problems.is_empty() {
            return Err(SweepError::Undisturbed(problems.join("; ")));
        }
        let effects = std::mem::take(&mut *lock(&effects));
        let mut counts = Counts::default();
        for recorded in &effects {
            counts.add(&recorded.effect);
        }
        Ok(Recording { effects, counts, end, scenario })
    })
}
