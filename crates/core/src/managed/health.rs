//! Whether a Cluster is fit for an upgrade, and whether it is well after it.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::{
    conditions,
    refit::{ClusterCheck, NodeName},
};
use strum::VariantArray as _;

use crate::{
    gates::ClosedGate,
    node::{NodeView, StaticPod, member_problem},
};

/// Reason of the condition Healthy while only gates are closed.
const GATE_CLOSED: &str = "GateClosed";
/// How many objects a message names.
const NAMED: usize = 5;

/// What is known of a Cluster.
#[derive(Clone, Debug, Default)]
pub struct HealthSeen {
    /// Objects of Cluster API with their conditions: the Cluster and the owners of its Machines. By kind and name.
    pub objects: Vec<(String, Vec<Condition>)>,
    /// Its Machines.
    pub machines: Vec<MachineSeen>,
    /// Its Nodes.
    pub nodes: Vec<Arc<NodeView>>,
    /// The mirror pods of its control plane.
    pub static_pods: Vec<StaticPod>,
}

/// A Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSeen {
    /// Its name.
    pub name: String,
    /// Its Node, if it has one.
    pub node: Option<NodeName>,
    /// Whether it is of the control plane.
    pub is_control_plane: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it holds a slot of its group: it is being updated, or its update has failed.
    pub has_slot: bool,
}

impl HealthSeen {
    /// What is known without the machines that hold a slot of their group.
    #[must_use]
    pub fn without_updated(mut self) -> Self {
        let updated = |machine: &MachineSeen| machine.has_slot;
        let nodes: BTreeSet<NodeName> = self
            .machines
            .iter()
            .filter(|one| updated(one))
            .filter_map(|one| one.node.clone())
            .collect();
        self.machines.retain(|machine| !updated(machine));
        self.nodes.retain(|node| !nodes.contains(&node.name));
        self.static_pods.retain(|pod| !nodes.contains(&pod.node));
        self
    }
}

/// Whether a Cluster is healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It cannot be known, for this reason.
    Unknown(String),
    /// What the checks have found, in their order; nothing for a healthy one.
    Known(Vec<Problem>),
}

/// What does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A check, and what it has found, with the names of the objects.
    Check(ClusterCheck, String),
    /// Gates of the Cluster's groups.
    Gates(Vec<ClosedGate>),
}

impl Health {
    /// Runs all checks but the ignored ones.
    pub fn of(seen: &HealthSeen, ignored: &[ClusterCheck]) -> Self {
        let checks = ClusterCheck::VARIANTS.iter().filter(|check| !ignored.contains(check));
        Self::by(&checks.copied().collect::<Vec<_>>(), seen)
    }

    /// Runs these checks.
    pub fn by(checks: &[ClusterCheck], seen: &HealthSeen) -> Self {
        let found = checks.iter().filter_map(|check| {
            let all = found_by(*check, seen);
            let rest = all.len().saturating_sub(NAMED);
            let mut message = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
            if rest > 0 {
                message = format!("{message}; and {rest} more");
            }
            (!all.is_empty()).then_some(Problem::Check(*check, message))
        });
        Self::Known(found.collect())
    }

    /// The same with the gates of the Cluster's groups that are closed. A gate that several groups have is named once.
    #[must_use]
    pub fn with_gates(mut self, mut closed: Vec<ClosedGate>) -> Self {
        closed.sort();
        closed.dedup();
        match &mut self {
            Self::Known(problems) if !closed.is_empty() => problems.push(Problem::Gates(closed)),
            Self::Known(_) | Self::Unknown(_) => {}
        }
        self
    }

    /// Why an upgrade waits for the Cluster; `None` if it does not.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Unknown(why) => Some(why.clone()),
            Self::Known(problems) if problems.is_empty() => None,
            Self::Known(problems) => {
                let all = problems.iter().map(|problem| match problem {
                    Problem::Check(check, message) => format!("{check}: {message}"),
                    Problem::Gates(closed) => ClosedGate::sentence(closed),
                });
                Some(all.collect::<Vec<_>>().join(". "))
            }
        }
    }

    /// Whether gates are closed.
    pub fn has_closed_gates(&self) -> bool {
        match self {
            Self::Unknown(_) => false,
            Self::Known(problems) => {
                problems.iter().any(|problem| matches!(problem, Problem::Gates(_)))
            }
        }
    }

    /// Status, reason and message of the condition Healthy.
    pub fn condition(&self) -> (&'static str, &'static str, String) {
        let message = self.problem().unwrap_or_else(|| "all checks of the Cluster pass".to_owned());
        match self {
            Self::Unknown(_) => ("Unknown", "Unknown", message),
            Self::Known(problems) => match problems.first() {
                None => ("True", "Healthy", message),
                Some(Problem::Check(check, _)) => ("False", check.into(), message),
                Some(Problem::Gates(_)) => ("False", GATE_CLOSED, message),
            },
        }
    }
}

