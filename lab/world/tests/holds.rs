//! The policy that holds replacements, as the API server applies it.

use std::time::Duration;

use crate::common::{TEST, in_world, up_with};
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use lab_apiserver::{ApiServer, Options, auth::Identity};
use lab_world::world::{World, WorldOptions};
use refit_cluster_api::kinds::{KubeadmControlPlane, Machine};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::{crds::refit_crds, json::text, keys, refit::ReplacementHold};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const CAPI: &str = "system:serviceaccount:capi-system:capi-manager";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/edge/machines";
const SETS: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/edge/machinesets";
const HOLDS: &str = "/apis/refit.dev/v1alpha1/namespaces/edge/replacementholds";

/// The largest message that an event holds.
const EVENT: usize = 1024;

/// An API server with the policy and a namespace that holds replacements.
struct Bed(ApiServer);

impl Bed {
    async fn new() -> Self {
        let now = || "2026-03-02T08:00:00Z".parse().unwrap();
        let bed = Self(ApiServer::new(Options::new(std::sync::Arc::new(now))));
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for crd in refit_crds().into_iter().chain(refit_cluster_api::crds()) {
            bed.made(crds, serde_json::to_value(crd).unwrap()).await;
        }
        let namespace = json!({"metadata": {
            "name": "edge", "labels": {"refit.dev/hold-replacements": "enabled"},
        }});
        bed.made("/api/v1/namespaces", namespace).await;
        for manifest in manifests(&[Part::Rbac], &Choices::default()) {
            if manifest.path.starts_with("holds/") {
                let object = objects(&[manifest]).remove(0);
                let plural = match text(&object, "/kind") {
                    "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
                    _ => "validatingadmissionpolicybindings",
                };
                bed.made(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), object).await;
            }
        }
        bed
    }

    async fn send(
        &self,
        user: &str,
        method: &str,
        path: &str,
        body: Value,
    ) -> Result<Value, String> {
        let request = http::Request::builder().method(method).uri(path).header(
            "content-type",
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
        );
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
        request.extensions_mut().insert(Identity::new(user, &["system:masters"]));
        let response = self.0.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return Ok(body);
        }
        assert!(
            matches!(status, StatusCode::FORBIDDEN | StatusCode::UNPROCESSABLE_ENTITY),
            "{body}"
        );
        Err(text(&body, "/message").to_owned())
    }

    async fn made(&self, path: &str, body: Value) {
        self.send("admin", "POST", path, body).await.unwrap();
    }

    async fn merge(&self, path: &str, body: Value) {
        self.send("admin", "PATCH", path, body).await.unwrap();
    }

    /// Holds an owner of each kind, each with the name `a`.
    async fn hold(&self, create: &str, delete: &str) {
        let entry =
            |kind: &str| json!({"kind": kind, "name": "a", "create": create, "delete": delete});
        let owners = [entry("KubeadmControlPlane"), entry("MachineDeployment")];
        let spec = json!({"callers": [CAPI], "owners": owners});
        self.made(
            HOLDS,
            json!({
                "apiVersion": "refit.dev/v1alpha1", "kind": "ReplacementHold",
                "metadata": {"name": "refit"}, "spec": spec,
            }),
        )
        .await;
    }

    async fn create(&self, user: &str, machine: Value) -> Result<(), String> {
        self.send(user, "POST", MACHINES, machine).await.map(drop)
    }

    async fn delete(&self, user: &str, name: &str) -> Result<(), String> {
        self.send(user, "DELETE", &format!("{MACHINES}/{name}"), Value::Null).await.map(drop)
    }
}

fn machine(name: &str, label: &str, owner: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "labels": {format!("cluster.x-k8s.io/{label}"): owner}},
        "spec": {"clusterName": "edge-1"},
    })
}

fn set(name: &str, owner: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/deployment-name": owner}},
        "spec": {
            "clusterName": "edge-1", "replicas": replicas, "selector": {},
            "template": {"spec": {
                "clusterName": "edge-1", "bootstrap": {"dataSecretName": "none"},
                "infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachineTemplate",
                    "name": "none",
                },
            }},
        },
    })
}

