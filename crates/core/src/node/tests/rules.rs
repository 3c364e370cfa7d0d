//! What blocks an update.

use refit_kinds::refit::{Gate, NodeUpdateStatus, Phase, PlanState, StepType, UnreadFact};

use super::world::*;
use crate::{
    group::Other,
    node::{ManagementWrite, WorkloadWrite, Write},
    report::Refusal,
};

/// Expects the update to be blocked at its start with this reason.
pub(super) fn refused(one: One, reason: &str) -> One {
    let mut one = one;
    one.settle();
    assert_eq!(one.blocked_by(), [reason]);
    assert!(one.gate() == Gate::Closed || one.plan.as_ref().unwrap().spec.plan_id != "uid-m-0-1");
    assert_eq!(one.slots(), 0);
    assert_eq!(one.condition(), Some(("Unknown".into(), "Waiting".into())));
    one
}

#[test]
fn a_pause_holds_an_update_that_has_not_begun() {
    let mut one = One::worker();
    one.paused = Some("Cluster edge-1".into());
    let mut one = refused(one, "Paused");
    one.paused = None;
    one.settle();
    assert_eq!(one.phase(), Phase::Staging);
}

#[test]
fn an_update_waits_while_its_node_is_under_pressure() {
    for mut one in [One::worker(), One::control_plane()] {
        one.node_mut().pressure = Some("DiskPressure: the disk is full".into());
        let mut one = refused(one, "NodePressure");
        one.node_mut().pressure = None;
        one.settle();
        assert_eq!(one.phase(), Phase::Staging);
    }
    // Preparing has filled it.
    let mut one = One::worker().staged();
    one.node_mut().pressure = Some("DiskPressure".into());
    one.settle();
    assert_eq!((one.gate(), one.blocked_by()), (Gate::Stage, vec!["NodePressure".to_owned()]));
    // What has begun is finished.
    let mut late = One::worker().upgraded();
    late.node_mut().pressure = Some("MemoryPressure".into());
    late.settle();
    assert_eq!(late.gate(), Gate::Disrupt);
}

#[test]
fn a_pause_holds_only_before_the_point_of_no_return() {
    let mut one = One::worker().staged();
    one.paused = Some("Machine m-0".into());
    one.settle();
    assert_eq!((one.gate(), one.blocked_by()), (Gate::Stage, vec!["Paused".to_owned()]));
    let mut late = One::worker().upgraded();
    late.paused = Some("Machine m-0".into());
    late.settle();
    assert_eq!(late.gate(), Gate::Disrupt);
}

/// Its host is ready and the node is schedulable, or cordoned by an admin; the older update only checks it.
#[test]
fn the_slot_of_an_older_update_that_is_ending_is_not_given_back() {
    let mut older = One::control_plane().disrupted();
    older.node_mut().cordoned_by = None;
    let mut one = older.clone();
    one.update = update("m-0", 2);
    older.update.status.get_or_insert_default().phase = Phase::Verifying;
    one.siblings.push(older.update);
    one.settle();
    assert_eq!(one.blocked_by(), ["OlderUpdateUnfinished"]);
    assert_eq!(one.group.as_ref().unwrap().slots[0].node_update, "m-0-1");
}

#[test]
fn a_host_without_a_fresh_report_gets_no_plan() {
    let mut silent = One::worker();
    silent.now = 901;
    refused(silent, "NoFreshReport");
    let mut missing = One::worker();
    missing.plan.as_mut().unwrap().status = None;
    refused(missing, "NoFreshReport");
}

#[test]
fn an_agent_without_support_for_a_step_gets_no_plan() {
    let mut one = One::worker();
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.retain(|step| *step != StepType::KubeadmUpgrade);
    refused(one, "AgentTooOld");
}

#[test]
fn a_host_whose_facts_are_not_all_read_gets_no_plan() {
    let mut one = One::worker();
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    let message = "the database is damaged".to_owned();
    status.facts.unread = vec![UnreadFact { fact: "packages".to_owned(), message }];
    refused(one, "HostUnreadable");
}

#[test]
fn a_machine_without_a_node_waits() {
    let mut one = One::worker();
    one.machine.as_mut().unwrap().status.as_mut().unwrap().node_ref = None;
    refused(one, "NoNode");
}

#[test]
fn a_machine_without_its_group_waits() {
    let mut one = One::worker();
    one.group = None;
    one.settle();
    assert_eq!(one.blocked_by(), ["GroupNotReady"]);
}

