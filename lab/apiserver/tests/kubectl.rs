//! What kubectl needs beyond reading and writing objects: tables, discovery, schemas, dry runs,
//! pages, scales. The suite with the real kubectl is a separate crate; these tests check single
//! responses.

use crate::common::World;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Answer {
    code: u16,
    kind: String,
    warnings: Vec<String>,
    body: Value,
}

async fn ask(
    world: &World,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> Answer {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = world.raw(method, path, headers, body).await.unwrap();
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    let code = answer.status().as_u16();
    let kind = text(&answer.headers()["content-type"]);
    let warnings = answer.headers().get_all("warning").iter().map(text).collect();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    Answer { code, kind, warnings, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
}

async fn get(world: &World, path: &str, accept: &str) -> Answer {
    ask(world, "GET", path, &[("accept", accept)], Value::Null).await
}

async fn post(world: &World, path: &str, body: Value) -> Answer {
    ask(world, "POST", path, &[("content-type", "application/json")], body).await
}

async fn patch(world: &World, path: &str, kind: &str, body: Value) -> Answer {
    ask(world, "PATCH", path, &[("content-type", kind)], body).await
}

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things", "shortNames": ["th"],
                "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "selector": {"type": "string"}}},
                }}},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Wide", "type": "string", "jsonPath": ".status.selector",
                        "priority": 1},
                ],
            }],
        },
    })
}

fn thing(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name},
        "spec": {"replicas": 3}})
}

async fn world() -> World {
    let world = World::new();
    assert_eq!(post(&world, CRDS, crd()).await.code, 201);
    assert_eq!(post(&world, THINGS, thing("a")).await.code, 201);
    world
}

#[tokio::test]
async fn a_list_as_a_table_has_columns_rows_and_metadata() {
    let world = world().await;
    let table = get(&world, THINGS, TABLE).await.body;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
    let names: Vec<&Value> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(json!(names), json!(["Name", "Replicas", "Wide"]));
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3, null]));
    let row = &table["rows"][0]["object"];
    assert_eq!(row["kind"], "PartialObjectMetadata");
    assert_eq!(row["metadata"]["namespace"], "default");
    assert!(row.get("spec").is_none());
    let whole = get(&world, &format!("{THINGS}?includeObject=Object"), TABLE).await.body;
    assert_eq!(whole["rows"][0]["object"]["spec"]["replicas"], 3);
    let none = get(&world, &format!("{THINGS}?includeObject=None"), TABLE).await.body;
    assert!(none["rows"][0].get("object").is_none());
    let one = get(&world, &format!("{THINGS}/a"), TABLE).await.body;
    assert_eq!(one["rows"][0]["cells"][0], "a");
    assert_eq!(get(&world, &format!("{THINGS}?includeObject=All"), TABLE).await.code, 400);
    let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    assert_eq!(get(&world, THINGS, old).await.code, 406);
}

#[tokio::test]
async fn a_watch_sends_tables_of_one_row() {
    let world = world().await;
    let path = format!("{THINGS}?watch=true&timeoutSeconds=1");
    let answer = world.raw("GET", &path, &[("accept", TABLE)], Vec::new()).await.unwrap();
    let mut body = answer.into_body();
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&frame).unwrap();
    assert_eq!(event["type"], "ADDED");
    assert_eq!(event["object"]["kind"], "Table");
    assert_eq!(event["object"]["rows"][0]["cells"][1], 3);
}

