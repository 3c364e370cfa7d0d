//! Policies, as callers see them.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, header::WARNING};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::auth::Identity;
use crate::{ApiServer, Options};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The response to a request: its code, its body, and its warnings.
struct Answer(u16, Value, Vec<String>);

impl Answer {
    fn message(&self) -> &str {
        self.1["message"].as_str().unwrap_or_default()
    }
}

struct World(ApiServer);

impl World {
    fn new() -> Self {
        Self(ApiServer::new(Options::new(Arc::new(|| "2026-03-02T08:00:00Z".parse().unwrap()))))
    }

    async fn send(&self, user: &str, method: &str, path: &str, body: Value) -> Answer {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = Request::builder().method(method).uri(path);
        if method == "PATCH" {
            request = request.header("content-type", "application/merge-patch+json");
        }
        let mut request = request.body(Full::new(bytes)).unwrap();
        request.extensions_mut().insert(Identity::new(user, &["system:masters"]));
        let response = self.0.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let warnings = response.headers().get_all(WARNING).iter();
        let warnings = warnings.map(|one| one.to_str().unwrap().to_owned()).collect();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer(code, serde_json::from_slice(&body).unwrap_or_default(), warnings)
    }

    /// A policy for ConfigMaps, and its binding.
    async fn install(&self, mut policy: Value, binding: Value) {
        if policy["matchConstraints"].is_null() {
            policy["matchConstraints"] = json!({"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
                "resources": ["configmaps"],
            }]});
        }
        let mut spec = json!({"policyName": "maps", "validationActions": ["Deny"]});
        for (key, value) in binding.as_object().unwrap() {
            spec[key] = value.clone();
        }
        for (kind, plural, spec) in [
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", policy),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", spec),
        ] {
            let object = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": {"name": "maps"}, "spec": spec,
            });
            let made = self.send("admin", "POST", &format!("{ADMISSION}/{plural}"), object).await;
            assert_eq!(made.0, 201, "{}", made.1);
        }
    }

    async fn create(&self, user: &str, name: &str, data: Value) -> Answer {
        self.send(user, "POST", MAPS, map(name, data)).await
    }
}

#[expect(clippy::needless_pass_by_value, reason = "made by a macro in each call")]
fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

const DENIED: &str = "ValidatingAdmissionPolicy 'maps' with binding 'maps' denied request";

#[tokio::test]
async fn a_policy_denies_the_writes_of_the_callers_that_it_is_for() {
    let world = World::new();
    let policy = json!({
        "matchConditions": [{"name": "robots", "expression": "request.userInfo.username.startsWith('robot-')"}],
        "variables": [
            {"name": "size", "expression": "size(object.data)"},
            {"name": "isBig", "expression": "variables.size > 1"},
        ],
        "validations": [{
            "expression": "request.operation == 'DELETE' || !variables.isBig",
            "messageExpression": "request.userInfo.username + ' may write one key, not ' + string(variables.size)",
            "reason": "Forbidden",
        }],
    });
    world.install(policy, json!({})).await;
    let data = json!({"a": "1", "b": "2"});
    assert_eq!(world.create("jane", "of-jane", data.clone()).await.0, 201);
    let denied = world.create("robot-1", "big", data).await;
    assert_eq!((denied.0, &denied.1["reason"]), (403, &json!("Forbidden")));
    let why =
        format!("configmaps \"big\" is forbidden: {DENIED}: robot-1 may write one key, not 2");
    assert_eq!(denied.message(), why);
    assert_eq!(world.create("robot-1", "small", json!({"a": "1"})).await.0, 201);
    let path = format!("{MAPS}/small");
    let more = json!({"data": {"b": "2"}});
    assert_eq!(world.send("robot-1", "PATCH", &path, more).await.0, 403);
    assert_eq!(world.send("robot-1", "DELETE", &path, Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_policy_denies_deletions_one_by_one_and_of_all_objects() {
    let world = World::new();
    let policy = json!({"validations": [{
        "expression": "request.operation != 'DELETE' || !('keep' in oldObject.data)",
        "message": "it is kept",
    }]});
    world.install(policy, json!({})).await;
    world.create("jane", "kept", json!({"keep": ""})).await;
    world.create("jane", "other", json!({"a": ""})).await;
    let denied = world.send("jane", "DELETE", &format!("{MAPS}/kept"), Value::Null).await;
    assert_eq!((denied.0, &denied.1["reason"]), (422, &json!("Invalid")));
    assert!(denied.message().ends_with("denied request: it is kept"), "{}", denied.message());
    assert_eq!(world.send("jane", "DELETE", MAPS, Value::Null).await.0, 422);
    let left = world.send("jane", "GET", &format!("{MAPS}/kept"), Value::Null).await;
    assert_eq!(left.0, 200);
}

#[tokio::test]
async fn a_policy_reads_the_parameters_of_the_namespace() {
    let world = World::new();
    let policy = json!({
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "validations": [{"expression": "!(object.metadata.name in params.data)"}],
    });
    let reference = json!({"name": "held", "parameterNotFoundAction": "Deny"});
    let labelled = json!({"namespaceSelector": {"matchLabels": {"hold": "true"}}});
    world.install(policy, json!({"paramRef": reference, "matchResources": labelled})).await;
    assert_eq!(world.create("jane", "before", json!({})).await.0, 201);
    let label = |value: Value| json!({"metadata": {"labels": {"hold": value}}});
    let namespace = "/api/v1/namespaces/default";
    world.send("jane", "PATCH", namespace, label(json!("true"))).await;
    let denied = world.create("jane", "no-params", json!({})).await;
    assert!(denied.message().contains("no params found"), "{}", denied.message());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "held"},
        "data": {"machine-1": ""},
    });
    world.send("jane", "POST", "/api/v1/namespaces/default/secrets", secret).await;
    let denied = world.create("jane", "machine-1", json!({})).await;
    let why = format!("{DENIED}: failed expression: !(object.metadata.name in params.data)");
    assert!(denied.message().ends_with(&why), "{}", denied.message());
    assert_eq!(world.create("jane", "machine-2", json!({})).await.0, 201);
    world.send("jane", "PATCH", namespace, label(Value::Null)).await;
    assert_eq!(world.create("jane", "machine-1", json!({})).await.0, 201);
}

