//! Reading: everything that a decision about one NodeUpdate looks at.

use std::{collections::BTreeMap, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::{
    group::{Limits, Other},
    node::{
        DrainChoice, DrainView, EvictionRefusal, Group, GroupView, MachineView, NodeView, Seen,
        Snapshot, StaticPod, Workload, is_available, speaker,
    },
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{HostPlan, HostSettings, NodeUpdate, Role, StepState, UpdateGroup, UpdateGroupStatus},
};
use refit_runtime::ObjectKey;

use crate::{
    context::{Context, Stores},
    groups::{self, group_of, machines_of, node_updates_of_machine},
    host_plan::{cluster_key, node_name, plan_key},
    policy::{live_drain_policy, live_host_settings, live_policy},
    update_group::limits::{limits_of, owner_version},
    workload_watch::ClusterView,
};

/// What was read, owned; [`Facts::snapshot`] is the view of it that a decision takes.
pub(super) struct Facts {
    pub(super) update: Arc<NodeUpdate>,
    pub(super) machine: Option<Arc<Machine>>,
    pub(super) group: GroupFacts,
    pub(super) cluster: Option<ClusterFacts>,
    pub(super) drain: Option<DrainView>,
    pub(super) drain_policy: DrainChoice,
    pub(super) evictions: Option<Vec<EvictionRefusal>>,
    pub(super) refused: Option<Refusal>,
    siblings: Vec<Arc<NodeUpdate>>,
    paused: Option<String>,
    unguarded: bool,
    settings: HostSettings,
    settings_refused: Option<Refusal>,
    owner_version: Option<String>,
    report_stale_after: SignedDuration,
}

/// What is known of the Machine's group.
pub(super) enum GroupFacts {
    None,
    Missing,
    Present {
        object: Arc<UpdateGroup>,
        status: UpdateGroupStatus,
        limits: Limits,
        others: Vec<Other>,
        last_first_passed: Option<bool>,
    },
}

/// What is known of the Machine's cluster.
pub(super) struct ClusterFacts {
    pub(super) key: ObjectKey,
    pub(super) view: Arc<ClusterView>,
    pub(super) host_plan: Option<Arc<HostPlan>>,
    pub(super) node_name: String,
    /// Its first lists should have been complete for long.
    overdue: bool,
    nodes: Vec<NodeView>,
    static_pods: Vec<StaticPod>,
    control_plane: Vec<(String, Option<String>, bool)>,
}

impl Facts {
    /// Reads the caches.
    pub(super) fn read(ctx: &Context, update: Arc<NodeUpdate>) -> Self {
        let stores = &ctx.stores;
        let namespace = update.namespace().unwrap_or_default();
        let machine_key = ObjectKey::new(&namespace, &update.spec.machine_ref.name);
        let machine = stores.machines.get(&machine_key);
        let name = update.name_any();
        let siblings = node_updates_of_machine(stores, &machine_key)
            .into_iter()
            .filter(|other| other.name_any() != name)
            .collect();
        let cluster = machine.as_deref().and_then(|machine| cluster(ctx, &update, machine));
        let nodes = cluster.as_ref().map_or(&[][..], |cluster| &cluster.nodes);
        let group = match machine.as_deref() {
            Some(machine) => group(ctx, &update, machine, nodes),
            None => GroupFacts::None,
        };
        let owner_version = machine
            .as_deref()
            .and_then(|machine| owner_version(stores, &group_of(stores, machine)?));
        let (settings, settings_refused) =
            match machine.as_deref().map(|machine| live_host_settings(ctx, machine)) {
                Some(Ok(settings)) => (settings, None),
                Some(Err(refusal)) => (HostSettings::default(), Some(refusal)),
                None => (HostSettings::default(), None),
            };
        Self {
            paused: machine.as_deref().and_then(|machine| paused(stores, machine)),
            unguarded: machine
                .as_deref()
                .and_then(|machine| live_policy(ctx, &group_of(stores, machine)?).ok())
                .is_some_and(|policy| policy.unguarded),
            drain: None,
            drain_policy: machine
                .as_deref()
                .map(|machine| live_drain_policy(ctx, machine))
                .unwrap_or_default(),
            evictions: None,
            refused: None,
            siblings,
            machine,
            group,
            cluster,
            settings,
            settings_refused,
            owner_version,
            report_stale_after: SignedDuration::try_from(ctx.settings.report_stale_after)
                .unwrap_or(SignedDuration::from_mins(15)),
            update,
        }
    }

    /// The view that a decision takes.
    pub(super) fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            update: &self.update,
            siblings: self.siblings.iter().map(AsRef::as_ref).collect(),
            machine: self.machine.as_deref(),
            paused: self.paused.clone(),
            unguarded: self.unguarded,
            drain: self.drain_policy.clone(),
            settings: &self.settings,
            settings_refused: self.settings_refused.as_ref(),
            owner_version: self.owner_version.as_deref(),
            group: self.group_view(),
            workload: self.workload(),
            report_stale_after: self.report_stale_after,
            refused: self.refused.as_ref(),
        }
    }

    /// Whether the cache lacks the Machine that the NodeUpdate names, while that matters: a cache
    /// that is behind must not end an update for good.
    pub(super) fn machine_is_missing(&self) -> bool {
        let uid = &self.update.spec.machine_ref.uid;
        let known = self.machine.as_ref().and_then(|machine| machine.uid());
        !groups::phase_of(&self.update).is_final() && known.as_ref() != Some(uid)
    }

    /// The Node of the Machine.
    pub(super) fn node(&self) -> Option<&NodeView> {
        let cluster = self.cluster.as_ref()?;
        cluster.nodes.iter().find(|node| node.name == cluster.node_name)
    }

    fn group_view(&self) -> GroupView<'_> {
        match &self.group {
            GroupFacts::None => GroupView::None,
            GroupFacts::Missing => GroupView::Missing,
            GroupFacts::Present { status, limits, others, last_first_passed, .. } => {
                GroupView::Present(Group {
                    status,
                    limits: *limits,
                    others: others.clone(),
                    last_first_passed: *last_first_passed,
                })
            }
        }
    }

    fn workload(&self) -> Workload<'_> {
        let Some(cluster) = &self.cluster else {
            return match &self.machine {
                // Without a Machine there is no cluster to ask, and nothing to wait for.
                None => Workload::Unreachable { cluster: String::new() },
                Some(_) => Workload::NotSynced,
            };
        };
        if cluster.view.is_unreachable() || cluster.overdue {
            return Workload::Unreachable { cluster: cluster.key.name.clone() };
        }
        if !cluster.view.synced() {
            return Workload::NotSynced;
        }
        Workload::Seen(Seen {
            host_plan: cluster.host_plan.as_deref(),
            node: self.node(),
            nodes: &cluster.nodes,
            static_pods: &cluster.static_pods,
            control_plane: &cluster.control_plane,
            drain: self.drain.as_ref(),
            evictions: self.evictions.as_deref(),
        })
    }
}

