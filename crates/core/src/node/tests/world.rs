//! One machine with its environment, as stored objects: a decision's write is applied to them
//! (`applied`), its host works on them (`host`), and no other state is kept.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::{Machine, MachineSpec, MachineStatus, NodeRef};
use refit_kinds::{
    canonical::RefreshStatus,
    conditions, keys,
    refit::{
        Gate, Goal, HostFacts, HostPlan, HostPlanSpec, HostPlanStatus, MachineRef, NodeUpdate,
        NodeUpdateSpec, Origin, Phase, PlanSettings, ProviderObject, Stage, StepType, Until,
        UpdateGroupStatus,
    },
    version::StatedVersion,
};

use crate::{
    gates::{ClosedGate, GatesRead},
    group::{Limits, Other, Pace},
    node::*,
    report::Refusal,
};

pub(super) const FROM: &str = "v1.34.2";
pub(super) const GOAL: &str = "v1.35.0";

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn update(machine: &str, ordinal: u32) -> NodeUpdate {
    let goal = Goal::of_version(GOAL.parse().unwrap());
    let name = refit_kinds::refit::node_update_name(machine, ordinal);
    let spec = NodeUpdateSpec {
        stage: Stage::Ongoing,
        until: Until::Disrupt,
        machine_ref: MachineRef { name: machine.into(), uid: format!("uid-{machine}").into() },
        origin: Origin::Hook,
        goal_hash: goal.hash(),
        parts: None,
        bundle: None,
        goal,
    };
    let mut update = NodeUpdate::new(&name, spec);
    update.metadata.uid = Some(format!("uid-{name}"));
    update.metadata.generation = Some(1);
    update
}

pub(super) fn machine(name: &str) -> Machine {
    let mut machine = Machine::new(
        name,
        MachineSpec {
            cluster_name: "edge-1".into(),
            version: GOAL.into(),
            ..MachineSpec::default()
        },
    );
    machine.metadata.uid = Some(format!("uid-{name}"));
    machine.metadata.annotations = Some(BTreeMap::new());
    machine.status = Some(MachineStatus {
        node_ref: Some(NodeRef { name: name.into() }),
        ..MachineStatus::default()
    });
    machine
}

pub(super) fn node(name: &str) -> NodeView {
    NodeView {
        name: name.into(),
        ready: true,
        heartbeat: Some(at(0)),
        kubelet_version: FROM.into(),
        boot_id: "boot-1".into(),
        ..NodeView::default()
    }
}

pub(super) fn report(second: i64) -> HostPlanStatus {
    HostPlanStatus {
        agent_version: "0.1.0".into(),
        capabilities: vec![
            StepType::Preflight,
            StepType::Stage,
            StepType::Snapshot,
            StepType::KubeadmInstall,
            StepType::KubeadmUpgrade,
            StepType::KubeletInstall,
            StepType::KubeletRestart,
            StepType::Reboot,
            StepType::Verify,
        ],
        facts: HostFacts {
            kubelet_version: FROM.parse().ok(),
            boot_id: "boot-1".into(),
            os_image: "os-1".into(),
            ..HostFacts::default()
        },
        reported_at: Some(Time(at(second))),
        ..HostPlanStatus::default()
    }
}

pub(super) fn api_server(node: &str, version: &str) -> StaticPod {
    StaticPod {
        node: node.into(),
        component: "kube-apiserver".into(),
        version: ImageVersion::of_tag(version),
        ready: true,
    }
}

pub(super) fn member(name: &str) -> ControlPlaneMember {
    ControlPlaneMember {
        machine: name.into(),
        node: Some(name.into()),
        deleting: false,
        updating: false,
    }
}

pub(super) fn pod(name: &str) -> PodView {
    PodView {
        pod: PodRef { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}") },
        ..PodView::default()
    }
}

/// A NodeUpdate and its Machine without any environment.
pub(super) fn snapshot(update: &NodeUpdate, machine: Option<&Machine>) -> Snapshot {
    Snapshot {
        update: Arc::new(update.clone()),
        siblings: Vec::new(),
        machine: machine.cloned().map(Arc::new),
        paused: None,
        replacer: None,
        unguarded: false,
        drain: DrainChoice::default(),
        settings: PlanSettings::default(),
        settings_refused: None,
        configuration: ConfigurationValues::Unread,
        updater_refused: None,
        reboot: Reboot::default(),
        owner_version: StatedVersion::Absent,
        group: GroupState::Missing,
        workload: Workload::NotSynced,
        report_stale_after: SignedDuration::from_mins(15),
        host_lost_after: None,
        providers: Providers::Known(Vec::new()),
        refused: None,
    }
}

