//! Critical alerts of OpenShift's own namespaces.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Check, Found, Read, Reason};
use crate::Compat;

/// The PromQL for the critical alerts that fire, without these namespaces and alerts.
pub fn query(ignored_namespaces: &[String], ignored_alerts: &[String]) -> String {
    let mut query =
        r#"ALERTS{alertstate="firing",severity="critical",namespace=~"^openshift.*|^kube-.*|^default$""#
            .to_owned();
    for (label, values) in [("namespace", ignored_namespaces), ("alertname", ignored_alerts)] {
        for value in values {
            query.extend([",", label, "!=\"", value, "\""]);
        }
    }
    query + "}"
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    status: String,
    error: Option<String>,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    result: Option<Vec<Sample>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Sample {
    metric: BTreeMap<String, String>,
}

/// The names in an answer of Prometheus to [`query`] with this status of HTTP, each once. Strict, an error of Prometheus in
/// JSON counts as an answer without alerts.
pub fn firing(status: u16, body: &[u8], compat: Compat) -> Read<Vec<String>> {
    let answer: Result<Answer, _> = serde_json::from_slice(body);
    if compat == Compat::Repaired && status != 200 {
        let why = answer.ok().and_then(|answer| answer.error);
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        return Err(format!("Prometheus answers with HTTP status {status}{why}"));
    }
    let answer =
        answer.map_err(|error| format!("the answer of Prometheus cannot be read: {error}"))?;
    let result = answer.data.and_then(|data| data.result);
    if compat == Compat::Repaired && (answer.status != "success" || result.is_none()) {
        let why = answer.error.unwrap_or_else(|| "it has no result".to_owned());
        return Err(format!("the answer of Prometheus is not a success: {why}"));
    }
    let mut names: Vec<String> = Vec::new();
    for mut sample in result.unwrap_or_default() {
        let name = sample.metric.remove("alertname").unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

pub(super) fn check(alerts: &Read<Vec<String>>) -> Check {
    let (reason, message) = match alerts {
        Ok(names) if names.is_empty() => (None, String::new()),
        Ok(names) => (
            Some(Reason::CriticalAlertsFiring),
            format!("critical alert(s) firing: {}", names.join(", ")),
        ),
        Err(error) => (
            Some(Reason::HealthcheckQueryFailed),
            format!("unable to query critical alerts: {error}"),
        ),
    };
    let token = "CriticalAlertsHealthcheckFailed".to_owned();
    Check::new(
        &[Reason::HealthcheckQueryFailed, Reason::CriticalAlertsFiring],
        reason.map(|reason| Found { reason, token, message }),
    )
}
