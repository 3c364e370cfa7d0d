//! Reading: output formats, selectors, pages, watches.

use std::io::{BufRead as _, BufReader};

use serde_json::{Value, json};

use crate::{
    READY, config_map, deployment, has, list, machine, machine_deployment, namespace, pod, row,
    suite,
};

#[test]
fn a_custom_kind_prints_the_columns_of_its_crd() {
    let kubectl = namespace("get-columns");
    kubectl.feed("create -f -", &list(vec![machine("m-0"), machine("m-1")])).ok();
    let status = r#"{"status":{"phase":"Running","nodeRef":{"name":"n-0"}}}"#;
    kubectl
        .args(["patch", "machine", "m-0", "--subresource=status", "--type=merge", "-p", status])
        .ok();
    let text = kubectl.run("get machines").ok();
    let heads = row(&text, "NAME");
    assert!(heads.contains(&"CLUSTER") && heads.contains(&"VERSION"), "{text}");
    let cells = row(&text, "m-0");
    assert!(
        cells.contains(&"edge-1") && cells.contains(&"v1.34.2") && cells.contains(&"n-0"),
        "{text}"
    );
    assert!(cells.contains(&"Running"), "{text}");
}

#[test]
fn wide_output_shows_more_columns() {
    let kubectl = namespace("get-wide");
    kubectl.feed("create -f -", &list(vec![pod("p", "node-x", "a")])).ok();
    kubectl.args(["patch", "pod", "p", "--subresource=status", "--type=merge", "-p", READY]).ok();
    let text = kubectl.run("get pods").ok();
    assert_eq!(row(&text, "NAME"), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(row(&text, "p")[..4], ["p", "1/1", "Running", "0"]);
    let wide = kubectl.run("get pods -o wide").ok();
    has(&wide, &["IP", "NODE", "NOMINATED NODE", "READINESS GATES", "10.0.0.7", "node-x"]);
}

#[test]
fn yaml_json_jsonpath_and_name_show_the_object() {
    let kubectl = namespace("get-forms");
    kubectl.feed("create -f -", &config_map("c", json!({"a": "1"})).to_string()).ok();
    has(
        &kubectl.run("get configmap c -o yaml").ok(),
        &["apiVersion: v1", "kind: ConfigMap", "a: \"1\""],
    );
    let object: Value = serde_json::from_str(&kubectl.run("get configmap c -o json").ok()).unwrap();
    assert_eq!(object["data"]["a"], "1");
    assert_eq!(kubectl.run("get configmap c -o jsonpath={.data.a}").ok(), "1");
    assert_eq!(kubectl.run("get configmap c -o name").ok(), "configmap/c\n");
    assert_eq!(kubectl.run("get configmap c -o go-template={{.metadata.name}}").ok(), "c");
    let text = kubectl.run("get configmaps -o custom-columns=WHO:.metadata.name,A:.data.a").ok();
    assert_eq!(row(&text, "c"), ["c", "1"]);
}

#[test]
fn lists_are_sorted_selected_and_labelled() {
    let kubectl = namespace("get-select");
    let mut maps = Vec::new();
    for (name, tier) in [("x", "c"), ("y", "a"), ("z", "b")] {
        let mut map = config_map(name, json!({"tier": tier}));
        map["metadata"]["labels"] = json!({"tier": tier});
        maps.push(map);
    }
    kubectl.feed("create -f -", &list(maps)).ok();
    let names = |line: &str| {
        let text = kubectl.run(line).ok();
        text.lines()
            .map(|line| line.split_whitespace().next().unwrap_or("").to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(names("get cm --no-headers --sort-by=.data.tier"), "y z x");
    assert_eq!(names("get cm --no-headers -l tier=b"), "z");
    assert_eq!(names("get cm --no-headers -l tier!=b"), "x y");
    assert_eq!(names("get cm --no-headers --field-selector metadata.name=x"), "x");
    has(&kubectl.run("get cm --show-labels").ok(), &["LABELS", "tier=a"]);
    let text = kubectl.run("get cm -L tier").ok();
    assert_eq!(row(&text, "y").last(), Some(&"a"));
}

#[test]
fn all_namespaces_show_whose_object_it_is() {
    let one = namespace("get-all-1");
    let two = namespace("get-all-2");
    one.feed("create -f -", &machine("shared").to_string()).ok();
    two.feed("create -f -", &machine("shared").to_string()).ok();
    let text = suite().kubectl.run("get machines -A").ok();
    assert_eq!(row(&text, "NAMESPACE")[1], "NAME");
    assert_eq!(row(&text, "get-all-1")[1], "shared");
    assert_eq!(row(&text, "get-all-2")[1], "shared");
}

#[test]
fn get_all_and_categories_cover_several_kinds() {
    let kubectl = namespace("get-category");
    let objects = vec![
        deployment("web", "i:1"),
        pod("p", "n", "web"),
        machine("m"),
        machine_deployment("md"),
    ];
    kubectl.feed("create -f -", &list(objects)).ok();
    has(&kubectl.run("get all").ok(), &["pod/p", "deployment.apps/web", "UP-TO-DATE"]);
    has(
        &kubectl.run("get cluster-api").ok(),
        &["machine.cluster.x-k8s.io/m", "machinedeployment.cluster.x-k8s.io/md"],
    );
    has(&kubectl.run("get ma,md,po").ok(), &["machine.cluster.x-k8s.io/m", "pod/p"]);
    assert_eq!(kubectl.run("get ma m -o name").ok(), "machine.cluster.x-k8s.io/m\n");
}

#[test]
fn a_list_in_pages_is_whole() {
    let kubectl = namespace("get-pages");
    let maps = (0..7).map(|index| config_map(&format!("c-{index}"), json!({}))).collect();
    kubectl.feed("create -f -", &list(maps)).ok();
    let text = kubectl.run("get cm --chunk-size=2 -o name").ok();
    assert_eq!(text.lines().count(), 7);
    let text = kubectl.run("get cm --chunk-size=3 --no-headers").ok();
    assert_eq!(text.lines().count(), 7);
}

#[test]
fn a_watch_prints_each_change() {
    let kubectl = namespace("get-watch");
    kubectl.feed("create -f -", &machine("w").to_string()).ok();
    let mut child = kubectl.start("get machines -w --output-watch-events");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    has(&next(), &["EVENT", "NAME", "CLUSTER"]);
    has(&next(), &["ADDED", "w"]);
    let change = r#"{"spec":{"version":"v1.35.0"}}"#;
    kubectl.args(["patch", "machine", "w", "--type=merge", "-p", change]).ok();
    has(&next(), &["MODIFIED", "w", "v1.35.0"]);
    kubectl.run("delete machine w").ok();
    has(&next(), &["DELETED", "w"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_missing_object_is_an_error() {
    let kubectl = namespace("get-missing");
    has(
        &kubectl.run("get machine missing").err(),
        &["NotFound", "machines.cluster.x-k8s.io \"missing\" not found"],
    );
    has(
        &kubectl.run("get wombats").err(),
        &["the server doesn't have a resource type \"wombats\""],
    );
    let none = kubectl.run("get machines");
    assert_eq!(none.code, 0);
    has(&none.stderr, &["No resources found in get-missing namespace."]);
    let bad = kubectl.run("get cm --field-selector spec.x=1").err();
    has(&bad, &["field label not supported"]);
}

#[test]
fn raw_paths_can_be_read() {
    let text = suite().kubectl.run("get --raw /api/v1/namespaces/default").ok();
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["metadata"]["name"], "default");
    assert_eq!(suite().kubectl.run("get --raw /readyz").ok(), "ok");
}

#[test]
fn an_age_counts_from_the_creation() {
    let kubectl = namespace("get-age");
    kubectl.feed("create -f -", &config_map("c", json!({"a": "1", "b": "2"})).to_string()).ok();
    let text = kubectl.run("get cm").ok();
    let cells = row(&text, "c");
    assert_eq!(cells[1], "2");
    assert!(cells[2].ends_with('s'), "{text}");
}
