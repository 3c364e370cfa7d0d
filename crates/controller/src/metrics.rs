//! Metrics of the process, for `/metrics` (`docs/operations.md` lists them).
//!
//! Events are counted here as they happen; states are read from the caches at each scrape
//! (`gauges`). No label carries a message, and the number of values of a label is bounded.

mod gauges;

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};
use refit_core::{managed::notifications::delivery::Attempt, node::Called};
use refit_kinds::refit::Receiver;
use refit_runtime::{apply, lease, queue::Action};

use self::gauges::Gauges;
use crate::context::Context;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    hook: String,
    verdict: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    controller: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpdaterLabels {
    updater: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NotificationLabels {
    receiver: &'static str,
    outcome: &'static str,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Reconciles with the duration and the error counted for this controller.
pub(crate) async fn measured(
    ctx: &Context,
    controller: &str,
    reconcile: impl Future<Output = anyhow::Result<Action>>,
) -> anyhow::Result<Action> {
    let started = ctx.clock.now();
    let outcome = reconcile.await;
    ctx.metrics.reconcile(controller, ctx.clock.elapsed(started));
    if let Err(error) = &outcome {
        ctx.metrics.reconcile_failed(controller, error);
    }
    outcome
}

/// Counters, gauges and histograms of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    hooks: Durations<HookLabels>,
    reconciles: Durations<ControllerLabels>,
    errors: Family<ErrorLabels, Counter>,
    updaters: Durations<UpdaterLabels>,
    notifications: Family<NotificationLabels, Counter>,
    /// Bytes of the request bodies that are being read or served.
    pub(crate) hook_body_bytes: Gauge,
    gauges: Gauges,
    /// Held by the scrape that fills the gauges.
    scrape: Mutex<()>,
}

/// 1 ms to 8 s: Cluster API waits for 10 s.
fn hook_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

/// 2 ms to 33 s: calls time out after 30 s.
fn reconcile_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.002, 2.0, 15))
}

impl Metrics {
    /// All metrics at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("refit");
        let hooks: Durations<HookLabels> = Family::new_with_constructor(hook_buckets);
        let reconciles: Durations<ControllerLabels> =
            Family::new_with_constructor(reconcile_buckets);
        let errors = Family::default();
        let updaters: Durations<UpdaterLabels> = Family::new_with_constructor(reconcile_buckets);
        registry.register(
            "build",
            "Version of this process",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register_with_unit(
            "hook_duration",
            "Duration of hooks, by hook and verdict",
            Unit::Seconds,
            hooks.clone(),
        );
        let hook_body_bytes = Gauge::default();
        registry.register_with_unit(
            "hook_body",
            "Request bodies of hooks that are being read or served",
            Unit::Bytes,
            hook_body_bytes.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of reconciles, by controller",
            Unit::Seconds,
            reconciles.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Failed reconciles, by controller and reason",
            errors.clone(),
        );
        registry.register_with_unit(
            "updater_call_duration",
            "Duration of calls of Updaters, by Updater and outcome",
            Unit::Seconds,
            updaters.clone(),
        );
        let notifications = Family::default();
        registry.register(
            "notification_attempts",
            "Attempts to deliver a notification, by receiver and outcome: Delivered, Failed, GivenUp",
            notifications.clone(),
        );
        let gauges = Gauges::register(&mut registry);
        Self {
            registry,
            hooks,
            reconciles,
            errors,
            updaters,
            notifications,
            hook_body_bytes,
            gauges,
            scrape: Mutex::default(),
        }
    }

    /// Counts one hook call.
    pub(crate) fn hook(&self, hook: &str, verdict: &str, took: Duration) {
        self.hooks
            .get_or_create(&HookLabels { hook: hook.to_owned(), verdict: verdict.to_owned() })
            .observe(took.as_secs_f64());
    }

    /// Counts one call of an Updater.
    pub(crate) fn updater_called(&self, updater: &str, called: &Called, took: Duration) {
        let outcome = match called {
            Called::Done => "Done",
            Called::Again { .. } => "Again",
            Called::Failed { .. } => "Failed",
        };
        self.updaters
            .get_or_create(&UpdaterLabels { updater: updater.to_owned(), outcome })
            .observe(took.as_secs_f64());
    }

