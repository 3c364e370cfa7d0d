//! Condition types and reasons, and setting a condition without losing its transition time.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Refit's condition on a Machine: whether it matches what its owner wants and, if not, why.
pub const MACHINE_UP_TO_DATE: &str = "MachineUpToDate";
/// `Unknown/Waiting`: the update was requested and waits; the message names the reason.
pub const REASON_WAITING: &str = "Waiting";
/// `Unknown/ExternalUpgradeInProgress`: the update is under way.
pub const REASON_UPDATING: &str = "ExternalUpgradeInProgress";
/// `False/Failed`: the update failed permanently.
pub const REASON_FAILED: &str = "Failed";
/// `True/UpToDate`: the update succeeded.
pub const REASON_UP_TO_DATE: &str = "UpToDate";
/// The message of `Unknown/Waiting` while the host prepares or the machine waits for a slot.
pub fn disturbs_nothing_yet(target: &str) -> String {
    format!("the update to {target} is requested and disturbs nothing yet")
}
/// Cluster API's condition on a Machine: an in-place update is under way.
pub const UPDATING: &str = "Updating";
/// Cluster API's condition on a Machine: it matches its owner's spec.
pub const UP_TO_DATE: &str = "UpToDate";
/// Reason of [`UP_TO_DATE`] False: the Machine differs from its owner's spec.
pub const NOT_UP_TO_DATE: &str = "NotUpToDate";
/// Cluster API's condition on a control plane or MachineDeployment: some of its Machines are outdated.
pub const ROLLING_OUT: &str = "RollingOut";
/// Cluster API's condition on a control plane or MachineDeployment: it has fewer Machines than desired.
pub const SCALING_UP: &str = "ScalingUp";
/// Cluster API's condition on a control plane or MachineDeployment: it has more Machines than desired.
pub const SCALING_DOWN: &str = "ScalingDown";
/// Cluster API's summary condition on a Machine.
pub const READY: &str = "Ready";
/// Cluster API's condition on a Machine: Ready for `minReadySeconds`.
pub const AVAILABLE: &str = "Available";
/// Condition of a Machine: Cluster API deletes it; the reason names the step.
pub const DELETING: &str = "Deleting";
/// A MachineHealthCheck's condition on a Machine: whether it is healthy.
pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
/// On an unhealthy Machine: `False` until its owner has remediated it.
pub const OWNER_REMEDIATED: &str = "OwnerRemediated";

/// Sets one condition in a list keyed by type and returns whether anything changed.
///
/// `lastTransitionTime` changes only with the status, so a reconcile that finds the same state
/// writes nothing.
pub fn set(
    conditions: &mut Vec<Condition>,
    now: Timestamp,
    observed_generation: Option<i64>,
    (type_, status, reason, message): (&str, &str, &str, &str),
) -> bool {
    let next = |since: Time| Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation,
        last_transition_time: since,
    };
    if let Some(old) = conditions.iter_mut().find(|c| c.type_ == type_) {
        let since = if old.status == status { old.last_transition_time.clone() } else { Time(now) };
        let new = next(since);
        let changed = *old != new;
        *old = new;
        changed
    } else {
        conditions.push(next(Time(now)));
        true
    }
}

/// Finds a condition by its type.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of this type has status `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut list = Vec::new();
        assert!(set(&mut list, at(1), Some(1), ("A", "Unknown", "Waiting", "slot")));
        assert!(set(&mut list, at(2), Some(1), ("A", "Unknown", "Updating", "drain")));
        assert_eq!(list[0].last_transition_time, Time(at(1)));
        assert!(set(&mut list, at(3), Some(1), ("A", "True", "UpToDate", "")));
        assert_eq!(list[0].last_transition_time, Time(at(3)));
    }

    #[test]
    fn setting_the_same_again_changes_nothing() {
        let mut list = Vec::new();
        set(&mut list, at(1), Some(1), ("A", "True", "R", "m"));
        assert!(!set(&mut list, at(9), Some(1), ("A", "True", "R", "m")));
        assert_eq!(list.len(), 1);
    }
}
