//! CanUpdateMachine and CanUpdateMachineSet.

use std::{fmt::Debug, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::{
    NamespaceResourceScope,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use lab_apiserver::{Down, FaultAction, FaultRule};
use refit_cluster_api::kinds::{Cluster, KubeadmControlPlane, Machine, MachineDeployment};
use refit_core::group::COVERED;
use refit_kinds::{
    conditions, keys,
    refit::{Phase, UpdateGroup},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fleet::{Answer, CONTROL_PLANE, Fleet, NEW, OLD, set_side};
use crate::common::site::{CONTROLLER, settle};

const CONTROL_PLANES: &str = "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io";
const HANDLER: &str = "can-update-machineset";
const CLUSTERS: &str = "clusters.cluster.x-k8s.io";

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
async fn a_call_about_what_the_owner_does_not_request_changes_nothing() {
    let fleet = Fleet::new().await;
    for name in CONTROL_PLANE {
        fleet.kubelet(name, NEW).await;
    }
    let template = json!({"infrastructureRef": {"apiGroup": "i", "kind": "T", "name": "new"}});
    let of_owner = json!({"spec": {"template": {"spec": template}}});
    fleet.patch::<MachineDeployment>("edge-1-md-0", of_owner).await;
    settle().await;
    let set = |version: &str, template: &str| {
        let mut desired = set_side("new", version, 2);
        desired["machineSet"]["spec"]["template"]["spec"]["infrastructureRef"] =
            json!({"name": template});
        json!({"current": set_side("edge-1-md-0-a", OLD, 2), "desired": desired})
    };
    let answer = fleet.ask("CanUpdateMachineSet", HANDLER, &set(NEW, "new")).await;
    assert!(answer.is_covered(), "{answer:?}");
    settle().await;
    let writes = fleet.site.writes();
    for (version, template) in [("v1.34.7", "new"), (NEW, "old")] {
        let answer = fleet.ask("CanUpdateMachineSet", HANDLER, &set(version, template)).await;
        assert!(answer.refuses("MachineDeployment edge-1-md-0 does not request"), "{answer:?}");
    }
    settle().await;
    assert_eq!((fleet.reason().await.as_str(), fleet.site.writes()), ("Covered", writes));
    let labels = "hook=\"CanUpdateMachineSet\",verdict=\"OwnerDiffers\"";
    fleet.assert_metric(&format!("hook_duration_seconds_count{{{labels}}} 2")).await;
    let answer = fleet.can_update("edge-1-cp-0", "v1.34.7", (2, 2)).await;
    assert!(answer.refuses("KubeadmControlPlane edge-1 does not request"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_may_be_newer_than_the_caches() {
    let fleet = Fleet::new().await;
    fleet.site.hold_back(CONTROL_PLANES);
    fleet.patch::<KubeadmControlPlane>("edge-1", json!({"spec": {"version": "v1.35.1"}})).await;
    settle().await;
    let answer = fleet.can_update("edge-1-cp-0", "v1.35.1", (2, 2)).await;
    assert!(answer.is_covered(), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_newer_than_the_caches_waits_until_the_owner_can_be_read() {
    let fleet = Fleet::new().await;
    fleet.site.hold_back(CONTROL_PLANES);
    fleet.patch::<KubeadmControlPlane>("edge-1", json!({"spec": {"version": "v1.35.1"}})).await;
    settle().await;
    let fails = FaultRule::next(FaultAction::Status(503)).verb("get").resource(CONTROL_PLANES);
    fleet.site.management.faults().add(fails.user_agent(CONTROLLER).times(u32::MAX));
    let writes = fleet.site.writes();
    let answer = fleet.can_update("edge-1-cp-0", "v1.35.1", (2, 2)).await;
    assert!(answer.refuses("could not be confirmed: "), "{answer:?}");
    assert!(!answer.refuses("did not respond within"), "the API server's error: {answer:?}");
    fleet.assert_counted("CanUpdateMachine", "OwnerUnread").await;
    settle().await;
    assert_eq!(fleet.site.writes(), writes, "nothing is recorded");
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
    tokio::time::sleep(Duration::from_secs(901)).await;
    // What counts is that a report arrives, not the time that it states: this host's clock is late.
    let stated = fleet.site.clock.now_seconds() - SignedDuration::from_mins(20);
    fleet.report("edge-1-cp-1", stated).await;
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

/// Forbids the replacement of machines while the controller's watch of this kind is behind, and
/// asserts that the next answer keeps them.
async fn assert_live_policy<K>(
    fleet: &Fleet,
    (resource, name): (&str, &str),
    ask: impl AsyncFn((u8, u8)) -> Answer,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    fleet.annotate::<K>(name, keys::ON_UNCOVERED, "Replace").await;
    settle().await;
    let answer = ask((2, 4)).await;
    assert!(answer.leaves_it("Cluster API replaces the machines"), "{answer:?}");
    fleet.site.hold_back(resource);
    fleet.annotate::<K>(name, keys::IN_PLACE, "Disabled").await;
    settle().await;
    let answer = ask((2, 2)).await;
    assert!(answer.is_covered(), "the watch is behind: {answer:?}");
    let annotations = json!({keys::IN_PLACE: null, keys::ON_UNCOVERED: "Preserve"});
    fleet.patch::<K>(name, json!({"metadata": {"annotations": annotations}})).await;
    settle().await;
    let answer = ask((2, 4)).await;
    assert!(answer.refuses("spec.cpus: 2 -> 4 (no updater)"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn machines_are_replaced_only_if_the_live_control_plane_allows_it() {
    let fleet = Fleet::new().await;
    let ask = async |cpus| fleet.can_update("edge-1-cp-0", NEW, cpus).await;
    assert_live_policy::<KubeadmControlPlane>(&fleet, (CONTROL_PLANES, "edge-1"), ask).await;
    assert_eq!(fleet.reason().await, "UncoveredPreserve");
}

#[tokio::test(start_paused = true)]
async fn machines_are_replaced_only_if_the_live_cluster_allows_it() {
    let fleet = Fleet::new().await;
    let ask = async |cpus| fleet.can_update("edge-1-cp-0", NEW, cpus).await;
    assert_live_policy::<Cluster>(&fleet, (CLUSTERS, "edge-1"), ask).await;
    assert_eq!(fleet.reason().await, "UncoveredPreserve");
}

#[tokio::test(start_paused = true)]
async fn workers_are_replaced_only_if_the_live_machine_deployment_allows_it() {
    let fleet = Fleet::new().await;
    for name in CONTROL_PLANE {
        fleet.kubelet(name, NEW).await;
    }
    let ask = async |cpus| fleet.can_update_set("edge-1-md-0-a", cpus).await;
    let held = ("machinedeployments.cluster.x-k8s.io", "edge-1-md-0");
    assert_live_policy::<MachineDeployment>(&fleet, held, ask).await;
    assert_eq!(fleet.reason().await, "UncoveredPreserve");
}

#[tokio::test(start_paused = true)]
async fn machines_are_kept_while_the_policy_cannot_be_read_live() {
    let fleet = Fleet::new().await;
    fleet.annotate::<Cluster>("edge-1", keys::ON_UNCOVERED, "Replace").await;
    settle().await;
    let faults = fleet.site.management.faults();
    for (resource, code) in [(CONTROL_PLANES, 500), (CLUSTERS, 403), (CLUSTERS, 503)] {
        let fails = FaultRule::next(FaultAction::Status(code)).verb("get").resource(resource);
        faults.add(fails.user_agent(CONTROLLER).times(u32::MAX));
        let answer = fleet.can_update("edge-1-cp-0", NEW, (2, 4)).await;
        assert!(answer.refuses("the policy that allows it could not be confirmed"), "{answer:?}");
        assert_eq!(fleet.reason().await, "Unconfirmed");
        faults.clear();
    }
    let labels = "hook=\"CanUpdateMachine\",verdict=\"Unconfirmed\"";
    fleet.assert_metric(&format!("hook_duration_seconds_count{{{labels}}} 3")).await;
    let answer = fleet.can_update("edge-1-cp-0", NEW, (2, 4)).await;
    assert!(answer.leaves_it("Cluster API replaces the machines"), "{answer:?}");
}

/// Adds a field to the status of UpdateGroups, as a newer version of Refit does.
async fn add_status_field(fleet: &Fleet, field: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(fleet.client());
    let crd = crds.get("updategroups.refit.dev").await.unwrap();
    let mut crd = serde_json::to_value(crd).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["status"]["properties"][field] = json!({"type": "string"});
    let versions = Patch::Merge(json!({"spec": {"versions": crd["spec"]["versions"]}}));
    let params = PatchParams::default();
    crds.patch("updategroups.refit.dev", &params, &versions).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_decision_keeps_status_fields_of_a_newer_version() {
    let fleet = Fleet::new().await;
    add_status_field(&fleet, "newer").await;
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
    let kind = ApiResource::erase::<UpdateGroup>(&());
    let groups: Api<DynamicObject> = Api::default_namespaced_with(fleet.client(), &kind);
    let name = "kubeadmcontrolplane-edge-1";
    let newer = Patch::Merge(json!({"status": {"newer": "kept"}}));
    groups.patch_status(name, &PatchParams::default(), &newer).await.unwrap();
    settle().await;
    let kept = async || -> Value {
        let group = groups.get(name).await.unwrap();
        group.data["status"]["newer"].clone()
    };
    assert_eq!(kept().await, "kept");
    fleet.can_update("edge-1-cp-0", NEW, (2, 4)).await;
    assert_eq!(fleet.reason().await, "UncoveredPreserve", "the decision is written");
    assert_eq!(kept().await, "kept");
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
    assert_eq!(fleet.reason().await, "Covered", "the list of paths is removed");
    assert_eq!(kept().await, "kept");
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
