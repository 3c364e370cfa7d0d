use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    claim::Claim,
    cover::{AddedUpdater, Claimed, Coverage, Updater, cover},
    objects::{Level, Objects},
    patch::Patch,
    testing::{any_object, leaving, provided},
};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const CORE: &str = "cluster.x-k8s.io";

fn claim(group: &str, kind: &str, paths: &[&str]) -> Claim {
    Claim {
        group: group.into(),
        kind: kind.into(),
        paths: paths.iter().map(|path| path.parse().unwrap()).collect(),
    }
}

fn leave(name: &str, claims: &[Claim]) -> Updater {
    leaving(name, claims)
}

/// An Updater that leaves these paths of the infrastructure machine.
fn leave_paths(name: &str, paths: &[&str]) -> Updater {
    leave(name, &[claim(INFRASTRUCTURE, "DockerMachine", paths)])
}

fn leave_all() -> Updater {
    let all = |(group, kind)| claim(group, kind, &["/spec/**"]);
    let kinds = [
        (CORE, "Machine"),
        (INFRASTRUCTURE, "DockerMachine"),
        (INFRASTRUCTURE, "VSphereMachine"),
        (BOOTSTRAP, "KubeadmConfig"),
    ];
    leave("all", &kinds.map(all))
}

/// The names of those that claimed a change.
fn claimants(coverage: &Coverage) -> Vec<&str> {
    let mut names: Vec<&str> = coverage.claimed.iter().map(|one| &*one.updater).collect();
    names.dedup();
    names
}

fn machine(version: &str, infrastructure: &Value, bootstrap: &Value) -> Objects {
    let object = |group: &str, kind: &str, spec: &Value| {
        json!({"apiVersion": format!("{group}/v1beta2"),
        "kind": kind, "metadata": {"name": "edge-1-a"}, "spec": spec})
    };
    Objects {
        owner: object(CORE, "Machine", &json!({"version": version, "clusterName": "edge-1"})),
        infrastructure: object(INFRASTRUCTURE, "DockerMachine", infrastructure),
        bootstrap: Some(object(BOOTSTRAP, "KubeadmConfig", bootstrap)),
    }
}

fn set(version: &str, template: &str, infrastructure: &Value, bootstrap: &Value) -> Objects {
    let wrap = |group: &str, kind: &str, spec: &Value| {
        json!({"apiVersion": format!("{group}/v1beta2"),
        "kind": kind, "metadata": {"name": template}, "spec": {"template": {"spec": spec}}})
    };
    Objects {
        owner: wrap(CORE, "MachineSet", &json!({"version": version})),
        infrastructure: wrap(INFRASTRUCTURE, "VSphereMachineTemplate", infrastructure),
        bootstrap: Some(wrap(BOOTSTRAP, "KubeadmConfigTemplate", bootstrap)),
    }
}

fn lines(level: Level, current: &Objects, desired: &Objects) -> Vec<String> {
    cover(level, current, desired, false, &[&Updater::Kubeadm]).lines()
}

fn patched(value: &Value, patch: Option<&Patch>) -> Value {
    let mut value = value.clone();
    match patch {
        None => {}
        Some(Patch::Merge(body)) => json_patch::merge(&mut value, body),
        Some(Patch::Json(body)) => {
            let patch: json_patch::Patch = serde_json::from_value(body.clone()).unwrap();
            json_patch::patch(&mut value, &patch).unwrap();
        }
    }
    value
}

#[test]
fn a_version_bump_of_a_machine_is_covered_by_kubeadm() {
    let none = json!({});
    let (current, desired) = (machine("v1.34.2", &none, &none), machine("v1.35.0", &none, &none));
    let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete());
    assert_eq!(claimants(&coverage), ["kubeadm"]);
    assert_eq!(coverage.patches.owner, Some(Patch::Merge(json!({"spec": {"version": "v1.35.0"}}))));
    assert_eq!(coverage.patches.infrastructure, None);
    assert_eq!(coverage.patches.bootstrap, None);
}

#[test]
fn a_lower_version_is_covered_if_every_host_still_runs_it() {
    let none = json!({});
    let (current, desired) = (machine("v1.35.0", &none, &none), machine("v1.34.2", &none, &none));
    assert!(cover(Level::Machine, &current, &desired, true, &[&Updater::Kubeadm]).is_complete());
    assert!(!cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]).is_complete());
    let rubbish = machine("1.34", &none, &none);
    assert!(!cover(Level::Machine, &current, &rubbish, true, &[&Updater::Kubeadm]).is_complete());
}

