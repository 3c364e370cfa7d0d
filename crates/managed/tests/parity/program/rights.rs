//! The rights of the manifests: each is used, and no other is asked for.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams,
        PostParams,
    },
};
use lab_apiserver::auth::{AccessRecord, Attributes, Authentication, Identity, Required};
use lab_openshift::Blueprint;
use refit_managed::Compat;
use refit_openshift::{
    config::CONFIG_MAP,
    upgrade_config::{NAME, NAMESPACE, Phase, UpgradeConfig},
};
use refit_runtime::lease::LeaseSettings;
use serde_json::{Value, json};

use super::world::{IMAGE_VERSION, LOCAL, VERSION, World, by_ocm, client_as, image, in_world};

const ACCOUNT: &str = "managed-upgrade-operator";
const MANIFEST: &str = include_str!("../../../../../deploy/openshift/rbac.yaml");
const OF_DVO: &str =
    include_str!("../../../../../deploy/openshift/deployment-validation/rbac.yaml");

/// The documents of a file.
pub(super) fn documents(file: &str) -> Vec<Value> {
    file.split("\n---\n").map(|one| serde_saphyr::from_str(one).unwrap()).collect()
}

/// The roles of the program.
fn roles(objects: &[Value]) -> impl Iterator<Item = &Value> {
    let is_role = |object: &&Value| object["kind"] == "Role" || object["kind"] == "ClusterRole";
    // Prometheus has that one.
    objects.iter().filter(is_role).filter(|role| role["metadata"]["name"] != "prometheus-k8s")
}

/// A right, split as finely as RBAC allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: String,
    verb: String,
    resource: String,
    name: String,
}

fn rights(role: &Value) -> Vec<Right> {
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.map(|one| one.as_str().unwrap().to_owned()).collect()
    };
    let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut all = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        let names = Some(texts(&rule["resourceNames"])).filter(|names| !names.is_empty());
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                for name in names.clone().unwrap_or_else(|| vec![String::new()]) {
                    all.push(Right {
                        namespace: namespace.to_owned(),
                        verb: verb.clone(),
                        resource: resource.clone(),
                        name,
                    });
                }
            }
        }
    }
    all
}

impl Right {
    fn allows(&self, asked: &Attributes) -> bool {
        self.verb == asked.verb
            && self.resource == asked.combined()
            && (self.namespace.is_empty() || self.namespace == asked.namespace)
            && (self.name.is_empty() || self.name == asked.name)
    }
}

