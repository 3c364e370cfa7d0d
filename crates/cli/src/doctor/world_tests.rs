//! Diagnoses of a simulated installation.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use lab_apiserver::auth::{AccessRecord, AccessRecorder};
use lab_world::{
    manifests::load,
    world::{Enforced, WORKLOAD_USER, World, WorldOptions, runtime},
};
use refit_install::{Choices, Part, manifests, manifests::WORKLOAD_ROLE, objects};
use refit_predict::{
    doctor::{Check, Finding, Level, examine},
    managers::PROVIDER_LABEL,
};
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::gather::gather;
use crate::{
    client::Cluster,
    plan::reader::{Access, Reader},
};

fn silent() -> AccessRecorder {
    Arc::new(|_: &AccessRecord<'_>| {})
}

/// The role that `deploy/` describes for the controller in workload clusters.
fn workload() -> Vec<Value> {
    let manifest = refit_install::Manifest {
        path: "workload_role.yaml",
        part: Part::Rbac,
        text: WORKLOAD_ROLE.to_owned(),
    };
    let mut all = objects(&[manifest]);
    all.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "refit-controller-workload"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "refit-controller-workload"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": WORKLOAD_USER}],
    }));
    all
}

async fn installed() -> World {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.yaml");
    let mut manifest_objects: Vec<Value> =
        load(&[file]).unwrap().into_iter().map(|m| m.object).collect();
    manifest_objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "default", "labels": {"refit.dev/hold-replacements": "enabled"},
    }}));
    let world = World::new(WorldOptions {
        // Certificates are issued at simulated time and checked at real time.
        epoch: Clock::real().now_seconds() - jiff::SignedDuration::from_hours(48),
        two_controllers: true,
        enforced: Some(Enforced {
            installation: objects(&manifests(&Part::MANAGEMENT, &Choices::default())),
            workload: workload(),
            management_recorder: silent(),
            workload_recorder: silent(),
        }),
        ..WorldOptions::new(manifest_objects)
    })
    .await
    .unwrap();
    world
        .until("every machine is available", Duration::from_mins(30), World::is_ready)
        .await
        .unwrap();
    world.pass(Duration::from_secs(40)).await;
    // No controller runs the Deployments of the management cluster here.
    let api: Api<Deployment> =
        Api::namespaced(world.client("doctor-test").unwrap(), "refit-system");
    let body = json!({"status": {"replicas": 2, "readyReplicas": 2}});
    let patch = Patch::Merge(&body);
    api.patch_status("refit-controller", &PatchParams::default(), &patch).await.unwrap();
    world
}

async fn findings(world: &World) -> Vec<Finding> {
    let cluster = Cluster {
        client: world.client("doctor-test").unwrap(),
        namespace: "default".into(),
        url: "https://sandbox".into(),
        clock: world.clock(),
    };
    let workload = world.workload_client("default/edge-1", "doctor-test").unwrap();
    let access = Access::Given([("edge-1".to_owned(), workload)].into());
    examine(&gather(&Reader::with(cluster, access)).await.unwrap())
}

fn bad(found: &[Finding]) -> Vec<(Check, Level)> {
    let bad = found.iter().filter(|finding| finding.level != Level::Ok);
    bad.map(|finding| (finding.check, finding.level)).collect()
}

#[test]
fn a_damaged_installation_is_reported() {
    runtime().unwrap().block_on(async {
        let world = installed().await;
        let found = findings(&world).await;
        assert_eq!(bad(&found), [], "{found:#?}");
        let client = world.client("doctor-test").unwrap();
        let roles: Api<ClusterRoleBinding> = Api::all(client.clone());
        roles.delete("refit-kubeconfigs", &DeleteParams::default()).await.unwrap();
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
        let off = json!({"metadata": {"labels": {"refit.dev/in-place": null}}});
        let patch = Patch::Merge(&off);
        namespaces.patch("default", &PatchParams::default(), &patch).await.unwrap();
        let found = findings(&world).await;
        let want = [
            (Check::Rbac, Level::Fail),
            (Check::Namespaces, Level::Warn),
            (Check::Holds, Level::Warn),
        ];
        assert_eq!(bad(&found), want, "{found:#?}");
        let rights = found.iter().find(|finding| finding.check == Check::Rbac).unwrap();
        assert!(rights.message.contains("get secrets"), "{rights:#?}");
    });
}

