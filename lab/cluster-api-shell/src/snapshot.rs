//! Live objects as the plain data that [`refit_cluster_api::rollout`] decides on.

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{IntOrPercent, Machine, MachineDeployment, MachineSet},
    rollout,
};
use refit_kinds::conditions;
use serde_json::Value;

use crate::{
    context::controller_of,
    defaults,
    error::Error,
    live::{Live, Typed},
};

/// The object with Cluster API's defaults filled in.
pub(crate) fn defaulted<K: Typed>(object: &Live<K>) -> Value {
    let mut json = object.json().clone();
    defaults::default_object(&mut json);
    json
}

/// When an object was created.
pub(crate) fn created_at<K: Typed>(object: &Live<K>) -> Timestamp {
    let created = object.metadata().creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// A machine template's fields that decide on a rollout; `spec` is `spec.template.spec`.
pub(crate) fn template(spec: &Value) -> rollout::Template {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    rollout::Template {
        version: text("version"),
        bootstrap: spec["bootstrap"].clone(),
        infrastructure_ref: spec["infrastructureRef"].clone(),
        failure_domain: text("failureDomain"),
    }
}

/// A MachineDeployment; `json` is [`defaulted`].
pub(crate) fn deployment(
    deployment: &Live<MachineDeployment>,
    json: &Value,
) -> Result<rollout::MachineDeployment, Error> {
    let spec = &deployment.spec;
    let rollout = spec.rollout.as_ref();
    let strategy = rollout.and_then(|rollout| rollout.strategy.as_ref());
    let on_delete = strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete");
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let limit = |value: Option<&IntOrPercent>, default: i64| match value {
        None => Ok(rollout::IntOrPercent::Int(default)),
        Some(IntOrPercent::Int(count)) => Ok(rollout::IntOrPercent::Int(i64::from(*count))),
        Some(IntOrPercent::Percent(text)) => text.parse().map_err(|error| {
            Error::Invalid(format!("MachineDeployment {}: {error}", deployment.name_any()))
        }),
    };
    let strategy = if on_delete {
        rollout::Strategy::OnDelete
    } else {
        rollout::Strategy::rolling_update(
            limit(rolling.and_then(|rolling| rolling.max_surge.as_ref()), 1)?,
            limit(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), 0)?,
        )
    };
    let after = rollout.and_then(|rollout| rollout.after.as_deref());
    Ok(rollout::MachineDeployment {
        name: deployment.name_any(),
        replicas: i64::from(spec.replicas.unwrap_or(1)),
        strategy,
        template: template(json.pointer("/spec/template/spec").unwrap_or(&Value::Null)),
        rollout_after: after.and_then(|after| after.parse().ok()),
    })
}

/// A MachineSet.
pub(crate) fn machine_set(set: &Live<MachineSet>) -> rollout::MachineSet {
    let status = set.status.clone().unwrap_or_default();
    let count = |value: Option<i32>| i64::from(value.unwrap_or(0));
    rollout::MachineSet {
        name: set.name_any(),
        created_at: created_at(set),
        spec_replicas: i64::from(set.spec.replicas.unwrap_or(1)),
        status_replicas: count(status.replicas),
        available_replicas: count(status.available_replicas),
        up_to_date_replicas: count(status.up_to_date_replicas),
        annotations: set.annotations().clone(),
        template: template(set.at("/spec/template/spec")),
    }
}

/// A Machine.
pub(crate) fn machine(machine: &Live<Machine>) -> rollout::Machine {
    let status = machine.status.clone().unwrap_or_default();
    let is = |type_: &str, wanted: &str| {
        let condition = conditions::get(&status.conditions, type_);
        condition.is_some_and(|condition| condition.status == wanted)
    };
    let check_failed = is("HealthCheckSucceeded", "False");
    rollout::Machine {
        name: machine.name_any(),
        owner: controller_of(machine).map_or_else(String::new, |(_, name)| name.to_owned()),
        created_at: created_at(machine),
        annotations: machine.annotations().clone(),
        deleting: machine.is_deleting(),
        has_node: status.node_ref.is_some(),
        unhealthy: status.node_ref.is_none()
            || check_failed
            || is("NodeHealthy", "False")
            || is("NodeHealthy", "Unknown"),
        needs_remediation: check_failed && is("OwnerRemediated", "False"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn md(rollout: Value) -> Live<MachineDeployment> {
        Live::read(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "md"},
            "spec": {"clusterName": "c", "replicas": 4, "rollout": rollout},
        }))
        .unwrap()
    }

    fn posts(object: &Live<MachineDeployment>) -> (i64, i64) {
        let posts = deployment(object, &defaulted(object)).unwrap().fenceposts();
        (posts.surge, posts.unavailable)
    }

    #[test]
    fn limits_come_from_the_spec_or_the_defaults() {
        let rolling = |value: Value| {
            md(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": value}}))
        };
        assert_eq!(posts(&md(json!({}))), (1, 0));
        assert_eq!(posts(&rolling(json!({"maxSurge": 0, "maxUnavailable": 1}))), (0, 1));
        assert_eq!(posts(&rolling(json!({"maxSurge": "50%", "maxUnavailable": "25%"}))), (2, 1));
        let wrong = rolling(json!({"maxSurge": "many"}));
        assert!(deployment(&wrong, &defaulted(&wrong)).is_err());
        let on_delete = md(json!({"strategy": {"type": "OnDelete"}}));
        let read = deployment(&on_delete, &defaulted(&on_delete)).unwrap();
        assert_eq!(read.strategy, rollout::Strategy::OnDelete);
    }

    #[test]
    fn a_machine_without_a_node_or_with_a_sick_one_is_unhealthy() {
        let with = |status: Value| {
            machine(
                &Live::<Machine>::read(json!({
                    "metadata": {"name": "m", "ownerReferences": [{
                        "apiVersion": "a", "kind": "MachineSet", "name": "ms", "uid": "u",
                        "controller": true,
                    }]},
                    "spec": {"clusterName": "c"}, "status": status,
                }))
                .unwrap(),
            )
        };
        let condition = |type_: &str, status: &str| {
            json!({
                "type": type_, "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let node = json!({"name": "m"});
        assert!(with(json!({})).unhealthy);
        assert_eq!(with(json!({})).owner, "ms");
        assert!(!with(json!({"nodeRef": node})).unhealthy);
        let sick = json!({"nodeRef": node, "conditions": [condition("NodeHealthy", "False")]});
        assert!(with(sick).unhealthy);
        let broken = json!({"nodeRef": node, "conditions": [
            condition("HealthCheckSucceeded", "False"), condition("OwnerRemediated", "False"),
        ]});
        assert!(with(broken).needs_remediation);
    }
}
