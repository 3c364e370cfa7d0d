//! How much an update disturbs its machine: one rule for slots, guards and drains.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Disruption::{self, Drain, Reboot, Restart},
    FileArgs, Gate, Goal, GoalCertificates, HostPart, KubeletArgs, NtpArgs, OsImageArgs, PartState,
    Phase, Slot, StepState, StepType, Until, UpdatePart, UpdaterAction,
};

use strum::VariantArray as _;

use super::world::*;
use crate::gates::ClosedGate;
use crate::node::{ImageVersion, STEP_CORDON, STEP_DRAIN};

const STILL: Disruption = Disruption::None;

fn image(disruption: Disruption) -> UpdatePart {
    let os_image = OsImageArgs {
        name: "os-2".into(),
        url: "https://images/os-2.cosi".into(),
        sha384: "ab".repeat(48),
        ..OsImageArgs::default()
    };
    UpdatePart {
        updater: "image".into(),
        action: UpdaterAction::Update,
        disruption,
        timeout_seconds: None,
        host: Some(HostPart::OsImage(os_image)),
        template: None,
    }
}

fn memory(disruption: Disruption) -> UpdatePart {
    UpdatePart { updater: "memory".into(), host: None, ..image(disruption) }
}

/// A machine that has the version already, with these parts of an update, on a host that runs this OS image.
fn with(mut one: One, parts: &[UpdatePart], runs: &str) -> One {
    one.update.spec.parts = Some(parts.to_vec());
    for node in &mut one.nodes {
        node.kubelet_version = GOAL.into();
    }
    for pod in one.static_pods.iter_mut().filter(|pod| pod.component != "etcd") {
        pod.version = ImageVersion::of_tag(GOAL);
    }
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities = StepType::VARIANTS.to_vec();
    status.facts.os_image = runs.into();
    one
}

fn count(one: &One, word: &str) -> usize {
    one.log.iter().filter(|known| known.starts_with(word)).count()
}

fn ids(one: &One) -> Vec<&str> {
    one.plan.as_ref().unwrap().spec.steps.iter().map(|step| step.id.as_str()).collect()
}

/// Lets the update end. The host runs the new image from its reboot on.
fn ended(one: One) -> One {
    let mut one = one.disrupted();
    one.plan.as_mut().unwrap().status.as_mut().unwrap().facts.os_image = "os-2".into();
    one.settle_with_static_pods();
    one
}

#[test]
fn parts_and_steps_decide_about_slot_guard_and_drain() {
    let version = || UpdatePart::kubeadm();
    let of = |disruption| UpdatePart { disruption, ..version() };
    for (parts, runs, wanted) in [
        (vec![version()], "os-1", Drain),
        (vec![version(), image(Reboot)], "os-1", Reboot),
        (vec![version(), memory(STILL)], "os-1", Drain),
        (vec![image(Reboot)], "os-1", Reboot),
        (vec![image(Reboot), memory(Restart)], "os-1", Reboot),
        // What the parts promise counts, also where the steps need less.
        (vec![image(Reboot)], "os-2", Reboot),
        (vec![image(Restart)], "os-2", Restart),
        (vec![image(STILL), memory(Restart)], "os-2", Restart),
        (vec![image(STILL)], "os-2", STILL),
        // No part hides what the steps need.
        (vec![image(STILL)], "os-1", Reboot),
        (vec![image(Restart)], "os-1", Reboot),
        (vec![of(STILL)], "os-1", Drain),
    ] {
        for one in [One::worker(), One::control_plane()] {
            let one = ended(with(one, &parts, runs));
            let names: Vec<_> = parts.iter().map(|part| (&part.updater, part.disruption)).collect();
            let case = format!("{names:?} on a host with {runs}: {:?}", one.log);
            assert_eq!(one.phase(), Phase::Succeeded, "{case} {:?}", one.blocked_by());
            assert_eq!(one.plan.as_ref().unwrap().spec.disruption, wanted, "{case}");
            let slot = usize::from(wanted.takes_slot());
            assert_eq!((count(&one, "claim"), count(&one, "enter")), (slot, 1 - slot), "{case}");
            assert_eq!(count(&one, "release"), 1, "{case}");
            assert_eq!(count(&one, "guard"), slot, "{case}");
            let cordoned = usize::from(wanted.drains());
            assert_eq!((count(&one, "cordon"), one.pods.len()), (cordoned, 1 - cordoned), "{case}");
            let status = one.status();
            let drain = if wanted.drains() { StepState::Done } else { StepState::Skipped };
            for name in [STEP_CORDON, STEP_DRAIN] {
                let step = status.steps.iter().find(|step| step.name == name).unwrap();
                assert_eq!(step.state, drain, "{case} {name}");
            }
        }
    }
}

