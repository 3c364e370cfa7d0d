//! `refit adopt`.

use k8s_openapi::ByteString;
use serde_json::json;

use crate::stage::{MACHINE, NEW, OLD, Stage};

const NODE: &str = "v1/Node";
const WORKER: &str = "edge-1-md-a";

#[test]
fn a_node_is_adopted_once_it_runs_the_goal() {
    let stage = Stage::new().with_cluster();
    stage.update(WORKER, json!({"phase": "Failed", "failureReason": "HostStepFailed"}));
    // The API server is its own workload cluster.
    let kubeconfig = ByteString(std::fs::read(stage.path("kubeconfig")).unwrap());
    let secret = json!({"metadata": {"name": "edge-1-kubeconfig"}, "data": {"value": kubeconfig}});
    stage.create("v1/Secret", secret);
    let runs = |version: &str| json!({"nodeInfo": {"kubeletVersion": version}});
    let node = stage.get(MACHINE, WORKER)["status"]["nodeRef"]["name"].clone();
    let node = node.as_str().unwrap();
    stage.create(NODE, json!({"metadata": {"name": node}, "status": runs(OLD)}));
    let refused = stage.run(&["adopt", WORKER]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stdout.contains("its kubelet runs v1.34.2"), "{refused:?}");
    stage.status(NODE, node, runs(NEW));
    let adopted = stage.run(&["adopt", WORKER]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    let annotations = &stage.get(MACHINE, WORKER)["metadata"]["annotations"];
    assert_eq!(annotations["refit.dev/adopt"], "edge-1-md-a-1");
    let again = stage.run(&["adopt", WORKER, "-o", "json"]);
    assert!(again.stdout.contains(r#""action": "already""#), "{again:?}");
}

#[test]
fn a_cluster_that_cannot_be_read_is_reported() {
    let stage = Stage::new().with_cluster();
    stage.update(WORKER, json!({"phase": "Failed"}));
    let ended = stage.run(&["adopt", WORKER]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("kubeconfig Secret default/edge-1-kubeconfig"), "{ended:?}");
    assert!(stage.get(MACHINE, WORKER)["metadata"]["annotations"]["refit.dev/adopt"].is_null());
}
