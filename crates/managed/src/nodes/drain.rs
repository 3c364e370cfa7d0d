//! The drain of one node: what is decided on, and what is done.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
};
use refit_core::node::PodRef;
use refit_openshift::{
    config::Config,
    metrics::Series,
    nodes::{DrainAction, DrainSeen, DrainSettings, look},
    notify::{Notice, Sent, sent},
};
use refit_runtime::{
    apply::{self, is_conflict, is_not_found},
    client::cause,
};
use serde_json::json;

use crate::{
    Compat,
    context::{Context, list, unread},
    notices::Notifier,
    record::{Record, Stored},
};

/// How long the notice of a delayed drain may take. It comes before the deletion of the pods, and retries of an OCM that is out
/// of reach take longer than a look at a node may.
const NOTICE_DEADLINE: Duration = Duration::from_secs(20);

/// Brings drains forward.
pub(crate) struct Drain<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) config: &'a Config,
    pub(crate) settings: DrainSettings<'a>,
    /// The upgrade that drains.
    pub(crate) record: &'a mut Record,
    pub(crate) now: Timestamp,
}

/// What is done with a pod.
#[derive(Clone, Copy)]
enum Removal {
    Delete,
    ClearFinalizers,
}

impl Drain<'_> {
    /// Looks at a node that was just read, and does what is due. Returns whether its drain takes too long.
    pub(crate) async fn advance(&mut self, node: &Node) -> anyhow::Result<bool> {
        let name = node.name_any();
        let (pods, budgets, is_delay_sent) = if self.settings.config.disabled {
            (Vec::new(), Vec::new(), true)
        } else {
            let budgets: Api<PodDisruptionBudget> = self.ctx.all();
            futures::try_join!(
                self.pods(&name),
                list(&budgets, "the PodDisruptionBudgets"),
                self.is_delay_sent()
            )?
        };
        let had_failed =
            self.ctx.shared.metrics.is_raised(&Series::NodeDrainTimeout { node: name.clone() });
        let seen = DrainSeen { node, pods: &pods, budgets: &budgets, is_delay_sent, had_failed };
        let looked = look(&seen, &self.settings, self.now)?;
        for action in &looked.actions {
            self.act(&name, action).await?;
        }
        Ok(looked.has_failed)
    }

    async fn pods(&self, node: &str) -> anyhow::Result<Vec<Pod>> {
        let api: Api<Pod> = self.ctx.all();
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let list = api.list(&on_node).await;
        Ok(list.map_err(unread(&format!("the Pods of Node {node}")))?.items)
    }

    async fn is_delay_sent(&self) -> anyhow::Result<bool> {
        let event = Notice::NodeDrainDelayed.event();
        match sent(self.ctx.compat, event, self.version(), Some(&self.record.entry)) {
            Sent::Yes => Ok(true),
            Sent::No => Ok(false),
            Sent::AskPrometheus(query) => {
                let asked = async { self.ctx.remote.monitoring().await?.query(&query).await };
                let result = asked.await.map_err(anyhow::Error::msg)?;
                Ok(!result.is_empty())
            }
        }
    }

    fn version(&self) -> &str {
        &self.record.entry.version
    }

    async fn act(&mut self, node: &str, action: &DrainAction) -> anyhow::Result<()> {
        match action {
            DrainAction::Delete { strategy, pods } => {
                tracing::info!(node, %strategy, pods = pods.len(), "deleting pods");
                self.all(pods, Removal::Delete).await
            }
            DrainAction::ClearFinalizers { strategy, pods } => {
                tracing::info!(node, %strategy, pods = pods.len(), "clearing finalizers of pods");
                self.all(pods, Removal::ClearFinalizers).await
            }
            DrainAction::NotifyDelayed => self.notify(node).await,
        }
    }

    /// Does something with all pods, also after a failure. A pod that is gone, or was replaced, counts as done.
    async fn all(&self, pods: &[PodRef], how: Removal) -> anyhow::Result<()> {
        let mut failed = Ok(());
        for pod in pods {
            match self.remove(pod, how).await {
                Err(error) if is_not_found(&error) || is_conflict(&error) => {}
                Err(error) if failed.is_ok() => {
                    failed = Err(anyhow::anyhow!("cannot remove Pod {pod}: {}", cause(&error)));
                }
                Ok(()) | Err(_) => {}
            }
        }
        failed
    }

    async fn remove(&self, pod: &PodRef, how: Removal) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.ctx.client.clone(), &pod.namespace);
        match how {
            Removal::Delete => {
                let uid = Some(pod.uid.clone());
                let parameters = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(Preconditions { uid, ..Preconditions::default() }),
                    ..DeleteParams::default()
                };
                api.delete(&pod.name, &parameters).await.map(drop)
            }
            Removal::ClearFinalizers => {
                let body = json!({"metadata": {"uid": pod.uid, "finalizers": null}});
                apply::merge(&api, &pod.name, &body).await.map(drop)
            }
        }
    }

    /// Notifies of pods that a budget protected. One that cannot be sent is tried again with the next pods.
    async fn notify(&mut self, node: &str) -> anyhow::Result<()> {
        match self.ctx.compat {
            Compat::Strict => self.send().await,
            Compat::Repaired => {
                let sent = tokio::time::timeout(NOTICE_DEADLINE, self.send()).await;
                let sent = sent.context("OCM does not accept it in time").flatten();
                if let Err(error) = sent {
                    let error = format!("{error:#}");
                    tracing::warn!(node, error, "cannot notify of a delayed drain");
                }
                Ok(())
            }
        }
    }

    /// Sends the notice, unless the look at another node has sent it since.
    async fn send(&mut self) -> anyhow::Result<()> {
        let ctx = self.ctx;
        let _turn = ctx.shared.notifying.lock().await;
        let changed = || anyhow::anyhow!("the UpgradeConfig has changed meanwhile");
        if self.record.reload(ctx).await? == Stored::Changed {
            return Err(changed());
        }
        if self.is_delay_sent().await? {
            return Ok(());
        }
        let notice = Notice::NodeDrainDelayed;
        let (event, version) = (notice.event(), self.version().to_owned());
        let text = notice.text(&version, Some(&self.record.entry));
        let notifier = Notifier {
            ctx,
            config: self.config,
            // The notice is not one of the service log.
            has_service_log: false,
            now: self.now,
        };
        let stored = notifier.send(self.record, (event, &text)).await?;
        ctx.shared.metrics.set(Series::Notification { event, version }, true);
        match stored {
            Stored::Yes => Ok(()),
            Stored::Changed => Err(changed()),
        }
    }
}
