//! A stand-in for the Prometheus of a cluster: alerts that fire, and series that were scraped. It evaluates one selector of a
//! query, with its matchers; real programs do more, in the test bed.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use refit_runtime::{net::Listener, serve};
use regex::Regex;
use serde_json::{Value, json};

/// Its host name.
pub const HOST: &str = "prometheus-k8s.openshift-monitoring.svc.cluster.local";
/// Its port.
pub const PORT: u16 = 9091;

/// Name and labels, the name as the label `__name__`.
type Series = BTreeMap<String, String>;

/// What it knows.
#[derive(Clone, Debug, Default)]
pub struct Prometheus(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The alerts that fire, by their names.
    alerts: BTreeMap<String, Series>,
    /// Those that have fired.
    past: BTreeMap<String, Series>,
    /// What was scraped last, with its values.
    scraped: Vec<(Series, String)>,
    is_down: bool,
}

impl Prometheus {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets an alert fire with these labels.
    pub fn fire(&self, name: &str, labels: &[(&str, &str)]) {
        let given = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let own = [("__name__", "ALERTS"), ("alertname", name), ("alertstate", "firing")];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let series: Series = given.chain(own).collect();
        let mut state = self.lock();
        state.alerts.insert(name.to_owned(), series.clone());
        state.past.insert(name.to_owned(), series);
    }

    /// Lets an alert end.
    pub fn resolve(&self, name: &str) {
        self.lock().alerts.remove(name);
    }

    /// Takes over a scrape in the text format.
    pub fn scraped(&self, text: &str) {
        static SAMPLE: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^(\w+)(?:\{(.*)\})? (\S+)$").expect("a test compiles it")
        });
        let samples = text.lines().filter_map(|line| {
            let [name, labels, value] = SAMPLE.captures(line).map(|found| {
                [1, 2, 3].map(|at| found.get(at).map_or("", |part| part.as_str()).to_owned())
            })?;
            let labels = matchers(&labels).map(|(key, _, value)| (key, value));
            Some((labels.chain([("__name__".to_owned(), name)]).collect(), value))
        });
        self.lock().scraped = samples.collect();
    }

    /// The series that were scraped last, as in the text format, with their values.
    pub fn series(&self) -> Vec<(String, String)> {
        let state = self.lock();
        let shown = |(series, value): &(Series, String)| {
            let labels = series.iter().filter(|(label, _)| *label != "__name__");
            let labels: Vec<String> =
                labels.map(|(label, value)| format!("{label}={value:?}")).collect();
            (format!("{}{{{}}}", series["__name__"], labels.join(",")), value.clone())
        };
        state.scraped.iter().map(shown).collect()
    }

    /// Sets whether it answers with HTTP status 503.
    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// Serves it, without end.
    pub async fn serve(self, listener: Listener, tls: Option<Arc<rustls::ServerConfig>>) {
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let response = self.answer(request.uri().query().unwrap_or_default());
            std::future::ready(Ok::<_, Infallible>(response))
        });
        serve::serve(listener, tls, service, std::future::pending()).await;
    }

    fn answer(&self, parameters: &str) -> Response<Full<Bytes>> {
        let state = self.lock();
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
    /// The series of the selector in a query.
    fn samples(&self, query: &str) -> Vec<Value> {
        static SELECTOR: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"(\w+)\{([^}]*)\}").expect("a test compiles it"));
        let Some(selector) = SELECTOR.captures(query) else { return Vec::new() };
        let alerts = if query.contains("_over_time(") { &self.past } else { &self.alerts };
        let alerts = alerts.values().map(|series| (series, "1"));
        let scraped = self.scraped.iter().map(|(series, value)| (series, &**value));
        let named = alerts.chain(scraped).filter(|(series, _)| series["__name__"] == selector[1]);
        let matching = named.filter(|(series, _)| {
            matchers(&selector[2]).all(|(label, operator, value)| {
                let found = series.get(&label).map(String::as_str).unwrap_or_default();
                let is_like = || {
                    Regex::new(&format!("^(?:{value})$")).is_ok_and(|regex| regex.is_match(found))
                };
                match &*operator {
                    "=~" => is_like(),
                    "!~" => !is_like(),
                    "!=" => found != value,
                    _ => found == value,
                }
            })
        });
        let of_alerts = query.contains("by (alertname)");
        let shown = |series: &Series| {
            let kept = |key: &&String| !of_alerts || *key == "alertname";
            series
                .iter()
                .filter(|(key, _)| kept(key))
                .map(|(key, value)| (key.clone(), json!(value)))
                .collect::<Value>()
        };
        matching
            .map(|(series, value)| json!({"metric": shown(series), "value": [0, value]}))
            .collect()
    }
}

/// Label, operator and value of each matcher, or label of a sample.
fn matchers(text: &str) -> impl Iterator<Item = (String, String, String)> {
    static MATCHER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(\w+)(=~|!~|!=|=)"([^"]*)""#).expect("a test compiles it"));
    MATCHER.captures_iter(text).map(|one| [1, 2, 3].map(|at| one[at].to_owned()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_finds_alerts_and_scraped_series_by_their_labels() {
        let prometheus = Prometheus::default();
        prometheus.fire("NodeDown", &[("severity", "critical"), ("namespace", "openshift-a")]);
        prometheus.scraped("# TYPE a gauge\na{x=\"1\",y=\"2\"} 5\nb 7\n");
        let names = |query: &str| -> Vec<Value> {
            prometheus
                .lock()
                .samples(query)
                .into_iter()
                .map(|one| one["value"][1].clone())
                .collect()
        };
        assert_eq!(
            names(r#"ALERTS{severity="critical",namespace=~"^openshift.*|^kube-.*"}"#),
            ["1"]
        );
        assert_eq!(names(r#"ALERTS{severity="critical",alertname!="NodeDown"}"#), [""; 0]);
        assert_eq!(names(r#"a{y="2"}"#), ["5"]);
        assert_eq!(names(r"b{}"), ["7"]);
        prometheus.resolve("NodeDown");
        assert_eq!(names(r#"ALERTS{severity="critical"}"#), [""; 0]);
        assert_eq!(
            names(r#"sum by (alertname)(max_over_time(ALERTS{severity="critical"}[5s]))"#),
            ["1"]
        );
    }
}
