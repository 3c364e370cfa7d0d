//! UpdateMachine, and the NodeUpdates that it creates.

use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use lab_apiserver::{Down, FaultAction, FaultRule};
use refit_cluster_api::kinds::{Machine, MachineDeployment};
use refit_controller::{NewNodeUpdate, node_update, sabotage::Safeguard};
use refit_core::group::BLOCKED;
use refit_kinds::{
    canonical::REFIT,
    conditions, keys,
    refit::{Goal, MachineRef, NodeUpdate, Origin, Phase, Stage, Until, UpdateGroup},
};
use serde_json::json;

use super::fleet::{Fleet, NEW, OLD, machine_side};
use crate::common::{
    objects::{label_default, made, status, update_asked},
    site::{CONTROLLER, settle},
};

const NEWER: &str = "v1.35.1";

/// Creates a NodeUpdate as another replica would, while this controller's watch does not see it.
async fn another_replica_makes(fleet: &Fleet, machine: &str, ordinal: u32, goal: Goal) {
    fleet.site.hold_back("nodeupdates.refit.dev");
    let machine = fleet.api::<Machine>().get(machine).await.unwrap();
    let asked = NewNodeUpdate {
        namespace: "default".into(),
        machine: MachineRef { name: machine.name_any(), uid: machine.uid().unwrap().into() },
        origin: Origin::Hook,
        annotation: None,
        until: Until::Disrupt,
        parts: None,
        bundle: None,
        goal,
    };
    let update: NodeUpdate = node_update(&asked, ordinal);
    fleet.api().create(&PostParams::default(), &update).await.unwrap();
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_update_machine_creates_ordinal_one() {
    let fleet = Fleet::new().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("pending"), "{answer:?}");
    assert_eq!(answer.retry_after_seconds(), Some(2));
    let machine = fleet.api::<Machine>().get("edge-1-w-0").await.unwrap();
    let made = &fleet.updates().await[0];
    assert_eq!(made.name_any(), "edge-1-w-0-1");
    assert_eq!(Some(&made.owner_references()[0].uid), machine.metadata.uid.as_ref());
    assert_eq!(made.labels()[keys::MACHINE_NAME], "edge-1-w-0");
    assert_eq!(made.spec.goal_hash, made.spec.goal.hash());
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_never_creates_a_second_node_update() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    let goal = fleet.updates().await.remove(0).spec.goal;
    another_replica_makes(&fleet, "edge-1-w-1", 1, goal).await;
    for _ in 0..3 {
        fleet.assert_metric("machines{phase=\"None\"} 4").await;
        let answer = fleet.update("edge-1-w-1", NEW).await;
        assert!(answer.waits("pending"), "{answer:?}");
    }
    assert_eq!(fleet.updates().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_the_ordinal_a_restart_creates_a_second_node_update() {
    let mut fleet = Fleet::without(Safeguard::Ordinal).await;
    for _ in 0..3 {
        fleet.update("edge-1-w-0", NEW).await;
        settle().await;
    }
    assert_eq!(fleet.updates().await.len(), 1);
    fleet.restart().await;
    fleet.update("edge-1-w-0", NEW).await;
    assert_eq!(fleet.updates().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn done_comes_with_success_and_the_live_version() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    fleet.end_updates(Phase::Succeeded).await;
    fleet.kubelet("edge-1-w-0", NEW).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.is_done(), "{answer:?}");
    // The previous version was restored since: the update must run again.
    fleet.kubelet("edge-1-w-0", OLD).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("pending"), "{answer:?}");
    assert_eq!(fleet.updates().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_uncached_newer_node_update_prevents_done() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    fleet.end_updates(Phase::Succeeded).await;
    fleet.kubelet("edge-1-w-0", NEW).await;
    settle().await;
    let goal = Goal::of_version(NEWER.parse().unwrap());
    another_replica_makes(&fleet, "edge-1-w-0", 2, goal).await;
    fleet.assert_metric("machines{phase=\"Succeeded\"} 1").await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("stopping NodeUpdate edge-1-w-0-2"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_knows_no_task_yet_takes_the_bundle_that_the_group_shows() {
    let fleet = Fleet::new().await;
    fleet.site.hold_back("upgradetasks.refit.dev");
    fleet.site.hold_back("updategroups.refit.dev");
    let group = json!({
        "metadata": {"name": "machinedeployment-edge-1-md-0"},
        "spec": {
            "clusterName": "edge-1", "controlPlane": false,
            "owner": {
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                "name": "edge-1-md-0",
            },
        },
    });
    let group: UpdateGroup = made(&fleet.client(), group).await;
    let bundle = json!({"bundle": {"location": "/mnt/bundle", "version": NEW}});
    status(&fleet.client(), &group, bundle).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("pending"), "{answer:?}");
    assert_eq!(fleet.updates().await[0].spec.bundle.as_deref(), Some("/mnt/bundle"));
}

#[tokio::test(start_paused = true)]
async fn no_update_begins_before_there_is_a_task_for_the_bundle_that_its_owner_asks_for() {
    let fleet = Fleet::new().await;
    let task = "upgradetasks.refit.dev";
    let refusal = FaultRule::next(FaultAction::Status(500)).verb("create").resource(task);
    fleet.site.management.faults().add(refusal.times(u32::MAX));
    let key = REFIT.upgrade_to;
    fleet.can_bump_set("edge-1-md-0-a").await;
    fleet.annotate::<MachineDeployment>("edge-1-md-0", key, "bundle=/mnt/bundle").await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("asks for bundle \"/mnt/bundle\""), "{answer:?}");
    assert!(answer.waits(key) && fleet.updates().await.is_empty(), "{answer:?}");

    settle().await;
    let status = fleet.groups().await[0].status.clone().unwrap();
    let blocked = conditions::get(&status.conditions, BLOCKED).unwrap();
    assert_eq!((&*blocked.status, &*blocked.reason), ("True", "BundleExpected"));

    let invalid = json!({"metadata": {"annotations": {key: "bundle=mnt/bundle"}}});
    fleet.patch::<MachineDeployment>("edge-1-md-0", invalid).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("expected an absolute path"), "{answer:?}");
    assert!(fleet.updates().await.is_empty(), "{answer:?}");

    let none: Option<&str> = None;
    let removed = json!({"metadata": {"annotations": {key: none}}});
    fleet.patch::<MachineDeployment>("edge-1-md-0", removed).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("pending"), "{answer:?}");
    assert_eq!(fleet.updates().await[0].spec.bundle, None);
}

