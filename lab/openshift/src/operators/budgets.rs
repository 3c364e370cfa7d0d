//! PodDisruptionBudgets: Kubernetes' own accounting, where no controller manager runs. An API server that has it computes the
//! same.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use refit_kinds::json::{is_deleting, labels, text};
use serde_json::{Value, json};

use crate::cluster::{
    plan::Plan,
    view::{Kind, View, is_ready, uid},
};

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    for budget in plan.view.list(Kind::Budget) {
        if let Some(status) = status(plan.view, budget) {
            plan.status(Kind::Budget, budget, &status);
        }
    }
}

fn status(view: &View, budget: &Value) -> Option<Value> {
    let selector: LabelSelector =
        serde_json::from_value(budget["spec"]["selector"].clone()).ok()?;
    let selector: Selector = selector.try_into().ok()?;
    let namespace = text(budget, "/metadata/namespace");
    let pods =
        view.list(Kind::Pod).iter().filter(|pod| text(pod, "/metadata/namespace") == namespace);
    let pods: Vec<&Value> = pods.filter(|pod| selector.matches(&labels(pod))).collect();
    let healthy = pods.iter().filter(|pod| is_ready(pod) && !is_deleting(pod)).count();
    let (least, most) = (&budget["spec"]["minAvailable"], &budget["spec"]["maxUnavailable"]);
    let (expected, desired) = if !most.is_null() {
        let expected = expected(view, &pods);
        (expected, expected.saturating_sub(scaled(most, expected)))
    } else if least.is_string() {
        let expected = expected(view, &pods);
        (expected, scaled(least, expected))
    } else if least.is_null() {
        (pods.len(), pods.len().min(1))
    } else {
        (pods.len(), scaled(least, pods.len()))
    };
    let allowed = if expected == 0 { 0 } else { healthy.saturating_sub(desired) };
    Some(json!({
        "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed,
        "expectedPods": expected, "observedGeneration": budget["metadata"]["generation"],
    }))
}

/// How many pods there are to be: the replicas of their ReplicaSets, and those without one.
fn expected(view: &View, pods: &[&Value]) -> usize {
    let mut sets = BTreeMap::new();
    let mut alone = 0;
    for pod in pods {
        let owner = text(pod, "/metadata/ownerReferences/0/uid");
        match view.list(Kind::ReplicaSet).iter().find(|set| uid(set) == owner) {
            Some(set) => {
                sets.insert(owner, number(&set["spec"]["replicas"]));
            }
            None => alone += 1,
        }
    }
    sets.into_values().sum::<usize>() + alone
}

fn number(value: &Value) -> usize {
    value.as_u64().and_then(|number| number.try_into().ok()).unwrap_or_default()
}

/// A number, or a percentage, which rounds up.
fn scaled(value: &Value, total: usize) -> usize {
    let percent = value.as_str().and_then(|text| text.trim_end_matches('%').parse::<usize>().ok());
    percent.map_or_else(|| number(value), |percent| (percent.min(100) * total).div_ceil(100))
}