fn cluster(ctx: &Context, update: &NodeUpdate, machine: &Machine) -> Option<ClusterFacts> {
    let key = cluster_key(machine);
    let view = ctx.workload_index.view(&key)?;
    let known = update.status.as_ref().map_or("", |status| &status.node_name);
    let node_name = if known.is_empty() { node_name(machine).unwrap_or_default() } else { known };
    let plan_key = plan_key(ctx, machine, node_name);
    let control_plane = ctx
        .stores
        .machines
        .list_in(&key.namespace)
        .iter()
        .filter(|other| other.spec.cluster_name == key.name)
        .filter(|other| other.labels().contains_key(keys::CONTROL_PLANE))
        .map(|other| {
            let node = self::node_name(other).map(str::to_owned);
            (other.name_any(), node, other.metadata.deletion_timestamp.is_some())
        })
        .collect();
    Some(ClusterFacts {
        host_plan: view.host_plans.get(&plan_key),
        node_name: node_name.to_owned(),
        overdue: view.is_overdue(&ctx.clock),
        nodes: view.nodes.list().iter().map(|node| node_view(node)).collect(),
        static_pods: view.static_pods.list().iter().filter_map(|pod| static_pod(pod)).collect(),
        control_plane,
        view,
        key,
    })
}

fn group(ctx: &Context, update: &NodeUpdate, machine: &Machine, nodes: &[NodeView]) -> GroupFacts {
    let stores = &ctx.stores;
    let Some(group) = group_of(stores, machine) else {
        return GroupFacts::None;
    };
    let Some(object) = stores.update_groups.get(&group.key) else {
        return GroupFacts::Missing;
    };
    let machines = machines_of(stores, &group.key);
    let updates = by_machine(stores, &group.key.namespace);
    let name = machine.name_any();
    let others = machines
        .iter()
        .filter(|other| other.name_any() != name)
        .map(|other| Other {
            machine_uid: other.uid().unwrap_or_default(),
            available: available(&updates, other, nodes),
        })
        .collect();
    let status = object.status.clone().unwrap_or_default();
    let limits = limits_of(stores, &group, machines.len());
    #[cfg(feature = "sabotage")]
    let (status, limits) = ctx.sabotage.own_slot(&update.spec.machine_ref.uid, status, limits);
    GroupFacts::Present {
        status,
        limits,
        others,
        last_first_passed: last_first_passed(&updates, update, &machines),
        object,
    }
}

