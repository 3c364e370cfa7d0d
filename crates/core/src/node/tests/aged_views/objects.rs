//! The objects of three machines in one group.
//!
//! Each write replaces the `Arc` of its object, so that pointers serve as resourceVersions.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{
        Disruption, HostPlan, HostPlanSpec, NodeUpdate, Phase, ProviderObject, ProviderPart,
        UpdateGroupStatus, UpdatePart, UpdaterAction, UpdaterTemplate,
    },
};

use super::super::{
    model::{Kind, OTHER_PROVIDER},
    world::{FROM, One, api_server, machine, member, node, report, update},
};
use crate::{
    group::{Limits, Other, Pace},
    node::*,
};

pub(super) const MACHINES: usize = 3;
/// The Updaters of the providers.
const PROVIDERS: [&str; 2] = ["firmware", OTHER_PROVIDER];

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

/// The updaters that work through gates in each update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Team {
    Agent,
    /// A provider that brings the version, without an agent.
    Provider,
    AgentAndProvider,
    AgentAndTwoProviders,
}

impl Team {
    /// The kinds that views of these worlds are made of.
    pub(super) fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Provider => self != Self::Agent,
            Kind::OtherProvider => self == Self::AgentAndTwoProviders,
            Kind::HostPlan => self != Self::Provider,
            Kind::NodeUpdate
            | Kind::UpdateGroup
            | Kind::Machine
            | Kind::Node
            | Kind::MirrorPod
            | Kind::Owner
            | Kind::Cluster => true,
        }
    }

    /// Number of its updaters.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Agent | Self::Provider => 1,
            Self::AgentAndProvider => 2,
            Self::AgentAndTwoProviders => 3,
        }
    }

    /// The parts of an update; `None` for the agent alone.
    fn parts(self) -> Option<Vec<UpdatePart>> {
        let agent = (self != Self::Provider).then(UpdatePart::kubeadm);
        let first = provider(PROVIDERS[0], self == Self::Provider);
        let second = (self == Self::AgentAndTwoProviders).then(|| provider(OTHER_PROVIDER, false));
        (self != Self::Agent).then(|| agent.into_iter().chain([first]).chain(second).collect())
    }
}

/// The part of a provider. Its time is short, so that some are too late.
fn provider(updater: &str, brings_version: bool) -> UpdatePart {
    UpdatePart {
        updater: updater.into(),
        action: UpdaterAction::Update,
        disruption: Disruption::Drain,
        timeout_seconds: Some(100),
        host: None,
        template: Some(ProviderPart {
            template: UpdaterTemplate {
                api_version: "update.example/v1".into(),
                kind: "ThingTemplate".into(),
                name: "thing".into(),
            },
            brings_version,
        }),
    }
}

/// Every object, at one version each.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) updates: Vec<Arc<NodeUpdate>>,
    pub(super) machines: Vec<Arc<Machine>>,
    pub(super) plans: Vec<Arc<HostPlan>>,
    /// Those of the first provider and of the second one.
    providers: [Vec<Option<Arc<ProviderObject>>>; 2],
    pub(super) nodes: Vec<Arc<NodeView>>,
    pub(super) static_pods: Vec<StaticPod>,
    pub(super) group: Arc<UpdateGroupStatus>,
    pub(super) limits: Limits,
    pub(super) paused: bool,
}

impl Objects {
    pub(super) fn new(fleet: Fleet, team: Team, max_unavailable: i32) -> Self {
        let names: Vec<String> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
        let plan = |name: &String| {
            let mut plan = HostPlan::new(name, HostPlanSpec::default());
            plan.status = Some(report(0));
            Arc::new(plan)
        };
        let members = if fleet == Fleet::ControlPlane { &names[..] } else { &[] };
        Self {
            updates: names.iter().map(|name| Arc::new(team_update(team, name))).collect(),
            machines: names.iter().map(|name| Arc::new(fleet.machine(name))).collect(),
            plans: names.iter().map(plan).collect(),
            providers: [vec![None; MACHINES], vec![None; MACHINES]],
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
            Kind::Provider => self.providers[0].clone_from(&from.providers[0]),
            Kind::OtherProvider => self.providers[1].clone_from(&from.providers[1]),
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
            Kind::Provider => self.providers[0][who].clone_from(&from.providers[0][who]),
            Kind::OtherProvider => self.providers[1][who].clone_from(&from.providers[1][who]),
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
            Kind::Provider | Kind::OtherProvider => {
                match (self.provider(kind, who), now.provider(kind, who)) {
                    (None, None) => true,
                    (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                    (None, Some(_)) | (Some(_), None) => false,
                }
            }
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
            pace: Pace::default(),
            others: (0..MACHINES).filter(|n| *n != who).map(|n| self.other(n)).collect(),
            nodes: self.nodes.iter().map(|node| (**node).clone()).collect(),
            static_pods: self.static_pods.clone(),
            control_plane: self.members(),
            providers: self.providers_of(who).map(|object| (**object).clone()).collect(),
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
            Kind::Provider | Kind::OtherProvider => {
                let n = usize::from(kind == Kind::OtherProvider);
                let is_own = |object: &ProviderObject| object.updater == PROVIDERS[n];
                let found = one.providers.into_iter().find(is_own);
                self.providers[n][who] = found.map(Arc::new);
            }
            Kind::Node => self.nodes[who] = Arc::new(one.nodes[who].clone()),
            Kind::MirrorPod => self.static_pods = one.static_pods,
            Kind::Owner | Kind::Cluster => unreachable!("no decision writes a {kind:?}"),
        }
    }

    /// The object of a provider for a machine, once it is made.
    pub(super) fn provider(&self, kind: Kind, who: usize) -> Option<&Arc<ProviderObject>> {
        self.providers[usize::from(kind == Kind::OtherProvider)][who].as_ref()
    }

    pub(super) fn providers_of(&self, who: usize) -> impl Iterator<Item = &Arc<ProviderObject>> {
        self.providers.iter().filter_map(move |all| all[who].as_ref())
    }

    fn other(&self, n: usize) -> Other {
        let view = MachineView {
            machine: &self.machines[n],
            node: Some(&self.nodes[n]),
            newest_phase: Some(phase(&self.updates[n])),
            serves: None,
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

/// The update of a machine by all of a team.
fn team_update(team: Team, name: &str) -> NodeUpdate {
    let mut update = update(name, 1);
    update.spec.parts = team.parts();
    update
}
