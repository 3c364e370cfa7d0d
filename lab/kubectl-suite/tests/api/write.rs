//! Writing: create, replace, edit, patch, label, scale, delete; dry runs and validation.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{
    config_map, deployment, has, list, machine, machine_deployment, namespace, pod, suite,
};

#[test]
fn create_makes_objects_of_every_sort() {
    let kubectl = namespace("write-create");
    let text =
        kubectl.feed("create -f -", &list(vec![machine("m"), config_map("c", json!({}))])).ok();
    assert_eq!(text, "machine.cluster.x-k8s.io/m created\nconfigmap/c created\n");
    kubectl.run("create configmap literal --from-literal=a=1").ok();
    assert_eq!(kubectl.run("get cm literal -o jsonpath={.data.a}").ok(), "1");
    kubectl.run("create secret generic hidden --from-literal=password=swordfish").ok();
    assert_eq!(kubectl.run("get secret hidden -o jsonpath={.data.password}").ok(), "c3dvcmRmaXNo");
    kubectl.run("create deployment web --image=example.com/web:1 --replicas=3").ok();
    assert_eq!(kubectl.run("get deploy web -o jsonpath={.spec.replicas}").ok(), "3");
    kubectl.run("create serviceaccount robot").ok();
    kubectl.run("run single --image=example.com/tool:1").ok();
    kubectl.run("create poddisruptionbudget web --selector=app=web --min-available=1").ok();
    kubectl.run("create clusterrole write-create --verb=get --resource=nodes").ok();
    has(&kubectl.feed("create -f -", &machine("m").to_string()).err(), &["AlreadyExists"]);
    let mut named = config_map("", json!({}));
    named["metadata"] = json!({"generateName": "made-"});
    has(&kubectl.feed("create -f -", &named.to_string()).ok(), &["configmap/made-"]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let kubectl = namespace("write-dry");
    let text = kubectl.feed("create -f - --dry-run=server", &machine("m").to_string()).ok();
    assert_eq!(text, "machine.cluster.x-k8s.io/m created (server dry run)\n");
    kubectl.run("get machine m").err();
    let text = kubectl.run("create configmap c --from-literal=a=1 --dry-run=client -o yaml").ok();
    has(&text, &["kind: ConfigMap"]);
    kubectl.run("create configmap c --from-literal=a=1").ok();
    kubectl.run("delete cm c --dry-run=server").ok();
    has(
        &kubectl.run("label cm c x=y --dry-run=server").ok(),
        &["configmap/c labeled (server dry run)"],
    );
    assert_eq!(kubectl.run("get cm c -o jsonpath={.metadata.labels}").ok(), "");
}

#[test]
fn unknown_fields_are_refused_unless_asked_otherwise() {
    let kubectl = namespace("write-strict");
    let mut odd = deployment("web", "i:1");
    odd["spec"]["replica"] = json!(1);
    let text = kubectl.feed("create -f -", &odd.to_string()).err();
    has(&text, &["strict decoding error: unknown field \"spec.replica\""]);
    let output = kubectl.feed("create -f - --validate=warn", &odd.to_string());
    has(&output.stderr, &["Warning: unknown field \"spec.replica\""]);
    output.ok();
    let mut odd = json!({"apiVersion": "refit.dev/v1alpha1", "kind": "UpdateGroup",
        "metadata": {"name": "g"}, "spec": {}, "extra": 1});
    let text = kubectl.feed("create -f -", &odd.to_string()).err();
    has(&text, &["unknown field \"extra\""]);
    odd["kind"] = json!("NodeUpdate");
    let text = kubectl.feed("create -f - --validate=ignore", &odd.to_string()).err();
    has(&text, &["spec.", "Required value"]);
    let mut wrong = deployment("typed", "i:1");
    wrong["spec"]["replicas"] = json!("three");
    has(&kubectl.feed("create -f -", &wrong.to_string()).err(), &["cannot unmarshal string"]);
}

#[test]
fn replace_swaps_the_whole_object() {
    let kubectl = namespace("write-replace");
    kubectl.feed("create -f -", &config_map("c", json!({"a": "1"})).to_string()).ok();
    kubectl.feed("replace -f -", &config_map("c", json!({"b": "2"})).to_string()).ok();
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data}").ok(), r#"{"b":"2"}"#);
    let before = kubectl.run("get cm c -o jsonpath={.metadata.uid}").ok();
    kubectl.feed("replace --force -f -", &config_map("c", json!({})).to_string()).ok();
    assert_ne!(kubectl.run("get cm c -o jsonpath={.metadata.uid}").ok(), before);
}

