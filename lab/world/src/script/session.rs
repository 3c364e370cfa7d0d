//! The world that a script runs in, and the script's own state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    command::{Goal, Reference, Wrong},
    look,
    names::Names,
    objects::Found,
    quiet::Quiet,
    run::Stop,
    show,
    trouble::{self, Due},
};
use crate::world::World;

/// How long there must be no write before a world counts as quiet.
const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// A scheduled event that happens while the script waits.
pub(super) struct Later {
    pub(super) due: Timestamp,
    pub(super) line: usize,
    pub(super) what: Due,
    /// Whether the script must still be running when it happens.
    pub(super) must: bool,
}

/// A world, and the script's own state.
pub(super) struct Session {
    pub(super) world: World,
    pub(super) names: Names,
    /// Identities of the machines when all of them were ready for the first time, by name.
    pub(super) first: Option<BTreeMap<String, show::Identity>>,
    /// Agents that are disconnected from all APIs.
    pub(super) mute: BTreeSet<String>,
    quiet: Arc<Quiet>,
    /// Number of violations already reported.
    pub(super) seen_violations: usize,
    /// Scheduled events, in order of time.
    pub(super) later: Vec<Later>,
}

impl Session {
    /// Starts a session in a new world.
    pub(super) fn new(world: World) -> Self {
        let start = world.now();
        Self {
            quiet: Quiet::follow(world.management(), start),
            names: Names::new(start),
            world,
            first: None,
            mute: BTreeSet::new(),
            seen_violations: 0,
            later: Vec::new(),
        }
    }

    /// The current time as an offset.
    pub(super) fn offset(&self) -> String {
        self.names.offset(self.world.now())
    }

    /// Finds the object that the script names.
    pub(super) fn find(&self, object: &Reference) -> Result<Found, Wrong> {
        Found::new(&self.world, &self.names, object)
    }

    /// Schedules an event.
    pub(super) fn later(&mut self, due: Timestamp, line: usize, what: Due, must: bool) {
        self.later.push(Later { due, line, what, must });
        // The sort is stable: events of the same time stay in the order of their requests.
        self.later.sort_by_key(|later| later.due);
    }

    /// Checks whether a goal is reached.
    pub(super) fn look(&self, goal: &Goal, found: Option<&mut Found>) -> look::Look {
        if let (Goal::Object(object, condition), Some(found)) = (goal, found) {
            found.rename(&self.names, object);
            return look::look(&self.world, found, condition);
        }
        let still = self.world.now().duration_since(self.quiet.since());
        (still >= QUIET && self.later.is_empty()).into()
    }

    /// Records state that cannot be determined later.
    pub(super) fn observe(&mut self) {
        self.names.learn(&self.world);
        trouble::keep_mute(self);
        if self.first.is_none() && self.world.is_ready() {
            self.first = Some(show::identities(&self.world));
        }
    }

    /// The violations as an error.
    pub(super) fn violated(&self) -> Stop {
        let found = self.world.violations();
        let lines = found.iter().map(|violation| self.names.shown(&violation.to_string()));
        Stop::Violated(lines.collect())
    }
}
