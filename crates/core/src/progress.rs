//! Update progress of every machine, for display.

use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::version::StatedVersion;
use refit_kinds::{
    conditions, keys,
    refit::{Blocker, MachineUid, NodeUpdate, Phase, StepState},
};
use serde::{Deserialize, Serialize};

use crate::node::{MEMBER_MISSING, speaker};

/// Update progress of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the Machine")]
pub struct MachineProgress {
    /// Namespace of the Machine.
    pub namespace: String,
    /// Name of the Machine.
    pub machine: String,
    /// Name of its Node; empty if it has none yet.
    pub node: String,
    /// The KubeadmControlPlane or MachineDeployment that owns it, as `Kind/name`.
    pub owner: String,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// Cluster API's phase of the Machine: `Provisioning`, `Running`, `Updating`, `Deleting`.
    pub machine_phase: String,
    /// Whether Cluster API currently requests an in-place update of it.
    pub in_progress: bool,
    /// Whether it differs from its owner's spec and its update has not started or not ended.
    pub outdated: bool,
    /// Desired version of the Machine.
    pub wanted_version: StatedVersion,
    /// Version of its kubelet.
    pub kubelet_version: StatedVersion,
    /// Its newest NodeUpdate; empty without one.
    pub node_update: String,
    /// Version that the NodeUpdate targets; absent if there is no NodeUpdate.
    pub goal_version: StatedVersion,
    /// Phase of the NodeUpdate; absent if there is no NodeUpdate.
    pub phase: Option<Phase>,
    /// Current step; empty if no step is running.
    pub step: String,
    /// Progress in percent, 0 to 100.
    pub percent: i32,
    /// Predicted remaining time; absent if there is no data to predict from.
    pub remaining_seconds: Option<i32>,
    /// What blocks the update.
    pub blocked_by: Vec<Blocker>,
    /// Whether an operator requested another attempt after its newest NodeUpdate.
    pub retry_asked: bool,
    /// CamelCase reason of a failure or a stop.
    pub failure_reason: String,
    /// What the update does or waits for.
    pub message: String,
}

impl MachineProgress {
    /// Progress of this Machine; `updates` may include NodeUpdates of other Machines.
    pub fn of<'a>(machine: &Machine, updates: impl IntoIterator<Item = &'a NodeUpdate>) -> Self {
        let meta = &machine.metadata;
        let status = machine.status.clone().unwrap_or_default();
        let labels = meta.labels.as_ref();
        let mut row = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            machine: meta.name.clone().unwrap_or_default(),
            node: status.node_ref.map(|node| node.name).unwrap_or_default(),
            owner: owner_of(machine),
            control_plane: labels.is_some_and(|all| all.contains_key(keys::CONTROL_PLANE)),
            machine_phase: status.phase.unwrap_or_default(),
            in_progress: update_in_progress(machine),
            outdated: conditions::get(&status.conditions, conditions::UP_TO_DATE)
                .is_some_and(|condition| condition.status == "False"),
            wanted_version: machine.spec.version.clone(),
            kubelet_version: status.node_info.map(|info| info.kubelet_version).unwrap_or_default(),
            ..Self::default()
        };
        let annotations = meta.annotations.as_ref();
        if let Some(update) = speaker(updates, &MachineUid::of(meta)) {
            row.show_update(update);
            let mut asked =
                [keys::RETRY, keys::ADOPT].into_iter().filter_map(|key| annotations?.get(key));
            row.retry_asked = asked.any(|name| *name == row.node_update);
        }
        row
    }

    fn show_update(&mut self, update: &NodeUpdate) {
        self.node_update = update.metadata.name.clone().unwrap_or_default();
        self.goal_version = update.spec.goal.kubernetes_version.clone().into();
        let status = update.status.clone().unwrap_or_default();
        self.phase = Some(status.phase);
        self.step = status
            .steps
            .iter()
            .find(|step| step.state == StepState::Running)
            .map(|step| step.name.clone())
            .unwrap_or_default();
        if let Some(progress) = &status.progress {
            self.percent = progress.percent;
            self.remaining_seconds = progress.remaining_seconds;
        }
        if status.phase == Phase::Succeeded {
            self.percent = 100;
        }
        self.blocked_by = status.blocked_by;
        self.failure_reason = status.failure_reason;
        self.message =
            if status.failure_message.is_empty() { status.message } else { status.failure_message };
    }

    /// Whether its newest NodeUpdate has started and not ended.
    pub fn is_under_way(&self) -> bool {
        self.phase.is_some_and(|phase| !phase.is_final())
    }

    /// Whether the update to the Machine's desired version failed for good: the machine stays as it
    /// is until an operator requests another attempt, unlike one that waits for a missing control plane
    /// member. If Cluster API no longer requests the update
    /// and the machine runs the version, nothing is left to do.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Some(Phase::Failed | Phase::Stopped))
            && !self.retry_asked
            && self.failure_reason != MEMBER_MISSING
            && self.goal_version == self.wanted_version
            && (self.in_progress || self.kubelet_version != self.wanted_version)
    }
}