#[test]
fn a_machine_whose_update_would_wait_is_reported() {
    runtime().unwrap().block_on(async {
        let world = installed().await;
        let client = world.workload_client("default/edge-1", "doctor-test").unwrap();
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
        let all = nodes.list(&ListParams::default()).await.unwrap();
        let worker = all.items.iter().map(kube::ResourceExt::name_any).find(|name| name.contains("-md-"));
        let worker = worker.unwrap();
        let body = json!({"spec": {"unschedulable": true}});
        nodes.patch(&worker, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
        let found = findings(&world).await;
        assert_eq!(bad(&found), [(Check::Preflight, Level::Warn)], "{found:#?}");
        let waits = found.iter().find(|finding| finding.level == Level::Warn).unwrap();
        assert!(waits.object.starts_with("MachineDeployment/"), "{waits:#?}");
        let sentence = format!(
            "waiting until node {worker} is uncordoned, which an administrator or another program has \
             cordoned: kubectl uncordon {worker}"
        );
        assert_eq!(waits.message, sentence);
    });
}

#[test]
fn a_manager_whose_certificate_was_not_copied_is_reported() {
    runtime().unwrap().block_on(async {
        let world = installed().await;
        let client = world.client("doctor-test").unwrap();
        let everywhere: Api<Deployment> = Api::all(client.clone());
        let managers =
            everywhere.list(&ListParams::default().labels(PROVIDER_LABEL)).await.unwrap();
        let core = managers.items.iter().find(|one| {
            one.labels().get(PROVIDER_LABEL).is_some_and(|provider| provider == "cluster-api")
        });
        let core = core.unwrap();
        let mut pod = json!(core.spec.as_ref().unwrap().template.spec);
        pod["volumes"] = json!([{"name": "client", "secret": {"secretName": "hook-client-copy"}}]);
        let args = pod["containers"][0]["args"].as_array_mut().unwrap();
        args.retain(|arg| !arg.as_str().unwrap_or_default().contains("client-cert-file"));
        args.push(json!("--runtime-extension-client-cert-file=/client/tls.crt"));
        pod["containers"][0]["volumeMounts"] = json!([{"name": "client", "mountPath": "/client"}]);
        let there: Api<Deployment> = Api::namespaced(client, &core.namespace().unwrap());
        let body = json!({"spec": {"template": {"spec": pod}}});
        let patch = Patch::Merge(&body);
        there.patch(&core.name_any(), &PatchParams::default(), &patch).await.unwrap();
        let found = findings(&world).await;
        assert_eq!(bad(&found), [(Check::HookClients, Level::Fail)], "{found:#?}");
        let copy = found.iter().find(|finding| finding.level == Level::Fail).unwrap();
        assert!(copy.object.ends_with("/hook-client-copy"), "{copy:#?}");
        assert!(copy.message.contains("the Secret does not exist"), "{copy:#?}");
    });
}

#[test]
fn kubeconfigs_may_be_readable_in_the_namespaces_of_the_clusters_only() {
    runtime().unwrap().block_on(async {
        let world = installed().await;
        let client = world.client("doctor-test").unwrap();
        let everywhere: Api<ClusterRoleBinding> = Api::all(client.clone());
        everywhere.delete("refit-kubeconfigs", &DeleteParams::default()).await.unwrap();
        let choices = Choices { kubeconfigs_in: vec!["default".into()], ..Choices::default() };
        let rbac = objects(&manifests(&[Part::Rbac], &choices));
        let binding = rbac.iter().find(|object| {
            object["kind"] == "RoleBinding" && object["roleRef"]["name"] == "refit-kubeconfigs"
        });
        let binding: RoleBinding = serde_json::from_value(binding.unwrap().clone()).unwrap();
        let there: Api<RoleBinding> = Api::namespaced(client, "default");
        there.create(&PostParams::default(), &binding).await.unwrap();
        let found = findings(&world).await;
        assert_eq!(bad(&found), [], "{found:#?}");
    });
}
