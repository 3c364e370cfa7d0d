//! The handle of a simulated cluster.

mod blueprint;
mod objects;
pub(crate) mod plan;
pub(crate) mod settings;
mod trouble;
pub(crate) mod view;

use std::{convert::Infallible, future, time::Duration};

use futures::{StreamExt as _, future::join_all};
use jiff::SignedDuration;
use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::{WatchStreamExt as _, watcher},
};
use refit_runtime::Clock;
use strum::VariantArray as _;
use tokio::sync::Notify;

pub use self::{
    blueprint::{Blueprint, Workers},
    settings::Release,
};
use self::{
    plan::Plan,
    view::{Kind, View},
};
use crate::operators;

/// How long changes are collected before a pass.
const SETTLE: Duration = Duration::from_secs(1);
/// How long after a failed pass the next one is.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// A simulated cluster behind a Kubernetes API. Clones are handles to the same cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// The cluster behind this API. The client does not repeat requests by itself: an eviction that a PodDisruptionBudget
    /// rejects is repeated here.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Plays OpenShift's operators, the kubelets and the machines of the cloud, without end. Several at once are not
    /// supported; one after another continue where the last one ended.
    pub async fn run(client: Client, clock: Clock) -> Infallible {
        let woken = Notify::new();
        let watches = join_all(Kind::VARIANTS.iter().map(|kind| watch(&client, *kind, &woken)));
        let passes = async {
            loop {
                let due = pass(&client, &clock).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, "pass of the simulated cluster failed, retrying");
                    clock.now().checked_add(AGAIN).ok()
                });
                let sleep = async {
                    match due {
                        Some(due) => clock.sleep_until(due).await,
                        None => future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = woken.notified() => tokio::time::sleep(SETTLE).await,
                    () = sleep => {}
                }
            }
        };
        tokio::select! {
            never = passes => never,
            _ = watches => future::pending().await,
        }
    }
}

/// Wakes the passes at each change of a kind.
async fn watch(client: &Client, kind: Kind, woken: &Notify) {
    let resource = kind.resource();
    let api: Api<DynamicObject> = match kind.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let events = watcher::watcher(api, watcher::Config::default()).default_backoff();
    let wake = |_| {
        woken.notify_one();
        future::ready(())
    };
    events.for_each(wake).await;
}

/// Reads the cluster, writes what is due, and returns when the next pass is.
async fn pass(client: &Client, clock: &Clock) -> kube::Result<Option<jiff::Timestamp>> {
    let view = View::read(client, clock.now_seconds()).await?;
    let mut plan = Plan::new(&view);
    operators::reconcile(&mut plan);
    let Plan { calls, mut wake, .. } = plan;
    for call in calls {
        match call.send(client).await {
            Ok(_) => {}
            // A PodDisruptionBudget rejects an eviction, another writer was faster, or the object is gone.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 429) => {}
            Err(error) => {
                tracing::warn!(%error, "write of the simulated cluster failed");
                wake = wake.into_iter().chain(view.now.checked_add(AGAIN).ok()).min();
            }
        }
    }
    Ok(wake)
}
