//! Queries of a world for scripts: machines of a group, their updates, whether a condition holds.

use std::sync::Arc;

use jiff::Timestamp;
use lab_simhost::HostState;
use refit_cluster_api::kinds;
use refit_kinds::{
    conditions,
    json::{at, is_true, name, namespace, text, whole_condition},
    keys,
    refit::ordinal_of,
};
use serde_json::Value;

use super::{
    command::{Condition, Reference, Wrong},
    names::Names,
    objects::Found,
};
use crate::{
    env::canonical,
    world::{
        World,
        status::{PASSING, is_final, phase},
    },
};

/// A group of machines, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Cluster,
    ControlPlane,
    Deployment,
    Set,
    Machine,
    /// An object without machines.
    None,
}

impl Group {
    fn of(found: &Found) -> Self {
        match (found.kind.group.as_str(), found.kind.kind.as_str()) {
            (kinds::CORE_GROUP, "Cluster") => Self::Cluster,
            (kinds::CONTROL_PLANE_GROUP, kind) if is_control_plane(kind) => Self::ControlPlane,
            (kinds::CORE_GROUP, "MachineDeployment") => Self::Deployment,
            (kinds::CORE_GROUP, "MachineSet") => Self::Set,
            (kinds::CORE_GROUP, "Machine") => Self::Machine,
            _ => Self::None,
        }
    }

    fn has(self, machine: &Value, wanted: &str) -> bool {
        let label = |key: &str| machine["metadata"]["labels"].get(key).and_then(Value::as_str);
        match self {
            Self::Cluster => text(machine, "/spec/clusterName") == wanted,
            Self::ControlPlane => label(keys::CONTROL_PLANE_NAME) == Some(wanted),
            Self::Deployment => label(keys::DEPLOYMENT_NAME) == Some(wanted),
            Self::Set => text(machine, "/metadata/ownerReferences/0/name") == wanted,
            Self::Machine => name(machine) == wanted,
            Self::None => false,
        }
    }
}

/// Result of one check of a condition.
pub(super) struct Look {
    /// Whether it holds.
    pub(super) holds: bool,
    /// The machine that meets it, if the condition is about one of several.
    pub(super) machine: Option<String>,
}

impl From<bool> for Look {
    fn from(holds: bool) -> Self {
        Self { holds, machine: None }
    }
}

/// The Machines of an object that a script names.
pub(super) fn machines_of(
    world: &World,
    names: &Names,
    reference: &Reference,
) -> Result<Vec<Arc<Value>>, Wrong> {
    let found = Found::new(world, names, reference)?;
    let group = Group::of(&found);
    let mut machines = world.machines();
    machines.retain(|machine| group.has(machine, &found.name));
    Ok(machines)
}

/// The newest NodeUpdate of a Machine; one that has issued certificates only if there is no other.
pub(crate) fn newest_update(world: &World, machine: &Value) -> Option<Arc<Value>> {
    let uid = text(machine, "/metadata/uid");
    world
        .node_updates()
        .into_iter()
        .filter(|update| text(update, "/spec/machineRef/uid") == uid)
        .max_by_key(|update| {
            let is_over = !update["spec"]["goal"]["certificates"].is_null() && is_final(update);
            (!is_over, ordinal_of(name(update), name(machine)))
        })
}

/// Checks whether a condition holds.
pub(super) fn look(world: &World, found: &Found, wanted: &Condition) -> Look {
    let group = Group::of(found);
    if let Condition::Gone = wanted {
        return found.get().is_none().into();
    }
    // An object that does not exist yet may be created later.
    let Some(object) = found.get() else {
        return false.into();
    };
    let machines = || {
        let mut machines = world.machines();
        machines.retain(|machine| group.has(machine, &found.name));
        machines
    };
    match wanted {
        Condition::Gone => false.into(),
        Condition::Field(setting) => setting.holds(&object).into(),
        Condition::Status(kind, status) => {
            whole_condition(&object, kind).is_some_and(|c| c["status"] == status.as_str()).into()
        }
        Condition::Ready if group == Group::None => {
            (is_true(&object, conditions::READY) || is_true(&object, conditions::AVAILABLE)).into()
        }
        Condition::Ready => is_ready(world, group, &object, &machines()).into(),
        Condition::Updated => {
            let machines = machines();
            (is_ready(world, group, &object, &machines)
                && is_updated(world, &found.name, group, &machines))
            .into()
        }
        Condition::Phase(wanted) => first(&machines(), |machine| {
            newest_update(world, machine)
                .is_some_and(|update| format!("{:?}", phase(&update)) == *wanted)
        }),
        Condition::Step(wanted) => first(&machines(), |machine| {
            // A step that is short may be over before it is reported.
            let runs = |host: &mut HostState| host.runs_step(wanted);
            let node = text(machine, "/status/nodeRef/name");
            newest_update(world, machine).is_some_and(|update| running_step(&update) == wanted)
                || world.with_host(node, runs).unwrap_or_default()
        }),
        Condition::Blocked(reason) => {
            blocked(world, group, &found.name, &machines(), reason.as_deref())
        }
    }
}

