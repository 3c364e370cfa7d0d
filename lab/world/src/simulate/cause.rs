//! Whether what a NodeUpdate waits for is so in the world.

use lab_simhost::kubelet::is_ready;
use refit_core::{
    node::DrainReason,
    report::{Reason, RefusalReason},
};
use refit_kinds::{
    json::{annotation, label, name, namespace, text},
    keys, refit,
};
use serde_json::Value;

use crate::{
    script::{look::owners, session::Session},
    world::{Actor, World, lock, status::is_final},
};

/// Whether what a reason names is still so in the world; `None` if the world does not show it.
pub(super) fn cause_holds(
    session: &Session,
    update: &Value,
    reason: &str,
    object: &str,
) -> Option<bool> {
    let world = &session.world;
    let reason = match Reason::of(reason)? {
        Reason::Update(reason) => reason,
        Reason::Drain(DrainReason::VolumeAttached) => {
            return Some(is_in_workload(world, update, "volumeattachments.storage.k8s.io", object));
        }
        Reason::Drain(
            DrainReason::EvictionUnavailable
            | DrainReason::PodUnreplicated
            | DrainReason::PodLocalStorage
            | DrainReason::PodWaitCompleted
            | DrainReason::DrainRuleNotUnderstood
            | DrainReason::PodTerminating
            | DrainReason::PodCameBack,
        ) => return Some(is_in_workload(world, update, "pods", object)),
    };
    let machines = world.machines();
    let machine = |wanted: &str| machines.iter().find(|machine| name(machine) == wanted);
    let own = machine(text(update, "/spec/machineRef/name"));
    match reason {
        RefusalReason::NoFreshReport => Some(!agent_reports(session, object)),
        RefusalReason::NodeNotReady => {
            let node = own.and_then(|machine| world.node_of(machine))?;
            Some(!is_ready(&node))
        }
        RefusalReason::ControlPlaneUnhealthy => Some(!is_healthy(world, object)),
        RefusalReason::SlotBusy => Some(world.update_groups().iter().any(|group| {
            let slots = group["status"]["slots"].as_array();
            slots.into_iter().flatten().any(|slot| slot["machine"] == object)
        })),
        RefusalReason::OlderUpdateUnfinished => {
            let all = world.node_updates();
            Some(all.iter().any(|update| name(update) == object && !is_final(update)))
        }
        RefusalReason::MachineDeleting | RefusalReason::RoomForOthers => {
            Some(machine(object).is_some_and(|m| m["metadata"]["deletionTimestamp"].is_string()))
        }
        RefusalReason::NoNode => {
            Some(machine(object).is_some_and(|machine| world.node_of(machine).is_none()))
        }
        RefusalReason::ApiUnreachable => {
            let apis = world.inner.apis.borrow();
            Some(apis.iter().any(|(key, up)| key.ends_with(&format!("/{object}")) && !up))
        }
        RefusalReason::EvictionRefused => Some(is_in_workload(world, update, "pods", object)),
        RefusalReason::Paused => Some(is_paused(world, own?)),
        RefusalReason::HostSettingsAnnotation => {
            let (_, owner) = object.rsplit_once(' ').unwrap_or_default();
            let owners = owners(world).into_iter().filter(|one| name(one) == owner);
            Some(owners.into_iter().any(|one| annotation(&one, keys::HOST_SETTINGS).is_some()))
        }
        RefusalReason::HostSettingsConflict => {
            let there = world.management().list_values(refit::GROUP, "hostsettings", None);
            let names = object.trim_start_matches("HostSettings ").split(", ");
            Some(names.into_iter().all(|wanted| there.iter().any(|one| name(one) == wanted)))
        }
        // The world shows these only to the code that finds them.
        RefusalReason::GroupUnavailable
        | RefusalReason::ControlPlaneBehind
        | RefusalReason::AgentTooOld
        | RefusalReason::HostSettingsUnreadable
        | RefusalReason::PodDisruptionBudget
        | RefusalReason::NodeNotVerified
        | RefusalReason::OlderPlanRunning
        | RefusalReason::NoGroup
        | RefusalReason::GroupNotReady
        | RefusalReason::ApiRefused
        | RefusalReason::ApiErrors
        | RefusalReason::ClusterTooLarge
        | RefusalReason::Drain => None,
    }
}

/// Whether an object that a reason names as `namespace/name` or `name` is in the workload cluster.
fn is_in_workload(world: &World, update: &Value, resource: &str, object: &str) -> bool {
    let machine = text(update, "/spec/machineRef/name");
    let machines = world.machines();
    let Some(machine) = machines.iter().find(|one| name(one) == machine) else {
        return false;
    };
    let key = format!("{}/{}", namespace(machine), text(machine, "/spec/clusterName"));
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let server = world.workload(&key);
    server.is_some_and(|server| server.get_value(group, plural, namespace, name).is_some())
}

/// Whether an operator has paused a Machine or its Cluster.
fn is_paused(world: &World, machine: &Value) -> bool {
    let cluster = world.management().get_value(
        refit_cluster_api::kinds::CORE_GROUP,
        "clusters",
        namespace(machine),
        text(machine, "/spec/clusterName"),
    );
    let paused = |object: &Value| annotation(object, keys::PAUSED).is_some();
    paused(machine)
        || cluster.is_some_and(|cluster| cluster["spec"]["paused"] == true || paused(&cluster))
}

/// Whether the agent of a node runs and can reach its API.
fn agent_reports(session: &Session, node: &str) -> bool {
    let Some(agent) = session.world.agent(node) else {
        return false;
    };
    let runs = lock(&session.world.inner.processes).contains_key(&agent);
    let cut = session.cut.iter().any(|link| link.actor == agent);
    runs && !cut && !is_off(session, &agent)
}

/// Whether the host of an agent has no power.
pub(super) fn is_off(session: &Session, agent: &Actor) -> bool {
    let Actor::Agent(key) = agent else {
        return false;
    };
    let host = lock(&session.world.inner.hosts).get(key).cloned();
    host.is_none_or(|host| lock(&host.state).down_until.is_some())
}

/// Whether the control plane member on a node is Ready, with all of its components, and stays.
fn is_healthy(world: &World, node: &str) -> bool {
    let leaves = world.machines().iter().any(|machine| {
        let names = [name(machine), text(machine, "/status/nodeRef/name")];
        names.contains(&node) && machine["metadata"]["deletionTimestamp"].is_string()
    });
    let nodes = world.nodes();
    let found = nodes.iter().find(|((_, name), _)| name == node);
    !leaves
        && found.is_some_and(|((cluster, _), object)| {
            let workloads = lock(&world.inner.workloads);
            let pods = workloads.get(cluster).map(|workload| workload.mirror.list("pods"));
            let mut pods = pods.unwrap_or_default();
            pods.retain(|pod| {
                label(pod, "tier") == Some("control-plane") && text(pod, "/spec/nodeName") == node
            });
            is_ready(object) && !pods.is_empty() && pods.iter().all(|pod| is_ready(pod))
        })
}
