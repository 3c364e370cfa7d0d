//! How a node is emptied: cordon, load balancers, pods, volumes; and whether the drain goes on.
//!
//! | module | decides |
//! |---|---|
//! | `drain_sort` | which pods leave, in which order, which are waited for, which stay |
//! | `drain_ladder` | what is done to one that has to leave |
//! | `drain_policy` | what annotations say of both |
//! | `drain_report` | what is said of what is still there |
//!
//! Every deadline counts from a time that is stored: the start of the step, `status.drain`, or the
//! pod's own times. Whoever looks, and however often it died before, comes to the same.

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
    snapshot::{NodeView, WorkloadWrite, Write},
    status::Standing,
    steps::{self, STEP_CORDON, STEP_DRAIN},
    work::Work,
};
use crate::{group::POLICY_UNDERSTOOD, report::Refusal};

/// How soon the pods of a draining node are listed again, in seconds. A list and no watch: the last
/// look must be the API server's own word that the node is empty, and a watch per drain would have to
/// prove that it is not behind. It is one node's pods (110 by the kubelet's default), found by the API
/// server's index of `spec.nodeName`, for as many nodes as there are slots.
const LOOK_AGAIN: u64 = 2;
/// The same while something refuses: whoever may lift it needs longer.
const LOOK_AGAIN_REFUSED: u64 = 5;
/// What a draining update says of itself while nothing blocks it.
pub(super) const DRAIN_LINE: &str = "pods leave the node";
/// The most blockers that a status names: it must not outgrow the object.
const MOST_BLOCKERS: usize = 20;
/// The most pods that an event names.
const MOST_NAMES: usize = 3;

/// Whether some other node is one that takes the pods of this one: it has no lasting taint that this
/// node does not have too (`spec/node.md 2.8`).
///
/// Only what lasts counts. A node that is cordoned or restarts for an update of its own takes pods
/// again in a moment: to skip the drain for it would end pods without asking their budgets, and to
/// ask costs nothing where nobody takes them, for then the budgets refuse.
pub fn another_could_take(node: &NodeView, nodes: &[NodeView]) -> bool {
    nodes.iter().filter(|other| other.name != node.name).any(|other| {
        let mut lasting = other.taints.iter().filter(|taint| lasts(taint));
        lasting.all(|taint| node.taints.contains(taint))
    })
}

/// Whether a taint is of the node's purpose: those that Kubernetes, cloud providers and Cluster API
/// set and lift by themselves tell of its state.
fn lasts(taint: &str) -> bool {
    const OF_A_STATE: [&str; 3] =
        ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "node.cluster.x-k8s.io/"];
    !OF_A_STATE.iter().any(|domain| taint.starts_with(domain))
}

