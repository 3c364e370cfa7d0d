//! Label selectors, as Cluster API reads them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether a selector matches every object, whatever its labels.
pub fn selects_all(selector: Option<&LabelSelector>) -> bool {
    selector.is_some_and(|s| {
        s.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && s.match_expressions.as_ref().is_none_or(Vec::is_empty)
    })
}

/// Whether a selector matches labels; an absent one matches nothing, an empty one everything.
pub fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else {
        return false;
    };
    let equal =
        selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|wanted| {
            let values = wanted.values.as_deref().unwrap_or_default();
            let found = labels.get(&wanted.key);
            match wanted.operator.as_str() {
                "In" => found.is_some_and(|value| values.contains(value)),
                "NotIn" => found.is_none_or(|value| !values.contains(value)),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// A selector as kubectl writes one.
pub fn shown(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "none, which matches no namespace".to_owned();
    };
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let rest = selector.match_expressions.iter().flatten().map(|wanted| {
        let values = wanted.values.as_deref().unwrap_or_default().join(",");
        match wanted.operator.as_str() {
            "In" => format!("{} in ({values})", wanted.key),
            "NotIn" => format!("{} notin ({values})", wanted.key),
            "Exists" => wanted.key.clone(),
            "DoesNotExist" => format!("!{}", wanted.key),
            other => format!("{} {other} ({values})", wanted.key),
        }
    });
    equal.chain(rest).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_of_selectors() {
        let labels: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
        let expression = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let table = [
            (json!({}), true, ""),
            (json!({"matchLabels": {"a": "1"}}), true, "a=1"),
            (json!({"matchLabels": {"a": "2"}}), false, "a=2"),
            (expression("In", "a", &["0", "1"]), true, "a in (0,1)"),
            (expression("NotIn", "a", &["1"]), false, "a notin (1)"),
            (expression("NotIn", "b", &["1"]), true, "b notin (1)"),
            (expression("Exists", "a", &[]), true, "a"),
            (expression("DoesNotExist", "a", &[]), false, "!a"),
            (expression("Gt", "a", &["0"]), false, "a Gt (0)"),
        ];
        for (selector, matches, text) in table {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(selects(Some(&selector), &labels), matches, "{text}");
            assert_eq!(shown(Some(&selector)), text);
            assert_eq!(selects_all(Some(&selector)), text.is_empty());
        }
        assert!(!selects(None, &labels) && !selects_all(None));
    }
}