/// What a check has found: one text per object.
fn found_by(check: ClusterCheck, seen: &HealthSeen) -> Vec<String> {
    match check {
        ClusterCheck::ClusterApi => {
            let unavailable = seen.objects.iter().filter_map(|(object, shown)| {
                let available = conditions::get(shown, conditions::AVAILABLE)?;
                (available.status == "False").then(|| {
                    // Cluster API lists what is not available, one per line.
                    let why = available.message.lines().take(NAMED).map(str::trim);
                    let why = why.collect::<Vec<_>>().join(" ");
                    format!("{object} is not Available ({}) {why}", available.reason)
                })
            });
            unavailable.map(|text| text.trim_end().to_owned()).collect()
        }
        ClusterCheck::ControlPlane => {
            let mut pods = seen.static_pods.clone();
            pods.retain(|pod| pod.component != ETCD);
            let members = seen.machines.iter().filter(|machine| machine.is_control_plane);
            let problems = members.filter_map(|machine| {
                let why = match &machine.node {
                    _ if machine.deleting => Some("it is being deleted".to_owned()),
                    None => Some("it has no Node".to_owned()),
                    Some(node) => member_problem(&seen.nodes, &pods, node),
                };
                why.map(|why| format!("Machine {}: {why}", machine.name))
            });
            problems.collect()
        }
        ClusterCheck::Etcd => etcd(seen),
        ClusterCheck::Nodes => {
            let workers = seen.machines.iter().filter(|machine| !machine.deleting);
            let problems = workers.filter_map(|machine| {
                let why = node_problem(seen, machine)?;
                Some(format!("Machine {}: {why}", machine.name))
            });
            problems.collect()
        }
        ClusterCheck::Cordons => {
            let cordoned =
                seen.nodes.iter().filter(|node| node.unschedulable && node.cordoned_by.is_none());
            cordoned.map(|node| format!("Node {} is cordoned", &*node.name)).collect()
        }
    }
}

const ETCD: &str = "etcd";

/// The members of etcd that are not Ready, and the control plane Nodes without one; nothing for an etcd outside of the
/// Cluster.
fn etcd(seen: &HealthSeen) -> Vec<String> {
    let members: Vec<&StaticPod> =
        seen.static_pods.iter().filter(|pod| pod.component == ETCD).collect();
    if members.is_empty() {
        return Vec::new();
    }
    let not_ready = members.iter().filter(|pod| !pod.ready);
    let mut found: Vec<String> =
        not_ready.map(|pod| format!("etcd on Node {} is not Ready", &*pod.node)).collect();
    let nodes = seen.machines.iter().filter(|machine| machine.is_control_plane);
    let nodes = nodes.filter_map(|machine| machine.node.as_ref());
    let lacking = nodes.filter(|node| !members.iter().any(|pod| pod.node == **node));
    found.extend(lacking.map(|node| format!("etcd has no member on Node {}", &**node)));
    found
}

