//! The normalised desired state of a Machine.

use refit_cluster_api::kubeadm_config;
use refit_kinds::{
    refit::{Goal, hash_json},
    version::KubernetesVersion,
};
use serde_json::Value;

use super::path::Path;

/// Why a Machine has no valid goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// The Machine specifies no version.
    #[error("the desired Machine has no spec.version")]
    NoVersion,
    /// The version is invalid.
    #[error("the desired Machine's spec.version: {0}")]
    Version(#[from] refit_kinds::version::VersionError),
}

/// The state that an update of this Machine must reach.
///
/// Two requests have the same goal if they differ in nothing that an update changes: labels,
/// annotations, discovery tokens, fields that Cluster API changes in place and fields that only
/// identify the machine do not count. Only hashes of the specs are kept, so no secret is stored.
pub fn goal(
    machine: &Value,
    bootstrap: Option<&Value>,
    infrastructure: &Value,
) -> Result<Goal, GoalError> {
    let text =
        machine.pointer("/spec/version").and_then(Value::as_str).ok_or(GoalError::NoVersion)?;
    let version: KubernetesVersion = text.parse()?;
    let empty = Value::Object(serde_json::Map::new());
    let bootstrap_hash = bootstrap.map_or_else(String::new, |config| {
        let spec = config.get("spec").unwrap_or(&empty);
        hash_json(&kubeadm_config::normalised(spec, Some(&version)))
    });
    let mut infrastructure = infrastructure.get("spec").unwrap_or(&empty).clone();
    for identity in ["providerID", "providerId"] {
        Path::of(&[identity]).put(&mut infrastructure, None);
    }
    Ok(Goal {
        kubernetes_version: version,
        bootstrap_hash,
        infrastructure_hash: hash_json(&infrastructure),
    })
}

/// Whether reaching `known` also reaches `wanted`. An empty field of `known` matches any value, as
/// in a NodeUpdate that an operator wrote.
pub fn same_goal(known: &Goal, wanted: &Goal) -> bool {
    let Goal { kubernetes_version, bootstrap_hash, infrastructure_hash } = known;
    let same = |known: &str, wanted: &str| known.is_empty() || known == wanted;
    *kubernetes_version == wanted.kubernetes_version
        && same(bootstrap_hash, &wanted.bootstrap_hash)
        && same(infrastructure_hash, &wanted.infrastructure_hash)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(version: &str) -> Value {
        json!({"kind": "Machine", "metadata": {"name": "m", "labels": {"a": "b"}},
            "spec": {"version": version, "clusterName": "c", "minReadySeconds": 3}})
    }

    fn goal_of(version: &str, bootstrap: &Value, infrastructure: &Value) -> Goal {
        goal(&machine(version), Some(bootstrap), infrastructure).unwrap()
    }

    #[test]
    fn tokens_labels_and_identities_do_not_change_the_goal() {
        let a = goal_of(
            "v1.35.0",
            &json!({"metadata": {"labels": {"x": "1"}}, "spec": {"joinConfiguration": {
                "discovery": {"bootstrapToken": {"token": "abc"}}, "nodeRegistration": {"name": "n"}}}}),
            &json!({"spec": {"cpus": 4, "providerID": "sandbox://1"}}),
        );
        let b = goal_of(
            "v1.35.0",
            &json!({"spec": {"joinConfiguration": {
                "discovery": {"bootstrapToken": {"token": "def"}}, "nodeRegistration": {"name": "n"}},
                "files": [], "clusterConfiguration": {"controlPlaneEndpoint": "h:1"}}}),
            &json!({"metadata": {"annotations": {"y": "2"}}, "spec": {"cpus": 4}}),
        );
        assert_eq!(a, b);
    }

    #[test]
    fn the_feature_gate_that_follows_the_version_does_not_count() {
        let gate = json!({"spec": {"clusterConfiguration": {
            "featureGates": {"ControlPlaneKubeletLocalMode": true}}}});
        let none = json!({"spec": {}});
        let infra = json!({"spec": {}});
        assert_eq!(
            goal_of("v1.35.0", &gate, &infra).bootstrap_hash,
            goal_of("v1.36.0", &none, &infra).bootstrap_hash
        );
        assert_ne!(
            goal_of("v1.36.0", &gate, &infra).bootstrap_hash,
            goal_of("v1.36.0", &none, &infra).bootstrap_hash
        );
    }

    #[test]
    fn changes_that_an_update_makes_change_the_goal() {
        let (bootstrap, infra) = (json!({"spec": {"verbosity": 1}}), json!({"spec": {"cpus": 4}}));
        let goal = goal_of("v1.35.0", &bootstrap, &infra);
        assert_ne!(goal, goal_of("v1.35.1", &bootstrap, &infra));
        assert_ne!(goal, goal_of("v1.35.0", &json!({"spec": {"verbosity": 2}}), &infra));
        assert_ne!(goal, goal_of("v1.35.0", &bootstrap, &json!({"spec": {"cpus": 8}})));
    }

    #[test]
    fn a_machine_without_a_version_has_no_goal() {
        let error = goal(&json!({"spec": {}}), None, &json!({})).unwrap_err();
        assert_eq!(error, GoalError::NoVersion);
        let error = goal(&machine("1.35"), None, &json!({})).unwrap_err();
        assert!(matches!(error, GoalError::Version(_)));
    }

    #[test]
    fn an_empty_goal_field_matches_any_value() {
        let wanted = goal_of("v1.35.0", &json!({"spec": {"verbosity": 1}}), &json!({"spec": {}}));
        let by_hand = Goal::of_version(KubernetesVersion::new(1, 35, 0));
        assert!(same_goal(&by_hand, &wanted));
        assert!(!same_goal(&wanted, &by_hand));
        let other = Goal::of_version(KubernetesVersion::new(1, 35, 1));
        assert!(!same_goal(&other, &wanted));
    }
}