#[test]
fn an_image_alone_needs_neither_kubeadm_nor_packages() {
    let mut one = with(One::control_plane(), &[image(Reboot)], "os-1");
    one.settings.files = Some(FileArgs::default());
    one.settings.ntp = Some(NtpArgs::default());
    one.settings.kubelet =
        Some(KubeletArgs { remove_args: vec!["v".into()], ..KubeletArgs::default() });
    let one = ended(one);
    let wanted = [
        "preflight",
        "os-image-stage",
        "snapshot",
        "files",
        "ntp",
        "os-image-finalize",
        "kubelet-flags",
        "reboot",
        "os-image-commit",
        "verify",
    ];
    assert_eq!(ids(&one), wanted);
    let plan = &one.plan.as_ref().unwrap().spec;
    assert_eq!(plan.point_of_no_return, "reboot");
    let after = plan.steps.iter().skip_while(|step| step.id != "reboot");
    assert!(after.clone().count() == 3 && after.clone().all(|step| step.undo.is_none()));
    assert!(plan.steps.iter().all(|step| step.step().unwrap().version().is_none()));
    let status = one.status();
    assert_eq!((one.phase(), status.parts[0].state), (Phase::Succeeded, PartState::Done));
    assert_eq!(status.message, "the machine has its desired state");
}

#[test]
fn an_image_is_installed_on_a_machine_without_a_version() {
    let mut one = with(One::worker(), &[image(Reboot)], "os-1");
    one.update.spec.goal = Goal::default();
    let one = ended(one);
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    assert!(ids(&one).contains(&"os-image-finalize"), "{:?}", ids(&one));
}

#[test]
fn a_goal_that_asks_for_nothing_on_the_host_cannot_succeed() {
    for parts in [None, Some(vec![UpdatePart::kubeadm()])] {
        for one in [One::worker(), One::control_plane()] {
            let mut one = one;
            one.update.spec.goal = Goal::default();
            one.update.spec.parts.clone_from(&parts);
            one.settle();
            let status = one.status();
            assert_eq!((status.phase, &*status.failure_reason), (Phase::Failed, "NothingToDo"));
            assert_eq!((one.gate(), count(&one, "claim")), (Gate::Closed, 0), "nothing has begun");
        }
    }
}

#[test]
fn an_update_that_disturbs_nothing_waits_for_no_other_machine() {
    let mut one = with(One::control_plane(), &[image(STILL)], "os-2");
    one.static_pods.iter_mut().find(|pod| &*pod.node == "m-1").unwrap().ready = false;
    one.others.iter_mut().for_each(|other| other.available = false);
    let one = ended(one);
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
}

#[test]
fn an_update_that_disturbs_nothing_is_held_like_any_other() {
    let still = |one| with(one, &[image(STILL)], "os-2").staged();
    let mut one = still(One::worker());
    one.paused = Some("Machine m-0".into());
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["Paused".to_owned()], Gate::Stage));
    for machine in [One::worker(), One::control_plane()] {
        let mut one = machine;
        one.update.spec.until = Until::Stage;
        let mut one = still(one);
        one.settle();
        assert_eq!((one.blocked_by(), one.gate()), (vec!["UntilReached".to_owned()], Gate::Stage));
        assert_eq!((one.slots(), one.annotations().len()), (0, 0));
    }
    let mut one = still(One::worker());
    one.node_mut().ready = false;
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["NodeNotReady".to_owned()], Gate::Stage));
    one.node_mut().ready = true;
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
}

#[test]
fn an_update_that_disturbs_nothing_waits_for_its_turn() {
    let mut one = with(One::worker(), &[image(STILL)], "os-2").staged();
    let entries: Vec<_> = (10..20)
        .map(|n| Slot {
            machine: format!("m-{n}"),
            machine_uid: format!("uid-m-{n}").into(),
            node_update: format!("m-{n}-1"),
            since: Time(at(0)),
            claim: 1.into(),
        })
        .collect();
    one.group.as_mut().unwrap().undisturbed = entries;
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["OutOfTurn".to_owned()], Gate::Stage));
    one.group.as_mut().unwrap().undisturbed.pop();
    one.closed_gates = vec![ClosedGate { name: "alerts".into(), why: "DiskFull fires".into() }];
    let gates = serde_json::json!([{"name": "alerts", "alerts": {}}]);
    one.pace.pacing.gates = serde_json::from_value(gates).unwrap();
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["GateClosed".to_owned()], Gate::Stage));
    one.closed_gates.clear();
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 0));
    let entered = &one.group.as_ref().unwrap().undisturbed;
    assert!(entered.iter().any(|entry| entry.machine == "m-0"), "{entered:?}");
}

#[test]
fn an_update_that_is_held_keeps_no_other_from_its_turn() {
    let mut one = with(One::worker(), &[image(STILL)], "os-2").staged();
    while count(&one, "enter") == 0 {
        assert!(one.step(), "{:?}", one.blocked_by());
    }
    one.paused = Some("Machine m-0".into());
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["Paused".to_owned()], Gate::Stage));
    assert!(one.group.as_ref().unwrap().undisturbed.is_empty());
}

#[test]
fn a_renewal_keeps_pods_where_the_definition_does_not_keep_the_disruption_of_its_plan() {
    let one = with(One::control_plane(), &[], "os-1");
    let mut one = One {
        update: {
            let mut update = one.update.clone();
            update.spec.goal =
                Goal { certificates: Some(GoalCertificates::default()), ..Goal::default() };
            update.spec.parts = None;
            update
        },
        ..one
    };
    one.settle();
    let plan = &mut one.plan.as_mut().unwrap().spec;
    assert_eq!(plan.disruption, Restart);
    let mut value = serde_json::to_value(&*plan).unwrap();
    value.as_object_mut().unwrap().remove("disruption");
    *plan = serde_json::from_value(value).unwrap();
    let mut one = one.upgraded();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
    assert_eq!(count(&one, "cordon"), 0, "{:?}", one.log);
}
