//! Violations in the final state.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{keys, refit::Phase, version::StatedVersion};

use super::{Invariant, Violation, observe::violation, state::World};

/// How long Refit's hook may delay the deletion of a Machine: twice as long as a report counts as
/// fresh.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_mins(30);

impl World {
    /// Violations in a world in which nothing is due within the next hour.
    pub fn at_rest(&self, now: Timestamp) -> Vec<Violation> {
        let mut found = self.forgotten();
        found.extend(self.unmarked());
        found.extend(self.left_cordons());
        found.extend(self.left_guards(now));
        found.extend(self.left_slots());
        found
    }

    /// Invariant 6.
    fn forgotten(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for ((_, name), update) in &self.updates {
            let mut wrong = |message: &str| {
                found.push(violation(
                    Invariant::NoneForgotten,
                    "NodeUpdate",
                    name,
                    message.to_owned(),
                ));
            };
            let badly = matches!(update.phase, Phase::Failed | Phase::Stopped);
            if badly && update.failure_reason.is_empty() {
                wrong("it failed without a reason");
            } else if !update.phase.is_final() && !update.blocked {
                wrong("it is unfinished, but not blocked");
            }
        }
        for ((_, name), machine) in &self.machines {
            if machine.deleted_at.is_some() {
                continue;
            }
            let speaker = self.speaker(&machine.uid).map(|(_, update)| update);
            let mut wrong = |message: String| {
                found.push(violation(Invariant::NoneForgotten, "Machine", name, message));
            };
            if machine.updating && speaker.is_none_or(|u| u.phase == Phase::Succeeded) {
                wrong("it is marked as being updated, but no NodeUpdate is in progress".to_owned());
            }
            let Some(done) = speaker.filter(|update| update.phase == Phase::Succeeded) else {
                continue;
            };
            let runs = self.node_of(machine).map(|node| node.version.clone()).unwrap_or_default();
            // The record of a later update may have been deleted. A snap names no version.
            let names_version = done.goal != StatedVersion::default();
            if names_version && runs != done.goal && runs != machine.version {
                wrong(format!("its update to {} succeeded, but it runs \"{runs}\"", done.goal));
            }
        }
        found
    }

    /// Invariant 6: a Machine that is behind its MachineSet and has no update request. Its
    /// MachineDeployment counts it as up to date; Cluster API v1.14.2 can lose the mark if a
    /// template changes while the previous update ends. A MachineSet without an owner leaves its
    /// Machines unchanged.
    fn unmarked(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for ((namespace, name), machine) in &self.machines {
            let Some((kind, set)) = &machine.owner else {
                continue;
            };
            let key = (namespace.clone(), kind.clone(), set.clone());
            let of_deployment = self.owners.get(&key).filter(|owner| {
                let parent = owner.parent.as_ref();
                parent.is_some_and(|(kind, _)| kind == "MachineDeployment")
            });
            let Some(wanted) = of_deployment.map(|owner| &owner.version) else {
                continue;
            };
            let spoken_for = machine.updating || machine.deleted_at.is_some();
            let unknown = wanted.is_absent() || machine.version.is_absent();
            if spoken_for || unknown || *wanted == machine.version {
                continue;
            }
            let message = format!(
                "it has version {} in MachineSet {set} of {wanted}, but no annotation {} requests \
                 its update",
                machine.version,
                keys::UPDATE_IN_PROGRESS,
            );
            found.push(violation(Invariant::UpdateRequested, "Machine", name, message));
        }
        found
    }

    /// Invariant 7.
    fn left_cordons(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for ((cluster, name), node) in &self.nodes {
            let (by, what) = match (&node.cordoned_by, &node.excluded_by) {
                (Some(by), _) => (by, "cordon"),
                (None, Some(by)) => (by, "exclusion from load balancers"),
                (None, None) => continue,
            };
            let machine = self.machine_of(cluster, name).map(|(_, machine)| machine);
            let update = machine.and_then(|m| self.speaker(&m.uid)).map(|(_, update)| update);
            let deleting = machine.is_some_and(|machine| machine.deleted_at.is_some());
            let known = update.is_some_and(|update| match update.phase {
                Phase::Succeeded => false,
                // Cluster API cordons the Node of a Machine that it deletes, too.
                Phase::Stopped => deleting && update.cordoned_by_us,
                Phase::Failed => update.cordoned_by_us,
                Phase::Pending
                | Phase::Staging
                | Phase::Waiting
                | Phase::Upgrading
                | Phase::Draining
                | Phase::Disrupting
                | Phase::Verifying
                | Phase::Uncordoning
                | Phase::Stopping => update.blocked,
            });
            if !known {
                let message = format!("the {what} by {by} remains, and no status mentions it");
                found.push(violation(Invariant::Cordons, "Node", name, message));
            }
        }
        found
    }

    /// Invariant 8: the guard.
    fn left_guards(&self, now: Timestamp) -> Vec<Violation> {
        let mut found = Vec::new();
        for ((_, name), machine) in self.machines.iter().filter(|(_, machine)| machine.guarded) {
            let ended =
                self.speaker(&machine.uid).is_none_or(|(_, update)| update.phase.is_final());
            if ended {
                let message = "Refit's guard remains on it".to_owned();
                found.push(violation(Invariant::NothingLeft, "Machine", name, message));
            }
            let held = machine.deleted_at.is_some_and(|at| now.duration_since(at) > LONGEST_HOLD);
            if held {
                let message = "Refit's hook still delays its deletion".to_owned();
                found.push(violation(Invariant::NothingLeft, "Machine", name, message));
            }
        }
        found
    }

    /// Invariant 8: slots.
    fn left_slots(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for ((namespace, group), slots) in &self.slots {
            for (machine, uid) in slots {
                let holder = self
                    .machines
                    .get(&(namespace.clone(), machine.clone()))
                    .filter(|holder| holder.uid == *uid);
                let over = self.speaker(uid).is_none_or(|(_, update)| update.phase.is_final());
                let why = match holder {
                    None => "is gone",
                    Some(holder) if over && self.is_available(holder) => "is available",
                    Some(_) => continue,
                };
                let message = format!("a slot of {machine} remains, which {why}");
                found.push(violation(Invariant::NothingLeft, "UpdateGroup", group, message));
            }
        }
        found
    }
}
