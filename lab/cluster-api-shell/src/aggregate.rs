//! Conditions that summarise the Machines of an owner.

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_kinds::conditions;

use crate::conditions::{DesiredCondition, Status, lines};

/// `MachinesUpToDate` of a KubeadmControlPlane or MachineDeployment.
///
/// Cluster API copies each Machine's message here; this uses its reason, which does not change with
/// every step of an update.
pub(crate) fn machines_up_to_date<'a>(
    machines: impl IntoIterator<Item = &'a Machine>,
) -> DesiredCondition {
    const TYPE: &str = "MachinesUpToDate";
    let mut machines: Vec<&Machine> = machines.into_iter().collect();
    if machines.is_empty() {
        return DesiredCondition::new(TYPE, true, "NoReplicas", "");
    }
    machines.sort_by_key(|machine| machine.name_any());
    let (mut outdated, mut unknown) = (Vec::new(), Vec::new());
    for machine in machines {
        let list = machine.status.as_ref().map(|status| &status.conditions[..]);
        let up_to_date = conditions::get(list.unwrap_or_default(), conditions::UP_TO_DATE);
        // A new Machine has no condition yet.
        let Some(up_to_date) = up_to_date else {
            continue;
        };
        let line = format!("Machine {}: {}", machine.name_any(), up_to_date.reason);
        match up_to_date.status.as_str() {
            "True" => {}
            "False" => outdated.push(line),
            _ => unknown.push(line),
        }
    }
    if !outdated.is_empty() {
        return DesiredCondition::new(TYPE, false, "NotUpToDate", lines(outdated));
    }
    if !unknown.is_empty() {
        return DesiredCondition::new(TYPE, Status::Unknown, "UpToDateUnknown", lines(unknown));
    }
    DesiredCondition::new(TYPE, true, "UpToDate", "")
}

/// How many Machines report that they are not up to date.
pub(crate) fn outdated<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> usize {
    let behind = machines.into_iter().filter(|machine| {
        let list = machine.status.as_ref().map(|status| &status.conditions[..]);
        let up_to_date = conditions::get(list.unwrap_or_default(), conditions::UP_TO_DATE);
        up_to_date.is_some_and(|condition| condition.status == "False")
    });
    behind.count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, up_to_date: Option<(&str, &str)>) -> Machine {
        let list = up_to_date.map(|(status, reason)| {
            json!({"type": "UpToDate", "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"clusterName": "c"},
            "status": {"conditions": list.into_iter().collect::<Vec<_>>()},
        }))
        .unwrap()
    }

    #[test]
    fn one_machine_behind_is_enough() {
        let good = machine("a", Some(("True", "UpToDate")));
        let behind = machine("b", Some(("False", "Updating")));
        let unknown = machine("c", Some(("Unknown", "U")));
        let new = machine("d", None);
        let cases = [
            (vec![], Status::True, "NoReplicas", ""),
            (vec![&good], Status::True, "UpToDate", ""),
            (vec![&new, &good], Status::True, "UpToDate", ""),
            (vec![&good, &unknown, &behind], Status::False, "NotUpToDate", "* Machine b: Updating"),
            (vec![&good, &unknown], Status::Unknown, "UpToDateUnknown", "* Machine c: U"),
        ];
        for (machines, status, reason, message) in cases {
            let condition = machines_up_to_date(machines);
            assert_eq!((condition.status, condition.reason.as_str()), (status, reason));
            assert_eq!(condition.message, message);
        }
        assert_eq!(outdated([&good, &behind, &unknown, &new]), 1);
    }
}
