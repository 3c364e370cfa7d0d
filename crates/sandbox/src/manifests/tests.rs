use super::*;

const GOOD: &str = include_str!("../../../../examples/cluster.yaml");

fn problems(text: &str) -> Vec<String> {
    match parse([("f.yaml", text.as_bytes())]) {
        Ok(_) => Vec::new(),
        Err(LoadError::Invalid(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn refused(from: &str, to: &str, want: &str) {
    assert!(GOOD.contains(from), "the example no longer has {from:?}");
    let found = problems(&GOOD.replacen(from, to, 1));
    assert!(
        found.iter().any(|p| p.contains(want)),
        "no {want:?} in {found:#?}"
    );
}

#[test]
fn the_example_is_accepted() {
    assert_eq!(problems(GOOD), Vec::<String>::new());
}

#[test]
fn text_that_is_not_yaml_is_refused_with_its_line() {
    let found = problems("apiVersion: v1\nkind: [Secret\nmetadata: {}\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("f.yaml:"), "{found:?}");
    assert!(
        found[0].contains("want a Kubernetes object in YAML or JSON"),
        "{found:?}"
    );
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    let error = parse([("f.yaml", b"a: b\n\xff\xfe".as_slice())]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("f.yaml:2: document: YAML: got bytes"),
        "{error}"
    );
}

#[test]
fn an_object_without_name_kind_or_version_is_refused() {
    assert_eq!(
        problems("kind: Secret\nmetadata: {name: a}\n"),
        [
            "f.yaml:1: Secret/a: apiVersion: got nothing, want an API version such as \
          cluster.x-k8s.io/v1beta2"
        ]
    );
    assert!(problems("apiVersion: v1\nmetadata: {name: a}\n")[0].contains(": kind: got nothing"));
    assert!(problems("apiVersion: v1\nkind: Secret\n")[0].contains("metadata.name: got nothing"));
}

#[test]
fn a_wrong_type_in_a_field_that_is_read_is_refused() {
    refused(
        "  replicas: 3\n",
        "  replicas: three\n",
        "spec.replicas: got \"three\", want an integer",
    );
    refused(
        "  replicas: 5\n",
        "  replicas: [5]\n",
        "spec.replicas: got [5], want an integer",
    );
}

#[test]
fn a_problem_names_the_line_of_its_field() {
    let text = GOOD.replacen("  replicas: 5\n", "  replicas: many\n", 1);
    let line = text.lines().position(|l| l == "  replicas: many").unwrap() + 1;
    assert!(problems(&text)[0].starts_with(&format!("f.yaml:{line}: MachineDeployment/")));
}

#[test]
fn a_version_that_is_not_one_is_refused() {
    refused(
        "version: v1.34.2",
        "version: 1.34.2",
        "spec.version: got \"1.34.2\", want a version vX.Y.Z",
    );
    refused(
        "version: v1.34.2",
        "version: v1.34",
        "got \"v1.34\", want a version vX.Y.Z",
    );
}

#[test]
fn a_reference_that_leads_nowhere_is_refused() {
    refused(
        "    kind: KubeadmControlPlane\n    name: edge-1",
        "    kind: KubeadmControlPlane\n    name: edge-2",
        "spec.controlPlaneRef: got KubeadmControlPlane/edge-2",
    );
}

#[test]
fn an_object_that_stands_twice_is_refused() {
    let found = problems(&format!("{GOOD}\n---\n{GOOD}"));
    assert!(
        found[0].contains("want each object once: it stands at f.yaml:"),
        "{found:?}"
    );
}

#[test]
fn old_api_versions_are_refused_with_the_way_to_convert() {
    refused(
        "apiVersion: controlplane.cluster.x-k8s.io/v1beta2",
        "apiVersion: controlplane.cluster.x-k8s.io/v1beta1",
        "kubectl get kubeadmcontrolplanes.v1beta2.controlplane.cluster.x-k8s.io",
    );
}

#[test]
fn a_cluster_class_topology_is_refused_with_the_reason() {
    refused(
        "  clusterNetwork:",
        "  topology: {version: v1.34.2}\n  clusterNetwork:",
        "no topology controller",
    );
}

#[test]
fn a_surge_that_cluster_api_refuses_is_refused() {
    refused(
        "        maxSurge: 0\n",
        "        maxSurge: 2\n",
        "rollingUpdate.maxSurge: got 2, want 0 or 1",
    );
    refused(
        "  replicas: 3\n",
        "  replicas: 1\n",
        "with fewer than 3 replicas Cluster API refuses",
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let text =
        GOOD.replacen("replicas: 3", "replicas: x", 1)
            .replacen("replicas: 5", "replicas: y", 1);
    assert_eq!(problems(&text).len(), 2);
}

#[test]
fn no_cluster_at_all_is_refused() {
    assert!(
        problems("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n")[0]
            .contains("got no Cluster")
    );
    assert!(problems("")[0].contains("got no Cluster"));
}

#[test]
fn a_list_is_taken_apart() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata:\n    name: A!\n";
    let found = problems(text);
    assert!(
        found[0].starts_with("f.yaml:7: Secret/A!: metadata.name"),
        "{found:?}"
    );
}

#[test]
fn an_alias_bomb_is_refused_and_does_not_eat_the_memory() {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let item = format!("*a{}", i - 1);
        text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![item; 9].join(",")));
    }
    assert_eq!(problems(&text).len(), 1);
}

#[test]
fn add_on_objects_are_kept_and_not_acted_on() {
    let text = format!("{GOOD}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: extra}}\n");
    let manifests = parse([("f.yaml", text.as_bytes())]).unwrap();
    let kept: Vec<_> = manifests
        .iter()
        .filter(|m| !m.acted_on())
        .map(Manifest::title)
        .collect();
    assert_eq!(kept, ["Secret/extra"]);
}

#[test]
fn forbidding_surge_sets_both_strategies() {
    let manifests = parse([(
        "f.yaml",
        GOOD.replace("maxSurge: 0", "maxSurge: 1").as_bytes(),
    )])
    .unwrap();
    let mut objects: Vec<Value> = manifests.into_iter().map(|m| m.object).collect();
    forbid_surge(&mut objects);
    for object in &objects {
        let rolling = object.pointer("/spec/rollout/strategy/rollingUpdate");
        match text(object, "/kind") {
            "KubeadmControlPlane" => assert_eq!(rolling, Some(&json!({ "maxSurge": 0 }))),
            "MachineDeployment" => {
                assert_eq!(
                    rolling,
                    Some(&json!({ "maxSurge": 0, "maxUnavailable": 1 }))
                );
            }
            _ => assert_eq!(rolling, None),
        }
    }
}
