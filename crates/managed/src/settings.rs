//! Settings of the operator.

use refit_openshift::{Compat, upgrade_config::NAMESPACE};
use refit_runtime::net::Listener;

/// Settings of the operator for the whole process. What concerns upgrades is in its ConfigMap, which is read at each look.
#[derive(Debug)]
pub struct Settings {
    /// Namespace of the process, of the UpgradeConfig and of the ConfigMap.
    pub namespace: String,
    /// Whether faults of the original are repaired.
    pub compat: Compat,
    /// Whether Prometheus and Alertmanager are reached by their Routes: for a process outside of the cluster.
    pub routes: bool,
    /// Where the metrics of the steps are served over plain HTTP.
    pub metrics: Option<Listener>,
    /// Where the metrics that are read from the UpgradeConfig are served over plain HTTP.
    pub custom_metrics: Option<Listener>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            compat: Compat::Repaired,
            routes: false,
            metrics: None,
            custom_metrics: None,
        }
    }
}
