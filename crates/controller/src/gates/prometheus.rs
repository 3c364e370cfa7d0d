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

use super::{turns::Turns, within_deadline};
use crate::api_error::cause;

/// Maximum size of an answer.
const MAX_ANSWER: usize = 4 << 20;
/// How many queries are made at once, and how many of one namespace.
const QUERIES_AT_ONCE: (usize, usize) = (32, 4);

/// The Prometheus of the settings.
pub(crate) struct Prometheus {
    client: Result<Client, String>,
    turns: Turns,
}

impl Prometheus {
    /// Of the settings; without them, its gates are closed.
    pub(crate) fn new(stack: ClientStack, settings: Option<&kube::Config>) -> Self {
        let client =
            match settings {
                Some(config) => stack
                    .with_max_answer(MAX_ANSWER)
                    .client(config)
                    .map_err(|error| format!("the settings of Prometheus are not valid: {error}")),
                None => Err("no Prometheus is configured: set --prometheus-url of the controller"
                    .to_owned()),
            };
        let (all, of_namespace) = QUERIES_AT_ONCE;
        Self { client, turns: Turns::new(all, of_namespace) }
    }

    /// Whether no alert of a gate fires; otherwise the error is why not.
    pub(super) async fn alerts(
        &self,
        gate: &AlertsGate,
        cluster: &GatedCluster<'_>,
    ) -> Result<(), String> {
        judge_alerts(self.ask(&alerts_query(gate, cluster)?, cluster).await?)
    }

    /// Whether a query holds; otherwise the error is why not.
    pub(super) async fn query(
        &self,
        query: &str,
        cluster: &GatedCluster<'_>,
    ) -> Result<(), String> {
        let query = cluster.fill_in(query);
        let answer = self.ask(&query, cluster).await?;
        judge_query(&query, answer)
    }

    async fn ask(&self, query: &str, cluster: &GatedCluster<'_>) -> Result<Answer, String> {
        let client = self.client.clone()?;
        let _turn = self.turns.next(cluster.namespace).await?;
        let query =
            form_urlencoded::Serializer::new(String::new()).append_pair("query", query).finish();
        let request = Request::get(format!("/api/v1/query?{query}"))
            .body(Body::empty())
            .map_err(|error| format!("the query cannot be sent: {error}"))?;
        let answer = async {
            answer(client.send(request).await).await.map_err(|error| match too_large(&error) {
                Some(what) => format!("the answer of Prometheus is too large: {what}"),
                None => format!("Prometheus does not answer: {}", cause(&error)),
            })
        };
        let (status, body) = within_deadline(answer).await?;
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
