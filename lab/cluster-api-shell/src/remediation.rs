//! What a MachineHealthCheck asks of a Machine's owner.

use refit_cluster_api::kinds::Machine;
use refit_kinds::conditions::{self, HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED};

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
    let status = machine.status.as_ref();
    let list = status.map_or(&[][..], |status| &status.conditions);
    let says = |type_, wanted: &str| {
        conditions::get(list, type_).is_some_and(|condition| condition.status == wanted)
    };
    let asked = says(OWNER_REMEDIATED, "False");
    let failed = says(HEALTH_CHECK_SUCCEEDED, "False");
    match (failed, asked) {
        (true, _) if machine.is_deleting() => Need::Leaving,
        (true, true) => Need::Owner,
        (false, true) if says(HEALTH_CHECK_SUCCEEDED, "True") && !machine.is_deleting() => {
            Need::Recovered
        }
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
