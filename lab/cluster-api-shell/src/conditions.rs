//! Conditions as values, before they are merged into an object's list.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::conditions;
use serde_json::Value;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The status is unknown.
    Unknown,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A condition to be merged into an object's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredCondition {
    /// Its type.
    pub(crate) type_: String,
    /// Its status.
    pub(crate) status: Status,
    /// CamelCase reason.
    pub(crate) reason: String,
    /// Human-readable message.
    pub(crate) message: String,
}

impl DesiredCondition {
    /// Builds a condition.
    pub(crate) fn new(
        type_: &str,
        status: impl Into<Status>,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_: type_.to_owned(),
            status: status.into(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// An object's conditions with some replaced, as JSON for a status patch. A transition time changes
/// only with its status, and conditions of other owners are kept.
pub(crate) fn merged(
    existing: &[Condition],
    now: Timestamp,
    generation: Option<i64>,
    desired: &[DesiredCondition],
) -> Value {
    let mut list = existing.to_vec();
    for condition in desired {
        let status = condition.status.as_str();
        let reason = condition.reason.as_str();
        let text = (condition.type_.as_str(), status, reason, condition.message.as_str());
        conditions::set(&mut list, now, generation, text);
    }
    serde_json::to_value(&list).expect("conditions contain only strings and numbers")
}

/// An object's conditions without one type, as JSON for a status patch.
pub(crate) fn without(existing: &[Condition], type_: &str) -> Value {
    let list: Vec<&Condition> = existing.iter().filter(|one| one.type_ != type_).collect();
    serde_json::to_value(&list).expect("conditions contain only strings and numbers")
}

/// Joins findings, one per line, as Cluster API formats them.
pub(crate) fn lines<T: AsRef<str>>(findings: impl IntoIterator<Item = T>) -> String {
    let lines: Vec<String> =
        findings.into_iter().map(|finding| format!("* {}", finding.as_ref())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_others_stay() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut existing = Vec::new();
        conditions::set(&mut existing, at(1), Some(1), ("Theirs", "True", "R", "m"));
        let one = DesiredCondition::new("Ours", true, "Good", "");
        let list = merged(&existing, at(5), Some(2), std::slice::from_ref(&one));
        assert_eq!(list[0]["type"], "Theirs");
        assert_eq!(list[1]["status"], "True");
        let list: Vec<Condition> = serde_json::from_value(list).unwrap();
        let again = merged(&list, at(9), Some(2), &[one]);
        assert_eq!(again[1]["lastTransitionTime"], "1970-01-01T00:00:05Z");
    }

    #[test]
    fn findings_are_listed_line_by_line() {
        assert_eq!(lines(["a", "b"]), "* a\n* b");
        assert_eq!(lines(Vec::<String>::new()), "");
    }
}
