//! What has happened in a world: the phases and conditions of the upgrade, and what was reported about it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::json::{text, time};
use serde_json::Value;

use crate::{
    openshift::World,
    script::{names::Names, table::table},
};

/// Follows a world. What happens within a second counts as one change.
#[derive(Debug, Default)]
pub(super) struct History {
    rows: Vec<(Timestamp, [String; 3])>,
    upgrade: Seen,
    /// How many states of policies were seen.
    states: usize,
    /// How many entries of the service log were seen.
    logs: usize,
    /// The state of each silence.
    silences: BTreeMap<String, String>,
}

/// What was last seen of the UpgradeConfig.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    uid: String,
    phase: String,
    /// Status and message of each condition.
    conditions: BTreeMap<String, (String, String)>,
}

impl History {
    /// Notes what has changed.
    pub(super) fn observe(&mut self, world: &World) {
        let now = world.now();
        self.observe_upgrade(world, now);
        let states = world.ocm().notified();
        for one in states.iter().skip(self.states) {
            self.note(one.at, "OCM", &format!("{}={}", one.policy, one.state), &one.description);
        }
        self.states = states.len();
        let logs = world.ocm().logs();
        for log in logs.iter().skip(self.logs) {
            let at = time(log, "/timestamp").unwrap_or(now);
            self.note(at, "service log", text(log, "/severity"), text(log, "/summary"));
        }
        self.logs = logs.len();
        for silence in world.silences() {
            let (id, state) = (text(&silence, "/id"), text(&silence, "/status/state"));
            let before = self.silences.insert(id.to_owned(), state.to_owned());
            if before.as_deref() != Some(state) {
                let at = if state == "expired" { "/endsAt" } else { "/startsAt" };
                let at = time(&silence, at).unwrap_or(now);
                let what = format!("{id}={state}");
                self.note(at, "silence", &what, text(&silence, "/comment"));
            }
        }
    }

    fn observe_upgrade(&mut self, world: &World, at: Timestamp) {
        let upgrade = world.upgrade().unwrap_or_default();
        let uid = text(&upgrade, "/metadata/uid");
        if self.upgrade.uid != uid {
            if !self.upgrade.uid.is_empty() {
                self.note(at, "UpgradeConfig", "deleted", "");
            }
            if !uid.is_empty() {
                let desired = ["/spec/desired/version", "/spec/desired/image"];
                let desired = desired.map(|field| text(&upgrade, field));
                let target = desired.into_iter().find(|one| !one.is_empty()).unwrap_or("-");
                let when = text(&upgrade, "/spec/upgradeAt");
                self.note(at, "UpgradeConfig", "created", &format!("to {target} at {when}"));
            }
            self.upgrade = Seen { uid: uid.to_owned(), ..Seen::default() };
        }
        let entry = &upgrade["status"]["history"][0];
        let phase = text(entry, "/phase");
        let conditions = entry["conditions"].as_array().into_iter().flatten();
        // The latest is in front.
        let conditions: Vec<&Value> = conditions.collect();
        for condition in conditions.into_iter().rev() {
            let [kind, status, message] =
                ["/type", "/status", "/message"].map(|field| text(condition, field));
            let now = (status.to_owned(), message.to_owned());
            let before = self.upgrade.conditions.insert(kind.to_owned(), now.clone());
            // A step that waits goes from the one to the other message at the next look.
            let waits = message == format!("{kind} still in progress")
                && before.as_ref().is_some_and(|(_, one)| *one == format!("{kind} has started"));
            if before != Some(now) && !waits {
                let is_done = message == format!("{kind} is completed");
                let message = if is_done { "" } else { message };
                self.note(at, "condition", &format!("{kind}={status}"), message);
            }
        }
        if self.upgrade.phase != phase {
            phase.clone_into(&mut self.upgrade.phase);
            if !phase.is_empty() {
                self.note(at, "phase", phase, "");
            }
        }
    }

    fn note(&mut self, at: Timestamp, about: &str, what: &str, message: &str) {
        self.rows.push((at, [about, what, message].map(str::to_owned)));
    }

    /// What has happened since the last time.
    pub(super) fn show(&mut self, names: &Names) -> String {
        let mut rows = std::mem::take(&mut self.rows);
        // The sort is stable: what happens at the same time stays in order.
        rows.sort_by_key(|(at, _)| *at);
        let shown = |(at, cells): &(Timestamp, [String; 3])| {
            let cells = cells.iter().map(|cell| names.shown(cell));
            std::iter::once(names.offset(*at)).chain(cells).collect()
        };
        let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
        table(&["TIME", "ABOUT", "WHAT", "MESSAGE"], &rows)
    }
}
