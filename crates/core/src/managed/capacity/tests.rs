use proptest::prelude::*;
use refit_kinds::refit::CapacityTimeout;

use super::*;

fn capacity(method: CapacityMethod, machines: i32, names: &[&str]) -> ExtraCapacity {
    ExtraCapacity {
        method,
        machines,
        machine_deployments: names.iter().map(|name| (*name).to_owned()).collect(),
        within_minutes: 30,
        on_timeout: CapacityTimeout::Delay,
    }
}

fn machine(name: &str, created: i64, is_extra: bool) -> CapacityMachine {
    let created = Some(Timestamp::from_second(created).unwrap());
    CapacityMachine {
        name: name.into(),
        created,
        is_extra,
        is_deleted_first: is_extra,
        ..CapacityMachine::default()
    }
}

fn mark(machine: &mut CapacityMachine, is_extra: bool) {
    (machine.is_extra, machine.is_deleted_first) = (is_extra, is_extra);
}

fn deployment(name: &str, replicas: i32) -> DeploymentSeen {
    let machines = (0..replicas).map(|at| machine(&format!("{name}-{at}"), at.into(), false));
    DeploymentSeen {
        name: name.into(),
        version: Some("v1.34.2".parse().unwrap()),
        replicas,
        machines: machines.collect(),
        ..DeploymentSeen::default()
    }
}

fn seen(deployments: Vec<DeploymentSeen>) -> CapacitySeen {
    CapacitySeen { deployments, ..CapacitySeen::default() }
}

fn clone_named(name: &str) -> CloneSeen {
    CloneSeen { name: name.into(), ..CloneSeen::default() }
}

fn waits(seen: &CapacitySeen, capacity: &ExtraCapacity) -> (String, Vec<CapacityWrite>) {
    match seen.reserve(capacity) {
        Reserve::Waits { why, writes } => (why, writes),
        Reserve::Ready(names) => panic!("{names} are Ready"),
    }
}

#[test]
fn each_machine_deployment_with_machines_gets_one_clone() {
    let by_clone = capacity(CapacityMethod::Clone, 2, &[]);
    let mut seen = seen(vec![deployment("a", 3), deployment("empty", 0), deployment("b", 1)]);
    let clone = |name: &str| CapacityWrite::Clone { deployment: name.into(), machines: 2 };
    assert_eq!(waits(&seen, &by_clone).1, [clone("a"), clone("b")]);
    let of_b = capacity(CapacityMethod::Clone, 2, &["b"]);
    assert_eq!(waits(&seen, &of_b).1, [clone("b")]);
    seen.clones = vec![CloneSeen { replicas: 2, ..clone_named("b-extra") }];
    let (why, writes) = waits(&seen, &of_b);
    assert_eq!(writes, [], "one clone for one request");
    assert_eq!(why, "MachineDeployment b has 0 of 2 extra Machines");
}

#[test]
fn a_request_that_changes_gets_the_extra_machines_that_it_has_by_now() {
    let mut seen = seen(vec![deployment("a", 3)]);
    let clone = CloneSeen { replicas: 1, ..clone_named("a-extra") };
    seen.clones = vec![clone];
    let resize = CapacityWrite::Resize { clone: "a-extra".into(), from: 1, machines: 2 };
    assert!(resize.adds_machines());
    assert_eq!(waits(&seen, &capacity(CapacityMethod::Clone, 2, &[])).1, [resize]);
    let delete = CapacityWrite::Delete("a-extra".into());
    let raise = |extra, of| CapacityWrite::Raise {
        deployment: "a".into(),
        replicas: ExtraReplicas { extra, of },
    };
    let by_replicas = capacity(CapacityMethod::Replicas, 1, &[]);
    assert_eq!(waits(&seen, &by_replicas).1, [delete, raise(1, 4)], "another method");
    seen.clones.clear();
    (seen.deployments[0].replicas, seen.deployments[0].extra) = (4, "1/4".parse());
    assert_eq!(waits(&seen, &capacity(CapacityMethod::Replicas, 3, &[])).1, [raise(3, 6)]);
    seen.deployments.push(deployment("b", 1));
    let of_b = waits(&seen, &capacity(CapacityMethod::Clone, 1, &["b"])).1;
    let lower = CapacityWrite::Lower { deployment: "a".into(), replicas: 3 };
    let clone = CapacityWrite::Clone { deployment: "b".into(), machines: 1 };
    assert_eq!(of_b, [lower, clone], "another MachineDeployment");
}

