//! The machine-config operator, kubelets and pods.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use lab_openshift::{Blueprint, Workers};
use refit_kinds::json::{condition, text};
use serde_json::{Value, json};

use crate::common::{Lab, merge, read};

const STATE: &str = "machineconfiguration.openshift.io/state";
const CORDON: &str = "node.kubernetes.io/unschedulable";

async fn web_pods(lab: &Lab) -> Vec<Pod> {
    lab.pods().list(&ListParams::default()).await.unwrap().items
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_at_rest_writes_nothing() {
    let lab = Lab::start(&Blueprint::default()).await;
    let before = lab.server.revision();
    lab.minutes(24 * 60).await;
    assert_eq!(lab.server.revision(), before);
}

/// Requests an update and waits until its workers wait for a drain that the budget of the application blocks.
async fn blocked(lab: &Lab) -> Node {
    merge(&lab.budgets(), "web", json!({"spec": {"maxUnavailable": 0}})).await;
    lab.patch_version(json!({"spec": {"desiredUpdate": {"version": "4.16.4"}}})).await;
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    lab.minutes(60).await;
    let cordoned = lab.cordoned().await;
    assert_eq!(cordoned.len(), 1, "{cordoned:?}");
    lab.nodes().get(&cordoned[0]).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_budget_blocks_a_drain_until_its_pods_are_deleted() {
    let lab = Lab::start(&Blueprint::default()).await;
    let node = blocked(&lab).await;
    assert_eq!(node.annotations()[STATE], "Working");
    let taints = node.spec.clone().unwrap().taints.unwrap();
    let taint = taints.iter().find(|taint| taint.key == CORDON).unwrap();
    let elapsed = lab.clock.now().duration_since(taint.time_added.as_ref().unwrap().0);
    assert!(elapsed > SignedDuration::from_mins(30), "the drain began long ago: {elapsed}");
    let pool = read(&lab.pools(), "worker").await;
    assert_eq!(condition(&pool, "Updating"), Some("True"));
    assert_eq!(pool["status"]["unavailableMachineCount"], 1);
    assert_eq!(pool["status"]["updatedMachineCount"], 0);
    for pod in web_pods(&lab).await.iter().filter(|pod| node_of(pod) == node.name_any()) {
        lab.delete_pod(&pod.name_any()).await;
    }
    lab.until(10, "the node", async |lab| {
        read(&lab.pools(), "worker").await["status"]["updatedMachineCount"] == 1
    })
    .await;
    merge(&lab.budgets(), "web", json!({"spec": {"maxUnavailable": 1}})).await;
    lab.until(60, "workers", async |lab| lab.pool_has("worker", "4.16.4").await).await;
    assert_eq!(lab.cordoned().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn not_more_nodes_than_permitted_are_down_at_once() {
    for (permitted, most) in [(json!(1), 1), (json!("50%"), 2)] {
        let workers = vec![Workers::new("worker", 4)];
        let lab = Lab::start(&Blueprint { workers, ..Blueprint::default() }).await;
        merge(&lab.pools(), "worker", json!({"spec": {"maxUnavailable": permitted}})).await;
        lab.patch_version(json!({"spec": {"desiredUpdate": {"version": "4.16.4"}}})).await;
        let mut seen = 0;
        while !lab.pool_has("worker", "4.16.4").await {
            let down =
                read(&lab.pools(), "worker").await["status"]["unavailableMachineCount"].clone();
            seen = seen.max(down.as_i64().unwrap());
            tokio::time::sleep(std::time::Duration::from_secs(15)).await;
        }
        assert_eq!(seen, most, "{permitted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_finalizer_stays_until_it_is_cleared() {
    let lab = Lab::start(&Blueprint::default()).await;
    let name = web_pods(&lab).await[0].name_any();
    let patch = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let params = PatchParams::default();
    lab.pods().patch(&name, &params, &patch(json!(["example.com/keep"]))).await.unwrap();
    lab.delete_pod(&name).await;
    lab.minutes(30).await;
    assert!(lab.pods().get_opt(&name).await.unwrap().is_some());
    lab.pods().patch(&name, &params, &patch(Value::Null)).await.unwrap();
    lab.minutes(1).await;
    assert!(lab.pods().get_opt(&name).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_after_its_grace_period_unless_it_hangs() {
    let lab = Lab::start(&Blueprint::default()).await;
    let pods = web_pods(&lab).await;
    let (ends, hangs) = (pods[0].name_any(), pods[1].name_any());
    lab.cluster.hang_pod("shop", &hangs, true).await.unwrap();
    lab.delete_pod(&ends).await;
    lab.delete_pod(&hangs).await;
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert!(lab.pods().get_opt(&ends).await.unwrap().is_some(), "it has 30 seconds");
    lab.minutes(20).await;
    assert!(lab.pods().get_opt(&ends).await.unwrap().is_none());
    assert!(lab.pods().get_opt(&hangs).await.unwrap().is_some());
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    lab.pods().delete(&hangs, &now).await.unwrap();
    lab.minutes(1).await;
    assert!(lab.pods().get_opt(&hangs).await.unwrap().is_none());
    assert_eq!(web_pods(&lab).await.len(), 4, "the ReplicaSet has replaced both");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_come_back_stops_its_pool() {
    let lab = Lab::start(&Blueprint::default()).await;
    let node = "lab-worker-us-east-1a-0";
    lab.cluster.set_node_down(node, true).await.unwrap();
    lab.minutes(2).await;
    let seen = json!(lab.nodes().get(node).await.unwrap());
    assert_eq!(condition(&seen, "Ready"), Some("Unknown"));
    lab.patch_version(json!({"spec": {"desiredUpdate": {"version": "4.16.4"}}})).await;
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    lab.minutes(120).await;
    let pool = read(&lab.pools(), "worker").await;
    assert_eq!(pool["status"]["updatedMachineCount"], 0, "{}", pool["status"]);
    lab.cluster.set_node_down(node, false).await.unwrap();
    lab.until(60, "workers", async |lab| lab.pool_has("worker", "4.16.4").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_degraded_node_degrades_its_pool() {
    let lab = Lab::start(&Blueprint::default()).await;
    let node = "lab-worker-us-east-1a-1";
    lab.cluster.degrade_node(node, Some("unexpected on-disk state")).await.unwrap();
    lab.minutes(1).await;
    assert_eq!(lab.nodes().get(node).await.unwrap().annotations()[STATE], "Degraded");
    let pool = read(&lab.pools(), "worker").await;
    assert_eq!(condition(&pool, "Degraded"), Some("True"));
    assert_eq!(pool["status"]["degradedMachineCount"], 1);
    lab.cluster.degrade_node(node, None).await.unwrap();
    lab.minutes(1).await;
    assert_eq!(lab.nodes().get(node).await.unwrap().annotations()[STATE], "Done");
}

#[tokio::test(start_paused = true)]
async fn a_pressure_is_a_condition_and_a_taint() {
    let lab = Lab::start(&Blueprint::default()).await;
    let node = "lab-worker-us-east-1a-1";
    let has_taint = async |lab: &Lab| {
        let node = json!(lab.nodes().get(node).await.unwrap());
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| text(taint, "/key") == "node.kubernetes.io/memory-pressure")
    };
    lab.cluster.set_pressure(node, Some("MemoryPressure")).await.unwrap();
    lab.minutes(1).await;
    assert!(has_taint(&lab).await);
    lab.cluster.set_pressure(node, None).await.unwrap();
    lab.minutes(1).await;
    assert!(!has_taint(&lab).await);
}
