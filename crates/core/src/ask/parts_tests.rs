use refit_kinds::refit::{
    Disruption, Gate, Goal, GoalPart, NodeUpdate, NodeUpdateStatus, OsImageFrom, OsPackagesFrom,
    PartState, PartStatus, Phase, UpdatePart, UpdaterAction, UpdaterHost,
};

use serde_json::json;

use super::*;
use crate::change::{AddedUpdater, Claim, Objects, Updater};

const VERSION: &str = "v1.35.0";

fn part(name: &str, action: UpdaterAction) -> UpdatePart {
    UpdatePart {
        updater: name.into(),
        action,
        disruption: Disruption::Drain,
        timeout_seconds: None,
        host: None,
        template: None,
    }
}

fn updater(name: &str, action: UpdaterAction) -> Updater {
    let part = part(name, action);
    Updater::Added(AddedUpdater { part, claims: Vec::new(), host: None })
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
    update.spec.parts = Some(vec![part("memory", UpdaterAction::Update)]);
    let part = PartStatus { updater: "memory".into(), state: memory, ..PartStatus::default() };
    update.status =
        Some(NodeUpdateStatus { phase, parts: vec![part], ..NodeUpdateStatus::default() });
    update
}

fn desired() -> Objects {
    Objects {
        owner: json!({"kind": "Machine"}),
        infrastructure: json!({"apiVersion": "g/v1", "kind": "M", "spec": {"image": {
            "url": "http://images/os-2.cosi?x=1", "checksum": "ab".repeat(48), "short": "abc",
        }}}),
        bootstrap: None,
    }
}

fn machine() -> MachineFacts {
    MachineFacts { name: "m".into(), uid: "u".into(), ..MachineFacts::default() }
}

