//! The policy that holds replacements, as the API server applies it.

use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use lab_apiserver::{ApiServer, Options, auth::Identity};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::{crds::refit_crds, json::text};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const CAPI: &str = "system:serviceaccount:capi-system:capi-manager";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/edge/machines";
const HOLDS: &str = "/apis/refit.dev/v1alpha1/namespaces/edge/replacementholds";

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

    async fn send(&self, user: &str, method: &str, path: &str, body: Value) -> Result<(), String> {
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
            return Ok(());
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
        self.send(user, "POST", MACHINES, machine).await
    }

    async fn delete(&self, user: &str, name: &str) -> Result<(), String> {
        self.send(user, "DELETE", &format!("{MACHINES}/{name}"), Value::Null).await
    }
}

fn machine(name: &str, label: &str, owner: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "labels": {format!("cluster.x-k8s.io/{label}"): owner}},
        "spec": {"clusterName": "edge-1"},
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
        assert!(refused.contains("refit.dev/on-uncovered=Replace"), "{refused}");
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
async fn the_policy_lets_no_machine_set_ask_for_a_machine_that_is_refused() {
    const SETS: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/edge/machinesets";
    let set = |name: &str, owner: &str, replicas: i64| {
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
    };
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
    for (healthy, remediated, admitted) in
        [("False", "False", true), ("False", "True", false), ("True", "False", false)]
    {
        let mut body = machine("m", "control-plane-name", "a");
        body["status"] = json!({"conditions": [
            condition("HealthCheckSucceeded", healthy), condition("OwnerRemediated", remediated),
        ]});
        bed.create("admin", body.clone()).await.unwrap();
        let path = format!("{MACHINES}/m/status");
        bed.merge(&path, json!({"status": body["status"]})).await;
        assert_eq!(bed.delete(CAPI, "m").await.is_ok(), admitted, "{healthy} {remediated}");
        if !admitted {
            bed.delete("admin", "m").await.unwrap();
        }
    }
}

#[tokio::test]
async fn without_its_parameters_the_policy_refuses_everything_by_a_name_that_is_the_way_out() {
    let bed = Bed::new().await;
    let refused = bed.create("admin", machine("m", "deployment-name", "a")).await.unwrap_err();
    let way_out = "'to-disable-remove-the-namespace-label-refit.dev-hold-replacements'";
    assert!(refused.contains(way_out), "{refused}");
    let label = json!({"metadata": {"labels": {"refit.dev/hold-replacements": null}}});
    bed.merge("/api/v1/namespaces/edge", label).await;
    bed.create(CAPI, machine("m", "deployment-name", "a")).await.unwrap();
}
