//! Whether what a NodeUpdate waits for is so in the world.

use std::sync::Arc;

use jiff::SignedDuration;
use lab_simhost::kubelet::{is_ready, ready_condition};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    group::{Pace, exception_of, stopped_rollout},
    node::DrainReason,
    report::{Reason, RefusalReason},
};
use refit_kinds::{
    json::{annotation, condition, is_true, label, name, namespace, text, time},
    keys,
    refit::{self, StepType, UpdateGroup},
    version::StatedVersion,
};
use serde_json::Value;

use super::configure;
use crate::{
    script::{
        look::{newest_update, owners, owns, wanted_version},
        session::Session,
    },
    world::{
        Actor, World, lock,
        status::{is_final, phase},
    },
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
        RefusalReason::NodePressure => {
            let node = own.and_then(|machine| world.node_of(machine))?;
            Some(
                ["DiskPressure", "MemoryPressure", "PIDPressure"]
                    .iter()
                    .any(|one| is_true(&node, one)),
            )
        }
        RefusalReason::NodeCordoned => {
            let node = own.and_then(|machine| world.node_of(machine))?;
            Some(
                node["spec"]["unschedulable"] == true
                    && annotation(&node, keys::CORDONED_BY).is_none(),
            )
        }
        RefusalReason::ControlPlaneUnhealthy => {
            Some(!is_healthy(world, object) || is_being_updated(world, object, update))
        }
        RefusalReason::SlotBusy => Some(world.update_groups().iter().any(|group| {
            let slots = group["status"]["slots"].as_array();
            slots.into_iter().flatten().any(|slot| slot["machine"] == object)
        })),
        RefusalReason::ApprovalRequired => Some(own_group(world, own?).is_some_and(|group| {
            let number = group["status"]["rollout"]["number"].as_i64();
            let pacing = &group["spec"]["pacing"];
            !pacing["pauseAfter"].is_null() && pacing["approve"].as_i64() != number
        })),
        RefusalReason::RolloutStopped => Some(own_group(world, own?).is_some_and(|group| {
            let group: Result<UpdateGroup, _> = serde_json::from_value((*group).clone());
            group.is_ok_and(|group| {
                let pace = Pace { pacing: group.spec.pacing, ..Pace::default() };
                stopped_rollout(&group.status.unwrap_or_default(), &pace).is_some()
            })
        })),
        RefusalReason::Soaking => Some(own_group(world, own?).is_some_and(|group| {
            let since = time(&group, "/status/rollout/lastUpdated");
            let soak = group["spec"]["pacing"]["soakSeconds"].as_i64();
            let until =
                since.zip(soak).map(|(since, soak)| since + SignedDuration::from_secs(soak));
            until.is_some_and(|until| world.now() < until)
        })),
        RefusalReason::WindowClosed | RefusalReason::NoWindow => Some(
            own_group(world, own?)
                .is_some_and(|group| !group["spec"]["pacing"]["windows"].is_null()),
        ),
        RefusalReason::GateClosed => Some(
            own_group(world, own?).is_some_and(|group| !group["spec"]["pacing"]["gates"].is_null()),
        ),
        RefusalReason::OutOfTurn => {
            let own = name(own?);
            let other = machine(object).filter(|other| name(other) != own);
            let update = other.and_then(|other| newest_update(world, other));
            Some(update.is_some_and(|update| !is_final(&update)))
        }
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
        RefusalReason::PodDisruptionBudget => Some(
            is_in_workload(world, update, "pods", object)
                || in_workload(world, update, "poddisruptionbudgets.policy", object)
                    .is_some_and(|budget| budget["status"]["disruptionsAllowed"] == 0),
        ),
        RefusalReason::NodeNotVerified => {
            let node = own.and_then(|machine| world.node_of(machine))?;
            let goal = text(update, "/spec/goal/kubernetesVersion");
            let runs = text(&node, "/status/nodeInfo/kubeletVersion");
            let ill = static_pods(world, update, object)
                .iter()
                .any(|pod| !is_ready(pod) || !runs_version(pod, goal));
            Some(
                !is_ready(&node)
                    || runs != goal
                    || ill
                    || was_heard_before_restart(world, update, &node),
            )
        }
        // No simulation has an Updater with `host`.
        RefusalReason::OsImageConflict | RefusalReason::OsPackagesConflict => Some(false),
        RefusalReason::UpdaterUnusable => {
            let there = world.management().list_values(refit::GROUP, "updaters", None);
            let wanted = object.strip_prefix("Updater ");
            Some(wanted.is_some_and(|wanted| there.iter().all(|one| name(one) != wanted)))
        }
        RefusalReason::UpdaterFails | RefusalReason::UpdaterNotVerified => {
            let parts = update.pointer("/status/parts").and_then(Value::as_array);
            let is_noted = parts.into_iter().flatten().any(|part| {
                object == format!("Updater {}", text(part, "/updater"))
                    && !text(part, "/message").is_empty()
            });
            Some(is_noted || has_provider_trouble(world, update))
        }
        RefusalReason::OlderPlanRunning => {
            let plan = format!("{}/{object}", keys::HOST_PLAN_NAMESPACE);
            let plan = in_workload(world, update, "hostplans.refit.dev", &plan)?;
            let id = text(&plan, "/spec/planId");
            let is_foreign = !id.is_empty() && id != text(update, "/metadata/uid");
            let ended = text(&plan, "/status/planId") == id
                && ["Succeeded", "Failed", "Stopped"].contains(&text(&plan, "/status/state"));
            Some(is_foreign && !ended || is_older_provider_at_work(world, update))
        }
        RefusalReason::ControlPlaneBehind => Some(is_control_plane_behind(world, own?, update)),
        RefusalReason::GroupUnavailable => Some(lacks_others(world, own?)),
        RefusalReason::GroupNotReady => Some(own_group(world, own?).is_none()),
        // An API of a simulation rejects requests only on request of the script. A rest of the rejections
        // that nothing has used up yet counts as a cause.
        RefusalReason::ApiRefused | RefusalReason::ApiErrors => {
            let workloads = lock(&world.inner.workloads);
            let servers = workloads.values().map(|workload| &workload.server);
            Some(
                [world.management()].into_iter().chain(servers).any(|one| one.faults().has_rules()),
            )
        }
        RefusalReason::Paused => {
            let group = object.strip_prefix("UpdateGroup ");
            let is_paused_group = |group: &Value| group["spec"]["pacing"]["paused"] == true;
            if let Some(wanted) = group {
                let mut groups = world.update_groups().into_iter();
                return Some(groups.any(|group| name(&group) == wanted && is_paused_group(&group)));
            }
            let owner = object.rsplit(' ').next().unwrap_or_default();
            let owner = owners(world).into_iter().find(|one| name(one) == owner);
            let by_owner = owner.is_some_and(|one| annotation(&one, keys::GROUP_PAUSED).is_some());
            Some(by_owner || is_paused(world, own?))
        }
        RefusalReason::Held | RefusalReason::Skipped => {
            let (own, listed) = (own?, own_group(world, own?));
            let group: Option<UpdateGroup> =
                listed.and_then(|group| serde_json::from_value(group.as_ref().clone()).ok());
            let own: Machine = serde_json::from_value(own.as_ref().clone()).ok()?;
            let pacing = group.map(|group| group.spec.pacing).unwrap_or_default();
            Some(exception_of(&own, &pacing, 0).is_some())
        }
        RefusalReason::WouldBeReplaced => {
            Some(machine(object).is_some_and(|one| would_be_replaced(world, one)))
        }
        RefusalReason::UntilReached => {
            Some(["Stage", "Upgrade"].contains(&text(update, "/spec/until")))
        }
        RefusalReason::ConfigurationChanged => Some(configure::has_changed(session, update, own?)),
        RefusalReason::HostSettingsAnnotation => {
            let (_, owner) = object.rsplit_once(' ').unwrap_or_default();
            let owners = owners(world).into_iter().filter(|one| name(one) == owner);
            Some(owners.into_iter().any(|one| annotation(&one, keys::HOST_SETTINGS).is_some()))
        }
        RefusalReason::HostSettingsConflict => Some(all_exist(world, "hostsettings", object)),
        RefusalReason::DisruptionPolicyConflict => {
            Some(all_exist(world, "nodedisruptionpolicies", object))
        }
        // No world of a simulation has these.
        RefusalReason::AgentTooOld
        | RefusalReason::HostUnreadable
        | RefusalReason::ConfigurationConflict
        | RefusalReason::EtcdQuorum
        | RefusalReason::CertificateExpires
        | RefusalReason::VersionsNotComparable
        | RefusalReason::HostSettingsUnreadable
        | RefusalReason::DisruptionPolicyUnreadable
        | RefusalReason::NoGroup
        | RefusalReason::ClusterTooLarge
        | RefusalReason::Drain => None,
    }
}