/// The names of the updaters that work for a goal, on a machine that runs a version.
fn work(runs: &str, goal: &Goal, updates: &[&NodeUpdate]) -> Vec<String> {
    let machine = MachineFacts { kubelet_version: runs.parse().ok(), ..machine() };
    let updaters =
        [updater("memory", UpdaterAction::Update), updater("image", UpdaterAction::Leave)];
    let offer = Offer { goal, desired: &desired(), updaters: &updaters };
    parts(&machine, offer, updates).unwrap().into_iter().map(|part| part.updater).collect()
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
fn a_left_part_is_listed_once() {
    let wanted = goal(&[("image", "b")]);
    assert_eq!(work(VERSION, &wanted, &[]), ["image"]);
    let mut left = ended(1, Phase::Succeeded, "-", PartState::Left);
    left.spec.goal = wanted.clone();
    left.status.as_mut().unwrap().parts[0].updater = "image".into();
    left.spec.parts = Some(vec![part("image", UpdaterAction::Leave)]);
    assert_eq!(work(VERSION, &wanted, &[&left]), [""; 0]);
}

#[test]
fn a_part_that_an_update_lists_and_has_not_ended_is_made_again() {
    let wanted = goal(&[("memory", "16")]);
    let mut back = ended(1, Phase::Succeeded, "16", PartState::Pending);
    assert_eq!(work(VERSION, &wanted, &[&back]), ["memory"]);
    // It was called with a newer value than that of the goal.
    back.status.as_mut().unwrap().parts[0] = PartStatus {
        updater: "memory".into(),
        state: PartState::Done,
        hash: "32".into(),
        ..PartStatus::default()
    };
    assert_eq!(work(VERSION, &wanted, &[&back]), ["memory"]);
    assert_eq!(work(VERSION, &goal(&[("memory", "32")]), &[&back]), [""; 0]);
}

#[test]
fn the_arguments_of_the_agents_steps_come_from_the_desired_objects() {
    let with = |checksum_from: &str| {
        let host = UpdaterHost::OsImage(OsImageFrom {
            url_from: "/spec/image/url".into(),
            checksum_from: checksum_from.into(),
            name_from: None,
            brings_kubelet: true,
        });
        let paths = vec!["/spec/image/**".parse().unwrap()];
        let claims = vec![Claim { group: "g".into(), kind: "M".into(), paths }];
        let Updater::Added(added) = updater("image", UpdaterAction::Update) else { unreachable!() };
        let updaters = [Updater::Added(AddedUpdater { claims, host: Some(host), ..added })];
        let goal = goal(&[("image", "b")]);
        let machine = MachineFacts { kubelet_version: VERSION.parse().ok(), ..machine() };
        let offer = Offer { goal: &goal, desired: &desired(), updaters: &updaters };
        parts(&machine, offer, &[])
    };
    let made = with("/spec/image/checksum").unwrap();
    let image = made[0].host.as_ref().unwrap().os_image().unwrap();
    assert_eq!((image.name.as_str(), image.url.as_str()), ("os-2", "http://images/os-2.cosi?x=1"));
    assert!(image.brings_kubelet && image.sha384.starts_with("abab"));
    for (path, what) in
        [("/spec/image/short", "no sha384 of 96 hex digits"), ("/spec/image/absent", "missing")]
    {
        let error = with(path).unwrap_err().to_string();
        assert_eq!(error, format!("Updater image needs {path} in M, and it is {what}"));
    }
}

#[test]
fn a_part_that_asks_the_agent_for_nothing_is_not_listed_and_counts_as_reached() {
    let of = |spec: serde_json::Value, updates: &[&NodeUpdate]| {
        let from = OsPackagesFrom {
            install_from: Some("/spec/packages".into()),
            ..OsPackagesFrom::default()
        };
        let paths = vec!["/spec/packages/**".parse().unwrap()];
        let claims = vec![Claim { group: "g".into(), kind: "M".into(), paths }];
        let Updater::Added(added) = updater("memory", UpdaterAction::Update) else {
            unreachable!()
        };
        let host = Some(UpdaterHost::OsPackages(from));
        let updaters = [Updater::Added(AddedUpdater { claims, host, ..added })];
        let infrastructure = json!({"apiVersion": "g/v1", "kind": "M", "spec": spec});
        let desired = Objects { infrastructure, ..desired() };
        let machine = MachineFacts { kubelet_version: VERSION.parse().ok(), ..machine() };
        let goal = goal(&[("memory", "none")]);
        parts(&machine, Offer { goal: &goal, desired: &desired, updaters: &updaters }, updates)
    };
    let one = json!({"packages": [{"name": "vim", "version": "*"}]});
    let made = of(one.clone(), &[]).unwrap();
    assert_eq!(made[0].host.as_ref().unwrap().os_packages().unwrap().install[0].name, "vim");
    assert_eq!(of(json!({}), &[]), Ok(Vec::new()));
    assert_eq!(of(json!({"packages": []}), &[]), Ok(Vec::new()));
    // An update without the part has reached it.
    let mut before = ended(1, Phase::Succeeded, "none", PartState::Done);
    before.spec.parts = Some(Vec::new());
    assert_eq!(of(one, &[&before]), Ok(Vec::new()));
}

#[test]
fn a_provider_of_versions_works_instead_of_the_host() {
    let updaters = [crate::change::testing::provided("nodes", &[])];
    let goal = goal(&[("nodes", "h")]);
    let offer = Offer { goal: &goal, desired: &desired(), updaters: &updaters };
    let work = |runs: &str, updates: &[&NodeUpdate]| -> Vec<String> {
        let machine = MachineFacts { kubelet_version: runs.parse().ok(), ..machine() };
        parts(&machine, offer, updates).unwrap().into_iter().map(|part| part.updater).collect()
    };
    assert_eq!(work("v1.34.2", &[]), ["nodes"]);
    // It has ended its part once, and the machine runs another version again.
    let mut ended = testing::update(1, VERSION, Phase::Succeeded);
    ended.spec.goal = goal.clone();
    ended.spec.parts = Some(Vec::new());
    assert_eq!(work(VERSION, &[&ended]), [""; 0]);
    assert_eq!(work("v1.34.2", &[&ended]), ["nodes"]);
}

#[test]
fn a_provider_that_failed_after_its_gate_had_opened_works_on_the_way_back_too() {
    let reached = ended(1, Phase::Succeeded, "8", PartState::Done);
    let mut failed = ended(2, Phase::Failed, "16", PartState::Ongoing);
    failed.status.as_mut().unwrap().parts[0].gate = Some(Gate::Disrupt);
    assert_eq!(work(VERSION, &goal(&[("memory", "8")]), &[&reached, &failed]), ["memory"]);
    failed.status.as_mut().unwrap().parts[0].gate = Some(Gate::Stage);
    assert_eq!(work(VERSION, &goal(&[("memory", "8")]), &[&reached, &failed]), [""; 0]);
}
