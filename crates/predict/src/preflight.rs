//! Which machines would have to wait if their update began now: the checks of the controller's preflight
//! ([`refit_core::node::Preflight`]), for machines that have not begun.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, MachineDeployment, MachineDrainRule};
use refit_core::{
    group::{Limits, Other, Pace, holds},
    node::{
        Begun, BudgetView, Check, ControlPlaneMember, DrainAhead, DrainPolicy, DrainView, Found,
        Group, MachineView, NodeView, OtherMachines, Others, PodView, Preflight, Seen, StaticPod,
        Weight, Workload, drain_policy, is_available, rules_of, speaker,
    },
    report::Refusal,
};
use refit_kinds::{
    json::{annotations, controller, is_deleting, label, labels, name, namespace, text},
    keys,
    refit::{
        HostPlan, MachineUid, NodeName, NodeUpdate, Owner, UpdateGroup, UpdateGroupStatus,
        update_group_name,
    },
    version::StatedVersion,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{objects::Objects, reach::GroupRef, view::controlled};

/// How many machines are named for one refusal.
const MOST_NAMES: usize = 3;

/// What the checks read in a workload cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadFacts {
    /// Its Nodes, in order of name.
    pub nodes: Vec<Arc<NodeView>>,
    /// Mirror pods of its control plane.
    pub static_pods: Vec<StaticPod>,
    /// Its HostPlans, by Node.
    pub plans: BTreeMap<NodeName, Arc<HostPlan>>,
    /// Those of its pods that a drain may evict, by Node.
    pub pods: BTreeMap<NodeName, Vec<PodView>>,
    /// Its PodDisruptionBudgets.
    pub budgets: Vec<BudgetView>,
}

impl WorkloadFacts {
    /// Reads the facts out of HostPlans, Nodes, PodDisruptionBudgets and Pods.
    pub fn of(plans: &[Value], nodes: &[Value], budgets: &[Value], pods: &[Value]) -> Self {
        let mut facts = Self {
            nodes: typed::<Node>(nodes).map(|node| Arc::new(NodeView::of(&node))).collect(),
            budgets: typed::<PodDisruptionBudget>(budgets)
                .map(|one| BudgetView::of(&one))
                .collect(),
            ..Self::default()
        };
        facts.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let named = |plan: HostPlan| Some((plan.metadata.name.clone()?.into(), Arc::new(plan)));
        facts.plans = typed(plans).filter_map(named).collect();
        for pod in typed::<Pod>(pods) {
            facts.add_pod(&pod);
        }
        facts
    }

    /// Adds a pod. Pods that every drain leaves on their node are not kept. Whether it was kept.
    pub fn add_pod(&mut self, pod: &Pod) -> bool {
        let tier = pod.labels().get("tier").map(String::as_str);
        let is_static =
            pod.namespace().as_deref() == Some("kube-system") && tier == Some("control-plane");
        self.static_pods.extend(is_static.then(|| StaticPod::of(pod)).flatten());
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            return false;
        };
        let view = PodView::of(pod);
        let may_leave = !view.daemon_set && !view.mirror && !view.finished;
        if may_leave {
            self.pods.entry(node.into()).or_default().push(view);
        }
        may_leave
    }
}

pub(super) fn typed<'a, K: DeserializeOwned + 'a>(
    objects: &'a [Value],
) -> impl Iterator<Item = K> + 'a {
    objects.iter().filter_map(parsed)
}

pub(super) fn parsed<K: DeserializeOwned>(object: &Value) -> Option<K> {
    K::deserialize(object).ok()
}

/// Machines that would have to wait for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The check.
    pub check: Check,
    /// What the refusal means for an update.
    pub weight: Weight,
    /// The refusal of the first machine.
    pub refusal: Refusal,
    /// The names of the machines.
    pub machines: Vec<String>,
}

impl Refused {
    /// The machines and the refusal in one line of bounded length.
    pub fn message(&self) -> String {
        let who = many(&self.machines);
        let why = self.refusal.sentence();
        match self.weight {
            Weight::Waits => format!("{who}{why}"),
            Weight::Passes => format!("{who}{why}; this may pass by itself"),
            Weight::Overridden => format!("{who}{why}; the drain does not wait for it for ever"),
        }
    }
}

/// The beginning of a line about several machines; empty for one.
pub(super) fn many(machines: &[String]) -> String {
    let count = machines.len();
    let shown = machines.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    match (count, count.saturating_sub(MOST_NAMES)) {
        (0 | 1, _) => String::new(),
        (_, 0) => format!("{count} machines ({shown}): "),
        (_, rest) => format!("{count} machines ({shown} and {rest} more): "),
    }
}