/// Whether all objects of a refusal exist, such as `HostSettings one, other`.
fn all_exist(world: &World, plural: &str, object: &str) -> bool {
    let there = world.management().list_values(refit::GROUP, plural, None);
    let (_, names) = object.split_once(' ').unwrap_or_default();
    names.split(", ").all(|wanted| there.iter().any(|one| name(one) == wanted))
}

/// The UpdateGroup of a Machine's owner.
fn own_group(world: &World, machine: &Value) -> Option<Arc<Value>> {
    let owner = owner_name(machine);
    world.update_groups().into_iter().find(|group| text(group, "/spec/owner/name") == owner)
}

/// Whether Cluster API sees a control plane machine as outdated, has not marked it, and is not paused.
fn would_be_replaced(world: &World, machine: &Value) -> bool {
    let owner = owners(world).into_iter().find(|owner| owns(owner, machine));
    let marked = [keys::UPDATE_IN_PROGRESS, keys::PENDING_HOOKS];
    owner.is_some_and(|owner| {
        let is_outdated = text(machine, "/spec/version") != wanted_version(&owner)
            || condition(machine, "UpToDate") == Some("False");
        is_outdated
            && annotation(&owner, keys::PAUSED).is_none()
            && marked.iter().all(|key| annotation(machine, key).is_none())
    })
}

