//! Which namespaces two label selectors have in common.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, Selector};

/// How the namespaces of two selectors relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// No namespace can match both.
    None,
    /// A namespace can match both, and another one only the first.
    Possible,
    /// Every namespace that matches the first also matches the second.
    Certain,
}

/// Compares a selector with another one.
pub(crate) fn overlap(this: &Selector, other: &Selector) -> Overlap {
    let (this, other) = (expressions(this), expressions(other));
    let both = this.iter().chain(&other).cloned();
    if !is_satisfiable(both) {
        return Overlap::None;
    }
    // An expression that cannot be false where the first selector matches excludes nothing.
    let follows = |one: &Expression| !is_satisfiable(this.iter().cloned().chain([negated(one)]));
    if other.iter().all(follows) { Overlap::Certain } else { Overlap::Possible }
}

fn expressions(selector: &Selector) -> Vec<Expression> {
    selector.clone().into_iter().collect()
}

fn negated(expression: &Expression) -> Expression {
    match expression.clone() {
        Expression::In(key, values) => Expression::NotIn(key, values),
        Expression::NotIn(key, values) => Expression::In(key, values),
        Expression::Equal(key, value) => Expression::NotEqual(key, value),
        Expression::NotEqual(key, value) => Expression::Equal(key, value),
        Expression::Exists(key) => Expression::DoesNotExist(key),
        Expression::DoesNotExist(key) => Expression::Exists(key),
    }
}

/// What expressions require of the value of one key.
#[derive(Default)]
struct Required {
    exists: bool,
    absent: bool,
    one_of: Option<BTreeSet<String>>,
    none_of: BTreeSet<String>,
}

impl Required {
    fn one_of(&mut self, values: BTreeSet<String>) {
        self.exists = true;
        self.one_of = Some(match self.one_of.take() {
            Some(known) => known.intersection(&values).cloned().collect(),
            None => values,
        });
    }

    fn is_possible(&self) -> bool {
        if self.absent {
            return !self.exists;
        }
        // The set of all values is never exhausted.
        self.one_of.as_ref().is_none_or(|values| !values.is_subset(&self.none_of))
    }
}

/// Whether any labels match all expressions. Keys are independent of each other.
fn is_satisfiable(all: impl Iterator<Item = Expression>) -> bool {
    let mut keys: BTreeMap<String, Required> = BTreeMap::new();
    for expression in all {
        match expression {
            Expression::In(key, values) => keys.entry(key).or_default().one_of(values),
            Expression::Equal(key, value) => keys.entry(key).or_default().one_of([value].into()),
            Expression::NotIn(key, values) => keys.entry(key).or_default().none_of.extend(values),
            Expression::NotEqual(key, value) => {
                keys.entry(key).or_default().none_of.insert(value);
            }
            Expression::Exists(key) => keys.entry(key).or_default().exists = true,
            Expression::DoesNotExist(key) => keys.entry(key).or_default().absent = true,
        }
    }
    keys.values().all(Required::is_possible)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use serde_json::{Value, json};

    use super::*;

    fn selector(json: Value) -> Selector {
        serde_json::from_value::<LabelSelector>(json).unwrap().try_into().unwrap()
    }

    #[test]
    fn the_table_of_overlaps() {
        use Overlap::{Certain, None, Possible};
        let ours = json!({"matchLabels": {"refit.dev/in-place": "enabled"}});
        let expression = |key: &str, operator: &str, values: Value| {
            let mut one = json!({"key": key, "operator": operator});
            if values.is_array() {
                one["values"] = values;
            }
            json!({"matchExpressions": [one]})
        };
        let on_ours =
            |operator: &str, values: Value| expression("refit.dev/in-place", operator, values);
        let absent = Value::Null;
        let table = [
            (ours.clone(), Certain),
            (json!({}), Certain),
            (json!({"matchLabels": {"refit.dev/in-place": "other"}}), None),
            (json!({"matchLabels": {"team": "a"}}), Possible),
            (json!({"matchLabels": {"refit.dev/in-place": "enabled", "team": "a"}}), Possible),
            (on_ours("Exists", absent.clone()), Certain),
            (on_ours("DoesNotExist", absent.clone()), None),
            (on_ours("In", json!(["enabled", "other"])), Certain),
            (on_ours("In", json!(["other"])), None),
            (on_ours("NotIn", json!(["other"])), Certain),
            (on_ours("NotIn", json!(["enabled"])), None),
            (expression("team", "NotIn", json!(["a"])), Possible),
            (expression("team", "DoesNotExist", absent), Possible),
        ];
        for (other, wanted) in table {
            let found = overlap(&selector(ours.clone()), &selector(other.clone()));
            assert_eq!(found, wanted, "{other}");
        }
    }

    #[test]
    fn a_value_that_is_excluded_elsewhere_is_no_overlap() {
        let this = selector(json!({"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
        ]}));
        let other = selector(json!({"matchExpressions": [
            {"key": "zone", "operator": "NotIn", "values": ["b"]},
            {"key": "zone", "operator": "In", "values": ["b", "c"]},
        ]}));
        assert_eq!(overlap(&this, &other), Overlap::None);
        assert_eq!(overlap(&Selector::default(), &this), Overlap::Possible);
    }
}
