//! A control plane machine and three workers of Canonical Kubernetes behind real API servers, with a k8sd each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt as _;

use k8s_openapi::{
    api::core::v1::{Event, Namespace, Node, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use lab_simhost::k8sd::{
    CERTIFICATES_EXPIRY, K8sd, REFRESH, Received, RefreshScript, SigningRequests,
};
use refit_cluster_api::kinds::{Cluster, Machine, MachineDeployment, MachineSet};
use refit_controller::Canonical;
use refit_core::annotation::Compat;
use refit_kinds::{
    canonical::CANONICAL,
    keys,
    refit::{NodeUpdate, Phase, UpgradeTask},
};
use serde_json::{Value, json};

use super::pass;
use crate::{
    common::{
        objects::{install_kinds, made, made_in, owner, status},
        site::{Running, Site},
    },
    node_updates::lab::kubelet_status,
};

pub(super) const CONTROL_PLANES: [&str; 3] = ["cp-0", "cp-1", "cp-2"];
pub(super) const CONTROL_PLANE: &str = CONTROL_PLANES[0];
pub(super) const WORKERS: [&str; 3] = ["w-0", "w-1", "w-2"];
/// Machines that are added later; their nodes are there already.
pub(super) const LATE_WORKER: &str = "w-3";
pub(super) const LATE_MEMBER: &str = "cp-9";
pub(super) const CHANNEL: &str = "channel=1.34-classic/stable";
pub(super) const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
/// API group and kind of Canonical's control plane.
pub(super) const CK8S: (&str, &str) = ("controlplane.cluster.x-k8s.io", "CK8sControlPlane");
pub(super) const VERSION: &str = "v1.34.2";
/// Tokens have 32 hexadecimal digits.
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The token of the cluster.
const CLUSTER_TOKEN: &str = "fedcba9876543210fedcba9876543210";

pub(super) struct Lab {
    pub(super) site: Site,
    k8sd: BTreeMap<String, Arc<K8sd>>,
    set: Option<MachineSet>,
    /// API group and kind of the control plane.
    plane: (&'static str, &'static str),
    running: Running,
}

impl Lab {
    pub(super) async fn new() -> Self {
        Self::in_mode(Compat::Corrected).await
    }

    pub(super) async fn in_mode(compat: Compat) -> Self {
        Self::set_up((Canonical::ControllersAbsent, compat), &[CONTROL_PLANE], CK8S).await
    }

    /// With three members of the control plane.
    pub(super) async fn of_three(compat: Compat) -> Self {
        Self::set_up((Canonical::ControllersAbsent, compat), &CONTROL_PLANES, CK8S).await
    }

    pub(super) async fn with(canonical: Canonical) -> Self {
        Self::set_up((canonical, Compat::Corrected), &[CONTROL_PLANE], CK8S).await
    }

    /// With a control plane of a kind that only Cluster API's contract describes.
    pub(super) async fn of_another_provider() -> Self {
        let plane = ("controlplane.example.com", "ExampleControlPlane");
        let mode = (Canonical::ControllersAbsent, Compat::Corrected);
        Self::set_up(mode, &CONTROL_PLANES, plane).await
    }

    async fn set_up(
        (canonical, compat): (Canonical, Compat),
        control_planes: &[&str],
        plane: (&'static str, &'static str),
    ) -> Self {
        let mut lab = Self::empty(canonical, control_planes, plane);
        lab.site.settings.canonical_compat = compat;
        install_kinds(&lab.site.client()).await;
        lab.set_up_management(control_planes).await;
        lab.start().await;
        lab
    }

    /// Clusters without kinds and objects, and no controller.
    pub(super) fn empty(
        canonical: Canonical,
        control_planes: &[&str],
        plane: (&'static str, &'static str),
    ) -> Self {
        let mut site = Site::new();
        site.settings.canonical = canonical;
        let names = control_planes.iter().copied().chain(WORKERS).chain([LATE_WORKER, LATE_MEMBER]);
        let requests = SigningRequests::new(CLUSTER_TOKEN);
        let new = |name: &str| {
            let k8sd = K8sd::new(site.clock, name, TOKEN).unwrap();
            k8sd.join(requests.clone(), name.starts_with('w'));
            (name.to_owned(), k8sd)
        };
        let k8sd = names.map(new).collect();
        Self { site, k8sd, set: None, plane, running: Running::new() }
    }

    /// Sets up the workload cluster, and starts the controller.
    pub(super) async fn start(&mut self) {
        self.set_up_workload().await;
        self.running = self.site.start(None);
    }

    /// Installs the kinds of Canonical's providers.
    pub(super) async fn install_providers(&self) {
        for (group, kind) in [(BOOTSTRAP, "CK8sConfig"), self.plane] {
            let crds: Api<CustomResourceDefinition> = Api::all(self.site.client());
            let _: CustomResourceDefinition = made_in(&crds, definition(group, kind)).await;
        }
    }

    pub(super) async fn set_up_management(&mut self, control_planes: &[&str]) {
        let client = self.site.client();
        self.install_providers().await;
        let plane = json!({"apiGroup": self.plane.0, "kind": self.plane.1, "name": "cp"});
        let cluster = json!({"metadata": {"name": "edge-1"}, "spec": {"controlPlaneRef": plane}});
        let cluster: Cluster = made(&client, cluster).await;
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
        self.set = Some(set);
        let replicas = control_planes.len();
        let control_plane = self
            .foreign(
                self.plane.0,
                self.plane.1,
                "cp",
                json!({"replicas": replicas, "version": VERSION}),
            )
            .await;
        self.ready_control_planes(replicas).await;
        let metadata = of_control_plane(&control_plane);
        for name in control_planes {
            self.machine(name, metadata.clone()).await;
        }
        self.connect().await;
    }

    /// Gives the controller access to the workload cluster and to its k8sd.
    pub(super) async fn connect(&self) {
        let client = self.site.client();
        let tokens = self.k8sd.keys().map(|name| (format!("node-token-{name}"), json!(TOKEN)));
        let of_cluster = ("value".to_owned(), json!(CLUSTER_TOKEN));
        let tokens: serde_json::Map<String, Value> = tokens.chain([of_cluster]).collect();
        let _: Secret =
            made(&client, json!({"metadata": {"name": "edge-1-token"}, "stringData": tokens}))
                .await;
        self.site.connect(&client, "edge-1").await;
    }

    /// Creates an object of a kind of Canonical's providers.
    pub(super) async fn foreign(
        &self,
        group: &str,
        kind: &str,
        name: &str,
        spec: Value,
    ) -> DynamicObject {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name},
            "spec": spec,
        }))
        .unwrap();
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.site.client(), &resource);
        api.create(&<_>::default(), &object).await.unwrap()
    }

    fn control_planes(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(self.plane.0, "v1beta2", self.plane.1);
        Api::default_namespaced_with(self.site.client(), &ApiResource::from_gvk(&kind))
    }

    /// Sets how many members of the control plane are ready.
    pub(super) async fn ready_control_planes(&self, count: usize) {
        let body = json!({"status": {"readyReplicas": count}});
        let patch = Patch::Merge(&body);
        self.control_planes().patch("cp", &PatchParams::default(), &patch).await.unwrap();
    }

    /// A Machine that is added to the workers, or replaces one.
    pub(super) async fn late_worker(&self) {
        let set = self.set.as_ref().unwrap();
        self.machine(LATE_WORKER, json!({"ownerReferences": [owner(set)]})).await;
    }

    /// A Machine that is added to the control plane.
    pub(super) async fn late_member(&self) {
        let body = json!({"spec": {"replicas": 2}});
        let patch = Patch::Merge(&body);
        let plane =
            self.control_planes().patch("cp", &PatchParams::default(), &patch).await.unwrap();
        self.machine(LATE_MEMBER, of_control_plane(&plane)).await;
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

    /// What the k8sd of a machine got, apart from the question when its certificates expire, which each gets once.
    pub(super) fn received(&self, machine: &str) -> Vec<Received> {
        let all = self.k8sd(machine).received().into_iter();
        all.filter(|request| request.path != CERTIFICATES_EXPIRY).collect()
    }

    /// Kills the controller, and starts another one after some seconds.
    pub(super) async fn restart(&mut self, seconds: u64) {
        self.running = Running::new();
        pass(seconds).await;
        self.running = self.site.start(None);
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

    /// Changes an annotation of an owner: `md` or `cp`.
    pub(super) async fn annotate_owner(&self, owner: &str, key: &str, value: Option<&str>) {
        let body = json!({"metadata": {"annotations": {key: value}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
        if owner == "cp" {
            self.control_planes().patch(owner, &params, &patch).await.unwrap();
        } else {
            let api: Api<MachineDeployment> = Api::default_namespaced(self.site.client());
            api.patch(owner, &params, &patch).await.unwrap();
        }
    }

    /// The annotations of an owner under Canonical's prefix, without it.
    pub(super) async fn shown_by(&self, owner: &str) -> Vec<String> {
        let annotations = if owner == "cp" {
            self.control_planes().get(owner).await.unwrap().metadata.annotations
        } else {
            let api: Api<MachineDeployment> = Api::default_namespaced(self.site.client());
            api.get(owner).await.unwrap().metadata.annotations
        };
        canonical(&annotations.unwrap_or_default())
    }

    /// Waits until an annotation of an owner under Canonical's prefix has this value.
    pub(super) async fn until_owner(&self, owner: &str, shown: &str) {
        for _ in 0..8000 {
            if self.shown_by(owner).await.iter().any(|known| known == shown) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (now, updates) = (self.shown_by(owner).await, self.updates().await);
        panic!("{owner} never shows {shown}: {now:?}, {:#?}, {updates:#?}", self.tasks().await);
    }

    /// Opens or closes the namespace for Refit.
    pub(super) async fn opt_in(&self, is_in: bool) {
        let api: Api<Namespace> = Api::all(self.site.client());
        let body = json!({"metadata": {"labels": {keys::IN_PLACE: is_in.then_some("enabled")}}});
        api.patch("default", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    pub(super) async fn tasks(&self) -> Vec<UpgradeTask> {
        let api: Api<UpgradeTask> = Api::default_namespaced(self.site.client());
        api.list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn read(&self, machine: &str) -> Machine {
        let api: Api<Machine> = Api::default_namespaced(self.site.client());
        api.get(machine).await.unwrap()
    }

    /// The annotations under Canonical's prefix, without it.
    pub(super) async fn shown(&self, machine: &str) -> Vec<String> {
        canonical(self.read(machine).await.annotations())
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

    /// All states of the annotations of a Machine from now on.
    pub(super) async fn follow(&self, machine: &str) -> Arc<Mutex<Vec<Vec<String>>>> {
        let api: Api<Machine> = Api::default_namespaced(self.site.client());
        let config = watcher::Config::default().fields(&format!("metadata.name={machine}"));
        let states = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let seen = states.clone();
        tokio::spawn(async move {
            let mut states = watcher(api, config).applied_objects().boxed();
            while let Some(Ok(machine)) = states.next().await {
                seen.lock().unwrap().push(canonical(machine.annotations()));
            }
        });
        pass(1).await;
        states
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
        self.events_of(machine, "InPlaceUpgrade").await
    }

    /// The same for reasons that begin like this.
    pub(super) async fn events_of(&self, machine: &str, begin: &str) -> Vec<String> {
        let api: Api<Event> = Api::default_namespaced(self.site.client());
        let events = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        let about = events.filter(|event| event.involved_object.name.as_deref() == Some(machine));
        let own = about.filter_map(|event| {
            let reason = event.reason.filter(|reason| reason.starts_with(begin))?;
            Some(format!("{} {reason}: {}", event.type_?, event.message?))
        });
        let mut all: Vec<String> = own.collect();
        all.sort();
        all
    }

    /// Sets the names in the bootstrap config of a machine that the certificate of its API server has as well.
    pub(super) async fn extra_names(&self, machine: &str, names: &[&str]) {
        let kind = GroupVersionKind::gvk(BOOTSTRAP, "v1beta2", "CK8sConfig");
        let api: Api<DynamicObject> =
            Api::default_namespaced_with(self.site.client(), &ApiResource::from_gvk(&kind));
        let body = json!({"spec": {"controlPlane": {"extraSANs": names}}});
        api.patch(machine, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }
}

/// The annotations under Canonical's prefix, without it.
fn canonical(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let own = annotations.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix("v1beta2.k8sd.io/in-place-upgrade-")?;
        Some(format!("{key}={value}"))
    });
    own.collect()
}

/// The metadata of a Machine of a control plane.
fn of_control_plane(plane: &DynamicObject) -> Value {
    let types = plane.types.as_ref().unwrap();
    let owner = json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": "cp", "uid": plane.uid(),
        "controller": true, "blockOwnerDeletion": true,
    });
    json!({"ownerReferences": [owner], "labels": {"cluster.x-k8s.io/control-plane": ""}})
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