#[tokio::test]
async fn the_policy_refuses_what_cluster_api_must_not_do_and_names_the_way_out() {
    for (label, kind) in
        [("control-plane-name", "KubeadmControlPlane"), ("deployment-name", "MachineDeployment")]
    {
        let bed = Bed::new().await;
        bed.hold("Refused", "Refused").await;
        let refused = bed.create(CAPI, machine("m", label, "a")).await.unwrap_err();
        assert!(refused.contains(&format!("{kind} edge/a: a further one")), "{refused}");
        let in_place = refused.find("Update it in place: refit upgrade or an UpgradeTask").unwrap();
        let replaced = refused.find("refit.dev/on-uncovered=Replace").unwrap();
        assert!(in_place < replaced && refused.len() < EVENT, "{refused}");
        let of_one = if kind == "MachineDeployment" {
            "maxSurge: 0 with maxUnavailable: 1"
        } else {
            "refit.dev/single-replica=InPlace"
        };
        assert!(refused.contains(of_one), "{refused}");
        bed.create("admin", machine("m", label, "a")).await.unwrap();
        let refused = bed.delete(CAPI, "m").await.unwrap_err();
        assert!(refused.contains("another one would replace Machine m"), "{refused}");
        bed.delete("admin", "m").await.unwrap();
        bed.create(CAPI, machine("m", label, "another")).await.unwrap();
        bed.delete(CAPI, "m").await.unwrap();
        bed.create(CAPI, machine("m", "set-name", "a")).await.unwrap();
    }
}

#[tokio::test]
async fn the_policy_knows_a_control_plane_with_a_long_name_by_the_owner_reference() {
    let bed = Bed::new().await;
    bed.hold("Refused", "Refused").await;
    let owned = |kind: &str, name: &str, controller: Option<bool>| {
        let mut machine = machine("m", "control-plane-name", "hash");
        machine["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": kind, "name": name,
            "uid": "1", "controller": controller,
        }]);
        machine
    };
    let of_plane = owned("KubeadmControlPlane", "a", Some(true));
    let refused = bed.create(CAPI, of_plane).await.unwrap_err();
    assert!(refused.contains("KubeadmControlPlane edge/a: a further one"), "{refused}");
    // These owners do not exist, so that the garbage collector deletes their Machines.
    for other in [
        owned("KubeadmControlPlane", "b", Some(true)),
        owned("KubeadmControlPlane", "a", None),
        owned("OtherControlPlane", "a", Some(true)),
    ] {
        bed.create(CAPI, other).await.unwrap();
    }
}

#[tokio::test]
async fn the_policy_names_the_machine_that_the_deletion_of_a_collection_includes() {
    let bed = Bed::new().await;
    bed.hold("Refused", "Refused").await;
    bed.create("admin", machine("m", "deployment-name", "a")).await.unwrap();
    let refused = bed.send(CAPI, "DELETE", MACHINES, Value::Null).await.unwrap_err();
    assert!(refused.contains("another one would replace Machine m."), "{refused}");
}

#[tokio::test]
async fn the_policy_admits_what_an_entry_allows() {
    let bed = Bed::new().await;
    bed.hold("Allowed", "Refused").await;
    bed.create(CAPI, machine("m", "deployment-name", "a")).await.unwrap();
    bed.delete(CAPI, "m").await.unwrap_err();
    let bed = Bed::new().await;
    bed.hold("Refused", "Allowed").await;
    bed.create("admin", machine("m", "deployment-name", "a")).await.unwrap();
    bed.delete(CAPI, "m").await.unwrap();
}

#[tokio::test]
async fn the_policy_admits_the_deletion_of_the_machines_that_an_entry_names() {
    let bed = Bed::new().await;
    bed.hold("Refused", "Refused").await;
    for (name, machines) in [("a", ["m", "m-1"]), ("b", ["m-2", "m-3"])] {
        let set = bed.send("admin", "POST", SETS, set(name, "a", 0)).await.unwrap();
        for name in machines {
            let mut machine = machine(name, "deployment-name", "a");
            machine["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
                "name": set["metadata"]["name"], "uid": set["metadata"]["uid"], "controller": true,
            }]);
            bed.create("admin", machine).await.unwrap();
        }
    }
    let entry = json!({
        "kind": "MachineDeployment", "name": "a", "create": "Refused", "delete": "Refused",
        "deletableMachines": ["m-1", "m-4"], "deletableMachineSets": ["b"],
    });
    bed.merge(&format!("{HOLDS}/refit"), json!({"spec": {"owners": [entry]}})).await;
    bed.delete(CAPI, "m-1").await.unwrap();
    bed.delete(CAPI, "m-2").await.unwrap();
    bed.delete(CAPI, "m-3").await.unwrap();
    let refused = bed.delete(CAPI, "m").await.unwrap_err();
    assert!(refused.contains("another one would replace Machine m."), "{refused}");
}

