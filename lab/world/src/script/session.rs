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
    network::{self, Link},
    objects::Found,
    quiet::Quiet,
    request::Requests,
    run::Stop,
    show,
    trouble::Due,
};
#[cfg(feature = "sabotage")]
use crate::simulate::Oracle;
use crate::world::World;

/// How long there must be no write before a world counts as quiet.
const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// A scheduled event that happens while the script waits.
pub(crate) struct Later {
    pub(super) due: Timestamp,
    pub(super) line: usize,
    pub(super) what: Due,
    /// Whether the script must still be running when it happens.
    pub(super) must: bool,
}

/// A world, and the script's own state.
pub(crate) struct Session {
    pub(crate) world: World,
    pub(crate) names: Names,
    /// Identities of the machines when all of them were ready for the first time, by name.
    pub(super) first: Option<BTreeMap<String, show::Identity>>,
    /// Connections that are cut.
    pub(crate) cut: BTreeSet<Link>,
    /// The requests that Cluster API sent.
    pub(super) requests: Requests,
    quiet: Arc<Quiet>,
    /// Revision of the world in which the session has last observed it.
    observed: Vec<u64>,
    /// Number of violations already reported.
    pub(super) seen_violations: usize,
    /// Judges waits in a simulation.
    #[cfg(feature = "sabotage")]
    pub(crate) oracle: Option<Oracle>,
    /// Until when an API or a process of Refit is impaired by the script.
    #[cfg(feature = "sabotage")]
    pub(crate) impaired_until: Timestamp,
    /// Scheduled events, in order of time.
    pub(crate) later: Vec<Later>,
}

impl Session {
    /// Starts a session in a new world.
    pub(crate) fn new(world: World) -> Self {
        let start = world.now();
        Self {
            quiet: Quiet::follow(world.management(), start),
            observed: Vec::new(),
            names: Names::new(start),
            world,
            first: None,
            cut: BTreeSet::new(),
            requests: Requests::default(),
            seen_violations: 0,
            #[cfg(feature = "sabotage")]
            oracle: None,
            #[cfg(feature = "sabotage")]
            impaired_until: start,
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
        (self.still() >= QUIET && self.later.is_empty()).into()
    }

    /// How long nothing has been written to the management cluster.
    pub(crate) fn still(&self) -> SignedDuration {
        self.world.now().duration_since(self.quiet.since())
    }

    /// Records state that cannot be determined later.
    pub(super) fn observe(&mut self) {
        let revision = self.world.revision();
        if self.observed != revision {
            self.names.learn(&self.world);
            self.requests.learn(&self.world);
            if self.first.is_none() && self.world.is_ready() {
                self.first = Some(show::identities(&self.world));
            }
            self.observed = revision;
        }
        network::keep_cut(self);
        #[cfg(feature = "sabotage")]
        if let Some(mut oracle) = self.oracle.take() {
            oracle.look(self);
            self.oracle = Some(oracle);
        }
    }

    /// Records that an API or a process of Refit is impaired for some time.
    #[cfg(feature = "sabotage")]
    pub(super) fn impair(&mut self, time: SignedDuration) {
        self.impaired_until = self.impaired_until.max(self.world.now() + time);
    }

    /// The violations as an error.
    pub(super) fn violated(&self) -> Stop {
        let found = self.world.violations();
        let lines = found.iter().map(|violation| self.names.shown(&violation.to_string()));
        Stop::Violated(lines.collect())
    }
}
