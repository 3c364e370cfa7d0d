//! Old NodeUpdates are deleted.

use std::time::Duration;

use kube::{Api, ResourceExt, api::PostParams};
use refit_cluster_api::kinds::Machine;
use refit_controller::{NewNodeUpdate, node_update};
use refit_kinds::refit::{Goal, MachineRef, NodeUpdate, Origin, Stage, Until};

use super::lab::{GOAL, Lab};
use crate::common::site::settle;

/// Creates a NodeUpdate that stops at once.
async fn abort(lab: &Lab, machine: &Machine, ordinal: u32) {
    let new = NewNodeUpdate {
        namespace: "default".into(),
        machine: MachineRef { name: machine.name_any(), uid: machine.uid().unwrap().into() },
        origin: Origin::Task,
        annotation: None,
        until: Until::Disrupt,
        parts: None,
        bundle: None,
        goal: Goal::of_version(GOAL.parse().unwrap()),
    };
    let mut aborted = node_update(&new, ordinal);
    aborted.spec.stage = Stage::Abort;
    let updates: Api<NodeUpdate> = Api::default_namespaced(lab.site.client());
    updates.create(&PostParams::default(), &aborted).await.unwrap();
    settle().await;
}

async fn names(lab: &Lab) -> Vec<String> {
    lab.updates().await.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(start_paused = true)]
async fn ended_node_updates_are_deleted_after_an_hour() {
    let lab = Lab::new().await;
    let _controller = lab.site.start(None);
    settle().await;
    let machines: Api<Machine> = Api::default_namespaced(lab.site.client());
    let machine = machines.get("w-0").await.unwrap();
    for ordinal in 1..=6 {
        abort(&lab, &machine, ordinal).await;
    }
    assert_eq!(names(&lab).await.len(), 6, "they have just ended");
    tokio::time::sleep(Duration::from_hours(1)).await;
    abort(&lab, &machine, 7).await;
    assert_eq!(names(&lab).await, ["w-0-5", "w-0-6", "w-0-7"]);
}
