//! The machine API.

use kube::{
    ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use lab_openshift::Blueprint;
use refit_kinds::json::{condition, label, text};
use refit_openshift::{
    kinds::MachineSet,
    scaler::{UPGRADE, clone_of},
};
use serde_json::{Value, json};

use crate::common::{Lab, list, read};

const SET: &str = "lab-worker-us-east-1a";
const CLONE: &str = "lab-worker-us-east-1a-upgrade";

/// Creates the clone that an upgrade has.
async fn create_clone(lab: &Lab) {
    let original: MachineSet =
        serde_json::from_value(read(&lab.machine_sets(), SET).await).unwrap();
    let clone = serde_json::from_value(json!(clone_of(&original).unwrap())).unwrap();
    lab.machine_sets().create(&PostParams::default(), &clone).await.unwrap();
}

async fn clone_machine(lab: &Lab) -> Option<Value> {
    let machines = list(&lab.machines()).await;
    machines.into_iter().find(|machine| label(machine, UPGRADE) == Some("true"))
}

async fn phase(lab: &Lab) -> String {
    clone_machine(lab)
        .await
        .map(|machine| text(&machine, "/status/phase").to_owned())
        .unwrap_or_default()
}

async fn is_ready(lab: &Lab) -> bool {
    read(&lab.machine_sets(), CLONE).await["status"]["readyReplicas"] == 1
}

#[tokio::test(start_paused = true)]
async fn a_clone_becomes_ready_and_is_removed_with_its_node() {
    let lab = Lab::start(&Blueprint::default()).await;
    create_clone(&lab).await;
    let mut phases = Vec::new();
    while !is_ready(&lab).await {
        phases.push(phase(&lab).await);
        assert!(phases.len() < 200, "it takes minutes");
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    }
    phases.push(phase(&lab).await);
    phases.dedup();
    phases.retain(|phase| !phase.is_empty());
    assert_eq!(phases, ["Provisioning", "Provisioned", "Running"]);
    let machine = clone_machine(&lab).await.unwrap();
    let node = text(&machine, "/status/nodeRef/name").to_owned();
    let seen = json!(lab.nodes().get(&node).await.unwrap());
    assert_eq!(condition(&seen, "Ready"), Some("True"));
    assert!(label(&seen, "node-role.kubernetes.io/worker").is_some());
    let set = read(&lab.machine_sets(), CLONE).await;
    assert_eq!(set["status"]["replicas"], 1);
    let pool = read(&lab.pools(), "worker").await;
    assert_eq!(
        (&pool["status"]["machineCount"], &pool["status"]["updatedMachineCount"]),
        (&json!(4), &json!(4))
    );

    lab.machine_sets().delete(CLONE, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert_eq!(phase(&lab).await, "Deleting");
    lab.until(10, "removal", async |lab| clone_machine(lab).await.is_none()).await;
    assert!(lab.nodes().get_opt(&node).await.unwrap().is_none());
    let pods = lab.pods().list(&kube::api::ListParams::default()).await.unwrap();
    assert!(
        pods.items.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.as_ref() != Some(&node))
    );
}

#[tokio::test(start_paused = true)]
async fn machines_fail_while_a_script_has_them_fail() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.fail_machines(Some("quota exceeded")).await.unwrap();
    create_clone(&lab).await;
    lab.minutes(10).await;
    let machine = clone_machine(&lab).await.unwrap();
    assert_eq!(text(&machine, "/status/phase"), "Failed");
    assert_eq!(text(&machine, "/status/errorMessage"), "quota exceeded");
    lab.cluster.fail_machines(None).await.unwrap();
    lab.minutes(10).await;
    assert_eq!(phase(&lab).await, "Failed", "a failed Machine stays");
    lab.machines()
        .delete(text(&machine, "/metadata/name"), &DeleteParams::default())
        .await
        .unwrap();
    lab.until(15, "its replacement", async |lab| is_ready(lab).await).await;
}

#[tokio::test(start_paused = true)]
async fn machines_wait_for_the_cloud() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.hold_machines(true).await.unwrap();
    create_clone(&lab).await;
    lab.minutes(60).await;
    assert_eq!(phase(&lab).await, "Provisioning");
    lab.cluster.hold_machines(false).await.unwrap();
    lab.until(10, "the clone", async |lab| is_ready(lab).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_may_never_become_ready() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.hold_new_nodes(true).await.unwrap();
    create_clone(&lab).await;
    lab.minutes(60).await;
    let machine = clone_machine(&lab).await.unwrap();
    let node = lab.nodes().get(text(&machine, "/status/nodeRef/name")).await.unwrap();
    assert_eq!(condition(&json!(node), "Ready"), Some("False"), "{}", node.name_any());
    assert!(!is_ready(&lab).await);
    lab.cluster.hold_new_nodes(false).await.unwrap();
    lab.until(5, "the node", async |lab| is_ready(lab).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_set_has_as_many_machines_as_it_asks_for() {
    let lab = Lab::start(&Blueprint::default()).await;
    for count in [5, 2] {
        crate::common::merge(&lab.machine_sets(), SET, json!({"spec": {"replicas": count}})).await;
        lab.until(15, "replicas", async |lab| {
            let status = read(&lab.machine_sets(), SET).await["status"].clone();
            status["replicas"] == count && status["readyReplicas"] == count
        })
        .await;
    }
    assert_eq!(list(&lab.machines()).await.len(), 5, "with the control plane");
}