/// Why a Machine's Node cannot take Pods; `None` if it can.
pub fn node_problem(seen: &HealthSeen, machine: &MachineSeen) -> Option<String> {
    let Some(name) = &machine.node else { return Some("it has no Node".to_owned()) };
    let Some(node) = seen.nodes.iter().find(|node| node.name == *name) else {
        return Some("its Node does not exist".to_owned());
    };
    if !node.ready {
        return Some("its Node is not Ready".to_owned());
    }
    node.pressure.as_ref().map(|pressure| format!("its Node has {pressure}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::check_cluster;

    fn node(name: &str) -> NodeView {
        NodeView { name: name.into(), ready: true, ..NodeView::default() }
    }

    fn pod(node: &str, component: &str, ready: bool) -> StaticPod {
        StaticPod { node: node.into(), component: component.into(), ready, ..StaticPod::default() }
    }

    fn machine(name: &str, is_control_plane: bool) -> MachineSeen {
        let node = Some(format!("node-{name}").as_str().into());
        MachineSeen { name: name.into(), node, is_control_plane, deleting: false, has_slot: false }
    }

    fn healthy() -> HealthSeen {
        let nodes = ["node-cp", "node-w"].map(|name| Arc::new(node(name)));
        HealthSeen {
            objects: vec![("Cluster c".into(), Vec::new())],
            machines: vec![machine("cp", true), machine("w", false)],
            nodes: nodes.to_vec(),
            static_pods: vec![pod("node-cp", "kube-apiserver", true), pod("node-cp", "etcd", true)],
        }
    }

    fn after(change: impl FnOnce(&mut HealthSeen)) -> Option<String> {
        let mut seen = healthy();
        change(&mut seen);
        Health::of(&seen, &[]).problem()
    }

    fn change_node(seen: &mut HealthSeen, at: usize, change: impl FnOnce(&mut NodeView)) {
        let mut node = (*seen.nodes[at]).clone();
        change(&mut node);
        seen.nodes[at] = Arc::new(node);
    }

    #[test]
    fn a_healthy_cluster_has_no_problem() {
        assert_eq!(after(|_| {}), None);
        assert_eq!(after(|seen| seen.static_pods.remove(1).ready = false), None, "an outer etcd");
    }

    type Change = dyn Fn(&mut HealthSeen);

    #[test]
    fn each_check_of_the_health_names_its_object() {
        let unavailable = |seen: &mut HealthSeen| {
            conditions::set(
                &mut seen.objects[0].1,
                jiff::Timestamp::UNIX_EPOCH,
                None,
                ("Available", "False", "NotAvailable", "* no workers\n* else"),
            );
        };
        let cases: [(&str, &Change); 8] = [
            (
                "ClusterApi: Cluster c is not Available (NotAvailable) * no workers * else",
                &unavailable,
            ),
            ("ControlPlane: Machine cp: it is being deleted", &|seen| {
                seen.machines[0].deleting = true;
            }),
            ("ControlPlane: Machine cp: kube-apiserver is not Ready", &|seen| {
                seen.static_pods[0].ready = false;
            }),
            ("Etcd: etcd on Node node-cp is not Ready", &|seen| seen.static_pods[1].ready = false),
            ("Etcd: etcd has no member on Node node-cp", &|seen| {
                seen.static_pods[1].node = "other".into();
            }),
            ("Nodes: Machine w: its Node is not Ready", &|seen| {
                change_node(seen, 1, |node| node.ready = false);
            }),
            ("Nodes: Machine w: it has no Node", &|seen| seen.machines[1].node = None),
            ("Cordons: Node node-w is cordoned", &|seen| {
                change_node(seen, 1, |node| node.unschedulable = true);
            }),
        ];
        for (want, change) in cases {
            assert_eq!(after(|seen| change(seen)).as_deref(), Some(want));
        }
    }

    #[test]
    fn health_ignores_what_it_is_to_ignore_and_a_cordon_of_refit() {
        let mut seen = healthy();
        change_node(&mut seen, 1, |node| node.ready = false);
        assert_eq!(Health::of(&seen, &[ClusterCheck::Nodes]), Health::Known(Vec::new()));
        let ours = |node: &mut NodeView| {
            node.unschedulable = true;
            node.cordoned_by = Some("w-1".into());
        };
        assert_eq!(after(|seen| change_node(seen, 1, ours)), None);
    }

    #[test]
    fn a_cluster_whose_gates_are_closed_is_not_healthy() {
        let gate = |why: &str| ClosedGate { name: "alerts".to_owned(), why: why.to_owned() };
        let closed = vec![gate("B fires"), gate("A fires"), gate("B fires")];
        let health = Health::of(&healthy(), &[]).with_gates(closed.clone());
        let message = "gate alerts is closed: A fires; gate alerts is closed: B fires".to_owned();
        assert_eq!(health.condition(), ("False", "GateClosed", message));
        assert_eq!(Health::of(&healthy(), &[]).with_gates(Vec::new()).problem(), None);
        let unknown = Health::Unknown("silent".to_owned());
        assert_eq!(unknown.clone().with_gates(closed), unknown);
    }

    #[test]
    fn the_machines_that_are_updated_do_not_count_for_the_gates_of_others() {
        let mut seen = healthy();
        seen.machines[1].has_slot = true;
        change_node(&mut seen, 1, |node| node.ready = false);
        assert!(Health::of(&seen, &[]).problem().is_some());
        assert_eq!(Health::of(&seen.clone().without_updated(), &[]).problem(), None);
        let checks = [ClusterCheck::Etcd, ClusterCheck::Nodes];
        assert!(check_cluster(&checks, seen.clone()).is_ok());
        seen.static_pods[1].ready = false;
        let etcd = "Etcd: etcd on Node node-cp is not Ready".to_owned();
        assert_eq!(check_cluster(&checks, seen), Err(etcd));
    }

    #[test]
    fn health_names_only_some_of_many() {
        let many = |seen: &mut HealthSeen| {
            seen.machines = (0..9).map(|number| machine(&number.to_string(), false)).collect();
        };
        let message = after(many).unwrap();
        assert!(message.ends_with("; and 4 more"), "{message}");
    }
}
