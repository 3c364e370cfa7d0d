use super::*;

fn encoded(patch: &Value) -> String {
    STANDARD.encode(patch.to_string())
}

fn answer(key: &str, patch_type: &str, patch: &Value) -> Value {
    json!({"status": "Success", key: {"patchType": patch_type, "patch": encoded(patch)}})
}

fn objects(version: &str, infra: Value, bootstrap: Value) -> Value {
    json!({
        "machine": {"metadata": {"name": "m"}, "spec": {
            "clusterName": "c", "version": version, "providerID": "x://1",
        }},
        "infrastructureMachine": {"metadata": {"name": "m"}, "spec": infra},
        "bootstrapConfig": {"metadata": {"name": "m"}, "spec": bootstrap},
    })
}

fn uncovered(current: &Value, desired: &Value, answer: &Value) -> Vec<String> {
    MachineVerdict::uncovered(current, desired, answer).unwrap()
}

#[test]
fn a_version_patch_covers_a_version_change_in_both_patch_types() {
    let current = objects("v1.34.2", json!({"a": 1}), json!({}));
    let desired = objects("v1.35.0", json!({"a": 1}), json!({}));
    let merge = answer("machinePatch", "JSONMergePatch", &json!({"spec": {"version": "v1.35.0"}}));
    assert!(uncovered(&current, &desired, &merge).is_empty());
    let patch = json!([{"op": "replace", "path": "/spec/version", "value": "v1.35.0"}]);
    assert!(uncovered(&current, &desired, &answer("machinePatch", "JSONPatch", &patch)).is_empty());
}

#[test]
fn an_empty_success_covers_nothing() {
    let current = objects("v1.34.2", json!({"a": 1}), json!({"b": 1}));
    let desired = objects("v1.35.0", json!({"a": 2}), json!({"b": 2}));
    assert_eq!(
        uncovered(&current, &desired, &json!({"status": "Success"})),
        ["machine", "infrastructureMachine", "bootstrapConfig"]
    );
}

