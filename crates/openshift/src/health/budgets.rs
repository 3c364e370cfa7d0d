//! PodDisruptionBudgets that never allow an eviction: a drain of their nodes waits until it is forced.

use k8s_openapi::{
    api::policy::v1::PodDisruptionBudget, apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{Check, Found, Read, Reason};
use crate::Compat;

/// Namespaces of OpenShift's own components.
const OF_OPENSHIFT: &str = "openshift-";
/// Namespaces with that prefix whose budgets users set.
const OF_USERS: [&str; 8] = [
    "openshift-logging",
    "openshift-redhat-marketplace",
    "openshift-operators",
    "openshift-customer-monitoring",
    "openshift-cnv",
    "openshift-route-monitoring-operator",
    "openshift-user-workload-monitoring",
    "openshift-pipelines",
];
/// The metrics of the deployment-validation-operator that the original searches for; the second one does not exist.
const SEARCHED: [&str; 2] = [
    "deployment_validation_operator_pdb_min_available",
    "deployment_validation_operator_pdb_max_available",
];
/// Its metrics for budgets: a series for each object that fails its check.
const DVO_METRICS: [&str; 2] = [
    "deployment_validation_operator_pdb_min_available",
    "deployment_validation_operator_pdb_max_unavailable",
];

/// The metrics of the deployment-validation-operator (`docs/facts/openshift-upgrades.md#health-checks`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DvoRead {
    /// The steps of ARO have no client for it.
    WithoutClient,
    /// Its Service does not exist, or cannot be read.
    Absent(String),
    /// It does not answer.
    Failed(String),
    /// Its metrics, as text.
    Metrics(String),
}

/// The error is that of the original without a client for the metrics.
pub(super) fn check(
    budgets: &Read<Vec<PodDisruptionBudget>>,
    dvo: &DvoRead,
    compat: Compat,
) -> Result<Check, &'static str> {
    let found = match found_in(budgets, compat) {
        None => found_by(dvo, compat)?,
        found => found,
    };
    Ok(Check {
        reasons: &[
            Reason::PdbQueryFailed,
            Reason::ClusterInvalidPdbConfiguration,
            Reason::DvoClientCreationFailed,
            Reason::DvoMetricsQueryFailed,
            Reason::ClusterInvalidPdb,
        ],
        cleared: &[Reason::ClusterInvalidPdb],
        found,
    })
}

fn found_in(budgets: &Read<Vec<PodDisruptionBudget>>, compat: Compat) -> Option<Found> {
    let budgets = match budgets {
        Ok(budgets) => budgets,
        Err(error) => return Some(found(Reason::PdbQueryFailed, error.clone())),
    };
    let examined = budgets.iter().filter(|budget| is_examined(budget, compat));
    let blocking = examined.filter_map(|budget| Some((budget, blocks_by(budget)?)));
    let named = match compat {
        Compat::Repaired => usize::MAX,
        Compat::Strict => 1,
    };
    let (names, texts): (Vec<Value>, Vec<String>) = blocking
        .take(named)
        .map(|(budget, why)| {
            let (name, namespace) = (budget.name_any(), budget.namespace().unwrap_or_default());
            let text = format!("PodDisruptionBudget {namespace}/{name} has {why}");
            (json!({"Name": name, "Namespace": namespace}), text)
        })
        .unzip();
    (!names.is_empty()).then(|| Found {
        reason: Reason::ClusterInvalidPdbConfiguration,
        token: token(&Value::Array(names)),
        message: texts.join("; "),
    })
}

/// The original compares with a prefix that ends with `*`, which no namespace has.
fn is_examined(budget: &PodDisruptionBudget, compat: Compat) -> bool {
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    match compat {
        Compat::Repaired => !namespace.starts_with(OF_OPENSHIFT) || OF_USERS.contains(&namespace),
        Compat::Strict => true,
    }
}

/// What a budget has that never allows an eviction.
fn blocks_by(budget: &PodDisruptionBudget) -> Option<&'static str> {
    let spec = budget.spec.as_ref()?;
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(IntOrString::Int(0)), _) => Some("maxUnavailable 0"),
        (Some(IntOrString::String(share)), _) if share == "0%" => Some("maxUnavailable 0%"),
        (_, Some(IntOrString::String(share))) if share == "100%" => Some("minAvailable 100%"),
        _ => None,
    }
}

fn found_by(dvo: &DvoRead, compat: Compat) -> Result<Option<Found>, &'static str> {
    let metrics = match (compat, dvo) {
        (Compat::Repaired, DvoRead::WithoutClient | DvoRead::Absent(_)) => return Ok(None),
        (Compat::Strict, DvoRead::WithoutClient) => {
            return Err("the upgrader of ARO has no client for the deployment-validation-operator");
        }
        (Compat::Strict, DvoRead::Absent(why)) => {
            return Ok(Some(found(Reason::DvoClientCreationFailed, why.clone())));
        }
        (_, DvoRead::Failed(why)) => {
            return Ok(Some(found(Reason::DvoMetricsQueryFailed, why.clone())));
        }
        (_, DvoRead::Metrics(metrics)) => metrics,
    };
    let reported = match compat {
        Compat::Repaired => metrics
            .lines()
            .filter_map(|line| line.split(['{', ' ']).next())
            .any(|name| DVO_METRICS.contains(&name)),
        Compat::Strict => SEARCHED.iter().any(|name| metrics.contains(name)),
    };
    let message = "the deployment-validation-operator reports a PodDisruptionBudget";
    Ok(reported.then(|| found(Reason::ClusterInvalidPdb, message.to_owned())))
}

/// Without a budget that could be named.
fn found(reason: Reason, message: String) -> Found {
    Found { reason, token: token(&json!([])), message }
}

fn token(names: &Value) -> String {
    format!("PDBHealthcheckFailed: {names}")
}