#[test]
fn a_worker_waits_for_the_control_plane_of_its_cluster() {
    let mut one = One::worker();
    one.control_plane = vec![member("cp")];
    one.static_pods = vec![api_server("cp", FROM)];
    let mut one = refused(one, "ControlPlaneBehind");
    one.static_pods = vec![api_server("cp", GOAL)];
    one.settle();
    assert_eq!(one.phase(), Phase::Staging);
}

#[test]
fn a_worker_waits_for_the_api_server_of_a_hosted_control_plane() {
    for unfit in [FROM, "", "rubbish"] {
        let one = One { api_server: unfit.into(), ..One::worker() };
        let mut one = refused(one, "ControlPlaneBehind");
        one.api_server = GOAL.into();
        one.settle();
        assert_eq!(one.phase(), Phase::Staging, "{unfit:?}");
    }
}

#[test]
fn the_lowest_control_plane_version_counts() {
    let mut one = One::worker();
    one.control_plane = vec![member("m-1"), member("m-2")];
    one.static_pods = vec![api_server("m-1", GOAL)];
    refused(one.clone(), "ControlPlaneBehind");
    one.nodes[2].kubelet_version = "v1.35.3".into();
    one.settle();
    assert_eq!(one.phase(), Phase::Staging);
}

#[test]
fn a_newer_patch_than_the_control_planes_is_allowed() {
    let mut one = One::worker();
    one.control_plane = vec![member("cp")];
    one.static_pods = vec![api_server("cp", FROM)];
    one.update.spec.goal.kubernetes_version = "v1.34.9".parse().ok();
    one.settle();
    assert_eq!(one.phase(), Phase::Staging);
}

#[test]
fn a_control_plane_member_waits_for_healthy_peers() {
    let ill: [fn(&mut One); 5] = [
        |one| one.nodes[1].ready = false,
        |one| {
            one.static_pods.iter_mut().filter(|p| p.node == "m-1").for_each(|p| p.ready = false);
        },
        |one| one.static_pods.retain(|pod| pod.node != "m-1"),
        |one| one.control_plane[1].node = None,
        |one| one.control_plane[1].deleting = true,
    ];
    for break_it in ill {
        let mut one = One::control_plane();
        break_it(&mut one);
        one.settle();
        assert_eq!((one.phase(), one.slots()), (Phase::Waiting, 0));
        assert_eq!(one.blocked_by(), ["ControlPlaneUnhealthy"]);
    }
}

#[test]
fn a_worker_follows_a_control_plane_when_its_last_member_is_verified() {
    let mut one = One::worker().staged();
    one.control_plane = vec![member("cp-1"), member("cp-2")];
    one.static_pods = vec![api_server("cp-1", GOAL), api_server("cp-2", GOAL)];
    one.control_plane[1].updating = true;
    one.settle();
    assert_eq!((one.phase(), one.slots()), (Phase::Waiting, 0));
    assert_eq!(one.blocked_by(), ["ControlPlaneUnhealthy"]);
    // A version that no control plane is too old for needs none of them.
    let mut patch = One::worker().staged();
    patch.control_plane = one.control_plane.clone();
    patch.static_pods = one.static_pods.clone();
    patch.node_mut().kubelet_version = "v1.35.0-rc.1".into();
    patch.settle();
    assert_eq!(patch.slots(), 1);
    one.control_plane[1].updating = false;
    one.settle();
    assert_eq!(one.slots(), 1);
    // One that has begun goes on.
    one.control_plane[0].updating = true;
    one.settle();
    assert_eq!((one.blocked_by().len(), one.slots()), (0, 1));
}

#[test]
fn an_unhealthy_peer_holds_the_kubelet_restart() {
    let mut one = One::control_plane().upgraded();
    one.nodes[1].ready = false;
    one.settle();
    assert_eq!((one.gate(), one.phase()), (Gate::Upgrade, Phase::Draining));
    assert_eq!(one.blocked_by(), ["ControlPlaneUnhealthy"]);
    one.nodes[1].ready = true;
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn too_few_available_machines_hold_a_worker() {
    let mut one = One::worker().staged();
    one.others[2].available = false;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Stage, 0));
    assert_eq!(one.blocked_by(), ["GroupUnavailable"]);
}

#[test]
fn without_an_unavailable_machine_a_worker_waits_for_a_surge_machine() {
    let mut one = One::worker().staged();
    one.limits.max_unavailable = 0;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Stage, 0));
    assert_eq!(one.blocked_by(), ["GroupUnavailable"]);
    one.others.push(Other { machine_uid: "surge".into(), available: true });
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 1));
}

