//! Writes the driver's report to the API: on each change, and as a heartbeat.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{Api, Resource as _, ResourceExt as _};
use refit_kinds::refit::{HostPlan, HostPlanSpec, HostPlanStatus};
use refit_runtime::{Clock, ObjectKey, Store, apply};
use serde_json::json;
use tokio::sync::watch;

use crate::{report, trust::Extras};

/// Field manager of the agent's status.
pub(crate) const MANAGER: &str = "refit-agent";
/// Delay before a failed API call is retried.
const API_RETRY: Duration = Duration::from_secs(2);

/// The agent's own HostPlan, from the watch.
#[derive(Clone)]
pub(crate) struct OwnPlan {
    key: ObjectKey,
    store: Store<HostPlan>,
    changes: watch::Receiver<()>,
}

impl OwnPlan {
    /// The plan with this key, from a store that a watch fills and a channel that signals changes.
    pub(crate) fn new(
        key: ObjectKey,
        store: Store<HostPlan>,
        changes: watch::Receiver<()>,
    ) -> Self {
        Self { key, store, changes }
    }

    /// Marks the current state as seen: only a later change ends a wait.
    pub(crate) fn mark_seen(&mut self) {
        self.changes.mark_unchanged();
    }

    pub(crate) fn get(&self) -> Option<Arc<HostPlan>> {
        self.store.get(&self.key)
    }

    /// Returns the spec of the plan, if the plan exists.
    pub(crate) fn spec(&self) -> Option<HostPlanSpec> {
        self.get().map(|plan| plan.spec.clone())
    }

    /// Waits until the plan changes.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            refit_runtime::gate::never::<()>().await;
        }
    }
}

/// Writes the driver's report to the API.
pub(crate) struct Reporter {
    plan: OwnPlan,
    api: Api<HostPlan>,
    clock: Clock,
    extras: Extras,
    /// uid of the HostPlan and the status that this process wrote last. It may be newer than the
    /// watch.
    written: Option<(String, HostPlanStatus)>,
    /// When the driver's report first differed from what the API shows.
    news_since: Option<Timestamp>,
}

impl Reporter {
    pub(crate) fn new(plan: OwnPlan, api: Api<HostPlan>, clock: Clock, extras: Extras) -> Self {
        Self { plan, api, clock, extras, written: None, news_since: None }
    }

    /// Sends the reports from `reports` until it is dropped.
    pub(crate) async fn run(
        mut self,
        mut reports: watch::Receiver<Option<HostPlanStatus>>,
    ) -> std::convert::Infallible {
        self.plan.store.ready().await;
        loop {
            self.plan.mark_seen();
            let wanted = reports.borrow_and_update().clone();
            let wait = match self.report(wanted.as_ref()).await {
                Ok(wait) => {
                    if wanted.is_some() && self.news_since.is_none() {
                        self.extras.notify_reported();
                    }
                    wait
                }
                Err(error) => {
                    tracing::debug!(%error, "report rejected, retrying");
                    tokio::time::sleep(API_RETRY).await;
                    continue;
                }
            };
            tokio::select! {
                biased;
                changed = reports.changed() => if changed.is_err() {
                    return refit_runtime::gate::never().await;
                },
                () = self.plan.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Creates the HostPlan if it is missing, and writes the status if it differs. Returns how long
    /// to wait.
    async fn report(&mut self, wanted: Option<&HostPlanStatus>) -> kube::Result<Duration> {
        let heartbeat = Duration::try_from(report::HEARTBEAT).unwrap_or(API_RETRY);
        let Some(plan) = self.plan.get() else {
            // Applied, not posted: RBAC can limit an apply to one name, and so an agent to its own
            // plan.
            let body = json!({
                "apiVersion": HostPlan::api_version(&()),
                "kind": HostPlan::kind(&()),
                "metadata": { "name": self.plan.key.name },
                "spec": {},
            });
            let made = apply::apply(&self.api, MANAGER, &self.plan.key.name, &body).await?;
            self.plan.store.insert(made);
            return Ok(Duration::ZERO);
        };
        let Some(wanted) = wanted else {
            return Ok(heartbeat);
        };
        let uid = plan.uid().unwrap_or_default();
        let known = match &self.written {
            Some((written_uid, status)) if *written_uid == uid => Some(status),
            _ => plan.status.as_ref(),
        };
        let now = self.clock.now_seconds();
        let is_news = known.is_none_or(|known| report::differs(wanted, known));
        self.news_since = is_news.then(|| self.news_since.unwrap_or(now));
        let due = report::due_at(wanted, known, self.news_since, now);
        if due > now {
            return Ok(self.clock.until(due));
        }
        let status = report::stamped(wanted, now);
        apply::apply_status(&self.api, MANAGER, &self.plan.key.name, &status).await?;
        self.written = Some((uid, status));
        self.news_since = None;
        Ok(heartbeat)
    }
}
