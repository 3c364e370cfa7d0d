//! Deletion, garbage collection, namespaces, eviction.

use crate::common::{CONFIGS, CRDS, PODS, WIDGETS, World, config, rv, widget};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::{Value, json};

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    let mut object = config(name, &json!({}));
    object["metadata"]["ownerReferences"] = json!([reference(owner, blocks)]);
    object
}

fn reference(owner: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    })
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_holds_an_object_until_it_goes() {
    let world = World::new();
    world.widgets().await;
    let mut object = widget("w", &json!({"size": 1}));
    object["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    world.create(WIDGETS, &object).await;
    let path = format!("{WIDGETS}/w");
    let (code, marked) = world.delete(&path, &Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(marked["kind"], "Widget");
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(marked["metadata"]["generation"], 2);
    let revision = world.server.revision();
    world.pass(5);
    assert_eq!(world.delete(&path, &Value::Null).await.1, marked, "a second delete writes nothing");
    assert_eq!(world.server.revision(), revision);
    let (code, status) = world
        .merge(&path, &json!({"metadata": {"finalizers": ["example.dev/hold", "x.y/z"]}}))
        .await;
    assert_eq!(code, 422);
    assert!(status["message"].as_str().unwrap().contains(
        "no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{\"x.y/z\"}"
    ));
    let (code, last) = world.merge(&path, &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    assert_eq!(last["metadata"]["name"], "w");
    world.gone(&path).await;
}

#[tokio::test(start_paused = true)]
async fn preconditions_guard_a_delete() {
    let world = World::new();
    let made = world.create(CONFIGS, &config("a", &json!({}))).await;
    let path = format!("{CONFIGS}/a");
    let (code, status) = world.delete(&path, &json!({"preconditions": {"uid": "other"}})).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")));
    let (code, _) = world.delete(&path, &json!({"preconditions": {"resourceVersion": "1"}})).await;
    assert_eq!(code, 409);
    let right = json!({"preconditions": {
        "uid": made["metadata"]["uid"], "resourceVersion": rv(&made)}});
    let (code, status) = world.delete(&path, &right).await;
    assert_eq!(code, 200);
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"]["uid"], made["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_last_owner() {
    let world = World::new();
    let a = world.create(CONFIGS, &config("a", &json!({}))).await;
    let b = world.create(CONFIGS, &config("b", &json!({}))).await;
    world.create(CONFIGS, &owned("of-a", &a, false)).await;
    let mut both = owned("of-both", &a, false);
    both["metadata"]["ownerReferences"] = json!([reference(&a, false), reference(&b, false)]);
    world.create(CONFIGS, &both).await;
    let deep = world.object(&format!("{CONFIGS}/of-a")).await;
    world.create(CONFIGS, &owned("deep", &deep, false)).await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    world.gone(&format!("{CONFIGS}/of-a")).await;
    world.gone(&format!("{CONFIGS}/deep")).await;
    let left = world.object(&format!("{CONFIGS}/of-both")).await;
    let owners = left["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "the reference to the deleted owner is removed");
    assert_eq!(owners[0]["name"], "b");
    world.delete(&format!("{CONFIGS}/b"), &Value::Null).await;
    world.gone(&format!("{CONFIGS}/of-both")).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_created_for_an_owner_that_is_gone_is_collected() {
    let world = World::new();
    let a = world.create(CONFIGS, &config("a", &json!({}))).await;
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let (code, _) = world.post(CONFIGS, &owned("late", &a, false)).await;
    assert_eq!(code, 201);
    world.gone(&format!("{CONFIGS}/late")).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_another_namespace_does_not_count() {
    let world = World::new();
    let there = "/api/v1/namespaces/kube-system/configmaps";
    let owner = world.create(there, &config("a", &json!({}))).await;
    world.post(CONFIGS, &owned("x", &owner, false)).await;
    world.gone(&format!("{CONFIGS}/x")).await;
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_waits_for_blocking_dependents() {
    let world = World::new();
    let a = world.create(CONFIGS, &config("a", &json!({}))).await;
    let mut child = owned("child", &a, true);
    child["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    world.create(CONFIGS, &child).await;
    world.create(CONFIGS, &owned("loose", &a, false)).await;
    let path = format!("{CONFIGS}/a");
    let (_, marked) = world.delete(&path, &json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    world.object(&path).await;
    let child = world.object(&format!("{CONFIGS}/child")).await;
    assert!(child["metadata"]["deletionTimestamp"].is_string());
    world.merge(&format!("{CONFIGS}/child"), &json!({"metadata": {"finalizers": null}})).await;
    world.gone(&format!("{CONFIGS}/child")).await;
    world.gone(&path).await;
    world.gone(&format!("{CONFIGS}/loose")).await;
}

#[tokio::test(start_paused = true)]
async fn an_orphaning_deletion_leaves_dependents_without_owner() {
    let world = World::new();
    let a = world.create(CONFIGS, &config("a", &json!({}))).await;
    world.create(CONFIGS, &owned("child", &a, true)).await;
    world.delete(&format!("{CONFIGS}/a?propagationPolicy=Orphan"), &Value::Null).await;
    world.gone(&format!("{CONFIGS}/a")).await;
    let child = world.object(&format!("{CONFIGS}/child")).await;
    assert_eq!(child["metadata"].get("ownerReferences"), None);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let world = World::new();
    for (name, app) in [("a", "web"), ("b", "db")] {
        let mut object = config(name, &json!({}));
        object["metadata"]["labels"] = json!({"app": app});
        world.create(CONFIGS, &object).await;
    }
    let (code, list) =
        world.delete(&format!("{CONFIGS}?labelSelector=app%3Dweb"), &Value::Null).await;
    assert_eq!(code, 200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    world.gone(&format!("{CONFIGS}/a")).await;
    world.object(&format!("{CONFIGS}/b")).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_its_objects_with_it() {
    let world = World::new();
    world.create("/api/v1/namespaces", &json!({"metadata": {"name": "x"}})).await;
    let inside = "/api/v1/namespaces/x/configmaps";
    world.create(inside, &config("a", &json!({}))).await;
    let mut held = config("held", &json!({}));
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    world.create(inside, &held).await;
    world.delete("/api/v1/namespaces/x", &Value::Null).await;
    world.gone(&format!("{inside}/a")).await;
    let namespace = world.object("/api/v1/namespaces/x").await;
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let (code, status) = world.post(inside, &config("late", &json!({}))).await;
    assert_eq!(code, 403);
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    world.merge(&format!("{inside}/held"), &json!({"metadata": {"finalizers": null}})).await;
    world.gone("/api/v1/namespaces/x").await;
}

#[tokio::test(start_paused = true)]
async fn a_crd_takes_its_objects_and_its_paths_with_it() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1})).await;
    world.delete(&format!("{CRDS}/widgets.example.dev"), &Value::Null).await;
    world.gone(&format!("{CRDS}/widgets.example.dev")).await;
    assert_eq!(world.get(WIDGETS).await, (404, json!("404 page not found\n")));
    world.widgets().await;
    let (_, list) = world.get(WIDGETS).await;
    assert_eq!(list["items"], json!([]));
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
    })
}

async fn ready_pods(world: &World, names: &[&str]) {
    for name in names {
        world.create(PODS, &pod(name, "n")).await;
        set_ready(world, name, true).await;
    }
}

async fn set_ready(world: &World, name: &str, ready: bool) {
    let state = if ready { "True" } else { "False" };
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": state}]});
    world.merge(&format!("{PODS}/{name}/status"), &json!({"status": status})).await;
}

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn budget(world: &World, name: &str, spec: Value) {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    world.create(BUDGETS, &json!({"metadata": {"name": name}, "spec": spec})).await;
}

async fn evict(world: &World, name: &str) -> (u16, Value) {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"}});
    world.post(&format!("{PODS}/{name}/eviction"), &body).await
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_ends_when_its_kubelet_deletes_it() {
    let world = World::new();
    world.create(PODS, &pod("p", "n")).await;
    let path = format!("{PODS}/p");
    let (_, marked) = world.delete(&path, &Value::Null).await;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:30Z");
    let (_, sooner) = world.delete(&path, &json!({"gracePeriodSeconds": 10})).await;
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-01T00:00:10Z");
    world.object(&path).await;
    world.delete(&path, &json!({"gracePeriodSeconds": 0})).await;
    world.gone(&path).await;
    world.create(PODS, &pod("unbound", "")).await;
    world.delete(&format!("{PODS}/unbound"), &Value::Null).await;
    world.gone(&format!("{PODS}/unbound")).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_counts_its_pods() {
    let world = World::new();
    ready_pods(&world, &["a", "b", "c"]).await;
    budget(&world, "web", json!({"minAvailable": 2})).await;
    let status = async || world.object(&format!("{BUDGETS}/web")).await["status"].clone();
    let counted = status().await;
    assert_eq!(counted["expectedPods"], 3);
    assert_eq!(counted["currentHealthy"], 3);
    assert_eq!(counted["desiredHealthy"], 2);
    assert_eq!(counted["disruptionsAllowed"], 1);
    assert_eq!(counted["observedGeneration"], 1);
    set_ready(&world, "c", false).await;
    assert_eq!(status().await["disruptionsAllowed"], 0);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_breaks_the_budget_is_too_many_requests() {
    let world = World::new();
    ready_pods(&world, &["a", "b"]).await;
    budget(&world, "web", json!({"maxUnavailable": 1})).await;
    let api: Api<Pod> = Api::namespaced(world.client(), "default");
    let answer = api.evict("a", &EvictParams::default()).await.unwrap();
    assert!(answer.is_success());
    let evicted = world.object(&format!("{PODS}/a")).await;
    assert!(evicted["metadata"]["deletionTimestamp"].is_string());
    let (code, status) = evict(&world, "b").await;
    assert_eq!(code, 429);
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(
        status["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "DisruptionBudget",
            "message": "The disruption budget web needs 1 healthy pods and has 1 currently",
        }])
    );
    assert_eq!(evict(&world, "a").await.0, 201, "a terminating pod may be evicted again");
    assert_eq!(evict(&world, "missing").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn percentages_round_up() {
    let world = World::new();
    ready_pods(&world, &["a", "b", "c"]).await;
    budget(&world, "web", json!({"minAvailable": "50%"})).await;
    let status = world.object(&format!("{BUDGETS}/web")).await["status"].clone();
    assert_eq!(status["desiredHealthy"], 2);
}

#[tokio::test(start_paused = true)]
async fn max_unavailable_counts_from_the_controllers_replicas() {
    let world = World::new();
    let path = "/apis/apps/v1/namespaces/default/replicasets";
    let rs = json!({"metadata": {"name": "rs"}, "spec": {"replicas": 3}});
    let rs = world.create(path, &rs).await;
    for name in ["a", "b"] {
        let mut pod = pod(name, "n");
        let mut owner = reference(&rs, true);
        owner["controller"] = json!(true);
        pod["metadata"]["ownerReferences"] = json!([owner]);
        world.create(PODS, &pod).await;
        set_ready(&world, name, true).await;
    }
    budget(&world, "web", json!({"maxUnavailable": 1})).await;
    let status = world.object(&format!("{BUDGETS}/web")).await["status"].clone();
    assert_eq!((&status["expectedPods"], &status["disruptionsAllowed"]), (&json!(3), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn unhealthy_pods_go_by_the_budgets_policy() {
    let world = World::new();
    ready_pods(&world, &["a", "b"]).await;
    set_ready(&world, "b", false).await;
    budget(&world, "web", json!({"minAvailable": 2})).await;
    assert_eq!(evict(&world, "b").await.0, 429);
    let policy = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    world.merge(&format!("{BUDGETS}/web"), &policy).await;
    assert_eq!(evict(&world, "b").await.0, 201);
    assert_eq!(evict(&world, "a").await.0, 429);
}

#[tokio::test(start_paused = true)]
async fn two_budgets_for_one_pod_are_an_error() {
    let world = World::new();
    ready_pods(&world, &["a"]).await;
    budget(&world, "one", json!({"minAvailable": 0})).await;
    budget(&world, "two", json!({"minAvailable": 0})).await;
    let (code, status) = evict(&world, "a").await;
    assert_eq!(code, 500);
    assert_eq!(
        status["message"],
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not \
         support."
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_eviction_asks_the_budget_and_evicts_nothing() {
    let world = World::new();
    ready_pods(&world, &["a"]).await;
    let path = format!("{PODS}/a/eviction?dryRun=All");
    let body = json!({"metadata": {"name": "a"}});
    assert_eq!(world.post(&path, &body).await.0, 201);
    let pod = world.object(&format!("{PODS}/a")).await;
    assert_eq!(pod["metadata"].get("deletionTimestamp"), None);
    budget(&world, "web", json!({"minAvailable": 1})).await;
    assert_eq!(world.post(&path, &body).await.0, 429);
}
