//! A control plane machine and three workers of Canonical Kubernetes behind real API servers, with a k8sd each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Event, Node, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use lab_simhost::k8sd::{K8sd, REFRESH, RefreshScript};
use refit_cluster_api::kinds::{Cluster, Machine, MachineDeployment, MachineSet};
use refit_controller::Canonical;
use refit_kinds::{
    canonical::CANONICAL,
    refit::{NodeUpdate, Phase},
};
use serde_json::{Value, json};

use crate::{
    common::{
        objects::{install_kinds, made, made_in, owner, status},
        site::{Running, Site},
    },
    node_updates::lab::kubelet_status,
};

pub(super) const CONTROL_PLANE: &str = "cp-0";
pub(super) const WORKERS: [&str; 3] = ["w-0", "w-1", "w-2"];
pub(super) const CHANNEL: &str = "channel=1.34-classic/stable";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const CONTROL_PLANES: &str = "controlplane.cluster.x-k8s.io";
const VERSION: &str = "v1.34.2";
/// Tokens have 32 hexadecimal digits.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(super) struct Lab {
    pub(super) site: Site,
    k8sd: BTreeMap<String, Arc<K8sd>>,
    running: Running,
}

impl Lab {
    pub(super) async fn new() -> Self {
        Self::with(Canonical::ControllersAbsent).await
    }

    pub(super) async fn with(canonical: Canonical) -> Self {
        let mut site = Site::new();
        site.settings.canonical = canonical;
        let names = [CONTROL_PLANE].into_iter().chain(WORKERS);
        let k8sd = names
            .map(|name| (name.to_owned(), K8sd::new(site.clock, name, TOKEN).unwrap()))
            .collect();
        let mut lab = Self { site, k8sd, running: Running::new() };
        lab.set_up_management().await;
        lab.set_up_workload().await;
        lab.running = lab.site.start(None);
        lab
    }

