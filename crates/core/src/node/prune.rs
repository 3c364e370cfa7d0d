//! Which ended NodeUpdates of a Machine are deleted. Otherwise a Machine that is updated in place
//! for years would keep all of them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, Phase, Role, Slot, ordinal_of},
};

use super::{
    order::{newest, newest_upgrade, order, speaker},
    seen::NodeView,
};

/// How many of a Machine's newest NodeUpdates stay.
pub const KEPT_UPDATES: usize = 3;
/// How long an ended NodeUpdate stays at least. A cache that lacks what happened since then does not
/// exist: so a request always finds the NodeUpdates that it may compete with.
pub const KEPT_FOR: SignedDuration = SignedDuration::from_hours(1);

/// The NodeUpdates of a Machine that are no longer needed, the oldest first.
///
/// The newest one always stays, so the next ordinal is higher than every one that was ever used.
pub fn prunable<'a>(
    of_machine: &'a [Arc<NodeUpdate>],
    machine_uid: &MachineUid,
    slots: &[Slot],
    node: Option<&NodeView>,
    now: Timestamp,
) -> Vec<&'a NodeUpdate> {
    let all = || of_machine.iter().map(AsRef::as_ref);
    // A request finds the newest by its label.
    if !newest(all(), machine_uid).is_some_and(is_named_by_refit) {
        return Vec::new();
    }
    let with = |wanted: fn(&NodeUpdate) -> bool| {
        newest(all().filter(|update| wanted(update)), machine_uid).map(name)
    };
    let kept = [
        speaker(all(), machine_uid).map(name),
        newest_upgrade(all(), machine_uid).map(name),
        with(|update| update.phase() == Phase::Succeeded && !update.spec.is_upkeep()),
        // It shows whether the control plane has passed `kubeadm upgrade apply`.
        with(|update| role(update) == Some(Role::FirstControlPlane)),
        // It has answered a request, which must not be answered again.
        with(|update| update.spec.issues_certificates()),
        // It shows whether changed settings have failed, which must not be tried again.
        with(|update| update.spec.changes_settings()),
        // It shows which settings the host has.
        with(|update| {
            let status = update.status.as_ref();
            update.phase() == Phase::Succeeded
                && status.is_some_and(|status| status.host_settings.is_some())
        }),
    ];
    let mut sorted: Vec<&NodeUpdate> =
        all().filter(|update| update.spec.machine_ref.uid == *machine_uid).collect();
    sorted.sort_by_cached_key(|update| order(update));
    sorted.truncate(sorted.len().saturating_sub(KEPT_UPDATES));
    sorted.retain(|update| {
        is_named_by_refit(update)
            && is_long_over(update, now)
            && !kept.contains(&Some(name(update)))
            && !slots.iter().any(|slot| slot.node_update == name(update))
            && !node.is_some_and(|node| names(node, name(update)))
    });
    sorted
}

fn name(update: &NodeUpdate) -> &str {
    update.metadata.name.as_deref().unwrap_or_default()
}

fn role(update: &NodeUpdate) -> Option<Role> {
    update.status.as_ref().and_then(|status| status.role)
}

/// Whether the update has an ordinal and the label of its Machine.
fn is_named_by_refit(update: &NodeUpdate) -> bool {
    let machine = &update.spec.machine_ref.name;
    let labels = update.metadata.labels.as_ref();
    ordinal_of(name(update), machine).is_some()
        && labels.and_then(|labels| labels.get(keys::MACHINE_NAME)) == Some(machine)
}

fn is_long_over(update: &NodeUpdate, now: Timestamp) -> bool {
    let ended = update.status.as_ref().and_then(|status| status.finished_at.as_ref());
    update.phase().is_final() && ended.is_some_and(|ended| now.duration_since(ended.0) > KEPT_FOR)
}

