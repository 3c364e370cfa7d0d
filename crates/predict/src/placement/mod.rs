//! Where the pods of a node could go while it is drained: a model of the scheduler's filters
//! (`docs/facts/kubernetes.md#scheduling`).
//!
//! Each node is judged for itself, with everything else in its present place. Its pods are placed in order of
//! decreasing
//! size, each on the first node by name that has room for it.

mod constraints;
mod judge;
mod quantity;
mod requests;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, PodSpec};
use kube::ResourceExt as _;

use self::{
    constraints::{Constraints, HOSTNAME, Labels, NodeTaint, Terms},
    requests::{Amounts, add, amounts, requests},
};

pub use self::judge::{Judge, Misfit};

/// The nodes to which the volumes of claims are bound, by namespace and name of the claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes(BTreeMap<(String, String), Terms>);

impl Volumes {
    /// Keeps what counts of a volume.
    pub fn add(&mut self, volume: &PersistentVolume) {
        let Some(spec) = &volume.spec else { return };
        let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        let (Some(claim), Some(required)) = (&spec.claim_ref, required) else { return };
        let claim = (claim.namespace.clone(), claim.name.clone());
        if let (Some(namespace), Some(name)) = claim {
            self.0.insert((namespace, name), Terms::of(required));
        }
    }
}

/// A node, as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Room {
    name: String,
    labels: Labels,
    taints: Vec<NodeTaint>,
    is_cordoned: bool,
    /// What its pods may request altogether.
    allocatable: Amounts,
    /// What its pods request.
    used: Amounts,
}

impl Room {
    /// A node without pods.
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref());
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            taints: taints.into_iter().flatten().filter_map(NodeTaint::of).collect(),
            is_cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            allocatable: amounts(allocatable),
            used: Amounts::new(),
        }
    }

    /// What is left of a resource.
    fn free(&self, resource: &str) -> i64 {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or_default();
        of(&self.allocatable).saturating_sub(of(&self.used))
    }
}

/// What pods with the same template have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    requests: Amounts,
    constraints: Constraints,
    unmodelled: BTreeSet<&'static str>,
}

/// A pod that could leave its node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needs {
    namespace: String,
    name: String,
    /// Index of its shape.
    shape: usize,
    has_host_path: bool,
    is_bound: bool,
    ends: bool,
}

/// The nodes and pods of a cluster, as far as placing pods depends on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    rooms: Vec<Room>,
    by_node: BTreeMap<String, usize>,
    /// Nodes by the name of their host.
    by_host: BTreeMap<String, Vec<usize>>,
    volumes: Volumes,
    shapes: Vec<Arc<Shape>>,
    known: BTreeMap<Arc<Shape>, usize>,
    pods: BTreeMap<usize, Vec<Needs>>,
}

impl Placement {
    /// A cluster of these nodes without pods.
    pub fn new(mut rooms: Vec<Room>, volumes: Volumes) -> Self {
        rooms.sort_by(|a, b| a.name.cmp(&b.name));
        let mut by_host: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, room) in rooms.iter().enumerate() {
            let host = room.labels.get(HOSTNAME).filter(|host| **host != room.name);
            for name in [Some(&room.name), host].into_iter().flatten() {
                by_host.entry(name.clone()).or_default().push(index);
            }
        }
        let by_node = rooms.iter().enumerate().map(|(index, room)| (room.name.clone(), index));
        Self { by_node: by_node.collect(), by_host, rooms, volumes, ..Self::default() }
    }

    /// Adds a pod that has not ended to its node; `may_leave` if a drain may evict it.
    pub fn add(&mut self, pod: &Pod, may_leave: bool) {
        let Some(spec) = &pod.spec else { return };
        let at = spec.node_name.as_ref().and_then(|node| self.by_node.get(node)).copied();
        let Some((at, room)) = at.and_then(|at| Some((at, self.rooms.get_mut(at)?))) else {
            return;
        };
        let requests = requests(spec);
        add(&mut room.used, &requests);
        if !may_leave {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let volumes: Vec<Terms> = claims(pod, spec)
            .filter_map(|claim| self.volumes.0.get(&(namespace.clone(), claim)).cloned())
            .collect();
        let needs = Needs {
            namespace,
            name: pod.name_any(),
            has_host_path: spec.volumes.iter().flatten().any(|volume| volume.host_path.is_some()),
            is_bound: !volumes.is_empty(),
            ends: spec.restart_policy.as_deref().is_some_and(|policy| policy != "Always"),
            shape: self.shape(Shape {
                requests,
                constraints: Constraints::of(spec, volumes),
                unmodelled: unmodelled(spec),
            }),
        };
        self.pods.entry(at).or_default().push(needs);
    }

    /// The index of a shape: many pods share one.
    fn shape(&mut self, shape: Shape) -> usize {
        if let Some(index) = self.known.get(&shape) {
            return *index;
        }
        let (shape, index) = (Arc::new(shape), self.shapes.len());
        self.shapes.push(Arc::clone(&shape));
        self.known.insert(shape, index);
        index
    }

    fn needs(&self, node: &str, namespace: &str, name: &str) -> Option<&Needs> {
        let pods = self.pods.get(self.by_node.get(node)?)?;
        pods.iter().find(|needs| needs.name == name && needs.namespace == namespace)
    }

    /// Whether a pod uses a directory of its node.
    pub fn has_host_path(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.needs(node, namespace, name).is_some_and(|needs| needs.has_host_path)
    }

    /// Whether the containers of a pod may end by themselves.
    pub fn ends(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.needs(node, namespace, name).is_some_and(|needs| needs.ends)
    }

    /// What of the constraints of a pod is not modelled.
    pub fn unmodelled(&self, node: &str, namespace: &str, name: &str) -> BTreeSet<&'static str> {
        let shape = self.needs(node, namespace, name).and_then(|one| self.shapes.get(one.shape));
        shape.map(|shape| shape.unmodelled.clone()).unwrap_or_default()
    }
}

/// The names of a pod's claims.
fn claims<'a>(pod: &'a Pod, spec: &'a PodSpec) -> impl Iterator<Item = String> + use<'a> {
    spec.volumes.iter().flatten().filter_map(|volume| {
        match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            // Kubernetes creates the claim under this name.
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        }
    })
}

/// What the scheduler considers of a pod and this model does not.
fn unmodelled(spec: &PodSpec) -> BTreeSet<&'static str> {
    let affinity = spec.affinity.as_ref();
    let near = affinity.and_then(|all| all.pod_affinity.as_ref());
    let near =
        near.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let apart = affinity.and_then(|all| all.pod_anti_affinity.as_ref());
    let apart =
        apart.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let spread = spec.topology_spread_constraints.iter().flatten();
    let ports = spec.containers.iter().flat_map(|one| one.ports.iter().flatten());
    [
        (near.is_some_and(|terms| !terms.is_empty()), "pod affinity"),
        (apart.is_some_and(|terms| !terms.is_empty()), "pod anti-affinity"),
        (
            spread.into_iter().any(|one| one.when_unsatisfiable == "DoNotSchedule"),
            "topology spread constraints",
        ),
        (ports.into_iter().any(|port| port.host_port.is_some_and(|port| port > 0)), "host ports"),
        (spec.resource_claims.iter().flatten().next().is_some(), "resource claims"),
    ]
    .into_iter()
    .filter_map(|(is_used, what)| is_used.then_some(what))
    .collect()
}