/// The memory that a Machine has according to its updater, if it has ever changed it, and the one that its
/// infrastructure machine requests.
pub(super) fn memory(session: &Session, machine: &Value) -> Option<(Option<String>, String)> {
    let object = infrastructure(session, machine)?;
    let has = annotation(&object, "memory.example/has").map(str::to_owned);
    Some((has, object["spec"]["memoryMiB"].to_string()))
}

/// The infrastructure machine of a Machine.
pub(super) fn infrastructure(session: &Session, machine: &Value) -> Option<Arc<Value>> {
    let reference = &machine["spec"]["infrastructureRef"];
    let mirror = &session.world.inner.management_mirror;
    let place = mirror.place(text(reference, "/apiGroup"), text(reference, "/kind"))?;
    mirror.get(&place.id, namespace(machine), text(reference, "/name"))
}

/// The objects of `examples/provider` for a NodeUpdate.
pub(super) fn provider_objects(world: &World, update: &Value) -> Vec<Value> {
    let mut all = world.management().list_values("memory.example", "memoryupdates", None);
    let uid = text(update, "/metadata/uid");
    all.retain(|object| text(object, "/metadata/ownerReferences/0/uid") == uid);
    all
}

/// Whether a provider has not ended its work for another NodeUpdate of the Machine.
fn is_older_provider_at_work(world: &World, update: &Value) -> bool {
    let (machine, uid) = (text(update, "/spec/machineRef/uid"), text(update, "/metadata/uid"));
    let all = world.management().list_values("memory.example", "memoryupdates", None);
    all.iter().any(|object| {
        text(object, "/spec/machineRef/uid") == machine
            && text(object, "/metadata/ownerReferences/0/uid") != uid
            && object["status"]["ready"] != true
    })
}

/// Whether a provider has not noted its order, reports a failure, or its object is being deleted.
fn has_provider_trouble(world: &World, update: &Value) -> bool {
    provider_objects(world, update).iter().any(|object| {
        object["status"]["observedGeneration"] != object["metadata"]["generation"]
            || !text(object, "/status/failureReason").is_empty()
            || object["metadata"]["deletionTimestamp"].is_string()
    })
}

/// Whether an object that a reason names as `namespace/name` or `name` is in the workload cluster.
fn is_in_workload(world: &World, update: &Value, resource: &str, object: &str) -> bool {
    in_workload(world, update, resource, object).is_some()
}

fn in_workload(world: &World, update: &Value, resource: &str, object: &str) -> Option<Value> {
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    world.workload(&cluster_of(world, update)?)?.get_value(group, plural, namespace, name)
}

/// Whether a Node's last heartbeat is older than the restart of its kubelet: the clock of its agent may have
/// been ahead when it dated the restart.
fn was_heard_before_restart(world: &World, update: &Value, node: &Value) -> bool {
    let plan = format!("{}/{}", keys::HOST_PLAN_NAMESPACE, name(node));
    let plan = in_workload(world, update, "hostplans.refit.dev", &plan).unwrap_or_default();
    let steps = plan["status"]["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let restarts = steps.iter().filter(|step| {
        [StepType::KubeletRestart, StepType::Reboot].iter().any(|one| text(step, "/id") == one.id())
    });
    let restarted = restarts.filter_map(|step| time(step, "/startedAt")).max();
    let heard = ready_condition(node).and_then(|ready| time(ready, "/lastHeartbeatTime"));
    restarted.is_some_and(|restarted| heard.is_none_or(|heard| heard < restarted))
}

