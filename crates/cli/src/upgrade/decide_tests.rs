use refit_predict::GroupRef;

use super::*;

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.35.0";

fn v(text: &str) -> KubernetesVersion {
    text.parse().unwrap()
}

fn group(object: &str, version: &str) -> Group {
    Group {
        object: object.into(),
        name: object.rsplit('/').next().unwrap().into(),
        version: version.into(),
        resource_version: "7".into(),
        settled: true,
        under_way: Vec::new(),
        uncovered: None,
        kubelets: vec![version.into()],
        managed: false,
        reach: Ok(()),
        paused_by: None,
        shows_gates: true,
    }
}

fn cluster(control_plane: &str, workers: &str) -> Facts {
    Facts {
        cluster: "c".into(),
        topology: None,
        control_plane: Some(group("KubeadmControlPlane/cp", control_plane)),
        deployments: vec![group("MachineDeployment/md", workers)],
        with_control_plane: true,
        with_deployments: true,
    }
}

/// The control plane as the target.
fn plane(control_plane: &str, workers: &str) -> Facts {
    Facts { with_deployments: false, ..cluster(control_plane, workers) }
}

/// The workers as the target.
fn workers(control_plane: &str, workers: &str) -> Facts {
    Facts { with_control_plane: false, ..cluster(control_plane, workers) }
}

fn written(next: Result<Next, Refusal>) -> String {
    match next.unwrap() {
        Next::Write(write) => write.object,
        other @ (Next::Task(_) | Next::Asked) => panic!("{other:?}"),
    }
}

fn gate_off() -> Unreached {
    Unreached::GateOff { deployment: "capi-system/capi".into(), gate: "InPlaceUpdates" }
}

fn reason(whole: &Whole) -> Option<&str> {
    match whole {
        Whole::Task { via: Via::Machines, why } => why.as_deref(),
        Whole::Task { via: Via::Spec, .. } | Whole::Asked => None,
    }
}

#[test]
fn cluster_api_upgrades_a_cluster_by_a_task_where_it_calls_refit_for_all_groups() {
    let to = v(NEW);
    let mut facts = cluster(OLD, OLD);
    assert_eq!(whole(&facts, &to), Ok(Whole::Task { via: Via::Spec, why: None }));
    facts.deployments[0].reach = Err(gate_off());
    let by_refit = whole(&facts, &to).unwrap();
    assert!(reason(&by_refit).unwrap().contains("feature gate InPlaceUpdates"), "{by_refit:?}");
    // A group that has the version already does not matter any more.
    facts.deployments[0].version = NEW.into();
    assert_eq!(whole(&facts, &to), Ok(Whole::Task { via: Via::Spec, why: None }));
    facts.control_plane.as_mut().unwrap().shows_gates = false;
    let by_refit = whole(&facts, &to).unwrap();
    assert!(reason(&by_refit).unwrap().contains("shows whether its feature gates"), "{by_refit:?}");
}

#[test]
fn a_task_for_a_cluster_takes_the_minor_versions_on_the_way_and_goes_on() {
    let mut facts = cluster(OLD, "v1.31.0");
    assert!(whole(&facts, &v("v1.37.0")).is_ok());
    for (to, words) in [("v1.33.0", "does not downgrade"), ("v2.0.0", "another major version")] {
        let text = whole(&facts, &v(to)).unwrap_err().to_string();
        assert!(text.contains(words), "{to}: {text}");
    }
    facts.control_plane.as_mut().unwrap().version = NEW.into();
    assert!(whole(&facts, &v(NEW)).is_ok());
    facts.deployments[0].version = NEW.into();
    assert_eq!(whole(&facts, &v(NEW)), Ok(Whole::Asked));
    facts.topology = Some(OLD.into());
    assert!(matches!(whole(&facts, &v(NEW)), Ok(Whole::Task { .. })), "its topology does not ask");
}

#[test]
fn a_cluster_without_a_kubeadm_control_plane_is_upgraded_group_by_group() {
    let facts = Facts { control_plane: None, ..cluster(OLD, OLD) };
    let text = whole(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("upgrade each MachineDeployment"), "{text}");
}

