use refit_kinds::refit::ExceptionRule;
use serde_json::json;

use super::*;
use crate::change::{claim::Claim, patch::Patch, policy::OnUncovered};

fn side(version: &str) -> Objects {
    Objects {
        owner: json!({"kind": "Machine", "metadata": {"name": "m"},
            "spec": {"version": version, "clusterName": "c"}}),
        infrastructure: json!({"kind": "DockerMachine", "spec": {}}),
        bootstrap: Some(json!({"kind": "KubeadmConfig", "spec": {}})),
    }
}

fn host(machine: &str, report: HostReport) -> Host {
    Host {
        machine: machine.into(),
        deleting: false,
        report,
        kubelet: StatedVersion::Absent,
        unfinished: None,
        half_upgraded: false,
        exception: None,
    }
}

#[test]
fn a_held_or_skipped_machine_is_never_left_to_cluster_api() {
    let exception = |rule| Exception { machine: "m".into(), rule, reason: "disk".into() };
    let policies = [
        Policy::default(),
        Policy { disabled: true, ..Policy::default() },
        Policy { on_uncovered: OnUncovered::Replace, ..Policy::default() },
    ];
    for (rule, wanted) in [(ExceptionRule::Hold, "Held"), (ExceptionRule::Skip, "Skipped")] {
        for policy in &policies {
            let exception = Some(exception(rule));
            let hosts = vec![Host { exception, ..host("m", HostReport::Fresh) }];
            let known = Known { policy: policy.clone(), hosts, ..Known::default() };
            assert_eq!(reason(&known), wanted, "{policy:?}");
            let odd = can_update(Level::Machine, &side("v1.34.2"), &side("x"), &known);
            assert_eq!(odd.verdict.reason(), wanted, "{policy:?}");
            assert!(odd.verdict.message().contains("refit release m"));
            let set = can_update(Level::MachineSet, &side("v1.34.2"), &side("x"), &known);
            assert_ne!(set.verdict.reason(), wanted, "{policy:?}");
        }
    }
}

#[test]
fn the_request_for_a_held_machine_can_be_withdrawn() {
    let exception =
        Exception { machine: "m".into(), rule: ExceptionRule::Hold, reason: "disk".into() };
    let back = |policy| {
        let kubelet = "v1.34.2".into();
        let exception = Some(exception.clone());
        let hosts = vec![Host { kubelet, exception, ..host("m", HostReport::Fresh) }];
        let known = Known { policy, hosts, ..Known::default() };
        can_update(Level::Machine, &side("v1.35.0"), &side("v1.34.2"), &known).verdict.reason()
    };
    assert_eq!(back(Policy::default()), "Covered");
    assert_eq!(back(Policy { disabled: true, ..Policy::default() }), "Held");
}

fn silent(node: &str) -> HostReport {
    HostReport::Silent { node: node.into() }
}

fn peer(machine: &str, unfinished: Option<Unfinished>) -> Peer {
    Peer { machine: machine.into(), unfinished }
}

fn server(observed: &str, spec: &str) -> ControlPlaneMachine {
    let runs = StatedVersion::from(observed).or(spec.into());
    ControlPlaneMachine { machine: "cp".into(), runs }
}

fn reason(known: &Known) -> &'static str {
    can_update(Level::Machine, &side("v1.34.2"), &side("v1.35.0"), known).verdict.reason()
}

#[test]
fn the_table_of_answers() {
    let fresh = || vec![host("m", HostReport::Fresh)];
    let running = || peer("p", Some(Unfinished::NodeUpdate("p-1".into())));
    let table = [
        (Known { hosts: fresh(), ..Known::default() }, "Covered"),
        (Known { hosts: vec![host("m", silent("n"))], ..Known::default() }, "NoFreshReport"),
        (
            Known {
                hosts: vec![Host { deleting: true, ..host("m", silent("n")) }],
                policy: Policy { disabled: true, ..Policy::default() },
                ..Known::default()
            },
            "Deleting",
        ),
        (Known { peers: vec![peer("p", None)], ..Known::default() }, "Covered"),
        (
            Known { peers: vec![peer("p", None), running()], ..Known::default() },
            "AnotherMachineUpdating",
        ),
        (
            Known {
                hosts: vec![Host { kubelet: "v1.33.9".into(), ..host("m", HostReport::Fresh) }],
                ..Known::default()
            },
            "KubeletBehind",
        ),
        (
            Known {
                peers: vec![running()],
                hosts: vec![host("m", silent("n"))],
                ..Known::default()
            },
            "AnotherMachineUpdating",
        ),
        (
            Known {
                control_plane: vec![server("v1.34.2", "v1.35.0")],
                hosts: vec![host("m", silent("n"))],
                ..Known::default()
            },
            "ControlPlaneBehind",
        ),
        (
            Known { control_plane: vec![server("v1.35.0", "v1.35.0")], ..Known::default() },
            "Covered",
        ),
    ];
    for (known, wanted) in table {
        assert_eq!(reason(&known), wanted, "{known:?}");
    }
}

