//! What is kept of the objects of workload clusters: the fields that decisions use.
//!
//! A Node lists its images, and its administrator decides how long its texts are: whole objects of all
//! workload clusters would not fit in memory.

use std::{borrow::Cow, marker::PhantomData, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use refit_core::node::{NodeView, StaticPod, short};
use refit_runtime::store::Limits;
use serde::{Deserialize, Deserializer};

/// What is kept of a Node.
pub(crate) type NodeRecord = Record<Node, Arc<NodeView>>;
/// What is kept of a mirror pod; `None` for a pod that is not part of a control plane.
pub(crate) type PodRecord = Record<Pod, Option<StaticPod>>;

/// What is kept of a pod that forwards to k8sd.
pub(crate) type ProxyRecord = Record<Pod, ProxyPod>;

/// A pod that forwards to k8sd.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProxyPod {
    /// The Node that it runs on; empty if none has been chosen.
    pub(crate) node: String,
    /// Whether its condition Ready is True.
    pub(crate) ready: bool,
}

/// Kubernetes supports 5,000 Nodes per cluster (`docs/facts/kubernetes.md#large-clusters`).
pub(crate) const NODES: Limits = Limits { objects: 10_000, bytes: 1 << 30 };
/// Four mirror pods for each of 100 control plane machines, with some to spare.
pub(crate) const STATIC_PODS: Limits = Limits { objects: 500, bytes: 64 << 20 };
/// A HostPlan per Node, with the content of files; kept whole.
pub(crate) const HOST_PLANS: Limits = Limits { objects: 10_000, bytes: 64 << 20 };

/// An object of kind `K` of which only `view` is kept.
#[derive(Clone, Debug)]
pub(crate) struct Record<K, V> {
    metadata: ObjectMeta,
    pub(crate) view: V,
    kind: PhantomData<K>,
}

/// How a view is taken of an object.
trait ViewOf<K> {
    fn view_of(object: &K) -> Self;
}

impl ViewOf<Node> for Arc<NodeView> {
    fn view_of(node: &Node) -> Self {
        Self::new(NodeView::of(node))
    }
}

impl ViewOf<Pod> for Option<StaticPod> {
    fn view_of(pod: &Pod) -> Self {
        StaticPod::of(pod)
    }
}

impl ViewOf<Pod> for ProxyPod {
    fn view_of(pod: &Pod) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let mut conditions =
            pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            node: node.map(short).unwrap_or_default(),
            ready: conditions.any(|one| one.type_ == "Ready" && one.status == "True"),
        }
    }
}

impl<K: Resource, V: ViewOf<K>> From<K> for Record<K, V> {
    fn from(object: K) -> Self {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = object.meta().clone();
        let metadata = ObjectMeta {
            name: name.map(short),
            namespace: namespace.map(short),
            uid: uid.map(short),
            resource_version: resource_version.map(short),
            ..ObjectMeta::default()
        };
        Self { metadata, view: V::view_of(&object), kind: PhantomData }
    }
}

impl<'de, K: Resource + Deserialize<'de>, V: ViewOf<K>> Deserialize<'de> for Record<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(deserializer).map(Self::from)
    }
}

impl<K: Resource, V> Resource for Record<K, V> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use refit_core::node::{MAX_TAINTS, MAX_TEXT};
    use refit_kinds::keys;
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_and_lists_of_a_node_are_cut() {
        let long = "\u{e4}".repeat(100_000);
        let taint = json!({"key": long, "effect": "NoSchedule"});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": long, "uid": long, "annotations": {keys::CORDONED_BY: long}},
            "spec": {"taints": vec![taint; 1000]},
        }))
        .unwrap();
        let record = NodeRecord::from(node);
        for kept in [record.name_any(), record.uid().unwrap(), record.view.name.to_string()] {
            assert!(kept.len() <= MAX_TEXT);
        }
        assert_eq!(record.annotations().len(), 0);
        assert!(record.view.cordoned_by.as_ref().unwrap().len() <= MAX_TEXT);
        assert_eq!(record.view.taints.len(), MAX_TAINTS);
        assert!(record.view.taints.iter().all(|key| key.len() <= MAX_TEXT));
    }
}
