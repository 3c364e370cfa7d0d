//! Whether a cluster is fit for an upgrade, and whether it is well after it
//! (`docs/facts/openshift-upgrades.md#health-checks`).
//!
//! | module | checks |
//! |---|---|
//! | [`alerts`] | critical alerts that fire |
//! | `cluster` | operators, MachineSets and Nodes |
//! | [`budgets`] | PodDisruptionBudgets that never allow an eviction |

pub mod alerts;
pub mod budgets;
mod cluster;

use k8s_openapi::api::{core::v1::Node, policy::v1::PodDisruptionBudget};

use self::budgets::DvoRead;
use crate::{Compat, kinds::ClusterOperator, upgrade_config::Phase};

/// The gauge that shows why a health check fails; its labels are [`labels`].
pub const METRIC: &str = "upgradeoperator_healthcheck_failed";
/// The service log of failed checks before the upgrade begins.
pub const NOTICE_BEFORE: &str = "StatePreHealthCheckSL";
/// The service log of failed checks of an upgrade that has begun.
pub const NOTICE_UPGRADING: &str = "StateHealthCheckSL";

/// What a read has found; the error is a sentence about the read.
pub type Read<T> = Result<T, String>;

/// Why a health check fails: the label `reason` of [`METRIC`].
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// Prometheus does not answer the query for alerts.
    HealthcheckQueryFailed,
    /// Critical alerts fire.
    CriticalAlertsFiring,
    /// Operators are degraded or unavailable.
    ClusterOperatorsDegraded,
    /// The operators cannot be read.
    ClusterOperatorStatusFailed,
    /// Capacity is to be reserved, and no MachineSet is of the pool `worker`.
    DefaultWorkerMachinepoolNotFound,
    /// The Nodes cannot be read.
    ClusterNodeQueryFailed,
    /// Workers are cordoned, and not by the machine-config operator.
    ClusterNodeManuallyCordoned,
    /// Nodes have a taint for pressure.
    ClusterNodeTaintUnschedulable,
    /// The deployment-validation-operator reports a PodDisruptionBudget.
    ClusterInvalidPdb,
    /// A PodDisruptionBudget never allows an eviction.
    ClusterInvalidPdbConfiguration,
    /// The PodDisruptionBudgets cannot be read.
    PdbQueryFailed,
    /// The deployment-validation-operator is not found.
    DvoClientCreationFailed,
    /// The deployment-validation-operator does not answer.
    DvoMetricsQueryFailed,
}

/// The labels of a series of [`METRIC`]. `version` is the current version of the cluster, if it is known.
pub fn labels(
    name: &str,
    phase: Phase,
    version: Option<&str>,
    reason: Reason,
) -> [(&'static str, String); 4] {
    [
        ("upgradeconfig_name", name.to_owned()),
        ("state", phase.to_string()),
        ("version", version.unwrap_or("unknown").to_owned()),
        ("reason", reason.to_string()),
    ]
}

/// What each look at the health needs. An upgrade waits for both.
#[derive(Clone, Debug)]
pub struct Essential {
    /// The critical alerts that fire: [`alerts::firing`] of the answer to [`alerts::query`].
    pub alerts: Read<Vec<String>>,
    /// All ClusterOperators.
    pub operators: Read<Vec<ClusterOperator>>,
}

/// What the extended checks need: repaired, they are always made, in the original with the feature gate `PreHealthCheck`. An
/// upgrade does not wait for it: what is found is reported.
#[derive(Clone, Debug)]
pub struct Extended {
    /// Whether extra nodes can be added ([`crate::scaler::can_scale`]); `None` if no capacity is to be reserved.
    pub can_scale: Option<Read<bool>>,
    /// All Nodes.
    pub nodes: Read<Vec<Node>>,
    /// All PodDisruptionBudgets.
    pub budgets: Read<Vec<PodDisruptionBudget>>,
    /// The metrics of the deployment-validation-operator.
    pub dvo: DvoRead,
}

/// What a look at the health has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The series of [`METRIC`] that are set, to 1 if `true`, else to 0. Others stay as they are.
    pub gauges: Vec<(Reason, bool)>,
    /// What is sent. If it cannot be sent, the step fails with that error.
    pub notice: Option<Notice>,
    /// How far the step is.
    pub verdict: Verdict,
}

/// A service log about failed checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// [`NOTICE_BEFORE`] or [`NOTICE_UPGRADING`].
    pub state: &'static str,
    /// The checks that failed.
    pub failures: String,
}

