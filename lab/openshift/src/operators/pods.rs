//! The kubelets' pods: they start, and end after their grace period.

use jiff::SignedDuration;
use refit_kinds::json::{created_at, name, text, time};
use serde_json::{Value, json};

use crate::cluster::{
    plan::{Condition, Plan, conditions},
    settings::Trouble,
    view::{Kind, is_ready},
};

/// How long a pod takes to start.
const START: SignedDuration = SignedDuration::from_secs(10);

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    for pod in plan.view.list(Kind::Pod) {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() {
            continue;
        }
        match plan.view.node(node) {
            None => plan.remove_pod(pod),
            Some(node) => run(plan, pod, is_ready(node)),
        }
    }
}

fn run(plan: &mut Plan<'_>, pod: &Value, is_up: bool) {
    if let Some(end) = time(pod, "/metadata/deletionTimestamp") {
        let namespace = text(pod, "/metadata/namespace");
        let hangs = plan.view.settings.has(&Trouble::PodHangs { namespace, name: name(pod) });
        // One that finalizers keep has a grace period of 0 once its kubelet is done.
        let is_left = pod["metadata"]["deletionGracePeriodSeconds"] != 0;
        if is_up && is_left && !hangs && plan.has_elapsed(end, SignedDuration::ZERO) {
            plan.remove_pod(pod);
        }
        return;
    }
    let is_started = is_ready(pod) || plan.has_elapsed(created_at(pod), START);
    if is_started && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
        let shown = [
            Condition::flag("Ready", is_up, ""),
            Condition::flag("ContainersReady", is_up, ""),
            Condition::flag("Initialized", true, ""),
            Condition::flag("PodScheduled", true, ""),
        ];
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let containers = containers.map(|one| {
            json!({
                "name": one["name"], "image": one["image"], "imageID": "", "ready": is_up,
                "restartCount": 0, "started": is_up,
            })
        });
        let status = json!({
            "phase": "Running", "conditions": conditions(pod, &shown, plan.view.now),
            "containerStatuses": containers.collect::<Vec<Value>>(),
        });
        plan.status(Kind::Pod, pod, &status);
    }
}