/// Each path was once compared with all others: this config took a minute.
#[test]
fn a_change_of_too_many_paths_is_not_covered() {
    let config = |paths: usize, value: &str| {
        let args: serde_json::Map<String, Value> =
            (0..paths).map(|n| (format!("a{n}"), json!(value))).collect();
        json!({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": args}}})
    };
    let none = json!({});
    for paths in [1_900, 2_001, 20_000] {
        let current = machine("v1.34.2", &none, &config(paths, "x"));
        let desired = machine("v1.34.3", &none, &config(paths, "y"));
        let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
        // Of the largest change, the version and the first 2,001 paths are listed.
        let listed = if paths > 2_000 { 1 + 2_001 } else { paths };
        assert_eq!(coverage.uncovered.len(), listed, "{paths}");
    }
}

#[test]
fn versions_beyond_one_kubeadm_step_are_not_covered() {
    let none = json!({});
    let table = [
        ("v1.34.2", "v1.34.3", true),
        ("v1.34.2", "v1.35.0", true),
        ("v1.34.2", "v1.36.0", false),
        ("v1.35.0", "v1.34.2", false),
        ("v1.35.1", "v1.35.0", false),
        ("v1.35.0", "v2.0.0", false),
        ("v1.35.0", "latest", false),
    ];
    for (from, to, covered) in table {
        let got = lines(Level::Machine, &machine(from, &none, &none), &machine(to, &none, &none));
        assert_eq!(got.is_empty(), covered, "{from} -> {to}");
        if !covered {
            let line =
                format!("Machine/edge-1-a spec.version: \"{from}\" -> \"{to}\" (no updater)");
            assert_eq!(got, [line]);
        }
    }
}

#[test]
fn an_infrastructure_change_is_shown_as_a_path_line() {
    let none = json!({});
    let current = set("v1.34.2", "edge-1-worker", &json!({"template": "A"}), &none);
    let desired = set("v1.35.0", "edge-1-worker-2", &json!({"template": "B"}), &none);
    assert_eq!(
        lines(Level::MachineSet, &current, &desired),
        [
            r#"VSphereMachineTemplate/edge-1-worker spec.template.spec.template: "A" -> "B" (no updater)"#
        ]
    );
}

#[test]
fn a_template_that_was_only_renamed_needs_no_patch() {
    let (infra, none) = (json!({"cpus": 4}), json!({}));
    let current = set("v1.34.2", "worker-1", &infra, &none);
    let desired = set("v1.35.0", "worker-2", &infra, &none);
    let coverage = cover(Level::MachineSet, &current, &desired, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete());
    assert_eq!(coverage.patches.infrastructure, None);
    assert_eq!(
        coverage.patches.owner,
        Some(Patch::Merge(json!({"spec": {"template": {"spec": {"version": "v1.35.0"}}}})))
    );
}

#[test]
fn only_version_and_failure_domain_of_a_machine_count() {
    let none = json!({});
    let current = machine("v1.34.2", &none, &none);
    let mut desired = machine("v1.35.0", &none, &none);
    desired.owner["spec"]["minReadySeconds"] = json!(5);
    desired.owner["spec"]["taints"] = json!([{"key": "x"}]);
    desired.owner["spec"]["failureDomain"] = json!("");
    desired.owner["metadata"]["labels"] = json!({"a": "b"});
    let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    assert_eq!(coverage.patches.owner, Some(Patch::Merge(json!({"spec": {"version": "v1.35.0"}}))));
    desired.owner["spec"]["failureDomain"] = json!("b");
    assert_eq!(
        lines(Level::Machine, &current, &desired),
        [r#"Machine/edge-1-a spec.failureDomain: (absent) -> "b" (no updater)"#]
    );
}

#[test]
fn the_feature_gate_that_follows_the_version_is_covered() {
    let gate =
        json!({"clusterConfiguration": {"featureGates": {"ControlPlaneKubeletLocalMode": true}}});
    let none = json!({});
    let empty = json!({"clusterConfiguration": {"featureGates": {}}});
    let table = [
        ("v1.35.2", &gate, "v1.36.0", &none, true),
        ("v1.35.2", &gate, "v1.36.0", &empty, true),
        ("v1.30.9", &none, "v1.31.0", &gate, true),
        ("v1.36.0", &none, "v1.36.1", &gate, false),
        ("v1.36.0", &gate, "v1.36.1", &none, false),
    ];
    for (from, before, to, after, covered) in table {
        let (current, desired) = (machine(from, &none, before), machine(to, &none, after));
        let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
        assert_eq!(coverage.is_complete(), covered, "{from} -> {to}: {:?}", coverage.lines());
        if covered {
            let bootstrap = current.bootstrap.as_ref().unwrap();
            let got = patched(bootstrap, coverage.patches.bootstrap.as_ref());
            assert_eq!(got["spec"], *after, "{from} -> {to}");
        }
    }
}

#[test]
fn another_feature_gate_is_not_covered() {
    let before = json!({"clusterConfiguration": {"featureGates":
        {"ControlPlaneKubeletLocalMode": true, "Other": false}}});
    let after = json!({"clusterConfiguration": {"featureGates": {"Other": true}}});
    let none = json!({});
    let (current, desired) =
        (machine("v1.35.0", &none, &before), machine("v1.36.0", &none, &after));
    assert_eq!(
        lines(Level::Machine, &current, &desired),
        [
            "KubeadmConfig/edge-1-a spec.clusterConfiguration.featureGates.Other: false -> true (no updater)"
        ]
    );
}

#[test]
fn an_init_configuration_may_become_the_same_join_configuration() {
    let registration = json!({"name": "n", "taints": []});
    let init = json!({"initConfiguration": {"nodeRegistration": registration,
        "localAPIEndpoint": {"bindPort": 6443}, "skipPhases": ["a"]}});
    let mut join = json!({"joinConfiguration": {"nodeRegistration": registration,
        "controlPlane": {"localAPIEndpoint": {"bindPort": 6443}}, "skipPhases": ["a"],
        "caCertPath": "/ca.crt", "discovery": {"bootstrapToken": {"token": "t"}}}});
    let none = json!({});
    let current = machine("v1.34.2", &none, &init);
    let desired = machine("v1.35.0", &none, &join);
    let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    let got = patched(current.bootstrap.as_ref().unwrap(), coverage.patches.bootstrap.as_ref());
    assert_eq!(got["spec"], join);

    join["joinConfiguration"]["nodeRegistration"]["name"] = json!("other");
    let desired = machine("v1.35.0", &none, &join);
    assert!(!cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]).is_complete());
}

#[test]
fn empty_taints_differ_from_absent_taints() {
    let none = json!({});
    let with = |taints: &Value| {
        machine("v1.34.2", &none, &json!({"joinConfiguration": {"nodeRegistration": taints}}))
    };
    let (empty, absent) = (with(&json!({"taints": [], "name": "n"})), with(&json!({"name": "n"})));
    assert_eq!(lines(Level::Machine, &empty, &absent).len(), 1);
}

#[test]
fn empty_members_of_a_bootstrap_config_are_covered() {
    let none = json!({});
    let current = machine("v1.34.2", &none, &json!({"files": [], "users": null, "ntp": {}}));
    let desired = machine("v1.35.0", &none, &json!({"mounts": []}));
    let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    let got = patched(current.bootstrap.as_ref().unwrap(), coverage.patches.bootstrap.as_ref());
    assert_eq!(got["spec"], json!({"mounts": []}));
}

#[test]
fn an_empty_member_of_an_infrastructure_machine_is_a_difference() {
    let none = json!({});
    let current = machine("v1.34.2", &json!({"disks": []}), &none);
    let desired = machine("v1.35.0", &none, &none);
    assert_eq!(
        lines(Level::Machine, &current, &desired),
        ["DockerMachine/edge-1-a spec.disks: [] -> (absent) (no updater)"]
    );
}

#[test]
fn machines_not_bootstrapped_by_kubeadm_are_not_covered() {
    let none = json!({});
    let (mut current, mut desired) =
        (machine("v1.34.2", &none, &none), machine("v1.35.0", &none, &none));
    for objects in [&mut current, &mut desired] {
        objects.bootstrap.as_mut().unwrap()["kind"] = json!("RKE2Config");
    }
    assert_eq!(lines(Level::Machine, &current, &desired).len(), 1);
    current.bootstrap = None;
    desired.bootstrap = None;
    assert_eq!(lines(Level::Machine, &current, &desired).len(), 1);
}

#[test]
fn a_bootstrap_config_on_one_side_only_is_one_difference() {
    let none = json!({});
    let current = machine("v1.34.2", &none, &none);
    let mut desired = machine("v1.34.2", &none, &none);
    desired.bootstrap = None;
    assert_eq!(
        lines(Level::Machine, &current, &desired),
        ["KubeadmConfig/edge-1-a present -> absent (no updater)"]
    );
}

#[test]
fn secrets_of_a_bootstrap_config_never_show() {
    let none = json!({});
    let files = |content: &str| {
        json!({
        "files": [{"path": "/a", "content": content}], "users": [{"passwd": content}],
        "preKubeadmCommands": [content], "format": "ignition", "sshToken": content})
    };
    let current = machine("v1.34.2", &none, &files("hunter2"));
    let desired = machine("v1.34.2", &none, &files("hunter3"));
    let lines = lines(Level::Machine, &current, &desired);
    assert_eq!(lines.len(), 4);
    for line in &lines {
        assert!(!line.contains("hunter"), "{line}");
        assert!(line.ends_with(": (hidden) -> (hidden) (no updater)"), "{line}");
    }
}

#[test]
fn secrets_of_an_infrastructure_machine_never_show() {
    let none = json!({});
    let secret = json!({
        "auth": {"user": "root", "more": [{"password": "hunter2"}]},
        "userData": "hunter2",
        "sshKey": {"privateKey": "hunter2"},
        "cpus": 4,
    });
    let current = machine("v1.34.2", &none, &none);
    let desired = machine("v1.34.2", &secret, &none);
    let lines = lines(Level::Machine, &current, &desired);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| !line.contains("hunter")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("spec.cpus: (absent) -> 4")), "{lines:?}");
}

