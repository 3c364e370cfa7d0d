//! A machine's role, its steps, and whether it is available.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions, keys,
    refit::{Gate, HostStep, Phase, Role},
};

use super::world::*;
use crate::node::{
    ImageVersion, MachineView, NodeView, StaticPod, decide_role, is_available, plan_steps,
    step_names,
};

#[test]
fn the_api_servers_determine_the_first_control_plane() {
    let old = [api_server("a", FROM), api_server("b", FROM)];
    let some = [api_server("a", GOAL), api_server("b", FROM)];
    let blind = [StaticPod { version: ImageVersion::Untagged, ..api_server("a", "") }];
    let (first, other) = (Role::FirstControlPlane, Role::ControlPlane);
    let table: [(&[StaticPod], Option<bool>, Role); 9] = [
        (&old, None, first),
        (&old, Some(true), first),
        (&some, None, other),
        (&some, Some(true), other),
        // Its own API server may be the one that runs the target: apply has not ended.
        (&some, Some(false), first),
        (&blind, None, first),
        (&blind, Some(false), first),
        (&blind, Some(true), other),
        (&[], None, first),
    ];
    let goal = GOAL.parse().unwrap();
    for (pods, last, role) in table {
        assert_eq!(decide_role(true, Some(&goal), last, pods), role, "{last:?} {pods:?}");
    }
    assert_eq!(decide_role(false, Some(&goal), None, &old), Role::Worker);
}

#[test]
fn the_role_is_sticky_while_the_api_server_changes() {
    let mut one = One::control_plane().staged();
    assert_eq!(one.status().role, Some(Role::FirstControlPlane));
    for pod in &mut one.static_pods {
        pod.version = ImageVersion::of_tag(GOAL);
    }
    one.settle();
    assert_eq!(one.status().role, Some(Role::FirstControlPlane));
    let plan = one.plan.unwrap().spec;
    let upgrade = plan.steps.iter().find(|step| step.id == "kubeadm-upgrade").unwrap();
    assert!(matches!(
        upgrade.step(),
        Some(HostStep::KubeadmUpgrade { role: Role::FirstControlPlane, .. })
    ));
}

#[test]
fn gates_divide_steps_in_the_documented_order() {
    let plan = plan_steps(Role::ControlPlane, &GOAL.parse().unwrap());
    assert!(plan.is_sorted_by_key(|step| step.gate));
    assert!(plan.is_sorted_by_key(refit_kinds::refit::PlannedStep::step_type));
    assert_eq!(
        step_names(&plan),
        [
            "preflight",
            "stage",
            "snapshot",
            "kubeadm-install",
            "kubeadm-upgrade",
            "cordon",
            "drain",
            "kubelet-install",
            "kubelet-restart",
            "verify",
            "node-ready",
            "uncordon",
        ]
    );
    let worker = plan_steps(Role::Worker, &GOAL.parse().unwrap());
    assert!(!worker.iter().any(|step| step.id == "snapshot" || step.id == "reboot"));
    assert!(worker.iter().all(|step| step.disruptive <= (step.gate == Gate::Disrupt)));
}

fn machine_view(available: bool, updating: bool, phase: Option<Phase>, node: &NodeView) -> bool {
    let mut machine = machine("m");
    let state = if available { "True" } else { "False" };
    let list = &mut machine.status.as_mut().unwrap().conditions;
    conditions::set(list, at(0), None, (conditions::AVAILABLE, state, "R", ""));
    if updating {
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
    }
    is_available(&MachineView {
        machine: &machine,
        node: Some(node),
        newest_phase: phase,
        serves: None,
    })
}

#[test]
fn a_member_of_a_paused_control_plane_is_available_while_it_serves() {
    let (well, ill) = (node("m"), NodeView { ready: false, ..node("m") });
    let table = [
        (None, &well, true, true),
        (None, &well, false, false),
        (None, &ill, true, false),
        (Some(Phase::Waiting), &well, true, true),
        (Some(Phase::Upgrading), &well, true, false),
        (Some(Phase::Succeeded), &well, true, true),
    ];
    for (newest_phase, node, serves, expected) in table {
        for shown in ["True", "False"] {
            let mut machine = machine("m");
            let list = &mut machine.status.as_mut().unwrap().conditions;
            conditions::set(list, at(0), None, (conditions::AVAILABLE, shown, "R", ""));
            let view = MachineView {
                machine: &machine,
                node: Some(node),
                newest_phase,
                serves: Some(serves),
            };
            assert_eq!(is_available(&view), expected, "{newest_phase:?} {serves} {shown}");
        }
    }
}

#[test]
fn a_marked_but_undisturbed_machine_is_available() {
    let well = node("m");
    let ill = NodeView { ready: false, ..node("m") };
    let cordoned_by_refit =
        NodeView { unschedulable: true, cordoned_by: Some("m-1".into()), ..node("m") };
    let cordoned_by_admin = NodeView { unschedulable: true, ..node("m") };
    let table = [
        (true, false, None, &well, true),
        (true, false, None, &ill, false),
        (true, false, None, &cordoned_by_refit, false),
        (true, false, None, &cordoned_by_admin, true),
        (false, false, None, &well, false),
        (false, true, None, &well, true),
        (false, true, Some(Phase::Waiting), &well, true),
        (false, true, Some(Phase::Upgrading), &well, false),
        // Until Cluster API reports it as available again: it also waits for minReadySeconds.
        (false, true, Some(Phase::Succeeded), &well, false),
    ];
    for (available, updating, phase, node, expected) in table {
        let found = machine_view(available, updating, phase, node);
        assert_eq!(found, expected, "{available} {updating} {phase:?} {node:?}");
    }
}

#[test]
fn a_machine_being_deleted_is_not_available() {
    let mut machine = machine("m");
    let list = &mut machine.status.as_mut().unwrap().conditions;
    conditions::set(list, at(0), None, (conditions::AVAILABLE, "True", "R", ""));
    machine.metadata.deletion_timestamp = Some(Time(at(1)));
    let view = MachineView { machine: &machine, node: None, newest_phase: None, serves: None };
    assert!(!is_available(&view));
}
