//! What decisions keep of the objects of a workload cluster, for the controller and for the programs that
//! predict what it decides.

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use refit_kinds::keys;

use super::{
    budgets::BudgetView,
    drain_sort::PodView,
    seen::{ImageVersion, NodeView, StaticPod},
    snapshot::PodRef,
};

/// How much of a text is kept: names and keys of labels are at most 317 bytes long.
pub const MAX_TEXT: usize = 317;
/// How many taints of a Node are kept.
pub const MAX_TAINTS: usize = 64;
/// The conditions by which a kubelet reports that its node runs short of something
/// (`docs/facts/kubernetes.md#node-pressure`).
const PRESSURES: [&str; 3] = ["DiskPressure", "MemoryPressure", "PIDPressure"];
/// Annotation of a pod that the kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The beginning of a text, as much of it as is kept.
pub fn short(text: impl Into<String>) -> String {
    let mut text = text.into();
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

impl NodeView {
    /// What is kept of a Node.
    pub fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready");
        let mut pressures =
            conditions.iter().filter(|c| c.status == "True" && PRESSURES.contains(&&*c.type_));
        let pressure = pressures.next().map(|c| match c.message.as_deref() {
            None | Some("") => short(&c.type_),
            Some(message) => short(format!("{}: {message}", c.type_)),
        });
        let info = status.and_then(|status| status.node_info.as_ref());
        let spec = node.spec.as_ref();
        let taints = spec.and_then(|spec| spec.taints.as_ref());
        Self {
            name: short(node.name_any()).into(),
            ready: ready.is_some_and(|c| c.status == "True"),
            pressure,
            heartbeat: ready.and_then(|c| c.last_heartbeat_time.as_ref()).map(|time| time.0),
            kubelet_version: info
                .map(|info| short(&info.kubelet_version).as_str().into())
                .unwrap_or_default(),
            boot_id: info.map(|info| short(&info.boot_id)).unwrap_or_default(),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            cordoned_by: node.annotations().get(keys::CORDONED_BY).map(short),
            excluded: node.labels().contains_key(keys::EXCLUDE_FROM_LOAD_BALANCERS),
            excluded_by: node.annotations().get(keys::EXCLUDED_BY).map(short),
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
}

impl StaticPod {
    /// What is kept of a mirror pod; `None` for a pod that is not part of a control plane.
    pub fn of(pod: &Pod) -> Option<Self> {
        let component = short(pod.labels().get("component")?);
        let spec = pod.spec.as_ref()?;
        let image = spec
            .containers
            .iter()
            .find(|container| container.name == component)
            .or_else(|| spec.containers.first())
            .and_then(|container| container.image.as_deref());
        Some(Self {
            node: short(spec.node_name.clone()?).into(),
            version: ImageVersion::of_image(image),
            component,
            ready: is_ready(pod),
        })
    }
}

impl PodView {
    /// What is kept of a pod on a node that is drained.
    pub fn of(pod: &Pod) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let volumes = volumes.unwrap_or_default();
        let meta = &pod.metadata;
        Self {
            pod: PodRef {
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
            },
            daemon_set: owner.is_some_and(|owner| owner.kind == "DaemonSet"),
            mirror: pod.annotations().contains_key(MIRROR),
            finished: matches!(phase, Some("Succeeded" | "Failed")),
            pending: phase == Some("Pending"),
            ready: is_ready(pod),
            terminating: meta.deletion_timestamp.is_some(),
            unreplicated: owner.is_none(),
            local_storage: volumes.iter().any(|volume| volume.empty_dir.is_some()),
            labels: pod.labels().clone(),
            claims: volumes
                .iter()
                .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                    (Some(claim), _) => Some(claim.claim_name.clone()),
                    // Kubernetes creates the claim under this name.
                    (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
                    (None, None) => None,
                })
                .collect(),
            created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
            deletion_at: meta.deletion_timestamp.as_ref().map(|time| time.0),
            deletion_grace_seconds: meta.deletion_grace_period_seconds,
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl BudgetView {
    /// What is kept of a PodDisruptionBudget. One whose status is not of its spec, or that protects no pod,
    /// allows evictions here: the API server decides about each of them.
    pub fn of(budget: &PodDisruptionBudget) -> Self {
        let spec = budget.spec.clone().unwrap_or_default();
        let status = budget.status.clone().unwrap_or_default();
        let is_current = status.observed_generation >= budget.metadata.generation;
        Self {
            namespace: budget.namespace().unwrap_or_default(),
            name: budget.name_any(),
            // A missing selector selects no pod, an empty one selects all.
            selector: spec.selector.and_then(|selector| Selector::try_from(selector).ok()),
            allows_none: is_current && status.disruptions_allowed <= 0 && status.expected_pods > 0,
            allowed: status.disruptions_allowed,
            is_met: status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy,
            spares_unhealthy: spec.unhealthy_pod_eviction_policy.as_deref() != Some("AlwaysAllow"),
        }
    }

    /// Whether the budget selects a pod.
    pub fn protects(&self, pod: &PodView) -> bool {
        self.namespace == pod.pod.namespace
            && self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }
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
        let view = NodeView::of(&node);
        assert!(view.ready && view.cordoned_by_us());
        assert_eq!(view.taints, ["node-role.kubernetes.io/control-plane"]);
        assert_eq!(view.heartbeat, Some("2026-01-01T00:00:05Z".parse().unwrap()));
        assert_eq!(view.kubelet_version, "v1.34.2".into());
        assert_eq!(view.boot_id, "b");
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
        let view = StaticPod::of(&pod).unwrap();
        assert_eq!(view.version, ImageVersion::of_tag("v1.35.0"));
        assert!(view.ready);
    }

    fn pod(value: serde_json::Value) -> PodView {
        PodView::of(&serde_json::from_value(value).unwrap())
    }

    fn owner(kind: &str) -> serde_json::Value {
        json!([{
            "apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "1", "controller": true,
        }])
    }

    #[test]
    fn daemon_sets_mirrors_and_finished_pods_are_recognised() {
        let daemon = pod(json!({"metadata": {"name": "a", "ownerReferences": owner("DaemonSet")}}));
        assert!(daemon.daemon_set && !daemon.unreplicated);
        let mirror = json!({"name": "b", "annotations": {MIRROR: "x"}});
        assert!(pod(json!({"metadata": mirror})).mirror);
        assert!(pod(json!({"metadata": {"name": "c"}, "status": {"phase": "Failed"}})).finished);
    }

    #[test]
    fn unreplicated_pods_and_local_storage_are_recognised() {
        assert!(pod(json!({"metadata": {"name": "a"}})).unreplicated);
        let full = pod(json!({
            "metadata": {
                "name": "a", "labels": {"app": "db"}, "ownerReferences": owner("StatefulSet"),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30,
            },
            "spec": {"containers": [], "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
            ]},
        }));
        assert!(full.local_storage && full.terminating && !full.unreplicated);
        assert_eq!(full.claims, ["data-0"]);
        assert_eq!(full.labels["app"], "db");
        assert_eq!(full.deletion_grace_seconds, Some(30));
        assert!(full.created_at < full.deletion_at);
    }
}
