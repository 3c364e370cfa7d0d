//! Apply, client-side and server-side; diff.

use serde_json::{Value, json};

use crate::{config_map, deployment, has, list, machine, machine_deployment, namespace};

#[test]
fn client_side_apply_creates_changes_and_removes() {
    let kubectl = namespace("apply-client");
    let apply = |object: &Value| kubectl.feed("apply -f -", &object.to_string()).ok();
    let mut web = deployment("web", "i:1");
    assert_eq!(apply(&web), "deployment.apps/web created\n");
    assert_eq!(apply(&web), "deployment.apps/web unchanged\n");
    kubectl.run("label deployment web theirs=1").ok();
    let container = &mut web["spec"]["template"]["spec"]["containers"][0];
    container["env"] = json!([{"name": "B", "value": "2"}]);
    container["image"] = json!("i:2");
    assert_eq!(apply(&web), "deployment.apps/web configured\n");
    let path = "jsonpath={.spec.template.spec.containers[0].env[*].name} {.spec.template.spec.containers[0].image} {.metadata.labels.theirs}";
    assert_eq!(kubectl.args(["get", "deploy", "web", "-o", path]).ok(), "B i:2 1");
    has(&kubectl.run("apply view-last-applied deployment/web").ok(), &["image: i:2"]);
}

#[test]
fn client_side_apply_of_custom_kinds_merges_three_ways() {
    let kubectl = namespace("apply-custom");
    let apply = |object: &Value| kubectl.feed("apply -f -", &object.to_string());
    let mut md = machine_deployment("md");
    md["metadata"]["labels"] = json!({"mine": "1"});
    let first = apply(&md);
    assert_eq!(first.stderr, "");
    first.ok();
    kubectl.run("scale md md --replicas=9").ok();
    kubectl.run("annotate md md theirs=1").ok();
    let spec = md["spec"].as_object_mut().unwrap();
    spec.remove("replicas");
    md["metadata"] = json!({"name": "md"});
    md["spec"]["template"]["spec"]["version"] = json!("v1.35.0");
    assert_eq!(apply(&md).ok(), "machinedeployment.cluster.x-k8s.io/md configured\n");
    let path = "jsonpath={.spec.replicas}/{.metadata.labels}/{.metadata.annotations.theirs}/{.spec.template.spec.version}";
    let text = kubectl.args(["get", "md", "md", "-o", path]).ok();
    assert!(text.ends_with("/1/v1.35.0"), "{text}");
    assert!(!text.contains("mine"), "{text}");
    assert_eq!(apply(&md).ok(), "machinedeployment.cluster.x-k8s.io/md unchanged\n");
}

#[test]
fn a_crd_can_be_applied_twice() {
    let kubectl = namespace("apply-crd");
    let crd = |help: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "gadgets.suite.example.com"},
            "spec": {
                "group": "suite.example.com",
                "scope": "Namespaced",
                "names": {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object", "description": help, "properties":
                        {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}],
            },
        })
        .to_string()
    };
    let first = kubectl.feed("apply -f -", &crd("A gadget."));
    assert_eq!(first.stderr, "");
    first.ok();
    let again = kubectl.feed("apply -f -", &crd("A gadget."));
    assert_eq!(again.stderr, "");
    has(&again.ok(), &["unchanged"]);
    kubectl
        .run("wait crd gadgets.suite.example.com --for=condition=Established --timeout=10s")
        .ok();
    let gadget = json!({"apiVersion": "suite.example.com/v1", "kind": "Gadget",
        "metadata": {"name": "g"}, "spec": {"size": 1}});
    kubectl.feed("apply -f -", &gadget.to_string()).ok();
    has(&kubectl.run("get gadgets").ok(), &["NAME", "AGE"]);
    has(&kubectl.run("explain gadgets").ok(), &["A gadget."]);
    kubectl.feed("apply -f -", &crd("Another gadget.")).ok();
    has(&kubectl.run("explain gadgets").ok(), &["Another gadget."]);
    kubectl.run("delete crd gadgets.suite.example.com --timeout=20s").ok();
    kubectl.run("get gadgets").err();
}

#[test]
fn server_side_apply_owns_its_fields() {
    let kubectl = namespace("apply-server");
    let apply = |manager: &str, object: &Value, more: &str| {
        kubectl.feed(
            &format!("apply --server-side --field-manager={manager} {more} -f -"),
            &object.to_string(),
        )
    };
    let map = config_map("c", json!({"a": "1", "b": "1"}));
    assert_eq!(apply("one", &map, "").ok(), "configmap/c serverside-applied\n");
    let other = config_map("c", json!({"b": "2"}));
    let conflict = apply("two", &other, "").err();
    has(&conflict, &["conflict with \"one\"", ".data.b", "--force-conflicts"]);
    apply("two", &other, "--force-conflicts").ok();
    let text = kubectl.run("get cm c -o yaml --show-managed-fields").ok();
    has(&text, &["manager: one", "manager: two", "operation: Apply"]);
    assert!(!kubectl.run("get cm c -o yaml").ok().contains("managedFields"));
    apply("one", &config_map("c", json!({})), "").ok();
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data}").ok(), r#"{"b":"2"}"#);
    apply("one", &machine("m"), "").ok();
    let dry = apply("one", &machine("n"), "--dry-run=server").ok();
    has(&dry, &["machine.cluster.x-k8s.io/n serverside-applied (server dry run)"]);
}

#[test]
fn client_side_objects_move_to_server_side_apply() {
    let kubectl = namespace("apply-move");
    let mut map = config_map("c", json!({"a": "1", "b": "1"}));
    kubectl.feed("apply -f -", &map.to_string()).ok();
    map["data"] = json!({"a": "2"});
    kubectl.feed("apply --server-side -f -", &map.to_string()).ok();
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data}").ok(), r#"{"a":"2"}"#);
}

#[test]
fn diff_shows_what_apply_would_change() {
    let kubectl = namespace("apply-diff");
    let mut web = deployment("web", "i:1");
    kubectl.feed("apply -f -", &web.to_string()).ok();
    assert_eq!(kubectl.feed("diff -f -", &web.to_string()).code, 0);
    web["spec"]["replicas"] = json!(4);
    let output = kubectl.feed("diff -f -", &web.to_string());
    assert_eq!(output.code, 1, "{output:?}");
    has(&output.stdout, &["-  replicas: 2", "+  replicas: 4"]);
    let output = kubectl.feed("diff --server-side -f -", &machine("new").to_string());
    assert_eq!(output.code, 1, "{output:?}");
    has(&output.stdout, &["+kind: Machine"]);
}

#[test]
fn pruning_deletes_what_is_no_longer_applied() {
    let kubectl = namespace("apply-prune");
    let map = |name: &str| {
        let mut map = config_map(name, json!({}));
        map["metadata"]["labels"] = json!({"set": "x"});
        map
    };
    kubectl.feed("apply -f -", &list(vec![map("a"), map("b")])).ok();
    let line = "apply --prune -l set=x --prune-allowlist=core/v1/ConfigMap -f -";
    has(&kubectl.feed(line, &list(vec![map("a")])).ok(), &["configmap/b pruned"]);
}
