//! The machine-config operator: which node of a pool is updated, and how far its pools are.

use refit_kinds::json::{annotation, flag, label, name, text};
use serde_json::{Value, json};

use super::cluster_operators;
use crate::cluster::{
    plan::{Condition, Plan, conditions},
    view::{Kind, View, is_ready},
};

/// Annotation of a node: the configuration that it has.
pub(crate) const CURRENT: &str = "machineconfiguration.openshift.io/currentConfig";
/// Annotation of a node: the configuration that it is to have.
pub(crate) const DESIRED: &str = "machineconfiguration.openshift.io/desiredConfig";
/// Annotation of a node: what the daemon does.
pub(crate) const STATE: &str = "machineconfiguration.openshift.io/state";
/// Label of a node: nodes of one zone are updated after each other.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Name of the configuration of a pool. It ends with the version of the release, where the real one has a hash.
pub(crate) fn rendered(pool: &str, version: &str) -> String {
    format!("rendered-{pool}-{version}")
}

/// The version of a configuration.
pub(super) fn version_of(config: &str) -> &str {
    config.rsplit_once('-').map_or("", |(_, version)| version)
}

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    let view = plan.view;
    let version = cluster_operators::config_version(view);
    for pool in view.list(Kind::MachineConfigPool) {
        let target = rendered(name(pool), version);
        let config = json!({"spec": {"configuration": {"name": target}}});
        plan.merge(Kind::MachineConfigPool, pool, config);
        let nodes = view.nodes_of(pool);
        if !flag(pool, "/spec/paused") {
            assign(plan, pool, &nodes, &target);
        }
        let status = status(view, pool, &nodes, &target);
        plan.status(Kind::MachineConfigPool, pool, &status);
    }
}

/// Whether all nodes of the control plane have the configuration of a version.
pub(super) fn has_control_plane(view: &View, version: &str) -> bool {
    let mut pools = view.list(Kind::MachineConfigPool).iter().filter(|pool| name(pool) == "master");
    pools.all(|pool| text(pool, "/status/configuration/name") == rendered("master", version))
}

fn is_updated(node: &Value, target: &str) -> bool {
    annotation(node, CURRENT) == Some(target)
        && annotation(node, DESIRED) == Some(target)
        && annotation(node, STATE) == Some("Done")
}

fn is_available(node: &Value) -> bool {
    is_ready(node)
        && !flag(node, "/spec/unschedulable")
        && annotation(node, CURRENT) == annotation(node, DESIRED)
        && annotation(node, STATE) == Some("Done")
}

/// Has the next nodes updated, as far as `maxUnavailable` permits.
fn assign(plan: &mut Plan<'_>, pool: &Value, nodes: &[&Value], target: &str) {
    let unavailable = nodes.iter().filter(|node| !is_available(node)).count();
    let mut next: Vec<&&Value> = nodes
        .iter()
        .filter(|node| annotation(node, DESIRED) != Some(target))
        .filter(|node| annotation(node, CURRENT) == annotation(node, DESIRED))
        .collect();
    next.sort_by_key(|node| (label(node, ZONE), name(node)));
    let free = max_unavailable(pool, nodes.len()).saturating_sub(unavailable);
    for node in next.into_iter().take(free) {
        let patch = json!({"metadata": {"annotations": {DESIRED: target}}});
        plan.merge(Kind::Node, node, patch);
    }
}

/// How many nodes of a pool may be unavailable: a number, or a percentage, which rounds down to one at least.
fn max_unavailable(pool: &Value, count: usize) -> usize {
    match &pool["spec"]["maxUnavailable"] {
        Value::Number(number) => {
            number.as_u64().and_then(|number| number.try_into().ok()).unwrap_or(1)
        }
        Value::String(percent) => {
            let percent: usize = percent.trim_end_matches('%').parse().unwrap_or_default();
            (percent.min(100) * count / 100).max(1)
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => 1,
    }
}

fn status(view: &View, pool: &Value, nodes: &[&Value], target: &str) -> Value {
    let count =
        |matches: &dyn Fn(&Value) -> bool| nodes.iter().filter(|node| matches(node)).count();
    let updated = count(&|node| is_updated(node, target));
    let ready = count(&|node| is_updated(node, target) && is_available(node));
    let degraded = count(&|node| annotation(node, STATE) == Some("Degraded"));
    let is_done = updated == nodes.len() && ready == updated;
    let is_paused = flag(pool, "/spec/paused");
    let config = if is_done { target } else { text(pool, "/status/configuration/name") };
    let message =
        if is_done { format!("All nodes are updated with {target}") } else { String::new() };
    let degraded_message = format!("{degraded} nodes are degraded");
    let shown = [
        Condition::flag("Updated", is_done, &*message),
        Condition::flag("Updating", !is_done && !is_paused, ""),
        Condition::flag("Degraded", degraded > 0, ""),
        Condition::flag(
            "NodeDegraded",
            degraded > 0,
            if degraded > 0 { &*degraded_message } else { "" },
        ),
        Condition::flag("RenderDegraded", false, ""),
    ];
    json!({
        "machineCount": nodes.len(), "updatedMachineCount": updated, "readyMachineCount": ready,
        "unavailableMachineCount": count(&|node| !is_available(node)),
        "degradedMachineCount": degraded, "configuration": {"name": config},
        "conditions": conditions(pool, &shown, view.now),
        "observedGeneration": pool["metadata"]["generation"],
    })
}
