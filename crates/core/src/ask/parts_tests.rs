use refit_kinds::refit::{
    Disruption, Goal, GoalPart, NodeUpdate, NodeUpdateStatus, PartState, PartStatus, Phase,
    UpdatePart, UpdaterAction,
};

use super::*;
use crate::change::{AddedUpdater, Updater};

const VERSION: &str = "v1.35.0";

fn updater(name: &str, action: UpdaterAction) -> Updater {
    let part = UpdatePart {
        updater: name.into(),
        action,
        disruption: Disruption::Drain,
        timeout_seconds: None,
    };
    Updater::Added(AddedUpdater { part, claims: Vec::new() })
}

fn goal(parts: &[(&str, &str)]) -> Goal {
    let part = |(updater, hash): &(&str, &str)| GoalPart {
        updater: (*updater).to_owned(),
        hash: (*hash).to_owned(),
    };
    Goal { parts: parts.iter().map(part).collect(), ..Goal::of_version(VERSION.parse().unwrap()) }
}

/// An update that has ended, with the state of the part `memory`.
fn ended(ordinal: u32, phase: Phase, hash: &str, memory: PartState) -> NodeUpdate {
    let mut update = testing::update(ordinal, VERSION, phase);
    update.spec.goal = goal(&[("memory", hash)]);
    update.spec.parts = Some(vec![]);
    let part = PartStatus { updater: "memory".into(), state: memory, ..PartStatus::default() };
    update.status =
        Some(NodeUpdateStatus { phase, parts: vec![part], ..NodeUpdateStatus::default() });
    update
}

fn machine() -> MachineFacts {
    MachineFacts { name: "m".into(), uid: "u".into(), ..MachineFacts::default() }
}

/// The names of the updaters that work for a goal, on a machine that runs a version.
fn work(runs: &str, goal: &Goal, updates: &[&NodeUpdate]) -> Vec<String> {
    let machine = MachineFacts { kubelet_version: runs.parse().ok(), ..machine() };
    let updaters =
        [updater("memory", UpdaterAction::Update), updater("image", UpdaterAction::Leave)];
    let left = ["image".to_owned()];
    let offer = Offer { goal, is_kubeadm: true, updaters: &updaters, left: &left };
    parts(&machine, offer, updates).into_iter().map(|part| part.updater).collect()
}

#[test]
fn the_host_works_only_for_another_version_or_after_an_update_without_success() {
    let goal = goal(&[]);
    assert_eq!(work("v1.34.2", &goal, &[]), ["kubeadm"]);
    assert_eq!(work(VERSION, &goal, &[]), [""; 0]);
    let failed = testing::update(1, VERSION, Phase::Failed);
    assert_eq!(work(VERSION, &goal, &[&failed]), ["kubeadm"]);
    let succeeded = testing::update(2, VERSION, Phase::Succeeded);
    assert_eq!(work(VERSION, &goal, &[&failed, &succeeded]), [""; 0]);
}

#[test]
fn an_updater_works_unless_the_machine_has_its_part_of_the_goal() {
    use PartState::{Done, Pending, Running, Unverified};
    let wanted = goal(&[("memory", "16")]);
    let table = [
        (vec![], true),
        (vec![ended(1, Phase::Succeeded, "8", Done)], true),
        (vec![ended(1, Phase::Succeeded, "16", Unverified)], false),
        // The order of the ordinals counts, not that of the list.
        (
            vec![ended(10, Phase::Succeeded, "16", Done), ended(9, Phase::Succeeded, "8", Done)],
            false,
        ),
        // It had done its part before the update failed.
        (vec![ended(1, Phase::Failed, "16", Done)], false),
        (
            vec![ended(1, Phase::Succeeded, "16", Done), ended(2, Phase::Failed, "32", Running)],
            true,
        ),
        (
            vec![ended(1, Phase::Succeeded, "16", Done), ended(2, Phase::Stopped, "32", Pending)],
            false,
        ),
    ];
    for (updates, works) in table {
        let known: Vec<&NodeUpdate> = updates.iter().collect();
        let wanted_work: &[&str] = if works { &["memory"] } else { &[] };
        assert_eq!(work(VERSION, &wanted, &known), wanted_work, "{updates:#?}");
    }
}

#[test]
fn what_is_left_is_named_if_the_change_of_the_group_leaves_it() {
    let wanted = goal(&[("image", "b")]);
    assert_eq!(work(VERSION, &wanted, &[]), ["image"]);
    let machine = MachineFacts { kubelet_version: VERSION.parse().ok(), ..machine() };
    let updaters = [updater("image", UpdaterAction::Leave)];
    let offer = Offer { goal: &wanted, is_kubeadm: true, updaters: &updaters, left: &[] };
    assert_eq!(parts(&machine, offer, &[]), []);
}