#[test]
fn long_values_are_cut_at_a_character() {
    let none = json!({});
    let current = machine("v1.34.2", &json!({"a": "ä".repeat(200)}), &none);
    let desired = machine("v1.34.2", &none, &none);
    let line = &lines(Level::Machine, &current, &desired)[0];
    assert!(line.chars().count() < 160 && line.contains("..."), "{line}");
}

#[test]
fn updaters_claim_in_order_and_pass_on_the_rest() {
    let none = json!({});
    let current = machine("v1.34.2", &json!({"cpus": 2, "memory": 4}), &none);
    let desired = machine("v1.35.0", &json!({"cpus": 4, "memory": 8}), &none);
    let cpus = leave_paths("cpus", &["/spec/cpus"]);
    let both = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm, &cpus]);
    assert_eq!(claimants(&both), ["kubeadm", "cpus"]);
    assert_eq!(both.lines(), ["DockerMachine/edge-1-a spec.memory: 4 -> 8 (no updater)"]);
    let all = leave_all();
    let late = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm, &all, &cpus]);
    assert_eq!(claimants(&late), ["kubeadm", "all"]);
    assert!(late.is_complete());
    let shown: Vec<String> = late.claimed.iter().map(Claimed::line).collect();
    assert_eq!(
        shown,
        [
            "Machine/edge-1-a spec.version: \"v1.34.2\" -> \"v1.35.0\" (kubeadm)",
            "DockerMachine/edge-1-a spec.cpus: 2 -> 4 (left as it is by all)",
            "DockerMachine/edge-1-a spec.memory: 4 -> 8 (left as it is by all)",
        ]
    );
}

