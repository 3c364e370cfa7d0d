//! Custom resources end to end: registration, pruning, defaults, validation, server-side apply,
//! discovery.

use crate::common::{CONFIGS, CRDS, WIDGETS, World, config, widget, widget_crd};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::Discovery;
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn a_crd_is_established_at_once() {
    let world = World::new();
    world.widgets().await;
    let api: Api<CustomResourceDefinition> = Api::all(world.client());
    let established = conditions::is_crd_established();
    await_condition(api, "widgets.example.dev", established).await.unwrap();
    let crd = world.object(&format!("{CRDS}/widgets.example.dev")).await;
    assert_eq!(crd["spec"]["names"]["singular"], "widget");
    assert_eq!(crd["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(crd["metadata"]["generation"], 1);
}

#[tokio::test(start_paused = true)]
async fn broken_crds_are_refused_with_causes() {
    let world = World::new();
    let mut wrong_name = widget_crd();
    wrong_name["metadata"]["name"] = json!("gadgets.example.dev");
    let mut no_storage = widget_crd();
    no_storage["spec"]["versions"][0]["storage"] = json!(false);
    let mut no_schema = widget_crd();
    no_schema["spec"]["versions"][0]["schema"] = json!(null);
    let mut untyped = widget_crd();
    untyped["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"properties": {"a": {}}});
    for (crd, field) in [
        (wrong_name, "metadata.name"),
        (no_storage, "spec.versions"),
        (no_schema, "spec.versions[0].schema.openAPIV3Schema"),
        (untyped, "spec.versions[0].schema.openAPIV3Schema"),
    ] {
        let (code, status) = world.post(CRDS, &crd).await;
        assert_eq!(code, 422, "{field}");
        assert_eq!(status["details"]["causes"][0]["field"], field, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_crd_serves_its_new_schema() {
    let world = World::new();
    world.widgets().await;
    assert_eq!(world.post(WIDGETS, &widget("w", &json!({"size": 99}))).await.0, 422);
    let patch = json!([{
        "op": "replace",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum",
        "value": 100,
    }]);
    let (code, crd) = world.json_patch(&format!("{CRDS}/widgets.example.dev"), &patch).await;
    assert_eq!((code, &crd["metadata"]["generation"]), (200, &json!(2)));
    world.widget("w", &json!({"size": 99})).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_pruned_and_defaults_filled_in() {
    let world = World::new();
    world.widgets().await;
    let made = world.widget("w", &json!({"size": 1, "bogus": 2, "free": {"any": [1]}})).await;
    assert_eq!(made["spec"], json!({"size": 1, "colour": "grey", "free": {"any": [1]}}));
}

#[tokio::test(start_paused = true)]
async fn strict_requests_refuse_unknown_fields() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    let (code, status) = world.post(&path, &widget("w", &json!({"size": 1, "bogus": 2}))).await;
    assert_eq!(code, 400);
    assert_eq!(status["message"], "strict decoding error: unknown field \"spec.bogus\"");
}

#[tokio::test(start_paused = true)]
async fn invalid_objects_name_every_field() {
    let world = World::new();
    world.widgets().await;
    let (code, status) = world.post(WIDGETS, &widget("w", &json!({"size": 11, "colour": 1}))).await;
    assert_eq!(code, 422);
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(status["details"]["group"], "example.dev");
    assert_eq!(status["details"]["kind"], "Widget");
    let mut fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    fields.sort_unstable();
    // The first one reports that the rules were not checked, as on the real server.
    assert_eq!(fields, ["<nil>", "spec.colour", "spec.size"]);
    let (_, status) = world.post(WIDGETS, &widget("w", &json!({}))).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("Widget.example.dev \"w\" is invalid: [spec.size: Required value, "),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn transition_rules_see_the_old_object() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1, "owner": "a"})).await;
    let path = format!("{WIDGETS}/w");
    let (code, status) = world.merge(&path, &json!({"spec": {"owner": "b"}})).await;
    assert_eq!(code, 422);
    assert!(status["message"].as_str().unwrap().contains("owner is immutable once set"));
    assert_eq!(world.merge(&path, &json!({"spec": {"size": 2}})).await.0, 200);
}

fn intent(name: &str, spec: &Value) -> Value {
    widget(name, spec)
}

#[tokio::test(start_paused = true)]
async fn an_apply_creates_and_then_owns_its_fields() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    let (code, made) = world.apply(&path, "one", &intent("w", &json!({"size": 1}))).await;
    assert_eq!(code, 201, "{made}");
    let managed = &made["metadata"]["managedFields"];
    assert_eq!(managed.as_array().unwrap().len(), 1);
    assert_eq!(managed[0]["manager"], "one");
    assert_eq!(managed[0]["operation"], "Apply");
    assert_eq!(managed[0]["fieldsV1"], json!({"f:spec": {"f:size": {}}}));
    world.pass(30);
    let revision = world.server.revision();
    let (code, again) = world.apply(&path, "one", &intent("w", &json!({"size": 1}))).await;
    assert_eq!((code, again), (200, made));
    assert_eq!(world.server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn an_apply_over_anothers_field_conflicts_unless_forced() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    world.apply(&path, "one", &intent("w", &json!({"size": 1}))).await;
    let (code, status) = world.apply(&path, "two", &intent("w", &json!({"size": 2}))).await;
    assert_eq!(code, 409);
    assert_eq!(status["reason"], "Conflict");
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldManagerConflict");
    assert_eq!(status["details"]["causes"][0]["field"], ".spec.size");
    assert_eq!(
        status["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .spec.size"
    );
    let (code, forced) =
        world.apply(&path, "two&force=true", &intent("w", &json!({"size": 2}))).await;
    assert_eq!((code, &forced["spec"]["size"]), (200, &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn fields_that_an_apply_abandons_are_removed() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    let parts = json!([{"name": "a", "count": 1}, {"name": "b"}]);
    world
        .apply(&path, "one", &intent("w", &json!({"size": 1, "owner": "x", "parts": parts})))
        .await;
    let parts = json!([{"name": "c"}]);
    world.apply(&path, "two", &intent("w", &json!({"parts": parts}))).await;
    let parts = json!([{"name": "a"}]);
    let (code, after) = world
        .apply(&path, "one", &intent("w", &json!({"size": 1, "owner": "x", "parts": parts})))
        .await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["spec"]["parts"], json!([{"name": "a"}, {"name": "c"}]));
}

#[tokio::test(start_paused = true)]
async fn an_apply_to_status_leaves_the_spec_alone() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1})).await;
    let path = format!("{WIDGETS}/w/status");
    let status = |kind: &str| {
        json!({
            "apiVersion": "example.dev/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "spec": {"size": 7},
            "status": {"conditions": [{"type": kind, "status": "True"}]},
        })
    };
    let (code, after) = world.apply(&path, "one", &status("Ready")).await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(after["spec"]["size"], 1);
    let (_, after) = world.apply(&path, "two", &status("Synced")).await;
    assert_eq!(after["status"]["conditions"].as_array().unwrap().len(), 2);
    let entry = &after["metadata"]["managedFields"];
    let of_one = entry.as_array().unwrap().iter().find(|entry| entry["manager"] == "one").unwrap();
    assert_eq!(of_one["subresource"], "status");
    assert_eq!(world.apply(&format!("{WIDGETS}/x/status"), "one", &status("Ready")).await.0, 400);
    let missing = json!({"apiVersion": "example.dev/v1", "kind": "Widget",
        "metadata": {"name": "x"}, "status": {}});
    assert_eq!(world.apply(&format!("{WIDGETS}/x/status"), "one", &missing).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn an_apply_with_a_stale_resource_version_conflicts() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    let (_, made) = world.apply(&path, "one", &intent("w", &json!({"size": 1}))).await;
    world.merge(&path, &json!({"spec": {"colour": "red"}})).await;
    let mut object = intent("w", &json!({"size": 2}));
    object["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    let (code, status) = world.apply(&path, "one", &object).await;
    assert_eq!(code, 409);
    assert!(status["message"].as_str().unwrap().contains("the object has been modified"));
}

#[tokio::test(start_paused = true)]
async fn an_apply_needs_a_manager_and_no_managed_fields() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    let kind = "application/apply-patch+yaml";
    let (code, _) = world.send("PATCH", &path, kind, &intent("w", &json!({"size": 1}))).await;
    assert_eq!(code, 422);
    let mut object = intent("w", &json!({"size": 1}));
    object["metadata"]["managedFields"] = json!([]);
    assert_eq!(world.apply(&path, "one", &object).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn an_apply_may_be_yaml() {
    let world = World::new();
    let body = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: \"1\"\n";
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{CONFIGS}/a?fieldManager=one");
    let answer = world.raw("PATCH", &path, &headers, body.into()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    assert_eq!(world.object(&format!("{CONFIGS}/a")).await["data"]["x"], "1");
}

#[tokio::test(start_paused = true)]
async fn an_update_takes_fields_over_from_an_applier() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    world.apply(&path, "one", &intent("w", &json!({"size": 1, "owner": "x"}))).await;
    let (_, after) =
        world.merge(&format!("{path}?fieldManager=hand"), &json!({"spec": {"size": 2}})).await;
    let managed = after["metadata"]["managedFields"].as_array().unwrap();
    let hand = managed.iter().find(|entry| entry["manager"] == "hand").unwrap();
    assert_eq!(hand["operation"], "Update");
    assert_eq!(hand["fieldsV1"], json!({"f:spec": {"f:size": {}}}));
    let (code, _) =
        world.apply(&path, "one", &intent("w", &json!({"size": 1, "owner": "x"}))).await;
    assert_eq!(code, 409);
    let (code, _) = world.apply(&path, "one", &intent("w", &json!({"owner": "x"}))).await;
    assert_eq!(code, 200, "a field that is no longer applied causes no conflict");
    assert_eq!(world.object(&path).await["spec"]["size"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_user_agent_is_the_manager_of_plain_writes() {
    let world = World::new().as_agent("kubectl/v1.35 (linux)");
    let made = world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "kubectl");
}

#[tokio::test(start_paused = true)]
async fn managed_fields_can_be_reset_by_a_patch() {
    let world = World::new();
    world.widgets().await;
    let path = format!("{WIDGETS}/w");
    world.apply(&path, "one", &intent("w", &json!({"size": 1}))).await;
    let patch = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
    let (code, after) = world.json_patch(&path, &patch).await;
    assert_eq!(code, 200);
    let managed = after["metadata"].get("managedFields").cloned().unwrap_or(json!([]));
    assert!(!managed.to_string().contains("\"one\""), "{managed}");
}

#[tokio::test(start_paused = true)]
async fn kube_applies_dynamic_objects() {
    let world = World::new();
    world.widgets().await;
    let kind = GroupVersionKind::gvk("example.dev", "v1", "Widget");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::namespaced_with(world.client(), "default", &resource);
    let params = PatchParams::apply("one").force();
    let made =
        api.patch("w", &params, &Patch::Apply(widget("w", &json!({"size": 3})))).await.unwrap();
    assert_eq!(made.data["spec"]["size"], 3);
    let status = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"},
        "status": {"phase": "Up"}});
    let made = api.patch_status("w", &params, &Patch::Apply(status)).await.unwrap();
    assert_eq!(made.data["status"]["phase"], "Up");
}

#[tokio::test(start_paused = true)]
async fn discovery_names_built_in_and_custom_resources() {
    let world = World::new();
    world.widgets().await;
    let discovery = Discovery::new(world.client()).run().await.unwrap();
    let kind = GroupVersionKind::gvk("example.dev", "v1", "Widget");
    let (resource, capabilities) = discovery.resolve_gvk(&kind).unwrap();
    assert_eq!(resource.plural, "widgets");
    assert!(capabilities.subresources.iter().any(|(sub, _)| sub.plural == "status"));
    for (group, version, kind) in [
        ("", "v1", "Pod"),
        ("apps", "v1", "DaemonSet"),
        ("policy", "v1", "PodDisruptionBudget"),
        ("coordination.k8s.io", "v1", "Lease"),
    ] {
        assert!(discovery.resolve_gvk(&GroupVersionKind::gvk(group, version, kind)).is_some());
    }
    let group = world.object("/apis/example.dev").await;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    assert_eq!(world.get("/apis/nothing.dev/v1").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn the_version_can_be_changed_while_it_runs() {
    let world = World::new();
    let version = world.client().apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.35.0");
    world.server.set_git_version("v1.34.2");
    let version = world.client().apiserver_version().await.unwrap();
    assert_eq!((version.minor.as_str(), version.git_version.as_str()), ("34", "v1.34.2"));
    assert_eq!(world.get("/readyz").await, (200, json!("ok")));
}

#[tokio::test(start_paused = true)]
async fn every_access_review_allows() {
    let world = World::new();
    let review = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}});
    let answer =
        world.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await;
    assert_eq!(answer["status"]["allowed"], true);
}