    async fn set_up_management(&self) {
        let client = self.site.client();
        install_kinds(&client).await;
        for (group, kind) in [(BOOTSTRAP, "CK8sConfig"), (CONTROL_PLANES, "CK8sControlPlane")] {
            let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
            let _: CustomResourceDefinition = made_in(&crds, definition(group, kind)).await;
        }
        let cluster: Cluster =
            made(&client, json!({"metadata": {"name": "edge-1"}, "spec": {}})).await;
        let ready = json!({"initialization": {"controlPlaneInitialized": true}});
        status(&client, &cluster, ready).await;
        let deployment: MachineDeployment = made(&client, json!({
            "metadata": {"name": "md"},
            "spec": {
                "clusterName": "edge-1", "replicas": 3, "selector": {},
                "template": {"spec": {"clusterName": "edge-1", "version": VERSION}},
                "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            },
        }))
        .await;
        let set: MachineSet = made(
            &client,
            json!({
                "metadata": {"name": "md-a", "ownerReferences": [owner(&deployment)]},
                "spec": {
                    "clusterName": "edge-1", "replicas": 3, "selector": {},
                    "template": {"spec": {"clusterName": "edge-1", "version": VERSION}},
                },
            }),
        )
        .await;
        for name in WORKERS {
            self.machine(name, json!({"ownerReferences": [owner(&set)]})).await;
        }
        let control_plane =
            self.foreign(CONTROL_PLANES, "CK8sControlPlane", "cp", json!({"replicas": 1})).await;
        let of_control_plane = json!([{
            "apiVersion": control_plane.types.as_ref().unwrap().api_version,
            "kind": "CK8sControlPlane", "name": "cp", "uid": control_plane.uid(),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let labels = json!({"cluster.x-k8s.io/control-plane": ""});
        let metadata = json!({"ownerReferences": of_control_plane, "labels": labels});
        self.machine(CONTROL_PLANE, metadata).await;
        let tokens = self.k8sd.keys().map(|name| (format!("node-token-{name}"), json!(TOKEN)));
        let tokens: serde_json::Map<String, Value> = tokens.collect();
        let _: Secret =
            made(&client, json!({"metadata": {"name": "edge-1-token"}, "stringData": tokens}))
                .await;
        self.site.connect(&client, "edge-1").await;
    }

    /// Creates an object of a kind of Canonical's providers.
    async fn foreign(&self, group: &str, kind: &str, name: &str, spec: Value) -> DynamicObject {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name},
            "spec": spec,
        }))
        .unwrap();
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.site.client(), &resource);
        api.create(&<_>::default(), &object).await.unwrap()
    }

    async fn machine(&self, name: &str, mut metadata: Value) {
        let client = self.site.client();
        let port = json!({"controlPlane": {"microclusterPort": 2381}});
        self.foreign(BOOTSTRAP, "CK8sConfig", name, port).await;
        metadata["name"] = name.into();
        let machine: Machine = made(
            &client,
            json!({
                "metadata": metadata,
                "spec": {
                    "clusterName": "edge-1", "version": VERSION,
                    "bootstrap": {"configRef": {
                        "apiGroup": BOOTSTRAP, "kind": "CK8sConfig", "name": name,
                    }},
                },
            }),
        )
        .await;
        let available = json!({
            "nodeRef": {"name": name},
            "conditions": [{
                "type": "Available", "status": "True", "reason": "Available", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        status(&client, &machine, available).await;
    }

    async fn set_up_workload(&self) {
        let client = self.site.workload_client();
        let nodes: Api<Node> = Api::all(client.clone());
        let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
        for name in self.k8sd.keys() {
            let _: Node = made_in(&nodes, json!({"metadata": {"name": name}})).await;
            let body = kubelet_status(&self.site.clock, VERSION);
            nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
            let _: Pod = made_in(&pods, json!({
                "metadata": {"name": format!("k8sd-proxy-{name}"), "labels": {"app": "k8sd-proxy"},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet",
                        "name": "k8sd-proxy", "uid": "no-such", "controller": true}]},
                "spec": {"nodeName": name, "containers": [{"name": "socat", "image": "socat"}]},
            }))
            .await;
        }
        let all = self.k8sd.clone();
        self.site.workload.serve_ports(Box::new(move |pod, port| {
            all.get(&pod.node).filter(|_| port == 2380)?.connect()
        }));
    }

    pub(super) fn k8sd(&self, machine: &str) -> &K8sd {
        &self.k8sd[machine]
    }

    /// The next refreshes of a machine, in order.
    pub(super) fn script(&self, machine: &str, scripts: impl IntoIterator<Item = RefreshScript>) {
        for script in scripts {
            self.k8sd(machine).script(script);
        }
    }

    /// The bodies of the requests for a refresh that a machine got.
    pub(super) fn refreshes(&self, machine: &str) -> Vec<Value> {
        let all = self.k8sd(machine).received().into_iter();
        all.filter(|request| request.path == REFRESH).map(|request| request.body).collect()
    }

    /// Waits until a machine got so many requests for a refresh.
    pub(super) async fn refreshed(&self, machine: &str, times: usize) {
        for _ in 0..4000 {
            if self.refreshes(machine).len() >= times {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("{machine} gets no {times} requests: {:#?}", self.updates().await);
    }

    pub(super) async fn annotate(&self, machine: &str, key: &str, value: Option<&str>) {
        let api: Api<Machine> = Api::default_namespaced(self.site.client());
        let body = json!({"metadata": {"annotations": {key: value}}});
        api.patch(machine, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    /// Requests an upgrade under Canonical's prefix.
    pub(super) async fn ask(&self, machine: &str, option: &str) {
        self.annotate(machine, CANONICAL.upgrade_to, Some(option)).await;
    }

    pub(super) async fn read(&self, machine: &str) -> Machine {
        let api: Api<Machine> = Api::default_namespaced(self.site.client());
        api.get(machine).await.unwrap()
    }

    /// The annotations under Canonical's prefix, without it.
    pub(super) async fn shown(&self, machine: &str) -> Vec<String> {
        let machine = self.read(machine).await;
        let all = machine.annotations().iter();
        let own = all.filter_map(|(key, value)| {
            let key = key.strip_prefix("v1beta2.k8sd.io/in-place-upgrade-")?;
            Some(format!("{key}={value}"))
        });
        own.collect()
    }

    /// Waits until an annotation under Canonical's prefix has this value.
    pub(super) async fn until(&self, machine: &str, shown: &str) {
        for _ in 0..4000 {
            if self.shown(machine).await.iter().any(|known| known == shown) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (shown_now, updates) = (self.shown(machine).await, self.updates().await);
        panic!("{machine} never shows {shown}: {shown_now:?}, {updates:#?}");
    }

    pub(super) async fn updates(&self) -> Vec<NodeUpdate> {
        let api: Api<NodeUpdate> = Api::default_namespaced(self.site.client());
        api.list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn phase(&self, name: &str) -> Phase {
        let api: Api<NodeUpdate> = Api::default_namespaced(self.site.client());
        api.get(name).await.unwrap().status.map(|status| status.phase).unwrap_or_default()
    }

    /// Reason and message of the events about a Machine, as an upgrade by annotation emits them.
    pub(super) async fn events(&self, machine: &str) -> Vec<String> {
        let api: Api<Event> = Api::default_namespaced(self.site.client());
        let events = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        let about = events.filter(|event| event.involved_object.name.as_deref() == Some(machine));
        let own = about.filter_map(|event| {
            let reason = event.reason.filter(|reason| reason.starts_with("InPlaceUpgrade"))?;
            Some(format!("{} {reason}: {}", event.type_?, event.message?))
        });
        let mut all: Vec<String> = own.collect();
        all.sort();
        all
    }
}

/// A kind of Canonical's providers, of which little is read.
fn definition(group: &str, kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let schema = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    });
    json!({
        "metadata": {"name": format!("{singular}s.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": format!("{singular}s"), "singular": singular, "kind": kind,
                "listKind": format!("{kind}List")},
            "versions": [{"name": "v1beta2", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}],
        },
    })
}
