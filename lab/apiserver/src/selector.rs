//! Label and field selectors: parsing and matching.

use serde_json::Value;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A label selector; empty selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

impl LabelSelector {
    /// Parses the text form of `?labelSelector=`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for part in split_outside_brackets(text) {
            let part = part.trim();
            if !part.is_empty() {
                requirements.push(parse_requirement(part)?);
            }
        }
        Ok(Self(requirements))
    }

    /// Reads a `metav1.LabelSelector`; `None` for null, which selects nothing.
    pub fn from_object(selector: &Value) -> Option<Self> {
        let selector = selector.as_object()?;
        let mut requirements = Vec::new();
        let labels = selector.get("matchLabels").and_then(Value::as_object);
        for (key, value) in labels.into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement::In(key.clone(), vec![value]));
        }
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let key = expression["key"].as_str()?.to_owned();
            let values = expression["values"].as_array().map_or_else(Vec::new, |values| {
                values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            });
            requirements.push(match expression["operator"].as_str()? {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Missing(key),
                _ => return None,
            });
        }
        Some(Self(requirements))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object with these labels is selected.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|item| item == value))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|item| item != value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Missing(key) => label(key).is_none(),
            Requirement::Greater(key, bound) => {
                label(key).and_then(|value| value.parse::<i64>().ok()).is_some_and(|v| v > *bound)
            }
            Requirement::Less(key, bound) => {
                label(key).and_then(|value| value.parse::<i64>().ok()).is_some_and(|v| v < *bound)
            }
        })
    }
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (index, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    let bad = || format!("unable to parse requirement: {part:?}");
    let key_of = |key: &str| {
        let key = key.trim();
        let fits =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if fits { Ok(key.to_owned()) } else { Err(bad()) }
    };
    if let Some(open) = part.find('(') {
        let values = part[open + 1..].strip_suffix(')').ok_or_else(bad)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = part[..open].split_whitespace();
        let key = key_of(words.next().ok_or_else(bad)?)?;
        return match (words.next(), words.next()) {
            (Some("in"), None) => Ok(Requirement::In(key, values)),
            (Some("notin"), None) => Ok(Requirement::NotIn(key, values)),
            _ => Err(bad()),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key_of(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key_of(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once('>') {
        return Ok(Requirement::Greater(key_of(key)?, value.trim().parse().map_err(|_| bad())?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return Ok(Requirement::Less(key_of(key)?, value.trim().parse().map_err(|_| bad())?));
    }
    match part.strip_prefix('!') {
        Some(key) => Ok(Requirement::Missing(key_of(key)?)),
        None => Ok(Requirement::Exists(key_of(part)?)),
    }
}

/// A field selector: every term must hold; empty selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// Parses the text form of `?fieldSelector=`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (field, true, value)
            } else {
                return Err(format!("invalid selector: '{part}'; can't understand '{part}'"));
            };
            terms.push((field.trim().to_owned(), equal, value.trim().to_owned()));
        }
        Ok(Self(terms))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields that it uses.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(field, _, _)| field.as_str())
    }

    /// The name in `metadata.name=`, which avoids scanning the list.
    pub fn name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, equal, _)| *equal && field == "metadata.name")
            .map(|(_, _, value)| value.as_str())
    }

    /// Whether an object with these field values is selected; a missing field is `""`.
    pub fn matches<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|(field, equal, wanted)| (value(field) == wanted) == *equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels: Vec<(String, String)> =
            labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        LabelSelector::parse(selector).unwrap().matches(|key| {
            labels.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        })
    }

    #[test]
    fn label_selectors_know_every_operator() {
        let labels = [("app", "web"), ("tier", "front"), ("n", "5")];
        for yes in [
            "",
            "app=web",
            "app==web",
            "app!=db",
            "app in (db, web)",
            "app notin (db)",
            "tier",
            "!missing",
            "app=web,tier=front",
            "missing!=x",
            "n>4",
            "n<6",
        ] {
            assert!(selects(yes, &labels), "{yes} must match");
        }
        for no in ["app=db", "app in (db)", "app notin (web)", "!app", "missing", "n>5", "app="] {
            assert!(!selects(no, &labels), "{no} must not match");
        }
    }

    #[test]
    fn invalid_selectors_are_rejected() {
        for text in ["a in b", "=x", "a in (b", "a b", "n>x"] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
        assert!(FieldSelector::parse("metadata.name").is_err());
    }

    #[test]
    fn field_selectors_compare_text() {
        let selector = FieldSelector::parse("spec.nodeName=a,status.phase!=Failed").unwrap();
        assert!(selector.matches(|field| if field == "spec.nodeName" { "a" } else { "Running" }));
        assert!(!selector.matches(|field| if field == "spec.nodeName" { "a" } else { "Failed" }));
    }
}
