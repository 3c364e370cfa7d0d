//! The metrics on two ports: what the steps set, and what is read from the UpgradeConfig at a scrape.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use refit_openshift::{
    metrics::{Gauges, Reset, Sample, Series, collect},
    steps::Gauge,
};
use refit_runtime::clock::instant;
use tokio::time::Instant;

use crate::context::Context;

/// For how long a scrape is answered with what the last one has read.
const SCRAPE_AGE: Duration = Duration::from_secs(15);
/// How long the reads of a scrape may take: Prometheus waits for 10 s.
const SCRAPE_DEADLINE: Duration = Duration::from_secs(8);

/// The metrics of the process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    gauges: Mutex<Gauges>,
    /// The last scrape, or why it failed.
    scrape: tokio::sync::Mutex<Option<(Instant, Result<String, String>)>>,
}

impl Metrics {
    fn gauges(&self) -> MutexGuard<'_, Gauges> {
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, series: Series, value: impl Into<i64>) {
        self.gauges().set(series, value);
    }

    /// Whether a gauge is set to 1.
    pub(crate) fn is_raised(&self, series: &Series) -> bool {
        self.gauges().get(series) == Some(1)
    }

    /// Removes gauges.
    pub(crate) fn reset(&self, reset: Reset) {
        self.gauges().reset(reset);
    }

    /// Makes changes in their order.
    pub(crate) fn apply(&self, changes: Vec<Gauge>) {
        let mut gauges = self.gauges();
        for change in changes {
            match change {
                Gauge::Set(series, value) => gauges.set(series, value),
                Gauge::Reset(reset) => gauges.reset(reset),
            }
        }
    }

    /// Removes all gauges: another replica sets them now.
    pub(crate) fn clear(&self) {
        *self.gauges() = Gauges::default();
    }

    /// The gauges, as text.
    pub(crate) fn render(&self) -> String {
        let samples = self.gauges().samples().collect();
        render(samples)
    }
}

/// What the UpgradeConfig shows, as text; or why the scrape fails as a whole.
pub(crate) async fn scrape(ctx: &Context) -> Result<String, String> {
    let mut last = ctx.shared.metrics.scrape.lock().await;
    let now = instant();
    if let Some((at, text)) = &*last
        && now.saturating_duration_since(*at) < SCRAPE_AGE
    {
        return text.clone();
    }
    let read = tokio::time::timeout(SCRAPE_DEADLINE, collected(ctx)).await;
    let text = read.context("the API server does not answer in time").flatten();
    let text = text.map_err(|error| format!("{error:#}"));
    *last = Some((now, text.clone()));
    text
}

async fn collected(ctx: &Context) -> anyhow::Result<String> {
    let (config, cluster) = futures::try_join!(ctx.upgrade(), ctx.cluster_version())?;
    Ok(render(collect(config.as_ref(), &cluster)?))
}

fn render(samples: Vec<Sample>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a String cannot fail");
    text
}

/// Samples, those of a metric next to each other.
#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for of_metric in self.0.chunk_by(|one, next| one.name == next.name) {
            let Some(Sample { name, help, .. }) = of_metric.first() else { continue };
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for sample in of_metric {
                metric.encode_family(&sample.labels)?.encode_gauge(&sample.value)?;
            }
        }
        Ok(())
    }
}