/// A MachineSet of this version, with its templates.
fn set(version: &str) -> Objects {
    let template = |spec: serde_json::Value| json!({"template": {"spec": spec}});
    Objects {
        owner: json!({"kind": "MachineSet", "metadata": {"name": "s"},
            "spec": template(json!({"version": version, "clusterName": "c"}))}),
        infrastructure: json!({"kind": "DockerMachineTemplate", "spec": template(json!({}))}),
        bootstrap: Some(json!({"kind": "KubeadmConfigTemplate", "spec": template(json!({}))})),
    }
}

#[test]
fn a_task_rolls_workers_back_to_a_patch_release() {
    let known = |rolls_back| Known {
        hosts: vec![Host { kubelet: "v1.34.9".into(), ..host("m", HostReport::Fresh) }],
        rolls_back,
        ..Known::default()
    };
    let set_back = |from: &str, to: &str, known: &Known| {
        can_update(Level::MachineSet, &set(from), &set(to), known).verdict.reason()
    };
    assert_eq!(set_back("v1.34.9", "v1.34.2", &known(true)), "Covered");
    assert_eq!(set_back("v1.34.9", "v1.34.2", &known(false)), "UncoveredPreserve");
    assert_eq!(set_back("v1.35.0", "v1.34.2", &known(true)), "UncoveredPreserve");
    let by_provider =
        Known { updaters: vec![crate::change::testing::provided("nodes", &[])], ..known(true) };
    assert_eq!(set_back("v1.34.9", "v1.34.2", &by_provider), "UncoveredPreserve");
    let member = can_update(Level::Machine, &side("v1.34.9"), &side("v1.34.2"), &known(true));
    assert_eq!(member.verdict.reason(), "UncoveredPreserve", "a control plane never goes back");
}

/// An Updater that leaves the image of infrastructure machines.
fn leaves_image() -> Updater {
    let claim = Claim {
        group: String::new(),
        kind: "DockerMachine".into(),
        paths: vec!["/spec/image".parse().unwrap()],
    };
    crate::change::testing::leaving("image", &[claim])
}

#[test]
fn a_claimed_change_of_an_infrastructure_machine_is_covered_only_if_its_provider_accepts_it() {
    let with_image = |version: &str, image: &str| {
        let mut side = side(version);
        side.infrastructure["spec"] = json!({"image": image});
        side
    };
    let (current, desired) = (with_image("v1.34.2", "a"), with_image("v1.35.0", "b"));
    let judged = |provider: Provider| {
        let known = Known { updaters: vec![leaves_image()], provider, ..Known::default() };
        can_update(Level::Machine, &current, &desired, &known)
    };
    let unknown = Provider::Unknown { why: "no right".into() };
    let accepts =
        |image: &str| Provider::Accepts { patch: Patch::Merge(json!({"spec": {"image": image}})) };
    assert_eq!(judged(accepts("b")).verdict.reason(), "Covered");
    assert_eq!(judged(accepts("c")).verdict.reason(), "ProviderUnknown");
    assert_eq!(judged(Provider::NotAsked).verdict.reason(), "ProviderUnknown");
    assert_eq!(judged(unknown).verdict.reason(), "ProviderUnknown");
    let refused = judged(Provider::Refuses { why: "spec is immutable".into() });
    assert_eq!(
        refused.verdict.uncovered(),
        [
            "DockerMachine/? spec.image: \"a\" -> \"b\" (the API server refuses it: spec is immutable)"
        ]
    );
    let secret = |side: &Objects| {
        let mut side = side.clone();
        side.infrastructure["spec"]["userData"] = json!("hunter2");
        side
    };
    let known = Known {
        updaters: vec![leaves_image()],
        provider: Provider::Refuses { why: "spec: Invalid value: {userData: hunter2}".into() },
        ..Known::default()
    };
    let hidden = can_update(Level::Machine, &secret(&current), &secret(&desired), &known);
    assert!(!hidden.verdict.message().contains("hunter2"), "{}", hidden.verdict.message());
    // A change that no one claims needs no answer of the provider.
    let known = Known::default();
    let plain = can_update(Level::Machine, &current, &desired, &known);
    assert_eq!(plain.verdict.reason(), "UncoveredPreserve");
}

