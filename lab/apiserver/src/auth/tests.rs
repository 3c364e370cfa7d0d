//! Authentication and authorisation through the server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::rbac::Rule;
use super::*;
use crate::{ApiServer, Options};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1";

struct World {
    server: ApiServer,
    seconds: Arc<AtomicI64>,
    recorded: Arc<Mutex<Vec<String>>>,
}

/// One request: method, path, body, and additional headers.
struct Ask<'a>(&'a str, &'a str, Value, &'a [(&'a str, &'a str)]);

impl World {
    fn new() -> Self {
        let seconds = Arc::new(AtomicI64::new(1_767_225_600));
        let clock = seconds.clone();
        let mut options = Options::new(Arc::new(move || {
            Timestamp::from_second(clock.load(Ordering::SeqCst)).unwrap()
        }));
        let recorded: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = recorded.clone();
        let mut required = Required::new("a key for tests");
        required.tokens =
            BTreeMap::from([("secret-of-jane".to_owned(), Identity::new("jane", &["dev"]))]);
        required.recorder = Some(Arc::new(move |record| {
            let asked = record.attributes;
            let grant = record.allowed_by.map(|grant| grant.role.as_str());
            log.lock().unwrap().push(format!(
                "{} {} {} {grant:?}",
                record.identity.user,
                asked.verb,
                asked.combined()
            ));
        }));
        options.authentication = Authentication::Required(required);
        Self { server: ApiServer::new(options), seconds, recorded }
    }

