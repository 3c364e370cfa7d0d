//! Objects as rollout decisions see them, read from the API server's JSON.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::json::{
    annotations, condition, controller, created_at, is_deleting, name, text, time,
};
use serde_json::Value;

use super::types::{Machine, Strategy, Template};
use crate::{IntOrPercent, ParseIntOrPercentError};

impl Template {
    /// Reads `spec.template.spec` of a MachineDeployment or a MachineSet.
    pub fn of(spec: &Value) -> Self {
        Self {
            version: text(spec, "/version").to_owned(),
            bootstrap: spec["bootstrap"].clone(),
            infrastructure_ref: spec["infrastructureRef"].clone(),
            failure_domain: text(spec, "/failureDomain").to_owned(),
        }
    }
}

impl Strategy {
    /// Reads `spec.rollout.strategy` of a MachineDeployment or a KubeadmControlPlane, with Cluster
    /// API's defaults: maxSurge 1, maxUnavailable 0. Fails for a limit that is neither a number nor a
    /// percentage; Cluster API's webhooks let none pass.
    pub fn of(owner: &Value) -> Result<Self, ParseIntOrPercentError> {
        if text(owner, "/spec/rollout/strategy/type") == "OnDelete" {
            return Ok(Self::OnDelete);
        }
        let limit = |field: &str, default| match owner
            .pointer(&format!("/spec/rollout/strategy/rollingUpdate/{field}"))
        {
            None | Some(Value::Null) => Ok(IntOrPercent::Int(default)),
            Some(value) => IntOrPercent::try_from(value),
        };
        Ok(Self::rolling_update(limit("maxSurge", 1)?, limit("maxUnavailable", 0)?))
    }
}

impl Machine {
    /// Reads a Machine.
    pub fn of(machine: &Value) -> Self {
        let check_failed = condition(machine, "HealthCheckSucceeded") == Some("False");
        let has_node = !text(machine, "/status/nodeRef/name").is_empty();
        Self {
            name: name(machine).to_owned(),
            owner: controller(machine).map_or_else(String::new, |(_, of)| of.to_owned()),
            created_at: created_at(machine),
            annotations: annotations(machine),
            deleting: is_deleting(machine),
            has_node,
            unhealthy: !has_node
                || check_failed
                || matches!(condition(machine, "NodeHealthy"), Some("False" | "Unknown")),
            needs_remediation: check_failed
                && condition(machine, "OwnerRemediated") == Some("False"),
        }
    }
}

/// Which dates make a control plane machine outdated; no update in place helps against them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// `spec.rollout.after` has passed, and the machine is older.
    pub rollout_after: bool,
    /// Its certificates end within `spec.rollout.before.certificatesExpiryDays`. When they end is
    /// reported on the Machine; where it is not, nothing is known.
    pub certificates: bool,
}

impl Expired {
    /// Compares a Machine with its KubeadmControlPlane.
    pub fn of(control_plane: &Value, machine: &Value, now: Timestamp) -> Self {
        let after = time(control_plane, "/spec/rollout/after");
        let days = control_plane
            .pointer("/spec/rollout/before/certificatesExpiryDays")
            .and_then(Value::as_i64);
        let margin = |days: i64| SignedDuration::from_secs(days.saturating_mul(24 * 3600));
        Self {
            rollout_after: after.is_some_and(|after| after <= now && created_at(machine) < after),
            certificates: days
                .zip(time(machine, "/status/certificatesExpiryDate"))
                .is_some_and(|(days, end)| end.duration_since(now) <= margin(days)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_strategy_has_cluster_apis_defaults() {
        let of =
            |strategy: Value| Strategy::of(&json!({"spec": {"rollout": {"strategy": strategy}}}));
        let rolling = |surge, unavailable| {
            Ok(Strategy::rolling_update(IntOrPercent::Int(surge), IntOrPercent::Int(unavailable)))
        };
        assert_eq!(Strategy::of(&json!({})), rolling(1, 0));
        assert_eq!(of(json!({"rollingUpdate": null})), rolling(1, 0));
        assert_eq!(of(json!({"rollingUpdate": {"maxUnavailable": 2}})), rolling(1, 2));
        assert_eq!(of(json!({"rollingUpdate": {"maxSurge": 0}})), rolling(0, 0));
        assert_eq!(of(json!({"type": "OnDelete"})), Ok(Strategy::OnDelete));
        assert!(of(json!({"rollingUpdate": {"maxSurge": "many"}})).is_err());
    }

    #[test]
    fn a_machine_without_a_node_or_with_a_failed_check_is_unhealthy() {
        let machine = |node: Value, type_: &str, status: &str| {
            Machine::of(&json!({
                "metadata": {"name": "m",
                    "ownerReferences": [{"kind": "MachineSet", "name": "ms", "controller": true}]},
                "status": {"nodeRef": node,
                    "conditions": [{"type": type_, "status": status}]},
            }))
        };
        let node = || json!({"name": "n"});
        assert_eq!(machine(node(), "NodeHealthy", "True").owner, "ms");
        assert!(!machine(node(), "NodeHealthy", "True").unhealthy);
        assert!(machine(node(), "NodeHealthy", "Unknown").unhealthy);
        assert!(machine(node(), "HealthCheckSucceeded", "False").unhealthy);
        assert!(!machine(node(), "HealthCheckSucceeded", "False").needs_remediation);
        assert!(machine(Value::Null, "NodeHealthy", "True").unhealthy);
    }

    #[test]
    fn a_date_makes_a_machine_outdated_once_it_is_reached() {
        let machine = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"certificatesExpiryDate": "2026-04-01T00:00:00Z"},
        });
        let plane = json!({"spec": {"rollout": {
            "after": "2026-02-01T00:00:00Z", "before": {"certificatesExpiryDays": 10},
        }}});
        let at = |text: &str| {
            let found = Expired::of(&plane, &machine, text.parse().unwrap());
            (found.rollout_after, found.certificates)
        };
        assert_eq!(at("2026-01-31T00:00:00Z"), (false, false));
        assert_eq!(at("2026-02-01T00:00:00Z"), (true, false));
        assert_eq!(at("2026-03-22T00:00:00Z"), (true, true));
        assert_eq!(Expired::of(&json!({}), &machine, Timestamp::MAX), Expired::default());
    }
}