    /// Begins the counts of a receiver with 0: an alert compares them with what they were.
    pub(crate) fn notifications_to(&self, receiver: Receiver) {
        for outcome in ["Delivered", "Failed", "GivenUp"] {
            let labels = NotificationLabels { receiver: receiver.into(), outcome };
            drop(self.notifications.get_or_create(&labels));
        }
    }

    /// Counts one attempt to deliver a notification.
    pub(crate) fn notification(&self, receiver: Receiver, attempt: &Attempt) {
        let outcome = match attempt {
            Attempt::Delivered => "Delivered",
            Attempt::Failed { .. } | Attempt::Limited { .. } => "Failed",
            Attempt::GivenUp { .. } => "GivenUp",
        };
        self.notifications
            .get_or_create(&NotificationLabels { receiver: receiver.into(), outcome })
            .inc();
    }

    /// Counts one reconcile.
    pub(crate) fn reconcile(&self, controller: &str, took: Duration) {
        self.reconciles
            .get_or_create(&ControllerLabels { controller: controller.to_owned() })
            .observe(took.as_secs_f64());
    }

    /// Counts one failed reconcile by the type of its error.
    pub(crate) fn reconcile_failed(&self, controller: &str, error: &anyhow::Error) {
        self.reconcile_error(controller, reason_of(error));
    }

    /// Counts one failed reconcile. The reason is one of a few fixed words, never a message.
    pub(crate) fn reconcile_error(&self, controller: &str, reason: &str) {
        self.errors
            .get_or_create(&ErrorLabels {
                controller: controller.to_owned(),
                reason: reason.to_owned(),
            })
            .inc();
    }

    /// The content of `/metrics`, with gauges from the current caches.
    pub(crate) fn render(&self, ctx: &Context) -> String {
        let _alone = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.gauges.fill(ctx);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }
}

/// The error of a request, which several reconciles may share.
pub(crate) fn of_request<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let shared = || error.downcast_ref::<Arc<kube::Error>>().map(AsRef::as_ref);
    error.downcast_ref::<kube::Error>().or_else(shared)
}

/// The metric label for an error.
fn reason_of(error: &anyhow::Error) -> &'static str {
    let Some(error) = error.chain().find_map(of_request) else {
        return "Other";
    };
    if apply::is_conflict(error) {
        return "Conflict";
    }
    if apply::is_not_found(error) {
        return "NotFound";
    }
    if let kube::Error::Api(status) = error {
        return match status.code {
            401 => "Unauthorized",
            403 => "Forbidden",
            400 | 422 => "Invalid",
            429 => "TooManyRequests",
            500.. => "ServerError",
            _ => "Api",
        };
    }
    if lease::is_fenced(error) {
        "NotLeader"
    } else if crate::api_error::unreadable(error).is_some() {
        "Unreadable"
    } else {
        "Unreachable"
    }
}

#[cfg(test)]
mod tests {
    use refit_runtime::lease::NotLeader;

    use super::*;

    fn api(code: u16, reason: &str) -> anyhow::Error {
        let status = serde_json::json!({
            "status": "Failure", "message": "secret words", "reason": reason, "code": code,
        });
        let status: kube::core::Status = serde_json::from_value(status).unwrap();
        kube::Error::Api(Box::new(status)).into()
    }

    #[test]
    fn an_error_is_counted_by_one_of_few_words() {
        let fenced = kube::Error::Service(Box::new(NotLeader)).into();
        let silent = kube::Error::Service("connection refused".into()).into();
        let table: [(anyhow::Error, &str); 7] = [
            (api(409, "Conflict"), "Conflict"),
            (api(403, "Forbidden"), "Forbidden"),
            (api(503, "ServiceUnavailable"), "ServerError"),
            (fenced, "NotLeader"),
            (silent, "Unreachable"),
            (anyhow::anyhow!("anything"), "Other"),
            (api(422, "Invalid").context("while writing"), "Invalid"),
        ];
        for (error, word) in table {
            assert_eq!(reason_of(&error), word, "{error:#}");
        }
    }
}
