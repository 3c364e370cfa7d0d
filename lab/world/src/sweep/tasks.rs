//! The scenario with UpgradeTasks: one for the control plane and one for the workers, both via Machines.

use std::collections::BTreeMap;

use refit_kinds::{
    json::{annotation, name, text},
    keys, refit,
};
use serde_json::{Value, json};

use crate::{
    direct::{Call, Direct, DirectError, USER},
    script::look::owners,
    world::World,
};

const TASKS: &str = "/apis/refit.dev/v1alpha1/namespaces/default/upgradetasks";
/// HTTP status code for an object that exists.
const CONFLICT: u16 = 409;
/// Name, group, kind and owner of each task.
const ALL: [(&str, &str, &str, &str); 2] = [
    ("control-plane", "controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", "edge-1"),
    ("workers", "cluster.x-k8s.io/v1beta2", "MachineDeployment", "edge-1-md-0"),
];

fn task((name, api_version, kind, owner): (&str, &str, &str, &str), version: &str) -> Value {
    json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "UpgradeTask",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterRef": {"name": "edge-1"},
            "ownerRef": {"apiVersion": api_version, "kind": kind, "name": owner},
            "version": version,
            "via": "Machines",
        },
    })
}

fn stored(world: &World) -> Vec<Value> {
    world.management().list_values(refit::GROUP, "upgradetasks", None)
}

/// Creates the tasks that do not exist yet. The controller may have begun with the first one before the
/// second one exists.
pub(super) async fn request(world: &World, version: &str) -> Result<(), DirectError> {
    let existing = stored(world);
    let api = Direct::new(world.management().clone(), USER);
    for one in ALL.into_iter().filter(|one| existing.iter().all(|task| name(task) != one.0)) {
        match api.send(Call::create(TASKS, task(one, version))).await {
            Err(error) if error.code() != Some(CONFLICT) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Whether all tasks are complete.
pub(super) fn are_complete(world: &World) -> bool {
    let stored = stored(world);
    let is_complete = |task: &Value| task["status"]["phase"] == "Complete";
    stored.len() == ALL.len() && stored.iter().all(is_complete)
}

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
    stored(world).iter().map(|task| (name(task).to_owned(), end(task))).collect()
}

/// What tasks have written on owners and should have removed.
pub(super) fn left_on_owners(world: &World) -> Vec<String> {
    let left = |owner: &Value| {
        let keys = [keys::PAUSED, keys::TASK].into_iter();
        let left = keys.filter(|key| annotation(owner, key).is_some());
        left.map(|key| format!("{} {key}", name(owner))).collect::<Vec<_>>()
    };
    owners(world).iter().flat_map(left).collect()
}