#[test]
fn extra_machines_count_once_they_can_take_pods() {
    let by_clone = capacity(CapacityMethod::Clone, 2, &[]);
    let mut seen = seen(vec![deployment("a", 1)]);
    let fresh = |name: &str| CapacityMachine {
        unready: Some("it has no Node".to_owned()),
        ..machine(name, 9, true)
    };
    let clone = |machines| CloneSeen { replicas: 2, machines, ..clone_named("a-extra") };
    seen.clones = vec![clone(vec![machine("x", 9, true), fresh("y")])];
    assert_eq!(waits(&seen, &by_clone).0, "Machine y: it has no Node");
    seen.clones[0].machines.push(machine("z", 9, true));
    assert_eq!(seen.reserve(&by_clone), Reserve::Ready("x, z".into()), "one more than enough");
    seen.clones[0].machines[0].deleting = true;
    assert_eq!(waits(&seen, &by_clone).0, "Machine y: it has no Node");
    seen.clones[0].deleting = true;
    let (why, writes) = waits(&seen, &by_clone);
    assert_eq!((&*why, writes.len()), ("MachineDeployment a has 0 of 2 extra Machines", 0));
}

#[test]
fn more_replicas_are_extra_once_the_newest_machines_are_marked() {
    let by_replicas = capacity(CapacityMethod::Replicas, 2, &[]);
    let mut seen = seen(vec![deployment("a", 3)]);
    let replicas = ExtraReplicas { extra: 2, of: 5 };
    let raise = CapacityWrite::Raise { deployment: "a".into(), replicas };
    assert_eq!(waits(&seen, &by_replicas).1, [raise]);
    let one = &mut seen.deployments[0];
    (one.replicas, one.extra) = (5, Ok(replicas));
    assert_eq!(waits(&seen, &by_replicas).1, [], "its Machines are not created yet");
    seen.deployments[0].machines.insert(0, machine("new", 77, false));
    assert_eq!(waits(&seen, &by_replicas).1, [CapacityWrite::Mark("new".into())]);
    mark(&mut seen.deployments[0].machines[0], true);
    seen.deployments[0].machines.push(machine("newer", 78, false));
    assert_eq!(waits(&seen, &by_replicas).1, [CapacityWrite::Mark("newer".into())]);
    mark(&mut seen.deployments[0].machines[4], true);
    assert_eq!(seen.reserve(&by_replicas), Reserve::Ready("new, newer".into()));
}

#[test]
fn extra_machines_that_a_cluster_cannot_have_are_refused_with_the_remedy() {
    let (target, mut control_plane) = ("v1.36.0".parse().unwrap(), "v1.34.2".parse().unwrap());
    let mut seen = seen(vec![deployment("a", 3)]);
    let invalid = |seen: &CapacitySeen, plane: &KubernetesVersion, method, names: &[&str]| {
        let found = seen.invalid(&capacity(method, 1, names), (plane, &target));
        found.map_or(String::new(), |(_, why)| why)
    };
    let why = |seen: &CapacitySeen, method, names: &[&str]| {
        invalid(seen, &"v1.34.2".parse().unwrap(), method, names)
    };
    assert_eq!(why(&seen, CapacityMethod::Replicas, &[]), "");
    let missing = why(&seen, CapacityMethod::Clone, &["a", "b"]);
    assert!(missing.starts_with("MachineDeployment b of spec.extraCapacity"), "{missing}");
    seen.deployments[0].of_topology = true;
    assert_eq!(why(&seen, CapacityMethod::Clone, &[]), "");
    let of_topology = why(&seen, CapacityMethod::Replicas, &[]);
    assert!(of_topology.ends_with("set spec.extraCapacity.method to Clone"), "{of_topology}");
    seen.deployments[0].version = Some("v1.34.1".parse().unwrap());
    let stopped = why(&seen, CapacityMethod::Clone, &[]);
    assert_eq!(
        why(&seen, CapacityMethod::Replicas, &[]),
        stopped,
        "the other method is refused as well"
    );
    assert!(stopped.contains("next to a control plane of v1.34.2"), "{stopped}");
    seen.deployments[0].of_topology = false;
    assert_eq!(why(&seen, CapacityMethod::Clone, &[]), "", "another patch release");
    control_plane = KubernetesVersion::next_minor_zero(&control_plane);
    seen.deployments[0].paused = Paused::ByOthers;
    let stopped = invalid(&seen, &control_plane, CapacityMethod::Replicas, &[]);
    assert!(stopped.ends_with("request the upgrade without spec.extraCapacity"), "{stopped}");
    seen.deployments[0].has_kubeadm = false;
    assert_eq!(invalid(&seen, &control_plane, CapacityMethod::Clone, &[]), "", "kubelets may");
    seen.deployments[0].has_kubeadm = true;
    seen.clones = vec![CloneSeen { replicas: 1, ..clone_named("a-extra") }];
    let there = invalid(&seen, &control_plane, CapacityMethod::Clone, &[]);
    assert_eq!(there, "", "they are there already: the UpgradeTask was deleted");
    assert_eq!(why(&seen, CapacityMethod::Clone, &[]), "");
    let paused = why(&seen, CapacityMethod::Replicas, &[]);
    assert!(paused.starts_with("MachineDeployment a is paused"), "{paused}");
    seen.deployments[0].version = Some("v1.32.1".parse().unwrap());
    control_plane = "v1.32.1".parse().unwrap();
    let too_old = invalid(&seen, &control_plane, CapacityMethod::Clone, &[]);
    seen.deployments[0].extra = "4/1".parse();
    let unreadable = why(&seen, CapacityMethod::Clone, &[]);
    assert!(unreadable.contains("is \"4/1\", which Refit has not written"), "{unreadable}");
    assert!(too_old.contains("stay at v1.32.1"), "{too_old}");
}

