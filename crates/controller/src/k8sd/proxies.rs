//! The pods that forward to k8sd, in the caches of a workload cluster.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use kube::{Api, Client, ResourceExt as _};
use refit_runtime::{
    ObjectKey, Store,
    client::TooLarge,
    store::{self, Index, Limits, reflect_within},
};
use tokio::sync::Notify;

use crate::workload_objects::ProxyRecord;

/// Namespace of the pods.
pub(super) const NAMESPACE: &str = "kube-system";
/// Label of the pods.
const LABEL: &str = "app=k8sd-proxy";
/// One pod on each Node.
const PROXIES: Limits = Limits { objects: 10_000, bytes: 256 << 20 };
/// How long a call waits for the first list.
const LIST_WITHIN: Duration = Duration::from_secs(5);
/// The pods by the Node that they run on.
const BY_NODE: Index<ProxyRecord> =
    Index { name: "node", keys: |pod| vec![ObjectKey::new("", &*pod.view.node)] };

/// The pods that forward to k8sd, one on each Node. They are watched once a machine of the cluster needs one.
#[derive(Debug)]
pub(crate) struct Proxies {
    pods: Store<ProxyRecord>,
    is_wanted: AtomicBool,
    wanted: Notify,
}

impl Default for Proxies {
    fn default() -> Self {
        Self {
            pods: Store::indexed(&[BY_NODE]),
            is_wanted: AtomicBool::default(),
            wanted: Notify::default(),
        }
    }
}

impl Proxies {
    /// Waits until the pods are listed, for some seconds; returns whether they are. From the first call on, they are
    /// watched.
    pub(super) async fn are_listed(&self) -> bool {
        if !self.is_wanted.swap(true, Ordering::Relaxed) {
            self.wanted.notify_one();
        }
        tokio::time::timeout(LIST_WITHIN, self.pods.ready()).await.is_ok()
    }

    /// The name of the pod on a Node; `None` if it has no such pod.
    pub(super) fn on_node(&self, node: &str) -> Option<String> {
        let pods = self.pods.listed(&BY_NODE, &ObjectKey::new("", node));
        let ready = pods.iter().find(|pod| pod.view.ready);
        ready.or(pods.first()).map(|pod| pod.name_any())
    }

    /// Watches the pods in a session with the cluster.
    pub(crate) async fn watch(&self, client: &Client) -> TooLarge {
        while !self.is_wanted.load(Ordering::Relaxed) {
            self.wanted.notified().await;
        }
        let api: Api<ProxyRecord> = Api::namespaced(client.clone(), NAMESPACE);
        let config = store::everything().labels(LABEL);
        reflect_within(api, config, PROXIES, self.pods.clone(), |_| {}).await
    }

    /// A session has ended: the pods count again once they are listed again.
    pub(crate) fn expect_list(&self) {
        self.pods.expect_list();
    }
}