/// What machines have to have in common to be shown as one: the check, what it means, and the object that is in
/// the way, if it is neither the machine nor its node.
type Key = (Check, Weight, Option<String>);

/// The machines of a group that have not begun and would have to wait, in the order of the checks. Whether
/// versions fit is a question of the change, and is answered with it.
pub fn refused(
    objects: &Objects,
    group: &GroupRef,
    facts: &WorkloadFacts,
    now: Timestamp,
) -> Vec<Refused> {
    let Some(members) = Members::of(objects, group, facts) else {
        return Vec::new();
    };
    let mut workload = Workload::Seen(members.seen(objects, facts, now));
    let mut found: BTreeMap<Key, Refused> = BTreeMap::new();
    for member in members.all.iter().filter(|member| !member.has_begun) {
        let Member { machine, node, other, .. } = member;
        if let Workload::Seen(seen) = &mut workload {
            seen.node_name.clone_from(node);
            seen.host_plan = facts.plans.get(node).cloned();
            let pods = facts.pods.get(node).cloned().unwrap_or_default();
            let rules = members.rules.iter().cloned();
            let of_machine = machine.metadata.labels.clone().unwrap_or_default();
            let rules = rules_of(rules, &of_machine, &members.labels_of_cluster);
            let view = DrainView { pods, rules, ..DrainView::default() };
            seen.ahead = Some(DrainAhead { view, budgets: facts.budgets.clone() });
        }
        let of_machine = machine.metadata.annotations.clone().unwrap_or_default();
        let sources = [&of_machine, &members.of_owner, &members.of_cluster];
        let policy = drain_policy(&sources, &DrainPolicy::default()).policy;
        let group = members.group_without(&other.machine_uid);
        let preflight = Preflight {
            machine,
            node,
            control_plane: members.is_control_plane,
            goal: None,
            workload: &workload,
            group: Some(&group),
            drain: Some(&policy),
            begun: Begun::No,
            now,
        };
        let name = machine.metadata.name.clone().unwrap_or_default();
        for Found { check, refusal, weight } in preflight.findings() {
            let object = refusal.object();
            let is_own = object == name || object == **node;
            let key = (check, weight, (!is_own).then_some(object));
            let first = || Refused { check, weight, refusal, machines: Vec::new() };
            found.entry(key).or_insert_with(first).machines.push(name.clone());
        }
    }
    found.into_values().collect()
}

/// A Machine of a group.
struct Member {
    machine: Machine,
    /// Its Node; empty if it has none.
    node: NodeName,
    other: Other,
    has_begun: bool,
}

/// The Machines of a group, with what the checks read of it.
struct Members {
    all: Vec<Member>,
    is_control_plane: bool,
    cluster: String,
    namespace: String,
    limits: Limits,
    slots: UpdateGroupStatus,
    of_owner: BTreeMap<String, String>,
    of_cluster: BTreeMap<String, String>,
    labels_of_cluster: BTreeMap<String, String>,
    /// The MachineDrainRules of the namespace, if they were read.
    rules: Vec<MachineDrainRule>,
}

impl Members {
    fn of(objects: &Objects, group: &GroupRef, facts: &WorkloadFacts) -> Option<Self> {
        let owner = objects.get(&group.kind, &group.namespace, &group.name)?;
        let kind = group.owner()?;
        let name = update_group_name(&group.kind, &group.name);
        let update_group = objects.get("UpdateGroup", &group.namespace, &name);
        let (pacing, slots) = update_group
            .and_then(parsed::<UpdateGroup>)
            .map(|group| (group.spec.pacing, group.status.unwrap_or_default()))
            .unwrap_or_default();
        let machines = machines_of(objects, group, kind);
        let cluster = machines.first()?.spec.cluster_name.clone();
        let of_cluster = objects.get("Cluster", &group.namespace, &cluster);
        let updates: Vec<NodeUpdate> = objects.of_kind("NodeUpdate").filter_map(parsed).collect();
        let member = |machine: Machine| {
            let machine_uid = MachineUid::of(&machine.metadata);
            let status = machine.status.as_ref();
            let node = status.and_then(|status| status.node_ref.as_ref());
            let node: NodeName = node.map(|node| &*node.name).unwrap_or_default().into();
            let newest = speaker(&updates, &machine_uid).map(NodeUpdate::phase);
            let view = facts.nodes.iter().find(|view| view.name == node).map(AsRef::as_ref);
            let view =
                MachineView { machine: &machine, node: view, newest_phase: newest, serves: None };
            let available = is_available(&view);
            let is_at_work =
                newest.is_some_and(|phase| !phase.is_final() && !phase.is_undisturbed());
            let has_begun = is_at_work || holds(&slots, &machine_uid);
            Member { machine, node, other: Other { machine_uid, available }, has_begun }
        };
        let count = i32::try_from(machines.len()).unwrap_or(i32::MAX);
        Some(Self {
            is_control_plane: kind == Owner::ControlPlane,
            limits: limits_of(owner, kind, count).paced(&pacing),
            of_owner: annotations(owner),
            of_cluster: of_cluster.map(annotations).unwrap_or_default(),
            labels_of_cluster: of_cluster.map(labels).unwrap_or_default(),
            rules: objects
                .of_kind("MachineDrainRule")
                .filter(|rule| namespace(rule) == group.namespace)
                .filter_map(parsed)
                .collect(),
            namespace: group.namespace.clone(),
            all: machines.into_iter().map(member).collect(),
            cluster,
            slots,
        })
    }