    async fn send(&self, identity: Option<Identity>, ask: Ask<'_>) -> (u16, Value) {
        let Ask(method, path, body, headers) = ask;
        let mut request = Request::builder().method(method).uri(path);
        if method == "PATCH" {
            request = request.header("content-type", "application/apply-patch+yaml");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = request.body(Full::new(bytes)).unwrap();
        if let Some(identity) = identity {
            request.extensions_mut().insert(identity);
        }
        let answer = self.server.clone().oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn admin(&self, method: &str, path: &str, body: Value) -> Value {
        let ask = Ask(method, path, body, &[]);
        let (code, value) = self.send(Some(Identity::admin()), ask).await;
        assert!(code < 300, "{method} {path}: {value}");
        value
    }

    async fn jane(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let token = [("authorization", "Bearer secret-of-jane")];
        self.send(None, Ask(method, path, body, &token)).await
    }

    async fn jane_message(&self, method: &str, path: &str, body: Value) -> (u16, String) {
        let (code, value) = self.jane(method, path, body).await;
        (code, value["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Grants jane a Role in namespace `default`.
    async fn role(&self, rules: Value) {
        let body = json!({"metadata": {"name": "r"}, "rules": rules});
        let roles = format!("{ROLES}/namespaces/default/roles");
        self.admin("POST", &roles, body).await;
        let body = json!({
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "jane"}],
        });
        let bindings = format!("{ROLES}/namespaces/default/rolebindings");
        self.admin("POST", &bindings, body).await;
    }

    /// Binds a ClusterRole to jane, cluster-wide.
    async fn cluster_role(&self, name: &str) {
        let body = json!({
            "metadata": {"name": format!("jane-{name}")},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "jane"}],
        });
        let path = format!("{ROLES}/clusterrolebindings");
        self.admin("POST", &path, body).await;
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test]
async fn a_denial_has_kubernetes_wording() {
    let world = World::new();
    let cases = [
        (
            "GET",
            MAPS,
            "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API \
             group \"\" in the namespace \"default\"",
        ),
        (
            "GET",
            "/apis/apps/v1/deployments?watch=1",
            "deployments.apps is forbidden: User \"jane\" cannot watch resource \"deployments\" \
             in API group \"apps\" at the cluster scope",
        ),
        (
            "PATCH",
            "/api/v1/nodes/n1/status?fieldManager=x",
            "nodes \"n1\" is forbidden: User \"jane\" cannot patch resource \"nodes/status\" in \
             API group \"\" at the cluster scope",
        ),
        ("GET", "/metrics", "forbidden: User \"jane\" cannot get path \"/metrics\""),
    ];
    for (method, path, expected) in cases {
        let (code, message) = world.jane_message(method, path, Value::Null).await;
        assert_eq!((code, message.as_str()), (403, expected));
    }
    let (_, status) = world.jane("GET", MAPS, Value::Null).await;
    assert_eq!(status["reason"], "Forbidden");
    assert_eq!(status["details"]["kind"], "configmaps");
}

#[tokio::test]
async fn a_certificate_gives_user_and_groups() {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(rcgen::DnType::OrganizationName, "system:nodes");
    subject.push(rcgen::DnType::CommonName, "system:node:n1");
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let identity = authn::of_certificate(certificate.der()).unwrap();
    assert_eq!(identity, Identity::new("system:node:n1", &["system:nodes"]));
    assert_eq!(authn::of_certificate(b"no certificate"), None);
}

#[tokio::test]
async fn no_token_is_anonymous_and_an_invalid_token_is_rejected() {
    let world = World::new();
    let (code, status) = world.send(None, Ask("GET", MAPS, Value::Null, &[])).await;
    assert_eq!(code, 403);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("User \"system:anonymous\""), "{message}");
    let (code, _) = world.send(None, Ask("GET", "/version", Value::Null, &[])).await;
    assert_eq!(code, 200);
    let bad = [("authorization", "Bearer made-up")];
    let (code, status) = world.send(None, Ask("GET", MAPS, Value::Null, &bad)).await;
    assert_eq!(code, 401);
    assert_eq!(status["message"], "Unauthorized");
}

#[tokio::test]
async fn a_rule_may_name_objects_and_lists_of_one_name_count_as_one() {
    let world = World::new();
    world
        .role(json!([{"verbs": ["get", "list", "watch"], "apiGroups": [""],
                      "resources": ["configmaps"], "resourceNames": ["mine"]}]))
        .await;
    world.admin("POST", MAPS, map("mine")).await;
    world.admin("POST", MAPS, map("other")).await;
    let cases = [
        (format!("{MAPS}/mine"), 200),
        (format!("{MAPS}/other"), 403),
        (MAPS.to_owned(), 403),
        (format!("{MAPS}?fieldSelector=metadata.name%3Dmine"), 200),
        (format!("{MAPS}?fieldSelector=metadata.name%3Dother"), 403),
    ];
    for (path, expected) in cases {
        let (code, _) = world.jane("GET", &path, Value::Null).await;
        assert_eq!(code, expected, "{path}");
    }
}

#[tokio::test]
async fn an_apply_that_creates_needs_create_for_that_name() {
    let world = World::new();
    world
        .role(json!([
            {"verbs": ["patch"], "apiGroups": [""], "resources": ["configmaps"]},
            {"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"],
             "resourceNames": ["mine"]},
        ]))
        .await;
    for (name, expected) in [("mine", 201), ("other", 403)] {
        let path = format!("{MAPS}/{name}?fieldManager=jane");
        let (code, answer) = world.jane("PATCH", &path, map(name)).await;
        assert_eq!(code, expected, "{answer}");
    }
    let (code, _) = world.jane("POST", MAPS, map("mine")).await;
    assert_eq!(code, 403);
}

#[tokio::test]
async fn wildcards_and_subresources_match_as_in_kubernetes() {
    let world = World::new();
    let rule = |verbs: &str, group: &str, resource: &str| Rule {
        verbs: vec![verbs.to_owned()],
        api_groups: vec![group.to_owned()],
        resources: vec![resource.to_owned()],
        ..Rule::default()
    };
    let asked = |sub: &str| Attributes {
        verb: "get".to_owned(),
        resource: "pods".to_owned(),
        subresource: sub.to_owned(),
        ..Attributes::default()
    };
    let cases = [
        (rule("*", "*", "*"), "", true),
        (rule("*", "*", "*"), "status", true),
        (rule("get", "", "pods"), "", true),
        (rule("get", "", "pods"), "status", false),
        (rule("get", "", "pods/status"), "status", true),
        (rule("get", "", "pods/status"), "", false),
        (rule("get", "", "*/status"), "status", true),
        (rule("get", "", "*/status"), "", false),
        (rule("list", "", "pods"), "", false),
        (rule("get", "apps", "pods"), "", false),
    ];
    for (rule, sub, expected) in cases {
        assert_eq!(rule.allows(&asked(sub)), expected, "{rule:?} {sub}");
    }
    drop(world);
}

