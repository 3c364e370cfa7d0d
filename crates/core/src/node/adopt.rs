//! Machines that were upgraded by hand: verified against the live versions, and taken as they are.

use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{
    keys,
    refit::{NodeUpdate, NodeUpdateSpec, NodeUpdateStatus, Origin, Phase, Stage, UpdatePart},
};

use super::{
    order::{order, same_machine},
    snapshot::{ManagementWrite, Snapshot, Write},
    status::Standing,
    verify::{verify, version_differences},
    work::Work,
};
use crate::{
    ask::{adopting, next_ordinal},
    report::Refusal,
};

/// Failure reason of an update that was to take a node as it was upgraded by hand, but whose versions are not the goal.
pub const NOT_ADOPTED: &str = "NotAdopted";

impl Work<'_> {
    /// What holds up an update that takes a node as it is: the node must be healthy, and run the goal.
    pub(super) fn verify_adopted(&self) -> Option<Standing> {
        let (spec, node_name) = (&self.s.update.spec, &self.status.node_name);
        let goal = spec.goal.kubernetes_version.as_ref().filter(|_| spec.adopts())?;
        if let Some(refusal) = self.workers.start_refusal(self.s, node_name, self.role()) {
            return Some(self.wait_for_older(Phase::Pending, refusal));
        }
        let Some(node) = self.seen.node() else {
            let refusal = Refusal::NodeNotReady { node: node_name.clone() };
            return Some(self.wait(Phase::Pending, refusal));
        };
        let pods = self.control_plane().then_some(&*self.seen.static_pods);
        let differences = version_differences(node_name, &node.kubelet_version, pods, goal);
        if !differences.is_empty() {
            return Some(Standing::failed(
                NOT_ADOPTED,
                format!("node {node_name} was to run {goal}, and {}", differences.join("; ")),
            ));
        }
        let verified =
            verify(self.seen, node_name, Some(goal), self.control_plane(), None, self.now);
        verified.err().map(|refusal| self.wait(Phase::Pending, refusal))
    }
}

/// The NodeUpdate that an annotation of its Machine asks for, after one that a person created has ended. Those of
/// Cluster API are made by its next call, and those of an UpgradeTask by that task while it works on the Machine.
pub(super) fn again(s: &Snapshot, machine: &Machine, status: &NodeUpdateStatus) -> Option<Write> {
    let spec = &s.update.spec;
    let adopts = names(machine, keys::ADOPT, &s.update) && spec.can_be_adopted();
    let asked = adopts || names(machine, keys::RETRY, &s.update);
    let given_up = matches!(status.phase, Phase::Failed | Phase::Stopped);
    let of_task =
        machine.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(keys::TASK));
    let by_people = spec.origin == Origin::Task && !of_task && !update_in_progress(machine);
    if !asked || !given_up || !by_people || machine.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let all = s.siblings.iter().map(AsRef::as_ref).chain([&*s.update]);
    let ordinal = next_ordinal(&spec.machine_ref.name, all);
    let parts = if adopts { Some(adopting(made(s).unwrap_or_default())) } else { made(s) };
    let spec = NodeUpdateSpec { stage: Stage::Ongoing, parts, ..spec.clone() };
    Some(Write::Management(ManagementWrite::Again { ordinal, spec: Box::new(spec) }))
}

/// What updaters do to reach the goal of an update, also if it only verified that.
fn made(s: &Snapshot) -> Option<Vec<UpdatePart>> {
    if !s.update.spec.adopts() {
        return s.update.spec.parts.clone();
    }
    let same_goal = |other: &&NodeUpdate| {
        other.spec.goal_hash == s.update.spec.goal_hash && !other.spec.adopts()
    };
    let before = same_machine(s).filter(same_goal).max_by_key(|other| order(other));
    if let Some(before) = before {
        return before.spec.parts.clone();
    }
    let made = |part: UpdatePart| if part.is_adopted() { UpdatePart::kubeadm() } else { part };
    Some(s.update.spec.parts.iter().flatten().cloned().map(made).collect())
}

/// Whether an annotation of a Machine names a NodeUpdate.
pub(super) fn names(machine: &Machine, key: &str, update: &NodeUpdate) -> bool {
    let value = machine.metadata.annotations.as_ref().and_then(|all| all.get(key));
    value.is_some() && value == update.metadata.name.as_ref()
}
