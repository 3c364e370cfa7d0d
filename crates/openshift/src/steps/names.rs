//! The names of the steps: the types of their conditions.

/// The type of the condition that the first two steps share.
pub(crate) const STARTED: &str = "StartedNotificationSent";
pub(crate) const UPGRADABLE: &str = "IsClusterUpgradable";
pub(crate) const HEALTHY_BEFORE: &str = "ClusterHealthyBeforeUpgrade";
pub(crate) const DEPENDENCIES: &str = "ExternalDependenciesAvailable";
pub(crate) const RESERVED: &str = "ComputeCapacityReserved";
pub(crate) const SILENCED: &str = "ControlPlaneMaintenanceWindowCreated";
pub(crate) const COMMENCED: &str = "UpgradeCommenced";
pub(crate) const CONTROL_PLANE: &str = "ControlPlaneUpgraded";
pub(crate) const CONTROL_PLANE_AUDIBLE: &str = "ControlPlaneMaintenanceWindowRemoved";
pub(crate) const WORKERS_SILENCED: &str = "WorkersMaintenanceWindowCreated";
pub(crate) const WORKERS: &str = "WorkerNodesUpgraded";
pub(crate) const REMOVED: &str = "ComputeCapacityRemoved";
pub(crate) const AUDIBLE: &str = "WorkersMaintenanceWindowRemoved";
pub(crate) const HEALTHY_AFTER: &str = "ClusterHealthyAfterUpgrade";
pub(crate) const PROCEDURES: &str = "PostUpgradeTasksCompleted";
pub(crate) const COMPLETED: &str = "CompletedNotificationSent";
/// Condition of an upgrade that did not begin in time (M11), which is of no step.
pub const FAILED: &str = "FailedUpgrade";