    /// The group, as it is for one of its Machines.
    fn group_without(&self, machine: &MachineUid) -> Group {
        let others = self.all.iter().map(|member| &member.other);
        let machines = others.filter(|other| other.machine_uid != *machine).cloned().collect();
        Group {
            status: self.slots.clone(),
            limits: self.limits,
            pace: Pace::default(),
            gates: None,
            others: Others::read_on_use(|| OtherMachines { machines, ..OtherMachines::default() }),
        }
    }

    /// What the checks see of the cluster, without what concerns one machine.
    fn seen(&self, objects: &Objects, facts: &WorkloadFacts, now: Timestamp) -> Seen {
        let of_cluster = |machine: &&Value| {
            namespace(machine) == self.namespace
                && text(machine, "/spec/clusterName") == self.cluster
                && label(machine, keys::CONTROL_PLANE).is_some()
        };
        let control_plane = objects.of_kind("Machine").filter(of_cluster).map(|machine| {
            let node = Some(text(machine, "/status/nodeRef/name")).filter(|node| !node.is_empty());
            ControlPlaneMember {
                machine: name(machine).to_owned(),
                node: node.map(NodeName::from),
                deleting: is_deleting(machine),
                // It only matters to workers whose goal is known.
                updating: false,
            }
        });
        Seen {
            complete_since: now,
            host_plan: None,
            reported_at: None,
            node_name: NodeName::default(),
            nodes: facts.nodes.clone(),
            static_pods: facts.static_pods.clone(),
            control_plane: control_plane.collect(),
            api_server: StatedVersion::Absent,
            drain: None,
            ahead: None,
            evictions: None,
        }
    }
}

fn machines_of(objects: &Objects, group: &GroupRef, kind: Owner) -> Vec<Machine> {
    let of = |kind: &str, name: &str| {
        let machines = objects.of_kind("Machine");
        let machines = machines.filter(|one| namespace(one) == group.namespace);
        let own = machines.filter(|one| controller(one) == Some((kind, name)));
        own.filter_map(parsed).collect::<Vec<Machine>>()
    };
    match kind {
        Owner::ControlPlane | Owner::Set => of(&group.kind, &group.name),
        Owner::Deployment => {
            let owner = (&*group.namespace, &*group.kind, &*group.name);
            let sets = controlled(objects, "MachineSet", owner);
            sets.into_iter().flat_map(|set| of("MachineSet", name(set))).collect()
        }
    }
}

/// How many machines of a group may be unavailable. Where none may be, Cluster API first creates one that stands in.
fn limits_of(owner: &Value, kind: Owner, present: i32) -> Limits {
    let replicas = owner.pointer("/spec/replicas").and_then(Value::as_i64);
    let replicas = replicas.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(present);
    match kind {
        Owner::ControlPlane => Limits::control_plane(replicas),
        Owner::Deployment => {
            let owner = parsed::<MachineDeployment>(owner);
            let max_unavailable = owner.map_or(0, |owner| owner.max_unavailable(replicas.into()));
            let max_unavailable = i32::try_from(max_unavailable).unwrap_or(i32::MAX);
            Limits { replicas, max_unavailable: max_unavailable.max(1) }
        }
        Owner::Set => Limits { replicas, max_unavailable: 1 },
    }
}
