//! What a MachineHealthCheck asks of a Machine's owner.

use refit_cluster_api::{kinds::Machine, rollout::needs_remediation};
use refit_kinds::{
    conditions::{HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED},
    json::condition,
};

use crate::live::Live;

/// What a Machine's conditions ask of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    None,
    /// It is unhealthy, and its owner has to remediate it.
    Owner,
    /// It was unhealthy and is well again, before its owner did anything.
    Recovered,
    /// It is unhealthy and on its way out.
    Leaving,
}

/// Reads a Machine's conditions.
pub(crate) fn need(machine: &Live<Machine>) -> Need {
    let (json, deleting) = (machine.json(), machine.is_deleting());
    let asked = condition(json, OWNER_REMEDIATED) == Some("False");
    match condition(json, HEALTH_CHECK_SUCCEEDED) {
        Some("False") if deleting => Need::Leaving,
        Some("False") if needs_remediation(json) => Need::Owner,
        Some("True") if asked && !deleting => Need::Recovered,
        _ => Need::None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_of_needs() {
        let table = [
            (None, None, false, Need::None),
            (Some("True"), None, false, Need::None),
            (Some("False"), None, false, Need::None),
            (Some("False"), Some("False"), false, Need::Owner),
            (Some("False"), Some("False"), true, Need::Leaving),
            (Some("True"), Some("False"), false, Need::Recovered),
            (Some("True"), Some("False"), true, Need::None),
            (Some("False"), Some("True"), false, Need::None),
        ];
        for (check, owner, deleting, want) in table {
            let condition = |type_: &str, status: Option<&str>| {
                status.map(|status| {
                    json!({
                        "type": type_, "status": status, "reason": "R", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                })
            };
            let list: Vec<_> =
                [condition(HEALTH_CHECK_SUCCEEDED, check), condition(OWNER_REMEDIATED, owner)]
                    .into_iter()
                    .flatten()
                    .collect();
            let mut object = json!({
                "metadata": {"name": "m"}, "spec": {"clusterName": "c"},
                "status": {"conditions": list},
            });
            if deleting {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            let machine = Live::read(object).unwrap();
            assert_eq!(need(&machine), want, "{check:?} {owner:?} {deleting}");
        }
    }
}
