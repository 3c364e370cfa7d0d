//! CanUpdateMachine and CanUpdateMachineSet.

use jiff::SignedDuration;
use kube::ResourceExt as _;
use lab_apiserver::Down;
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine};
use refit_core::group::COVERED;
use refit_kinds::{conditions, keys, refit::Phase};
use serde_json::json;

use super::fleet::{CONTROL_PLANE, Fleet, NEW};
use crate::common::site::settle;

#[tokio::test(start_paused = true)]
async fn a_version_bump_of_a_control_plane_machine_is_covered() {
    let fleet = Fleet::new().await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.is_covered(), "{answer:?}");
    let group = &fleet.groups().await[0];
    assert_eq!(group.name_any(), "kubeadmcontrolplane-edge-1");
    let owner = fleet.api::<KubeadmControlPlane>().get("edge-1").await.unwrap();
    assert_eq!(Some(&group.owner_references()[0].uid), owner.metadata.uid.as_ref());
    let status = group.status.as_ref().unwrap();
    assert!(conditions::is_true(&status.conditions, COVERED));
    assert_eq!(fleet.event_reasons("edge-1").await, ["Covered"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_decision_is_written_once() {
    let fleet = Fleet::new().await;
    fleet.can_bump("edge-1-cp-0").await;
    settle().await;
    let writes = fleet.site.writes();
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
    assert!(fleet.can_bump("edge-1-cp-1").await.is_covered());
    assert_eq!(fleet.site.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn another_unfinished_machine_of_the_control_plane_is_named() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-cp-1", NEW).await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("edge-1-cp-1 "), "{answer:?}");
    assert_eq!(fleet.reason().await, "AnotherMachineUpdating");
    assert!(fleet.can_bump("edge-1-cp-1").await.is_covered());
    fleet.end_updates(Phase::Succeeded).await;
    let unmarked = json!({keys::UPDATE_IN_PROGRESS: null, keys::PENDING_HOOKS: null});
    fleet.patch::<Machine>("edge-1-cp-1", json!({"metadata": {"annotations": unmarked}})).await;
    settle().await;
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_in_place_update_blocks_the_other_machines() {
    let fleet = Fleet::new().await;
    fleet.annotate::<Machine>("edge-1-cp-2", keys::UPDATE_IN_PROGRESS, "").await;
    settle().await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("edge-1-cp-2 "), "{answer:?}");
    assert_eq!(fleet.reason().await, "AnotherMachineUpdating");
    assert!(fleet.can_bump("edge-1-cp-2").await.is_covered());
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_fresh_report_is_named() {
    let fleet = Fleet::new().await;
    let now = fleet.site.clock.now_seconds();
    fleet.report("edge-1-cp-0", now - SignedDuration::from_secs(901)).await;
    settle().await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("Node edge-1-cp-0"), "{answer:?}");
    assert_eq!(fleet.reason().await, "NoFreshReport");
    assert!(fleet.can_bump("edge-1-cp-1").await.is_covered());
}

#[tokio::test(start_paused = true)]
async fn an_uncovered_change_is_preserved_with_its_paths_in_the_group() {
    let fleet = Fleet::new().await;
    let line = "DockerMachine/edge-1-cp-0 spec.cpus: 2 -> 4 (no updater)";
    let answer = fleet.can_update("edge-1-cp-0", NEW, (2, 4)).await;
    assert!(answer.refuses(line), "{answer:?}");
    assert_eq!(fleet.reason().await, "UncoveredPreserve");
    let status = fleet.groups().await[0].status.clone().unwrap();
    assert_eq!(status.uncovered, [line]);
    assert_eq!(fleet.event_reasons("edge-1").await, ["UncoveredPreserve"]);
    settle().await;
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
    assert!(fleet.groups().await[0].status.clone().unwrap().uncovered.is_empty());
}

#[tokio::test(start_paused = true)]
async fn policy_is_read_from_the_live_owner_and_cluster() {
    let fleet = Fleet::new().await;
    fleet.annotate::<Cluster>("edge-1", keys::ON_UNCOVERED, "Replace").await;
    settle().await;
    let answer = fleet.can_update("edge-1-cp-0", NEW, (2, 4)).await;
    assert!(answer.leaves_it("Cluster API replaces the machines"), "{answer:?}");
    assert_eq!(fleet.reason().await, "UncoveredReplace");
    fleet.annotate::<KubeadmControlPlane>("edge-1", keys::IN_PLACE, "Disabled").await;
    settle().await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.leaves_it("Refit is disabled here"), "{answer:?}");
    assert_eq!(fleet.reason().await, "Disabled");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_object_is_never_an_empty_success() {
    let mut fleet = Fleet::new().await;
    fleet.site.management.faults().set_down(Some(Down::Unavailable));
    fleet.restart().await;
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("has not read the cluster yet"), "{answer:?}");
    fleet.site.management.faults().clear();
    fleet.patch::<Machine>("edge-1-cp-0", json!({"metadata": {"ownerReferences": null}})).await;
    let held = json!({"metadata": {"finalizers": ["test.refit.dev/held"]}});
    fleet.patch::<Machine>("edge-1-cp-1", held).await;
    fleet.api::<Machine>().delete("edge-1-cp-1", &<_>::default()).await.unwrap();
    for _ in 0..6 {
        settle().await;
    }
    let writes = fleet.site.writes();
    let answer = fleet.can_bump("edge-1-cp-9").await;
    assert!(answer.refuses("does not know Machine default/edge-1-cp-9"), "{answer:?}");
    let answer = fleet.can_bump_set("other").await;
    assert!(answer.refuses("does not know MachineSet default/other"), "{answer:?}");
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("edge-1-cp-0 has no owner that Refit knows"), "{answer:?}");
    let answer = fleet.can_bump("edge-1-cp-1").await;
    assert!(answer.refuses("edge-1-cp-1 is being deleted"), "{answer:?}");
    let answer = fleet.ask("CanUpdateMachine", "can-update-machine", &json!({})).await;
    assert!(answer.refuses("the request cannot be served"), "{answer:?}");
    assert_eq!(fleet.site.writes(), writes);
    for verdict in ["NotSynced", "ObjectUnknown", "OwnerUnknown", "Deleting", "BadRequest"] {
        fleet.assert_counted("CanUpdateMachine", verdict).await;
    }
    fleet.assert_counted("CanUpdateMachineSet", "ObjectUnknown").await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_changes_no_verdict() {
    let fleet = Fleet::new().await;
    fleet.site.management.faults().set_down(Some(Down::Unavailable));
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.is_covered(), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn workers_wait_for_the_control_plane() {
    let fleet = Fleet::new().await;
    let answer = fleet.can_bump_set("edge-1-md-0-a").await;
    assert!(answer.refuses("edge-1-cp-0 runs v1.34.2"), "{answer:?}");
    assert_eq!(fleet.reason().await, "ControlPlaneBehind");
    for name in CONTROL_PLANE {
        fleet.kubelet(name, NEW).await;
    }
    settle().await;
    let answer = fleet.can_bump_set("edge-1-md-0-a").await;
    assert!(answer.is_covered(), "{answer:?}");
    assert_eq!(fleet.groups().await[0].name_any(), "machinedeployment-edge-1-md-0");
    assert_eq!(fleet.reason().await, "Covered");
}

#[tokio::test(start_paused = true)]
async fn a_set_tolerates_one_worker_without_a_node() {
    let fleet = Fleet::new().await;
    for name in CONTROL_PLANE {
        fleet.kubelet(name, NEW).await;
    }
    fleet.machine_status("edge-1-w-1", json!({"nodeRef": null})).await;
    settle().await;
    let answer = fleet.can_bump_set("edge-1-md-0-a").await;
    assert!(answer.is_covered(), "{answer:?}");
    fleet.machine_status("edge-1-w-0", json!({"nodeRef": null})).await;
    settle().await;
    let answer = fleet.can_bump_set("edge-1-md-0-a").await;
    assert!(answer.refuses("Machine edge-1-w-1"), "{answer:?}");
    assert_eq!(fleet.reason().await, "NoFreshReport");
}