#[test]
fn every_host_without_a_report_is_named() {
    let hosts = [
        host("a", HostReport::Fresh),
        host("b", silent("node-b")),
        host("c", HostReport::NoNode),
        host("d", HostReport::Unknown { reason: "not known".into() }),
        Host { deleting: true, ..host("e", HostReport::NoNode) },
    ];
    let Some(NotReady::NoFreshReport { nodes }) = no_fresh_report(&hosts, 0) else {
        panic!("hosts are silent");
    };
    assert_eq!(nodes, ["Node node-b", "Machine c (it has no Node)", "Machine d (not known)"]);
}

#[test]
fn a_group_tolerates_as_many_silent_hosts_as_it_may_have_down() {
    let refused = |fresh: usize, silent_hosts: usize, tolerated| {
        let fresh = (0..fresh).map(|n| host(&n.to_string(), HostReport::Fresh));
        let hosts: Vec<Host> =
            fresh.chain((0..silent_hosts).map(|_| host("s", silent("n")))).collect();
        no_fresh_report(&hosts, tolerated).is_some()
    };
    let table = [
        (9, 1, 0, true),
        (9, 1, 1, false),
        (8, 2, 1, true),
        (7, 3, 3, false),
        (0, 1, 1, true),
        (0, 0, 1, false),
    ];
    for (fresh, silent_hosts, tolerated, wanted) in table {
        let got = refused(fresh, silent_hosts, tolerated);
        assert_eq!(got, wanted, "{fresh} {silent_hosts} {tolerated}");
    }
}

#[test]
fn an_unfinished_update_counts_before_cluster_apis_mark() {
    let named = |name: &str| Some(Unfinished::NodeUpdate(name.into()));
    let updates = [("m-1", Phase::Succeeded), ("m-2", Phase::Staging)];
    assert_eq!(unfinished(updates, true), named("m-2"));
    assert_eq!(unfinished(updates, false), named("m-2"));
    assert_eq!(unfinished([("m-1", Phase::Failed)], true), Some(Unfinished::Marked));
    assert_eq!(unfinished([("m-1", Phase::Failed)], false), None);
}

#[test]
fn workers_of_a_hosted_control_plane_wait_for_the_version_of_its_api_server() {
    let (current, desired) = (side("v1.34.2"), side("v1.35.0"));
    for (runs, waits) in [
        (None, false),
        (Some("v1.35.0-eks-1"), false),
        (Some("v1.36.1"), false),
        (Some("v1.34.9"), true),
        (Some(""), true),
        (Some("rubbish"), true),
    ] {
        let api_server = runs.map(StatedVersion::from);
        let known = Known { api_server, ..Known::default() };
        let verdict = can_update(Level::Machine, &current, &desired, &known).verdict;
        assert_eq!(verdict.reason() == "ControlPlaneBehind", waits, "{runs:?}: {verdict:?}");
    }
}

#[test]
fn an_older_control_plane_holds_workers_back() {
    let target: KubernetesVersion = "v1.35.0".parse().unwrap();
    let table = [
        ("v1.34.9", "v1.35.0", true),
        ("v1.35.0", "v1.34.2", false),
        ("v1.36.1", "", false),
        ("", "v1.34.2", true),
        ("", "v1.35.2", false),
        ("rubbish", "", true),
        ("", "", false),
    ];
    for (observed, spec, wanted) in table {
        let got = behind(&[server(observed, spec)], &target);
        assert_eq!(got.is_some(), wanted, "{observed:?} {spec:?}");
    }
}

#[test]
fn a_report_is_fresh_for_a_quarter_of_an_hour() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let limit = SignedDuration::from_mins(15);
    assert_eq!(HostReport::of(&"n".into(), Some(at(1000)), limit, at(1900)), HostReport::Fresh);
    assert_eq!(HostReport::of(&"n".into(), Some(at(1000)), limit, at(1901)), silent("n"));
    assert_eq!(HostReport::of(&"n".into(), Some(at(1900)), limit, at(1000)), HostReport::Fresh);
    assert_eq!(HostReport::of(&"n".into(), Some(at(1901)), limit, at(1000)), silent("n"));
    assert_eq!(HostReport::of(&"n".into(), None, limit, at(0)), silent("n"));
}
