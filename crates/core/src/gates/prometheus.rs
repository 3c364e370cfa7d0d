//! What is asked of Prometheus, and what its answers mean (`docs/facts/prometheus.md`).

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::refit::AlertsGate;
use serde::Deserialize;

use super::{GatedCluster, some_of};
use crate::cel;

/// How many characters of an error of Prometheus are shown.
const SHOWN_CHARACTERS: usize = 200;
const ALERT_NAME: &str = "alertname";
const METRIC_NAME: &str = "__name__";

/// An answer of `/api/v1/query`.
#[derive(Debug, Deserialize)]
pub struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Vec<Sample>),
    Scalar(Value),
    /// Of a range, or of times: no present value.
    Matrix(serde::de::IgnoredAny),
    String(serde::de::IgnoredAny),
}

/// Seconds since 1970, and a number as text.
type Value = (f64, String);

#[derive(Debug, Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    value: Value,
}

impl Answer {
    /// Reads an answer with this status of HTTP. The error is a sentence.
    pub fn read(status: u16, body: &[u8]) -> Result<Self, String> {
        let answer: Result<Self, _> = serde_json::from_slice(body);
        if status == 200 {
            return answer
                .map_err(|error| format!("the answer of Prometheus cannot be read: {error}"));
        }
        let why = answer.ok().and_then(|answer| answer.error);
        let why = why.map(|why| format!(": {}", shortened(&why))).unwrap_or_default();
        Err(format!("Prometheus answers with HTTP status {status}{why}"))
    }

    /// The samples, if they are all that there are.
    fn samples(self) -> Result<Vec<Sample>, String> {
        if let Some(error) = self.error {
            return Err(format!("Prometheus reports an error: {}", shortened(&error)));
        }
        if let Some(warning) = self.warnings.first() {
            return Err(format!(
                "the answer of Prometheus may be incomplete: {}",
                shortened(warning)
            ));
        }
        match self.data {
            Some(Data::Vector(samples)) => Ok(samples),
            Some(Data::Scalar(value)) => Ok(vec![Sample { metric: BTreeMap::new(), value }]),
            Some(Data::Matrix(_) | Data::String(_)) => {
                Err("the result of the query is neither a vector nor a number".to_owned())
            }
            None => Err("the answer of Prometheus has no result".to_owned()),
        }
    }
}

/// The query for the alerts of a gate that fire.
pub fn alerts_query(gate: &AlertsGate, cluster: &GatedCluster<'_>) -> Result<String, String> {
    let mut matchers = vec![r#"alertstate="firing""#.to_owned()];
    for (label, value) in &gate.labels {
        let mut characters = label.chars();
        let is_name = characters.next().is_some_and(|one| one.is_ascii_alphabetic() || one == '_')
            && characters.all(|one| one.is_ascii_alphanumeric() || one == '_');
        if !is_name {
            return Err(format!("{label:?} is not a name of a label of Prometheus"));
        }
        matchers.push(format!("{label}={}", quoted(&cluster.fill_in(value))));
    }
    matchers
        .extend(gate.ignored.iter().map(|ignored| format!("{ALERT_NAME}!={}", quoted(ignored))));
    Ok(format!("ALERTS{{{}}}", matchers.join(",")))
}

/// A string of PromQL: its escapes are those of JSON, and more.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What the answer to [`alerts_query`] means: no such alert fires.
pub fn judge_alerts(answer: Answer) -> Result<(), String> {
    let samples = answer.samples()?;
    let name = |sample: &Sample| {
        sample.metric.get(ALERT_NAME).cloned().unwrap_or_else(|| "an alert without name".to_owned())
    };
    let firing: BTreeSet<String> = samples.iter().map(name).collect();
    if firing.is_empty() {
        return Ok(());
    }
    let firing: Vec<String> = firing.into_iter().collect();
    let verb = if firing.len() == 1 { "fires" } else { "fire" };
    Err(format!("{} {verb}", some_of(&firing)))
}

/// What the answer to a query of a user means: it has a result, and no value of 0.
pub fn judge_query(query: &str, answer: Answer) -> Result<(), String> {
    let samples = answer.samples()?;
    let query = cel::shown(query);
    if samples.is_empty() {
        return Err(format!("{query} has no result"));
    }
    let is_true = |sample: &Sample| {
        sample.value.1.parse().is_ok_and(|value: f64| value != 0.0 && !value.is_nan())
    };
    let mut failing: Vec<String> =
        samples.iter().filter(|sample| !is_true(sample)).map(labels).collect();
    failing.sort();
    if failing.is_empty() {
        return Ok(());
    }
    failing.retain(|labels| !labels.is_empty());
    if failing.is_empty() {
        return Err(format!("{query} does not hold"));
    }
    Err(format!("{query} does not hold for {}", some_of(&failing)))
}

/// The labels of a sample as Prometheus shows them; empty without any.
fn labels(sample: &Sample) -> String {
    let labels = sample.metric.iter().filter(|(name, _)| *name != METRIC_NAME);
    let labels: Vec<String> =
        labels.map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(", ")) }
}

