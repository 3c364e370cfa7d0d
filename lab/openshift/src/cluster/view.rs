//! What a pass knows: the objects of the cluster, all read at its start.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{
    Client,
    core::{ApiResource, GroupVersionKind},
};
use refit_kinds::json::{is_true, label, labels, name, pairs, text};
use serde_json::Value;
use strum::VariantArray as _;

use super::{Release, settings::Settings};

/// Namespace of the simulation's own settings, and of the real cluster-version operator.
pub(crate) const VERSION_NAMESPACE: &str = "openshift-cluster-version";
/// Label of the nodes of the control plane.
pub(crate) const MASTER: &str = "node-role.kubernetes.io/master";
/// Label of the workers.
pub(crate) const WORKER: &str = "node-role.kubernetes.io/worker";

/// A kind that the simulated operators read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::VariantArray)]
pub(crate) enum Kind {
    Budget,
    ClusterOperator,
    ClusterVersion,
    DaemonSet,
    Machine,
    MachineConfigPool,
    MachineSet,
    Node,
    Pod,
    ReplicaSet,
    /// The ConfigMaps next to the cluster-version operator.
    Settings,
}

impl Kind {
    /// Group, version, kind and plural.
    fn served(self) -> [&'static str; 4] {
        match self {
            Self::Budget => ["policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"],
            Self::ClusterOperator => {
                ["config.openshift.io", "v1", "ClusterOperator", "clusteroperators"]
            }
            Self::ClusterVersion => {
                ["config.openshift.io", "v1", "ClusterVersion", "clusterversions"]
            }
            Self::DaemonSet => ["apps", "v1", "DaemonSet", "daemonsets"],
            Self::Machine => ["machine.openshift.io", "v1beta1", "Machine", "machines"],
            Self::MachineConfigPool => {
                let group = "machineconfiguration.openshift.io";
                [group, "v1", "MachineConfigPool", "machineconfigpools"]
            }
            Self::MachineSet => ["machine.openshift.io", "v1beta1", "MachineSet", "machinesets"],
            Self::Node => ["", "v1", "Node", "nodes"],
            Self::Pod => ["", "v1", "Pod", "pods"],
            Self::ReplicaSet => ["apps", "v1", "ReplicaSet", "replicasets"],
            Self::Settings => ["", "v1", "ConfigMap", "configmaps"],
        }
    }

    /// How kube names it.
    pub(crate) fn resource(self) -> ApiResource {
        let [group, version, kind, plural] = self.served();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// The only namespace that is read.
    pub(crate) fn namespace(self) -> Option<&'static str> {
        (self == Self::Settings).then_some(VERSION_NAMESPACE)
    }

    /// Path of the objects of a namespace, or of all if it is empty.
    pub(crate) fn collection(self, namespace: &str) -> String {
        let [group, version, _, plural] = self.served();
        let base = if group.is_empty() { "/api" } else { "/apis/" };
        match namespace {
            "" => format!("{base}{group}/{version}/{plural}"),
            namespace => format!("{base}{group}/{version}/namespaces/{namespace}/{plural}"),
        }
    }

    /// Path of an object.
    pub(crate) fn path(self, object: &Value) -> String {
        let collection = self.collection(text(object, "/metadata/namespace"));
        format!("{collection}/{}", name(object))
    }

    /// The object that a body describes, complete with version and kind.
    pub(crate) fn typed(self, mut body: Value) -> Value {
        let [group, version, kind, _] = self.served();
        let separator = if group.is_empty() { "" } else { "/" };
        body["apiVersion"] = format!("{group}{separator}{version}").into();
        body["kind"] = kind.into();
        body
    }
}

/// The objects of the cluster at one moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) now: Timestamp,
    pub(crate) settings: Settings,
    objects: BTreeMap<Kind, Vec<Value>>,
}

impl View {
    /// Reads all objects from the API.
    pub(crate) async fn read(client: &Client, now: Timestamp) -> kube::Result<Self> {
        let mut objects = BTreeMap::new();
        for kind in Kind::VARIANTS {
            let path = kind.collection(kind.namespace().unwrap_or_default());
            let request = http::Request::get(path).body(Vec::new());
            let request = request.expect("the paths of lists are constants");
            let mut list: Value = client.request(request).await?;
            let items = match list["items"].take() {
                Value::Array(items) => items,
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_) => Vec::new(),
            };
            objects.insert(*kind, items);
        }
        let settings = Settings::read(objects.get(&Kind::Settings).into_iter().flatten());
        Ok(Self { now, settings, objects })
    }

    /// All objects of a kind, by namespace and name.
    pub(crate) fn list(&self, kind: Kind) -> &[Value] {
        self.objects.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// The ClusterVersion.
    pub(crate) fn cluster_version(&self) -> Option<&Value> {
        self.list(Kind::ClusterVersion).iter().find(|one| name(one) == "version")
    }

    /// The version that the cluster-version operator works towards, or runs.
    pub(crate) fn target(&self) -> &str {
        self.cluster_version().map_or("", |cluster| text(cluster, "/status/desired/version"))
    }

    /// Whether it works towards it yet.
    pub(crate) fn is_upgrading(&self) -> bool {
        let is_partial = |cluster| text(cluster, "/status/history/0/state") == "Partial";
        self.cluster_version().is_some_and(is_partial)
    }

    /// A release, by its version.
    pub(crate) fn release(&self, version: &str) -> Option<&Release> {
        self.settings.releases.iter().find(|release| release.version == version)
    }

    /// A node, by its name.
    pub(crate) fn node(&self, wanted: &str) -> Option<&Value> {
        self.list(Kind::Node).iter().find(|node| name(node) == wanted)
    }

    /// The pods of a node.
    pub(crate) fn pods_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Value> {
        self.list(Kind::Pod).iter().filter(move |pod| text(pod, "/spec/nodeName") == node)
    }

    /// The nodes of a MachineConfigPool. A node belongs to one pool only: the control plane has precedence, and custom pools
    /// have precedence over `worker`.
    pub(crate) fn nodes_of(&self, pool: &Value) -> Vec<&Value> {
        let nodes = self.list(Kind::Node).iter();
        nodes.filter(|node| self.pool_of(node).is_some_and(|one| name(one) == name(pool))).collect()
    }

    /// The MachineConfigPool of a node.
    pub(crate) fn pool_of(&self, node: &Value) -> Option<&Value> {
        let labels = labels(node);
        let selects = |pool: &&Value| {
            let wanted = pairs(pool.pointer("/spec/nodeSelector/matchLabels"));
            !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let rank = |pool: &&Value| match name(pool) {
            "master" => 0,
            "worker" => 2,
            _ => 1,
        };
        self.list(Kind::MachineConfigPool).iter().filter(selects).min_by_key(rank)
    }
}

/// Whether a node runs the control plane.
pub(crate) fn is_master(node: &Value) -> bool {
    label(node, MASTER).is_some()
}

/// Whether a node or pod is Ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    is_true(object, "Ready")
}

/// The uid of an object.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}
