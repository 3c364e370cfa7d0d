//! Eviction, and the PodDisruptionBudget accounting behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::delete::DeleteOptions;
use crate::error::ApiError;
use crate::history::ChangeKind;
use crate::object::{member, meta_text, text, unchanged};
use crate::resources::Resource;
use crate::selector::LabelSelector;
use crate::store::{Entry, Store, key_of, range, time_text};

const PODS: &str = "pods";
const BUDGETS: &str = "poddisruptionbudgets.policy";

fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = member(value, &["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition["status"] == "True")
}

/// More pods than any cluster has: prevents overflow of sums over user input.
const MOST_PODS: i64 = 1_000_000_000;

/// `minAvailable` or `maxUnavailable` of `total`: a percentage rounds up, as in Kubernetes.
fn scaled(value: &Value, total: i64) -> i64 {
    match value {
        Value::Number(number) => number.as_i64().unwrap_or(0).clamp(0, MOST_PODS),
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            (percent.clamp(0, 100) * total + 99) / 100
        }
        _ => 0,
    }
}

/// The current counts of a budget.
struct Count {
    expected: i64,
    healthy: i64,
    desired: i64,
}

impl Count {
    fn allowed(&self) -> i64 {
        if self.expected == 0 { 0 } else { (self.healthy - self.desired).max(0) }
    }
}

