//! Drains, as the machine-config operator and the machine API carry them out.

use refit_kinds::json::{annotation, controller, is_deleting, name, text};
use serde_json::{Value, json};

use crate::cluster::{plan::Plan, view::Kind};

/// Annotation of a pod that a kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Cordons a node and evicts its pods; returns whether none is left.
pub(super) fn drain(plan: &mut Plan<'_>, node: &Value) -> bool {
    plan.merge(Kind::Node, node, json!({"spec": {"unschedulable": true}}));
    let mut is_done = true;
    for pod in plan.view.pods_of(name(node)).filter(|pod| has_to_go(pod)) {
        is_done = false;
        if !is_deleting(pod) {
            plan.evict(pod);
        }
    }
    is_done
}

/// Lets a node have pods again.
pub(super) fn uncordon(plan: &mut Plan<'_>, node: &Value) {
    plan.merge(Kind::Node, node, json!({"spec": {"unschedulable": null}}));
}

/// Whether a drain waits for a pod: not for those of DaemonSets, of kubelets, and for those that have ended.
fn has_to_go(pod: &Value) -> bool {
    let owner = controller(pod).map(|(kind, _)| kind);
    annotation(pod, MIRROR).is_none()
        && !matches!(owner, Some("DaemonSet" | "Node"))
        && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}