/// Whether a Node carries a note of this NodeUpdate.
fn names(node: &NodeView, update: &str) -> bool {
    [&node.cordoned_by, &node.excluded_by].iter().any(|by| by.as_deref() == Some(update))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;
    use refit_kinds::refit::{
        Goal, GoalCertificates, MachineRef, NodeUpdateSpec, NodeUpdateStatus, Origin, Stage, Until,
        node_update_name,
    };

    use super::*;

    const NOW: i64 = 1_000_000;
    const LONG_AGO: i64 = 1_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn update(ordinal: u32, phase: Phase, ended: i64) -> NodeUpdate {
        let goal = Goal::of_version("v1.35.0".parse().unwrap());
        let mut update = NodeUpdate::new(
            &node_update_name("m", ordinal),
            NodeUpdateSpec {
                stage: Stage::Ongoing,
                until: Until::Disrupt,
                machine_ref: MachineRef { name: "m".into(), uid: "uid-m".into() },
                origin: Origin::Hook,
                goal_hash: goal.hash(),
                parts: None,
                bundle: None,
                goal,
            },
        );
        let label = (keys::MACHINE_NAME.to_owned(), "m".to_owned());
        update.metadata.labels = Some(BTreeMap::from([label]));
        update.status = Some(NodeUpdateStatus {
            phase,
            finished_at: phase.is_final().then(|| Time(at(ended))),
            ..NodeUpdateStatus::default()
        });
        update
    }

    fn slot(ordinal: u32) -> Slot {
        Slot {
            machine: "m".into(),
            machine_uid: "uid-m".into(),
            node_update: node_update_name("m", ordinal),
            since: Time(at(0)),
            claim: 1.into(),
        }
    }

    /// The ordinals of what is pruned.
    fn pruned(updates: Vec<NodeUpdate>, slots: &[Slot], node: Option<&NodeView>) -> Vec<u32> {
        let updates: Vec<_> = updates.into_iter().map(Arc::new).collect();
        let prunable = prunable(&updates, &"uid-m".into(), slots, node, at(NOW));
        prunable.iter().map(|update| ordinal_of(name(update), "m").unwrap()).collect()
    }

    fn stopped(ordinals: impl IntoIterator<Item = u32>) -> Vec<NodeUpdate> {
        let stopped = |ordinal| update(ordinal, Phase::Stopped, LONG_AGO);
        ordinals.into_iter().map(stopped).collect()
    }

    #[test]
    fn the_newest_few_stay() {
        assert_eq!(pruned(stopped(1..=3), &[], None), [0_u32; 0]);
        assert_eq!(pruned(stopped([12, 9, 10, 2, 11]), &[], None), [2, 9]);
    }

    #[test]
    fn updates_that_something_refers_to_stay() {
        let with = |change: fn(&mut NodeUpdate)| {
            let mut updates = stopped(1..=6);
            change(&mut updates[1]);
            pruned(updates, &[], None)
        };
        let phase_of_second = |phase| {
            let mut updates = stopped(1..=6);
            updates[1] = update(2, phase, LONG_AGO);
            pruned(updates, &[], None)
        };
        assert_eq!(with(|_| {}), [1, 2, 3]);
        assert_eq!(phase_of_second(Phase::Succeeded), [1, 3], "the newest that succeeded");
        assert_eq!(phase_of_second(Phase::Upgrading), [1, 3], "it has not ended");
        assert_eq!(
            with(|second| second.status.as_mut().unwrap().role = Some(Role::FirstControlPlane)),
            [1, 3],
            "the first control plane's"
        );
        let certificates = Some(GoalCertificates::default());
        let renewal = Goal { certificates, ..Goal::default() };
        let mut updates = stopped(1..=6);
        updates[1].spec.goal = renewal.clone();
        assert_eq!(pruned(updates, &[], None), [1, 3], "it answers a request");
        let mut updates = stopped(1..=6);
        for update in &mut updates[2..] {
            update.spec.goal = renewal.clone();
        }
        updates[5].status.as_mut().unwrap().phase = Phase::Waiting;
        assert_eq!(pruned(updates, &[], None), [1, 3], "the newest upgrade");
        assert_eq!(with(|second| second.metadata.labels = None), [1, 3], "an operator's");
        assert_eq!(
            with(|second| {
                second.status.as_mut().unwrap().finished_at = Some(Time(at(NOW - 60)));
            }),
            [1, 3],
            "it has just ended"
        );
        assert_eq!(
            with(|second| second.spec.machine_ref.uid = "another".into()),
            [1, 3],
            "another Machine's"
        );
        assert_eq!(pruned(stopped(1..=6), &[slot(1)], None), [2, 3], "it holds a slot");
        let node = NodeView { cordoned_by: Some("m-3".into()), ..NodeView::default() };
        assert_eq!(pruned(stopped(1..=6), &[], Some(&node)), [1, 2], "its cordon is left");
    }

    #[test]
    fn nothing_is_pruned_if_a_request_cannot_find_the_newest() {
        let mut updates = stopped(1..=6);
        updates[5].metadata.labels = None;
        assert_eq!(pruned(updates, &[], None), [0_u32; 0]);
    }

    fn phases() -> impl Strategy<Value = Phase> {
        prop::sample::select(vec![
            Phase::Pending,
            Phase::Upgrading,
            Phase::Succeeded,
            Phase::Failed,
            Phase::Stopped,
        ])
    }

    proptest! {
        /// What speaks for the Machine, what it is to be, and its next ordinal do not change.
        #[test]
        fn pruning_changes_no_answer(
            kinds in prop::collection::vec(
                (phases(), prop::bool::ANY, prop::bool::ANY, prop::bool::ANY), 1..12,
            ),
        ) {
            let updates: Vec<_> = (1..)
                .zip(&kinds)
                .map(|(ordinal, (phase, is_recent, is_first, is_renewal))| {
                    let ended = if *is_recent { NOW - 60 } else { LONG_AGO };
                    let mut update = update(ordinal, *phase, ended);
                    update.status.as_mut().unwrap().role =
                        is_first.then_some(Role::FirstControlPlane);
                    update.spec.goal.certificates =
                        is_renewal.then_some(GoalCertificates::default());
                    Arc::new(update)
                })
                .collect();
            let uid = "uid-m".into();
            let gone = prunable(&updates, &uid, &[], None, at(NOW));
            let left: Vec<_> =
                updates.iter().filter(|one| !gone.contains(&one.as_ref())).cloned().collect();
            prop_assert!(gone.iter().all(|update| update.phase().is_final()));
            prop_assert!(left.len() >= updates.len().min(KEPT_UPDATES));
            let answers = |all: &[Arc<NodeUpdate>]| {
                let all = || all.iter().map(AsRef::as_ref);
                let renews = |update: &&NodeUpdate| update.spec.issues_certificates();
                let succeeded = all()
                    .filter(|update| update.phase() == Phase::Succeeded && !renews(update));
                let first = all().filter(|update| role(update) == Some(Role::FirstControlPlane));
                [
                    newest(all(), &uid).map(name),
                    speaker(all(), &uid).map(name),
                    newest(succeeded, &uid).map(name),
                    newest(first, &uid).map(name),
                    newest(all().filter(renews), &uid).map(name),
                    newest_upgrade(all(), &uid).map(name),
                ]
                .map(|answer| answer.map(str::to_owned))
            };
            prop_assert_eq!(answers(&updates), answers(&left));
            // Once old enough, the rest is a fixed number.
            let later = at(NOW).checked_add(SignedDuration::from_hours(2)).unwrap();
            let gone = prunable(&updates, &uid, &[], None, later);
            let ended = updates.iter().filter(|update| update.phase().is_final()).count();
            prop_assert!(ended.saturating_sub(gone.len()) <= KEPT_UPDATES + 5);
        }
    }
}
