//! The objects of three machines in one group.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{HostPlan, HostPlanSpec, NodeUpdate, Phase, UpdateGroupStatus},
};

use super::super::{
    model::Kind,
    world::{FROM, One, api_server, machine, member, node, report, update},
};
use crate::{
    group::{Limits, Other},
    node::*,
};

pub(super) const MACHINES: usize = 3;

/// The kind of machines, which are all in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fleet {
    Workers,
    ControlPlane,
}

impl Fleet {
    /// API group and kind of the owner.
    pub(super) fn owner(self) -> (&'static str, &'static str) {
        match self {
            Self::Workers => ("cluster.x-k8s.io", "MachineDeployment"),
            Self::ControlPlane => ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
        }
    }

    pub(super) fn limits(self, max_unavailable: i32) -> Limits {
        match self {
            Self::Workers => Limits { replicas: 3, max_unavailable },
            Self::ControlPlane => Limits::control_plane(3),
        }
    }

    fn machine(self, name: &str) -> Machine {
        let mut machine = machine(name);
        let metadata = &mut machine.metadata;
        metadata.annotations =
            Some(BTreeMap::from([(keys::UPDATE_IN_PROGRESS.to_owned(), String::new())]));
        metadata.owner_references = Some(vec![OwnerReference {
            kind: self.owner().1.to_owned(),
            name: "owner".to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        if self == Self::ControlPlane {
            metadata.labels =
                Some(BTreeMap::from([(keys::CONTROL_PLANE.to_owned(), String::new())]));
        }
        machine
    }
}

/// Every object, at one version each. A write replaces the `Arc`, so that pointers serve as
/// resourceVersions.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) updates: Vec<Arc<NodeUpdate>>,
    pub(super) machines: Vec<Arc<Machine>>,
    pub(super) plans: Vec<Arc<HostPlan>>,
    pub(super) nodes: Vec<Arc<NodeView>>,
    pub(super) static_pods: Vec<StaticPod>,
    pub(super) group: Arc<UpdateGroupStatus>,
    pub(super) limits: Limits,
    pub(super) paused: bool,
}

impl Objects {
    pub(super) fn new(fleet: Fleet, max_unavailable: i32) -> Self {
        let names: Vec<String> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
        let plan = |name: &String| {
            let mut plan = HostPlan::new(name, HostPlanSpec::default());
            plan.status = Some(report(0));
            Arc::new(plan)
        };
        let members = if fleet == Fleet::ControlPlane { &names[..] } else { &[] };
        Self {
            updates: names.iter().map(|name| Arc::new(update(name, 1))).collect(),
            machines: names.iter().map(|name| Arc::new(fleet.machine(name))).collect(),
            plans: names.iter().map(plan).collect(),
            nodes: names.iter().map(|name| Arc::new(node(name))).collect(),
            static_pods: members.iter().map(|name| api_server(name, FROM)).collect(),
            group: Arc::default(),
            limits: fleet.limits(max_unavailable),
            paused: false,
        }
    }

    /// Copies all objects of a kind, as a list or the events of a watch do.
    pub(super) fn copy(&mut self, kind: Kind, from: &Self) {
        match kind {
            Kind::NodeUpdate => self.updates.clone_from(&from.updates),
            Kind::UpdateGroup => self.group.clone_from(&from.group),
            Kind::Machine => self.machines.clone_from(&from.machines),
            Kind::HostPlan => self.plans.clone_from(&from.plans),
            Kind::Node => self.nodes.clone_from(&from.nodes),
            Kind::MirrorPod => self.static_pods.clone_from(&from.static_pods),
            Kind::Owner => self.limits = from.limits,
            Kind::Cluster => self.paused = from.paused,
        }
    }

    /// Copies the object of one machine, as a controller does with the response to its own write.
    pub(super) fn copy_one(&mut self, kind: Kind, who: usize, from: &Self) {
        match kind {
            Kind::NodeUpdate => self.updates[who].clone_from(&from.updates[who]),
            Kind::Machine => self.machines[who].clone_from(&from.machines[who]),
            Kind::HostPlan => self.plans[who].clone_from(&from.plans[who]),
            Kind::Node => self.nodes[who].clone_from(&from.nodes[who]),
            Kind::UpdateGroup | Kind::MirrorPod | Kind::Owner | Kind::Cluster => {
                self.copy(kind, from);
            }
        }
    }

    /// Whether the resourceVersion of a write's object is the current one.
    pub(super) fn is_current(&self, kind: Kind, who: usize, now: &Self) -> bool {
        match kind {
            Kind::NodeUpdate => Arc::ptr_eq(&self.updates[who], &now.updates[who]),
            Kind::UpdateGroup => Arc::ptr_eq(&self.group, &now.group),
            Kind::Machine => Arc::ptr_eq(&self.machines[who], &now.machines[who]),
            Kind::HostPlan => Arc::ptr_eq(&self.plans[who], &now.plans[who]),
            Kind::Node => Arc::ptr_eq(&self.nodes[who], &now.nodes[who]),
            Kind::MirrorPod | Kind::Owner | Kind::Cluster => {
                unreachable!("Refit does not write {kind:?}")
            }
        }
    }

    /// The objects as the input of a decision about one machine.
    pub(super) fn environment(&self, who: usize) -> One {
        let plan = (*self.plans[who]).clone();
        One {
            paused: self.paused.then(|| "Cluster edge-1".to_owned()),
            group: Some((*self.group).clone()),
            limits: self.limits,
            others: (0..MACHINES).filter(|n| *n != who).map(|n| self.other(n)).collect(),
            nodes: self.nodes.iter().map(|node| (**node).clone()).collect(),
            static_pods: self.static_pods.clone(),
            control_plane: self.members(),
            ..One::of((*self.updates[who]).clone(), (*self.machines[who]).clone(), plan)
        }
    }

    /// Replaces the object that a write to `one` has changed.
    pub(super) fn store(&mut self, kind: Kind, who: usize, one: One) {
        match kind {
            Kind::NodeUpdate => self.updates[who] = Arc::new(one.update),
            Kind::UpdateGroup => self.group = Arc::new(one.group.unwrap()),
            Kind::Machine => self.machines[who] = Arc::new(one.machine.unwrap()),
            Kind::HostPlan => self.plans[who] = Arc::new(one.plan.unwrap()),
            Kind::Node => self.nodes[who] = Arc::new(one.nodes[who].clone()),
            Kind::MirrorPod => self.static_pods = one.static_pods,
            Kind::Owner | Kind::Cluster => unreachable!("no decision writes a {kind:?}"),
        }
    }

    fn other(&self, n: usize) -> Other {
        let view = MachineView {
            machine: &self.machines[n],
            node: Some(&self.nodes[n]),
            newest_phase: Some(phase(&self.updates[n])),
        };
        Other { machine_uid: format!("uid-m-{n}").into(), available: is_available(&view) }
    }

    fn members(&self) -> Vec<ControlPlaneMember> {
        let members = self.machines.iter().filter(|machine| machine.metadata.labels.is_some());
        let member = |machine: &Arc<Machine>| ControlPlaneMember {
            deleting: machine.metadata.deletion_timestamp.is_some(),
            ..member(machine.metadata.name.as_ref().unwrap())
        };
        members.map(member).collect()
    }
}

pub(super) fn phase(update: &NodeUpdate) -> Phase {
    update.status.as_ref().map(|status| status.phase).unwrap_or_default()
}
