//! Reads the inputs of rollout decisions from the API server's JSON.

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::{
    conditions::HEALTH_CHECK_SUCCEEDED,
    json::{annotations, condition, controller, created_at, is_deleting, name, text},
};
use serde_json::Value;

use super::{
    control_plane::{Component, ControlPlane, ControlPlaneMachine},
    difference::Difference,
    remediation::Need,
    types::{Machine, Strategy, Template},
};
use crate::{IntOrPercent, ParseIntOrPercentError, desired::control_plane::ControlPlane as Wanted};

impl Template {
    /// Reads `spec.template.spec` of a MachineDeployment or a MachineSet.
    pub fn of(spec: &Value) -> Self {
        Self {
            version: text(spec, "/version").into(),
            bootstrap: spec["bootstrap"].clone(),
            infrastructure_ref: spec["infrastructureRef"].clone(),
            failure_domain: text(spec, "/failureDomain").to_owned(),
        }
    }
}

impl Strategy {
    /// Reads `spec.rollout.strategy` of a MachineDeployment or a KubeadmControlPlane, with Cluster
    /// API's defaults: maxSurge 1, maxUnavailable 0. Fails if a limit is neither a number nor a
    /// percentage; Cluster API's webhooks reject such values.
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
        let check_failed = condition(machine, HEALTH_CHECK_SUCCEEDED) == Some("False");
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
                || condition(machine, "NodeHealthy") == Some("False"),
            needs_remediation: Need::of(machine) == Need::Owner,
        }
    }
}

impl ControlPlane {
    /// Reads a control plane, with the feature gate `InPlaceUpdates` on. A value that Cluster API's
    /// webhooks would reject counts as not set.
    pub fn of(plane: Wanted<'_>, cluster: &Value, machines: Vec<ControlPlaneMachine>) -> Self {
        let wanted = plane.object;
        let replicas = wanted.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        let strategy = Strategy::of(wanted);
        let topology = text(cluster, "/spec/topology/version");
        Self {
            replicas,
            max_surge: strategy.map_or(1, |strategy| strategy.fenceposts(replicas).surge),
            in_place_updates: true,
            topology_version_mismatch: !topology.is_empty()
                && topology != text(wanted, "/spec/version"),
            managed_etcd: plane.has_managed_etcd(),
            failure_domains: failure_domains(cluster),
            machines,
            can_update: BTreeMap::new(),
        }
    }
}

/// Returns the failure domains of a Cluster for control planes.
pub fn failure_domains(cluster: &Value) -> BTreeSet<String> {
    let domains = cluster.pointer("/status/failureDomains").and_then(Value::as_array);
    domains
        .into_iter()
        .flatten()
        .filter(|domain| domain["controlPlane"] == true)
        .filter_map(|domain| Some(domain["name"].as_str()?.to_owned()))
        .collect()
}

impl ControlPlaneMachine {
    /// Reads a Machine with these differences from its control plane.
    pub fn of(machine: &Value, differences: &[Difference]) -> Self {
        let domain = text(machine, "/spec/failureDomain");
        let unhealthy =
            |component: &Component| condition(machine, component.condition()) != Some("True");
        Self {
            name: name(machine).to_owned(),
            created_at: created_at(machine),
            failure_domain: (!domain.is_empty()).then(|| domain.to_owned()),
            annotations: annotations(machine),
            deleting: is_deleting(machine),
            up_to_date: differences.iter().all(Difference::is_by_date),
            expired: differences.iter().any(Difference::is_by_date),
            has_node: !text(machine, "/status/nodeRef/name").is_empty(),
            unhealthy: Component::ALL.into_iter().filter(unhealthy).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_strategy_has_cluster_apis_defaults() {
        let strategy_of =
            |strategy: Value| Strategy::of(&json!({"spec": {"rollout": {"strategy": strategy}}}));
        let rolling = |surge, unavailable| {
            Ok(Strategy::rolling_update(IntOrPercent::Int(surge), IntOrPercent::Int(unavailable)))
        };
        assert_eq!(Strategy::of(&json!({})), rolling(1, 0));
        assert_eq!(strategy_of(json!({"rollingUpdate": null})), rolling(1, 0));
        assert_eq!(strategy_of(json!({"rollingUpdate": {"maxUnavailable": 2}})), rolling(1, 2));
        assert_eq!(strategy_of(json!({"rollingUpdate": {"maxSurge": 0}})), rolling(0, 0));
        assert_eq!(strategy_of(json!({"type": "OnDelete"})), Ok(Strategy::OnDelete));
        assert!(strategy_of(json!({"rollingUpdate": {"maxSurge": "many"}})).is_err());
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
        assert!(!machine(node(), "NodeHealthy", "Unknown").unhealthy);
        assert!(machine(node(), "NodeHealthy", "False").unhealthy);
        assert!(machine(node(), "HealthCheckSucceeded", "False").unhealthy);
        assert!(!machine(node(), "HealthCheckSucceeded", "False").needs_remediation);
        assert!(machine(Value::Null, "NodeHealthy", "True").unhealthy);
    }

    #[test]
    fn only_failure_domains_for_control_planes_are_offered() {
        let cluster = json!({"status": {"failureDomains": [
            {"name": "b", "controlPlane": true}, {"name": "a", "controlPlane": false},
        ]}});
        assert_eq!(failure_domains(&cluster), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn a_component_without_a_condition_is_unhealthy() {
        let found = ControlPlaneMachine::of(&json!({"metadata": {"name": "m"}}), &[]);
        assert_eq!(found.unhealthy.len(), 5);
        assert!(!found.has_node && found.up_to_date && !found.expired);
    }

    #[test]
    fn a_date_alone_makes_a_machine_expired_but_up_to_date() {
        let machine = json!({"metadata": {"name": "m"}});
        let by_date = [Difference::RolloutAfter];
        let found = ControlPlaneMachine::of(&machine, &by_date);
        assert!(found.up_to_date && found.expired);
        let both = [Difference::Certificates, Difference::KubeadmConfig];
        let found = ControlPlaneMachine::of(&machine, &both);
        assert!(!found.up_to_date && found.expired);
    }
}
