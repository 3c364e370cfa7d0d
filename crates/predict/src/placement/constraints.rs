//! Which nodes a pod may run on: selectors, affinity, taints, and the nodes that its volumes are bound to
//! (`docs/facts/kubernetes.md#scheduling`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, PodSpec, Taint, Toleration,
};

/// The label with the name of a node's host.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";
/// The taint that a cordon stands for.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Labels of a node.
pub(super) type Labels = BTreeMap<String, String>;

/// A requirement for the labels of a node, or for its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
    of_fields: bool,
}

impl Requirement {
    fn of(requirement: &NodeSelectorRequirement, of_fields: bool) -> Self {
        Self {
            key: requirement.key.clone(),
            operator: requirement.operator.clone(),
            values: requirement.values.clone().unwrap_or_default(),
            of_fields,
        }
    }

    /// An unknown operator matches no node.
    fn matches(&self, node: &str, labels: &Labels) -> bool {
        let found = match (self.of_fields, &*self.key) {
            (true, "metadata.name") => Some(node),
            (true, _) => None,
            (false, key) => labels.get(key).map(String::as_str),
        };
        let is_listed = || found.is_some_and(|found| self.values.iter().any(|one| one == found));
        let number = |text: &str| text.parse::<i64>().ok();
        let numbers = || Some((number(found?)?, number(self.values.first()?)?));
        match &*self.operator {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            "Gt" => numbers().is_some_and(|(found, limit)| found > limit),
            "Lt" => numbers().is_some_and(|(found, limit)| found < limit),
            _ => false,
        }
    }

    /// The hosts that it names, if it names hosts.
    fn hosts(&self) -> Option<&[String]> {
        let key = if self.of_fields { "metadata.name" } else { HOSTNAME };
        (self.key == key && self.operator == "In").then_some(&self.values)
    }
}

/// Terms of which a node has to match one, with all its requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Terms(Vec<Vec<Requirement>>);

impl Terms {
    pub(super) fn of(selector: &NodeSelector) -> Self {
        let term = |term: &k8s_openapi::api::core::v1::NodeSelectorTerm| {
            let labels = term.match_expressions.iter().flatten();
            let fields = term.match_fields.iter().flatten();
            labels
                .map(|one| Requirement::of(one, false))
                .chain(fields.map(|one| Requirement::of(one, true)))
                .collect()
        };
        Self(selector.node_selector_terms.iter().map(term).collect())
    }

    /// A term without requirements matches no node.
    fn match_node(&self, node: &str, labels: &Labels) -> bool {
        self.0.iter().any(|term| {
            !term.is_empty() && term.iter().all(|requirement| requirement.matches(node, labels))
        })
    }

    fn hosts(&self) -> Option<&[String]> {
        let [term] = &self.0[..] else { return None };
        term.iter().find_map(Requirement::hosts)
    }
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tolerated {
    key: String,
    is_any_value: bool,
    value: String,
    effect: String,
}

impl Tolerated {
    fn of(toleration: &Toleration) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            key: text(&toleration.key),
            is_any_value: toleration.operator.as_deref() == Some("Exists"),
            value: text(&toleration.value),
            effect: text(&toleration.effect),
        }
    }

    fn covers(&self, taint: &NodeTaint) -> bool {
        let is_key = self.key == taint.key || (self.key.is_empty() && self.is_any_value);
        let is_effect = self.effect.is_empty() || self.effect == taint.effect;
        is_key && is_effect && (self.is_any_value || self.value == taint.value)
    }
}

/// A taint of a node that repels pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeTaint {
    pub(super) key: String,
    value: String,
    effect: String,
}

impl NodeTaint {
    /// `None` for a taint that is only a preference, and for that of a cordon, which is known otherwise.
    pub(super) fn of(taint: &Taint) -> Option<Self> {
        let counts =
            matches!(&*taint.effect, "NoSchedule" | "NoExecute") && taint.key != UNSCHEDULABLE;
        counts.then(|| Self {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: taint.effect.clone(),
        })
    }

    fn cordon() -> Self {
        let (key, effect) = (UNSCHEDULABLE.to_owned(), "NoSchedule".to_owned());
        Self { key, value: String::new(), effect }
    }
}

/// Where a pod may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Constraints {
    selector: BTreeMap<String, String>,
    affinity: Option<Terms>,
    tolerations: Vec<Tolerated>,
    volumes: Vec<Terms>,
}

/// Why a node is not among those where a pod may run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Excluded {
    Cordon,
    Taint(String),
    Affinity,
    Volume,
}