impl Work<'_> {
    fn advance(&mut self, step: &str, state: StepState, why: &str) {
        steps::advance(&mut self.status, step, state, self.now, why);
    }

    /// Cordons and evicts; `None` once nothing is left to wait for.
    pub(super) fn drain(&mut self) -> Option<Standing> {
        let name = self.status.node_name.clone();
        let Some(node) = self.seen.node() else {
            return Some(Standing::blocked(Phase::Draining, Refusal::NodeNotReady { node: name }));
        };
        let skipped = steps::state_of(&self.status, STEP_DRAIN) == StepState::Skipped;
        if skipped || (!node.unschedulable && !another_could_take(node, &self.seen.nodes)) {
            let why = "no other node could take the pods";
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
        let whose = if node.cordoned_by_us() { "" } else { "it was cordoned before" };
        self.advance(STEP_CORDON, StepState::Done, whose);
        if self.has(keys::EXCLUDE_NODE_DRAINING) {
            let why = format!("the Machine has annotation {}", keys::EXCLUDE_NODE_DRAINING);
            self.advance(STEP_DRAIN, StepState::Skipped, &why);
            return None;
        }
        self.advance(STEP_DRAIN, StepState::Running, "");
        self.show_policy();
        self.leave_load_balancers(node).or_else(|| self.empty(node))
    }

    /// Whether the Machine has an annotation, whatever its value.
    fn has(&self, annotation: &str) -> bool {
        let annotations = self.s.machine.as_ref().and_then(|m| m.metadata.annotations.as_ref());
        annotations.is_some_and(|all| all.contains_key(annotation))
    }

    /// Says in the NodeUpdate what of the drain's policy is not understood.
    fn show_policy(&mut self) {
        let complaint = self.s.drain.complaint();
        let list = &mut self.status.conditions;
        let said = if complaint.is_empty() {
            if conditions::get(list, POLICY_UNDERSTOOD).is_none() {
                return;
            }
            ("True", "Understood")
        } else {
            ("False", "UnknownValue")
        };
        let said = (POLICY_UNDERSTOOD, said.0, said.1, complaint.as_str());
        conditions::set(list, self.now, self.s.update.metadata.generation, said);
    }

    /// Takes the node out of its load balancers and gives them their time; `None` once that is over,
    /// or nobody asks for it. A label of somebody else's did its work before.
    fn leave_load_balancers(&mut self, node: &NodeView) -> Option<Standing> {
        let wait = self.s.drain.policy.load_balancer_wait;
        if wait.is_zero() {
            return None;
        }
        let line = "load balancers get time to forget the node";
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

    /// Moves pods off the node and waits for what they leave behind; `None` once nothing is left.
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
            // The first pods to leave have had their turn from the beginning.
            let since = drain.order_since.as_ref().map_or(begun, |_| self.now);
            drain.order = turn;
            drain.order_since = Some(Time(since));
        }
        let timeout = self.deletion(|deletion| deletion.node_drain_timeout_seconds);
        if timeout.is_some_and(|timeout| self.now.duration_since(begun) >= timeout) {
            let left = sorted.leaving.iter().map(|(pod, _)| pod.pod.to_string());
            let waited = sorted.waited.iter().map(|(pod, _)| pod.pod.to_string());
            let names = listed(left.chain(waited));
            return self.give_up(&format!("nodeDrainTimeoutSeconds is over: {names} stay"));
        }
        Some(self.move_pods(&sorted, turn))
    }

    /// The next step for the pods that are left.
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
            let mine = sorted.leaving.iter().filter(|(_, order)| *order == turn);
            mine.map(|(pod, _)| *pod)
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

    /// Waits until the volumes of the pods that left are detached; `None` once they are.
    fn volumes(&mut self, view: &DrainView) -> Option<Standing> {
        let Some(attached) = &view.attachments else {
            return Some(Standing::new(Phase::Draining, DRAIN_LINE).again_after(1));
        };
        if attached.is_empty() || self.has(keys::EXCLUDE_WAIT_FOR_NODE_VOLUME_DETACH) {
            return None;
        }
        let since = self.noted(|drain| &mut drain.empty_since);
        let waited = self.now.duration_since(since);
        let timeout = self.deletion(|deletion| deletion.node_volume_detach_timeout_seconds);
        let names = listed(attached.iter().map(|one| one.name.clone()));
        if timeout.is_some_and(|timeout| waited >= timeout) {
            let why = format!("nodeVolumeDetachTimeoutSeconds is over: {names} stay attached");
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
        let mut outcome = Standing::new(Phase::Draining, "volumes leave the node");
        outcome.blockers = attached.iter().take(MOST_BLOCKERS).map(blocker).collect();
        Some(outcome.again_after(LOOK_AGAIN_REFUSED))
    }

    /// Ends the drain with something left, because the Machine says how long it may take.
    fn give_up(&mut self, why: &str) -> Option<Standing> {
        self.reach(DrainRung::GivenUp, why);
        self.advance(STEP_DRAIN, StepState::Done, why);
        None
    }

    /// Notes the rung that was reached; it never goes back.
    fn climb(&mut self, rung: DrainRung, names: &str) {
        let policy = &self.s.drain.policy;
        let after = |limit: Option<SignedDuration>| limit.unwrap_or_default();
        let why = match rung {
            DrainRung::Evict | DrainRung::GivenUp => return,
            DrainRung::Notified => {
                format!("{names}: still there after {:#}", after(policy.notify_after))
            }
            DrainRung::Delete => format!(
                "{names}: not evicted within {:#}, deleted with their grace",
                after(policy.delete_after)
            ),
            DrainRung::Force => format!(
                "{names}: not gone within {:#}, removed without grace",
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

    /// When the drain began.
    fn began(&self) -> Timestamp {
        steps::started(&self.status, STEP_DRAIN).unwrap_or(self.now)
    }

    /// A time of the drain's status, now if there is none yet.
    fn noted(&mut self, slot: impl FnOnce(&mut DrainStatus) -> &mut Option<Time>) -> Timestamp {
        let drain = self.status.drain.get_or_insert_default();
        slot(drain).get_or_insert(Time(self.now)).0
    }

    /// A timeout of the Machine's deletion; 0 is none, as in Cluster API.
    fn deletion(
        &self,
        field: impl FnOnce(&refit_cluster_api::kinds::MachineDeletion) -> Option<i32>,
    ) -> Option<SignedDuration> {
        let deletion = self.s.machine.as_ref()?.spec.deletion.as_ref()?;
        let seconds = field(deletion).filter(|seconds| *seconds > 0)?;
        Some(SignedDuration::from_secs(seconds.into()))
    }
}

/// The first few names, and how many more there are.
fn listed(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let more = all.len().saturating_sub(MOST_NAMES);
    let shown = all.get(..all.len() - more).unwrap_or_default().join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
