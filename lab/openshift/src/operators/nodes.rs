//! The kubelets' Nodes: they start, reboot and stay away. Kubernetes derives taints from them.

use jiff::SignedDuration;
use refit_kinds::json::{annotation, created_at, flag, name, time, whole_condition};
use serde_json::{Value, json};

use super::config_pools::{DESIRED, STATE, version_of};
use crate::cluster::{
    Release,
    plan::{Condition, Plan, conditions, rfc3339},
    settings::Trouble,
    view::{Kind, View, is_ready},
};

/// How long a new node, or one that was away, takes to become Ready.
const START: SignedDuration = SignedDuration::from_secs(60);
/// How long a reboot into another release takes.
const REBOOT: SignedDuration = SignedDuration::from_mins(5);
/// The pressures that a node may have: its conditions and their taints.
const PRESSURES: [(&str, &str); 3] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
];
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    for node in plan.view.list(Kind::Node) {
        report(plan, node);
        let taints = taints(plan.view, node);
        plan.merge(Kind::Node, node, json!({"spec": {"taints": taints}}));
    }
}

/// The system of a node with a release.
pub(crate) fn node_info(release: &Release, node: &str) -> Value {
    json!({
        "architecture": "amd64", "operatingSystem": "linux", "machineID": node, "systemUUID": node,
        "bootID": format!("{node}-{}", release.version), "containerRuntimeVersion": "cri-o://1.29",
        "kernelVersion": "5.14", "kubeProxyVersion": release.kubelet, "kubeletVersion": release.kubelet,
        "osImage": os_image(&release.version),
    })
}

fn os_image(version: &str) -> String {
    format!("Red Hat Enterprise Linux CoreOS {version}")
}

/// Whether a node runs the system of a release.
pub(super) fn has_booted(node: &Value, version: &str) -> bool {
    node["status"]["nodeInfo"]["osImage"] == os_image(version)
}

/// Writes the status of a node.
fn report(plan: &mut Plan<'_>, node: &Value) {
    let view = plan.view;
    let version = version_of(annotation(node, DESIRED).unwrap_or_default());
    let is_rebooting = annotation(node, STATE) == Some("Rebooting") && !has_booted(node, version);
    let ready = whole_condition(node, "Ready");
    let since = ready.and_then(|ready| time(ready, "/lastTransitionTime"));
    let since = since.unwrap_or_else(|| created_at(node));
    let stays_away = view.settings.has(&Trouble::NodeNotReady(name(node)))
        || view.settings.has(&Trouble::NewNodesNotReady) && is_new(node);
    let is_up = match (stays_away, is_ready(node)) {
        (true, _) => false,
        (false, true) => !is_rebooting,
        (false, false) => plan.has_elapsed(since, if is_rebooting { REBOOT } else { START }),
    };
    let shown = if is_up {
        Condition::flag("Ready", true, "kubelet is posting ready status").because("KubeletReady")
    } else if is_new(node) {
        Condition::flag("Ready", false, "container runtime network not ready")
            .because("KubeletNotReady")
    } else {
        let message = "Kubelet stopped posting node status.";
        Condition::new("Ready", "Unknown", "NodeStatusUnknown", message)
    };
    let pressure = view.settings.message(&Trouble::NodePressure(name(node)));
    let pressures =
        PRESSURES.iter().map(|(type_, _)| Condition::flag(type_, pressure == Some(type_), ""));
    let shown: Vec<Condition> = std::iter::once(shown).chain(pressures).collect();
    let mut status = json!({"conditions": conditions(node, &shown, view.now)});
    let release = view.release(version).filter(|_| is_up && is_rebooting);
    if let Some(release) = release {
        status["nodeInfo"] = node_info(release, name(node));
    }
    plan.status(Kind::Node, node, &status);
}

/// Whether a node was never Ready.
fn is_new(node: &Value) -> bool {
    whole_condition(node, "Ready").is_none_or(|ready| ready["status"] == "False")
}

/// The taints of a node: those that Kubernetes sets follow its state.
fn taints(view: &View, node: &Value) -> Value {
    let ready = whole_condition(node, "Ready")
        .map_or("False", |one| one["status"].as_str().unwrap_or("False"));
    let is_under = |type_| whole_condition(node, type_).is_some_and(|one| one["status"] == "True");
    let mut wanted = vec![
        (NOT_READY, ready == "False"),
        (UNREACHABLE, ready == "Unknown"),
        (UNSCHEDULABLE, flag(node, "/spec/unschedulable")),
    ];
    wanted.extend(PRESSURES.iter().map(|(type_, taint)| (*taint, is_under(type_))));
    let known = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let stays = |taint: &&Value| {
        let derived =
            wanted.iter().find(|(key, _)| taint["key"] == *key && taint["effect"] == "NoSchedule");
        derived.is_none_or(|(_, is_wanted)| *is_wanted)
    };
    let mut taints: Vec<Value> = known.iter().filter(stays).cloned().collect();
    for (key, is_wanted) in wanted {
        if is_wanted && !taints.iter().any(|taint| taint["key"] == key) {
            taints
                .push(json!({"key": key, "effect": "NoSchedule", "timeAdded": rfc3339(view.now)}));
        }
    }
    if taints.is_empty() { Value::Null } else { json!(taints) }
}