#[test]
fn removal_deletes_clones_and_sets_replicas_back_after_all_extra_machines_are_marked() {
    let mut one = deployment("a", 3);
    (one.replicas, one.extra) = (4, "1/4".parse());
    one.machines.push(machine("new", 77, false));
    let clone = CloneSeen { name: "b-extra".into(), ..CloneSeen::default() };
    let mut seen = CapacitySeen { clones: vec![clone], ..seen(vec![one]) };
    assert!(seen.remains());
    let delete = CapacityWrite::Delete("b-extra".into());
    assert_eq!(seen.removal(), [delete, CapacityWrite::Mark("new".into())]);
    seen.clones[0].deleting = true;
    mark(&mut seen.deployments[0].machines[3], true);
    let lower = CapacityWrite::Lower { deployment: "a".into(), replicas: 3 };
    assert_eq!(seen.removal(), [lower]);
    // Another client has set them back, and a Machine is being remediated.
    let mut set_back = seen.deployments[0].clone();
    set_back.replicas = 3;
    set_back.machines[0].deleting = true;
    let stay = CapacityWrite::Lower { deployment: "a".into(), replicas: 3 };
    assert_eq!(set_back.lowered(), [stay]);
    (seen.deployments[0].replicas, seen.deployments[0].extra) = (3, Ok(ExtraReplicas::default()));
    assert_eq!(seen.removal(), [], "Cluster API does the rest");
    assert_eq!(seen.left(), "Machines new");
    seen.clones.clear();
    seen.deployments[0].machines.pop();
    seen.orphans = vec![machine("old", 1, true)];
    assert_eq!((seen.remains(), &*seen.left()), (true, "Machines old"));
    seen.orphans.clear();
    assert!(!seen.remains());
}

#[test]
fn an_extra_machine_stays_where_a_deleted_one_makes_room_for_it() {
    let mut one = deployment("a", 3);
    // Another Machine is being deleted, and this one is marked.
    one.machines.truncate(2);
    one.machines.push(machine("extra", 9, true));
    one.deleting = 1;
    assert_eq!(one.lowered(), [CapacityWrite::Unmark("extra".into())]);
    one.paused = Paused::ByTask("t".into());
    assert_eq!(
        one.lowered(),
        [],
        "its MachineSets replace what they lose, and the task lowers them"
    );
    let one = DeploymentSeen { deleting: 0, lacking: 1, ..one };
    assert_eq!(one.lowered(), [], "its MachineSet has not created the new one yet");
    let one = DeploymentSeen { lacking: 0, ..one };
    assert_eq!(one.lowered(), [CapacityWrite::Unmark("extra".into())]);
}

#[test]
fn an_extra_machine_that_cluster_api_would_not_delete_first_is_marked_again() {
    let mut one = deployment("a", 3);
    (one.replicas, one.extra) = (4, "1/4".parse());
    one.machines.push(machine("extra", 9, true));
    one.machines[3].is_deleted_first = false;
    let again = [CapacityWrite::Mark("extra".into())];
    assert_eq!(one.lowered(), again);
    let mut writes = Vec::new();
    one.raised(&capacity(CapacityMethod::Replicas, 1, &[]), &mut writes);
    assert_eq!(writes, again);
    (one.replicas, one.extra) = (3, Ok(ExtraReplicas::default()));
    assert_eq!(one.lowered(), again);
    one.machines[3].deleting = true;
    assert_eq!(one.lowered(), []);
}

#[test]
fn a_paused_machine_deployment_or_an_invalid_annotation_keeps_extra_machines() {
    let mut one = deployment("a", 3);
    one.machines.push(machine("extra", 9, true));
    let kept = |one: &DeploymentSeen| {
        let seen = seen(vec![one.clone()]);
        (seen.kept_by(|task| task == "t"), seen.is_left_to_task(|task| task == "t"))
    };
    assert_eq!(kept(&one), (None, false));
    one.paused = Paused::ByTask("t".into());
    assert_eq!(kept(&one), (Some("MachineDeployment a is paused".into()), true));
    one.paused = Paused::ByTask("gone".into());
    let (why, is_left) = kept(&one);
    assert!(why.unwrap().contains("paused by UpgradeTask gone, which is gone"));
    assert!(!is_left);
    one.extra = "x".parse();
    let (why, _) = kept(&one);
    assert!(why.unwrap().contains("refit.dev/extra-capacity of MachineDeployment a is \"x\""));
}

