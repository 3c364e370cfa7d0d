//! The desired state of a Machine that an update must reach.

use refit_kinds::{
    refit::{CONFIGURATION, Goal, GoalPart},
    version::StatedVersion,
};

use super::{
    claim::hash_of,
    configuration::hash_of_configuration,
    cover::Updater,
    objects::{Level, Objects, PARTS},
};

/// Why a Machine has no valid goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// The Machine specifies no version, and no Updater claims any of its fields.
    #[error("the desired Machine has no spec.version, and no Updater is for it")]
    Nothing,
    /// The version is invalid.
    #[error("the desired Machine's spec.version: {0}")]
    Version(#[from] refit_kinds::version::VersionError),
}

/// The state that an update of this Machine must reach, with the Updaters for it.
pub fn goal(desired: &Objects, updaters: &[Updater]) -> Result<Goal, GoalError> {
    let kubernetes_version = match desired.version(Level::Machine) {
        StatedVersion::Absent => None,
        StatedVersion::Version(version) => Some(version),
        StatedVersion::Unreadable(text) => Some(text.parse()?),
    };
    let objects: Vec<_> = PARTS.iter().filter_map(|part| desired.part(*part)).collect();
    let part = |updater: &Updater| match updater {
        Updater::Kubeadm => None,
        Updater::Added(added) => Some(GoalPart {
            updater: added.part.updater.clone(),
            hash: hash_of(&added.claims, &objects)?,
        }),
        Updater::Configuration(_) => Some(GoalPart {
            updater: CONFIGURATION.to_owned(),
            hash: hash_of_configuration(desired.bootstrap.as_ref()?.get("spec")?),
        }),
    };
    let parts = updaters.iter().filter_map(part).collect();
    let goal = Goal { kubernetes_version, parts, ..Goal::default() };
    if goal == Goal::default() { Err(GoalError::Nothing) } else { Ok(goal) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::change::{Claim, testing::leaving};

    fn desired(spec: &Value) -> Objects {
        Objects {
            owner: json!({"kind": "Machine", "spec": spec}),
            infrastructure: json!({"apiVersion": "g/v1", "kind": "M", "spec": {"image": "a", "power": "on"}}),
            bootstrap: None,
        }
    }

    fn image() -> Updater {
        let paths = vec!["/spec/image".parse().unwrap()];
        leaving("image", &[Claim { group: "g".into(), kind: "M".into(), paths }])
    }

    #[test]
    fn only_what_an_updater_covers_is_a_goal() {
        let goal_of = |version: &str, power: &str| {
            let mut desired = desired(&json!({"version": version}));
            desired.infrastructure["spec"]["power"] = json!(power);
            goal(&desired, &[image()]).unwrap()
        };
        assert_eq!(goal_of("v1.35.0", "on"), goal_of("v1.35.0", "off"));
        assert_ne!(goal_of("v1.35.0", "on"), goal_of("v1.35.1", "on"));
        let mut other = desired(&json!({"version": "v1.35.0"}));
        other.infrastructure["spec"]["image"] = json!("b");
        assert_ne!(goal(&other, &[image()]).unwrap(), goal_of("v1.35.0", "on"));
    }

    #[test]
    fn a_machine_without_a_version_has_the_goal_of_its_updaters() {
        let without = desired(&json!({}));
        assert_eq!(goal(&without, &[]), Err(GoalError::Nothing));
        let by_updater = goal(&without, &[image()]).unwrap();
        assert_eq!((by_updater.kubernetes_version, by_updater.parts.len()), (None, 1));
        let error = goal(&desired(&json!({"version": "1.35"})), &[]).unwrap_err();
        assert!(matches!(error, GoalError::Version(_)));
    }
}