#[tokio::test]
async fn the_policy_lets_no_machine_set_ask_for_a_machine_that_is_refused() {
    let bed = Bed::new().await;
    bed.hold("Refused", "Allowed").await;
    let refused = bed.send(CAPI, "POST", SETS, set("s", "a", 1)).await.unwrap_err();
    assert!(refused.contains("MachineDeployment edge/a: a further one"), "{refused}");
    bed.send(CAPI, "POST", SETS, set("other", "another", 1)).await.unwrap();
    bed.send(CAPI, "POST", SETS, set("s", "a", 0)).await.unwrap();
    let path = format!("{SETS}/s");
    let replicas = |count: i64| json!({"spec": {"replicas": count}});
    bed.send(CAPI, "PATCH", &path, replicas(1)).await.unwrap_err();
    let key = "in-place-updates.internal.cluster.x-k8s.io/acknowledged-move";
    let moved = |count: i64| json!({"metadata": {"annotations": {key: "m-1,m-2"}}, "spec": {"replicas": count}});
    bed.send(CAPI, "PATCH", &path, moved(3)).await.unwrap_err();
    bed.send(CAPI, "PATCH", &path, moved(2)).await.unwrap();
    bed.send(CAPI, "PATCH", &path, replicas(1)).await.unwrap();
    bed.send("admin", "PATCH", &path, replicas(5)).await.unwrap();

    let bed = Bed::new().await;
    bed.hold("Allowed", "Refused").await;
    bed.send(CAPI, "POST", SETS, set("s", "a", 1)).await.unwrap();
}

#[tokio::test]
async fn the_policy_admits_remediation() {
    let bed = Bed::new().await;
    bed.hold("Refused", "Refused").await;
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "A", "message": "",
               "lastTransitionTime": "2026-03-02T08:00:00Z"})
    };
    let pair = |healthy: &str, remediated: &str| {
        json!([
            condition("HealthCheckSucceeded", healthy),
            condition("OwnerRemediated", remediated)
        ])
    };
    // A MachineSet sets only the conditions of v1beta2 before it deletes a Machine.
    let older = |older: [&str; 2], newer: [&str; 2]| {
        json!({"conditions": pair(older[0], older[1]),
               "v1beta2": {"conditions": pair(newer[0], newer[1])}})
    };
    for (status, admitted) in [
        (json!({"conditions": pair("False", "False")}), true),
        (json!({"conditions": pair("False", "True")}), false),
        (json!({"conditions": pair("True", "False")}), false),
        (older(["False", "True"], ["False", "False"]), true),
        (older(["False", "True"], ["True", "False"]), false),
        (json!({"v1beta2": {}}), false),
        (json!({}), false),
    ] {
        let path = format!("{MACHINES}/m/status");
        bed.create("admin", machine("m", "control-plane-name", "a")).await.unwrap();
        bed.merge(&path, json!({"status": status})).await;
        assert_eq!(bed.delete(CAPI, "m").await.is_ok(), admitted, "{status}");
        if !admitted {
            bed.delete("admin", "m").await.unwrap();
        }
    }
}

#[tokio::test]
async fn without_its_parameters_the_policy_refuses_everything_by_a_name_that_is_the_way_out() {
    let bed = Bed::new().await;
    let refused = bed.create("admin", machine("m", "deployment-name", "a")).await.unwrap_err();
    let way_out = "'remove-the-label-hold-replacements-of-the-namespace'";
    assert!(refused.contains(way_out), "{refused}");
    let label = json!({"metadata": {"labels": {"refit.dev/hold-replacements": null}}});
    bed.merge("/api/v1/namespaces/edge", label).await;
    bed.create(CAPI, machine("m", "deployment-name", "a")).await.unwrap();
}

/// A cluster of one machine in a namespace that holds replacements.
async fn held_box() -> World {
    let scenarios =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/manifests");
    let files = ["held-namespace.yaml", "edge-box.yaml"].map(|file| scenarios.join(file));
    let loaded = lab_world::manifests::load(&files).unwrap().into_iter();
    let manifests = loaded.map(|manifest| manifest.object).collect();
    up_with(WorldOptions::new(manifests)).await
}

