//! Writes that the API server refuses, and objects that the controller's cache lacks.

use std::time::Duration;

use kube::{Api, ResourceExt as _, api::PostParams};
use lab_apiserver::{FaultAction, FaultRule};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    conditions,
    hooks::path,
    refit::{NodeUpdate, Phase},
};
use serde_json::json;

use super::lab::{GOAL, Lab, asked, phase};
use crate::common::{
    objects::{made, update_asked},
    site::{CONTROLLER, settle},
};

const MACHINES: &str = "machines.cluster.x-k8s.io";

async fn the_update(lab: &Lab) -> NodeUpdate {
    lab.updates().await.remove(0)
}

/// How many writes were refused.
async fn refusals(lab: &Lab) -> u32 {
    let series = "refit_reconcile_errors_total{controller=\"node-update\",reason=\"Refused\"} ";
    let metrics = lab.site.metrics().await;
    let count = metrics.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_write_is_in_the_status_until_it_is_allowed() {
    let lab = Lab::new().await;
    let forbidden = FaultRule::next(FaultAction::Status(403));
    let forbidden = forbidden.verb("patch").resource(MACHINES).user_agent(CONTROLLER);
    lab.site.management.faults().add(forbidden.times(u32::MAX));
    let machines: Api<Machine> = Api::default_namespaced(lab.site.client());
    let machine = machines.get("w-0").await.unwrap();
    lab.ask_for("w-0", &machine.uid().unwrap()).await;
    let _controller = lab.site.start(None);
    settle().await;
    let blockers = the_update(&lab).await.status.unwrap().blocked_by;
    let refused = blockers.iter().find(|blocker| blocker.reason == "ApiRefused");
    let refused = refused.map(|blocker| blocker.object.as_str());
    assert_eq!(refused, Some("a write to the Machine's status"), "{blockers:?}");

    let status_writes =
        || lab.site.writes().iter().filter(|write| write.contains("/nodeupdates/")).count();
    let before = (refusals(&lab).await, status_writes());
    tokio::time::sleep(Duration::from_mins(2)).await;
    let tried = refusals(&lab).await - before.0;
    assert!((2..=6).contains(&tried), "it is tried again, and not all the time: {tried}");
    assert_eq!(status_writes(), before.1, "it is written once");

    lab.site.management.faults().clear();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let machine = machines.get("w-0").await.unwrap();
    let shown = &machine.status.as_ref().unwrap().conditions;
    assert!(conditions::get(shown, conditions::MACHINE_UP_TO_DATE).is_some(), "{shown:?}");
    let blockers = the_update(&lab).await.status.unwrap().blocked_by;
    assert!(blockers.iter().all(|blocker| blocker.reason != "ApiRefused"), "{blockers:?}");
}

#[tokio::test(start_paused = true)]
async fn an_uncached_machine_is_read_before_its_update_ends() {
    let lab = Lab::new().await;
    let _controller = lab.site.start(None);
    settle().await;
    lab.site.hold_back(MACHINES);
    let client = lab.site.client();
    let spec = json!({"clusterName": "edge-1", "version": GOAL});
    let machine: Machine = made(&client, json!({
        "metadata": {"name": "w-9", "annotations": update_asked(GOAL)["metadata"]["annotations"]},
        "spec": spec,
    }))
    .await;
    let meta = json!({"name": "w-9", "namespace": "default"});
    let desired = json!({"desired": {
        "machine": {"kind": "Machine", "metadata": meta, "spec": spec},
        "infrastructureMachine": {"kind": "DockerMachine", "metadata": meta, "spec": {}},
        "bootstrapConfig": {"kind": "KubeadmConfig", "metadata": meta, "spec": {}},
    }});
    let update_machine = path("UpdateMachine", Some("update-machine"));
    let answer = lab.site.post(&update_machine, &desired).await;
    assert_eq!(answer["status"], "Failure", "its watch is behind: {answer}");

    lab.ask_for("w-9", &machine.uid().unwrap()).await;
    settle().await;
    let update = the_update(&lab).await;
    assert!(update.status.is_some(), "it is worked on");
    assert_eq!(phase(&update), Phase::Pending);
    let answer = lab.site.post(&update_machine, &desired).await;
    assert_eq!(answer["status"], "Success", "{answer}");

    // Otherwise it would be deleted with its Machine.
    let mut unowned = asked("w-8", "gone");
    unowned.metadata.owner_references = None;
    let updates: Api<NodeUpdate> = Api::default_namespaced(client);
    updates.create(&PostParams::default(), &unowned).await.unwrap();
    settle().await;
    assert_eq!(phase(&updates.get("w-8-1").await.unwrap()), Phase::Stopped);
}
