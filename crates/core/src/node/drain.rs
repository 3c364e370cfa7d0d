//! How a node is drained: cordon, load balancers, pods, volumes; and whether the drain proceeds.
//!
//! | module | decides |
//! |---|---|
//! | `drain_sort` | which pods leave, in which order, which are waited for, which stay |
//! | `drain_ladder` | which call removes a pod that must leave |
//! | `drain_policy` | how annotations configure both |
//! | `drain_report` | the refusal for pods and volumes that are still there |
//!
//! Every deadline counts from a stored timestamp: the start of the step, `status.drain`, or the
//! timestamps of the pod. The result is therefore the same for every replica and after every
//! restart.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions, keys,
    refit::{DrainRung, DrainStatus, Phase, StepState},
};

use super::{
    drain_ladder::{self, Since},
    drain_report::DrainRefusal,
    drain_sort::{Attachment, DrainView, Sorted, sort},
    preflight::has_annotation,
    seen::NodeView,
    snapshot::{GroupState, Leaving, WorkloadWrite, Write},
    status::Standing,
    steps::{self, STEP_CORDON, STEP_DRAIN},
    work::Work,
};
use crate::{group::POLICY_UNDERSTOOD, report::Refusal};

/// How often the pods of a draining node are listed, in seconds. A list instead of a watch: the API
/// server itself must confirm that the node is empty, and a watch per drain could be behind. The
/// list holds one node's pods (110 by the kubelet's default), uses the API server's index of
/// `spec.nodeName`, and is made for as many nodes as there are slots.
const LOOK_AGAIN: u64 = 2;
/// The same interval while an eviction is refused: the cause takes longer to resolve.
const LOOK_AGAIN_REFUSED: u64 = 5;
/// Message of a draining update that nothing blocks.
pub(super) const DRAIN_LINE: &str = "evicting pods from the node";
/// Maximum number of blockers in a status, to limit the size of the object.
const MOST_BLOCKERS: usize = 20;
/// Maximum number of pods named in an event.
const MOST_NAMES: usize = 3;

/// Whether another node can take the pods of this one: it has no lasting taint that this node does
/// not have too (`docs/facts/kubernetes.md#nodes-without-spare-capacity`).
///
/// Only lasting taints count. A node that is cordoned or restarts for its own update takes pods
/// again soon: skipping the drain because of it would end pods without checking their budgets. If
/// no node takes the pods, trying to evict them is harmless, because the budgets refuse.
pub fn another_could_take(node: &NodeView, nodes: &[Arc<NodeView>]) -> bool {
    nodes.iter().filter(|other| other.name != node.name).any(|other| tolerates(node, other))
}

/// Whether the pods of a node tolerate the lasting taints of another one.
fn tolerates(node: &NodeView, other: &NodeView) -> bool {
    let mut lasting = other.taints.iter().filter(|taint| lasts(taint));
    lasting.all(|taint| node.taints.contains(taint))
}

/// Whether a taint describes the node's purpose. Taints that Kubernetes, cloud providers and
/// Cluster API set and remove themselves describe its state.
fn lasts(taint: &str) -> bool {
    const OF_A_STATE: [&str; 3] =
        ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "node.cluster.x-k8s.io/"];
    !OF_A_STATE.iter().any(|domain| taint.starts_with(domain))
}

