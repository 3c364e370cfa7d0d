//! PodDisruptionBudgets that would stop the drain of a node before it has begun.

use jiff::Timestamp;
use kube::core::Selector;

use super::{
    drain_policy::DrainPolicy,
    drain_sort::{DrainView, PodView, sort},
};
use crate::report::Refusal;

/// A PodDisruptionBudget of a workload cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which pods it protects; `None` for no pods.
    pub selector: Option<Selector>,
    /// Whether it allows no disruption at the moment.
    pub allows_none: bool,
    /// How many disruptions it allows at the moment.
    pub allowed: i32,
    /// Whether as many pods are healthy as it requires.
    pub is_met: bool,
    /// Whether pods that are not Ready are protected while the budget is not met.
    pub spares_unhealthy: bool,
}

/// What is known of a drain that has not begun.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainAhead {
    /// The pods on the node and related objects.
    pub view: DrainView,
    /// The PodDisruptionBudgets in the namespaces of these pods.
    pub budgets: Vec<BudgetView>,
}

/// A budget that would not let a pod go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exhausted {
    pub(super) refusal: Refusal,
    /// Whether it lets the pod go once its other pods are healthy again.
    pub(super) recovers: bool,
}

/// The namespaces of the pods that a drain would evict.
pub fn namespaces_of_leaving(
    view: &DrainView,
    policy: &DrainPolicy,
    node_ready: bool,
    now: Timestamp,
) -> Vec<String> {
    let sorted = sort(view, policy, node_ready, now);
    let mut all: Vec<String> =
        sorted.leaving.iter().map(|(pod, _)| pod.pod.namespace.clone()).collect();
    all.sort();
    all.dedup();
    all
}

impl DrainAhead {
    /// The first budget that would stop the drain; one that recovers by itself only if there is no other.
    pub(super) fn exhausted(
        &self,
        policy: &DrainPolicy,
        node_ready: bool,
        now: Timestamp,
    ) -> Option<Exhausted> {
        let sorted = sort(&self.view, policy, node_ready, now);
        let stopped = sorted.leaving.iter().flat_map(|(pod, _)| {
            let budgets = self.budgets.iter().filter(|budget| budget.stops(pod));
            budgets.map(|budget| Exhausted {
                refusal: Refusal::PodDisruptionBudget {
                    budget: format!("{}/{}", budget.namespace, budget.name),
                    pod: pod.pod.to_string(),
                },
                recovers: !budget.is_met,
            })
        });
        // `min_by_key` returns the first of equals.
        stopped.min_by_key(|one| one.recovers)
    }
}

impl BudgetView {
    /// Whether the API server rejects the eviction of a pod because of this budget
    /// (`docs/facts/kubernetes.md#evictions-and-budgets`).
    fn stops(&self, pod: &PodView) -> bool {
        let is_spared = pod.ready || self.spares_unhealthy && !self.is_met;
        self.allows_none && !pod.pending && !pod.terminating && is_spared && self.protects(pod)
    }
}
