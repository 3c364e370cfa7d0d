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
    result: Option<Vec<RawSample>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSample {
    metric: BTreeMap<String, String>,
    value: Option<(serde_json::Number, String)>,
}

/// A series in an answer of Prometheus: its labels, and its value.
pub type Sample = (BTreeMap<String, String>, String);

/// The series in an answer of Prometheus with this status of HTTP. Strict, an error of Prometheus in JSON counts as an answer
/// without series.
pub fn samples(status: u16, body: &[u8], compat: Compat) -> Read<Vec<Sample>> {
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
    let samples = result.unwrap_or_default().into_iter();
    Ok(samples
        .map(|one| (one.metric, one.value.map_or_else(String::new, |(_, value)| value)))
        .collect())
}

/// The names of the alerts in these series, each once.
pub fn names(samples: &[Sample]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (labels, _) in samples {
        let name = labels.get("alertname").cloned().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The names in an answer of Prometheus to [`query`], each once.
pub fn firing(status: u16, body: &[u8], compat: Compat) -> Read<Vec<String>> {
    Ok(names(&samples(status, body, compat)?))
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
