//! Asks Prometheus (`docs/facts/prometheus.md`).

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use refit_core::gates::{
    GatedCluster,
    prometheus::{Answer, alerts_query, judge_alerts, judge_query},
};
use refit_kinds::refit::AlertsGate;
use refit_runtime::client::{ClientStack, too_large};
use tokio::sync::Semaphore;

use crate::api_error::cause;

/// Maximum size of an answer.
const MAX_ANSWER: usize = 4 << 20;
/// How many queries are made at once.
const QUERIES_AT_ONCE: usize = 16;

/// The Prometheus of the settings.
pub(crate) struct Prometheus {
    client: Result<Client, String>,
    turns: Semaphore,
}

impl Prometheus {
    /// Of the settings; without them, its gates are closed.
    pub(crate) fn new(stack: ClientStack, settings: Option<&kube::Config>) -> Self {
        let client = match settings {
            Some(config) => stack
                .with_max_answer(MAX_ANSWER)
                .client(config)
                .map_err(|error| format!("the settings of Prometheus are not valid: {error}")),
            None => Err("the controller knows no Prometheus: set --prometheus-url".to_owned()),
        };
        Self { client, turns: Semaphore::new(QUERIES_AT_ONCE) }
    }

    /// Whether no alert of a gate fires; otherwise the error is why not.
    pub(super) async fn alerts(
        &self,
        gate: &AlertsGate,
        cluster: &GatedCluster<'_>,
    ) -> Result<(), String> {
        judge_alerts(self.ask(&alerts_query(gate, cluster)?).await?)
    }

    /// Whether a query holds; otherwise the error is why not.
    pub(super) async fn query(
        &self,
        query: &str,
        cluster: &GatedCluster<'_>,
    ) -> Result<(), String> {
        let query = cluster.fill_in(query);
        let answer = self.ask(&query).await?;
        judge_query(&query, answer)
    }

    async fn ask(&self, query: &str) -> Result<Answer, String> {
        let client = self.client.clone()?;
        let Ok(_turn) = self.turns.acquire().await else {
            return Err("the controller ends".to_owned());
        };
        let query =
            form_urlencoded::Serializer::new(String::new()).append_pair("query", query).finish();
        let request = Request::get(format!("/api/v1/query?{query}"))
            .body(Body::empty())
            .map_err(|error| format!("the query cannot be sent: {error}"))?;
        let (status, body) =
            answer(client.send(request).await).await.map_err(|error| match too_large(&error) {
                Some(what) => format!("the answer of Prometheus is too large: {what}"),
                None => format!("Prometheus does not answer: {}", cause(&error)),
            })?;
        Answer::read(status.as_u16(), &body)
    }
}

async fn answer(
    response: kube::Result<http::Response<Body>>,
) -> kube::Result<(StatusCode, bytes::Bytes)> {
    let response = response?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}
