//! How far every machine is, for people who watch.

use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::version::StatedVersion;
use refit_kinds::{
    conditions, keys,
    refit::{Blocker, MachineUid, NodeUpdate, Phase, StepState},
};
use serde::{Deserialize, Serialize};

use crate::node::speaker;

/// How far one machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the Machine")]
pub struct MachineProgress {
    /// Namespace of the Machine.
    pub namespace: String,
    /// Name of the Machine.
    pub machine: String,
    /// Name of its Node, empty before it has one.
    pub node: String,
    /// KubeadmControlPlane or MachineDeployment that it belongs to, as `Kind/name`.
    pub owner: String,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// Cluster API's phase of the Machine: `Provisioning`, `Running`, `Updating`, `Deleting`.
    pub machine_phase: String,
    /// Whether Cluster API asks for an update of it in place right now.
    pub in_progress: bool,
    /// Its owner wants it otherwise than it is, and has not begun with it or not ended.
    pub outdated: bool,
    /// Version that the Machine is to have.
    pub wanted_version: StatedVersion,
    /// Version of its kubelet.
    pub kubelet_version: StatedVersion,
    /// Its newest NodeUpdate, empty where there is none.
    pub node_update: String,
    /// Version that the NodeUpdate goes to; absent where there is none.
    pub goal_version: StatedVersion,
    /// How far that is; absent where there is none.
    pub phase: Option<Phase>,
    /// The step that is under way, empty where none is.
    pub step: String,
    /// 0 to 100.
    pub percent: i32,
    /// Predicted rest, where there is something to predict from.
    pub remaining_seconds: Option<i32>,
    /// What keeps it from going on.
    pub blocked_by: Vec<Blocker>,
    /// Somebody asked for one more attempt after its newest NodeUpdate.
    pub retry_asked: bool,
    /// CamelCase reason of a failure or a stop.
    pub failure_reason: String,
    /// What happens, or what it waits for.
    pub message: String,
}

impl MachineProgress {
    /// How far this Machine is; `updates` may hold those of other Machines, too.
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
        if let Some(update) = speaker(updates, &MachineUid::of(meta)) {
            row.take_in(update);
            let asked = meta.annotations.as_ref().and_then(|all| all.get(keys::RETRY));
            row.retry_asked = asked == Some(&row.node_update);
        }
        row
    }

    fn take_in(&mut self, update: &NodeUpdate) {
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

    /// Whether its newest NodeUpdate has begun and not ended.
    pub fn is_under_way(&self) -> bool {
        self.phase.is_some_and(|phase| !phase.is_final())
    }

    /// Whether the update to the version that the Machine is to have ended badly for good: nothing
    /// happens on it until a person asks. Where Cluster API no longer asks and the version is there,
    /// nothing is left to be done.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Some(Phase::Failed | Phase::Stopped))
            && !self.retry_asked
            && self.goal_version == self.wanted_version
            && (self.in_progress || self.kubelet_version != self.wanted_version)
    }
}

/// The KubeadmControlPlane or MachineDeployment of a Machine as `Kind/name`, else its first owner.
pub fn owner_of(machine: &Machine) -> String {
    let label = |key: &str| machine.metadata.labels.as_ref()?.get(key).cloned();
    if let Some(name) = label(keys::DEPLOYMENT_NAME) {
        return format!("MachineDeployment/{name}");
    }
    let owners = machine.metadata.owner_references.as_deref();
    if let Some(name) = label(keys::CONTROL_PLANE_NAME) {
        // The label of a long name is a hash of it.
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
    use refit_kinds::refit::{Goal, MachineRef, NodeUpdateSpec, NodeUpdateStatus, Origin, Stage};
    use serde_json::json;

    use super::*;

    fn machine(value: serde_json::Value) -> Machine {
        serde_json::from_value(value).unwrap()
    }

    fn update(ordinal: u32, phase: Phase) -> NodeUpdate {
        let goal = Goal::of_version("v1.35.0".parse().unwrap());
        let spec = NodeUpdateSpec {
            stage: Stage::Ongoing,
            machine_ref: MachineRef { name: "m".into(), uid: "u".into() },
            origin: Origin::Hook,
            goal_hash: goal.hash(),
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
    fn the_newest_update_of_the_machine_speaks() {
        let (old, new) = (update(1, Phase::Failed), update(2, Phase::Draining));
        let mut other = update(9, Phase::Failed);
        other.spec.machine_ref.uid = "another".into();
        let row = MachineProgress::of(&sample(), [&old, &new, &other]);
        assert_eq!(row.node_update, "m-2");
        assert_eq!(row.owner, "MachineDeployment/md");
        assert!(row.is_under_way() && !row.has_failed() && row.in_progress);
    }

    #[test]
    fn a_failure_counts_only_against_the_version_that_is_still_wanted() {
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