#[tokio::test]
async fn an_expression_that_fails_denies_unless_the_policy_ignores_failures() {
    for (failure_policy, code) in [("Fail", 422), ("Ignore", 201)] {
        let world = World::new();
        let validations = json!([{"expression": "object.data.missing == ''"}]);
        let policy = json!({"failurePolicy": failure_policy, "validations": validations});
        world.install(policy, json!({})).await;
        let answer = world.create("jane", "one", json!({"a": ""})).await;
        assert_eq!(answer.0, code, "{failure_policy}: {}", answer.1);
    }
}

#[tokio::test]
async fn a_binding_that_warns_lets_the_write_pass() {
    let world = World::new();
    let policy = json!({"validations": [
        {"expression": "false", "message": "not so"}, {"expression": "false", "message": "nor so"},
    ]});
    world.install(policy, json!({"validationActions": ["Warn"]})).await;
    let answer = world.create("jane", "one", json!({})).await;
    assert_eq!(answer.0, 201);
    for message in ["not so", "nor so"] {
        assert!(answer.2.iter().any(|one| one.contains(message)), "{:?}", answer.2);
    }
}

#[tokio::test]
async fn a_policy_is_for_the_resources_operations_and_objects_that_it_names() {
    let rule = |operations: &str, resources: &str| json!([{"apiGroups": [""], "apiVersions": ["*"], "operations": [operations], "resources": [resources]}]);
    let labelled = json!({"matchLabels": {"held": "true"}});
    for (constraints, code) in [
        (json!({"resourceRules": rule("CREATE", "configmaps")}), 422),
        (json!({"resourceRules": rule("CREATE", "*")}), 422),
        (json!({"resourceRules": rule("CREATE", "*/*")}), 422),
        (json!({"resourceRules": rule("*", "configmaps/*")}), 422),
        (json!({"resourceRules": rule("*", "configmaps/status")}), 201),
        (json!({"resourceRules": rule("UPDATE", "configmaps")}), 201),
        (json!({"resourceRules": rule("CREATE", "secrets")}), 201),
        (json!({"resourceRules": rule("*", "*"), "objectSelector": labelled}), 201),
        (
            json!({"resourceRules": rule("*", "*"), "excludeResourceRules": rule("*", "configmaps")}),
            201,
        ),
    ] {
        let world = World::new();
        let validations = json!([{"expression": "false"}]);
        let policy = json!({"matchConstraints": constraints, "validations": validations});
        world.install(policy, json!({})).await;
        let answer = world.create("jane", "one", json!({})).await;
        assert_eq!(answer.0, code, "{constraints}: {}", answer.1);
    }
}