/// The NodeUpdates of a namespace by the name of their Machine: one scan, however many Machines ask.
pub(crate) type ByMachine = BTreeMap<String, Vec<Arc<NodeUpdate>>>;

/// Sorts the NodeUpdates of a namespace by Machine.
pub(crate) fn by_machine(stores: &Stores, namespace: &str) -> ByMachine {
    let mut sorted = ByMachine::new();
    for update in stores.node_updates.list_in(namespace) {
        let machine = update.spec.machine_ref.name.clone();
        sorted.entry(machine).or_default().push(update);
    }
    sorted
}

/// The NodeUpdates of one Machine's name.
pub(crate) fn of_machine<'a>(updates: &'a ByMachine, machine: &Machine) -> &'a [Arc<NodeUpdate>] {
    updates.get(&machine.name_any()).map_or(&[], Vec::as_slice)
}

/// Whether a machine can stand in for another.
fn available(updates: &ByMachine, machine: &Machine, nodes: &[NodeView]) -> bool {
    let uid = machine.uid().unwrap_or_default();
    let newest = speaker(of_machine(updates, machine).iter().map(AsRef::as_ref), &uid);
    is_available(&MachineView {
        machine,
        node: node_name(machine).and_then(|name| nodes.iter().find(|node| node.name == name)),
        newest_phase: newest.map(groups::phase_of),
    })
}

/// Whether the last other NodeUpdate of these machines to the same version that was the first
/// control plane passed `kubeadm-upgrade`.
fn last_first_passed(
    updates: &ByMachine,
    update: &NodeUpdate,
    machines: &[Arc<Machine>],
) -> Option<bool> {
    let goal = &update.spec.goal.kubernetes_version;
    let name = update.name_any();
    let first = machines
        .iter()
        .flat_map(|machine| of_machine(updates, machine))
        .filter(|other| other.name_any() != name)
        .filter(|other| other.spec.goal.kubernetes_version == *goal)
        .filter(|other| {
            let role = other.status.as_ref().and_then(|status| status.role);
            role == Some(Role::FirstControlPlane)
        })
        .max_by_key(|other| {
            let created = other.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, other.name_any())
        })?;
    let steps = first.status.as_ref().map_or(&[][..], |status| &status.steps);
    Some(steps.iter().any(|step| step.name == "kubeadm-upgrade" && step.state == StepState::Done))
}

