//! Creating, reading, changing and deleting objects.

use crate::common::{CONFIGS, PODS, WIDGETS, World, config, rv, widget};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn an_object_is_created_read_changed_and_deleted_by_kube() {
    let world = World::new();
    let api: Api<ConfigMap> = Api::namespaced(world.client(), "default");
    let object: ConfigMap = serde_json::from_value(config("a", &json!({"x": "1"}))).unwrap();
    let made = api.create(&PostParams::default(), &object).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert!(made.metadata.creation_timestamp.is_some());
    let patch = Patch::Merge(json!({"data": {"y": "2"}}));
    let patched = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let deleted = api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(deleted.is_right(), "an object without finalizers is deleted immediately");
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_first_namespaces_are_there() {
    let world = World::new();
    let api: Api<Namespace> = Api::all(world.client());
    let names: Vec<String> = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter_map(|namespace| namespace.metadata.name)
        .collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
}

#[tokio::test(start_paused = true)]
async fn a_second_create_of_a_name_already_exists() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let (code, status) = world.post(CONFIGS, &config("a", &json!({}))).await;
    assert_eq!(code, 409);
    assert_eq!(status["reason"], "AlreadyExists");
    assert_eq!(status["message"], "configmaps \"a\" already exists");
    assert_eq!(status["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test(start_paused = true)]
async fn a_missing_object_is_a_status_not_found() {
    let world = World::new();
    let (code, status) = world.get(&format!("{CONFIGS}/a")).await;
    assert_eq!(code, 404);
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["reason"], "NotFound");
    assert_eq!(status["message"], "configmaps \"a\" not found");
}

#[tokio::test(start_paused = true)]
async fn a_create_in_a_missing_namespace_is_not_found() {
    let world = World::new();
    let (code, status) =
        world.post("/api/v1/namespaces/nowhere/configmaps", &config("a", &json!({}))).await;
    assert_eq!(code, 404);
    assert_eq!(status["message"], "namespaces \"nowhere\" not found");
}

#[tokio::test(start_paused = true)]
async fn a_create_with_a_resource_version_is_refused() {
    let world = World::new();
    let mut object = config("a", &json!({}));
    object["metadata"]["resourceVersion"] = json!("1");
    let (code, status) = world.post(CONFIGS, &object).await;
    assert_eq!(code, 500);
    assert_eq!(status["message"], "resourceVersion should not be set on objects to be created");
}

#[tokio::test(start_paused = true)]
async fn a_create_without_a_name_is_invalid() {
    let world = World::new();
    let (code, status) = world.post(CONFIGS, &json!({"metadata": {}})).await;
    assert_eq!(code, 422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueRequired");
}

#[tokio::test(start_paused = true)]
async fn names_must_be_rfc_1123_subdomains() {
    let world = World::new();
    for name in ["Upper", "under_score", "-dash", "dot.", "a..b"] {
        let (code, status) = world.post(CONFIGS, &config(name, &json!({}))).await;
        assert_eq!(code, 422, "{name}");
        assert!(status["message"].as_str().unwrap().starts_with(&format!(
            "ConfigMap \"{name}\" is invalid: metadata.name: Invalid value: \"{name}\": a \
             lowercase RFC 1123 subdomain"
        )));
    }
    for name in ["a.b-c.d", "0", "x"] {
        assert_eq!(world.post(CONFIGS, &config(name, &json!({}))).await.0, 201, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn rbac_names_may_hold_colons() {
    let world = World::new();
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    world.create(path, &json!({"metadata": {"name": "system:node"}, "rules": []})).await;
    world.object(&format!("{path}/system%3Anode")).await;
}

#[tokio::test(start_paused = true)]
async fn labels_and_owner_references_are_validated() {
    let world = World::new();
    let mut object = config("a", &json!({}));
    object["metadata"]["labels"] = json!({"a b": "x", "ok": "not ok"});
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "X", "name": ""}]);
    let (code, status) = world.post(CONFIGS, &object).await;
    assert_eq!(code, 422);
    let fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.labels",
            "metadata.labels",
            "metadata.ownerReferences[0].name",
            "metadata.ownerReferences[0].uid",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_stale_update_conflicts() {
    let world = World::new();
    let made = world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    let path = format!("{CONFIGS}/a");
    let mut first = made.clone();
    first["data"] = json!({"x": "2"});
    assert_eq!(world.put(&path, &first).await.0, 200);
    let mut second = made;
    second["data"] = json!({"x": "3"});
    let (code, status) = world.put(&path, &second).await;
    assert_eq!(code, 409);
    assert_eq!(status["reason"], "Conflict");
    assert_eq!(
        status["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please \
         apply your changes to the latest version and try again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_merge_patch_with_a_stale_resource_version_conflicts() {
    let world = World::new();
    let made = world.create(CONFIGS, &config("a", &json!({}))).await;
    let path = format!("{CONFIGS}/a");
    world.merge(&path, &json!({"data": {"x": "1"}})).await;
    let patch = json!({"metadata": {"resourceVersion": rv(&made)}, "data": {"x": "2"}});
    assert_eq!(world.merge(&path, &patch).await.0, 409);
    assert_eq!(world.object(&path).await["data"]["x"], "1");
}

#[tokio::test(start_paused = true)]
async fn built_in_kinds_take_unconditional_updates_and_custom_ones_do_not() {
    let world = World::new();
    world.widgets().await;
    world.create(CONFIGS, &config("a", &json!({}))).await;
    world.widget("w", &json!({"size": 1})).await;
    let (code, _) = world.put(&format!("{CONFIGS}/a"), &config("a", &json!({"x": "1"}))).await;
    assert_eq!(code, 200);
    let (code, status) =
        world.put(&format!("{WIDGETS}/w"), &widget("w", &json!({"size": 2}))).await;
    assert_eq!(code, 422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.resourceVersion");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_keeps_the_resource_version_and_the_times() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1, "parts": [{"name": "a"}]})).await;
    let path = format!("{WIDGETS}/w");
    world.merge(&format!("{path}/status"), &json!({"status": {"phase": "Up"}})).await;
    let before = world.object(&path).await;
    let revision = world.server.revision();
    world.pass(60);
    assert_eq!(world.put(&path, &before).await, (200, before.clone()));
    assert_eq!(world.merge(&path, &json!({"spec": {"size": 1}})).await, (200, before.clone()));
    assert_eq!(
        world.merge(&format!("{path}/status"), &json!({"status": {"phase": "Up"}})).await,
        (200, before.clone())
    );
    assert_eq!(world.json_patch(&path, &json!([])).await, (200, before));
    assert_eq!(world.server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn system_metadata_cannot_be_changed() {
    let world = World::new();
    let made = world.create(CONFIGS, &config("a", &json!({}))).await;
    let path = format!("{CONFIGS}/a");
    let patch = json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}});
    let (code, status) = world.merge(&path, &patch).await;
    assert_eq!(code, 422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.creationTimestamp");
    let (code, _) = world.merge(&path, &json!({"metadata": {"uid": "other"}})).await;
    assert_eq!(code, 409);
    let patch = json!({"metadata": {"generation": 77, "uid": null, "creationTimestamp": null}});
    let (code, same) = world.merge(&path, &patch).await;
    assert_eq!((code, same), (200, made));
}

#[tokio::test(start_paused = true)]
async fn the_name_in_the_body_must_be_the_name_in_the_path() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({}))).await;
    let (code, status) = world.put(&format!("{CONFIGS}/a"), &config("b", &json!({}))).await;
    assert_eq!(code, 400);
    assert_eq!(
        status["message"],
        "the name of the object (b) does not match the name on the URL (a)"
    );
}

#[tokio::test(start_paused = true)]
async fn generated_names_use_kubernetes_letters_and_repeat_with_the_seed() {
    let mut all = Vec::new();
    for _ in 0..2 {
        let world = World::new();
        let mut names = Vec::new();
        for _ in 0..20 {
            let object = json!({"metadata": {"generateName": "edge-"}});
            let made = world.create(CONFIGS, &object).await;
            names.push(made["metadata"]["name"].as_str().unwrap().to_owned());
        }
        all.push(names);
    }
    assert_eq!(all[0], all[1]);
    for name in &all[0] {
        let suffix = name.strip_prefix("edge-").unwrap();
        assert_eq!(suffix.len(), 5);
        assert!(suffix.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter)));
    }
    let distinct: std::collections::BTreeSet<&String> = all[0].iter().collect();
    assert_eq!(distinct.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn uids_depend_on_the_name_and_its_incarnation_only() {
    let make = async |order: &[&str]| {
        let world = World::new();
        let mut uids = std::collections::BTreeMap::new();
        for name in order {
            let made = world.create(CONFIGS, &config(name, &json!({}))).await;
            uids.insert((*name).to_owned(), made["metadata"]["uid"].as_str().unwrap().to_owned());
        }
        (world, uids)
    };
    let (world, first) = make(&["a", "b"]).await;
    let (_, second) = make(&["b", "a"]).await;
    assert_eq!(first, second);
    world.delete(&format!("{CONFIGS}/a"), &Value::Null).await;
    let again = world.create(CONFIGS, &config("a", &json!({}))).await;
    let uid = again["metadata"]["uid"].as_str().unwrap();
    assert_ne!(uid, first["a"]);
    let parts: Vec<usize> = uid.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12]);
    assert_eq!(&uid[14..15], "4");
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_have_separate_endpoints() {
    let world = World::new();
    world.widgets().await;
    let mut object = widget("w", &json!({"size": 1}));
    object["status"] = json!({"phase": "Smuggled"});
    let made = world.create(WIDGETS, &object).await;
    assert_eq!(made.get("status"), None);
    let path = format!("{WIDGETS}/w");
    let both = json!({"spec": {"size": 2}, "status": {"phase": "Up"},
        "metadata": {"labels": {"a": "b"}}});
    let (_, after) = world.merge(&format!("{path}/status"), &both).await;
    assert_eq!(after["spec"]["size"], 1);
    assert_eq!(after["status"]["phase"], "Up");
    assert_eq!(after["metadata"].get("labels"), None);
    let (_, after) = world.merge(&path, &json!({"spec": {"size": 3}, "status": null})).await;
    assert_eq!(after["spec"]["size"], 3);
    assert_eq!(after["status"]["phase"], "Up");
}

#[tokio::test(start_paused = true)]
async fn generation_counts_changes_of_the_spec_only() {
    let world = World::new();
    world.widgets().await;
    let made = world.widget("w", &json!({"size": 1})).await;
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{WIDGETS}/w");
    let generation = async |patch: Value, path: &str| {
        world.merge(path, &patch).await.1["metadata"]["generation"].as_i64().unwrap()
    };
    assert_eq!(generation(json!({"metadata": {"labels": {"a": "b"}}}), &path).await, 1);
    let status = format!("{path}/status");
    assert_eq!(generation(json!({"status": {"phase": "Up"}}), &status).await, 1);
    assert_eq!(generation(json!({"spec": {"size": 2}}), &path).await, 2);
    let configmap = world.create(CONFIGS, &config("a", &json!({}))).await;
    assert_eq!(configmap["metadata"].get("generation"), None);
}

#[tokio::test(start_paused = true)]
async fn a_json_patch_test_that_fails_is_invalid_and_changes_nothing() {
    let world = World::new();
    let made = world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    let path = format!("{CONFIGS}/a");
    let patch = json!([
        {"op": "replace", "path": "/data/x", "value": "2"},
        {"op": "test", "path": "/data/x", "value": "1"},
    ]);
    assert_eq!(world.json_patch(&path, &patch).await.0, 422);
    assert_eq!(world.object(&path).await, made);
}

#[tokio::test(start_paused = true)]
async fn a_strategic_merge_patch_of_a_custom_kind_is_an_unsupported_media_type() {
    let world = World::new();
    world.widgets().await;
    world.widget("w", &json!({"size": 1})).await;
    let (code, status) = world
        .send(
            "PATCH",
            &format!("{WIDGETS}/w"),
            "application/strategic-merge-patch+json",
            &json!({}),
        )
        .await;
    assert_eq!(code, 415);
    assert_eq!(status["reason"], "UnsupportedMediaType");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_kind_or_version_is_a_bad_request() {
    let world = World::new();
    world.widgets().await;
    let (code, status) = world.post(CONFIGS, &widget("w", &json!({}))).await;
    assert_eq!(code, 400);
    assert_eq!(
        status["message"],
        "the API version in the data (example.dev/v1) does not match the expected API version (v1)"
    );
    let (code, _) = world.post(WIDGETS, &json!({"metadata": {"name": "x"}})).await;
    assert_eq!(code, 400);
}

#[tokio::test(start_paused = true)]
async fn metadata_of_wrong_types_is_a_bad_request_not_a_panic() {
    let world = World::new();
    for meta in [
        json!("x"),
        json!({"name": 1}),
        json!({"name": "a", "labels": []}),
        json!({"name": "a", "labels": {"x": 1}}),
        json!({"name": "a", "finalizers": "x"}),
        json!({"name": "a", "finalizers": [1]}),
        json!({"name": "a", "ownerReferences": [1]}),
        json!({"name": "a", "ownerReferences": [{"uid": 1}]}),
        json!({"name": "a", "annotations": "x"}),
    ] {
        let (code, status) = world.post(CONFIGS, &json!({"metadata": meta})).await;
        assert_eq!(code, 400, "{meta}: {status}");
    }
    for body in [json!([]), json!(1), json!("x")] {
        assert_eq!(world.post(CONFIGS, &body).await.0, 400, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_computes_and_keeps_nothing() {
    let world = World::new();
    let revision = world.server.revision();
    let (code, made) =
        world.post(&format!("{CONFIGS}?dryRun=All"), &config("a", &json!({"x": "1"}))).await;
    assert_eq!(code, 201);
    assert!(made["metadata"]["uid"].is_string());
    world.gone(&format!("{CONFIGS}/a")).await;
    assert_eq!(world.server.revision(), revision);
    world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    let path = format!("{CONFIGS}/a");
    let (_, patched) =
        world.merge(&format!("{path}?dryRun=All"), &json!({"data": {"x": "2"}})).await;
    assert_eq!(patched["data"]["x"], "2");
    assert_eq!(world.object(&path).await["data"]["x"], "1");
    assert_eq!(world.delete(&format!("{path}?dryRun=All"), &Value::Null).await.0, 200);
    world.object(&path).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_beyond_the_limit_is_413() {
    let world = World::new();
    let object = config("a", &json!({"x": "y".repeat(4 * 1024 * 1024)}));
    let (code, status) = world.post(CONFIGS, &object).await;
    assert_eq!(code, 413);
    assert_eq!(status["reason"], "RequestEntityTooLarge");
}

#[tokio::test(start_paused = true)]
async fn only_json_is_answered_and_bodies_are_json_or_protocol_buffers() {
    let world = World::new();
    let path = "/api/v1/namespaces";
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let answer = world.raw("GET", path, &accept, Vec::new()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 406);
    let accept = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let answer = world.raw("GET", path, &accept, Vec::new()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    for (kind, wanted) in [("application/vnd.kubernetes.protobuf", 400), ("application/cbor", 415)]
    {
        let (code, _) = world.send("POST", CONFIGS, kind, &json!({})).await;
        assert_eq!(code, wanted, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_paths_are_a_plain_404_and_wrong_methods_a_405() {
    let world = World::new();
    for path in
        ["/nothing", "/apis/example.dev/v1/widgets", "/api/v1/unknowns", "/api/v1/pods/a/b/c/d"]
    {
        let (code, text) = world.get(path).await;
        assert_eq!((code, text), (404, json!("404 page not found\n")), "{path}");
    }
    assert_eq!(world.send("PUT", CONFIGS, "", &Value::Null).await.0, 405);
    assert_eq!(world.post("/api/v1/pods", &json!({})).await.0, 405);
}

#[tokio::test(start_paused = true)]
async fn metadata_only_reads_leave_the_rest_out() {
    let world = World::new();
    world.create(CONFIGS, &config("a", &json!({"x": "1"}))).await;
    let accept = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
    )];
    let answer = world.raw("GET", CONFIGS, &accept, Vec::new()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert_eq!(list["items"][0].get("data"), None);
    let api: Api<ConfigMap> = Api::namespaced(world.client(), "default");
    let found = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(found.items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn secrets_keep_string_data_as_data() {
    let world = World::new();
    let made = world
        .create(
            "/api/v1/namespaces/default/secrets",
            &json!({"metadata": {"name": "s"}, "stringData": {"k": "value"}}),
        )
        .await;
    assert_eq!(made["data"]["k"], "dmFsdWU=");
    assert_eq!(made["type"], "Opaque");
    assert_eq!(made.get("stringData"), None);
}

#[tokio::test(start_paused = true)]
async fn an_event_lives_in_the_namespace_of_its_object() {
    let world = World::new();
    let event = |namespace: &str| {
        json!({
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Node", "name": "n", "namespace": namespace},
            "reason": "X",
        })
    };
    let path = "/api/v1/namespaces/default/events";
    assert_eq!(world.post(path, &event("elsewhere")).await.0, 422);
    world.create(path, &event("")).await;
    let (_, list) =
        world.get(&format!("{path}?fieldSelector=involvedObject.name=n,reason=X")).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_start_pending_with_defaults() {
    let world = World::new();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running"}});
    let made = world.create(PODS, &pod).await;
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
}

#[tokio::test(start_paused = true)]
async fn nodes_register_with_their_status() {
    let world = World::new();
    let node = json!({"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v1"}}});
    let made = world.create("/api/v1/nodes", &node).await;
    assert_eq!(made["status"]["nodeInfo"]["kubeletVersion"], "v1");
    let (_, after) = world
        .merge("/api/v1/nodes/n", &json!({"spec": {"unschedulable": true}, "status": {"a": 1}}))
        .await;
    assert_eq!(after["spec"]["unschedulable"], true);
    assert_eq!(after["status"].get("a"), None);
}

#[tokio::test(start_paused = true)]
async fn kubectl_cordons_by_a_strategic_merge_patch() {
    let world = World::new();
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [taint("a")]}});
    world.create("/api/v1/nodes", &node).await;
    let patch = json!({"spec": {"unschedulable": true, "taints": [taint("b")]}});
    let kind = "application/strategic-merge-patch+json";
    let (code, after) = world.send("PATCH", "/api/v1/nodes/n", kind, &patch).await;
    assert_eq!(code, 200, "{after}");
    assert_eq!(
        after["spec"],
        json!({"unschedulable": true, "taints": [taint("b")]}),
        "taints have no merge key in Kubernetes: kubectl sends the whole list"
    );
}

#[tokio::test(start_paused = true)]
async fn hostile_bodies_are_refused_and_leave_the_server_whole() {
    let world = World::new();
    world.widgets().await;
    let nested = |levels: usize| {
        let mut value = json!({});
        for _ in 0..levels {
            value = json!({"a": value});
        }
        value
    };
    let deep = widget("deep", &json!({"size": 1, "free": nested(110)}));
    assert_eq!(world.post(WIDGETS, &deep).await.0, 400);
    world.widget("w", &json!({"size": 1, "free": nested(90)})).await;
    let path = format!("{WIDGETS}/w");
    let copy = |step: usize| json!({"op": "copy", "from": "/spec/free", "path": format!("/spec/free/{step}")});
    let copies: Vec<Value> = (0..60).map(copy).collect();
    assert_eq!(world.json_patch(&path, &json!(copies)).await.0, 422);
    let place = format!("/spec/free{}", "/a".repeat(90));
    let add = json!([{"op": "add", "path": place, "value": nested(90)}]);
    assert_eq!(world.json_patch(&path, &add).await.0, 422);
    let (code, _) = world.apply(&path, "one", &widget("w", &json!({"free": nested(115)}))).await;
    assert_eq!(code, 400);
    let text = format!("{}{}", "[".repeat(5000), "]".repeat(5000)).into_bytes();
    let answer = world.raw("POST", CONFIGS, &[], text.clone()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let kind = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{CONFIGS}/x?fieldManager=a");
    let answer = world.raw("PATCH", &path, &kind, text).await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let budget = json!({"metadata": {"name": "b"},
        "spec": {"selector": {}, "maxUnavailable": i64::MIN}});
    world.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
        "terminationGracePeriodSeconds": i64::MAX, "containers": [{"name": "c"}]}});
    world.create(PODS, &pod).await;
    let path = format!("{PODS}/p");
    world.delete(&path, &Value::Null).await;
    world.delete(&path, &json!({"gracePeriodSeconds": 1})).await;
    assert_eq!(world.object(&path).await["metadata"]["deletionGracePeriodSeconds"], 1);
    assert_eq!(world.get(WIDGETS).await.0, 200);
}
