//! A stand-in for Prometheus: the alerts that a script lets fire, and queries whose value it sets to 0. Every other query has
//! the value 1. It evaluates no PromQL: real programs do, in the test bed.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use jiff::Timestamp;
use refit_runtime::{net::Listener, serve};
use serde_json::{Value, json};

use crate::world::lock;

/// Its host name.
pub(crate) const HOST: &str = "prometheus.monitoring.svc";
/// Its port.
pub(crate) const PORT: u16 = 9090;

/// What it knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prometheus(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The labels of the alerts that fire, by their names.
    alerts: BTreeMap<String, BTreeMap<String, String>>,
    /// Queries that contain one of these texts have the value 0.
    zero: BTreeSet<String>,
    is_down: bool,
    /// Since when a critical alert fires.
    critical_since: Option<Timestamp>,
}

impl Prometheus {
    /// How the controller reaches it.
    pub(crate) fn config() -> kube::Config {
        let url = format!("http://{HOST}:{PORT}");
        kube::Config::new(url.parse().expect("it is a constant URL"))
    }

    /// Lets an alert fire with these labels, or end; returns since when critical ones fire.
    pub(crate) fn set_alert(
        &self,
        name: &str,
        labels: Option<BTreeMap<String, String>>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut state = lock(&self.0);
        match labels {
            Some(labels) => state.alerts.insert(name.to_owned(), labels),
            None => state.alerts.remove(name),
        };
        let is_critical = |labels: &BTreeMap<String, String>| {
            labels.get("severity").is_some_and(|severity| severity == "critical")
        };
        let fires = state.alerts.values().any(is_critical);
        state.critical_since = state.critical_since.or(Some(now)).filter(|_| fires);
        state.critical_since
    }

    /// Sets whether queries that contain a text have the value 0.
    pub(crate) fn set_zero(&self, text: &str, is_zero: bool) {
        let mut state = lock(&self.0);
        if is_zero {
            state.zero.insert(text.to_owned());
        } else {
            state.zero.remove(text);
        }
    }

    /// Sets whether it answers with HTTP status 503.
    pub(crate) fn set_down(&self, is_down: bool) {
        lock(&self.0).is_down = is_down;
    }

    /// Serves it, without end.
    pub(crate) async fn serve(self, listener: Listener) {
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let response = self.answer(request.uri().query().unwrap_or_default());
            std::future::ready(Ok::<_, Infallible>(response))
        });
        serve::serve(listener, None, service, std::future::pending()).await;
    }

    fn answer(&self, parameters: &str) -> Response<Full<Bytes>> {
        let state = lock(&self.0);
        let (status, body) = if state.is_down {
            (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "error", "error": "shutting down"}))
        } else {
            let pairs: BTreeMap<_, _> = form_urlencoded::parse(parameters.as_bytes()).collect();
            let query = pairs.get("query").map(AsRef::as_ref).unwrap_or_default();
            let data = json!({"resultType": "vector", "result": state.samples(query)});
            (StatusCode::OK, json!({"status": "success", "data": data}))
        };
        let mut response = Response::new(Full::from(body.to_string()));
        *response.status_mut() = status;
        response
    }
}

impl State {
    fn samples(&self, query: &str) -> Vec<Value> {
        let sample = |metric: Value, value: &str| json!({"metric": metric, "value": [0, value]});
        let Some(matchers) = query.strip_prefix("ALERTS{").and_then(|q| q.strip_suffix('}')) else {
            let is_zero = self.zero.iter().any(|text| query.contains(text));
            return vec![sample(json!({}), if is_zero { "0" } else { "1" })];
        };
        let firing = self.alerts.iter().map(|(name, labels)| {
            let mut labels = labels.clone();
            labels.insert("alertname".to_owned(), name.clone());
            labels.insert("alertstate".to_owned(), "firing".to_owned());
            labels
        });
        let matching = firing.filter(|labels| {
            matchers.split(',').all(|matcher| {
                let is = |label: &str, value: &str| {
                    labels.get(label).map(String::as_str).unwrap_or_default()
                        == value.trim_matches('"')
                };
                match matcher.split_once("!=") {
                    Some((label, value)) => !is(label, value),
                    None => matcher.split_once('=').is_some_and(|(label, value)| is(label, value)),
                }
            })
        });
        matching.map(|labels| sample(json!(labels), "1")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_of_prometheus_selects_alerts_by_their_labels() {
        let prometheus = Prometheus::default();
        let labels = BTreeMap::from([("severity".to_owned(), "critical".to_owned())]);
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(prometheus.set_alert("NodeDown", Some(labels), now), Some(now));
        let count = |query: &str| lock(&prometheus.0).samples(query).len();
        assert_eq!(count(r#"ALERTS{alertstate="firing",severity="critical"}"#), 1);
        assert_eq!(count(r#"ALERTS{alertstate="firing",severity="warning"}"#), 0);
        assert_eq!(count(r#"ALERTS{alertstate="firing",alertname!="NodeDown"}"#), 0);
        assert_eq!(prometheus.set_alert("NodeDown", None, now), None);
    }
}
