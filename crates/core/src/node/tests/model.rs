//! Five machines in one group, with random order, stale snapshots and crashes at any point: the
//! limit holds, and every update ends.
//!
//! A snapshot and its write are separate: anything may happen in between. A write whose objects
//! changed meanwhile is rejected, as the API server does by resourceVersion; a process that crashes
//! between the two is a snapshot without its write.

use std::sync::Arc;

use jiff::SignedDuration;
use proptest::prelude::*;
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Gate, HostPlan, HostPlanSpec, NodeUpdate, Phase, UpdateGroupStatus};

use super::world::{One, at, machine, node, pod, report, snapshot, update};
use crate::{
    group::{Limits, Other, Pace, holds},
    node::*,
};

const MACHINES: usize = 5;
/// The Updater of the second provider.
pub(super) const OTHER_PROVIDER: &str = "memory";

/// The kinds that decisions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NodeUpdate,
    UpdateGroup,
    Machine,
    HostPlan,
    /// The objects of one provider.
    Provider,
    /// Those of another provider, which has a kind of its own.
    OtherProvider,
    Node,
    MirrorPod,
    Owner,
    Cluster,
}

/// The kind of the object whose resourceVersion guards a write; `None` for a write that is safe to
/// repeat.
pub(super) fn guard_of(write: &Write) -> Option<Kind> {
    match write {
        Write::Management(ManagementWrite::Status) | Write::AskUpdater(_) | Write::Updater(_) => {
            Some(Kind::NodeUpdate)
        }
        Write::Management(ManagementWrite::ClaimSlot(_) | ManagementWrite::ReleaseSlot(_)) => {
            Some(Kind::UpdateGroup)
        }
        Write::Management(
            ManagementWrite::Guard(_)
            | ManagementWrite::Unguard(_)
            | ManagementWrite::Withdraw
            | ManagementWrite::WithdrawForMember,
        ) => Some(Kind::Machine),
        Write::HostPlan(_) => Some(Kind::HostPlan),
        Write::Provider(order) if order.updater == OTHER_PROVIDER => Some(Kind::OtherProvider),
        Write::Provider(_) | Write::OlderProvider(..) => Some(Kind::Provider),
        Write::Workload(
            WorkloadWrite::Cordon
            | WorkloadWrite::Uncordon
            | WorkloadWrite::Exclude
            | WorkloadWrite::Include,
        ) => Some(Kind::Node),
        Write::Workload(WorkloadWrite::Evict(_))
        | Write::Management(ManagementWrite::MachineCondition(_) | ManagementWrite::Again { .. }) => {
            None
        }
    }
}

/// One snapshot, with the versions of the objects that guard its write.
#[derive(Clone)]
struct Look {
    who: usize,
    decision: Decision,
    /// Version of the object that guards the write.
    guard: Option<u64>,
}

/// Versions of the objects that may guard a write.
#[derive(Clone, Copy, Default)]
struct Versions {
    update: u64,
    machine: u64,
    plan: u64,
    node: u64,
}

#[derive(Clone)]
struct Five {
    now: i64,
    limits: Limits,
    group: UpdateGroupStatus,
    group_version: u64,
    updates: Vec<NodeUpdate>,
    machines: Vec<Machine>,
    plans: Vec<HostPlan>,
    nodes: Vec<NodeView>,
    pods: Vec<Vec<PodView>>,
    versions: Vec<Versions>,
}

impl Five {
    fn new(max_unavailable: i32) -> Self {
        let names: Vec<String> = (0..MACHINES).map(|n| format!("m-{n}")).collect();
        let plan = |name: &String| {
            let mut plan = HostPlan::new(name, HostPlanSpec::default());
            plan.status = Some(report(0));
            plan
        };
        Self {
            now: 0,
            limits: Limits { replicas: 5, max_unavailable },
            group: UpdateGroupStatus::default(),
            group_version: 0,
            updates: names.iter().map(|name| update(name, 1)).collect(),
            machines: names.iter().map(|name| machine(name)).collect(),
            plans: names.iter().map(plan).collect(),
            nodes: names.iter().map(|name| node(name)).collect(),
            pods: names.iter().map(|name| vec![pod(&format!("web-{name}"))]).collect(),
            versions: vec![Versions::default(); MACHINES],
        }
    }

    /// Version of the object that guards a write to a machine.
    fn guard(&mut self, who: usize, write: &Write) -> Option<&mut u64> {
        let versions = &mut self.versions[who];
        match guard_of(write)? {
            Kind::NodeUpdate => Some(&mut versions.update),
            Kind::UpdateGroup => Some(&mut self.group_version),
            Kind::Machine => Some(&mut versions.machine),
            Kind::HostPlan => Some(&mut versions.plan),
            Kind::Node => Some(&mut versions.node),
            // No machine of this model has a provider.
            Kind::Provider
            | Kind::OtherProvider
            | Kind::MirrorPod
            | Kind::Owner
            | Kind::Cluster => None,
        }
    }

    /// Every machine is available unless its Node shows otherwise: Cluster API marked them all.
    fn others(&self, who: usize) -> Vec<Other> {
        (0..MACHINES)
            .filter(|n| *n != who)
            .map(|n| Other {
                machine_uid: format!("uid-m-{n}").into(),
                available: self.nodes[n].ready && !self.nodes[n].cordoned_by_us(),
            })
            .collect()
    }