/// Creates objects in an API server with RBAC.
pub(super) async fn install(world: &World, objects: &[Value]) {
    for object in objects {
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let version = text("/apiVersion");
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, version, text("/kind"));
        let resource = ApiResource::from_gvk(&kind);
        let client = world.client.clone();
        let api: Api<DynamicObject> = match text("/metadata/namespace") {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        };
        let object = serde_json::from_value(object.clone()).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// A token of the program's ServiceAccount.
async fn token(world: &World) -> String {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token");
    let body = json!({"spec": {"expirationSeconds": 30 * 24 * 3600}}).to_string();
    let request = http::Request::post(path).header("content-type", "application/json");
    let answer: Value = world.client.request(request.body(body.into()).unwrap()).await.unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

pub(super) fn upgrades_use_each_right_and_no_other() {
    in_world(async {
        let seen: Arc<Mutex<BTreeSet<(Attributes, bool)>>> = Arc::default();
        let log = seen.clone();
        let recorder = Arc::new(move |record: &AccessRecord<'_>| {
            if record.identity.user.ends_with(&format!("{NAMESPACE}:{ACCOUNT}")) {
                let allowed = record.allowed_by.is_some();
                log.lock().unwrap().insert((record.attributes.clone(), allowed));
            }
        });
        let required = Required { recorder: Some(recorder), ..Required::new("key") };
        let blueprint = Blueprint { has_file_integrity: true, ..Blueprint::default() };
        let world = World::with(&blueprint, Authentication::Required(required)).await;
        let manifests: Vec<Value> =
            documents(MANIFEST).into_iter().chain(documents(OF_DVO)).collect();
        let namespace = "openshift-deployment-validation-operator";
        install(
            &world,
            &[json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
            })],
        )
        .await;
        install(&world, &manifests).await;
        let fedramp = "environment: {fedramp: true}\n";
        world.configure(&(by_ocm().replace("timeOut: 45", "timeOut: 2") + fedramp)).await;
        let worker = world.workers().await.remove(0);
        install(&world, &[pod(&worker, "held", &["example.com/never"])]).await;
        install(&world, &guarded_pod(&worker, "guarded")).await;
        world.ocm.schedule("p-1", VERSION, world.at(10));
        let lease = LeaseSettings::new(NAMESPACE, "managed-upgrade-operator-lock", "a");
        let program =
            world.start_as("a.test", Some(lease), Compat::Repaired, Some(token(&world).await));
        world.until(Phase::Upgrading, 30).await;
        world.minutes(20).await;
        // From here on, there is a Secret with a token.
        world.add_token_secret().await.unwrap();
        world.until_completed("p-1", 300).await;
        world.minutes(3).await;
        assert_eq!(world.phase().await, None, "the provider wants no upgrade any more");
        // The version of a release image is written to the request.
        world.configure(LOCAL).await;
        let desired = json!({"image": image(IMAGE_VERSION)});
        world.request_release(&desired, &world.at(300).to_string()).await;
        world.minutes(5).await;
        let desired = world.upgrade().await.spec.desired;
        assert_eq!(desired.version.as_deref(), Some(IMAGE_VERSION));
        drop(program);
        let seen = seen.lock().unwrap().clone();
        let refused: Vec<&Attributes> =
            seen.iter().filter(|(_, allowed)| !allowed).map(|(asked, _)| asked).collect();
        assert_eq!(refused, Vec::<&Attributes>::new());
        let unused: Vec<Right> = roles(&manifests)
            .flat_map(rights)
            .filter(|right| !seen.iter().any(|(asked, _)| right.allows(asked)))
            .collect();
        assert_eq!(unused, []);
    });
}

/// The customers' administrators of a managed cluster have no right of ours: not even with the role `admin` in the namespace, which
/// OpenShift does not give them.
pub(super) fn dedicated_admins_request_no_upgrades() {
    in_world(async {
        let required = Authentication::Required(Required::new("key"));
        let world = World::with(&Blueprint::default(), required).await;
        install(&world, &documents(MANIFEST)).await;
        let group = "dedicated-admins";
        let rbac = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": group, "namespace": NAMESPACE},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"apiGroup": rbac, "kind": "Group", "name": group}],
        });
        install(&world, &[binding]).await;
        world.request(&world.at(300).to_string()).await;
        let client = client_as(&world.server, &Identity::new("customer", &[group]));
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        maps.get(CONFIG_MAP).await.expect("the role is bound");
        let upgrades: Api<UpgradeConfig> = Api::namespaced(client, NAMESPACE);
        let merge = Patch::Merge(json!({"spec": {"upgradeAt": world.at(1)}}));
        let (patching, deleting) = (PatchParams::default(), DeleteParams::default());
        let mut other = world.upgrade().await;
        other.metadata = ObjectMeta { name: Some("other".to_owned()), ..ObjectMeta::default() };
        let refused = [
            upgrades.create(&PostParams::default(), &other).await.map(drop),
            upgrades.patch(NAME, &patching, &merge).await.map(drop),
            upgrades.patch_status(NAME, &patching, &merge).await.map(drop),
            upgrades.delete(NAME, &deleting).await.map(drop),
        ];
        for outcome in refused {
            let Err(kube::Error::Api(status)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(status.code, 403, "{status:?}");
        }
    });
}

fn pod(node: &str, name: &str, finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"app": name},
            "finalizers": finalizers,
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]},
    })
}

/// A Pod on a node, and a budget that allows no eviction of it.
pub(super) fn guarded_pod(node: &str, name: &str) -> [Value; 2] {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}},
    });
    [pod(node, name, &[]), budget]
}