fn first(machines: &[Arc<Value>], holds: impl Fn(&Value) -> bool) -> Look {
    let machine = machines.iter().find(|machine| holds(machine));
    Look { holds: machine.is_some(), machine: machine.map(|machine| name(machine).to_owned()) }
}

/// The step that an update is at.
pub(crate) fn running_step(update: &Value) -> &str {
    let steps = update["status"]["steps"].as_array();
    steps
        .into_iter()
        .flatten()
        .find(|step| step["state"] == "Running")
        .map_or("", |step| text(step, "/name"))
}

/// The blockers of an update.
pub(crate) fn blockers(update: &Value) -> impl Iterator<Item = &Value> {
    let all = update["status"]["blockedBy"].as_array();
    all.into_iter().flatten()
}

/// The first blocker of an update and the number of others: a drain may list dozens of pods.
pub(super) fn in_short(blockers: &[String]) -> String {
    let first = blockers.first().cloned().unwrap_or_default();
    match blockers.len().saturating_sub(1) {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

fn blocked(
    world: &World,
    group: Group,
    owner: &str,
    machines: &[Arc<Value>],
    reason: Option<&str>,
) -> Look {
    // Waiting for another machine is the normal order, not an obstacle.
    let fits = |found: &str| match reason {
        Some(reason) => reason == found,
        None => !matches!(found, "SlotBusy" | "ControlPlaneBehind"),
    };
    let by_machine = first(machines, |machine| {
        newest_update(world, machine)
            .is_some_and(|update| blockers(&update).any(|blocker| fits(text(blocker, "/reason"))))
    });
    if by_machine.holds || group == Group::Machine {
        return by_machine;
    }
    let groups = groups_of(world, group, owner);
    let blocked = groups.iter().any(|object| {
        whole_condition(object, "Blocked")
            .is_some_and(|c| c["status"] == "True" && fits(text(c, "/reason")))
    });
    blocked.into()
}

/// The UpdateGroups of an owner, or of all owners of a Cluster.
fn groups_of(world: &World, group: Group, owner: &str) -> Vec<Arc<Value>> {
    let mut groups = world.update_groups();
    groups.retain(|object| match group {
        Group::Cluster => text(object, "/spec/clusterName") == owner,
        Group::ControlPlane => is_owner(object, is_control_plane, owner),
        Group::Deployment => is_owner(object, |kind| kind == "MachineDeployment", owner),
        Group::Set => is_owner(object, |kind| kind == "MachineSet", owner),
        Group::Machine | Group::None => false,
    });
    groups
}

fn is_owner(group: &Value, is_kind: fn(&str) -> bool, name: &str) -> bool {
    is_kind(text(group, "/spec/owner/kind")) && text(group, "/spec/owner/name") == name
}

/// Whether objects of a kind are control planes.
fn is_control_plane(kind: &str) -> bool {
    kind == "KubeadmControlPlane" || kind == canonical::CONTROL_PLANE
}

/// Whether an owner has as many machines as it requests, all of them available.
fn is_ready(world: &World, group: Group, object: &Value, machines: &[Arc<Value>]) -> bool {
    let wanted = match group {
        Group::Machine => 1,
        Group::Cluster => replicas_of_cluster(world, object),
        _ => replicas(object),
    };
    u64::try_from(machines.len()) == Ok(wanted)
        && machines.iter().all(|machine| {
            is_true(machine, conditions::AVAILABLE)
                && text(machine, "/metadata/deletionTimestamp").is_empty()
        })
}

fn replicas(object: &Value) -> u64 {
    at(object, "/spec/replicas").and_then(Value::as_u64).unwrap_or(1)
}

fn replicas_of_cluster(world: &World, cluster: &Value) -> u64 {
    let owners = owners(world);
    let cluster_owners = owners.iter().filter(|owner| {
        namespace(owner) == namespace(cluster)
            && (text(owner, "/spec/clusterName") == name(cluster)
                || text(cluster, "/spec/controlPlaneRef/name") == name(owner)
                    && is_control_plane(text(owner, "/kind")))
    });
    cluster_owners.map(replicas).sum()
}

/// All control planes and MachineDeployments.
pub(crate) fn owners(world: &World) -> Vec<Value> {
    let server = world.management();
    let mut owners = server.list_values(kinds::CONTROL_PLANE_GROUP, "kubeadmcontrolplanes", None);
    owners.extend(server.list_values(kinds::CONTROL_PLANE_GROUP, canonical::CONTROL_PLANES, None));
    owners.extend(server.list_values(kinds::CORE_GROUP, "machinedeployments", None));
    owners
}

/// Why a machine does not match its owner's spec, as text; `None` if it matches.
pub(super) fn behind(world: &World, owners: &[Value], machine: &Value) -> Option<String> {
    let owner = owners.iter().find(|owner| owns(owner, machine));
    let version = text(machine, "/spec/version");
    if let Some(owner) = owner {
        let wanted = wanted_version(owner);
        if version != wanted {
            return Some(format!("its spec.version is {version}, expected {wanted}"));
        }
        let template = text(owner, template_reference(owner));
        let cloned = cloned_from(world, machine);
        if cloned.as_deref().is_some_and(|cloned| cloned != template) {
            return Some(format!(
                "it was created from {}, expected {template}",
                cloned.unwrap_or_default()
            ));
        }
        let (seen, generation) =
            (at(owner, "/status/observedGeneration"), at(owner, "/metadata/generation"));
        if seen.is_some() && seen != generation {
            return Some(format!("{} was not reconciled since it changed", name(owner)));
        }
    }
    let kubelet = world
        .node_of(machine)
        .map(|node| text(&node, "/status/nodeInfo/kubeletVersion").to_owned());
    match kubelet {
        None => return Some("it has no Node".to_owned()),
        Some(kubelet) if kubelet != version => {
            return Some(format!("its node runs {kubelet}, expected {version}"));
        }
        Some(_) => {}
    }
    if whole_condition(machine, conditions::UP_TO_DATE).is_some_and(|c| c["status"] == "False") {
        return Some("it is not up to date".to_owned());
    }
    let passing =
        PASSING.iter().find(|key| machine["metadata"]["annotations"].get(**key).is_some());
    passing.map(|key| format!("it has annotation {key}"))
}

pub(crate) fn owns(owner: &Value, machine: &Value) -> bool {
    let group = match text(owner, "/kind") {
        kind if is_control_plane(kind) => Group::ControlPlane,
        _ => Group::Deployment,
    };
    namespace(owner) == namespace(machine) && group.has(machine, name(owner))
}

pub(crate) fn wanted_version(owner: &Value) -> &str {
    match text(owner, "/kind") {
        kind if is_control_plane(kind) => text(owner, "/spec/version"),
        _ => text(owner, "/spec/template/spec/version"),
    }
}

fn template_reference(owner: &Value) -> &'static str {
    match text(owner, "/kind") {
        "KubeadmControlPlane" => "/spec/machineTemplate/spec/infrastructureRef/name",
        canonical::CONTROL_PLANE => "/spec/machineTemplate/infrastructureTemplate/name",
        _ => "/spec/template/spec/infrastructureRef/name",
    }
}

/// The template from which a Machine's infrastructure was created.
fn cloned_from(world: &World, machine: &Value) -> Option<String> {
    let reference = &machine["spec"]["infrastructureRef"];
    let mirror = &world.inner.management_mirror;
    let (_, object) = mirror.referred(reference, namespace(machine))?;
    let annotations = &object["metadata"]["annotations"];
    annotations.get(keys::CLONED_FROM_NAME)?.as_str().map(str::to_owned)
}

fn is_updated(world: &World, name: &str, group: Group, machines: &[Arc<Value>]) -> bool {
    let owners = owners(world);
    let free = groups_of(world, group, name)
        .iter()
        .all(|object| object["status"]["slots"].as_array().is_none_or(Vec::is_empty));
    free && machines.iter().all(|machine| {
        newest_update(world, machine).is_none_or(|update| phase(&update).is_final())
            && behind(world, &owners, machine).is_none()
    })
}

/// What blocks the progress of a world or of the machines of an object, one line each.
pub(super) fn obstacles(
    world: &World,
    names: &Names,
    reference: Option<&Reference>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let owners = owners(world);
    let machines = match reference.map(|reference| machines_of(world, names, reference)) {
        Some(Ok(machines)) if !machines.is_empty() => machines,
        _ => world.machines(),
    };
    for machine in &machines {
        let mut why: Vec<String> = Vec::new();
        if !is_true(machine, conditions::AVAILABLE) {
            why.push("not available".to_owned());
        }
        why.extend(behind(world, &owners, machine));
        if let Some(update) = newest_update(world, machine) {
            why.extend(update_line(names, &update));
        }
        if !why.is_empty() {
            lines.push(format!("{}: {}", name(machine), why.join("; ")));
        }
    }
    for group in world.update_groups() {
        let blocked = whole_condition(&group, "Blocked").filter(|c| c["status"] == "True");
        if let Some(blocked) = blocked {
            lines.push(format!("{}: blocked, {}", name(&group), text(blocked, "/message")));
        }
    }
    lines.into_iter().map(|line| names.shown(&line)).collect()
}

/// The state of an update as text; `None` if it succeeded.
fn update_line(names: &Names, update: &Value) -> Option<String> {
    let phase = phase(update);
    if phase == refit_kinds::refit::Phase::Succeeded {
        return None;
    }
    let blockers: Vec<String> = blockers(update)
        .map(|blocker| {
            let since: Option<Timestamp> = text(blocker, "/since").parse().ok();
            let since = since.map(|since| format!(" (since {})", names.offset(since)));
            format!("{}{}", text(blocker, "/message"), since.unwrap_or_default())
        })
        .collect();
    let why = if blockers.is_empty() {
        let failure = text(update, "/status/failureMessage");
        let message = text(update, "/status/message");
        (if failure.is_empty() { message } else { failure }).to_owned()
    } else {
        in_short(&blockers)
    };
    Some(format!("its update is {phase:?}: {why}"))
}
