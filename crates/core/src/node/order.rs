//! The order of a Machine's NodeUpdates, and which of them speaks for it.

use jiff::Timestamp;
use refit_kinds::refit::{MachineUid, NodeUpdate, Slot};

use super::snapshot::Snapshot;

/// Ordinal, creation timestamp and name.
type Order = (Option<u32>, Option<Timestamp>, String);

/// The other NodeUpdates of the same Machine, compared by uid.
pub(super) fn same_machine(s: &Snapshot) -> impl Iterator<Item = &NodeUpdate> + Clone {
    let uid = &s.update.spec.machine_ref.uid;
    s.siblings.iter().map(AsRef::as_ref).filter(move |other| other.spec.machine_ref.uid == *uid)
}

/// Whether `a` is newer than `b`: by ordinal, then by creation timestamp and name, so that a
/// NodeUpdate that Refit did not name is ordered too.
pub(super) fn is_newer(a: &NodeUpdate, b: &NodeUpdate) -> bool {
    order(a) > order(b)
}

pub(super) fn order(update: &NodeUpdate) -> Order {
    let name = update.metadata.name.clone().unwrap_or_default();
    let ordinal = refit_kinds::refit::ordinal_of(&name, &update.spec.machine_ref.name);
    let created = update.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (ordinal, created, name)
}

/// Whether the NodeUpdate has not ended.
pub(super) fn is_unfinished(update: &NodeUpdate) -> bool {
    !update.status.as_ref().map(|status| status.phase).unwrap_or_default().is_final()
}

/// Whether an ended NodeUpdate releases a slot of its Machine: its own, or, if it speaks for the Machine, that of another
/// one. Upkeep releases its own. `of_machine` are all NodeUpdates of the Machine.
pub(super) fn releases<'a>(
    update: &NodeUpdate,
    speaks: bool,
    slot: &Slot,
    mut of_machine: impl Iterator<Item = &'a NodeUpdate>,
) -> bool {
    let is_holder = |one: &NodeUpdate| one.metadata.name.as_ref() == Some(&slot.node_update);
    slot.machine_uid == update.spec.machine_ref.uid
        && (is_holder(update)
            || speaks && !of_machine.any(|one| is_holder(one) && one.spec.is_upkeep()))
}

/// Upkeep shows nothing of what a machine was brought to before.
fn rank(update: &NodeUpdate) -> (bool, bool, Order) {
    let is_unfinished = is_unfinished(update);
    (is_unfinished, is_unfinished || !update.spec.is_upkeep(), order(update))
}

/// The NodeUpdate that speaks for a Machine: the newest unfinished one, or else the newest; one that was only
/// upkeep only if there is no other.
pub fn speaker<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> Option<&'a NodeUpdate> {
    of_machine(updates, machine_uid).max_by_key(|update| rank(update))
}

/// The newest NodeUpdate of a Machine, whether it has ended or not.
pub fn newest<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> Option<&'a NodeUpdate> {
    of_machine(updates, machine_uid).max_by_key(|update| order(update))
}

/// The newest NodeUpdate of a Machine that is more than upkeep.
pub fn newest_upgrade<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> Option<&'a NodeUpdate> {
    let upgrades = updates.into_iter().filter(|update| !update.spec.is_upkeep());
    newest(upgrades, machine_uid)
}

/// The NodeUpdates of a Machine that count in the rollouts of its group: the one that speaks for it, and the newest one for
/// changed HostSettings, which does not once it has ended.
pub fn of_rollouts<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate> + Clone,
    machine_uid: &MachineUid,
) -> Vec<&'a NodeUpdate> {
    let speaker = speaker(updates.clone(), machine_uid);
    let settings = updates.into_iter().filter(|update| update.spec.changes_settings());
    let settings = newest(settings, machine_uid);
    let is_other = |settings: &&NodeUpdate| {
        speaker.is_none_or(|speaker| speaker.metadata.name != settings.metadata.name)
    };
    speaker.into_iter().chain(settings.filter(is_other)).collect()
}