#[tokio::test]
async fn discovery_is_aggregated_for_clients_that_accept_it() {
    let world = world().await;
    let accept =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let answer = get(&world, "/apis", accept).await;
    assert_eq!(answer.kind, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let groups = answer.body["items"].as_array().unwrap().clone();
    let group = |name: &str| groups.iter().find(|group| group["metadata"]["name"] == name).unwrap();
    let thing = &group("example.com")["versions"][0]["resources"][0];
    assert_eq!(thing["resource"], "things");
    assert_eq!(thing["scope"], "Namespaced");
    assert_eq!(thing["shortNames"], json!(["th"]));
    assert_eq!(thing["categories"], json!(["all"]));
    let subresources: Vec<&Value> =
        thing["subresources"].as_array().unwrap().iter().map(|s| &s["subresource"]).collect();
    assert_eq!(json!(subresources), json!(["scale", "status"]));
    assert_eq!(thing["subresources"][0]["responseKind"]["group"], "autoscaling");
    let core = get(&world, "/api", accept).await.body;
    let pods = core["items"][0]["versions"][0]["resources"].as_array().unwrap().clone();
    let pods = pods.iter().find(|resource| resource["resource"] == "pods").unwrap();
    assert_eq!(pods["categories"], json!(["all"]));
    let eviction = pods["subresources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["subresource"] == "eviction")
        .unwrap()
        .clone();
    assert_eq!(
        eviction["responseKind"],
        json!({"group": "policy", "version": "v1", "kind": "Eviction"})
    );
    let plain = get(&world, "/apis", "application/json").await;
    assert_eq!(plain.body["kind"], "APIGroupList");
    assert_eq!(plain.kind, "application/json");
}

#[tokio::test]
async fn schemas_are_found_through_their_index() {
    let world = world().await;
    let index = get(&world, "/openapi/v3", "*/*").await.body;
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = get(&world, url, "application/json").await.body;
    assert!(document["components"]["schemas"]["com.example.v1.Thing"].is_object());
    let old = get(&world, "/openapi/v2", "application/json").await;
    assert_eq!(old.body["swagger"], "2.0");
    let binary = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let old = get(&world, "/openapi/v2", binary).await;
    assert!(old.kind.ends_with("protobuf"), "{}", old.kind);
    assert_eq!(get(&world, "/openapi/v3/apis/nope/v1", "application/json").await.code, 404);
}

#[tokio::test]
async fn unknown_fields_warn_are_rejected_or_are_ignored() {
    let world = world().await;
    let mut object = thing("b");
    object["spec"]["odd"] = json!(1);
    let strict = post(&world, &format!("{THINGS}?fieldValidation=Strict"), object.clone()).await;
    assert_eq!(strict.code, 400);
    assert!(strict.body["message"].as_str().unwrap().contains("unknown field \"spec.odd\""));
    let warned = post(&world, &format!("{THINGS}?fieldValidation=Warn"), object.clone()).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.odd\\\"\""]);
    object["metadata"]["name"] = json!("c");
    let silent = post(&world, &format!("{THINGS}?fieldValidation=Ignore"), object.clone()).await;
    assert!(silent.warnings.is_empty());
    assert_eq!(silent.body["spec"], json!({"replicas": 3}));
    assert_eq!(post(&world, &format!("{THINGS}?fieldValidation=Maybe"), object).await.code, 422);
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}, "dato": {}});
    let strict = post(&world, &format!("{MAPS}?fieldValidation=Strict"), map.clone()).await;
    let message = strict.body["message"].as_str().unwrap();
    assert!(
        message.contains(
            "cannot be handled as a ConfigMap: strict decoding error: unknown field \"dato\""
        ),
        "{message}"
    );
    let warned = post(&world, &format!("{MAPS}?fieldValidation=Warn"), map).await;
    assert_eq!(warned.warnings.len(), 1);
    assert!(warned.body.get("dato").is_none());
    let odd = json!({"metadata": {"name": "t"}, "data": {"a": 1}});
    let typed = post(&world, &format!("{MAPS}?fieldValidation=Strict"), odd).await;
    assert_eq!(typed.code, 400);
}

#[tokio::test]
async fn a_dry_run_answers_like_a_write_and_stores_nothing() {
    let world = world().await;
    let before = world.server.revision();
    assert_eq!(post(&world, &format!("{THINGS}?dryRun=All"), thing("d")).await.code, 201);
    let path = format!("{THINGS}/a?dryRun=All");
    let merged =
        patch(&world, &path, "application/merge-patch+json", json!({"spec": {"replicas": 9}}))
            .await;
    assert_eq!(merged.body["spec"]["replicas"], 9);
    let scaled = patch(
        &world,
        &format!("{THINGS}/a/scale?dryRun=All"),
        "application/merge-patch+json",
        json!({"spec": {"replicas": 7}}),
    )
    .await;
    assert_eq!(scaled.body["spec"]["replicas"], 7);
    let gone = ask(&world, "DELETE", &path, &[], Value::Null).await;
    assert_eq!(gone.body["status"], "Success");
    let all = ask(&world, "DELETE", &format!("{THINGS}?dryRun=All"), &[], Value::Null).await;
    assert_eq!(all.code, 200);
    assert_eq!(world.server.revision(), before);
}