#[test]
fn an_unused_slot_is_released_when_others_fail() {
    let mut one = One::worker().staged();
    while one.slots() == 0 {
        assert!(one.step());
    }
    one.others[2].available = false;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Stage, 0));
    one.others[2].available = true;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 1));
}

#[test]
fn a_node_that_is_not_ready_is_not_touched() {
    let mut one = One::worker().staged();
    one.node_mut().ready = false;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Stage, 0));
    assert_eq!(one.blocked_by(), ["NodeNotReady"]);
}

#[test]
fn a_machine_that_is_down_already_does_not_wait_for_others() {
    let mut one = One::worker().staged();
    let slot = crate::group::slot("m-0", &"uid-m-0".into(), "m-0-0", at(0));
    one.group.as_mut().unwrap().slots.push(slot);
    one.others[2].available = false;
    let intact = one.clone();
    let mut silent = one.clone();
    silent.node_mut().ready = false;
    one.node_mut().unschedulable = true;
    one.node_mut().cordoned_by = Some("m-0-0".into());
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    for (why, mut one) in [("a slot disturbs nothing", intact), ("it may return", silent)] {
        one.settle();
        assert_eq!(one.gate(), Gate::Stage, "{why}");
    }
}

#[test]
fn a_failed_machine_that_is_down_may_be_repaired() {
    let mut one = One::worker();
    let slot = crate::group::slot("m-0", &"uid-m-0".into(), "m-0-0", at(0));
    one.group.as_mut().unwrap().slots.push(slot);
    one.node_mut().ready = false;
    one = one.staged();
    one.settle();
    assert_eq!(one.gate(), Gate::Upgrade);
    assert_eq!(one.group.as_ref().unwrap().slots[0].node_update, "m-0-1");
}

#[test]
fn a_lost_slot_of_a_disturbed_machine_is_restored() {
    let mut one = One::worker().upgraded();
    one.group.as_mut().unwrap().slots.clear();
    one.step();
    assert!(one.step());
    assert_eq!(one.slots(), 1);
}

#[test]
fn an_older_update_of_the_machine_ends_first() {
    let mut one = One::worker();
    one.siblings.push(one.update.clone());
    one.update = update("m-0", 2);
    let mut one = refused_second(one);
    one.siblings[0].status = Some(NodeUpdateStatus { phase: Phase::Stopped, ..Default::default() });
    one.settle();
    assert_eq!(one.phase(), Phase::Staging);
}

fn refused_second(mut one: One) -> One {
    one.settle();
    assert_eq!(one.blocked_by(), ["OlderUpdateUnfinished"]);
    assert_eq!(one.status().blocked_by[0].object, "m-0-1");
    one
}

#[test]
fn a_running_plan_of_another_update_is_waited_for() {
    let mut one = One::worker().staged();
    let mut first = one.update.clone();
    first.status.as_mut().unwrap().phase = Phase::Failed;
    one.siblings.push(first);
    one.update = update("m-0", 2);
    one.step();
    one.step();
    assert_eq!(one.blocked_by(), ["OlderPlanRunning"]);
    // No other NodeUpdate would stop it.
    one.settle();
    assert!(one.plan.as_ref().unwrap().spec.abort);
    one.host_works();
    one.settle();
    assert_eq!(one.plan.as_ref().unwrap().spec.plan_id, "uid-m-0-2");
    assert!(!one.plan.as_ref().unwrap().spec.abort);
}

#[test]
fn a_plan_that_may_replace_the_kubelet_is_not_aborted() {
    let mut one = One::worker().upgraded();
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
    // Its NodeUpdate was deleted.
    one.update = update("m-0", 2);
    one.settle();
    assert_eq!(one.blocked_by(), ["OlderPlanRunning"]);
    assert!(!one.plan.as_ref().unwrap().spec.abort);
    one.host_works();
    one.kubelet_returns();
    one.settle();
    assert_eq!(one.plan.as_ref().unwrap().spec.plan_id, "uid-m-0-2");
}

#[test]
fn an_unreachable_api_server_is_named_and_waited_for() {
    let mut one = One::worker().upgraded();
    one.reachable = false;
    one.settle();
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Upgrading, vec!["ApiUnreachable".into()]));
    let log = one.log.len();
    one.settle();
    assert_eq!(one.log.len(), log);
    one.reachable = true;
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_downgrade_must_be_requested_by_the_owner() {
    let mut one = One::worker();
    one.update.spec.goal.kubernetes_version = "v1.34.1".parse().ok();
    let mut asked = one.clone();
    asked.owner_version = "v1.34.1".into();
    one.settle();
    assert_eq!(
        (one.phase(), one.status().failure_reason.as_str()),
        (Phase::Failed, "DowngradeNotAsked")
    );
    assert_eq!(one.gate(), Gate::Closed);
    asked.settle();
    assert_eq!(asked.phase(), Phase::Staging);
}