#[tokio::test]
async fn default_roles_aggregate_roles_of_users() {
    let world = World::new();
    world.cluster_role("view").await;
    let (code, _) = world.jane("GET", MAPS, Value::Null).await;
    assert_eq!(code, 200);
    let secrets = "/api/v1/namespaces/default/secrets";
    let (code, _) = world.jane("GET", secrets, Value::Null).await;
    assert_eq!(code, 403);
    let body = json!({
        "metadata": {"name": "more", "labels": {
            "rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["secrets"]}],
    });
    let roles = format!("{ROLES}/clusterroles");
    world.admin("POST", &roles, body).await;
    let (code, _) = world.jane("GET", secrets, Value::Null).await;
    assert_eq!(code, 200);
    for name in ["view", "edit", "admin"] {
        let role = world.admin("GET", &format!("{roles}/{name}"), Value::Null).await;
        assert!(role["rules"].as_array().unwrap().len() > 3, "{role}");
    }
}

#[tokio::test]
async fn users_cannot_grant_permissions_they_lack() {
    let world = World::new();
    world
        .role(json!([
            {"verbs": ["create", "patch"], "apiGroups": [RBAC], "resources": ["roles", "rolebindings"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]},
        ]))
        .await;
    let roles = format!("{ROLES}/namespaces/default/roles");
    let role = |name: &str, verb: &str| {
        json!({"metadata": {"name": name}, "rules": [
            {"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]})
    };
    let (code, _) = world.jane("POST", &roles, role("a", "get")).await;
    assert_eq!(code, 201);
    let (code, message) = world.jane_message("POST", &roles, role("b", "delete")).await;
    assert_eq!(code, 403);
    assert!(
        message.contains("is attempting to grant RBAC permissions not currently held")
            && message.contains("Verbs:[\"delete\"]"),
        "{message}"
    );
    let mut binding = json!({
        "metadata": {"name": "c"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "jane"}],
    });
    let bindings = format!("{ROLES}/namespaces/default/rolebindings");
    let (code, _) = world.jane("POST", &bindings, binding.clone()).await;
    assert_eq!(code, 403);
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "Role", "name": "a"});
    let (code, _) = world.jane("POST", &bindings, binding).await;
    assert_eq!(code, 201);
}

#[tokio::test]
async fn no_detour_grants_permissions_the_writer_lacks() {
    let world = World::new();
    let body = json!({"metadata": {"name": "keeper"}, "rules": [
        {"verbs": ["create", "patch"], "apiGroups": [RBAC],
         "resources": ["roles", "rolebindings", "clusterroles"]}]});
    let cluster_roles = format!("{ROLES}/clusterroles");
    world.admin("POST", &cluster_roles, body).await;
    world.cluster_role("keeper").await;
    let bindings = format!("{ROLES}/namespaces/default/rolebindings");
    let subjects = json!([{"apiGroup": RBAC, "kind": "User", "name": "jane"}]);
    let role_ref = |name: &str| json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": name});
    let body = json!({"metadata": {"name": "all"}, "roleRef": role_ref("cluster-admin")});
    world.admin("POST", &bindings, body).await;
    let body = json!({"metadata": {"name": "strong"}, "rules": [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    world.admin("POST", &cluster_roles, body).await;

    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let gathering = json!({"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]});
    let nulls = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                        "resourceNames": null}]);
    let typed = |kind: &str, name: &str, mut body: Value| {
        body["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
        body["kind"] = json!(kind);
        body["metadata"]["name"] = json!(name);
        body
    };
    let apply = "?fieldManager=jane&force=true";
    let cases = [
        // Adding oneself to a binding whose role the patch does not name.
        (
            "PATCH",
            format!("{bindings}/all{apply}"),
            typed("RoleBinding", "all", json!({"subjects": subjects})),
            403,
        ),
        // A role that does not exist yet.
        (
            "POST",
            bindings.clone(),
            typed(
                "RoleBinding",
                "later",
                json!({"roleRef": role_ref("later"), "subjects": subjects}),
            ),
            404,
        ),
        // A role that is aggregated to others.
        (
            "PATCH",
            format!("{cluster_roles}/strong{apply}"),
            typed("ClusterRole", "strong", json!({"metadata": {"labels": labels}})),
            403,
        ),
        // A role that aggregates others.
        (
            "POST",
            cluster_roles.clone(),
            typed("ClusterRole", "net", json!({"aggregationRule": gathering})),
            403,
        ),
        // Rules that the store accepts and the check cannot read.
        ("POST", cluster_roles, typed("ClusterRole", "nulls", json!({"rules": nulls})), 403),
    ];
    for (method, path, body, expected) in cases {
        let (code, answer) = world.jane(method, &path, body).await;
        assert_eq!(code, expected, "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn namespace_read_permission_inside_one_covers_it() {
    let world = World::new();
    world.role(json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])).await;
    let reviews = "authorization.k8s.io/v1/namespaces/default/subjectaccessreviews";
    for (method, path, expected) in [
        ("GET", "/api/v1/namespaces/default".to_owned(), 200),
        ("GET", "/api/v1/namespaces/kube-system".to_owned(), 403),
        ("GET", "/api/v1/namespaces".to_owned(), 403),
        // A resource without a namespace is not served inside one.
        ("POST", format!("/apis/{reviews}"), 404),
    ] {
        let (code, answer) = world.jane(method, &path, json!({})).await;
        assert_eq!(code, expected, "{path}: {answer}");
    }
}

async fn token(world: &World, seconds: i64) -> (u16, Value) {
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let body = json!({"spec": {"expirationSeconds": seconds}});
    let ask = Ask("POST", path, body, &[]);
    world.send(Some(Identity::admin()), ask).await
}

#[tokio::test]
async fn a_service_account_token_is_good_until_it_expires_or_its_account_goes() {
    let world = World::new();
    let (code, answer) = token(&world, 60).await;
    assert_eq!(code, 422, "{answer}");
    let (code, answer) = token(&world, 600).await;
    assert_eq!(code, 201, "{answer}");
    let bearer = format!("Bearer {}", answer["status"]["token"].as_str().unwrap());
    let headers = [("authorization", bearer.as_str())];
    let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = || Ask("POST", whoami, json!({}), &headers);
    let (code, review) = world.send(None, ask()).await;
    assert_eq!(code, 201, "{review}");
    assert_eq!(review["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
    world.seconds.fetch_add(599, Ordering::SeqCst);
    assert_eq!(world.send(None, ask()).await.0, 201);
    world.seconds.fetch_add(1, Ordering::SeqCst);
    assert_eq!(world.send(None, ask()).await.0, 401);

    let (_, answer) = token(&world, 600).await;
    let bearer = format!("Bearer {}", answer["status"]["token"].as_str().unwrap());
    let headers = [("authorization", bearer.as_str())];
    let ask = || Ask("POST", whoami, json!({}), &headers);
    assert_eq!(world.send(None, ask()).await.0, 201);
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    world.admin("DELETE", account, Value::Null).await;
    assert_eq!(world.send(None, ask()).await.0, 401);
}

#[tokio::test]
async fn a_token_with_a_foreign_or_broken_signature_is_rejected() {
    let now = Timestamp::from_second(0).unwrap();
    let place = token::Place {
        namespace: "a".to_owned(),
        serviceaccount: token::Bound { name: "b".to_owned(), uid: "c".to_owned() },
        pod: None,
        secret: None,
        node: None,
    };
    let claims = token::Claims::new(place, vec![token::AUDIENCE.to_owned()], now, 600);
    let good = token::sign(b"key", &claims);
    assert_eq!(token::read(b"key", &good, now), Some(claims));
    assert_eq!(token::read(b"other", &good, now), None);
    let (rest, tag) = good.rsplit_once('.').unwrap();
    let (header, body) = rest.split_once('.').unwrap();
    assert_eq!(token::read(b"key", &format!("{header}.{body}x.{tag}"), now), None);
    assert_eq!(token::read(b"key", &format!("{header}.{body}."), now), None);
    assert_eq!(token::read(b"key", "", now), None);
}

#[tokio::test]
async fn access_reviews_work_for_oneself_and_for_others() {
    let world = World::new();
    world.role(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}])).await;
    let group = "/apis/authorization.k8s.io/v1";
    let self_reviews = format!("{group}/selfsubjectaccessreviews");
    let asked = |verb: &str| {
        json!({"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {
            "namespace": "default", "verb": verb, "resource": "configmaps"}}})
    };
    for (verb, expected) in [("get", true), ("delete", false)] {
        let (code, answer) = world.jane("POST", &self_reviews, asked(verb)).await;
        assert_eq!((code, &answer["status"]["allowed"]), (201, &json!(expected)));
    }
    let others = format!("{group}/subjectaccessreviews");
    let mut body = asked("get");
    body["spec"]["user"] = json!("jane");
    let (code, _) = world.jane("POST", &others, body.clone()).await;
    assert_eq!(code, 403);
    let answer = world.admin("POST", &others, body).await;
    assert_eq!(answer["status"]["allowed"], true);
    let rules = format!("{group}/selfsubjectrulesreviews");
    let body = json!({"spec": {"namespace": "default"}});
    let (_, answer) = world.jane("POST", &rules, body).await;
    let shown = answer["status"]["resourceRules"].to_string();
    assert!(shown.contains("configmaps"), "{shown}");
}

#[tokio::test]
async fn permitted_impersonation_changes_the_identity() {
    let world = World::new();
    let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mask = [("impersonate-user", "joe"), ("impersonate-group", "ops")];
    let admin = Some(Identity::admin());
    let (_, review) = world.send(admin, Ask("POST", whoami, json!({}), &mask)).await;
    let info = &review["status"]["userInfo"];
    assert_eq!(info["username"], "joe");
    assert_eq!(info["groups"], json!(["ops", AUTHENTICATED]));
    let jane = Some(Identity::new("jane", &[]));
    let (code, status) = world.send(jane, Ask("POST", whoami, json!({}), &mask)).await;
    assert_eq!(code, 403);
    assert_eq!(
        status["message"],
        "users \"joe\" is forbidden: User \"jane\" cannot impersonate resource \"users\" in API \
         group \"\" at the cluster scope"
    );
}

#[tokio::test]
async fn a_namespace_gets_its_account_and_decisions_are_recorded() {
    let world = World::new();
    let body = json!({"metadata": {"name": "new"}});
    world.admin("POST", "/api/v1/namespaces", body).await;
    let account = world.server.get_value("", "serviceaccounts", "new", "default");
    assert!(account.is_some());
    world.cluster_role("view").await;
    world.jane("GET", MAPS, Value::Null).await;
    world.jane("POST", MAPS, map("x")).await;
    let recorded = world.recorded.lock().unwrap().clone();
    let tail = &recorded[recorded.len() - 2..];
    assert_eq!(
        tail,
        ["jane list configmaps Some(\"ClusterRole/view\")", "jane create configmaps None",]
    );
}

#[tokio::test]
async fn a_restored_server_keeps_tokens_and_rights() {
    let world = World::new();
    world.cluster_role("view").await;
    let mut options = Options::new(Arc::new(|| Timestamp::from_second(1_767_225_600).unwrap()));
    let mut required = Required::new("a key for tests");
    required.tokens = BTreeMap::from([("secret-of-jane".to_owned(), Identity::new("jane", &[]))]);
    options.authentication = Authentication::Required(required);
    let revision = world.server.revision();
    let server = ApiServer::restore(world.server.snapshot(), options);
    assert_eq!(server.revision(), revision);
    let again = World { server, ..world };
    assert_eq!(again.jane("GET", MAPS, Value::Null).await.0, 200);
}

#[tokio::test]
async fn every_caller_of_an_open_server_has_all_permissions() {
    let world = World::new();
    let server = ApiServer::new(Options::new(Arc::new(|| Timestamp::from_second(0).unwrap())));
    assert!(server.list_values(RBAC, "clusterroles", None).is_empty());
    let open = World { server, ..world };
    let anonymous = || Ask("GET", MAPS, Value::Null, &[]);
    assert_eq!(open.send(None, anonymous()).await.0, 200);
    let bad = [("authorization", "Bearer made-up")];
    let ask = Ask("GET", MAPS, Value::Null, &bad);
    assert_eq!(open.send(None, ask).await.0, 200);
}