    fn look(&mut self, who: usize) -> Look {
        let view = DrainView {
            pods: self.pods[who].clone(),
            attachments: Some(Vec::new()),
            ..DrainView::default()
        };
        let seen = Seen {
            complete_since: at(0),
            host_plan: Some(Arc::new(self.plans[who].clone())),
            reported_at: Some(at(self.now)),
            node_name: self.nodes[who].name.clone(),
            nodes: self.nodes.iter().cloned().map(Arc::new).collect(),
            static_pods: Vec::new(),
            control_plane: Vec::new(),
            api_server: super::world::GOAL.into(),
            ahead: None,
            drain: Some(view),
            evictions: None,
        };
        let others = OtherMachines { machines: self.others(who), ..OtherMachines::default() };
        let snapshot = Snapshot {
            group: GroupState::Present(Group {
                status: self.group.clone(),
                limits: self.limits,
                pace: Pace::default(),
                gates: None,
                others: Others::read_on_use(|| others),
            }),
            workload: Workload::Seen(seen),
            report_stale_after: SignedDuration::from_hours(100),
            host_lost_after: None,
            ..snapshot(&self.updates[who], Some(&self.machines[who]))
        };
        let decision = decide(&snapshot, at(self.now));
        let guard = decision.write.as_ref().and_then(|write| self.guard(who, write).copied());
        Look { who, decision, guard }
    }

    /// Applies a write if its guards are unchanged since the snapshot; returns whether it did.
    fn write(&mut self, look: &Look) -> bool {
        let Some(write) = look.decision.write.clone() else {
            return false;
        };
        let who = look.who;
        if self.guard(who, &write).copied() != look.guard {
            return false;
        }
        let mut one = One::worker();
        one.update = self.updates[who].clone();
        one.machine = Some(self.machines[who].clone());
        one.group = Some(self.group.clone());
        one.plan = Some(self.plans[who].clone());
        one.nodes = self.nodes.clone();
        one.pods = self.pods[who].clone();
        if let Some(version) = self.guard(who, &write) {
            *version += 1;
        }
        one.apply_alone(&look.decision, write);
        self.updates[who] = one.update;
        self.machines[who] = one.machine.unwrap();
        self.plans[who] = one.plan.unwrap();
        self.pods[who] = one.pods;
        self.nodes = one.nodes;
        self.group = one.group.unwrap();
        true
    }

    /// Advances the agent and the kubelet of one host by one step.
    fn host(&mut self, who: usize) {
        let gate = self.plans[who].spec.gate;
        let passed = self.plans[who].status.as_ref().map(|status| status.passed);
        self.versions[who].node += 1;
        if !self.nodes[who].ready {
            self.nodes[who].ready = true;
            self.nodes[who].kubelet_version = super::world::GOAL.into();
            self.nodes[who].heartbeat = Some(at(self.now + 1000));
        } else if passed != Some(gate) && gate > Gate::Closed {
            let mut one = One::worker();
            one.now = self.now;
            one.plan = Some(self.plans[who].clone());
            one.host_works();
            self.plans[who] = one.plan.unwrap();
            self.versions[who].plan += 1;
            if gate == Gate::Disrupt {
                self.nodes[who].ready = false;
            }
        }
    }

    fn disturbed(&self, who: usize) -> bool {
        let ended = self.updates[who].status.as_ref().is_some_and(|s| s.phase.is_final());
        let node = &self.nodes[who];
        node.cordoned_by_us()
            || (self.plans[who].spec.gate >= Gate::Upgrade && !(ended && node.ready))
    }

    fn check(&self) {
        let disturbed = (0..MACHINES).filter(|n| self.disturbed(*n)).count();
        let limit = usize::try_from(self.limits.slots()).unwrap();
        assert!(disturbed <= limit, "{disturbed} machines are down at once");
        assert!(self.group.slots.len() <= limit);
        for n in (0..MACHINES).filter(|n| self.disturbed(*n)) {
            assert!(
                holds(&self.group, &format!("uid-m-{n}").into()),
                "m-{n} is down without a slot"
            );
        }
    }

    fn over(&mut self) -> bool {
        self.updates
            .iter()
            .all(|update| update.status.as_ref().is_some_and(|s| s.phase == Phase::Succeeded))
            && (0..MACHINES).all(|who| self.look(who).decision.write.is_none())
    }

    /// Advances all machines in turn until nothing is left to do.
    fn finish(&mut self) {
        for _ in 0..400 {
            if self.over() {
                return;
            }
            for who in 0..MACHINES {
                self.now += 1;
                let look = self.look(who);
                if !self.write(&look) {
                    self.host(who);
                }
                self.check();
            }
        }
        let phases: Vec<_> =
            self.updates.iter().map(|u| u.status.clone().unwrap().message).collect();
        panic!("it never ends: {phases:?}");
    }

    fn assert_clean(&self) {
        assert!(self.group.slots.is_empty());
        for who in 0..MACHINES {
            assert!(!self.nodes[who].unschedulable);
            assert!(self.machines[who].metadata.annotations.as_ref().unwrap().is_empty());
            assert_eq!(self.nodes[who].kubelet_version, super::world::GOAL.into());
        }
    }
}

#[test]
fn five_machines_are_updated_one_after_another() {
    let mut five = Five::new(1);
    five.finish();
    five.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_limit_holds_and_updates_end_despite_crashes(
        max_unavailable in 1_i32..4,
        moves in prop::collection::vec((0_u8..4, 0..MACHINES), 0..300),
    ) {
        let mut five = Five::new(max_unavailable);
        // Snapshots whose write is still pending, the oldest first.
        let mut pending: Vec<Look> = Vec::new();
        for (what, who) in moves {
            five.now += 1;
            match what {
                0 => pending.push(five.look(who)),
                1 if !pending.is_empty() => {
                    let look = pending.remove(who % pending.len());
                    five.write(&look);
                }
                // A crash: pending snapshots are lost.
                2 if who == 0 => pending.clear(),
                2 => {
                    let look = five.look(who);
                    five.write(&look);
                }
                _ => five.host(who),
            }
            five.check();
        }
        five.finish();
        five.assert_clean();
    }
}
