//! Table tests of the control plane: order, eligibility, preflight.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::*;

fn machine(name: &str, up_to_date: bool) -> ControlPlaneMachine {
    let age = i64::from(name.as_bytes()[0]);
    ControlPlaneMachine {
        name: name.into(),
        created_at: Timestamp::from_second(age).unwrap(),
        up_to_date,
        has_node: true,
        ..ControlPlaneMachine::default()
    }
}

fn with(mut machine: ControlPlaneMachine, key: &str, value: &str) -> ControlPlaneMachine {
    machine.annotations.insert(key.into(), value.into());
    machine
}

fn broken(mut machine: ControlPlaneMachine, component: Component) -> ControlPlaneMachine {
    machine.unhealthy.insert(component);
    machine
}

fn in_domain(mut machine: ControlPlaneMachine, domain: &str) -> ControlPlaneMachine {
    machine.failure_domain = Some(domain.into());
    machine
}

fn control_plane(max_surge: i64, machines: Vec<ControlPlaneMachine>) -> ControlPlane {
    ControlPlane {
        replicas: 3,
        max_surge,
        in_place_updates: true,
        managed_etcd: true,
        machines,
        ..ControlPlane::default()
    }
}

fn three(up_to_date: usize) -> Vec<ControlPlaneMachine> {
    ["a", "b", "c"].iter().enumerate().map(|(at, name)| machine(name, at < up_to_date)).collect()
}

fn asks(name: &str) -> Decision {
    Decision::AskExtension(name.into())
}

fn deletes(name: &str, reason: ScaleDownReason) -> Decision {
    Decision::ScaleDown(name.into(), reason)
}

#[test]
fn without_surge_the_oldest_outdated_machine_goes_in_place() {
    let mut state = control_plane(0, three(0));
    assert_eq!(decide(&state), asks("a"));
    state.can_update.insert("a".into(), true);
    assert_eq!(decide(&state), Decision::TriggerInPlace("a".into()));
    state.can_update.insert("a".into(), false);
    assert_eq!(decide(&state), deletes("a", ScaleDownReason::NotCovered));
    assert_eq!(decide(&control_plane(0, three(1))), asks("b"));
    assert_eq!(decide(&control_plane(0, three(3))), Decision::UpToDate);
}

#[test]
fn surge_comes_first_and_the_surplus_goes_last() {
    assert_eq!(decide(&control_plane(1, three(0))), Decision::ScaleUp(ScaleUpReason::Surge));
    let surged = |up_to_date: usize| {
        let mut machines = three(up_to_date);
        machines.push(machine("d", true));
        control_plane(1, machines)
    };
    assert_eq!(decide(&surged(0)), asks("a"));
    assert_eq!(decide(&surged(1)), asks("b"));
    // Three machines are up to date: the last old one is deleted instead of updated.
    assert_eq!(decide(&surged(2)), deletes("c", ScaleDownReason::NotEligible));
}

#[test]
fn one_replica_is_never_updated_in_place() {
    let mut state = control_plane(1, vec![machine("a", false)]);
    state.replicas = 1;
    assert_eq!(decide(&state), Decision::ScaleUp(ScaleUpReason::Surge));
    state.machines.push(machine("b", true));
    assert_eq!(decide(&state), deletes("a", ScaleDownReason::NotEligible));
}

#[test]
fn with_the_gate_off_machines_are_replaced() {
    let mut state = control_plane(0, three(0));
    state.in_place_updates = false;
    assert_eq!(decide(&state), deletes("a", ScaleDownReason::NotEligible));
}

#[test]
fn scaling_without_a_rollout() {
    let mut state = control_plane(1, three(3));
    state.replicas = 5;
    assert_eq!(decide(&state), Decision::ScaleUp(ScaleUpReason::TooFewMachines));
    state.replicas = 1;
    assert_eq!(decide(&state), deletes("a", ScaleDownReason::TooManyMachines));
}

#[test]
fn started_updates_finish_first_even_with_the_gate_off() {
    let mut state = control_plane(0, three(1));
    state.in_place_updates = false;
    state.machines[0].annotations.insert(keys::UPDATE_IN_PROGRESS.into(), String::new());
    assert_eq!(decide(&state), Decision::CompleteTrigger("a".into()));
    state.machines[0].annotations.insert(keys::PENDING_HOOKS.into(), "UpdateMachine".into());
    assert_eq!(decide(&state), Decision::WaitForUpdate("a".into()));
    // The annotation is removed first; the hook is still pending.
    state.machines[0].annotations.remove(keys::UPDATE_IN_PROGRESS);
    assert_eq!(decide(&state), Decision::WaitForUpdate("a".into()));
}

