//! Upgrades by annotation with a Cluster API that serves v1beta1 only, or no KubeadmControlPlane.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use refit_cluster_api::{kinds::KubeadmControlPlane, v1beta1};
use refit_controller::Canonical;
use refit_kinds::{
    canonical::REFIT,
    conditions::MACHINE_UP_TO_DATE,
    refit::{UpdateGroup, UpgradeTask},
};
use serde_json::{Value, json};

use super::{
    MACHINE,
    lab::{BOOTSTRAP, CHANNEL, CK8S, CONTROL_PLANE, Lab, VERSION, WORKERS},
    pass,
};
use crate::common::{
    objects::{install_kinds_with, made},
    site::settle,
};

const CORE: &str = "cluster.x-k8s.io";
const CONTROL_PLANES: &str = CK8S.0;
const SINCE: &str = "2026-01-01T00:00:00Z";
const KUBEADM: &str = "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io";

fn empty() -> Lab {
    Lab::empty(Canonical::ControllersAbsent, &[CONTROL_PLANE], CK8S)
}

/// The kinds of Cluster API, with `versions` of those that Refit watches. The first one is stored.
fn kinds(versions: &[&str]) -> Vec<CustomResourceDefinition> {
    let mut all = refit_cluster_api::crds();
    for crd in &mut all {
        if [CORE, CONTROL_PLANES].contains(&&*crd.spec.group) {
            crd.spec.versions = serde_json::from_value(served_in(versions)).unwrap();
        }
    }
    all
}

/// Versions of a kind that keep every field. The conditions of v1beta1 are one list, those of v1beta2 are not.
fn served_in(versions: &[&str]) -> Value {
    let conditions = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}},
            "x-kubernetes-preserve-unknown-fields": true},
    });
    let one = |(at, version): (usize, &&str)| {
        let mut status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {}});
        if *version == "v1beta2" {
            status["properties"]["conditions"] = conditions.clone();
        } else {
            status["properties"]["v1beta2"] = json!({
                "type": "object", "properties": {"conditions": conditions},
                "x-kubernetes-preserve-unknown-fields": true,
            });
        }
        json!({
            "name": version, "served": true, "storage": at == 0, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"status": status},
            }},
        })
    };
    versions.iter().enumerate().map(one).collect()
}

/// A cluster of Canonical Kubernetes behind a Cluster API of v1beta1, without KubeadmControlPlanes.
struct Older(Lab);

impl Older {
    async fn new() -> Self {
        let mut lab = empty();
        let mut kinds = kinds(&["v1beta1"]);
        kinds.retain(|crd| crd.name_any() != KUBEADM);
        install_kinds_with(&lab.site.client(), &kinds).await;
        lab.install_providers().await;
        let older = Self(lab);
        older.set_up().await;
        lab = older.0;
        lab.start().await;
        Self(lab)
    }

