//! Refit installed as `refit install --apply` does it, and restricted to exactly those rights.

mod canonical;
mod capacity;
mod graph;
mod tasks;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{
    CLUSTER, NEW, TEST, assert_same_machines, example, in_world, picture, up, up_with, upgraded,
    who, workers,
};
use jiff::SignedDuration;
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolumeClaim, Pod, Secret},
        storage::v1::VolumeAttachment,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use lab_apiserver::{
    ApiServer,
    auth::{AccessRecord, AccessRecorder, Attributes},
};
use lab_world::world::{Actor, Enforced, MachineFacts, WORKLOAD_USER, World, WorldOptions};
use refit_cluster_api::kinds::{KubeadmControlPlane, Machine, MachineDrainRule};
use refit_install::{Choices, Part, manifests, manifests::WORKLOAD_ROLE, objects};
use refit_kinds::json::{name, text};
use refit_kinds::keys;
use refit_kinds::refit::{CONFIGURATION, ClusterUpgrade, NodeUpdate, Updater};
use refit_runtime::Clock;
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";
const ACCOUNT: &str = "system:serviceaccount:refit-system:refit-controller";

/// All access decisions, by user.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<AccessCounts>>);

/// How often each request of a user was allowed and refused.
type AccessCounts = BTreeMap<(String, Attributes), (u32, u32)>;

impl Log {
    fn recorder(&self) -> AccessRecorder {
        let log = self.clone();
        Arc::new(move |record: &AccessRecord<'_>| {
            let key = (record.identity.user.clone(), record.attributes.clone());
            let mut seen = log.0.lock().unwrap();
            let (allowed, refused) = seen.entry(key).or_default();
            *(if record.allowed_by.is_some() { allowed } else { refused }) += 1;
        })
    }

    /// The requests of a user, and how often each was allowed and refused.
    fn of(&self, user: &str) -> Vec<(Attributes, u32, u32)> {
        let seen = self.0.lock().unwrap();
        seen.iter()
            .filter(|((who, _), _)| who == user)
            .map(|((_, asked), (allowed, refused))| (asked.clone(), *allowed, *refused))
            .collect()
    }
}

fn installation() -> Vec<Value> {
    objects(&manifests(&Part::MANAGEMENT, &Choices::default()))
}

fn workload() -> Vec<Value> {
    let role: Value = serde_saphyr::from_str(WORKLOAD_ROLE).unwrap();
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "refit-controller-workload"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name(&role)},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": WORKLOAD_USER}],
    });
    vec![role, binding]
}

/// One right of a role, split as finely as RBAC allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    role: String,
    namespace: String,
    verb: String,
    group: String,
    resource: String,
    name: String,
}

impl Right {
    fn allows(&self, asked: &Attributes) -> bool {
        self.verb == asked.verb
            && self.group == asked.group
            && self.resource == asked.combined()
            && (self.namespace.is_empty() || self.namespace == asked.namespace)
            && (self.name.is_empty() || self.name == asked.name)
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, verb, group, resource, name, .. } = self;
        write!(f, "{role}: {verb} {resource}.{group} {name}")
    }
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().cloned().unwrap_or_default();
    list.iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn rights_of(role: &Value) -> Vec<Right> {
    let namespace = text(role, "/metadata/namespace");
    let label = format!("{}/{}", text(role, "/kind"), name(role));
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        let mut names = strings(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for verb in strings(&rule["verbs"]) {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    assert!(![&verb, &group, &resource].contains(&&"*".to_owned()));
                    for name in &names {
                        rights.push(Right {
                            role: label.clone(),
                            namespace: namespace.to_owned(),
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                        });
                    }
                }
            }
        }
    }
    rights
}

/// The rights that a user has through roles with these names.
fn granted(server: &ApiServer, roles: &[(&str, &str, &str)]) -> Vec<Right> {
    roles
        .iter()
        .flat_map(|(plural, namespace, name)| {
            let role = server.get_value(RBAC, plural, namespace, name);
            rights_of(&role.unwrap_or_else(|| panic!("there is no role {name}")))
        })
        .collect()
}