fn paused(stores: &Stores, machine: &Machine) -> Option<String> {
    let cluster = stores.clusters.get(&cluster_key(machine));
    if cluster.is_some_and(|cluster| cluster.spec.paused == Some(true)) {
        return Some(format!("Cluster {}", machine.spec.cluster_name));
    }
    let annotated = machine.annotations().contains_key(keys::PAUSED);
    annotated.then(|| format!("Machine {}", machine.name_any()))
}

/// What a decision reads of a Node.
pub(crate) fn node_view(node: &Node) -> NodeView {
    let status = node.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|conditions| conditions.iter().find(|c| c.type_ == "Ready"));
    let info = status.and_then(|status| status.node_info.as_ref());
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    NodeView {
        name: node.name_any(),
        ready: ready.is_some_and(|c| c.status == "True"),
        heartbeat: ready.and_then(|c| c.last_heartbeat_time.as_ref()).map(|time| time.0),
        kubelet_version: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
        cordoned_by: node.annotations().get(keys::CORDONED_BY).cloned(),
        excluded: node.labels().contains_key(keys::EXCLUDE_FROM_LOAD_BALANCERS),
        excluded_by: node.annotations().get(keys::EXCLUDED_BY).cloned(),
        taints: taints
            .into_iter()
            .flatten()
            .filter(|taint| taint.effect != "PreferNoSchedule")
            .filter(|taint| taint.key != "node.kubernetes.io/unschedulable")
            .map(|taint| taint.key.clone())
            .collect(),
    }
}

/// What a decision reads of a mirror pod.
fn static_pod(pod: &Pod) -> Option<StaticPod> {
    let component = pod.labels().get("component")?.clone();
    let spec = pod.spec.as_ref()?;
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let image = spec
        .containers
        .iter()
        .find(|container| container.name == component)
        .or_else(|| spec.containers.first())
        .and_then(|container| container.image.as_deref());
    Some(StaticPod {
        node: spec.node_name.clone()?,
        version: image.and_then(image_tag),
        component,
        ready,
    })
}

/// The tag of an image; a registry's port and a digest are not one.
fn image_tag(image: &str) -> Option<String> {
    let name = image.split('@').next()?;
    let (_, tag) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?;
    Some(tag.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_are_read_past_ports_and_digests() {
        let table = [
            ("registry.k8s.io/kube-apiserver:v1.35.0", Some("v1.35.0")),
            ("host:5000/kube-apiserver", None),
            ("host:5000/kube-apiserver:v1.35.0@sha256:abc", Some("v1.35.0")),
            ("kube-apiserver@sha256:abc", None),
        ];
        for (image, tag) in table {
            assert_eq!(image_tag(image).as_deref(), tag, "{image}");
        }
    }

    #[test]
    fn a_node_is_read_as_the_kubelet_reports_it() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {"refit.dev/cordoned-by": "m-1"}},
            "spec": {
                "unschedulable": true,
                "taints": [
                    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                ],
            },
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:05Z",
                }],
                "nodeInfo": {
                    "kubeletVersion": "v1.34.2", "bootID": "b", "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        }))
        .unwrap();
        let view = node_view(&node);
        assert!(view.ready && view.cordoned_by_us());
        assert_eq!(view.taints, ["node-role.kubernetes.io/control-plane"]);
        assert_eq!(view.heartbeat, Some("2026-01-01T00:00:05Z".parse().unwrap()));
        assert_eq!((view.kubelet_version.as_str(), view.boot_id.as_str()), ("v1.34.2", "b"));
    }

    #[test]
    fn a_mirror_pod_is_read_by_its_component() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "kube-apiserver-n", "labels": {"component": "kube-apiserver"}},
            "spec": {"nodeName": "n", "containers": [
                {"name": "sidecar", "image": "x:v9"},
                {"name": "kube-apiserver", "image": "registry.k8s.io/kube-apiserver:v1.35.0"},
            ]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let view = static_pod(&pod).unwrap();
        assert_eq!(view.version.as_deref(), Some("v1.35.0"));
        assert!(view.ready);
    }
}