#[tokio::test(start_paused = true)]
async fn a_stale_cache_does_not_use_a_deleted_ordinal_again() {
    let fleet = Fleet::new().await;
    for ordinal in 1..=3 {
        let goal = Goal::of_version(NEW.parse().unwrap());
        another_replica_makes(&fleet, "edge-1-w-0", ordinal, goal).await;
    }
    fleet.end_updates(Phase::Stopped).await;
    let updates = fleet.api::<NodeUpdate>();
    for pruned in ["edge-1-w-0-1", "edge-1-w-0-2"] {
        updates.delete(pruned, &DeleteParams::default()).await.unwrap();
    }
    fleet.assert_metric("machines{phase=\"None\"} 5").await;
    let answer = fleet.update("edge-1-w-0", NEWER).await;
    assert!(answer.waits("pending"), "{answer:?}");
    let names: Vec<_> = fleet.updates().await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["edge-1-w-0-3", "edge-1-w-0-4"]);
}

#[tokio::test(start_paused = true)]
async fn another_goal_aborts_the_waiting_update_and_continues() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    settle().await;
    let answer = fleet.update("edge-1-w-0", NEWER).await;
    assert!(answer.waits("the goal has changed"), "{answer:?}");
    assert_eq!(fleet.updates().await[0].spec.stage, Stage::Abort);
    settle().await;
    assert_eq!(fleet.updates().await[0].status.as_ref().unwrap().phase, Phase::Stopped);
    fleet.update("edge-1-w-0", NEWER).await;
    let made = fleet.updates().await;
    assert_eq!(made[1].name_any(), "edge-1-w-0-2");
    assert_eq!(made[1].spec.goal.kubernetes_version.as_ref().unwrap().to_string(), NEWER);
}