/// The environment of one NodeUpdate: `m-0-1` of Machine `m-0`, unless a test replaces it.
#[derive(Clone, Debug)]
pub(super) struct One {
    pub(super) now: i64,
    pub(super) update: NodeUpdate,
    pub(super) siblings: Vec<NodeUpdate>,
    pub(super) machine: Option<Machine>,
    pub(super) paused: Option<String>,
    pub(super) replacer: Option<Replacer>,
    pub(super) owner_version: StatedVersion,
    pub(super) settings: PlanSettings,
    pub(super) settings_refused: Option<Refusal>,
    pub(super) configuration: ConfigurationValues,
    pub(super) reboot: Reboot,
    pub(super) group: Option<UpdateGroupStatus>,
    pub(super) limits: Limits,
    pub(super) pace: Pace,
    /// The gates of its group that are closed when they are checked.
    pub(super) closed_gates: Vec<ClosedGate>,
    pub(super) others: Vec<Other>,
    pub(super) others_run: Vec<StatedVersion>,
    pub(super) leaving: Vec<Leaving>,
    pub(super) last_first_passed: Option<bool>,
    pub(super) reachable: bool,
    /// Since when the watches have been complete.
    pub(super) complete_since: i64,
    pub(super) host_lost_after: Option<SignedDuration>,
    pub(super) plan: Option<HostPlan>,
    pub(super) nodes: Vec<NodeView>,
    pub(super) static_pods: Vec<StaticPod>,
    pub(super) control_plane: Vec<ControlPlaneMember>,
    /// The version of a control plane without Machines.
    pub(super) api_server: StatedVersion,
    pub(super) pods: Vec<PodView>,
    pub(super) budgets: Vec<BudgetView>,
    /// Other input of the drain; `pods` replaces its own.
    pub(super) around: DrainView,
    pub(super) drain: DrainChoice,
    pub(super) refusals: Vec<EvictionRefusal>,
    /// The request that the API server has just rejected.
    pub(super) refused: Option<crate::report::Refusal>,
    /// The objects of providers.
    pub(super) providers: Vec<ProviderObject>,
    /// Whether Updaters can be called.
    pub(super) callable: Result<(), String>,
    /// What Updaters answer, and whether the objects show it; `None` if nothing checks that.
    pub(super) answer: Called,
    pub(super) shows: Option<Result<(), String>>,
    /// How snapd's change stands at each look of k8sd, in order; then it is done.
    pub(super) changes: VecDeque<RefreshStatus>,
    /// How k8sd's attempts to issue certificates end, in order; then they succeed.
    pub(super) issued: VecDeque<Result<Timestamp, CertificatesFailure>>,
    /// The writes in order, as words for tests.
    pub(super) log: Vec<String>,
    pub(super) events: Vec<Announcement>,
}

impl One {
    pub(super) fn worker() -> Self {
        let others = (1..5)
            .map(|n| Other { machine_uid: format!("uid-m-{n}").into(), available: true })
            .collect();
        let mut plan = HostPlan::new("m-0", HostPlanSpec::default());
        plan.status = Some(report(0));
        Self {
            limits: Limits { replicas: 5, max_unavailable: 1 },
            others,
            nodes: (0..5).map(|n| node(&format!("m-{n}"))).collect(),
            pods: vec![pod("web-1")],
            ..Self::of(update("m-0", 1), machine("m-0"), plan)
        }
    }