/// How far a health check is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The upgrade does not wait for it. After an upgrade, the series of nodes that failed to drain are removed.
    Passed,
    /// The upgrade waits, for this reason.
    Waits(String),
    /// The step fails with this error.
    Error(String),
}

/// Checks a cluster before an upgrade. `extended` is `None` without the extended checks. In the phase New nothing waits for
/// the verdict.
pub fn before_upgrade(
    essential: &Essential,
    extended: Option<&Extended>,
    phase: Phase,
    compat: Compat,
) -> Looked {
    let Some(extended) = extended else { return by_essential(essential, compat) };
    let essential = [alerts::check(&essential.alerts), cluster::operators(&essential.operators)];
    let blocking: Vec<&str> =
        essential.iter().filter_map(|check| Some(&*check.found.as_ref()?.message)).collect();
    let blocking = blocking.join("; ");
    let mut checks: Vec<&Check> = essential.iter().collect();
    let capacity = extended.can_scale.as_ref().map(cluster::capacity);
    let nodes = [cluster::cordons(&extended.nodes), cluster::pressure(&extended.nodes)];
    checks.extend(capacity.iter().chain(&nodes));
    let budgets = budgets::check(&extended.budgets, &extended.dvo, compat);
    checks.extend(budgets.as_ref().ok());
    let gauges = checks.iter().flat_map(|check| check.gauges(compat)).collect();
    if let Err(error) = budgets {
        return Looked { gauges, notice: None, verdict: Verdict::Error(error.to_owned()) };
    }
    let found: Vec<&Found> = checks.iter().filter_map(|check| check.found.as_ref()).collect();
    let (notice, verdict) = conclude(&found, blocking, phase, compat);
    Looked { gauges, notice, verdict }
}

/// Checks a cluster after an upgrade.
pub fn after_upgrade(essential: &Essential, compat: Compat) -> Looked {
    by_essential(essential, compat)
}

/// The first check that fails is the error.
fn by_essential(essential: &Essential, compat: Compat) -> Looked {
    let alerts = alerts::check(&essential.alerts);
    let mut gauges = alerts.gauges(compat);
    let found = alerts.found.or_else(|| {
        let operators = cluster::operators(&essential.operators);
        gauges.extend(operators.gauges(compat));
        operators.found
    });
    let verdict = found.map_or(Verdict::Passed, |found| Verdict::Error(found.message));
    Looked { gauges, notice: None, verdict }
}

fn conclude(
    found: &[&Found],
    blocking: String,
    phase: Phase,
    compat: Compat,
) -> (Option<Notice>, Verdict) {
    if found.is_empty() {
        return (None, Verdict::Passed);
    }
    let all = |of: fn(&Found) -> &str, separator: &str| {
        found.iter().map(|found| of(found)).collect::<Vec<_>>().join(separator)
    };
    let notice = |state| Some(Notice { state, failures: all(|found| &found.token, ",") });
    let waits = || Verdict::Waits(all(|found| &found.message, "; "));
    match phase {
        Phase::New => (notice(NOTICE_BEFORE), waits()),
        Phase::Upgrading if blocking.is_empty() => (notice(NOTICE_UPGRADING), Verdict::Passed),
        Phase::Upgrading => {
            let verdict = match compat {
                // The condition shows why.
                Compat::Repaired => Verdict::Error(blocking),
                Compat::Strict => Verdict::Waits(blocking),
            };
            (notice(NOTICE_UPGRADING), verdict)
        }
        Phase::Pending | Phase::Upgraded | Phase::Failed => (None, waits()),
    }
}

/// A check.
struct Check {
    /// Why it may fail.
    reasons: &'static [Reason],
    /// The reasons whose series the original clears when it passes.
    cleared: &'static [Reason],
    /// What it has found, if it fails.
    found: Option<Found>,
}

/// Why a check fails.
struct Found {
    reason: Reason,
    /// The check in a service log.
    token: String,
    /// The error, a sentence.
    message: String,
}

impl Check {
    fn new(reasons: &'static [Reason], found: Option<Found>) -> Self {
        Self { reasons, cleared: reasons, found }
    }

    /// The original leaves the other reasons of a check that fails as they were.
    fn gauges(&self, compat: Compat) -> Vec<(Reason, bool)> {
        let reason = self.found.as_ref().map(|found| found.reason);
        match (compat, reason) {
            (Compat::Strict, Some(reason)) => vec![(reason, true)],
            (Compat::Strict, None) => self.cleared.iter().map(|one| (*one, false)).collect(),
            (Compat::Repaired, _) => {
                self.reasons.iter().map(|one| (*one, Some(*one) == reason)).collect()
            }
        }
    }
}