    fn api(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(CORE, version, kind));
        Api::default_namespaced_with(self.0.site.client(), &resource)
    }

    /// Creates an object of v1beta1, and sets its status.
    async fn made(&self, kind: &str, mut body: Value, status: Value) -> Value {
        body["apiVersion"] = format!("{CORE}/v1beta1").into();
        body["kind"] = kind.into();
        let object: DynamicObject = serde_json::from_value(body).unwrap();
        let api = self.api("v1beta1", kind);
        let made = api.create(&<_>::default(), &object).await.unwrap();
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(&made.name_any(), &PatchParams::default(), &status).await.unwrap();
        owner(&made)
    }

    async fn set_up(&self) {
        let plane =
            self.0.foreign(CONTROL_PLANES, "CK8sControlPlane", "cp", json!({"replicas": 1})).await;
        let reference = json!({
            "apiVersion": format!("{CONTROL_PLANES}/v1beta2"), "kind": "CK8sControlPlane",
            "name": "cp", "namespace": "default",
        });
        let cluster =
            json!({"metadata": {"name": "edge-1"}, "spec": {"controlPlaneRef": reference}});
        self.made("Cluster", cluster, json!({"controlPlaneReady": true})).await;
        let template = json!({"spec": {"clusterName": "edge-1", "version": VERSION}});
        let spec = json!({
            "clusterName": "edge-1", "replicas": 3, "selector": {}, "template": template,
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}},
        });
        let deployment = json!({"metadata": {"name": "md"}, "spec": spec});
        let deployment = self.made("MachineDeployment", deployment, json!({"replicas": 3})).await;
        let set = json!({
            "metadata": {"name": "md-a", "ownerReferences": [deployment]},
            "spec": {"clusterName": "edge-1", "replicas": 3, "selector": {}, "template": template},
        });
        let set = self.made("MachineSet", set, json!({"replicas": 3})).await;
        for name in WORKERS {
            self.machine(name, json!({"ownerReferences": [set]})).await;
        }
        let labels = json!({"cluster.x-k8s.io/control-plane": ""});
        let metadata = json!({"ownerReferences": [owner(&plane)], "labels": labels});
        self.machine(CONTROL_PLANE, metadata).await;
        self.0.connect().await;
    }

    async fn machine(&self, name: &str, mut metadata: Value) {
        self.0.foreign(BOOTSTRAP, "CK8sConfig", name, json!({})).await;
        metadata["name"] = name.into();
        let spec = json!({
            "clusterName": "edge-1", "version": VERSION, "nodeDrainTimeout": "10m",
            "bootstrap": {"configRef": {
                "apiVersion": format!("{BOOTSTRAP}/v1beta2"), "kind": "CK8sConfig", "name": name,
            }},
            "infrastructureRef": {"apiVersion": "i.example/v1", "kind": "I", "name": name},
        });
        let available = json!({"type": "Available", "status": "True", "reason": "Available",
            "message": "", "lastTransitionTime": SINCE});
        let status = json!({
            "nodeRef": {"apiVersion": "v1", "kind": "Node", "name": name}, "bootstrapReady": true,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": SINCE}],
            "v1beta2": {"conditions": [available]},
        });
        self.made("Machine", json!({"metadata": metadata, "spec": spec}), status).await;
    }

    async fn ask(&self, version: &str, machine: &str, option: Option<&str>) {
        let body = json!({"metadata": {"annotations": {REFIT.upgrade_to: option}}});
        let api = self.api(version, "Machine");
        api.patch(machine, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    /// Waits until a Machine shows that what was asked for is done.
    async fn done(&self, version: &str, machine: &str, option: &str) {
        for _ in 0..4000 {
            let shown = self.api(version, "Machine").get(machine).await.unwrap();
            let all = shown.annotations();
            if all.get(REFIT.release).is_some_and(|release| release == option)
                && all.get(REFIT.status).is_some_and(|status| status == "done")
            {
                return;
            }
            pass(1).await;
        }
        let shown = self.api(version, "Machine").get(machine).await.unwrap();
        let (events, updates) = (self.0.events(machine).await, self.0.updates().await);
        panic!("{machine} is never done: {:?} {events:?} {updates:#?}", shown.annotations());
    }

    /// The conditions of v1beta1, and those of v1beta2.
    async fn conditions(&self, machine: &str) -> [Value; 2] {
        let machine = self.api("v1beta1", "Machine").get(machine).await.unwrap();
        let status = &machine.data["status"];
        [status["conditions"].clone(), status["v1beta2"]["conditions"].clone()]
    }

    /// The writes to Cluster API's kinds, beginning with the version.
    fn writes(&self) -> Vec<String> {
        let all = self.0.site.writes().into_iter();
        let path = format!("/apis/{CORE}/");
        all.filter_map(|write| Some(write.split_once(&path)?.1.to_owned())).collect()
    }
}

fn owner(object: &DynamicObject) -> Value {
    let types = object.types.as_ref().unwrap();
    json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(),
        "uid": object.uid(), "controller": true, "blockOwnerDeletion": true,
    })
}