impl Work<'_> {
    fn advance(&mut self, step: &str, state: StepState, why: &str) {
        steps::advance(&mut self.status, step, state, self.now, why);
    }

    /// Cordons the node and evicts its pods; `None` once nothing is left to wait for.
    pub(super) fn drain(&mut self) -> Option<Standing> {
        let name = self.status.node_name.clone();
        let Some(node) = self.seen.node() else {
            return Some(Standing::blocked(Phase::Draining, Refusal::NodeNotReady { node: name }));
        };
        if let Some(waiting) = self.leave_room(node) {
            return Some(waiting);
        }
        let skipped = steps::state_of(&self.status, STEP_DRAIN) == StepState::Skipped;
        if skipped || (!node.unschedulable && !another_could_take(node, &self.seen.nodes)) {
            let why = "no other node can run the pods";
            for step in [STEP_CORDON, STEP_DRAIN] {
                self.advance(step, StepState::Skipped, why);
            }
            return None;
        }
        if !node.unschedulable {
            self.advance(STEP_CORDON, StepState::Running, "");
            return Some(
                Standing::new(Phase::Draining, DRAIN_LINE)
                    .write(Some(Write::Workload(WorkloadWrite::Cordon))),
            );
        }
        let cordon_note = if node.cordoned_by_us() { "" } else { "the node was already cordoned" };
        self.advance(STEP_CORDON, StepState::Done, cordon_note);
        if self.has_annotation(keys::EXCLUDE_NODE_DRAINING) {
            let why = format!("the Machine has annotation {}", keys::EXCLUDE_NODE_DRAINING);
            self.advance(STEP_DRAIN, StepState::Skipped, &why);
            return None;
        }
        self.advance(STEP_DRAIN, StepState::Running, "");
        self.show_policy();
        self.leave_load_balancers(node).or_else(|| self.empty(node))
    }

    /// Waits while Cluster API drains another machine of the group whose pods can only come here. A
    /// budget would stop both drains for ever.
    fn leave_room(&mut self, node: &NodeView) -> Option<Standing> {
        let GroupState::Present(group) = &self.s.group else {
            return None;
        };
        let nodes = &self.seen.nodes;
        let exists = |leaving: &&Leaving| nodes.iter().any(|other| other.name == leaving.node);
        let all = &group.others.leaving;
        let leaving = all.iter().find(exists)?;
        let leaves = |other: &NodeView| all.iter().any(|one| one.node == other.name);
        let takes_pods = |other: &&Arc<NodeView>| {
            other.ready && !other.unschedulable && other.name != node.name && !leaves(other)
        };
        let another = nodes.iter().filter(takes_pods).any(|other| tolerates(node, other));
        // A cordon of others stays, so nothing could come here anyway.
        let may_give = !node.unschedulable || node.cordoned_by_us();
        if another || !may_give {
            return None;
        }
        // The next drain has its own deadlines.
        self.status.drain = None;
        for step in [STEP_CORDON, STEP_DRAIN] {
            steps::reset(&mut self.status, step);
        }
        let excluded = node.excluded_by.is_some().then_some(WorkloadWrite::Include);
        let cordoned = || node.cordoned_by_us().then_some(WorkloadWrite::Uncordon);
        let refusal = Refusal::RoomForOthers { machine: leaving.machine.clone() };
        let waiting = Standing::blocked(Phase::Draining, refusal).again_after(10);
        Some(waiting.write(excluded.or_else(cordoned).map(Write::Workload)))
    }

    fn has_annotation(&self, annotation: &str) -> bool {
        self.s.machine.as_ref().is_some_and(|machine| has_annotation(machine, annotation))
    }

    /// Sets the condition that reports invalid values in the drain policy.
    fn show_policy(&mut self) {
        let complaint = self.s.drain.complaint();
        let list = &mut self.status.conditions;
        let (status, reason) = if complaint.is_empty() {
            if conditions::get(list, POLICY_UNDERSTOOD).is_none() {
                return;
            }
            ("True", "Understood")
        } else {
            ("False", "UnknownValue")
        };
        let condition = (POLICY_UNDERSTOOD, status, reason, complaint.as_str());
        conditions::set(list, self.now, self.s.update.metadata.generation, condition);
    }

    /// Removes the node from its load balancers and waits for them; `None` once the wait is over or
    /// if the policy requests none. If another component set the label, there is no wait.
    fn leave_load_balancers(&mut self, node: &NodeView) -> Option<Standing> {
        let wait = self.s.drain.policy.load_balancer_wait;
        if wait.is_zero() {
            return None;
        }
        let line = "waiting for load balancers to remove the node";
        if !node.excluded {
            return Some(
                Standing::new(Phase::Draining, line)
                    .write(Some(Write::Workload(WorkloadWrite::Exclude))),
            );
        }
        node.excluded_by.as_ref()?;
        let now = self.now;
        let since = self.noted(|drain| &mut drain.excluded_since);
        let rest = wait.saturating_sub(now.duration_since(since));
        let seconds = u64::try_from(rest.as_secs()).ok().filter(|rest| *rest > 0)?;
        Some(Standing::new(Phase::Draining, line).again_after(seconds.min(30)))
    }

    /// Moves pods off the node and waits for pods that must end by themselves; `None` once nothing
    /// is left.
    fn empty(&mut self, node: &NodeView) -> Option<Standing> {
        let Some(view) = &self.seen.drain else {
            return Some(Standing::new(Phase::Draining, DRAIN_LINE).again_after(1));
        };
        let sorted = sort(view, &self.s.drain.policy, node.ready, self.now);
        let Some(turn) = sorted.turn() else {
            return self.volumes(view);
        };
        let begun = self.began();
        let drain = self.status.drain.get_or_insert_default();
        drain.empty_since = None;
        if drain.order != turn || drain.order_since.is_none() {
            // The first pods in order have had their turn since the drain began.
            let since = drain.order_since.as_ref().map_or(begun, |_| self.now);
            drain.order = turn;
            drain.order_since = Some(Time(since));
        }
        let timeout = self.deletion(|deletion| deletion.node_drain_timeout_seconds);
        if timeout.is_some_and(|timeout| self.now.duration_since(begun) >= timeout) {
            let left = sorted.leaving.iter().map(|(pod, _)| pod.pod.to_string());
            let waited = sorted.waited.iter().map(|(pod, _)| pod.pod.to_string());
            let names = listed(left.chain(waited));
            return self.give_up(&format!(
                "nodeDrainTimeoutSeconds exceeded, pods remain on the node: {names}"
            ));
        }
        Some(self.move_pods(&sorted, turn))
    }

    /// The next step for the remaining pods.
    fn move_pods(&mut self, sorted: &Sorted<'_>, turn: i32) -> Standing {
        let policy = self.s.drain.policy;
        let since = Since {
            drain: self.began(),
            turn: self
                .status
                .drain
                .as_ref()
                .and_then(|drain| drain.order_since.as_ref())
                .map_or(self.now, |time| time.0),
            now: self.now,
        };
        let moving = || {
            let in_turn = sorted.leaving.iter().filter(|(_, order)| *order == turn);
            in_turn.map(|(pod, _)| *pod)
        };
        let removals: Vec<_> =
            moving().filter_map(|pod| drain_ladder::removal(pod, &policy, &since)).collect();
        let rung = drain_ladder::rung_of(&removals);
        if rung > DrainRung::Notified {
            let names = drain_ladder::on_rung(&removals, rung);
            self.climb(rung, &listed(names.map(ToString::to_string)));
        } else if since.is_long(&policy) {
            let waited = sorted.waited.iter().map(|(pod, _)| *pod);
            let names = moving().chain(waited).map(|pod| pod.pod.to_string());
            self.climb(DrainRung::Notified, &listed(names));
        }
        let mut outcome = Standing::new(Phase::Draining, DRAIN_LINE);
        match self.seen.evictions.as_deref() {
            Some(refused) => {
                outcome.blockers = refused.iter().map(|r| r.refusal.clone()).collect();
            }
            None if !removals.is_empty() => {
                outcome.keep_eviction_blockers = true;
                outcome.write = Some(Write::Workload(WorkloadWrite::Evict(removals)));
            }
            None => {}
        }
        let waited = sorted.waited.iter().map(|(_, why)| why.clone());
        let slow = moving().filter_map(|pod| drain_ladder::slow(pod, &policy, &since));
        let others = waited.chain(slow).map(Refusal::Drain);
        outcome.blockers.extend(others);
        outcome.blockers.truncate(MOST_BLOCKERS);
        let again = if outcome.blockers.is_empty() { LOOK_AGAIN } else { LOOK_AGAIN_REFUSED };
        outcome.again_after(again)
    }

    /// Waits until the volumes of evicted pods are detached; `None` once they are.
    fn volumes(&mut self, view: &DrainView) -> Option<Standing> {
        let Some(attached) = &view.attachments else {
            return Some(Standing::new(Phase::Draining, DRAIN_LINE).again_after(1));
        };
        if attached.is_empty() || self.has_annotation(keys::EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH) {
            return None;
        }
        let since = self.noted(|drain| &mut drain.empty_since);
        let waited = self.now.duration_since(since);
        let timeout = self.deletion(|deletion| deletion.node_volume_detach_timeout_seconds);
        let names = listed(attached.iter().map(|one| one.name.clone()));
        if timeout.is_some_and(|timeout| waited >= timeout) {
            let why = format!(
                "nodeVolumeDetachTimeoutSeconds exceeded, volumes remain attached: {names}"
            );
            return self.give_up(&why);
        }
        let limit = self.s.drain.policy.notify_after;
        if limit.is_some_and(|limit| waited >= limit) {
            self.climb(DrainRung::Notified, &names);
        }
        let node = self.status.node_name.clone();
        let blocker = |Attachment { name, volume }: &Attachment| {
            Refusal::Drain(DrainRefusal::VolumeAttached {
                attachment: name.clone(),
                volume: volume.clone(),
                node: node.clone(),
            })
        };
        let mut outcome =
            Standing::new(Phase::Draining, "waiting for volumes to detach from the node");
        outcome.blockers = attached.iter().take(MOST_BLOCKERS).map(blocker).collect();
        Some(outcome.again_after(LOOK_AGAIN_REFUSED))
    }

    /// Ends the drain with pods or volumes left, because the Machine's timeout has passed.
    fn give_up(&mut self, why: &str) -> Option<Standing> {
        self.reach(DrainRung::GivenUp, why);
        self.advance(STEP_DRAIN, StepState::Done, why);
        None
    }

    /// Records the rung that was reached; it never decreases.
    fn climb(&mut self, rung: DrainRung, names: &str) {
        let policy = &self.s.drain.policy;
        let after = |limit: Option<SignedDuration>| limit.unwrap_or_default();
        let why = match rung {
            DrainRung::Evict | DrainRung::GivenUp => return,
            DrainRung::Notified => {
                format!("{names}: not gone after {:#}", after(policy.notify_after))
            }
            DrainRung::Delete => format!(
                "{names}: not evicted within {:#}, deleted with their grace period",
                after(policy.delete_after)
            ),
            DrainRung::Force => format!(
                "{names}: not gone within {:#}, deleted without a grace period",
                after(policy.force_after)
            ),
        };
        self.reach(rung, &why);
    }

    fn reach(&mut self, rung: DrainRung, why: &str) {
        let drain = self.status.drain.get_or_insert_default();
        if rung > drain.rung {
            drain.rung = rung;
            drain.since = Some(Time(self.now));
            why.clone_into(&mut drain.message);
        }
    }

    fn began(&self) -> Timestamp {
        steps::started(&self.status, STEP_DRAIN).unwrap_or(self.now)
    }

    /// A timestamp of the drain's status, set to now if missing.
    fn noted(&mut self, slot: impl FnOnce(&mut DrainStatus) -> &mut Option<Time>) -> Timestamp {
        let drain = self.status.drain.get_or_insert_default();
        slot(drain).get_or_insert(Time(self.now)).0
    }

    /// A timeout of the Machine's deletion; 0 means no timeout, as in Cluster API.
    fn deletion(
        &self,
        field: impl FnOnce(&refit_cluster_api::kinds::MachineDeletion) -> Option<i32>,
    ) -> Option<SignedDuration> {
        let deletion = self.s.machine.as_ref()?.spec.deletion.as_ref()?;
        let seconds = field(deletion).filter(|seconds| *seconds > 0)?;
        Some(SignedDuration::from_secs(seconds.into()))
    }
}

/// The first few names, and the number of the remaining ones.
fn listed(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let more = all.len().saturating_sub(MOST_NAMES);
    let shown = all.get(..all.len() - more).unwrap_or_default().join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