#[test]
fn a_control_plane_skips_no_minor_and_a_worker_may() {
    let mut member = One::control_plane();
    member.update.spec.goal.kubernetes_version = "v1.36.0".parse().ok();
    member.settle();
    assert_eq!(member.status().failure_reason, "SkipsMinor");
    let mut worker = One::worker();
    worker.update.spec.goal.kubernetes_version = "v1.36.0".parse().ok();
    worker.api_server = "v1.36.0".into();
    worker.settle();
    assert_eq!(worker.phase(), Phase::Staging);
}

#[test]
fn a_host_retry_is_shown_and_is_not_a_failure() {
    let mut one = One::worker();
    one.settle();
    one.host_works();
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.state = PlanState::Retrying;
    status.passed = Gate::Closed;
    let step = &mut status.steps[0];
    step.state = refit_kinds::refit::StepState::Running;
    // The message appears with the first failed attempt, while the host waits to retry.
    step.attempt = 1;
    step.reason = "DiskFull".into();
    step.message = "free 2 GiB".into();
    one.settle();
    let status = one.status();
    assert_eq!((status.phase, status.retriable), (Phase::Staging, true));
    let shown = "step preflight, try 1: DiskFull: free 2 GiB";
    assert_eq!(status.failure_message, shown);
    assert_eq!(status.message, shown, "the Machine shows it too");
    one.host_works();
    one.settle();
    assert!(!one.status().retriable && one.status().failure_message.is_empty());
}

#[test]
fn a_silent_agent_is_named_until_it_reports() {
    let rows: [(One, Phase); 2] =
        [(One::worker(), Phase::Staging), (One::worker().staged(), Phase::Upgrading)];
    for (mut one, phase) in rows {
        one.settle();
        assert!(one.blocked_by().is_empty());
        one.now += 1000;
        one.settle();
        assert_eq!((one.phase(), one.blocked_by()), (phase, vec!["NoFreshReport".to_owned()]));
        one.host_works();
        one.settle();
        assert!(one.blocked_by().is_empty(), "{:?}", one.blocked_by());
    }
    let mut stopping = One::worker();
    stopping.settle();
    stopping.update.spec.stage = refit_kinds::refit::Stage::Abort;
    stopping.now += 1000;
    stopping.settle();
    assert_eq!(
        (stopping.phase(), stopping.blocked_by()),
        (Phase::Stopping, vec!["NoFreshReport".to_owned()])
    );
}

#[test]
fn a_rejected_write_is_named_until_it_succeeds() {
    let mut one = One::worker().staged();
    one.settle();
    one.host_works();
    let cordon = loop {
        let decision = one.decide();
        match decision.write.clone().unwrap() {
            Write::Workload(WorkloadWrite::Cordon) => break decision.write.unwrap(),
            write => one.apply(&decision, write),
        }
    };
    one.refused = Some(Refusal::ApiRefused {
        what: cordon.target().into(),
        message: "nodes is forbidden".into(),
    });
    let decision = one.decide();
    one.apply(&decision, Write::STATUS);
    one.refused = None;
    assert_eq!(one.blocked_by(), ["ApiRefused"]);
    assert!(one.status().message.contains("nodes is forbidden"));
    let again = one.decide();
    assert_eq!(
        again.write,
        Some(Write::Workload(WorkloadWrite::Cordon)),
        "the blocker stays meanwhile"
    );
    one.apply(&again, Write::Workload(WorkloadWrite::Cordon));
    one.settle();
    assert!(one.blocked_by().is_empty());
}

#[test]
fn a_rejected_condition_does_not_report_itself() {
    let mut one = One::worker();
    let status = one.decide();
    one.apply(&status, Write::STATUS);
    let condition = one.decide().write.unwrap();
    assert!(matches!(condition, Write::Management(ManagementWrite::MachineCondition(Some(_)))));
    one.refused =
        Some(Refusal::ApiRefused { what: condition.target().into(), message: "no".into() });
    let decision = one.decide();
    one.apply(&decision, Write::STATUS);
    one.refused = None;
    assert_eq!(one.decide().write, Some(condition));
    one.settle();
    assert!(one.blocked_by().is_empty());
}
