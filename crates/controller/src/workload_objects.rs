//! What is kept of the objects of workload clusters: the fields that decisions use.
//!
//! A Node lists its images, and its administrator decides how long its texts are: whole objects of all
//! workload clusters would not fit in memory.

use std::{borrow::Cow, marker::PhantomData, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt as _};
use refit_core::node::{ImageVersion, NodeView, StaticPod};
use refit_kinds::keys;
use refit_runtime::store::Limits;
use serde::{Deserialize, Deserializer};

/// What is kept of a Node.
pub(crate) type NodeRecord = Record<Node, Arc<NodeView>>;
/// What is kept of a mirror pod; `None` for a pod that is not part of a control plane.
pub(crate) type PodRecord = Record<Pod, Option<StaticPod>>;

/// Kubernetes supports 5,000 Nodes per cluster (`docs/facts/kubernetes.md#large-clusters`).
pub(crate) const NODES: Limits = Limits { objects: 10_000, bytes: 1 << 30 };
/// Four mirror pods for each of 100 control plane machines, with some to spare.
pub(crate) const STATIC_PODS: Limits = Limits { objects: 500, bytes: 64 << 20 };
/// A HostPlan per Node, with the content of files; kept whole.
pub(crate) const HOST_PLANS: Limits = Limits { objects: 10_000, bytes: 64 << 20 };

/// How much of a text is kept: names and keys of labels are at most 317 bytes long.
const MAX_TEXT: usize = 317;
/// The conditions by which a kubelet reports that its node runs short of something
/// (`docs/facts/kubernetes.md#node-pressure`).
const PRESSURES: [&str; 3] = ["DiskPressure", "MemoryPressure", "PIDPressure"];
/// How many taints of a Node are kept.
const MAX_TAINTS: usize = 64;

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
        Self::new(node_view(node))
    }
}

impl ViewOf<Pod> for Option<StaticPod> {
    fn view_of(pod: &Pod) -> Self {
        static_pod(pod)
    }
}

impl<K: Resource, V: ViewOf<K>> From<K> for Record<K, V> {
    fn from(object: K) -> Self {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = object.meta().clone();
        let metadata = ObjectMeta {
            name: name.map(cut),
            namespace: namespace.map(cut),
            uid: uid.map(cut),
            resource_version: resource_version.map(cut),
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

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

fn cut(text: String) -> String {
    if text.len() > MAX_TEXT { short(&text) } else { text }
}

fn node_view(node: &Node) -> NodeView {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready");
    let mut pressures =
        conditions.iter().filter(|c| c.status == "True" && PRESSURES.contains(&&*c.type_));
    let pressure = pressures.next().map(|c| match c.message.as_deref() {
        None | Some("") => short(&c.type_),
        Some(message) => short(&format!("{}: {message}", c.type_)),
    });
    let info = status.and_then(|status| status.node_info.as_ref());
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    NodeView {
        name: cut(node.name_any()).into(),
        ready: ready.is_some_and(|c| c.status == "True"),
        pressure,
        heartbeat: ready.and_then(|c| c.last_heartbeat_time.as_ref()).map(|time| time.0),
        kubelet_version: info
            .map(|info| short(&info.kubelet_version).as_str().into())
            .unwrap_or_default(),
        boot_id: info.map(|info| short(&info.boot_id)).unwrap_or_default(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
        cordoned_by: node.annotations().get(keys::CORDONED_BY).map(|name| short(name)),
        excluded: node.labels().contains_key(keys::EXCLUDE_FROM_LOAD_BALANCERS),
        excluded_by: node.annotations().get(keys::EXCLUDED_BY).map(|name| short(name)),
        taints: taints
            .into_iter()
            .flatten()
            .filter(|taint| taint.effect != "PreferNoSchedule")
            .filter(|taint| taint.key != "node.kubernetes.io/unschedulable")
            .map(|taint| short(&taint.key))
            .take(MAX_TAINTS)
            .collect(),
    }
}

/// `None` for a pod that is not part of a control plane.
fn static_pod(pod: &Pod) -> Option<StaticPod> {
    let component = short(pod.labels().get("component")?);
    let spec = pod.spec.as_ref()?;
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let image = spec
        .containers
        .iter()
        .find(|container| container.name == component)
        .or_else(|| spec.containers.first())
        .and_then(|container| container.image.as_deref());
    Some(StaticPod {
        node: cut(spec.node_name.clone()?).into(),
        version: ImageVersion::of_image(image),
        component,
        ready,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_read_as_the_kubelet_reports_it() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {"refit.dev/cordoned-by": "m-1"}},
            "spec": {
                "unschedulable": true,
                "taints": [
                    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                ],
            },
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:05Z",
                }],
                "nodeInfo": {
                    "kubeletVersion": "v1.34.2", "bootID": "b", "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        }))
        .unwrap();
        let view = node_view(&node);
        assert!(view.ready && view.cordoned_by_us());
        assert_eq!(view.taints, ["node-role.kubernetes.io/control-plane"]);
        assert_eq!(view.heartbeat, Some("2026-01-01T00:00:05Z".parse().unwrap()));
        assert_eq!(view.kubelet_version, "v1.34.2".into());
        assert_eq!(view.boot_id, "b");
    }

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

    #[test]
    fn a_mirror_pod_is_read_by_its_component() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "kube-apiserver-n", "labels": {"component": "kube-apiserver"}},
            "spec": {"nodeName": "n", "containers": [
                {"name": "sidecar", "image": "x:v9"},
                {"name": "kube-apiserver", "image": "registry.k8s.io/kube-apiserver:v1.35.0"},
            ]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let view = static_pod(&pod).unwrap();
        assert_eq!(view.version, ImageVersion::of_tag("v1.35.0"));
        assert!(view.ready);
    }
}