fn of_machine<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> impl Iterator<Item = &'a NodeUpdate> {
    updates.into_iter().filter(move |update| update.spec.machine_ref.uid == *machine_uid)
}

/// Whether this NodeUpdate speaks for its Machine. Other NodeUpdates do not change the Machine's
/// condition and guard.
pub(super) fn speaks(s: &Snapshot) -> bool {
    let own_rank = rank(&s.update);
    same_machine(s).all(|other| rank(other) < own_rank)
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{NodeUpdateStatus, Phase};
    use serde_json::json;

    use super::*;

    fn update(ordinal: u32, goal: &serde_json::Value, phase: Phase) -> NodeUpdate {
        let mut update: NodeUpdate = serde_json::from_value(json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "NodeUpdate",
            "metadata": {"name": format!("m-{ordinal}")},
            "spec": {
                "machineRef": {"name": "m", "uid": "u"}, "origin": "Annotation", "goalHash": "",
                "goal": goal,
            },
        }))
        .unwrap();
        update.status = Some(NodeUpdateStatus { phase, ..NodeUpdateStatus::default() });
        update
    }

    #[test]
    fn upkeep_speaks_for_a_machine_while_it_works_and_hides_no_other_update_then() {
        let option = json!({"option": {"revision": "7"}});
        let certificates = json!({"certificates": {"lifetimeSeconds": 3600}});
        let settings = json!({"hostSettings": "5e"});
        for (updates, speaks) in [
            (vec![(1, &option, Phase::Failed), (2, &settings, Phase::Succeeded)], "m-1"),
            (vec![(1, &option, Phase::Succeeded), (2, &settings, Phase::Waiting)], "m-2"),
            (vec![(1, &option, Phase::Failed), (2, &certificates, Phase::Succeeded)], "m-1"),
            (vec![(1, &option, Phase::Failed), (2, &certificates, Phase::Failed)], "m-1"),
            (vec![(1, &option, Phase::Succeeded), (2, &certificates, Phase::Waiting)], "m-2"),
            (vec![(1, &certificates, Phase::Succeeded), (2, &option, Phase::Waiting)], "m-2"),
            (vec![(1, &certificates, Phase::Stopped), (2, &certificates, Phase::Failed)], "m-2"),
        ] {
            let all: Vec<NodeUpdate> =
                updates.into_iter().map(|(n, goal, phase)| update(n, goal, phase)).collect();
            let speaker = speaker(&all, &"u".into()).unwrap();
            assert_eq!(speaker.metadata.name.as_deref(), Some(speaks));
        }
    }
    #[test]
    fn an_update_of_changed_settings_counts_in_rollouts() {
        let option = json!({"option": {"revision": "7"}});
        let settings = json!({"hostSettings": "5e"});
        let certificates = json!({"certificates": {"lifetimeSeconds": 3600}});
        for (updates, counted) in [
            (vec![(1, &option, Phase::Succeeded)], vec!["m-1"]),
            (
                vec![(1, &option, Phase::Succeeded), (2, &settings, Phase::Failed)],
                vec!["m-1", "m-2"],
            ),
            (vec![(1, &settings, Phase::Failed)], vec!["m-1"]),
            (vec![(1, &settings, Phase::Failed), (2, &settings, Phase::Waiting)], vec!["m-2"]),
            (vec![(1, &option, Phase::Succeeded), (2, &certificates, Phase::Failed)], vec!["m-1"]),
        ] {
            let all: Vec<NodeUpdate> =
                updates.into_iter().map(|(n, goal, phase)| update(n, goal, phase)).collect();
            let found: Vec<_> = of_rollouts(&all, &"u".into())
                .into_iter()
                .map(|update| update.metadata.name.as_deref().unwrap())
                .collect();
            assert_eq!(found, counted);
        }
    }
}