#[test]
fn the_order_of_selection() {
    let delete = |machine| with(machine, keys::DELETE_MACHINE, "");
    let etcd = |machine| broken(machine, Component::EtcdMember);
    let table = [
        (vec![machine("a", false), delete(machine("b", false)), delete(machine("c", true))], "b"),
        (vec![etcd(machine("a", false)), machine("b", false), delete(machine("c", true))], "c"),
        (vec![machine("a", false), etcd(machine("b", false)), machine("c", true)], "b"),
        (vec![etcd(machine("a", true)), machine("b", false), machine("c", false)], "b"),
        (vec![machine("b", true), machine("a", true)], "a"),
    ];
    for (machines, expected) in table {
        let state = control_plane(0, machines);
        assert_eq!(select(&state).map(|machine| machine.name.as_str()), Some(expected));
    }
    assert_eq!(select(&control_plane(0, Vec::new())), None);
}

#[test]
fn the_failure_domain_with_most_machines_goes_first() {
    let selected = |state: &ControlPlane| select(state).map(|machine| machine.name.clone());
    let mut state = control_plane(
        0,
        vec![
            in_domain(machine("a", false), "one"),
            in_domain(machine("b", false), "two"),
            in_domain(machine("c", false), "two"),
        ],
    );
    state.failure_domains = BTreeSet::from(["one".into(), "two".into()]);
    assert_eq!(selected(&state), Some("b".to_owned()));
    // Machines that are up to date count too, but are not selected.
    state.machines[1].up_to_date = true;
    assert_eq!(selected(&state), Some("c".to_owned()));
    // A tie goes to the first name.
    state.machines.remove(1);
    assert_eq!(selected(&state), Some("a".to_owned()));
    // A domain that the cluster does not offer any more comes first.
    state.machines[1].failure_domain = Some("gone".into());
    assert_eq!(selected(&state), Some("c".to_owned()));
}

#[test]
fn annotated_and_expired_machines_are_replaced() {
    let replaced = deletes("a", ScaleDownReason::NotEligible);
    for key in [keys::DELETE_MACHINE, keys::REMEDIATE_MACHINE] {
        let mut machines = three(0);
        machines[0].annotations.insert(key.into(), String::new());
        assert_eq!(decide(&control_plane(0, machines)), replaced, "{key}");
    }
    let mut machines = three(0);
    machines[0].expired = true;
    assert_eq!(decide(&control_plane(0, machines)), replaced);
}

#[test]
fn preflight_names_everything_that_is_wrong() {
    let mut machines = three(0);
    machines[0].deleting = true;
    machines[1].has_node = false;
    machines[2] = broken(machines[2].clone(), Component::ApiServer);
    let mut state = control_plane(0, machines);
    state.topology_version_mismatch = true;
    assert_eq!(
        preflight(&state, None),
        [
            PreflightFailure::TopologyVersionMismatch,
            PreflightFailure::MachineDeleting("a".into()),
            PreflightFailure::NoNode("b".into()),
            PreflightFailure::Unhealthy("c".into(), Component::ApiServer),
        ]
    );
    // A deleting machine counts even if its health does not.
    assert!(preflight(&state, Some("a")).contains(&PreflightFailure::MachineDeleting("a".into())));
    assert_eq!(
        PreflightFailure::Unhealthy("c".into(), Component::ApiServer).to_string(),
        "Machine c: APIServerPodHealthy is not true"
    );
}

#[test]
fn the_health_of_external_etcd_is_not_required() {
    let machines = vec![broken(machine("a", false), Component::EtcdPod)];
    let mut state = control_plane(0, machines);
    assert_eq!(preflight(&state, None).len(), 1);
    state.managed_etcd = false;
    assert_eq!(preflight(&state, None), []);
}

#[test]
fn only_a_sole_preflight_failure_is_replaced() {
    let mut machines = three(0);
    machines[0] = broken(machines[0].clone(), Component::Scheduler);
    let alone = control_plane(0, machines.clone());
    assert_eq!(decide(&alone), deletes("a", ScaleDownReason::FailsPreflight));
    // The previously updated machine is not healthy yet: nothing changes.
    let mut machines = three(1);
    machines[0] = broken(machines[0].clone(), Component::EtcdMember);
    assert_eq!(
        decide(&control_plane(0, machines)),
        Decision::Wait(vec![PreflightFailure::Unhealthy("a".into(), Component::EtcdMember)])
    );
}

#[test]
fn no_machine_is_created_or_deleted_while_another_goes() {
    let mut machines = three(0);
    machines[2].deleting = true;
    let waiting = Decision::Wait(vec![PreflightFailure::MachineDeleting("c".into())]);
    assert_eq!(decide(&control_plane(1, machines.clone())), waiting);
    let mut state = control_plane(0, machines);
    state.in_place_updates = false;
    assert_eq!(decide(&state), waiting);
}
