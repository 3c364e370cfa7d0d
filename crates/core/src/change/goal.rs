//! The desired state of a Machine that an update must reach.

use refit_kinds::refit::Goal;
use serde_json::Value;

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
pub fn goal(machine: &Value) -> Result<Goal, GoalError> {
    let text =
        machine.pointer("/spec/version").and_then(Value::as_str).ok_or(GoalError::NoVersion)?;
    Ok(Goal::of_version(text.parse()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_updater_covers_is_a_goal() {
        let machine = |version: &str, seconds: u32| {
            goal(&json!({"spec": {"version": version, "minReadySeconds": seconds}})).unwrap()
        };
        assert_eq!(machine("v1.35.0", 3), machine("v1.35.0", 4));
        assert_ne!(machine("v1.35.0", 3), machine("v1.35.1", 3));
    }

    #[test]
    fn a_machine_without_a_version_has_no_goal() {
        assert_eq!(goal(&json!({"spec": {}})), Err(GoalError::NoVersion));
        let error = goal(&json!({"spec": {"version": "1.35"}})).unwrap_err();
        assert!(matches!(error, GoalError::Version(_)));
    }
}
