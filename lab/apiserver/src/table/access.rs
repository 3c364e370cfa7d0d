//! Tables of roles, bindings and disruption budgets.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age_of, list, number, plain as text_of, words};
use super::{AGE, Col, Printer, plain};
use crate::object::{member, text};

const BINDING: &[Col] = &[
    Col("Role", "string", 0),
    AGE,
    Col("Users", "string", 1),
    Col("Groups", "string", 1),
    Col("ServiceAccounts", "string", 1),
];

static ROLE: Printer = plain(&[Col("Created At", "date", 0)], created_at);
static ROLE_BINDING: Printer = plain(BINDING, binding);

static BUDGET: Printer = plain(
    &[
        Col("Min Available", "string", 0),
        Col("Max Unavailable", "string", 0),
        Col("Allowed Disruptions", "integer", 0),
        AGE,
    ],
    budget,
);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Role" | "ClusterRole" => &ROLE,
        "RoleBinding" | "ClusterRoleBinding" => &ROLE_BINDING,
        "PodDisruptionBudget" => &BUDGET,
        _ => return None,
    })
}

/// The creation timestamp of the object.
pub(super) fn created_at(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![words(object, &["metadata", "creationTimestamp"])]
}

fn binding(binding: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let names: Vec<String> = list(binding, &["subjects"])
            .iter()
            .filter(|subject| subject["kind"] == kind)
            .map(|subject| match text(subject, &["namespace"]) {
                "" => text(subject, &["name"]).to_owned(),
                namespace => format!("{namespace}/{}", text(subject, &["name"])),
            })
            .collect();
        json!(names.join(", "))
    };
    let role = &binding["roleRef"];
    vec![
        json!(format!("{}/{}", text(role, &["kind"]), text(role, &["name"]))),
        age_of(binding, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

fn budget(budget: &Value, now: Timestamp) -> Vec<Value> {
    let bound = |key: &str| match member(budget, &["spec", key]) {
        None | Some(Value::Null) => json!("N/A"),
        Some(value) => json!(text_of(value)),
    };
    vec![
        bound("minAvailable"),
        bound("maxUnavailable"),
        json!(number(budget, &["status", "disruptionsAllowed"])),
        age_of(budget, now),
    ]
}
