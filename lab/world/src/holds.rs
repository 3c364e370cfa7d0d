//! Judges what Cluster API does to Machines in namespaces that hold replacements.
//!
//! Each Machine that it creates or deletes is judged on the objects as they are at that moment. What stands in the
//! ReplacementHold, which is all that the admission policy knows, counts only while the controller is not at work.

use jiff::Timestamp;
use refit_cluster_api::{IntOrPercent, kinds};
use refit_kinds::{
    json::{annotation, condition, controller, label, name, namespace, text, time},
    keys, refit,
};
use serde_json::Value;

use crate::invariants::Objects;

const NAMESPACES: &str = "namespaces";
const CLUSTERS: &str = "clusters.cluster.x-k8s.io";
const MACHINES: &str = "machines.cluster.x-k8s.io";
const MACHINE_SETS: &str = "machinesets.cluster.x-k8s.io";
const DEPLOYMENTS: &str = "machinedeployments.cluster.x-k8s.io";
const PLANES: &str = "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io";
const HOLDS: &str = "replacementholds.refit.dev";

/// Why Cluster API replaces a Machine that is held; `None` if it may do what it does, or does nothing of the kind. `old` is the
/// Machine before the write and `new` after it; `others` are all other objects. `is_led` is whether the controller keeps the
/// ReplacementHold up to date.
pub(crate) fn replaces(
    others: &Objects,
    old: Option<&Value>,
    new: Option<&Value>,
    now: Timestamp,
    is_led: impl FnOnce() -> bool,
) -> Option<String> {
    let is_created = old.is_none();
    let is_deleted = old.is_some_and(stays) && !new.is_some_and(stays);
    let machine = new.filter(|_| is_created).or(old.filter(|_| is_deleted))?;
    let space = all(others, NAMESPACES).find(|one| name(one) == namespace(machine))?;
    if label(space, keys::HOLD_REPLACEMENTS) != Some("enabled") {
        return None;
    }
    let owner = owner_of(others, machine)?;
    let cluster = named(others, CLUSTERS, machine, text(machine, "/spec/clusterName"))?;
    let members =
        || all(others, MACHINES).filter(|one| stays(one) && same_owner(one, machine)).chain(old);
    let is_declared = !stays(owner)
        || !stays(cluster)
        || allows_replacement(owner, cluster)
        || is_due(owner, members(), now)
        || is_deleted && leaves_with_its_set(others, machine);
    let wants = owner["spec"]["replicas"].as_i64().unwrap_or(1);
    let has = i64::try_from(members().count()).unwrap_or(i64::MAX);
    let may = if is_created {
        has < wants + if wants > 1 { max_surge(owner, wants) } else { 0 }
    } else {
        has > wants || is_remediated(machine)
    };
    let verb = if is_created { "create" } else { "delete" };
    if is_declared || may || admits(others, owner, machine, verb) && !is_led() {
        return None;
    }
    let (kind, owner) = (text(owner, "/kind"), name(owner));
    Some(format!(
        "replacements are held, and it is {verb}d although {kind} {owner} wants {wants} and has {has}"
    ))
}

/// Whether the ReplacementHold admits that Cluster API creates or deletes a Machine of an owner. An owner that it does not list is not held;
/// without it, everything is refused.
fn admits(objects: &Objects, owner: &Value, machine: &Value, verb: &str) -> bool {
    let Some(hold) = named(objects, HOLDS, owner, refit::REPLACEMENT_HOLD) else { return false };
    let entries = hold.pointer("/spec/owners").and_then(Value::as_array);
    let is_its =
        |entry: &&Value| entry["kind"] == owner["kind"] && text(entry, "/name") == name(owner);
    let entry = entries.into_iter().flatten().find(is_its);
    let contains = |entry: &Value, list: &str, wanted: &str| {
        entry[list].as_array().is_some_and(|names| names.iter().any(|one| one == wanted))
    };
    let is_named = |entry: &Value| {
        verb == "delete"
            && (contains(entry, "deletableMachines", name(machine))
                || controller(machine)
                    .is_some_and(|(_, set)| contains(entry, "deletableMachineSets", set)))
    };
    entry.is_none_or(|entry| entry[verb] == "Allowed" || is_named(entry))
}

/// The objects of a resource.
fn all<'a>(objects: &'a Objects, resource: &'static str) -> impl Iterator<Item = &'a Value> {
    let all = objects.iter().filter(move |((id, ..), _)| id == resource);
    all.map(|(_, object)| object)
}

/// The object of this name in the namespace of another one.
fn named<'a>(
    objects: &'a Objects,
    resource: &'static str,
    beside: &Value,
    wanted: &str,
) -> Option<&'a Value> {
    all(objects, resource).find(|one| namespace(one) == namespace(beside) && name(one) == wanted)
}

/// The control plane of kubeadm or the MachineDeployment of a Machine.
fn owner_of<'a>(objects: &'a Objects, machine: &Value) -> Option<&'a Value> {
    let plane = label(machine, keys::CONTROL_PLANE_NAME)
        .and_then(|wanted| named(objects, PLANES, machine, wanted));
    let deployment = || {
        let wanted = label(machine, keys::DEPLOYMENT_NAME)?;
        named(objects, DEPLOYMENTS, machine, wanted)
    };
    plane.or_else(deployment)
}