/// The key of the cluster of a NodeUpdate's Machine.
fn cluster_of(world: &World, update: &Value) -> Option<String> {
    let machine = text(update, "/spec/machineRef/name");
    let machines = world.machines();
    let machine = machines.iter().find(|one| name(one) == machine)?;
    Some(format!("{}/{}", namespace(machine), text(machine, "/spec/clusterName")))
}

/// The static pods of the control plane on a node.
fn static_pods(world: &World, update: &Value, node: &str) -> Vec<Arc<Value>> {
    let workloads = lock(&world.inner.workloads);
    let workload = cluster_of(world, update).and_then(|key| workloads.get(&key));
    let mut pods = workload.map(|workload| workload.mirror.list("pods")).unwrap_or_default();
    pods.retain(|pod| is_control_plane_pod(pod, node));
    pods
}

fn is_control_plane_pod(pod: &Value, node: &str) -> bool {
    label(pod, "tier") == Some("control-plane") && text(pod, "/spec/nodeName") == node
}

/// Whether a static pod runs a version of Kubernetes; etcd has its own.
fn runs_version(pod: &Value, version: &str) -> bool {
    let image = text(pod, "/spec/containers/0/image");
    label(pod, "component") == Some("etcd") || image.ends_with(&format!(":{version}"))
}

/// Whether a member of the control plane of a Machine's cluster runs a lower minor version than the goal
/// of an update, or what it runs is unknown.
fn is_control_plane_behind(world: &World, own: &Value, update: &Value) -> bool {
    let version = |text: &str| StatedVersion::from(text).version().cloned();
    let goal = &update["spec"]["goal"];
    let of_option = || {
        let option = serde_json::from_value::<refit::GoalOption>(goal["option"].clone());
        option.ok()?.minor_version()
    };
    let Some(goal) = version(text(goal, "/kubernetesVersion")).or_else(of_option) else {
        return false;
    };
    let cluster = text(own, "/spec/clusterName");
    let machines = world.machines();
    let mut members = machines.iter().filter(|machine| {
        label(machine, keys::CONTROL_PLANE).is_some()
            && text(machine, "/spec/clusterName") == cluster
    });
    members.any(|member| {
        let node = world.node_of(member);
        let runs = node.as_deref().map(|node| text(node, "/status/nodeInfo/kubeletVersion"));
        runs.and_then(version).is_none_or(|runs| runs.minor_below(&goal))
    })
}

/// The name of the control plane or MachineDeployment of a Machine.
pub(super) fn owner_name(machine: &Value) -> &str {
    let owner = label(machine, keys::DEPLOYMENT_NAME);
    owner.or_else(|| label(machine, keys::CONTROL_PLANE_NAME)).unwrap_or_default()
}

/// Whether another machine of a Machine's group is missing or not available: only then can too few of them
/// be.
fn lacks_others(world: &World, own: &Value) -> bool {
    let owner = owner_name(own);
    let machines = world.machines();
    let members: Vec<_> = machines.iter().filter(|one| owner_name(one) == owner).collect();
    let owners = owners(world);
    let replicas = owners.iter().find(|one| name(one) == owner && owns(one, own));
    let wanted = replicas.and_then(|owner| owner["spec"]["replicas"].as_u64());
    let is_short = wanted.is_some_and(|wanted| (members.len() as u64) < wanted);
    let mut others = members.into_iter().filter(|one| name(one) != name(own));
    is_short || others.any(|other| !stands_in(world, other))
}

/// Whether a machine can stand in for another: [`refit_core::node::is_available`], as the world shows it.
fn stands_in(world: &World, machine: &Value) -> bool {
    let is_leaving = machine["metadata"]["deletionTimestamp"].is_string();
    let serves = world
        .node_of(machine)
        .is_some_and(|node| is_ready(&node) && annotation(&node, keys::CORDONED_BY).is_none());
    let waits = annotation(machine, keys::UPDATE_IN_PROGRESS).is_some()
        && newest_update(world, machine).is_none_or(|one| phase(&one).is_undisturbed());
    !is_leaving && serves && (waits || is_true(machine, refit_kinds::conditions::AVAILABLE))
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

/// Whether another update than this one is under way on the machine of a Node.
fn is_being_updated(world: &World, node: &str, own: &Value) -> bool {
    let updates = world.node_updates();
    let others = updates.iter().filter(|update| name(update) != name(own));
    let mut of_node = others.filter(|update| text(update, "/status/nodeName") == node);
    of_node.any(|update| !is_final(update))
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
            pods.retain(|pod| is_control_plane_pod(pod, node));
            is_ready(object) && !pods.is_empty() && pods.iter().all(|pod| is_ready(pod))
        })
}