#[tokio::test(start_paused = true)]
async fn a_failure_waits_for_the_retry_annotation() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    fleet.end_updates(Phase::Failed).await;
    let answer = fleet.update("edge-1-w-0", NEW).await;
    assert!(answer.waits("failed: "), "{answer:?}");
    assert_eq!(fleet.updates().await.len(), 1);
    fleet.annotate::<Machine>("edge-1-w-0", keys::RETRY, "edge-1-w-0-1").await;
    settle().await;
    for _ in 0..2 {
        fleet.update("edge-1-w-0", NEW).await;
    }
    assert_eq!(fleet.updates().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_machine_does_not_show_changes_nothing() {
    let fleet = Fleet::new().await;
    let forged = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(forged.waits("Cluster API is not updating it in place"), "{forged:?}");
    assert!(fleet.updates().await.is_empty());
    fleet.assert_counted("UpdateMachine", "NotAsked").await;

    fleet.update("edge-1-w-0", NEWER).await;
    let late = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(late.waits("its spec.version is v1.35.1, and the request has v1.35.0"), "{late:?}");
    let made = fleet.updates().await;
    assert_eq!((made.len(), made[0].spec.stage), (1, Stage::Ongoing));
}

#[tokio::test(start_paused = true)]
async fn a_replayed_request_changes_nothing() {
    let fleet = Fleet::new().await;
    fleet.update("edge-1-w-0", NEW).await;
    fleet.end_updates(Phase::Succeeded).await;
    fleet.kubelet("edge-1-w-0", NEW).await;
    let ended = json!({keys::UPDATE_IN_PROGRESS: null, keys::PENDING_HOOKS: null});
    fleet.patch::<Machine>("edge-1-w-0", json!({"metadata": {"annotations": ended}})).await;
    settle().await;
    let replayed = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(replayed.is_done(), "{replayed:?}");
    // The host was restored since, which must not start the update again unasked.
    fleet.kubelet("edge-1-w-0", OLD).await;
    settle().await;
    let writes = fleet.site.writes();
    let replayed = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(replayed.waits("Cluster API is not updating it in place"), "{replayed:?}");
    assert_eq!(fleet.site.writes(), writes);
    fleet.assert_counted("UpdateMachine", "NotAsked").await;
}

#[tokio::test(start_paused = true)]
async fn hooks_change_nothing_in_a_namespace_that_did_not_opt_in() {
    let fleet = Fleet::new().await;
    fleet.patch::<Machine>("edge-1-w-0", update_asked(NEW)).await;
    label_default(&fleet.client(), json!({keys::IN_PLACE: "Enabled"})).await;
    settle().await;
    let writes = fleet.site.writes();
    let answer = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(answer.waits("namespace default has not opted in"), "{answer:?}");
    let answer = fleet.can_bump("edge-1-cp-0").await;
    assert!(answer.refuses("namespace default has not opted in"), "{answer:?}");
    assert_eq!(fleet.site.writes(), writes);
    for hook in ["UpdateMachine", "CanUpdateMachine"] {
        fleet.assert_counted(hook, "NotOptedIn").await;
    }
    label_default(&fleet.client(), json!({keys::IN_PLACE: keys::OPTED_IN})).await;
    settle().await;
    assert!(fleet.can_bump("edge-1-cp-0").await.is_covered());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_outage_is_a_retry_not_a_failure() {
    let fleet = Fleet::new().await;
    fleet.patch::<Machine>("edge-1-w-0", update_asked(NEW)).await;
    fleet.site.management.faults().set_down(Some(Down::Unavailable));
    let answer = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(answer.waits("did not answer"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_update_that_the_api_server_refuses_is_reported_with_its_message() {
    let fleet = Fleet::new().await;
    fleet.patch::<Machine>("edge-1-w-0", update_asked(NEW)).await;
    let faults = fleet.site.management.faults();
    for (code, message) in [
        (403, "forbidden: the fault layer rejects this request"),
        (429, "the server has received too many requests"),
    ] {
        let refused = FaultRule::next(FaultAction::Status(code)).verb("create");
        let refused = refused.resource("nodeupdates.refit.dev").user_agent(CONTROLLER);
        faults.add(refused.times(u32::MAX));
        let answer = fleet.call_update("edge-1-w-0", NEW).await;
        assert!(answer.waits("API server refused the request: "), "{answer:?}");
        assert!(answer.waits(message), "{answer:?}");
        faults.clear();
    }
    assert!(fleet.updates().await.is_empty());
    let answer = fleet.call_update("edge-1-w-0", NEW).await;
    assert!(answer.waits("pending"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_request_is_a_failure_without_values() {
    let fleet = Fleet::new().await;
    let table = [
        (
            json!({"desired": machine_side("unknown", NEW, 2)}),
            "does not know Machine default/unknown",
        ),
        (
            json!({"desired": machine_side("edge-1-w-0", "latest", 2)}),
            "the request cannot be served",
        ),
        (json!({"desired": "hunter2"}), "the request cannot be served"),
    ];
    for (body, why) in table {
        let answer = fleet.ask("UpdateMachine", "update-machine", &body).await;
        assert!(answer.refuses(why), "{answer:?}");
        assert!(!answer.message().contains("hunter2"), "{answer:?}");
    }
    for verdict in ["ObjectUnknown", "BadGoal", "BadRequest"] {
        fleet.assert_counted("UpdateMachine", verdict).await;
    }
    assert!(fleet.updates().await.is_empty());
}