#[tokio::test]
async fn a_false_match_condition_skips_a_policy_even_if_another_one_fails() {
    const FAILS: &str = "object.data.missing == ''";
    for (expressions, failure_policy, code) in [
        ([FAILS, "false"], "Fail", 201),
        (["false", FAILS], "Fail", 201),
        ([FAILS, "true"], "Fail", 422),
        ([FAILS, "true"], "Ignore", 201),
        (["true", "true"], "Ignore", 422),
    ] {
        let world = World::new();
        let conditions = expressions.map(|one| json!({"name": "one", "expression": one}));
        let policy = json!({
            "failurePolicy": failure_policy, "matchConditions": conditions,
            "validations": [{"expression": "false"}],
        });
        world.install(policy, json!({})).await;
        let answer = world.create("jane", "one", json!({})).await;
        assert_eq!(answer.0, code, "{expressions:?} {failure_policy}: {}", answer.1);
    }
    let world = World::new();
    let conditions = json!([
        {"name": "one", "expression": FAILS}, {"name": "two", "expression": "object.other"},
    ]);
    let policy = json!({"matchConditions": conditions, "validations": [{"expression": "false"}]});
    world.install(policy, json!({})).await;
    let denied = world.create("jane", "one", json!({})).await;
    for expression in [FAILS, "object.other"] {
        let why = format!("expression '{expression}' resulted in error: ");
        assert!(denied.message().contains(&why), "{}", denied.message());
    }
}

#[tokio::test]
async fn a_binding_without_its_parameters_denies_whatever_its_actions_are() {
    for (action, not_found, failure_policy, code) in [
        ("Deny", "Deny", "Fail", 422),
        ("Warn", "Deny", "Fail", 422),
        ("Audit", "Deny", "Fail", 422),
        ("Warn", "Deny", "Ignore", 201),
        ("Deny", "Allow", "Fail", 201),
    ] {
        let world = World::new();
        let policy = json!({
            "failurePolicy": failure_policy, "paramKind": {"apiVersion": "v1", "kind": "Secret"},
            "validations": [{"expression": "false"}],
        });
        let reference = json!({"name": "missing", "parameterNotFoundAction": not_found});
        let binding = json!({"paramRef": reference, "validationActions": [action]});
        world.install(policy, binding).await;
        let answer = world.create("jane", "one", json!({})).await;
        assert_eq!(answer.0, code, "{action} {not_found} {failure_policy}: {}", answer.1);
        assert!(answer.2.is_empty(), "{:?}", answer.2);
        let why = "failed to configure binding: no params found";
        assert_eq!(answer.message().contains(why), code == 422, "{}", answer.message());
    }
}

#[tokio::test]
async fn a_policy_sees_a_generated_name() {
    let world = World::new();
    let validations = json!([{
        "expression": "request.name != '' && request.name == object.metadata.name",
    }]);
    world.install(json!({"validations": validations}), json!({})).await;
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "one-"},
    });
    let made = world.send("jane", "POST", MAPS, object).await;
    assert_eq!(made.0, 201, "{}", made.1);
}

#[tokio::test]
async fn an_invalid_policy_is_refused_with_the_name_of_its_field() {
    let rules = json!([{
        "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"],
    }]);
    let constraints = json!({"resourceRules": rules});
    let validations = json!([{"expression": "true"}]);
    let variables = json!([{"name": "is", "expression": "true"}]);
    let conditions = json!([{"name": "one", "expression": "variables.is"}]);
    for (spec, why) in [
        (
            json!({"matchConstraints": constraints, "validations": [{"expression": "object.("}]}),
            "spec.validations[0].expression: Invalid value: ",
        ),
        (json!({"validations": validations}), "spec.matchConstraints: Required value"),
        (
            json!({"matchConstraints": {}, "validations": validations}),
            "spec.matchConstraints.resourceRules: Required value",
        ),
        (
            json!({
                "matchConstraints": constraints, "matchConditions": conditions,
                "variables": variables, "validations": validations,
            }),
            "spec.matchConditions[0].expression: Invalid value: \"variables.is\": compilation failed: undeclared reference to 'variables'",
        ),
    ] {
        let world = World::new();
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "broken"}, "spec": spec,
        });
        let path = format!("{ADMISSION}/validatingadmissionpolicies");
        let answer = world.send("jane", "POST", &path, object).await;
        assert_eq!(answer.0, 422, "{why}");
        assert!(answer.message().contains(why), "{}", answer.message());
    }
}
