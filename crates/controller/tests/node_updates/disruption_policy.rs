//! Which NodeDisruptionPolicies the API server accepts.

use kube::{
    Api,
    api::{DynamicObject, PostParams},
    discovery::ApiResource,
};
use refit_kinds::refit::NodeDisruptionPolicy;
use serde_json::{Value, json};

use super::lab::Lab;

#[tokio::test(start_paused = true)]
async fn the_api_server_rejects_ambiguous_and_incomplete_disruption_policies() {
    let lab = Lab::new().await;
    let api: Api<DynamicObject> = Api::default_namespaced_with(
        lab.site.client(),
        &ApiResource::erase::<NodeDisruptionPolicy>(&()),
    );
    let create = async |name: &str, spec: &Value| {
        let object = serde_json::from_value(json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "NodeDisruptionPolicy",
            "metadata": {"name": name}, "spec": spec,
        }));
        api.create(&PostParams::default(), &object.unwrap()).await
    };
    let all = json!({"all": {}});
    let files = |files: Value| json!({"appliesTo": all, "files": files});
    let none = json!([{"none": {}}]);
    let path = |path: &str| files(json!([{"path": path, "actions": none}]));
    let actions = |actions: Value| files(json!([{"path": "/etc/x", "actions": actions}]));
    let units = |units: Value| json!({"appliesTo": all, "units": units});
    for (spec, problem) in [
        (json!({"appliesTo": all}), "a policy needs files, units or users"),
        (json!({"appliesTo": {}, "users": {"actions": none}}), "spec.appliesTo"),
        (path("etc/x"), "files[0].path"),
        (path(""), "files[0].path"),
        (path("/etc//x"), "files[0].path"),
        (path("/etc/*/x"), "files[0].path"),
        // All files of a directory have its path with a slash: one form, so that none is ambiguous.
        (path("/etc/*"), "files[0].path"),
        (path("/etc/../x"), "no component . or .."),
        (path("/etc/.."), "no component . or .."),
        (path("/etc/./"), "no component . or .."),
        (
            files(json!([
                {"path": "/etc/x", "actions": none},
                {"path": "/etc/x", "actions": [{"drain": {}}]},
            ])),
            "files[1]",
        ),
        (actions(json!([])), "actions"),
        (actions(json!([{"none": {}}, {"drain": {}}])), "none stands alone"),
        (actions(json!([{"none": {}, "drain": {}}])), "actions[0]"),
        (actions(json!([{}])), "actions[0]"),
        (actions(json!([{"restart": {}}])), "actions[0].restart"),
        (actions(json!([{"restart": ""}])), "actions[0].restart"),
        (actions(json!([{"reload": "app"}])), "actions[0].reload"),
        (actions(json!([{"restart": "kubepods.slice"}])), "actions[0].restart"),
        (actions(json!([{"restart": "../x.service"}])), "actions[0].restart"),
        (units(json!([{"name": "app", "actions": none}])), "units[0].name"),
        (
            units(json!([{"name": "a.service", "actions": [{"reboot": {}}, {"none": {}}]}])),
            "none stands alone",
        ),
        (
            json!({"appliesTo": all, "users": {"actions": [{"none": {}}, {"none": {}}]}}),
            "none stands alone",
        ),
    ] {
        let error = create("x", &spec).await.unwrap_err();
        assert!(error.to_string().contains(problem), "{spec}: {error}");
    }
    for (name, path_of) in [
        ("root", "/"),
        ("directory", "/etc/app/"),
        ("file", "/etc/app/..data"),
        ("prefix", "/etc/app*"),
        ("hidden", "/etc/.app/.x*"),
    ] {
        create(name, &path(path_of)).await.unwrap();
    }
    let whole = json!({
        "appliesTo": {"clusters": ["edge-1"]},
        "files": [
            {"path": "/etc/x", "actions": [{"drain": {}}, {"restart": "a@1.service"}]},
            {"path": "/etc/y", "actions": [{"reload": "data-x\\x2dy.mount"}]},
        ],
        "units": [{"name": "kubepods.slice", "actions": [{"restartKubelet": {}}]}],
        "users": {"actions": [{"reboot": {}}]},
    });
    create("whole", &whole).await.unwrap();
    let typed: Api<NodeDisruptionPolicy> = Api::default_namespaced(lab.site.client());
    let read = typed.get("whole").await.unwrap();
    assert_eq!(serde_json::to_value(&read.spec).unwrap(), whole);
}
