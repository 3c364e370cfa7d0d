use super::*;

const GOOD: &str = include_str!("../../../examples/cluster.yaml");

fn problems(text: &str) -> Vec<String> {
    let found = read([("f.yaml", text.as_bytes())]);
    match LoadError::unless_empty(found.problems) {
        Ok(()) => Vec::new(),
        Err(LoadError::Invalid(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn text_that_is_not_yaml_is_refused_with_its_line() {
    let found = problems("apiVersion: v1\nkind: [Secret\nmetadata: {}\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("f.yaml:"), "{found:?}");
    assert!(found[0].contains("want a Kubernetes object in YAML or JSON"), "{found:?}");
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    let found = read([("f.yaml", b"a: b\n\xff\xfe".as_slice())]).problems;
    assert!(found[0].to_string().starts_with("f.yaml:2: document: YAML: got bytes"), "{found:?}");
}

#[test]
fn an_object_without_name_kind_or_version_is_refused() {
    assert_eq!(
        problems("kind: Secret\nmetadata: {name: a}\n"),
        ["f.yaml:1: Secret/a: apiVersion: got nothing, want an API version such as \
          cluster.x-k8s.io/v1beta2"]
    );
    assert!(problems("apiVersion: v1\nmetadata: {name: a}\n")[0].contains(": kind: got nothing"));
    assert!(problems("apiVersion: v1\nkind: Secret\n")[0].contains("metadata.name: got nothing"));
}

#[test]
fn a_duplicate_object_is_refused() {
    let found = problems(&format!("{GOOD}\n---\n{GOOD}"));
    assert!(found[0].contains("want each object once; the first is at f.yaml:"), "{found:?}");
}

#[test]
fn a_list_is_split_into_its_items() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata:\n    name: A!\n";
    let found = problems(text);
    assert!(found[0].starts_with("f.yaml:7: Secret/A!: metadata.name"), "{found:?}");
}

#[test]
fn an_alias_bomb_is_refused_and_does_not_eat_the_memory() {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..12 {
        let item = format!("*a{}", i - 1);
        text.extend([format!("a{i}: &a{i} [{}]\n", vec![item; 9].join(","))]);
    }
    assert_eq!(problems(&text).len(), 1);
}

#[test]
fn documents_after_one_that_is_not_yaml_are_checked_too() {
    let text = "a: [\n---\nkind: Secret\n---\nb: [\n";
    let found = problems(text);
    assert!(found[0].starts_with("f.yaml:1: document: YAML: "), "{found:?}");
    assert!(found[1].starts_with("f.yaml:3: Secret/(no name): apiVersion: "), "{found:?}");
    assert!(found[3].starts_with("f.yaml:5: document: YAML: "), "{found:?}");
    assert_eq!(found.len(), 4);
}

#[test]
fn metadata_of_every_kind_is_checked() {
    for (metadata, want) in [
        ("7", "metadata: got 7, want an object"),
        ("{name: a, labels: {x: 1}}", "metadata.labels.x: got 1, want a string"),
        ("{name: a, namespace: A_B}", "metadata.namespace: got \"A_B\", want a namespace"),
    ] {
        let found = problems(&format!("apiVersion: v1\nkind: Secret\nmetadata: {metadata}\n"));
        assert!(found[0].contains(want), "no {want:?} in {found:?}");
    }
}

#[test]
fn a_typed_list_is_split_into_its_items() {
    let found = problems("apiVersion: v1\nkind: SecretList\nitems:\n- 3\n");
    assert!(found[0].contains("got 3, want a Kubernetes object"), "{found:?}");
    let found = problems("apiVersion: v1\nkind: List\nitems: foo\n");
    assert!(found[0].contains("items: got \"foo\", want a list"), "{found:?}");
}

#[test]
fn an_absent_namespace_is_filled_in_where_the_kind_has_one() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\n\
                apiVersion: v1\nkind: Node\nmetadata: {name: a, namespace: x}\n---\n\
                apiVersion: e.example/v1\nkind: Thing\nmetadata: {name: a}\n---\n\
                apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                metadata: {name: a}\n\
                spec: {group: e.example, scope: Cluster, names: {kind: Thing}}\n";
    let found = read([("f.yaml", text.as_bytes())]);
    let namespaces =
        found.manifests.iter().map(|m| refit_kinds::json::text(&m.object, "/metadata/namespace"));
    assert_eq!(namespaces.collect::<Vec<_>>(), ["default", "", "", ""]);
}