#[test]
fn only_version_and_failure_domain_of_a_machine_count() {
    let current = objects("v1", json!({}), json!({}));
    let mut desired = current.clone();
    desired["machine"]["spec"]["providerID"] = json!("y://2");
    desired["machine"]["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 5});
    desired["machine"]["spec"]["taints"] = json!([]);
    let nothing = json!({"status": "Success"});
    assert!(uncovered(&current, &desired, &nothing).is_empty());
    desired["machine"]["spec"]["failureDomain"] = json!("zone-b");
    assert_eq!(uncovered(&current, &desired, &nothing), ["machine"]);
}

#[test]
fn provider_specs_have_to_be_exactly_equal() {
    let nothing = json!({"status": "Success"});
    let cases = [
        (json!({"a": null}), json!({})),
        (json!({"a": []}), json!({})),
        (json!({"a": {}}), json!({})),
        (json!({"a": [1, 2]}), json!({"a": [2, 1]})),
        (json!({"a": "1"}), json!({"a": 1})),
    ];
    for (from, to) in cases {
        let current = objects("v1", from.clone(), json!({}));
        let desired = objects("v1", to.clone(), json!({}));
        assert_eq!(
            uncovered(&current, &desired, &nothing),
            ["infrastructureMachine"],
            "{from} {to}"
        );
    }
    let current = objects("v1", json!({"a": 1, "b": 2}), json!({}));
    let desired = objects("v1", json!({"b": 2, "a": 1}), json!({}));
    assert!(uncovered(&current, &desired, &nothing).is_empty());
}

#[test]
fn a_merge_patch_removes_with_null_and_a_json_patch_with_remove() {
    let current = objects("v1", json!({"a": 1, "b": 2}), json!({}));
    let desired = objects("v1", json!({"b": 2}), json!({}));
    for (patch_type, patch) in [
        ("JSONMergePatch", json!({"spec": {"a": null}})),
        ("JSONPatch", json!([{"op": "remove", "path": "/spec/a"}])),
    ] {
        let answer = answer("infrastructureMachinePatch", patch_type, &patch);
        assert!(uncovered(&current, &desired, &answer).is_empty(), "{patch_type}");
    }
}

#[test]
fn edits_of_metadata_are_dropped() {
    let object = json!({"metadata": {"name": "m"}, "spec": {"a": 1}});
    let patch = json!({"metadata": {"name": "other"}, "spec": {"a": 2}});
    let answer = answer("p", "JSONMergePatch", &patch);
    assert_eq!(
        apply(&object, &answer, "p", SPEC).unwrap(),
        json!({"metadata": {"name": "m"}, "spec": {"a": 2}})
    );
}

#[test]
fn a_patch_that_removes_the_spec_takes_nothing_over() {
    let object = json!({"spec": {"a": 1}});
    let answer = answer("p", "JSONMergePatch", &json!({"spec": null}));
    assert_eq!(apply(&object, &answer, "p", SPEC).unwrap(), object);
}

#[test]
fn empty_patches_do_nothing() {
    let object = json!({"spec": {"a": 1}});
    for patch in [
        json!({}),
        json!({"p": {"patchType": "", "patch": ""}}),
        json!({"p": {"patchType": "JSONMergePatch", "patch": ""}}),
        answer("p", "JSONMergePatch", &json!({})),
        answer("p", "JSONPatch", &json!([])),
    ] {
        assert_eq!(apply(&object, &patch, "p", SPEC).unwrap(), object, "{patch}");
    }
}

#[test]
fn patches_that_cannot_be_read_are_errors() {
    let object = json!({"spec": {"a": 1}});
    let cases = [
        (json!({"p": {"patch": "e30="}}), "failed to apply patch: patchType is not set"),
        (
            json!({"p": {"patchType": "XMLPatch", "patch": "e30="}}),
            "failed to apply patch: unknown patchType XMLPatch",
        ),
        (json!({"p": {"patchType": "JSONPatch", "patch": "%%"}}), "failed to apply patch: p: "),
        (json!({"p": {"patchType": "JSONPatch", "patch": ""}}), "failed to apply patch: p: "),
        (
            json!({"p": {"patchType": "JSONMergePatch", "patch": {"spec": {}}}}),
            "failed to apply patch: p: patch is not a base64 text",
        ),
        (
            answer("p", "JSONPatch", &json!([{"op": "remove", "path": "/spec/b"}])),
            "failed to apply patch: p: ",
        ),
        (
            answer("p", "JSONPatch", &json!([{"op": "test", "path": "/spec/a", "value": 2}])),
            "failed to apply patch: p: ",
        ),
    ];
    for (answer, want) in cases {
        let error = apply(&object, &answer, "p", SPEC).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn a_machine_patch_of_the_wrong_type_is_an_error() {
    let current = objects("v1", json!({}), json!({}));
    let answer = answer("machinePatch", "JSONMergePatch", &json!({"spec": {"version": 7}}));
    assert!(MachineVerdict::uncovered(&current, &current, &answer).is_err());
}

#[test]
fn only_the_inner_spec_of_templates_counts() {
    let sets = |version: &str, inner: Value, outer: Value| {
        json!({
            "machineSet": {"spec": {"replicas": outer, "template": {"spec": {
                "clusterName": "c", "version": version,
            }}}},
            "infrastructureMachineTemplate": {"spec": {"outer": outer, "template": {
                "metadata": {"labels": outer}, "spec": inner,
            }}},
        })
    };
    let current = sets("v1.34.2", json!({"image": "a"}), json!(1));
    let desired = sets("v1.35.0", json!({"image": "b"}), json!(2));
    let version = json!({"spec": {"template": {"spec": {"version": "v1.35.0"}}}});
    let image = json!({"spec": {"template": {"spec": {"image": "b"}}}});
    let mut both = answer("machineSetPatch", "JSONMergePatch", &version);
    assert_eq!(
        MachineSetVerdict::uncovered(&current, &desired, &both).unwrap(),
        ["infrastructureMachineTemplate"]
    );
    both["infrastructureMachineTemplatePatch"] =
        json!({"patchType": "JSONMergePatch", "patch": encoded(&image)});
    assert!(MachineSetVerdict::uncovered(&current, &desired, &both).unwrap().is_empty());
}

#[test]
fn hooks_see_neither_status_nor_uid() {
    let object = json!({
        "apiVersion": "v1", "kind": "K",
        "metadata": {
            "name": "m", "namespace": "d", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "annotations": {}, "ownerReferences": [{}], "managedFields": [{}],
        },
        "spec": {"a": 1}, "status": {"b": 2},
    });
    assert_eq!(
        for_hooks(&object),
        json!({
            "apiVersion": "v1", "kind": "K",
            "metadata": {"name": "m", "namespace": "d", "labels": {"a": "b"}},
            "spec": {"a": 1},
        })
    );
}