impl Store {
    fn matching_pods(&self, namespace: &str, budget: &Value) -> Vec<Arc<Entry>> {
        let Some(selector) = LabelSelector::from_object(&budget["spec"]["selector"]) else {
            return Vec::new();
        };
        let Some(table) = self.table(PODS) else {
            return Vec::new();
        };
        range(table, Some(namespace))
            .filter(|(_, entry)| selector.matches(|key| entry.label(key)))
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// The expected number of pods: the sum of their controllers' replicas; a pod without a known
    /// controller counts as one.
    fn expected_pods(&self, pods: &[Value]) -> i64 {
        let mut wanted: BTreeMap<&str, i64> = BTreeMap::new();
        for pod in pods {
            let owners = member(pod, &["metadata", "ownerReferences"]).and_then(Value::as_array);
            let controller = owners
                .into_iter()
                .flatten()
                .find(|owner| owner["controller"] == true)
                .and_then(|owner| owner["uid"].as_str());
            let replicas = controller
                .and_then(|uid| self.uids.get(uid))
                .and_then(|id| self.get_id(id))
                .and_then(|entry| entry.value()["spec"]["replicas"].as_i64());
            match (controller, replicas) {
                (Some(uid), Some(replicas)) => {
                    wanted.insert(uid, replicas.clamp(0, MOST_PODS));
                }
                _ => *wanted.entry("").or_default() += 1,
            }
        }
        wanted.values().sum()
    }

    fn count(&self, namespace: &str, budget: &Value) -> Count {
        let pods: Vec<Value> =
            self.matching_pods(namespace, budget).iter().map(|entry| entry.value()).collect();
        let present = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let spec = &budget["spec"];
        let (expected, desired) = match (spec.get("maxUnavailable"), spec.get("minAvailable")) {
            (Some(most), _) if !most.is_null() => {
                let expected = self.expected_pods(&pods);
                (expected, (expected - scaled(most, expected)).max(0))
            }
            (_, Some(least)) if least.is_string() => {
                let expected = self.expected_pods(&pods);
                (expected, scaled(least, expected))
            }
            (_, Some(least)) if !least.is_null() => (present, scaled(least, present)),
            _ => (present, present.min(1)),
        };
        let healthy = pods
            .iter()
            .filter(|pod| meta_text(pod, "deletionTimestamp").is_empty() && is_ready(pod))
            .count();
        Count { expected, healthy: i64::try_from(healthy).unwrap_or(i64::MAX), desired }
    }

    /// Recomputes the budgets of a namespace, as Kubernetes' disruption controller does.
    pub(crate) fn refresh_budgets(&mut self, namespace: &str) {
        let Some(resource) = self.registry.stored(BUDGETS).cloned() else {
            return;
        };
        let Some(table) = self.table(BUDGETS).cloned() else {
            return;
        };
        for (key, entry) in range(&table, Some(namespace)) {
            let old = entry.value();
            let count = self.count(namespace, &old);
            let allowed = count.allowed();
            let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
            let state = if allowed > 0 { "True" } else { "False" };
            let before = condition(&old, "DisruptionAllowed");
            let since = before
                .filter(|condition| condition["status"] == state)
                .and_then(|condition| condition["lastTransitionTime"].as_str())
                .map_or_else(|| time_text(self.now), str::to_owned);
            let generation = member(&old, &["metadata", "generation"]).cloned();
            let mut new = old.clone();
            new["status"] = json!({
                "conditions": [{
                    "type": "DisruptionAllowed",
                    "status": state,
                    "reason": reason,
                    "message": "",
                    "lastTransitionTime": since,
                    "observedGeneration": generation,
                }],
                "currentHealthy": count.healthy,
                "desiredHealthy": count.desired,
                "disruptionsAllowed": allowed,
                "expectedPods": count.expected,
                "observedGeneration": generation,
            });
            if !unchanged(&old, &new) {
                self.commit(&resource, key, ChangeKind::Modified, new);
            }
        }
    }

    /// `POST pods/NAME/eviction`.
    pub(crate) fn evict(
        &mut self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        body: &Value,
        dry_run: bool,
    ) -> Result<Value, ApiError> {
        let named = meta_text(body, "name");
        if !named.is_empty() && named != name {
            return Err(ApiError::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let key: Arc<str> = key_of(namespace, name).into();
        let entry = self.get(PODS, &key).ok_or_else(|| ApiError::not_found(resource, name))?;
        let pod = entry.value();
        let options = DeleteOptions { dry_run, ..DeleteOptions::default() };
        let options = match body.get("deleteOptions") {
            Some(sent) => options.merge(sent)?,
            None => options,
        };
        let ends = matches!(text(&pod, &["status", "phase"]), "Succeeded" | "Failed" | "Pending");
        if !ends && !entry.deleting {
            self.check_budget(namespace, &entry, &pod)?;
        }
        self.delete_entry(resource, &key, &options)?;
        self.settle();
        Ok(json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "code": 201,
        }))
    }

    fn check_budget(&self, namespace: &str, entry: &Entry, pod: &Value) -> Result<(), ApiError> {
        let Some(table) = self.table(BUDGETS) else {
            return Ok(());
        };
        let budgets: Vec<Value> = range(table, Some(namespace))
            .map(|(_, budget)| budget.value())
            .filter(|budget| {
                LabelSelector::from_object(&budget["spec"]["selector"])
                    .is_some_and(|selector| selector.matches(|key| entry.label(key)))
            })
            .collect();
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                return Err(ApiError::new(
                    500,
                    "InternalError",
                    "This pod has more than one PodDisruptionBudget, which the eviction \
                     subresource does not support.",
                ));
            }
        };
        // As in Kubernetes, the budget's status decides. `settle` keeps it up to date.
        let counted = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
        let (healthy, desired) = (counted("currentHealthy"), counted("desiredHealthy"));
        if !is_ready(pod) {
            let policy = text(budget, &["spec", "unhealthyPodEvictionPolicy"]);
            if policy == "AlwaysAllow" || (healthy >= desired && desired > 0) {
                return Ok(());
            }
        }
        if counted("disruptionsAllowed") > 0 {
            return Ok(());
        }
        let mut error = ApiError::new(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
        );
        error.details = json!({"causes": [{
            "reason": "DisruptionBudget",
            "message": format!(
                "The disruption budget {} needs {desired} healthy pods and has {healthy} currently",
                meta_text(budget, "name"),
            ),
        }]});
        Err(error)
    }
}