#[test]
fn refit_upgrades_machines_that_cluster_api_would_replace_by_configuration_only() {
    let group_ref =
        || GroupRef { kind: "MachineDeployment".into(), namespace: "n".into(), name: "md".into() };
    let only_surge = Unreached::OnlySurge {
        group: group_ref(),
        replicas: 1,
        max_surge: "1".into(),
        remedy: "set maxSurge 0",
    };
    let by_refit = [
        gate_off(),
        only_surge,
        Unreached::OnDelete { group: group_ref() },
        Unreached::NotInstalled,
        Unreached::ExtensionPaused,
    ];
    for why in by_refit {
        let mut facts = workers(NEW, OLD);
        facts.deployments[0].reach = Err(why.clone());
        let next = next(&facts, &v(NEW)).unwrap();
        let Next::Task(text) = next else { panic!("{why:?}: {next:?}") };
        assert!(text.starts_with("Cluster API would replace machines because "), "{text}");
    }
    let refused = [
        Unreached::Disabled { group: group_ref(), object: "Cluster c".into() },
        Unreached::Bootstrap { group: group_ref(), kind: "TalosConfig".into() },
        Unreached::NotDiscoveredYet,
        Unreached::NoCaBundle,
    ];
    for why in refused {
        let mut facts = workers(NEW, OLD);
        facts.deployments[0].reach = Err(why.clone());
        assert_eq!(next(&facts, &v(NEW)), Err(Refusal::Unreached(why.clone())));
        assert!(matches!(whole(&facts, &v(NEW)), Err(Refusal::Unreached(_))), "{why:?}");
    }
}

#[test]
fn a_task_takes_over_an_owner_that_another_task_has_paused() {
    let mut facts = workers(NEW, NEW);
    assert_eq!(next(&facts, &v(NEW)), Ok(Next::Asked));
    facts.deployments[0].paused_by = Some(PausedBy::Task("old".into()));
    let paused = "UpgradeTask/old has paused MachineDeployment/md";
    assert_eq!(next(&facts, &v(NEW)), Ok(Next::Task(paused.into())));
    assert_eq!(reason(&whole(&facts, &v(NEW)).unwrap()), Some(paused));
}

#[test]
fn a_refusal_mentions_replacement_only_if_it_would_happen() {
    let mut facts = plane(OLD, OLD);
    facts.control_plane.as_mut().unwrap().reach = Err(Unreached::Paused {
        group: GroupRef {
            kind: "KubeadmControlPlane".into(),
            namespace: "n".into(),
            name: "cp".into(),
        },
        object: "Cluster c".into(),
    });
    let text = next(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("Cluster c is paused") && !text.contains("replace"), "{text}");
}

#[test]
fn versions_that_kubeadm_cannot_reach_are_refused_with_the_way() {
    let table = [
        (OLD, "v1.36.0", "upgrade to v1.35.0 first"),
        (OLD, "v1.36.0", "`refit upgrade cluster/c --to v1.36.0`"),
        (NEW, OLD, "does not downgrade"),
        (OLD, "v2.0.0", "another major version"),
        ("", NEW, "specifies no version"),
        ("latest", NEW, "expected vX.Y.Z"),
    ];
    for (from, to, words) in table {
        let text = next(&plane(from, from), &v(to)).unwrap_err().to_string();
        assert!(text.contains(words), "{from} -> {to}: {text}");
    }
}

#[test]
fn workers_do_not_overtake_their_control_plane() {
    let mut facts = workers(OLD, OLD);
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert!(refusal.to_string().contains("the control plane goes first"), "{refusal}");
    facts.control_plane = Some(group("KubeadmControlPlane/cp", NEW));
    assert_eq!(written(next(&facts, &v(NEW))), "MachineDeployment/md");
    // A newer patch version than the control plane's is within the skew.
    assert_eq!(written(next(&facts, &v("v1.35.1"))), "MachineDeployment/md");
    // Workers may skip minor versions.
    assert_eq!(written(next(&workers(NEW, "v1.33.0"), &v(NEW))), "MachineDeployment/md");
}

#[test]
fn workers_that_would_be_too_old_go_first() {
    let mut facts = plane("v1.34.2", "v1.31.0");
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert!(matches!(refusal, Refusal::WorkersFirst { .. }), "{refusal}");
    facts.deployments[0].kubelets = vec!["v1.32.9".into()];
    assert_eq!(written(next(&facts, &v(NEW))), "KubeadmControlPlane/cp");
}

