//! How a run with UpgradeTasks ends.

use std::collections::BTreeMap;

use refit_kinds::{
    json::{annotation, name, text},
    keys,
};
use serde_json::Value;

use super::plans::notifications;
use crate::{
    script::look::{owners, owns},
    world::World,
};

/// Phase, counts and conditions of each task.
pub(super) fn ends(world: &World) -> BTreeMap<String, String> {
    let end = |task: &Value| {
        let status = &task["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let conditions: Vec<String> = conditions
            .map(|one| format!("{} {}", text(one, "/type"), text(one, "/reason")))
            .collect();
        format!("{} {} {}", text(status, "/phase"), status["counts"], conditions.join(", "))
    };
    world.upgrade_tasks().iter().map(|task| (name(task).to_owned(), end(task))).collect()
}

/// Phase of each ClusterUpgrade, and the steps of its history.
pub(super) fn cluster_upgrade_ends(world: &World) -> BTreeMap<String, String> {
    let end = |upgrade: &Value| {
        let history = upgrade["status"]["history"].as_array().into_iter().flatten();
        let records = history.map(|record| {
            let steps = record["conditions"].as_array().into_iter().flatten();
            let steps =
                steps.map(|step| format!("{} {}", text(step, "/type"), text(step, "/status")));
            let of = ["/version", "/precedingVersion", "/phase", "/task"];
            let of = of.map(|field| text(record, field)).join(" ");
            let posted = notifications(&record["notifications"]);
            format!("{of}: {} {posted}", steps.collect::<Vec<_>>().join(", "))
        });
        let history = records.collect::<Vec<_>>().join("; ");
        let wave = annotation(upgrade, keys::WAVE).map(|wave| format!(" in wave {wave}"));
        // Each request is a generation.
        let requests = &upgrade["metadata"]["generation"];
        format!("requested {requests} times{}: {history}", wave.unwrap_or_default())
    };
    world.cluster_upgrades().iter().map(|one| (name(one).to_owned(), end(one))).collect()
}

/// What tasks have written on owners and should have removed. A hold pauses an owner while its Machine has another version.
pub(super) fn left_on_owners(world: &World) -> Vec<String> {
    let machines = world.machines();
    let left = |owner: &Value| {
        let may_be_held = machines.iter().any(|machine| {
            owns(owner, machine) && machine["spec"]["version"] != owner["spec"]["version"]
        });
        let is_left = |value: &str| value != keys::HELD || !may_be_held;
        let keys = [keys::PAUSED, keys::TASK].into_iter();
        let left = keys.filter(|key| annotation(owner, key).is_some_and(is_left));
        left.map(|key| format!("{} {key}", name(owner))).collect::<Vec<_>>()
    };
    owners(world).iter().flat_map(left).collect()
}