/// An editor for kubectl edit: it replaces one text by another.
fn editor(name: &str, from: &str, to: &str) -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let script = format!("#!/bin/sh\nexec sed -i 's/{from}/{to}/' \"$1\"\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn edit_sends_what_the_editor_changed() {
    let kubectl = namespace("write-edit");
    kubectl.feed("create -f -", &list(vec![machine("m"), deployment("web", "i:1")])).ok();
    let program = editor("edit-version", "v1.34.2", "v1.35.0");
    let variables = [("KUBE_EDITOR", program.to_str().unwrap())];
    let text = kubectl.args_with(["edit", "machine", "m"], "", &variables).ok();
    has(&text, &["machine.cluster.x-k8s.io/m edited"]);
    assert_eq!(kubectl.run("get machine m -o jsonpath={.spec.version}").ok(), "v1.35.0");
    let program = editor("edit-image", "i:1", "i:2");
    let variables = [("KUBE_EDITOR", program.to_str().unwrap())];
    kubectl.args_with(["edit", "deployment", "web"], "", &variables).ok();
    let path = "jsonpath={.spec.template.spec.containers[*].image}";
    assert_eq!(kubectl.args(["get", "deploy", "web", "-o", path]).ok(), "i:2");
    let text = kubectl.args_with(["edit", "deployment", "web"], "", &[("KUBE_EDITOR", "true")]);
    has(&text.stderr, &["Edit cancelled, no changes made."]);
}

#[test]
fn each_type_of_patch_works_where_kubernetes_has_it() {
    let kubectl = namespace("write-patch");
    kubectl.feed("create -f -", &list(vec![machine("m"), deployment("web", "i:1")])).ok();
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"B","value":"2"}]}]}}}}"#;
    kubectl.args(["patch", "deployment", "web", "-p", strategic]).ok();
    let path = "jsonpath={.spec.template.spec.containers[0].env[*].name} {.spec.template.spec.containers[0].image}";
    assert_eq!(kubectl.args(["get", "deploy", "web", "-o", path]).ok(), "B A i:1");
    let operations = r#"[{"op":"replace","path":"/spec/version","value":"v1.34.9"}]"#;
    kubectl.args(["patch", "machine", "m", "--type=json", "-p", operations]).ok();
    kubectl
        .args([
            "patch",
            "machine",
            "m",
            "--type=merge",
            "-p",
            r#"{"metadata":{"labels":{"x":"y"}}}"#,
        ])
        .ok();
    let path = "jsonpath={.spec.version} {.metadata.labels.x}";
    assert_eq!(kubectl.args(["get", "machine", "m", "-o", path]).ok(), "v1.34.9 y");
    let refused = kubectl.args(["patch", "machine", "m", "-p", "{}"]).err();
    has(&refused, &["application/json-patch+json"]);
    let status = r#"{"status":{"replicas":2,"readyReplicas":2}}"#;
    kubectl
        .args(["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", status])
        .ok();
    has(&kubectl.run("get deploy web").ok(), &["2/2"]);
    let gone = r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"A","$patch":"delete"}]}]}}}}"#;
    kubectl.args(["patch", "deployment", "web", "-p", gone]).ok();
    let path = "jsonpath={.spec.template.spec.containers[0].env[*].name}";
    assert_eq!(kubectl.args(["get", "deploy", "web", "-o", path]).ok(), "B");
}

#[test]
fn labels_and_annotations_come_change_and_go() {
    let kubectl = namespace("write-label");
    kubectl.feed("create -f -", &machine("m").to_string()).ok();
    kubectl.run("label machine m tier=a").ok();
    has(&kubectl.run("label machine m tier=b").err(), &["--overwrite"]);
    kubectl.run("label machine m tier=b --overwrite").ok();
    kubectl.run("annotate machine m refit.dev/retry=m-1 note=x").ok();
    let path = r"jsonpath={.metadata.labels.tier} {.metadata.annotations.refit\.dev/retry}";
    assert_eq!(kubectl.args(["get", "machine", "m", "-o", path]).ok(), "b m-1");
    kubectl.run("label machine m tier-").ok();
    kubectl.run("annotate machine m note-").ok();
    let object: Value = serde_json::from_str(&kubectl.run("get machine m -o json").ok()).unwrap();
    assert!(object["metadata"]["labels"].get("tier").is_none());
    assert!(object["metadata"]["annotations"].get("note").is_none());
    has(&kubectl.run("label machine m tier=!!").err(), &["invalid label value"]);
}