/// The ReplacementHold of the namespace.
async fn hold_of(world: &World) -> Option<ReplacementHold> {
    let holds: Api<ReplacementHold> = Api::namespaced(world.client(TEST).unwrap(), "default");
    holds.get_opt("refit").await.unwrap()
}

async fn label_namespace(world: &World, labels: Value) {
    let namespaces: Api<Namespace> = Api::all(world.client(TEST).unwrap());
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    namespaces.patch("default", &PatchParams::default(), &patch).await.unwrap();
}

async fn annotate_plane(world: &World, annotations: Value) {
    let planes: Api<KubeadmControlPlane> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    planes.patch("edge-1", &PatchParams::default(), &patch).await.unwrap();
}

#[test]
fn a_replacement_hold_stays_while_its_namespace_has_machines_and_lets_go_without_the_label() {
    in_world(async {
        let world = held_box().await;
        let hold = hold_of(&world).await.unwrap();
        assert_eq!(hold.metadata.finalizers.unwrap(), [keys::HOLD_FINALIZER]);
        let holds: Api<ReplacementHold> = Api::namespaced(world.client(TEST).unwrap(), "default");
        holds.delete("refit", &DeleteParams::default()).await.unwrap();
        world.pass(Duration::from_mins(2)).await;
        let leaving = hold_of(&world).await.unwrap();
        assert!(leaving.metadata.deletion_timestamp.is_some());
        // It is still kept up to date.
        annotate_plane(&world, json!({"refit.dev/on-uncovered": "Replace"})).await;
        world.pass(Duration::from_secs(10)).await;
        assert_eq!(hold_of(&world).await.unwrap().spec.owners, []);
        annotate_plane(&world, json!({"refit.dev/on-uncovered": null})).await;
        label_namespace(&world, json!({keys::HOLD_REPLACEMENTS: null})).await;
        world.pass(Duration::from_mins(1)).await;
        // Of the namespace that has opted in, but is not held.
        let next = hold_of(&world).await.unwrap();
        assert!(next.metadata.deletion_timestamp.is_none() && next.metadata.finalizers.is_none());
        label_namespace(&world, json!({keys::HOLD_REPLACEMENTS: keys::OPTED_IN})).await;
        world.pass(Duration::from_secs(10)).await;
        let guarded = hold_of(&world).await.unwrap();
        assert_eq!(guarded.metadata.finalizers.unwrap(), [keys::HOLD_FINALIZER]);
        assert_eq!(guarded.spec.owners.len(), 1);
    });
}

#[test]
fn a_namespace_that_holds_replacements_can_be_deleted() {
    in_world(async {
        let world = held_box().await;
        let namespaces: Api<Namespace> = Api::all(world.client(TEST).unwrap());
        // The worst order: the hold is the first object that goes.
        let holds: Api<ReplacementHold> = Api::namespaced(world.client(TEST).unwrap(), "default");
        holds.delete("refit", &DeleteParams::default()).await.unwrap();
        namespaces.delete("default", &DeleteParams::default()).await.unwrap();
        world.pass(Duration::from_mins(1)).await;
        let leaving = hold_of(&world).await.unwrap();
        assert_eq!(leaving.spec.owners, [], "Cluster API may delete all Machines");
        // As Cluster API does when it has deleted the host.
        let machines: Api<Machine> = Api::namespaced(world.client(TEST).unwrap(), "default");
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for machine in machines.list(&ListParams::default()).await.unwrap() {
            assert!(machine.metadata.deletion_timestamp.is_some());
            machines.patch(&machine.name_any(), &PatchParams::default(), &patch).await.unwrap();
        }
        world.pass(Duration::from_secs(10)).await;
        assert!(hold_of(&world).await.is_none());
    });
}

#[test]
fn a_namespace_that_holds_replacements_without_being_opted_in_is_kept_up_to_date() {
    in_world(async {
        let world = held_box().await;
        label_namespace(&world, json!({keys::IN_PLACE: null})).await;
        world.pass(Duration::from_secs(10)).await;
        assert_eq!(hold_of(&world).await.unwrap().spec.owners.len(), 1);
        annotate_plane(&world, json!({"refit.dev/on-uncovered": "Replace"})).await;
        world.pass(Duration::from_secs(10)).await;
        assert_eq!(hold_of(&world).await.unwrap().spec.owners, []);
    });
}