#[test]
fn replicas_that_another_client_has_set_back_are_named() {
    let by_replicas = capacity(CapacityMethod::Replicas, 1, &[]);
    let mut seen = seen(vec![deployment("a", 3)]);
    seen.deployments[0].extra = "1/4".parse();
    let why =
        "MachineDeployment a has 0 of 1 extra Machines: another client has set its replicas to 3";
    assert_eq!(waits(&seen, &by_replicas), (why.to_owned(), vec![]));
}

/// Cluster API's view of a MachineDeployment: surplus Machines are deleted, marked ones first.
fn settle(one: &mut DeploymentSeen, number: &mut i64) {
    while i64::try_from(one.machines.len()).unwrap() < i64::from(one.replicas) {
        *number += 1;
        one.machines.push(machine(&format!("n{number}"), *number, false));
    }
    while i64::try_from(one.machines.len()).unwrap() > i64::from(one.replicas) {
        let marked = one.machines.iter().position(|machine| machine.is_extra);
        one.machines.remove(marked.unwrap_or(0));
    }
}

fn apply(one: &mut DeploymentSeen, writes: Vec<CapacityWrite>) {
    for write in writes {
        match write {
            CapacityWrite::Raise { replicas, .. } => {
                (one.replicas, one.extra) = (replicas.of, Ok(replicas));
            }
            CapacityWrite::Mark(name) => {
                let marked = one.machines.iter_mut().find(|machine| machine.name == name);
                mark(marked.unwrap(), true);
            }
            CapacityWrite::Unmark(name) => {
                let marked = one.machines.iter_mut().find(|machine| machine.name == name);
                mark(marked.unwrap(), false);
            }
            CapacityWrite::Lower { replicas, .. } => {
                (one.replicas, one.extra) = (replicas, Ok(ExtraReplicas::default()));
            }
            CapacityWrite::Guard
            | CapacityWrite::Clone { .. }
            | CapacityWrite::Resize { .. }
            | CapacityWrite::Delete(_)
            | CapacityWrite::Unguard => panic!("not for replicas"),
        }
    }
}

proptest! {
    /// Whatever is created late, deleted, set back or scaled up by another client meanwhile: the Machines from before stay,
    /// and none stays marked.
    #[test]
    fn removal_by_replicas_deletes_no_other_machine(
        replicas in 1..6_i32,
        extra in 1..4_i32,
        events in proptest::collection::vec(0..6_u8, 0..12),
    ) {
        let by_replicas = capacity(CapacityMethod::Replicas, extra, &[]);
        let mut number = 100;
        let mut all = seen(vec![deployment("a", replicas)]);
        let (mut lost, mut added) = (Vec::new(), 0);
        let before: Vec<String> =
            all.deployments[0].machines.iter().map(|machine| machine.name.clone()).collect();
        for event in events {
            match event {
                0 => if let Reserve::Waits { writes, .. } = all.reserve(&by_replicas) {
                    apply(&mut all.deployments[0], writes);
                },
                1 => settle(&mut all.deployments[0], &mut number),
                // A GitOps controller sets its replicas back, once all that is extra is marked.
                2 => {
                    let one = &mut all.deployments[0];
                    if one.marks().is_empty() {
                        one.replicas = one.replicas.min(replicas + added);
                    }
                }
                // An operator scales it up between its removal and the deletions.
                3 => {
                    let one = &mut all.deployments[0];
                    if one.extra() == 0 {
                        one.replicas += 1;
                        added += 1;
                    }
                }
                // An operator deletes a Machine.
                4 => {
                    let one = &mut all.deployments[0];
                    let at = one.machines.iter().position(|machine| !machine.is_extra);
                    lost.extend(at.map(|at| one.machines.remove(at).name));
                }
                _ => {
                    let writes = all.removal();
                    apply(&mut all.deployments[0], writes);
                }
            }
        }
        for _ in 0..4 {
            let writes = all.removal();
            apply(&mut all.deployments[0], writes);
        }
        let one = &mut all.deployments[0];
        settle(one, &mut number);
        prop_assert_eq!(one.replicas, replicas + added);
        let writes = one.lowered();
        apply(one, writes);
        prop_assert!(!one.machines.iter().any(|machine| machine.is_extra), "{:?}", one);
        for name in before.iter().filter(|name| !lost.contains(name)) {
            prop_assert!(one.machines.iter().any(|machine| machine.name == *name), "{} is gone", name);
        }
    }
}