#[test]
fn an_upgrade_that_is_under_way_is_named() {
    let mut facts = plane(OLD, OLD);
    let control_plane = facts.control_plane.as_mut().unwrap();
    control_plane.under_way = vec![("cp-a".into(), "Draining".into())];
    let refusals = [next(&facts, &v(NEW)).unwrap_err(), whole(&facts, &v(NEW)).unwrap_err()];
    for text in refusals.map(|refusal| refusal.to_string()) {
        assert!(text.contains("cp-a is Draining"), "{text}");
    }
    // Requesting the same upgrade again continues the running one.
    let mut same = plane(NEW, NEW);
    same.control_plane.as_mut().unwrap().under_way = vec![("cp-a".into(), "Draining".into())];
    assert_eq!(next(&same, &v(NEW)), Ok(Next::Asked));
}

#[test]
fn an_uncovered_change_is_refused() {
    let mut facts = workers(NEW, OLD);
    facts.deployments[0].uncovered =
        Some("T/x spec.template.spec.cpus: 8 -> 16 (no updater)".into());
    let text = next(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("cpus: 8 -> 16") && text.contains("Revert it"), "{text}");
}

#[test]
fn a_topology_is_upgraded_at_its_cluster_alone() {
    let mut facts = plane(OLD, OLD);
    for group in facts.control_plane.iter_mut().chain(&mut facts.deployments) {
        group.managed = true;
    }
    let text = next(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("upgrade cluster/c instead"), "{text}");
    facts.topology = Some(OLD.into());
    assert!(matches!(whole(&facts, &v(NEW)), Ok(Whole::Task { .. })));
    facts.topology = Some(NEW.into());
    assert!(matches!(whole(&facts, &v(NEW)), Ok(Whole::Task { .. })), "its groups count, too");
}

#[test]
fn a_target_without_groups_is_refused() {
    let facts = Facts { with_control_plane: true, with_deployments: true, ..Facts::default() };
    assert_eq!(next(&facts, &v(NEW)), Err(Refusal::Nothing));
    assert_eq!(whole(&facts, &v(NEW)), Err(Refusal::Nothing));
}

#[test]
fn the_patch_applies_only_to_the_object_that_was_read() {
    let table = [
        (Field::ControlPlane, "/spec/version"),
        (Field::Deployment, "/spec/template/spec/version"),
    ];
    for (field, pointer) in table {
        let patch = field.patch("7", &v(NEW));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch.pointer(pointer), Some(&Value::from(NEW)));
        assert_eq!(field.path(), pointer.trim_start_matches('/').replace('/', "."));
    }
}

#[test]
fn an_owner_can_return_to_a_version_that_every_machine_runs() {
    let mut facts = workers(OLD, OLD);
    facts.deployments[0].version = NEW.into();
    assert_eq!(facts.deployments[0].version_before(), Ok(Some(v(OLD))));
    assert_eq!(written(next(&facts, &v(OLD))), "MachineDeployment/md");
    facts.deployments[0].kubelets.push(NEW.into());
    assert!(matches!(facts.deployments[0].version_before(), Err(Refusal::Mixed { .. })));
    assert!(matches!(next(&facts, &v(OLD)), Err(Refusal::Hop { .. })));
    facts.deployments[0].kubelets = vec![NEW.into()];
    assert_eq!(facts.deployments[0].version_before(), Ok(None));
    facts.deployments[0].kubelets.clear();
    let unknown = facts.deployments[0].version_before();
    assert!(matches!(unknown, Err(Refusal::PreviousUnknown { .. })), "{unknown:?}");
}

#[test]
fn a_version_that_undoes_the_uncovered_change_is_accepted() {
    let mut facts = workers(NEW, OLD);
    let line = |from: &str, to: &str| {
        format!("MachineSet/x spec.template.spec.version: {from:?} -> {to:?} (no updater)")
    };
    for (uncovered, accepted) in [
        (line(NEW, OLD), true),
        (line("v1.35.1", OLD), false),
        (format!("{}; DockerMachineTemplate/x spec.a: 1 -> 2 (no updater)", line(NEW, OLD)), false),
    ] {
        facts.deployments[0].uncovered = Some(uncovered.clone());
        assert_eq!(next(&facts, &v(NEW)).is_ok(), accepted, "{uncovered}");
    }
}