impl Constraints {
    pub(super) fn of(spec: &PodSpec, volumes: Vec<Terms>) -> Self {
        let affinity = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
        let required = affinity
            .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: required.map(Terms::of),
            tolerations: spec.tolerations.iter().flatten().map(Tolerated::of).collect(),
            volumes,
        }
    }

    /// Checks a node in the order of the scheduler's filters.
    pub(super) fn check(
        &self,
        node: &str,
        labels: &Labels,
        taints: &[NodeTaint],
        is_cordoned: bool,
    ) -> Result<(), Excluded> {
        let tolerates = |taint: &NodeTaint| self.tolerations.iter().any(|one| one.covers(taint));
        if is_cordoned && !tolerates(&NodeTaint::cordon()) {
            return Err(Excluded::Cordon);
        }
        if let Some(taint) = taints.iter().find(|taint| !tolerates(taint)) {
            return Err(Excluded::Taint(taint.key.clone()));
        }
        let is_selected =
            self.selector.iter().all(|(key, value)| labels.get(key).is_some_and(|v| v == value));
        if !is_selected || self.affinity.iter().any(|terms| !terms.match_node(node, labels)) {
            return Err(Excluded::Affinity);
        }
        let reaches = |terms: &Terms| terms.match_node(node, labels);
        if self.volumes.iter().all(reaches) { Ok(()) } else { Err(Excluded::Volume) }
    }

    /// The only hosts that come into question, if the pod or one of its volumes names them, and why others do not.
    pub(super) fn hosts(&self) -> Option<(Vec<&str>, Excluded)> {
        if let Some(host) = self.selector.get(HOSTNAME) {
            return Some((vec![host], Excluded::Affinity));
        }
        let named = |terms: &'_ Terms| terms.hosts().is_some();
        let (terms, why) = match self.affinity.as_ref().filter(|terms| named(terms)) {
            Some(terms) => (terms, Excluded::Affinity),
            None => (self.volumes.iter().find(|terms| named(terms))?, Excluded::Volume),
        };
        Some((terms.hosts()?.iter().map(String::as_str).collect(), why))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value, taints: Value, is_cordoned: bool) -> Result<(), Excluded> {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        let taints: Vec<NodeTaint> = taints.iter().filter_map(NodeTaint::of).collect();
        let labels = [("zone", "a"), ("cores", "8")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        Constraints::of(&spec, Vec::new()).check("n", &labels.into(), &taints, is_cordoned)
    }

    fn with_terms(terms: &Value) -> Value {
        let required = json!({"nodeSelectorTerms": terms});
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        json!({"containers": [], "affinity": {"nodeAffinity": affinity}})
    }

    #[test]
    fn selectors_and_each_operator_of_an_affinity_are_applied() {
        let label = |key: &str, operator: &str, values: &[&str]| {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            json!([{"matchExpressions": [requirement]}])
        };
        let name = |operator: &str, value: &str| {
            json!([{"matchFields": [
                {"key": "metadata.name", "operator": operator, "values": [value]},
            ]}])
        };
        for (terms, fits) in [
            (label("zone", "In", &["b", "a"]), true),
            (label("zone", "In", &["b"]), false),
            (label("none", "In", &["b"]), false),
            (label("zone", "NotIn", &["a"]), false),
            (label("none", "NotIn", &["a"]), true),
            (label("zone", "Exists", &[]), true),
            (label("none", "Exists", &[]), false),
            (label("zone", "DoesNotExist", &[]), false),
            (label("none", "DoesNotExist", &[]), true),
            (label("cores", "Gt", &["7"]), true),
            (label("cores", "Gt", &["8"]), false),
            (label("cores", "Lt", &["9"]), true),
            (label("zone", "Lt", &["9"]), false),
            (label("zone", "Like", &["a"]), false),
            (name("In", "n"), true),
            (name("In", "m"), false),
            (name("NotIn", "n"), false),
            (json!([{}]), false),
            (json!([]), false),
            // Terms are alternatives, requirements of one are not.
            (json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]), true),
            (
                json!([{"matchExpressions": [
                    {"key": "zone", "operator": "Exists"}, {"key": "none", "operator": "Exists"},
                ]}]),
                false,
            ),
        ] {
            let wanted = if fits { Ok(()) } else { Err(Excluded::Affinity) };
            assert_eq!(check(with_terms(&terms), json!([]), false), wanted, "{terms}");
        }
        let select = |value: &str| json!({"containers": [], "nodeSelector": {"zone": value}});
        assert_eq!(check(select("a"), json!([]), false), Ok(()));
        assert_eq!(check(select("b"), json!([]), false), Err(Excluded::Affinity));
    }

    #[test]
    fn taints_repel_pods_that_do_not_tolerate_them() {
        let taint = |effect: &str| json!([{"key": "gpu", "value": "yes", "effect": effect}]);
        let tolerate = |one: Value| json!({"containers": [], "tolerations": [one]});
        let repelled = || Err(Excluded::Taint("gpu".to_owned()));
        let plain = json!({"containers": []});
        assert_eq!(check(plain.clone(), taint("PreferNoSchedule"), false), Ok(()));
        for (toleration, wanted) in [
            (json!({"key": "gpu", "operator": "Exists"}), Ok(())),
            (json!({"operator": "Exists"}), Ok(())),
            (json!({"key": "gpu", "value": "yes"}), Ok(())),
            (
                json!({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}),
                Ok(()),
            ),
            (json!({"key": "gpu", "value": "no"}), repelled()),
            (json!({"key": "cpu", "operator": "Exists"}), repelled()),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), repelled()),
        ] {
            let found = check(tolerate(toleration.clone()), taint("NoSchedule"), false);
            assert_eq!(found, wanted, "{toleration}");
        }
        assert_eq!(check(plain, taint("NoExecute"), false), repelled());
    }

    #[test]
    fn a_cordon_repels_pods_that_do_not_tolerate_its_taint() {
        let cordon = json!([{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]);
        assert_eq!(check(json!({"containers": []}), cordon.clone(), true), Err(Excluded::Cordon));
        let all = json!({"containers": [], "tolerations": [{"operator": "Exists"}]});
        assert_eq!(check(all, cordon, true), Ok(()));
    }
}