fn types(conditions: &Value) -> Vec<&str> {
    let all = conditions.as_array().unwrap().iter();
    all.map(|condition| condition["type"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_api_of_v1beta1_is_served() {
    let lab = Older::new().await;
    for machine in [MACHINE, CONTROL_PLANE] {
        lab.ask("v1beta1", machine, Some(CHANNEL)).await;
        lab.done("v1beta1", machine, CHANNEL).await;
        assert_eq!(lab.0.refreshes(machine).len(), 1);
    }
    assert!(lab.0.site.is_ready().await);
    assert!(lab.writes().iter().all(|write| write.starts_with("v1beta1/")), "{:?}", lab.writes());
    let groups: Api<UpdateGroup> = Api::default_namespaced(lab.0.site.client());
    let group = groups.get("machinedeployment-md").await.unwrap();
    assert_eq!(group.spec.owner.api_version, format!("{CORE}/v1beta1"));
    assert_eq!(group.owner_references()[0].api_version, format!("{CORE}/v1beta1"));
    assert_eq!(group.status.unwrap().slots, []);
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_v1beta1_is_upgraded_by_annotation() {
    let lab = Older::new().await;
    let body = json!({"metadata": {"annotations": {REFIT.upgrade_to: CHANNEL}}});
    let api = lab.api("v1beta1", "MachineDeployment");
    api.patch("md", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    for machine in WORKERS {
        lab.done("v1beta1", machine, CHANNEL).await;
    }
    assert!(lab.writes().iter().all(|write| write.starts_with("v1beta1/")), "{:?}", lab.writes());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_api_of_v1beta1_shows_machine_up_to_date_in_both_forms() {
    let lab = Older::new().await;
    lab.ask("v1beta1", MACHINE, Some(CHANNEL)).await;
    lab.done("v1beta1", MACHINE, CHANNEL).await;
    settle().await;
    let [older, newer] = lab.conditions(MACHINE).await;
    assert_eq!(types(&older), ["Ready", MACHINE_UP_TO_DATE]);
    assert_eq!(types(&newer), ["Available", MACHINE_UP_TO_DATE]);
    for shown in [&older[1], &newer[1]] {
        assert_eq!((&shown["status"], &shown["reason"]), (&json!("True"), &json!("UpToDate")));
    }
    assert_eq!(older[1].get("severity"), None);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_upgrade_of_v1beta1_leaves_the_conditions_of_others() {
    let lab = Older::new().await;
    for machine in WORKERS {
        lab.ask("v1beta1", machine, Some(CHANNEL)).await;
    }
    pass(30).await;
    let mut waiting = Vec::new();
    for machine in WORKERS {
        let [older, newer] = lab.conditions(machine).await;
        assert_eq!(older[1]["status"], "Unknown", "{older}");
        assert_eq!((&older[1]["reason"], types(&newer).len()), (&newer[1]["reason"], 2));
        waiting.extend((older[1]["reason"] == "Waiting").then_some(machine));
    }
    assert_eq!(waiting.len(), 1, "two of three may be down");
    lab.ask("v1beta1", waiting[0], None).await;
    pass(30).await;
    let [older, newer] = lab.conditions(waiting[0]).await;
    assert_eq!((types(&older), types(&newer)), (vec!["Ready"], vec!["Available"]));
}

#[tokio::test(start_paused = true)]
async fn cluster_api_that_learns_v1beta2_is_read_as_such() {
    let lab = Older::new().await;
    lab.ask("v1beta1", MACHINE, Some(CHANNEL)).await;
    lab.done("v1beta1", MACHINE, CHANNEL).await;
    lab.upgrade_cluster_api().await;
    pass(600).await;
    let before = lab.writes().len();
    let next = "channel=1.34-classic/candidate";
    lab.ask("v1beta2", MACHINE, Some(next)).await;
    lab.done("v1beta2", MACHINE, next).await;
    settle().await;
    let writes = lab.writes().split_off(before);
    assert!(writes.iter().any(|write| write.contains("/machines/w-0/status")), "{writes:?}");
    assert!(writes.iter().all(|write| write.starts_with("v1beta2/")), "{writes:?}");
    let machine = lab.api("v1beta2", "Machine").get(MACHINE).await.unwrap();
    assert_eq!(
        types(&machine.data["status"]["conditions"]),
        ["Available", MACHINE_UP_TO_DATE],
        "one that was written in v1beta1 is not written twice"
    );
}

impl Older {
    /// Has Cluster API serve v1beta2 as well.
    async fn upgrade_cluster_api(&self) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.0.site.client());
        for crd in kinds(&["v1beta2", "v1beta1"]).iter().filter(|crd| crd.spec.group == CORE) {
            let body = json!({"spec": {"versions": crd.spec.versions}});
            let patch = Patch::Merge(&body);
            crds.patch(&crd.name_any(), &PatchParams::default(), &patch).await.unwrap();
        }
        self.convert("Cluster", v1beta1::cluster).await;
        self.convert("MachineDeployment", v1beta1::machine_deployment).await;
        self.convert("MachineSet", v1beta1::machine_set).await;
        self.convert("Machine", v1beta1::machine).await;
    }

    /// Gives all objects of a kind the form that Cluster API's conversion gives them.
    async fn convert(&self, kind: &str, convert: fn(&mut Value)) {
        let api = self.api("v1beta2", kind);
        for object in api.list(&<_>::default()).await.unwrap() {
            let mut value = serde_json::to_value(&object).unwrap();
            convert(&mut value);
            let body = json!({"spec": value["spec"], "status": value["status"]});
            let nothing = json!({"spec": null, "status": null});
            for body in [nothing, body] {
                let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
                api.patch(&object.name_any(), &params, &patch).await.unwrap();
                api.patch_status(&object.name_any(), &params, &patch).await.unwrap();
            }
        }
    }
}

/// A task for the control plane `kcp`.
async fn task(lab: &Lab) -> UpgradeTask {
    made(&lab.site.client(), json!({
        "metadata": {"name": "t"},
        "spec": {"clusterRef": {"name": "edge-1"}, "version": "v1.35.0", "via": "Machines", "ownerRef": {
            "apiVersion": format!("{CONTROL_PLANES}/v1beta2"), "kind": "KubeadmControlPlane", "name": "kcp",
        }},
    }))
    .await
}

/// Why a task waits.
async fn task_waits_for(lab: &Lab) -> String {
    settle().await;
    let tasks: Api<UpgradeTask> = Api::default_namespaced(lab.site.client());
    let conditions = tasks.get("t").await.unwrap().status.unwrap_or_default().conditions;
    conditions.into_iter().map(|condition| condition.message).collect::<Vec<_>>().join("; ")
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_kubeadm_control_planes_is_served() {
    let mut lab = empty();
    let mut kinds = refit_cluster_api::crds();
    let kubeadm = kinds.iter().position(|crd| crd.name_any() == KUBEADM).unwrap();
    let kubeadm = kinds.remove(kubeadm);
    install_kinds_with(&lab.site.client(), &kinds).await;
    lab.set_up_management(&[CONTROL_PLANE]).await;
    lab.start().await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=done").await;
    task(&lab).await;
    let why = task_waits_for(&lab).await;
    assert!(why.contains("KubeadmControlPlane kcp"), "{why}");
    // Installed later, it is read.
    let crds: Api<CustomResourceDefinition> = Api::all(lab.site.client());
    crds.create(&<_>::default(), &kubeadm).await.unwrap();
    let _: KubeadmControlPlane = made(&lab.site.client(), json!({
        "metadata": {"name": "kcp", "labels": {"cluster.x-k8s.io/cluster-name": "edge-1"}},
        "spec": {"replicas": 0, "version": "v1.34.2",
            "machineTemplate": {"spec": {"infrastructureRef": {"apiGroup": "i", "kind": "I", "name": "i"}}}},
    }))
    .await;
    pass(60).await;
    let why = task_waits_for(&lab).await;
    assert!(!why.contains("KubeadmControlPlane kcp"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn without_machines_the_controller_is_not_ready() {
    let mut lab = empty();
    let mut kinds = refit_cluster_api::crds();
    let machines = kinds.iter().position(|crd| crd.spec.names.kind == "Machine").unwrap();
    let machines = kinds.remove(machines);
    install_kinds_with(&lab.site.client(), &kinds).await;
    lab.start().await;
    pass(600).await;
    assert!(!lab.site.is_ready().await);
    let crds: Api<CustomResourceDefinition> = Api::all(lab.site.client());
    crds.create(&<_>::default(), &machines).await.unwrap();
    pass(60).await;
    assert!(lab.site.is_ready().await);
    crds.delete(&machines.name_any(), &DeleteParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_needs_a_cluster_api_of_v1beta2() {
    let lab = Older::new().await;
    task(&lab.0).await;
    let why = task_waits_for(&lab.0).await;
    assert!(why.contains("Cluster API serves no v1beta2 here: upgrade Cluster API"), "{why}");
    lab.upgrade_cluster_api().await;
    pass(600).await;
    // The new controllers of Cluster API write the status of every Cluster.
    let status = json!({"status": {"phase": "Provisioned"}});
    let clusters = lab.api("v1beta2", "Cluster");
    let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
    clusters.patch_status("edge-1", &params, &patch).await.unwrap();
    let why = task_waits_for(&lab.0).await;
    assert!(!why.contains("v1beta2"), "{why}");
}