#[test]
fn a_claim_on_a_machine_holds_for_the_template_that_makes_it() {
    let none = json!({});
    let sides = |image: &str| set("v1.34.2", "t", &json!({"image": {"url": image}}), &none);
    let of = |group: &str, kind: &str| leave("image", &[claim(group, kind, &["/spec/image/**"])]);
    for (updater, covers) in [
        (of(INFRASTRUCTURE, "VSphereMachine"), true),
        (of(INFRASTRUCTURE, "VSphereMachineTemplate"), false),
        (of(INFRASTRUCTURE, "DockerMachine"), false),
        (of(BOOTSTRAP, "VSphereMachine"), false),
    ] {
        let coverage = cover(Level::MachineSet, &sides("a"), &sides("b"), false, &[&updater]);
        assert_eq!(coverage.is_complete(), covers, "{updater:?}");
    }
}

#[test]
fn equal_objects_have_complete_coverage() {
    let none = json!({});
    let same = machine("v1.34.2", &none, &none);
    let coverage = cover(Level::Machine, &same, &same, false, &[&Updater::Kubeadm]);
    assert!(coverage.is_complete() && coverage.claimed.is_empty());
    assert_eq!(coverage.patches, super::Patches::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn covered_objects_become_exactly_the_desired_ones(
        infra in any_object(), infra2 in any_object(), boot in any_object(), boot2 in any_object(),
        at_set in any::<bool>(),
    ) {
        let (level, current, desired) = if at_set {
            let (a, b) = (set("v1.34.2", "a", &infra, &boot), set("v1.36.0", "b", &infra2, &boot2));
            (Level::MachineSet, a, b)
        } else {
            let (a, b) = (machine("v1.34.2", &infra, &boot), machine("v1.36.0", &infra2, &boot2));
            (Level::Machine, a, b)
        };
        let coverage = cover(level, &current, &desired, false, &[&leave_all()]);
        prop_assert!(coverage.is_complete());
        let root = super::objects::root(level);
        let infra = patched(&current.infrastructure, coverage.patches.infrastructure.as_ref());
        prop_assert_eq!(root.get(&infra), root.get(&desired.infrastructure));
        let boot = patched(current.bootstrap.as_ref().unwrap(), coverage.patches.bootstrap.as_ref());
        prop_assert_eq!(root.get(&boot), root.get(desired.bootstrap.as_ref().unwrap()));
        let owner = patched(&current.owner, coverage.patches.owner.as_ref());
        prop_assert_eq!(&owner["metadata"], &current.owner["metadata"]);
        prop_assert_eq!(root.key("version").get(&owner), root.key("version").get(&desired.owner));
    }

    #[test]
    fn a_complete_claim_gives_the_desired_bootstrap_spec(boot in any_object(), boot2 in any_object()) {
        let none = json!({});
        let (current, desired) = (machine("v1.35.2", &none, &boot), machine("v1.36.0", &none, &boot2));
        let coverage = cover(Level::Machine, &current, &desired, false, &[&Updater::Kubeadm]);
        if coverage.is_complete() {
            let got = patched(current.bootstrap.as_ref().unwrap(), coverage.patches.bootstrap.as_ref());
            prop_assert_eq!(&got["spec"], &boot2);
        }
    }
}

/// A provider that brings machines to a version.
fn provider() -> Updater {
    let memory = claim(INFRASTRUCTURE, "DockerMachine", &["/spec/memory"]);
    provided("nodes", &[claim(CORE, "Machine", &["/spec/version"]), memory])
}

#[test]
fn a_provider_takes_the_version_with_all_that_changes_along_with_it() {
    let config = |feature: bool| json!({"clusterConfiguration": {"featureGates": {"A": feature}}});
    let from = machine("v1.34.2", &json!({"memory": 1}), &config(false));
    let to = machine("v1.35.0", &json!({"memory": 2}), &config(false));
    let coverage = cover(Level::Machine, &from, &to, false, &[&provider()]);
    assert!(coverage.is_complete(), "{:?}", coverage.lines());
    assert_eq!(claimants(&coverage), ["nodes"]);
    assert!(!coverage.needs_agents());
}

#[test]
fn a_provider_does_not_take_a_version_that_no_upgrade_reaches() {
    for (from, to) in [("v1.35.0", "v1.34.2"), ("v1.33.0", "v1.35.0")] {
        let (from, to) =
            (machine(from, &json!({}), &json!({})), machine(to, &json!({}), &json!({})));
        let coverage = cover(Level::Machine, &from, &to, false, &[&provider()]);
        assert!(!coverage.is_complete());
    }
}

#[test]
fn a_value_that_the_agent_cannot_use_is_uncovered_with_its_reason() {
    let packages = claim(INFRASTRUCTURE, "VSphereMachine", &["/spec/packages/**"]);
    let Updater::Added(added) = leave("patches", &[packages]) else { unreachable!() };
    let from = json!({"osPackages": {"installFrom": "/spec/packages"}});
    let host = serde_json::from_value(from).unwrap();
    let updater = Updater::Added(AddedUpdater { host, ..added });
    let of = |packages: &Value, updaters: &[&Updater]| {
        let with = |spec: &Value| set("v1.35.0", "a", spec, &json!({}));
        let (from, to) = (with(&json!({})), with(&json!({ "packages": packages })));
        cover(Level::MachineSet, &from, &to, false, updaters)
    };
    let good = json!([{"name": "vim", "version": "9.*"}]);
    assert_eq!(claimants(&of(&good, &[&updater])), ["patches"]);
    let bad = json!([{"name": "vim"}]);
    assert_eq!(
        of(&bad, &[&updater]).lines(),
        [
            "VSphereMachineTemplate/a spec.template.spec.packages: (absent) -> [{\"name\":\"vim\"}] (Updater patches needs \
          /spec/packages/0 in VSphereMachine, and it is not a package to install: vim has no version: * is the newest one)"
        ]
    );
    // Another updater may make the change.
    let all = claim(INFRASTRUCTURE, "VSphereMachine", &["/spec/**"]);
    assert_eq!(claimants(&of(&bad, &[&updater, &leave("rest", &[all])])), ["rest"]);
}
