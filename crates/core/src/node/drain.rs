//! Which pods must leave a node, and whether the drain goes on.

use refit_api::refit::{Phase, StepState};

use super::{
    snapshot::{NodeView, PodRef, Write},
    status::Outcome,
    steps::{self, STEP_CORDON, STEP_DRAIN},
    work::Work,
};
use crate::report::Refusal;

/// How soon the pods of a draining node are listed again, in seconds. A list and no watch: the last
/// look must be the API server's own word that the node is empty, and a watch per drain would have to
/// prove that it is not behind. It is one node's pods (110 by the kubelet's default), found by the API
/// server's index of `spec.nodeName`, for as many nodes as there are slots.
const LOOK_AGAIN: u64 = 2;
/// The same while a budget refuses: whoever may lift it needs longer.
const LOOK_AGAIN_REFUSED: u64 = 5;
/// What a draining update says of itself while nothing blocks it.
pub(super) const DRAIN_LINE: &str = "pods leave the node";

/// A pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// The pod.
    pub pod: PodRef,
    /// A DaemonSet made it: it would come back at once.
    pub daemon_set: bool,
    /// A mirror pod: the kubelet runs it from a file.
    pub mirror: bool,
    /// It has ended.
    pub finished: bool,
    /// It is being deleted.
    pub terminating: bool,
}

/// Pods that must leave before the node is disturbed (`spec/node.md 2.7`): all but those of
/// DaemonSets, mirror pods and those that have ended. One that is being deleted is still there.
pub fn evictable(pods: &[PodView]) -> impl Iterator<Item = &PodView> {
    pods.iter()
        .filter(|pod| !pod.daemon_set && !pod.mirror && !pod.finished)
}

/// Whether some other node could take the pods of this one: Ready, open, and with no taint that
/// this node does not have too (`spec/node.md 2.8`).
fn another_could_take(node: &NodeView, nodes: &[NodeView]) -> bool {
    nodes
        .iter()
        .filter(|other| other.name != node.name && other.ready && !other.unschedulable)
        .any(|other| other.taints.iter().all(|taint| node.taints.contains(taint)))
}

impl Work<'_, '_> {
    fn advance(&mut self, step: &str, state: StepState, why: &str) {
        steps::advance(&mut self.status, step, state, self.now, why);
    }

    /// Cordons and evicts; `None` once nothing is left to wait for.
    pub(super) fn drain(&mut self) -> Option<Outcome> {
        let name = self.status.node_name.clone();
        let Some(node) = self.seen.node else {
            return Some(Outcome::blocked(
                Phase::Draining,
                Refusal::NodeNotReady { node: name },
            ));
        };
        let skipped = steps::state_of(&self.status, STEP_DRAIN) == StepState::Skipped;
        if skipped || (!node.unschedulable && !another_could_take(node, self.seen.nodes)) {
            let why = "no other node could take the pods";
            for step in [STEP_CORDON, STEP_DRAIN] {
                self.advance(step, StepState::Skipped, why);
            }
            return None;
        }
        if !node.unschedulable {
            self.advance(STEP_CORDON, StepState::Running, "");
            return Some(Outcome::new(Phase::Draining, DRAIN_LINE).write(Some(Write::Cordon)));
        }
        let whose = if node.cordoned_by_us() {
            ""
        } else {
            "it was cordoned before"
        };
        self.advance(STEP_CORDON, StepState::Done, whose);
        self.advance(STEP_DRAIN, StepState::Running, "");
        self.evict()
    }

    /// Evicts what must leave; `None` once nobody is left to wait for.
    fn evict(&self) -> Option<Outcome> {
        let Some(pods) = self.seen.pods else {
            return Some(Outcome::new(Phase::Draining, DRAIN_LINE).again_after(1));
        };
        evictable(pods).next()?;
        let left: Vec<PodRef> = evictable(pods)
            .filter(|pod| !pod.terminating)
            .map(|pod| pod.pod.clone())
            .collect();
        let mut outcome = Outcome::new(Phase::Draining, DRAIN_LINE).again_after(LOOK_AGAIN);
        match self.seen.evictions {
            Some(refused) => {
                outcome.blockers = refused.iter().map(|r| r.refusal.clone()).collect();
                if !outcome.blockers.is_empty() {
                    outcome = outcome.again_after(LOOK_AGAIN_REFUSED);
                }
            }
            None if !left.is_empty() => {
                outcome.keep_eviction_blockers = true;
                outcome.write = Some(Write::Evict(left));
            }
            None => {}
        }
        Some(outcome)
    }
}
