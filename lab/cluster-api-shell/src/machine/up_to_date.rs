//! The condition `UpToDate` of a Machine (`docs/facts/machine.md#uptodate-condition`).

use refit_cluster_api::{
    kinds::{Machine, update_in_progress},
    rollout::{MachineDeployment, MachineSet, template_up_to_date},
};
use refit_kinds::conditions;

use crate::{
    conditions::{DesiredCondition, lines},
    live::Live,
};

/// The message of a Machine in an update whose extension has sent no message yet.
pub(crate) const UPDATING: &str = "In-place update in progress";

/// Whether a Machine matches its owner's spec; `differences` are the owner's findings.
///
/// A Machine with the right spec is not up to date until its kubelet runs that version.
pub(crate) fn verdict(
    machine: &Live<Machine>,
    differences: &[String],
    updating: Option<&str>,
) -> DesiredCondition {
    if !differences.is_empty() {
        let message = lines(differences);
        return DesiredCondition::new(conditions::UP_TO_DATE, false, "NotUpToDate", message);
    }
    if update_in_progress(machine) {
        let message = lines([updating.unwrap_or(UPDATING)]);
        return DesiredCondition::new(conditions::UP_TO_DATE, false, "Updating", message);
    }
    let status = machine.status.as_ref();
    let runs = status.and_then(|status| status.node_info.as_ref());
    let wants = &machine.spec.version;
    match runs {
        Some(info) if !wants.is_absent() && info.kubelet_version != *wants => {
            let finding = format!(
                "Node.status.nodeInfo.kubeletVersion {}, {wants} required",
                info.kubelet_version
            );
            DesiredCondition::new(conditions::UP_TO_DATE, false, "Updating", lines([finding]))
        }
        _ => DesiredCondition::new(conditions::UP_TO_DATE, true, "UpToDate", ""),
    }
}

/// The message of a Machine's `Updating` condition while it is true.
pub(crate) fn updating_message(machine: &Machine) -> Option<&str> {
    let list = &machine.status.as_ref()?.conditions;
    let updating = conditions::get(list, conditions::UPDATING)?;
    (updating.status == "True").then_some(updating.message.as_str())
}

/// The differences of a worker: between its MachineSet's template and its MachineDeployment's, not
/// its own spec.
pub(crate) fn worker_differences(set: &MachineSet, deployment: &MachineDeployment) -> Vec<String> {
    let mut found = template_up_to_date(&set.template, &deployment.template).condition_messages;
    if deployment.rollout_after.is_some_and(|after| set.created_at < after) {
        found.push("MachineDeployment spec.rolloutAfter expired".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::conditions::Status;

    fn machine(annotations: Value, kubelet: &str) -> Live<Machine> {
        Live::read(json!({
            "metadata": {"name": "m", "annotations": annotations},
            "spec": {"clusterName": "c", "version": "v1.35.0"},
            "status": {"nodeInfo": {"kubeletVersion": kubelet, "bootID": "b"}},
        }))
        .unwrap()
    }

    #[test]
    fn the_first_reason_that_applies_is_given() {
        let updating = json!({"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""});
        let differences = ["Version v1, v2 required".to_owned(), "X is not up-to-date".to_owned()];
        let cases: [(Live<Machine>, &[String], Option<&str>, Status, &str, &str); 6] = [
            (
                machine(updating.clone(), "v1.34.2"),
                &differences,
                None,
                Status::False,
                "NotUpToDate",
                "* Version v1, v2 required\n* X is not up-to-date",
            ),
            (
                machine(updating.clone(), "v1.34.2"),
                &[],
                None,
                Status::False,
                "Updating",
                "* In-place update in progress",
            ),
            (
                machine(updating, "v1.34.2"),
                &[],
                Some("In-place update in progress: draining"),
                Status::False,
                "Updating",
                "* In-place update in progress: draining",
            ),
            (
                machine(json!({}), "v1.34.2"),
                &[],
                None,
                Status::False,
                "Updating",
                "* Node.status.nodeInfo.kubeletVersion v1.34.2, v1.35.0 required",
            ),
            (
                machine(json!({}), "v1.35.0+k3s1"),
                &[],
                None,
                Status::False,
                "Updating",
                "* Node.status.nodeInfo.kubeletVersion v1.35.0+k3s1, v1.35.0 required",
            ),
            (machine(json!({}), "v1.35.0"), &[], None, Status::True, "UpToDate", ""),
        ];
        for (machine, differences, updating, status, reason, message) in cases {
            let condition = verdict(&machine, differences, updating);
            assert_eq!((condition.status, condition.reason.as_str()), (status, reason));
            assert_eq!(condition.message, message);
        }
    }

    #[test]
    fn a_pending_hook_counts_as_an_update() {
        let pending = json!({"runtime.cluster.x-k8s.io/pending-hooks": "UpdateMachine"});
        let condition = verdict(&machine(pending, "v1.35.0"), &[], None);
        assert_eq!(condition.reason, "Updating");
    }
}