fn same_owner(one: &Value, other: &Value) -> bool {
    namespace(one) == namespace(other)
        && [keys::CONTROL_PLANE_NAME, keys::DEPLOYMENT_NAME]
            .iter()
            .all(|key| label(one, key) == label(other, key))
}

fn stays(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether the annotations of an owner, or else those of its Cluster, let Cluster API replace machines.
fn allows_replacement(owner: &Value, cluster: &Value) -> bool {
    [(keys::ON_UNCOVERED, "Replace"), (keys::IN_PLACE, "Disabled")].iter().any(|(key, value)| {
        annotation(owner, key).or_else(|| annotation(cluster, key)) == Some(value)
    })
}

/// Whether the dates of an owner request new Machines. That certificates expire is not known here, and counts as so.
fn is_due<'a>(owner: &Value, mut members: impl Iterator<Item = &'a Value>, now: Timestamp) -> bool {
    let after = time(owner, "/spec/rollout/after").filter(|after| *after <= now);
    let is_older = |one: &Value, after| time(one, "/metadata/creationTimestamp") < Some(after);
    owner.pointer("/spec/rollout/before").is_some()
        || after.is_some_and(|after| members.any(|one| is_older(one, after)))
}

/// Whether the MachineSet of a Machine is being deleted, or is gone.
fn leaves_with_its_set(objects: &Objects, machine: &Value) -> bool {
    match controller(machine) {
        Some(("MachineSet", set)) => !named(objects, MACHINE_SETS, machine, set).is_some_and(stays),
        Some(_) | None => false,
    }
}

/// How many Machines more the strategy of an owner allows; Cluster API's default is one.
fn max_surge(owner: &Value, wants: i64) -> i64 {
    let strategy = owner.pointer("/spec/rollout/strategy");
    let is_plane = text(owner, "/apiVersion").starts_with(kinds::CONTROL_PLANE_GROUP);
    if !is_plane && strategy.is_some_and(|strategy| strategy["type"] == "OnDelete") {
        return 0;
    }
    let surge = strategy.and_then(|strategy| strategy.pointer("/rollingUpdate/maxSurge"));
    surge
        .and_then(|surge| IntOrPercent::try_from(surge).ok())
        .map_or(1, |one| one.rounded_up(wants))
}