fn unused(granted: &[Right], asked: &[(Attributes, u32, u32)]) -> BTreeSet<String> {
    granted
        .iter()
        .filter(|right| {
            !asked.iter().any(|(asked, allowed, _)| *allowed > 0 && right.allows(asked))
        })
        .map(ToString::to_string)
        .collect()
}

fn missing(asked: &[(Attributes, u32, u32)], may_wait: bool) -> Vec<String> {
    asked
        .iter()
        .filter(|(_, allowed, refused)| *refused > 0 && !(may_wait && *allowed > 0))
        .map(|(asked, ..)| format!("{} {} {asked:?}", asked.verb, asked.combined()))
        .collect()
}

async fn until_phase(world: &World, phase: &str) {
    world
        .until(&format!("an update is {phase}"), Duration::from_hours(1), |world| {
            let updates = world.node_updates();
            updates.iter().any(|u| text(u, "/status/phase") == phase)
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
}

/// A file of the control plane changes, in its KubeadmConfig.
async fn configured(world: &World) {
    let planes: Api<KubeadmControlPlane> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let files = json!([{"path": "/etc/motd", "content": "configured"}]);
    let change = json!({"spec": {"kubeadmConfigSpec": {"files": files}}});
    planes.patch("edge-1", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    world
        .until("a file is written in place", Duration::from_hours(1), |world| {
            let is_of_config = |update: &Value| {
                let parts = update["spec"]["parts"].as_array().into_iter().flatten();
                parts.into_iter().any(|part| part["updater"] == CONFIGURATION)
            };
            let updates = world.node_updates();
            let mut updates = updates.iter().filter(|update| is_of_config(update));
            updates.any(|update| text(update, "/status/phase") == "Succeeded")
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
}

/// Corrupted certificates, a NodeUpdate without a Machine, a CRD of an older version, a goal that
/// changes midway.
async fn rare_events(world: &World) {
    let client = world.client(TEST).unwrap();
    let params = PatchParams::default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "refit-system");
    let spoiled = json!({"data": {"tls.crt": "bm90aGluZw=="}});
    for name in ["refit-webhook-tls", "refit-hook-client"] {
        secrets.patch(name, &params, &Patch::Merge(&spoiled)).await.unwrap();
    }

    let mut ghost = world.node_updates()[0].as_ref().clone();
    ghost["metadata"] = json!({"name": "ghost-1", "namespace": "default"});
    ghost["spec"]["machineRef"] = json!({"name": "ghost", "uid": "none"});
    let ghost: NodeUpdate = serde_json::from_value(ghost).unwrap();
    let updates: Api<NodeUpdate> = Api::namespaced(client.clone(), "default");
    updates.create(&PostParams::default(), &ghost).await.unwrap();
    let workload = world.workload_client(CLUSTER, TEST).unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(workload);
    let older = json!({"metadata": {"annotations": {"refit.dev/crd-hash": "of another version"}}});
    crds.patch("hostplans.refit.dev", &params, &Patch::Merge(&older)).await.unwrap();
    assert!(world.kill(&Actor::Controller) && world.kill(&Actor::Standby));
    world.pass(Duration::from_mins(2)).await;

    old_updates(world).await;
    world.upgrade("v1.35.1").await.unwrap();
    until_phase(world, "Staging").await;
    let updates = world.node_updates();
    let staging = updates.iter().find(|update| text(update, "/status/phase") == "Staging").unwrap();
    let machines: Api<Machine> = Api::namespaced(client, "default");
    let further = json!({"spec": {"version": "v1.35.2"}});
    let machine = text(staging, "/spec/machineRef/name");
    machines.patch(machine, &params, &Patch::Merge(&further)).await.unwrap();
    world
        .until("an update is aborted for another goal", Duration::from_hours(1), |world| {
            let updates = world.node_updates();
            let by_refit = |update: &Value| {
                let annotations = update.pointer("/metadata/annotations");
                annotations.is_some_and(|all| all.get(keys::GOAL_CHANGED).is_some())
            };
            updates.iter().any(|update| by_refit(update))
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
}

/// More NodeUpdates of a Machine than stay, all of which ended long ago.
async fn old_updates(world: &World) {
    let updates: Api<NodeUpdate> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let known = world.node_updates()[0].as_ref().clone();
    let machine = text(&known, "/spec/machineRef/name").to_owned();
    for ordinal in 100..104 {
        let mut aborted = known.clone();
        aborted["metadata"] = json!({
            "name": format!("{machine}-{ordinal}"), "namespace": "default",
            "labels": {keys::MACHINE_NAME: machine},
        });
        aborted["spec"]["stage"] = "Abort".into();
        create_object(&updates, aborted).await;
    }
    world.pass(Duration::from_mins(70)).await;
}

/// Prepares drains that use all of their rights: a drain rule that selects namespaces, a pod that
/// is skipped and keeps its volume, and a machine whose pods are deleted instead of evicted.
async fn drains_of_every_kind(world: &World, worker: &str, deleted: &str) {
    let client = world.client(TEST).unwrap();
    let rule = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
        "metadata": {"name": "web-last", "namespace": "default"},
        "spec": {
            "drain": {"behavior": "Drain", "order": 1},
            "pods": [{"namespaceSelector": {"matchLabels": {
                "kubernetes.io/metadata.name": "default",
            }}}],
        },
    });
    let rules: Api<MachineDrainRule> = Api::namespaced(client.clone(), "default");
    create_object(&rules, rule).await;
    let updater = json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "Updater", "metadata": {"name": "power"},
        "spec": {"action": "Leave", "claims": [{
            "group": "infrastructure.cluster.x-k8s.io", "kind": "SandboxMachine",
            "paths": ["/spec/powerOffMode"],
        }]},
    });
    create_object(&Api::<Updater>::all(client.clone()), updater).await;
    let machines: Api<Machine> = Api::namespaced(client, "default");
    let at_once = json!({"metadata": {"annotations": {"refit.dev/drain-delete-after": "0s"}}});
    machines.patch(deleted, &PatchParams::default(), &Patch::Merge(&at_once)).await.unwrap();
    let workload = world.workload_client(CLUSTER, TEST).unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(workload.clone(), "default");
    let claim = json!({
        "metadata": {"name": "logs"},
        "spec": {"volumeName": "pv-logs", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    create_object(&claims, claim).await;
    let pods: Api<Pod> = Api::namespaced(workload.clone(), "default");
    let pod = json!({
        "metadata": {"name": "logs", "labels": {"cluster.x-k8s.io/drain": "skip"}},
        "spec": {
            "nodeName": worker, "containers": [{"name": "logs", "image": "logs"}],
            "volumes": [{"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}}],
        },
    });
    create_object(&pods, pod).await;
    let attachments: Api<VolumeAttachment> = Api::all(workload);
    let attachment = json!({
        "metadata": {"name": "csi-logs"},
        "spec": {"attacher": "csi.example.com", "nodeName": worker,
            "source": {"persistentVolumeName": "pv-logs"}},
    });
    create_object(&attachments, attachment).await;
}

async fn create_object<K>(api: &Api<K>, object: Value)
where
    K: serde::de::DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// The upgrade of a cluster, and one of a fleet, at a time that does not come.
async fn scheduled(world: &World) {
    let never = "2999-12-31T00:00:00Z";
    tasks::plan(world, "v1.36.0", Some(never)).await;
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let spec = json!({"version": "v1.36.0", "startAt": never});
    create_object(&upgrades, json!({"metadata": {"name": "edge-1"}, "spec": spec})).await;
}

/// Checks the rights of the controller and of each agent in the workload cluster.
fn check_workload(world: &World, log: &Log, machines: &[MachineFacts]) {
    let server = world.workload(CLUSTER).unwrap();
    let asked = log.of(WORKLOAD_USER);
    let rights = granted(&server, &[("clusterroles", "", "refit-controller-workload")]);
    assert_eq!(missing(&asked, false), Vec::<String>::new());
    assert_eq!(unused(&rights, &asked), BTreeSet::new());

    for machine in machines {
        let node = &machine.node_name;
        let asked = log.of(&format!("system:node:{node}"));
        let role = format!("refit-agent-{node}");
        let rights = granted(&server, &[("roles", "refit-system", &role)]);
        // An agent may start before the controller has seen its Node.
        assert_eq!(missing(&asked, true), Vec::<String>::new());
        assert_eq!(unused(&rights, &asked), BTreeSet::new());
    }
}

/// An installation with these files in addition, for the kinds of the sandbox's provider.
fn enforced(
    files: &[&str],
    workload: Vec<Value>,
    management: &Log,
    workload_log: &Log,
) -> Enforced {
    Enforced {
        installation: installation()
            .into_iter()
            .chain(files.iter().map(|file| in_sandbox(file)))
            .collect(),
        workload,
        management_recorder: management.recorder(),
        workload_recorder: workload_log.recorder(),
    }
}

fn in_sandbox(file: &str) -> Value {
    serde_saphyr::from_str(&file.replace("metal3", "sandbox")).unwrap()
}

/// A world with these rights. Certificates are issued by its clock and checked by the machine's: this epoch keeps them valid
/// for its first two days.
fn with_rights(enforced: Enforced) -> WorldOptions {
    WorldOptions {
        epoch: Clock::real().now_seconds() - SignedDuration::from_hours(48),
        enforced: Some(enforced),
        ..WorldOptions::new(example())
    }
}

#[test]
fn the_controller_and_the_agents_use_exactly_their_rights() {
    in_world(async {
        let (management, workload_log) = (Log::default(), Log::default());
        let rights = enforced(&[], workload(), &management, &workload_log);
        let world = up_with(WorldOptions { two_controllers: true, ..with_rights(rights) }).await;
        let before = who(&world).await;
        tasks::task(
            &world,
            "Machines",
            Some(("cluster.x-k8s.io", "MachineDeployment", "not-there")),
        )
        .await;
        scheduled(&world).await;
        let worker = workers(&world).remove(0);
        drains_of_every_kind(&world, &worker, &workers(&world)[1]).await;
        world.with_host(&worker, |host| host.break_step("kubelet-install", 1)).unwrap();
        world.upgrade(NEW).await.unwrap();
        until_phase(&world, "Draining").await;
        assert!(world.kill(&Actor::Controller));
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
        configured(&world).await;
        rare_events(&world).await;

        let asked = management.of(ACCOUNT);
        let rights = granted(
            world.management(),
            &[
                ("clusterroles", "", "refit-controller"),
                ("clusterroles", "", "refit-kubeconfigs"),
                ("roles", "refit-system", "refit-controller"),
            ],
        );
        assert_eq!(missing(&asked, false), Vec::<String>::new());
        assert_eq!(unused(&rights, &asked), BTreeSet::new());

        check_workload(&world, &workload_log, &before);
    });
}

#[test]
fn a_recreated_node_gets_its_rights_again() {
    in_world(async {
        let world = up().await;
        let server = world.workload(CLUSTER).unwrap();
        let node = workers(&world).remove(0);
        let role = format!("refit-agent-{node}");
        let owner = |plural: &str| {
            let object = server.get_value(RBAC, plural, "refit-system", &role);
            let object = object.unwrap_or_else(|| panic!("no {plural} {role}"));
            text(&object, "/metadata/ownerReferences/0/uid").to_owned()
        };
        let before = owner("roles");
        let nodes: Api<Node> = Api::all(world.workload_client(CLUSTER, TEST).unwrap());
        let uid = nodes.get(&node).await.unwrap().metadata.uid.unwrap();
        assert_eq!(before, uid);
        nodes.delete(&node, &DeleteParams::default()).await.unwrap();
        world.pass(Duration::from_mins(2)).await;
        let uid = nodes.get(&node).await.unwrap().metadata.uid.unwrap();
        assert_ne!(before, uid);
        assert_eq!((owner("roles"), owner("rolebindings")), (uid.clone(), uid));
    });
}
