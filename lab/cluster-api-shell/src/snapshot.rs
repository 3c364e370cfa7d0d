//! Converts live objects to the plain data that [`refit_cluster_api::rollout`] decides on.

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{MachineDeployment, MachineSet},
    rollout,
};
use serde_json::Value;

use crate::{
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

/// A MachineDeployment; `json` is [`defaulted`].
pub(crate) fn deployment(
    deployment: &Live<MachineDeployment>,
    json: &Value,
) -> Result<rollout::MachineDeployment, Error> {
    let spec = &deployment.spec;
    let rollout = spec.rollout.as_ref();
    let strategy = rollout::Strategy::of(json).map_err(|error| {
        Error::Invalid(format!("MachineDeployment {}: {error}", deployment.name_any()))
    })?;
    let after = rollout.and_then(|rollout| rollout.after.as_deref());
    Ok(rollout::MachineDeployment {
        name: deployment.name_any(),
        replicas: i64::from(spec.replicas.unwrap_or(1)),
        strategy,
        template: rollout::Template::of(&json["spec"]["template"]["spec"]),
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
        template: rollout::Template::of(set.at("/spec/template/spec")),
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
}