/// Whether a MachineHealthCheck has requested that the owner replaces a Machine.
fn is_remediated(machine: &Value) -> bool {
    ["HealthCheckSucceeded", "OwnerRemediated"]
        .iter()
        .all(|kind| condition(machine, kind) == Some("False"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-03-02T08:00:00Z";

    fn machine(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "default",
                "creationTimestamp": "2026-03-01T08:00:00Z",
                "labels": {keys::DEPLOYMENT_NAME: "md"},
                "ownerReferences": [{"kind": "MachineSet", "name": "set", "controller": true}]},
            "spec": {"clusterName": "edge-1"},
        })
    }

    /// A group of one with a surge, and what a merge patch makes of it.
    fn deployment(patch: &Value) -> Value {
        let mut object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "md", "namespace": "default"},
            "spec": {"replicas": 1,
                "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}},
        });
        merge(&mut object, patch);
        object
    }

    fn merge(into: &mut Value, patch: &Value) {
        let Some(patch) = patch.as_object() else {
            *into = patch.clone();
            return;
        };
        for (key, value) in patch {
            merge(&mut into[key], value);
        }
    }

    fn world(owner: Value, held: &str, machines: &[Value]) -> Objects {
        let space =
            json!({"metadata": {"name": "default", "labels": {keys::HOLD_REPLACEMENTS: held}}});
        let cluster = json!({"metadata": {"name": "edge-1", "namespace": "default"}});
        let set = json!({"metadata": {"name": "set", "namespace": "default"}});
        let mut all = vec![
            (NAMESPACES, space),
            (CLUSTERS, cluster),
            (MACHINE_SETS, set),
            (DEPLOYMENTS, owner),
        ];
        all.extend(machines.iter().map(|one| (MACHINES, one.clone())));
        let key = |id: &str, object: &Value| {
            (id.to_owned(), namespace(object).to_owned(), name(object).to_owned())
        };
        all.into_iter().map(|(id, object)| (key(id, &object), object)).collect()
    }

    /// Whether creating a second Machine, and deleting the first one, are replacements.
    fn judged(patch: &Value, held: &str) -> (bool, bool) {
        let (first, second) = (machine("m-1"), machine("m-2"));
        let now = NOW.parse().unwrap();
        let with = world(deployment(patch), held, std::slice::from_ref(&first));
        let created = replaces(&with, None, Some(&second), now, || true).is_some();
        let without = world(deployment(patch), held, &[]);
        let mut leaving = first.clone();
        leaving["metadata"]["deletionTimestamp"] = json!(NOW);
        let deleted = replaces(&without, Some(&first), Some(&leaving), now, || true).is_some();
        assert_eq!(replaces(&without, Some(&first), None, now, || true).is_some(), deleted);
        assert_eq!(replaces(&without, Some(&leaving), None, now, || true), None);
        (created, deleted)
    }

    #[test]
    fn a_further_machine_and_a_deletion_replace_the_only_machine_unless_that_is_declared() {
        assert_eq!(judged(&json!({}), "enabled"), (true, true));
        assert_eq!(judged(&json!({}), "disabled"), (false, false));
        for (patch, wanted) in [
            (json!({"spec": {"replicas": 2}}), (false, true)),
            (json!({"spec": {"replicas": 0}}), (true, false)),
            (json!({"metadata": {"deletionTimestamp": NOW}}), (false, false)),
            (
                json!({"metadata": {"annotations": {"refit.dev/on-uncovered": "Replace"}}}),
                (false, false),
            ),
            (
                json!({"metadata": {"annotations": {"refit.dev/on-uncovered": "replace"}}}),
                (true, true),
            ),
            (
                json!({"metadata": {"annotations": {"refit.dev/in-place": "Disabled"}}}),
                (false, false),
            ),
            (json!({"spec": {"rollout": {"after": "2026-03-01T20:00:00Z"}}}), (false, false)),
            (json!({"spec": {"rollout": {"after": "2026-03-01T02:00:00Z"}}}), (true, true)),
            (json!({"spec": {"rollout": {"after": "2026-03-02T20:00:00Z"}}}), (true, true)),
        ] {
            assert_eq!(judged(&patch, "enabled"), wanted, "{patch}");
        }
    }

    #[test]
    fn a_machine_beyond_the_declared_surge_of_several_replaces_one() {
        let now = NOW.parse().unwrap();
        let third = machine("m-3");
        for (surge, replaced) in [(json!(0), true), (json!(1), false), (json!("30%"), false)] {
            let patch = json!({"spec": {"replicas": 2,
                "rollout": {"strategy": {"rollingUpdate": {"maxSurge": surge}}}}});
            let world = world(deployment(&patch), "enabled", &[machine("m-1"), machine("m-2")]);
            assert_eq!(
                replaces(&world, None, Some(&third), now, || true).is_some(),
                replaced,
                "{surge}"
            );
        }
    }

    #[test]
    fn remediation_is_declared_by_the_conditions_of_the_machine() {
        let world = world(deployment(&json!({})), "enabled", &[]);
        let mut old = machine("m-1");
        let conditions = ["HealthCheckSucceeded", "OwnerRemediated"]
            .map(|kind| json!({"type": kind, "status": "False"}));
        old["status"] = json!({"conditions": conditions});
        assert_eq!(replaces(&world, Some(&old), None, NOW.parse().unwrap(), || true), None);
    }

    /// Whether creating a second Machine, and deleting the first one, are replacements next to this ReplacementHold.
    fn judged_by(hold: Option<&Value>, is_led: bool) -> (bool, bool) {
        let (first, second) = (machine("m-1"), machine("m-2"));
        let now = NOW.parse().unwrap();
        let mut with = world(deployment(&json!({})), "enabled", std::slice::from_ref(&first));
        let mut without = world(deployment(&json!({})), "enabled", &[]);
        for objects in [&mut with, &mut without] {
            let key = (HOLDS.to_owned(), "default".to_owned(), "refit".to_owned());
            objects.extend(hold.map(|hold| (key, hold.clone())));
        }
        let created = replaces(&with, None, Some(&second), now, || is_led).is_some();
        let deleted = replaces(&without, Some(&first), None, now, || is_led).is_some();
        (created, deleted)
    }

    #[test]
    fn cluster_api_replaces_nothing_that_the_replacement_hold_admits_while_the_controller_is_absent()
     {
        let entry = |kind: &str, name: &str, create: &str, delete: &str| {
            json!({"metadata": {"name": "refit", "namespace": "default"}, "spec": {"owners": [
                {"kind": kind, "name": name, "create": create, "delete": delete}]}})
        };
        let of = |create, delete| Some(entry("MachineDeployment", "md", create, delete));
        let names = |list: &str, name: &str| {
            let mut hold = entry("MachineDeployment", "md", "Refused", "Refused");
            hold["spec"]["owners"][0][list] = json!([name]);
            Some(hold)
        };
        for (hold, wanted) in [
            (of("Refused", "Refused"), (true, true)),
            (of("Allowed", "Refused"), (false, true)),
            (of("Refused", "Allowed"), (true, false)),
            (names("deletableMachines", "m-1"), (true, false)),
            (names("deletableMachines", "m-2"), (true, true)),
            (names("deletableMachineSets", "set"), (true, false)),
            (names("deletableMachineSets", "other"), (true, true)),
            (Some(entry("MachineDeployment", "other", "Refused", "Refused")), (false, false)),
            (Some(entry("KubeadmControlPlane", "md", "Refused", "Refused")), (false, false)),
            (None, (true, true)),
        ] {
            assert_eq!(judged_by(hold.as_ref(), false), wanted, "{hold:?}");
            assert_eq!(judged_by(hold.as_ref(), true), (true, true), "{hold:?}");
        }
    }
}