    /// A NodeUpdate in a cluster without Nodes.
    pub(super) fn of(update: NodeUpdate, machine: Machine, plan: HostPlan) -> Self {
        Self {
            now: 0,
            update,
            siblings: Vec::new(),
            machine: Some(machine),
            paused: None,
            replacer: None,
            owner_version: GOAL.into(),
            settings: PlanSettings::default(),
            settings_refused: None,
            configuration: ConfigurationValues::Unread,
            reboot: Reboot::default(),
            group: Some(UpdateGroupStatus::default()),
            limits: Limits { replicas: 0, max_unavailable: 0 },
            pace: Pace::default(),
            closed_gates: Vec::new(),
            others: Vec::new(),
            others_run: Vec::new(),
            leaving: Vec::new(),
            last_first_passed: None,
            reachable: true,
            complete_since: 0,
            host_lost_after: None,
            plan: Some(plan),
            nodes: Vec::new(),
            static_pods: Vec::new(),
            control_plane: Vec::new(),
            api_server: GOAL.into(),
            pods: Vec::new(),
            budgets: Vec::new(),
            around: DrainView { attachments: Some(Vec::new()), ..DrainView::default() },
            drain: DrainChoice::default(),
            refusals: Vec::new(),
            refused: None,
            providers: Vec::new(),
            callable: Ok(()),
            answer: Called::Done,
            shows: None,
            changes: VecDeque::new(),
            issued: VecDeque::new(),
            log: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn control_plane() -> Self {
        let mut one = Self::worker();
        let machine = one.machine.as_mut().unwrap();
        machine.metadata.labels =
            Some(BTreeMap::from([(keys::CONTROL_PLANE.to_owned(), String::new())]));
        one.limits = Limits::control_plane(3);
        one.others.truncate(2);
        for n in 0..3 {
            let name = format!("m-{n}");
            one.static_pods.push(api_server(&name, FROM));
            one.static_pods.push(StaticPod {
                component: "etcd".into(),
                version: ImageVersion::Untagged,
                ..api_server(&name, "")
            });
            one.control_plane.push(member(&name));
        }
        one
    }

    /// Cluster API waits for the update.
    pub(super) fn awaited(mut self) -> Self {
        let annotations =
            self.machine.as_mut().unwrap().metadata.annotations.get_or_insert_default();
        annotations.insert(keys::UPDATE_IN_PROGRESS.to_owned(), String::new());
        annotations.insert(keys::PENDING_HOOKS.to_owned(), keys::UPDATE_MACHINE_HOOK.to_owned());
        self
    }

    /// Continues until the host has the plan and everything is staged.
    pub(super) fn staged(mut self) -> Self {
        self.settle();
        self.host_works();
        self
    }

    /// Continues until kubeadm has run; the node is not drained.
    pub(super) fn upgraded(self) -> Self {
        let mut one = self.staged();
        one.settle();
        one.host_works();
        one
    }

    /// Continues until the host has run every step and its kubelet is back.
    pub(super) fn disrupted(self) -> Self {
        let mut one = self.upgraded();
        one.settle();
        one.host_works();
        one.kubelet_returns();
        one
    }

    pub(super) fn decide(&self) -> Decision {
        self.decide_with(None)
    }

    pub(super) fn decide_with(&self, evictions: Option<Vec<EvictionRefusal>>) -> Decision {
        let decision = decide(&self.snapshot(evictions), at(self.now));
        let acts = decision.write.is_some() || decision.requeue.is_some();
        assert!(
            !acts || !self.phase().is_final() || self.may_have_work_left(),
            "nothing wakes an ended update that does {:?}",
            decision.write
        );
        decision
    }

    pub(super) fn may_have_work_left(&self) -> bool {
        let of_machine: Vec<_> =
            self.siblings.iter().chain([&self.update]).cloned().map(Arc::new).collect();
        let ended = Ended {
            update: &self.update,
            of_machine: &of_machine,
            machine: self.machine.as_ref(),
            slots: self.group.as_ref().map_or(&[][..], |group| &group.slots),
            undisturbed: self.group.as_ref().map_or(&[][..], |group| &group.undisturbed),
            node: self.node().filter(|_| self.reachable),
        };
        ended.may_have_work_left()
    }

    /// When the agent's last report arrived.
    pub(super) fn reported_at(&self) -> Option<Timestamp> {
        let status = self.plan.as_ref()?.status.as_ref()?;
        status.reported_at.as_ref().map(|time| time.0)
    }

    pub(super) fn snapshot(&self, evictions: Option<Vec<EvictionRefusal>>) -> Snapshot {
        let view = DrainView { pods: self.pods.clone(), ..self.around.clone() };
        let seen = Seen {
            complete_since: at(self.complete_since),
            host_plan: self.plan.clone().map(Arc::new),
            reported_at: self.reported_at(),
            node_name: self.machine_name().into(),
            nodes: self.nodes.iter().cloned().map(Arc::new).collect(),
            static_pods: self.static_pods.clone(),
            control_plane: self.control_plane.clone(),
            api_server: self.api_server.clone(),
            // As the controller reads it.
            ahead: (self.phase().is_undisturbed() || self.phase() == Phase::Upgrading)
                .then(|| DrainAhead { view: view.clone(), budgets: self.budgets.clone() }),
            drain: (self.phase() == Phase::Draining).then_some(view),
            evictions,
        };
        let group = match &self.group {
            None => GroupState::Missing,
            Some(status) => {
                let others = OtherMachines {
                    machines: self.others.clone(),
                    queue: Vec::new(),
                    failures: Vec::new(),
                    run: self.others_run.clone(),
                    leaving: self.leaving.clone(),
                    last_first_passed: self.last_first_passed,
                };
                let others = Others::read_on_use(|| others);
                GroupState::Present(Group {
                    status: status.clone(),
                    limits: self.limits,
                    pace: self.pace.clone(),
                    // As the controller checks them.
                    gates: Some(Arc::new(GatesRead {
                        gates: self.pace.pacing.gates.clone(),
                        closed: self.closed_gates.clone(),
                    })),
                    others,
                })
            }
        };
        let workload = if self.reachable {
            Workload::Seen(seen)
        } else {
            Workload::Unreachable { cluster: "edge-1".into() }
        };
        Snapshot {
            siblings: self.siblings.iter().cloned().map(Arc::new).collect(),
            paused: self.paused.clone(),
            replacer: self.replacer.clone(),
            drain: self.drain.clone(),
            settings: self.settings.clone(),
            settings_refused: self.settings_refused.clone(),
            configuration: self.configuration.clone(),
            reboot: self.reboot,
            owner_version: self.owner_version.clone(),
            host_lost_after: self.host_lost_after,
            group,
            workload,
            providers: Providers::Known(self.providers.iter().cloned().map(Arc::new).collect()),
            refused: self.refused.clone(),
            ..snapshot(&self.update, self.machine.as_ref())
        }
    }

    /// Name of the Machine, which is also the name of its Node.
    fn machine_name(&self) -> &str {
        &self.update.spec.machine_ref.name
    }

    pub(super) fn node(&self) -> Option<&NodeView> {
        self.nodes.iter().find(|node| *node.name == *self.machine_name())
    }

    pub(super) fn node_mut(&mut self) -> &mut NodeView {
        let name = &self.update.spec.machine_ref.name;
        self.nodes.iter_mut().find(|node| *node.name == **name).unwrap()
    }

    pub(super) fn phase(&self) -> refit_kinds::refit::Phase {
        self.update.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }

    pub(super) fn status(&self) -> refit_kinds::refit::NodeUpdateStatus {
        self.update.status.clone().unwrap_or_default()
    }

    pub(super) fn blocked_by(&self) -> Vec<String> {
        self.status().blocked_by.into_iter().map(|blocker| blocker.reason).collect()
    }

    /// Decides once and applies the write; returns whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let decision = self.decide();
        self.now += 1;
        let Some(write) = decision.write.clone() else {
            return false;
        };
        self.apply(&decision, write);
        true
    }

    /// Decides until there is nothing left to write.
    pub(super) fn settle(&mut self) {
        for _ in 0..50 {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", &self.log[self.log.len() - 10..]);
    }

    /// Settles a control plane, and again after its static pods have settled.
    pub(super) fn settle_with_static_pods(&mut self) {
        self.settle();
        self.now += 10;
        self.settle();
    }

    pub(super) fn delete_machine(&mut self) {
        let now = self.now;
        self.machine.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(at(now)));
    }

    pub(super) fn slots(&self) -> usize {
        self.group.as_ref().map_or(0, |group| group.slots.len())
    }

    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        self.machine.as_ref().unwrap().metadata.annotations.clone().unwrap_or_default()
    }

    /// Reason and status of the Machine's condition.
    pub(super) fn condition(&self) -> Option<(String, String)> {
        let status = self.machine.as_ref()?.status.as_ref()?;
        let condition = conditions::get(&status.conditions, conditions::MACHINE_UP_TO_DATE)?;
        Some((condition.status.clone(), condition.reason.clone()))
    }

    pub(super) fn gate(&self) -> Gate {
        self.plan.as_ref().unwrap().spec.gate
    }
}