#[tokio::test]
async fn a_scale_reads_and_writes_the_paths_of_its_kind() {
    let world = world().await;
    let path = format!("{THINGS}/a/scale");
    let scale = get(&world, &path, "application/json").await.body;
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(scale["spec"]["replicas"], 3);
    assert_eq!(scale["metadata"]["name"], "a");
    let scaled =
        patch(&world, &path, "application/merge-patch+json", json!({"spec": {"replicas": 5}}))
            .await;
    assert_eq!(scaled.code, 200);
    assert_eq!(scaled.body["spec"]["replicas"], 5);
    let stored = world.server.get_value("example.com", "things", "default", "a").unwrap();
    assert_eq!(stored["spec"]["replicas"], 5);
    assert_eq!(stored["metadata"]["generation"], 2);
    let stale = ask(&world, "PUT", &path, &[("content-type", "application/json")],
        json!({"kind": "Scale", "metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 1}})).await;
    assert_eq!(stale.code, 409);
    let negative =
        patch(&world, &path, "application/merge-patch+json", json!({"spec": {"replicas": -1}}))
            .await;
    assert_eq!(negative.code, 422);
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels":
        {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let home = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(post(&world, home, deployment).await.code, 201);
    let scale = get(&world, &format!("{home}/web/scale"), "application/json").await.body;
    assert_eq!(scale["status"]["selector"], "app=web");
    assert_eq!(get(&world, &format!("{MAPS}/x/scale"), "application/json").await.code, 404);
}

#[tokio::test]
async fn an_expired_page_returns_a_token_to_continue() {
    let world = World::with_ring(3);
    for name in ["a", "b", "c"] {
        let map = json!({"metadata": {"name": name}});
        assert_eq!(post(&world, MAPS, map).await.code, 201);
    }
    let first = get(&world, &format!("{MAPS}?limit=1"), "application/json").await.body;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let path = format!("{MAPS}?limit=1&continue={token}");
    let second = get(&world, &path, "application/json").await.body;
    assert_eq!(second["items"][0]["metadata"]["name"], "b");
    for turn in 0..5 {
        let change = json!({"data": {"turn": turn.to_string()}});
        patch(&world, &format!("{MAPS}/c"), "application/merge-patch+json", change).await;
    }
    let expired = get(&world, &path, "application/json").await;
    assert_eq!(expired.code, 410);
    assert_eq!(expired.body["reason"], "Expired");
    let token = expired.body["metadata"]["continue"].as_str().unwrap();
    let rest = get(&world, &format!("{MAPS}?continue={token}"), "application/json").await.body;
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_body_in_protocol_buffers_is_an_object_like_any_other() {
    let world = World::new();
    // The body of `kubectl create namespace team`.
    let meta = b"\x0a\x04team\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00";
    let mut raw = vec![0x0a, u8::try_from(meta.len()).unwrap()];
    raw.extend_from_slice(meta);
    raw.extend_from_slice(b"\x12\x00\x1a\x02\x0a\x00");
    let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12".to_vec();
    body.push(u8::try_from(raw.len()).unwrap());
    body.extend_from_slice(&raw);
    body.extend_from_slice(b"\x1a\x00\x22\x00");
    let kind = [("content-type", "application/vnd.kubernetes.protobuf")];
    let answer = world.raw("POST", "/api/v1/namespaces", &kind, body).await.unwrap();
    assert_eq!(answer.status(), 201);
    let stored = world.server.get_value("", "namespaces", "", "team").unwrap();
    assert_eq!(stored["status"]["phase"], "Active");
    let broken =
        world.raw("POST", "/api/v1/namespaces", &kind, b"k8s\0\x0a\x7f".to_vec()).await.unwrap();
    assert_eq!(broken.status(), 400);
}

#[tokio::test]
async fn containers_that_do_not_run_have_no_logs() {
    let world = World::new();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(post(&world, pods, pod).await.code, 201);
    let log = get(&world, &format!("{pods}/p/log"), "*/*").await;
    assert_eq!(log.code, 501);
    assert!(log.body["message"].as_str().unwrap().contains("simulated"));
    assert_eq!(post(&world, &format!("{pods}/p/exec"), json!({})).await.code, 501);
    assert_eq!(get(&world, &format!("{pods}/missing/log"), "*/*").await.code, 404);
}

#[tokio::test]
async fn a_crd_with_a_broken_column_or_scale_is_refused() {
    let world = World::new();
    let mut broken = crd();
    broken["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"] = json!(".a[");
    let answer = post(&world, CRDS, broken).await;
    assert_eq!(answer.code, 422);
    let field = answer.body["details"]["causes"][0]["field"].as_str().unwrap();
    assert_eq!(field, "spec.versions[0].additionalPrinterColumns[0].jsonPath");
    let mut broken = crd();
    broken["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] = json!(".x[0]");
    assert_eq!(post(&world, CRDS, broken).await.code, 422);
}
