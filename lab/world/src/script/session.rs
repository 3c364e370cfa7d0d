//! The world that a script runs in, and what the script knows of it.

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

/// How long nothing must have been written for a world to count as quiet.
const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// Something that happens later, while the script waits.
pub(super) struct Later {
    pub(super) due: Timestamp,
    pub(super) line: usize,
    pub(super) what: Due,
    /// Whether the script must still run to see it.
    pub(super) must: bool,
}

/// A world, and what the script knows of it.
pub(super) struct Session {
    pub(super) world: World,
    pub(super) names: Names,
    /// What machines were when all of them first were ready, by name.
    pub(super) first: Option<BTreeMap<String, show::Identity>>,
    /// Agents that are to reach no API.
    pub(super) mute: BTreeSet<String>,
    quiet: Arc<Quiet>,
    /// How many violations were told.
    pub(super) seen_violations: usize,
    /// What is put off, in order of time.
    pub(super) later: Vec<Later>,
}

impl Session {
    /// A world that has just been made.
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

    /// The time as an offset.
    pub(super) fn offset(&self) -> String {
        self.names.offset(self.world.now())
    }

    /// The object that the script names.
    pub(super) fn find(&self, object: &Reference) -> Result<Found, Wrong> {
        Found::new(&self.world, &self.names, object)
    }

    /// Puts something off.
    pub(super) fn later(&mut self, due: Timestamp, line: usize, what: Due, must: bool) {
        self.later.push(Later { due, line, what, must });
        // Stable: what was asked for first happens first.
        self.later.sort_by_key(|later| later.due);
    }

    /// Looks whether a goal is reached.
    pub(super) fn look(&self, goal: &Goal, found: Option<&mut Found>) -> look::Look {
        if let (Goal::Object(object, condition), Some(found)) = (goal, found) {
            found.rename(&self.names, object);
            return look::look(&self.world, found, condition);
        }
        let still = self.world.now().duration_since(self.quiet.since());
        (still >= QUIET && self.later.is_empty()).into()
    }

    /// Notes what can be known only while it is so.
    pub(super) fn observe(&mut self) {
        self.names.learn(&self.world);
        trouble::keep_mute(self);
        if self.first.is_none() && self.world.is_ready() {
            self.first = Some(show::identities(&self.world));
        }
    }

    /// What is broken that never may be.
    pub(super) fn violated(&self) -> Stop {
        let found = self.world.violations();
        let lines = found.iter().map(|violation| self.names.shown(&violation.to_string()));
        Stop::Violated(lines.collect())
    }
}
