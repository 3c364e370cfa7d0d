//! The daemon of the machine-config operator on each node, and the controller that drains for it.

use refit_kinds::json::{annotation, name};
use serde_json::{Value, json};

use super::{
    config_pools::{CURRENT, DESIRED, STATE, version_of},
    drain, nodes,
};
use crate::cluster::{
    plan::Plan,
    settings::Trouble,
    view::{Kind, is_ready},
};

/// Annotation of a node: the drain or the end of one that the daemon asks for.
const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
/// Annotation of a node: that which was carried out last.
const LAST_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
/// Annotation of a node: why it is degraded.
const REASON: &str = "machineconfiguration.openshift.io/reason";

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    for node in plan.view.list(Kind::Node) {
        if let Some(annotations) = next(plan, node) {
            plan.merge(Kind::Node, node, json!({"metadata": {"annotations": annotations}}));
        }
    }
}

/// The annotations that are to be set on a node.
fn next(plan: &mut Plan<'_>, node: &Value) -> Option<Value> {
    let desired = annotation(node, DESIRED)?;
    let state = annotation(node, STATE).unwrap_or_default();
    let (wanted, last) = (annotation(node, DESIRED_DRAIN), annotation(node, LAST_DRAIN));
    if let Some(why) = plan.view.settings.message(&Trouble::NodeDegraded(name(node))) {
        return Some(json!({STATE: "Degraded", REASON: why}));
    }
    if state == "Degraded" {
        return Some(json!({STATE: "Working", REASON: ""}));
    }
    if let Some(wanted) = wanted.filter(|_| wanted != last) {
        let is_done = if wanted.starts_with("uncordon-") {
            drain::uncordon(plan, node);
            true
        } else {
            drain::drain(plan, node)
        };
        return is_done.then(|| json!({LAST_DRAIN: wanted}));
    }
    if annotation(node, CURRENT) == Some(desired) {
        return (state != "Done").then(|| json!({STATE: "Done"}));
    }
    let (drain, uncordon) = (format!("drain-{desired}"), format!("uncordon-{desired}"));
    if nodes::has_booted(node, version_of(desired)) {
        if !is_ready(node) {
            return None;
        }
        return Some(if last == Some(&uncordon) {
            json!({CURRENT: desired, STATE: "Done"})
        } else {
            json!({DESIRED_DRAIN: uncordon})
        });
    }
    Some(if last == Some(&drain) {
        json!({STATE: "Rebooting"})
    } else {
        json!({STATE: "Working", DESIRED_DRAIN: drain})
    })
}
