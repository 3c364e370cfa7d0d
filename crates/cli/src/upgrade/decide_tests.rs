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
    }
}

fn cluster(control_plane: &str, workers: &str) -> Facts {
    Facts {
        topology: None,
        control_plane: Some(group("KubeadmControlPlane/cp", control_plane)),
        deployments: vec![group("MachineDeployment/md", workers)],
        with_control_plane: true,
        with_deployments: true,
    }
}

fn written(next: Result<Next, Refusal>) -> Vec<String> {
    match next.unwrap() {
        Next::Write(writes) => writes.into_iter().map(|write| write.object).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_a_cluster_the_control_plane_precedes_the_workers() {
    let to = v(NEW);
    let mut facts = cluster(OLD, OLD);
    assert_eq!(written(next(&facts, &to)), ["KubeadmControlPlane/cp"]);
    let control_plane = facts.control_plane.as_mut().unwrap();
    control_plane.version = NEW.into();
    control_plane.settled = false;
    assert_eq!(next(&facts, &to), Ok(Next::AwaitControlPlane));
    // The status is stale, or one machine is still behind.
    facts.control_plane.as_mut().unwrap().settled = true;
    assert_eq!(next(&facts, &to), Ok(Next::AwaitControlPlane));
    facts.control_plane.as_mut().unwrap().kubelets = vec![NEW.into()];
    assert_eq!(written(next(&facts, &to)), ["MachineDeployment/md"]);
    facts.deployments[0].version = NEW.into();
    assert_eq!(next(&facts, &to), Ok(Next::Asked));
}

#[test]
fn an_unreached_group_stops_the_upgrade_of_its_cluster() {
    let mut facts = cluster(OLD, OLD);
    facts.deployments[0].reach = Err(Unreached::NotInstalled);
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert_eq!(refusal, Refusal::Unreached(Unreached::NotInstalled));
    assert!(refusal.to_string().ends_with("Cluster API would replace the machines"));
    // A group that has the version already does not matter any more.
    facts.deployments[0].version = NEW.into();
    assert_eq!(written(next(&facts, &v(NEW))), ["KubeadmControlPlane/cp"]);
}

#[test]
fn a_refusal_mentions_replacement_only_if_it_would_happen() {
    let mut facts = cluster(OLD, OLD);
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
        (NEW, OLD, "does not downgrade"),
        (OLD, "v2.0.0", "another major version"),
        ("", NEW, "specifies no version"),
        ("latest", NEW, "expected vX.Y.Z"),
    ];
    for (from, to, words) in table {
        let text = next(&cluster(from, from), &v(to)).unwrap_err().to_string();
        assert!(text.contains(words), "{from} -> {to}: {text}");
    }
}

#[test]
fn workers_do_not_overtake_their_control_plane() {
    let mut facts = cluster(OLD, OLD);
    facts.with_control_plane = false;
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert!(refusal.to_string().contains("the control plane goes first"), "{refusal}");
    facts.control_plane = Some(group("KubeadmControlPlane/cp", NEW));
    assert_eq!(written(next(&facts, &v(NEW))), ["MachineDeployment/md"]);
    // A newer patch version than the control plane's is within the skew.
    assert_eq!(written(next(&facts, &v("v1.35.1"))), ["MachineDeployment/md"]);
}

#[test]
fn workers_that_would_be_too_old_go_first() {
    let mut facts = cluster("v1.34.2", "v1.31.0");
    facts.with_deployments = false;
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert!(matches!(refusal, Refusal::WorkersFirst { .. }), "{refusal}");
    facts.deployments[0].kubelets = vec!["v1.32.9".into()];
    assert_eq!(written(next(&facts, &v(NEW))), ["KubeadmControlPlane/cp"]);
}

#[test]
fn an_upgrade_that_is_under_way_is_named() {
    let mut facts = cluster(OLD, OLD);
    let control_plane = facts.control_plane.as_mut().unwrap();
    control_plane.under_way = vec![("cp-a".into(), "Draining".into())];
    let text = next(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("cp-a is Draining"), "{text}");
    // Requesting the same upgrade again continues the running one.
    let mut same = cluster(NEW, NEW);
    same.control_plane.as_mut().unwrap().under_way = vec![("cp-a".into(), "Draining".into())];
    assert_eq!(next(&same, &v(NEW)), Ok(Next::Asked));
}

#[test]
fn an_uncovered_change_is_refused() {
    let mut facts = cluster(OLD, OLD);
    facts.deployments[0].uncovered =
        Some("T/x spec.template.spec.cpus: 8 -> 16 (no updater)".into());
    let text = next(&facts, &v(NEW)).unwrap_err().to_string();
    assert!(text.contains("cpus: 8 -> 16") && text.contains("Revert it"), "{text}");
}

#[test]
fn a_topology_is_upgraded_at_its_cluster_alone() {
    let mut facts = cluster(OLD, OLD);
    for group in facts.control_plane.iter_mut().chain(&mut facts.deployments) {
        group.managed = true;
    }
    let refusal = next(&facts, &v(NEW)).unwrap_err();
    assert!(matches!(refusal, Refusal::Managed { .. }), "{refusal}");
    facts.topology = Some(Topology {
        object: "Cluster/c".into(),
        name: "c".into(),
        version: OLD.into(),
        resource_version: "3".into(),
    });
    assert_eq!(written(next(&facts, &v(NEW))), ["Cluster/c"]);
    facts.deployments[0].reach = Err(Unreached::NotInstalled);
    assert!(next(&facts, &v(NEW)).is_err(), "its groups count, too");
}

#[test]
fn a_target_without_groups_is_refused() {
    let facts = Facts { with_control_plane: true, with_deployments: true, ..Facts::default() };
    assert_eq!(next(&facts, &v(NEW)), Err(Refusal::Nothing));
}

#[test]
fn the_patch_applies_only_to_the_object_that_was_read() {
    let table = [
        (Field::ControlPlane, "/spec/version"),
        (Field::Deployment, "/spec/template/spec/version"),
        (Field::Topology, "/spec/topology/version"),
    ];
    for (field, pointer) in table {
        let patch = field.patch("7", &v(NEW));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch.pointer(pointer), Some(&Value::from(NEW)));
        assert_eq!(field.path(), pointer.trim_start_matches('/').replace('/', "."));
    }
}

#[test]
fn a_version_that_every_machine_runs_can_be_taken_back_to() {
    let mut facts = cluster(OLD, OLD);
    facts.deployments[0].version = NEW.into();
    facts.with_control_plane = false;
    assert_eq!(facts.deployments[0].version_before(), Ok(Some(v(OLD))));
    assert_eq!(written(next(&facts, &v(OLD))), ["MachineDeployment/md"]);
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
    let mut facts = cluster(OLD, OLD);
    facts.with_control_plane = false;
    facts.control_plane = Some(group("KubeadmControlPlane/cp", NEW));
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