fn shortened(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(SHOWN_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EDGE: GatedCluster<'_> = GatedCluster { namespace: "site-7", name: "edge-1" };

    fn answer(body: &serde_json::Value) -> Result<Answer, String> {
        Answer::read(200, body.to_string().as_bytes())
    }

    fn vector(samples: &serde_json::Value) -> Answer {
        let data = json!({"resultType": "vector", "result": samples});
        answer(&json!({"status": "success", "data": data})).unwrap()
    }

    fn alerts(labels: &[(&str, &str)], ignored: &[&str]) -> AlertsGate {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        AlertsGate {
            labels: labels.iter().map(owned).collect(),
            ignored: ignored.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn the_alerts_of_a_gate_are_selected_by_labels_that_are_quoted() {
        let gate =
            alerts(&[("severity", "critical"), ("cluster", "$(namespace)/$(cluster)")], &["Dog"]);
        assert_eq!(
            alerts_query(&gate, &EDGE).unwrap(),
            r#"ALERTS{alertstate="firing",cluster="site-7/edge-1",severity="critical",alertname!="Dog"}"#
        );
        let escaping = alerts(&[("severity", "a\"} or vector(1) or ALERTS{x=\"")], &[]);
        let query = alerts_query(&escaping, &EDGE).unwrap();
        assert!(query.contains(r#"severity="a\"} or vector(1) or ALERTS{x=\"""#), "{query}");
        for bad in ["", "a-b", "a=\"1\"} or up{b", "1a"] {
            assert!(alerts_query(&alerts(&[(bad, "x")], &[]), &EDGE).is_err(), "{bad}");
        }
    }

    #[test]
    fn alerts_that_fire_close_a_gate_and_are_named_once() {
        assert_eq!(judge_alerts(vector(&json!([]))), Ok(()));
        let firing =
            |name: &str| json!({"metric": {"alertname": name, "pod": "p"}, "value": [1.5, "1"]});
        assert_eq!(
            judge_alerts(vector(&json!([firing("B"), firing("A"), firing("B")]))),
            Err("A, B fire".to_owned())
        );
        let many: Vec<_> = ["A", "B", "C", "D", "E"].map(firing).into();
        assert_eq!(judge_alerts(vector(&json!(many))), Err("A, B, C and 2 more fire".to_owned()));
        assert_eq!(judge_alerts(vector(&json!([firing("A")]))), Err("A fires".to_owned()));
    }

    #[test]
    fn a_query_holds_if_it_has_a_result_without_0() {
        let sample = |node: &str, value: &str| json!({"metric": {"__name__": "up", "node": node}, "value": [1, value]});
        let judged = |samples: &[serde_json::Value]| judge_query("up", vector(&json!(samples)));
        assert_eq!(judged(&[sample("a", "1"), sample("b", "0.5"), sample("c", "+Inf")]), Ok(()));
        assert_eq!(judged(&[]), Err("up has no result".to_owned()));
        assert_eq!(
            judged(&[sample("b", "0"), sample("a", "NaN"), sample("c", "1"), sample("d", "x")]),
            Err(r#"up does not hold for {node="a"}, {node="b"}, {node="d"}"#.to_owned())
        );
        let scalar = |value: &str| {
            answer(&json!({"data": {"resultType": "scalar", "result": [1, value]}})).unwrap()
        };
        assert_eq!(judge_query("1", scalar("1")), Ok(()));
        assert_eq!(judge_query("0", scalar("0")), Err("0 does not hold".to_owned()));
    }

    #[test]
    fn an_answer_that_may_lack_something_closes_a_gate() {
        let closed = |body: serde_json::Value| answer(&body).and_then(judge_alerts).unwrap_err();
        let empty = json!({"resultType": "vector", "result": []});
        assert_eq!(
            closed(json!({"data": empty, "warnings": ["store 2 is down\nx"]})),
            "the answer of Prometheus may be incomplete: store 2 is down"
        );
        assert_eq!(closed(json!({"status": "success"})), "the answer of Prometheus has no result");
        let matrix = json!({"data": {"resultType": "matrix", "result": []}});
        assert_eq!(closed(matrix), "the result of the query is neither a vector nor a number");
        let histogram = json!([{"metric": {}, "histogram": [1, {}]}]);
        let error = closed(json!({"data": {"resultType": "vector", "result": histogram}}));
        assert!(error.starts_with("the answer of Prometheus cannot be read: "), "{error}");
        assert_eq!(
            Answer::read(503, b"<html>").unwrap_err(),
            "Prometheus answers with HTTP status 503"
        );
        assert_eq!(
            Answer::read(400, br#"{"status":"error","error":"parse error"}"#).unwrap_err(),
            "Prometheus answers with HTTP status 400: parse error"
        );
    }

    proptest::proptest! {
        #[test]
        fn no_answer_of_prometheus_ends_the_program(body: Vec<u8>, status: u16) {
            let _ = Answer::read(status, &body).and_then(judge_alerts);
        }

        #[test]
        fn a_label_cannot_add_to_its_query(value in ".*") {
            let query = alerts_query(&alerts(&[("a", &value)], &[]), &EDGE).unwrap();
            let rest = query.strip_prefix(r#"ALERTS{alertstate="firing",a="#).unwrap();
            let text: String = serde_json::from_str(rest.strip_suffix('}').unwrap()).unwrap();
            proptest::prop_assert_eq!(text, EDGE.fill_in(&value));
        }
    }
}