#[test]
fn scale_sets_the_replicas_of_scalable_kinds() {
    let kubectl = namespace("write-scale");
    kubectl
        .feed("create -f -", &list(vec![machine_deployment("md"), deployment("web", "i:1")]))
        .ok();
    has(&kubectl.run("scale deployment web --replicas=5").ok(), &["deployment.apps/web scaled"]);
    assert_eq!(kubectl.run("get deploy web -o jsonpath={.spec.replicas}").ok(), "5");
    kubectl.run("scale deployment web --current-replicas=2 --replicas=1").err();
    kubectl.run("scale deployment web --current-replicas=5 --replicas=4").ok();
    has(
        &kubectl.run("scale machinedeployment md --replicas=7").ok(),
        &["machinedeployment.cluster.x-k8s.io/md scaled"],
    );
    assert_eq!(kubectl.run("get md md -o jsonpath={.spec.replicas}").ok(), "7");
    kubectl.feed("create -f -", &config_map("c", json!({})).to_string()).ok();
    kubectl.run("scale cm c --replicas=1").err();
}

#[test]
fn set_image_and_rollout_work_on_deployments() {
    let kubectl = namespace("write-set");
    kubectl.feed("create -f -", &deployment("web", "i:1").to_string()).ok();
    kubectl.run("set image deployment/web main=i:9").ok();
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(kubectl.args(["get", "deploy", "web", "-o", path]).ok(), "i:9");
    kubectl.run("set env deployment/web C=3").ok();
    kubectl.run("rollout restart deployment/web").ok();
    let status = r#"{"status":{"observedGeneration":9,"replicas":2,"updatedReplicas":2,"availableReplicas":2,"readyReplicas":2}}"#;
    kubectl
        .args(["patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", status])
        .ok();
    has(
        &kubectl.run("rollout status deployment/web --timeout=10s").ok(),
        &["successfully rolled out"],
    );
}

#[test]
fn delete_takes_dependents_along_or_leaves_them() {
    let kubectl = namespace("write-delete");
    for (owner, policy, stays) in
        [("b", "background", false), ("f", "foreground", false), ("o", "orphan", true)]
    {
        kubectl.feed("create -f -", &config_map(owner, json!({})).to_string()).ok();
        let uid = kubectl.run(&format!("get cm {owner} -o jsonpath={{.metadata.uid}}")).ok();
        let child = format!("{owner}-child");
        let mut object = config_map(&child, json!({}));
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
            "name": owner, "uid": uid, "blockOwnerDeletion": true}]);
        kubectl.feed("create -f -", &object.to_string()).ok();
        let text = kubectl.run(&format!("delete cm {owner} --cascade={policy} --timeout=20s")).ok();
        has(&text, &[&format!("configmap \"{owner}\" deleted")]);
        let there = kubectl.run(&format!("get cm {child}")).code == 0;
        assert_eq!(there, stays, "{policy}");
    }
}

#[test]
fn delete_selects_and_waits() {
    let kubectl = namespace("write-delete-many");
    kubectl
        .feed(
            "create -f -",
            &list(vec![pod("a", "n", "x"), pod("b", "n", "x"), pod("c", "n", "y")]),
        )
        .ok();
    kubectl.run("delete pods -l app=x --timeout=20s").ok();
    assert_eq!(kubectl.run("get pods -o name").ok(), "pod/c\n");
    let mut held = machine("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    kubectl.feed("create -f -", &held.to_string()).ok();
    has(&kubectl.run("delete machine held --timeout=1s").err(), &["timed out"]);
    has(&kubectl.run("get machine held -o yaml").ok(), &["deletionTimestamp"]);
    kubectl
        .args([
            "patch",
            "machine",
            "held",
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])
        .ok();
    kubectl.run("get machine held").err();
    kubectl.run("delete machine held --ignore-not-found").ok();
    kubectl.run("delete pods --all --now").ok();
    assert_eq!(kubectl.run("get pods -o name").ok(), "");
    suite().kubectl.run("delete namespace write-delete-many --timeout=20s").ok();
}