/// The KubeadmControlPlane or MachineDeployment of a Machine as `Kind/name`, or its first owner.
pub fn owner_of(machine: &Machine) -> String {
    let label = |key: &str| machine.metadata.labels.as_ref()?.get(key).cloned();
    if let Some(name) = label(keys::DEPLOYMENT_NAME) {
        return format!("MachineDeployment/{name}");
    }
    let owners = machine.metadata.owner_references.as_deref();
    if let Some(name) = label(keys::CONTROL_PLANE_NAME) {
        // For a long name, the label holds a hash of it.
        let owner =
            owners.unwrap_or_default().iter().find(|owner| owner.kind == "KubeadmControlPlane");
        let name = owner.map_or(name, |owner| owner.name.clone());
        return format!("KubeadmControlPlane/{name}");
    }
    owners
        .unwrap_or_default()
        .first()
        .map(|owner| format!("{}/{}", owner.kind, owner.name))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{
        Goal, MachineRef, NodeUpdateSpec, NodeUpdateStatus, Origin, Stage, Until,
    };
    use serde_json::json;

    use super::*;

    fn machine(value: serde_json::Value) -> Machine {
        serde_json::from_value(value).unwrap()
    }

    fn update(ordinal: u32, phase: Phase) -> NodeUpdate {
        let goal = Goal::of_version("v1.35.0".parse().unwrap());
        let spec = NodeUpdateSpec {
            stage: Stage::Ongoing,
            until: Until::Disrupt,
            machine_ref: MachineRef { name: "m".into(), uid: "u".into() },
            origin: Origin::Hook,
            goal_hash: goal.hash(),
            parts: None,
            bundle: None,
            goal,
        };
        let mut update = NodeUpdate::new(&format!("m-{ordinal}"), spec);
        update.status = Some(NodeUpdateStatus {
            phase,
            message: "words".into(),
            ..NodeUpdateStatus::default()
        });
        update
    }

    fn sample() -> Machine {
        machine(json!({
            "metadata": {"name": "m", "namespace": "n", "uid": "u",
                "labels": {"cluster.x-k8s.io/deployment-name": "md"},
                "annotations": {"runtime.cluster.x-k8s.io/pending-hooks": "UpdateMachine"}},
            "spec": {"clusterName": "c", "version": "v1.35.0"},
            "status": {"phase": "Updating", "nodeRef": {"name": "node"},
                "nodeInfo": {"kubeletVersion": "v1.34.2", "bootID": "b"}},
        }))
    }

    #[test]
    fn the_newest_node_update_determines_the_progress() {
        let (old, new) = (update(1, Phase::Failed), update(2, Phase::Draining));
        let mut other = update(9, Phase::Failed);
        other.spec.machine_ref.uid = "another".into();
        let row = MachineProgress::of(&sample(), [&old, &new, &other]);
        assert_eq!(row.node_update, "m-2");
        assert_eq!(row.owner, "MachineDeployment/md");
        assert!(row.is_under_way() && !row.has_failed() && row.in_progress);
    }

    #[test]
    fn a_failure_counts_only_for_the_desired_version() {
        let failed = update(1, Phase::Failed);
        assert!(MachineProgress::of(&sample(), [&failed]).has_failed());
        let mut retried = sample();
        let annotations = retried.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::RETRY.into(), "m-1".into());
        assert!(!MachineProgress::of(&retried, [&failed]).has_failed());
        let mut reverted = sample();
        reverted.spec.version = "v1.34.2".into();
        assert!(!MachineProgress::of(&reverted, [&failed]).has_failed());
    }

    #[test]
    fn a_machine_without_updates_is_shown_as_it_is() {
        let row = MachineProgress::of(&sample(), []);
        assert_eq!((row.phase, row.percent), (None, 0));
        assert_eq!(row.kubelet_version, "v1.34.2".into());
    }
}
