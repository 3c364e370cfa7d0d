//! The machine API and the cloud: a Machine is provisioned, has a node, and is deleted with it.

use jiff::SignedDuration;
use refit_kinds::json::{
    created_at, is_deleting, is_true, labels, name, pairs, text, time, whole_condition,
};
use serde_json::{Value, json};

use super::{
    config_pools::{CURRENT, DESIRED, STATE, rendered, version_of},
    drain, node_info,
};
use crate::cluster::{
    plan::{Condition, Plan, conditions},
    settings::Trouble,
    view::{Kind, View, WORKER, is_ready},
};

/// How long the cloud takes to accept a request.
const ACCEPT: SignedDuration = SignedDuration::from_secs(5);
/// How long an instance takes to exist.
const PROVISION: SignedDuration = SignedDuration::from_secs(60);
/// How long it takes until its node joins, from the request.
const JOIN: SignedDuration = SignedDuration::from_mins(4);
/// How long it takes to remove an instance.
const TERMINATE: SignedDuration = SignedDuration::from_secs(45);
const DRAINED: &str = "Drained";

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    for machine in plan.view.list(Kind::Machine) {
        if is_deleting(machine) {
            delete(plan, machine);
        } else {
            provision(plan, machine);
        }
    }
}

/// The node of a machine has its name.
fn node_of<'a>(view: &'a View, machine: &'a Value) -> Option<&'a Value> {
    let reference = text(machine, "/status/nodeRef/name");
    view.node(if reference.is_empty() { name(machine) } else { reference })
}

fn provision(plan: &mut Plan<'_>, machine: &Value) {
    let view = plan.view;
    let settings = &view.settings;
    if let Some(node) = node_of(view, machine) {
        let reference = json!({"kind": "Node", "name": name(node), "uid": node["metadata"]["uid"]});
        // A node is linked once it has joined; a Machine stays Running when its node is not Ready.
        let is_running = text(machine, "/status/phase") == "Running" || is_ready(node);
        let phase = if is_running { "Running" } else { "Provisioned" };
        plan.status(Kind::Machine, machine, &json!({"phase": phase, "nodeRef": reference}));
        return;
    }
    let since = created_at(machine);
    if !plan.has_elapsed(since, ACCEPT) {
        return plan.status(Kind::Machine, machine, &json!({"phase": "Provisioning"}));
    }
    let is_requested = text(machine, "/spec/providerID").is_empty();
    if let Some(why) = settings.message(&Trouble::MachinesFail).filter(|_| is_requested) {
        let status = json!({"phase": "Failed", "errorReason": "CreateError", "errorMessage": why});
        return plan.status(Kind::Machine, machine, &status);
    }
    // A Machine that has failed is never tried again.
    if text(machine, "/status/phase") == "Failed" {
        return;
    }
    let waits = is_requested && settings.has(&Trouble::MachinesWait);
    if waits || !plan.has_elapsed(since, PROVISION) {
        return plan.status(Kind::Machine, machine, &json!({"phase": "Provisioning"}));
    }
    let provider = format!("aws:///us-east-1a/{}", name(machine));
    plan.merge(Kind::Machine, machine, json!({"spec": {"providerID": provider}}));
    plan.status(Kind::Machine, machine, &json!({"phase": "Provisioned"}));
    if plan.has_elapsed(since, JOIN) {
        join(plan, machine);
    }
}

/// Has the node of a machine join the cluster, with the new configuration if its pool has a node that has it.
fn join(plan: &mut Plan<'_>, machine: &Value) {
    let view = plan.view;
    let node = name(machine);
    let mut wanted = pairs(machine.pointer("/spec/metadata/labels"));
    wanted.insert(WORKER.to_owned(), String::new());
    wanted.insert("kubernetes.io/hostname".to_owned(), node.to_owned());
    let zone = labels(machine).get("machine.openshift.io/zone").cloned();
    wanted.extend(zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)));
    let pool = view.pool_of(&json!({"metadata": {"labels": wanted}}));
    let has_begun = pool.is_some_and(|pool| pool["status"]["updatedMachineCount"] != 0);
    let at = if has_begun { "/spec/configuration/name" } else { "/status/configuration/name" };
    let config = pool.map_or("", |pool| text(pool, at));
    let config =
        if config.is_empty() { rendered("worker", view.target()) } else { config.to_owned() };
    let Some(release) = view.release(version_of(&config)) else { return };
    let shown = [Condition::flag("Ready", false, "container runtime network not ready")
        .because("KubeletNotReady")];
    let body = json!({
        "metadata": {
            "name": node,
            "labels": wanted,
            "annotations": {
                CURRENT: config, DESIRED: config, STATE: "Done",
                "machine.openshift.io/machine": format!("{}/{node}", text(machine, "/metadata/namespace")),
            },
        },
        "spec": {"providerID": machine["spec"]["providerID"], "taints": machine["spec"]["taints"]},
        "status": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "250"},
            "allocatable": {"cpu": "3500m", "memory": "15Gi", "pods": "250"},
            "conditions": conditions(&Value::Null, &shown, view.now),
            "nodeInfo": node_info(release, node),
        },
    });
    plan.create(Kind::Node, body);
}

/// Drains the node of a machine, removes the instance, and then the node.
fn delete(plan: &mut Plan<'_>, machine: &Value) {
    let view = plan.view;
    let node = node_of(view, machine);
    let is_drained = is_true(machine, DRAINED) || node.is_none_or(|node| drain::drain(plan, node));
    let shown = [Condition::flag(DRAINED, is_drained, "")];
    let status = json!({"phase": "Deleting", "conditions": conditions(machine, &shown, view.now)});
    plan.status(Kind::Machine, machine, &status);
    let drained = whole_condition(machine, DRAINED).filter(|one| one["status"] == "True");
    let Some(since) = drained.and_then(|one| time(one, "/lastTransitionTime")) else { return };
    if plan.has_elapsed(since, TERMINATE) {
        match node {
            Some(node) => plan.delete(Kind::Node, node),
            None => plan.merge(Kind::Machine, machine, json!({"metadata": {"finalizers": null}})),
        }
    }
}
