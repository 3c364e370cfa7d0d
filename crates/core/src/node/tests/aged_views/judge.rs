//! The true objects as JSON, in which form the invariants read them.

use std::sync::Arc;

use refit_kinds::{keys, refit::ProviderObject};
use serde_json::{Value, json};

use super::{
    super::model::Kind,
    objects::{Fleet, Objects},
};
use crate::{
    group::Limits,
    invariants::{Violation, World},
    node::{NodeView, PodView, StaticPod},
};

const CLUSTER: Option<&str> = Some("edge-1");

/// The invariants, with the objects as they were last observed.
#[derive(Clone)]
pub(super) struct Judge(World);

impl Judge {
    pub(super) fn new(fleet: Fleet, objects: &Objects) -> Self {
        let mut judge = Self(World::new());
        judge.owner(fleet, objects.limits);
        for who in 0..objects.machines.len() {
            for kind in
                [Kind::Machine, Kind::NodeUpdate, Kind::HostPlan, Kind::Node, Kind::MirrorPod]
            {
                judge.observe(objects, kind, who, "user");
            }
        }
        judge
    }

    pub(super) fn owner(&mut self, fleet: Fleet, limits: Limits) {
        let (group, kind) = fleet.owner();
        let owner = json!({
            "metadata": {"name": "owner"},
            "spec": {
                "replicas": limits.replicas,
                "rollout": {"strategy": {"rollingUpdate": {
                    "maxSurge": 0, "maxUnavailable": limits.max_unavailable,
                }}},
            },
        });
        self.0.observe(group, kind, None, None, Some(&owner), "user");
    }

    /// Records that the object of this kind and machine was written; returns the violations.
    pub(super) fn observe(
        &mut self,
        objects: &Objects,
        kind: Kind,
        who: usize,
        actor: &str,
    ) -> Vec<Violation> {
        let mut observe_object =
            |group: &str, kind: &str, cluster: Option<&str>, object: &Value| {
                self.0.observe(group, kind, cluster, None, Some(object), actor)
            };
        match kind {
            Kind::NodeUpdate => {
                observe_object("refit.dev", "NodeUpdate", None, &value(&objects.updates[who]))
            }
            Kind::Machine => {
                observe_object("cluster.x-k8s.io", "Machine", None, &value(&objects.machines[who]))
            }
            Kind::HostPlan => {
                observe_object("refit.dev", "HostPlan", CLUSTER, &value(&objects.plans[who]))
            }
            Kind::Provider | Kind::OtherProvider => objects
                .provider(kind, who)
                .into_iter()
                .flat_map(|object| {
                    observe_object("update.example", "Thing", None, &provider(object))
                })
                .collect(),
            Kind::Node => observe_object("", "Node", CLUSTER, &node(&objects.nodes[who])),
            Kind::MirrorPod => objects
                .static_pods
                .get(who)
                .into_iter()
                .flat_map(|pod| observe_object("", "Pod", CLUSTER, &mirror_pod(pod)))
                .collect(),
            Kind::UpdateGroup | Kind::Owner | Kind::Cluster => Vec::new(),
        }
    }

    pub(super) fn evicted(&mut self, who: usize, pod: &PodView) -> Vec<Violation> {
        let spec = json!({"nodeName": format!("m-{who}")});
        let pod = json!({"metadata": {"name": pod.pod.name}, "spec": spec});
        self.0.observe("", "Pod", CLUSTER, Some(&pod), None, "controller")
    }
}

fn value(object: &Arc<impl serde::Serialize>) -> Value {
    serde_json::to_value(&**object).unwrap()
}

fn ready(ready: bool) -> Value {
    json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}])
}

fn node(node: &NodeView) -> Value {
    json!({
        "metadata": {"name": node.name, "annotations": {keys::CORDONED_BY: node.cordoned_by}},
        "spec": {"unschedulable": node.unschedulable},
        "status": {"conditions": ready(node.ready)},
    })
}

fn provider(object: &ProviderObject) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-{}", object.node_update, object.updater),
            "generation": object.generation,
            "annotations": {keys::UPDATER: object.updater},
            "ownerReferences": [{
                "kind": "NodeUpdate",
                "name": object.node_update,
                "uid": object.plan_id,
                "controller": true,
            }],
        },
        "spec": object.spec,
        "status": object.status,
    })
}

fn mirror_pod(pod: &StaticPod) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-{}", pod.component, pod.node),
            "labels": {"tier": "control-plane", "component": pod.component},
        },
        "spec": {"nodeName": pod.node},
        "status": {"conditions": ready(pod.ready)},
    })
}
