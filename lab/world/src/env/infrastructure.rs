//! Infrastructure and bootstrap providers, and Cluster API's Cluster controller.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use refit_cluster_api::kinds;
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{
    BOOT, BOOT_SPREAD_SECONDS, PassWrites, View, canonical, flag,
    kubelet::Local,
    name, namespace, rfc3339, short_hash, spread,
    state::{ClusterState, EnvState, HostRecord, cluster_key, host_key},
    text,
};
use crate::{
    direct::Call,
    mirror::{Changed, Key, Place},
};

const CLUSTERS: &str = "clusters.cluster.x-k8s.io";
const MACHINES: &str = "machines.cluster.x-k8s.io";
/// Default port of a cluster's API server.
const API_PORT: u16 = 6443;

/// Provisions infrastructure clusters and maintains the endpoint and conditions of each Cluster.
pub(crate) fn clusters(view: &View<'_>, state: &mut EnvState, plan: &mut PassWrites) {
    let clusters = view.management.list(CLUSTERS);
    for cluster in &clusters {
        if flag(cluster, "/spec/paused") {
            continue;
        }
        let (namespace, name) = (namespace(cluster), name(cluster));
        let key = cluster_key(namespace, name);
        let known = state.clusters.entry(key).or_insert_with(|| {
            let (host, port) = endpoint_of(view, cluster);
            let k8sd = text(cluster, "/spec/controlPlaneRef/kind") == canonical::CONTROL_PLANE;
            ClusterState { host, port, k8sd, ..ClusterState::default() }
        });
        let place = view.management.place(kinds::CORE_GROUP, "Cluster");
        let (known, Some(place)) = (known.clone(), place) else {
            continue;
        };
        let endpoint = json!({"host": known.host, "port": known.port});
        let path = place.path(namespace, name);
        set_owner(view, cluster, &place, plan);
        let reference = &cluster["spec"]["infrastructureRef"];
        let provisioned = if reference.is_object() {
            infrastructure_cluster(view, cluster, &endpoint, plan)
        } else {
            true
        };
        if !provisioned {
            continue;
        }
        if cluster["spec"]["controlPlaneEndpoint"] != endpoint {
            let body = json!({"spec": {"controlPlaneEndpoint": endpoint}});
            plan.management(Call::merge(path.clone(), body));
        }
        cluster_status(view, cluster, known.initialized, &path, plan);
    }
}

/// Labels the objects of a Cluster and sets the Cluster as their owner, as Cluster API does.
fn set_owner(view: &View<'_>, cluster: &Value, place: &Place, plan: &mut PassWrites) {
    let (namespace, cluster_name) = (namespace(cluster), name(cluster));
    let referred = ["infrastructureRef", "controlPlaneRef"]
        .into_iter()
        .filter_map(|field| view.management.referred(&cluster["spec"][field], namespace))
        .map(|part| (part, true));
    let deployments = view.management.place(kinds::CORE_GROUP, "MachineDeployment");
    let workers = deployments.into_iter().flat_map(|place| {
        let all = view.management.list(&place.id);
        all.into_iter().map(move |object| ((place.clone(), object), false))
    });
    let workers = workers.filter(|((_, object), _)| {
        self::namespace(object) == namespace && text(object, "/spec/clusterName") == cluster_name
    });
    for ((part, object), controller) in referred.chain(workers) {
        let metadata = &object["metadata"];
        let owners = metadata["ownerReferences"].as_array();
        let mut owners = owners.cloned().unwrap_or_default();
        let uid = &cluster["metadata"]["uid"];
        let owned = owners.iter().any(|owner| owner["uid"] == *uid);
        if owned && metadata["labels"][keys::CLUSTER_NAME] == cluster_name {
            continue;
        }
        if !owned {
            let mut reference = owner(cluster, place, "Cluster");
            if !controller && let Some(reference) = reference.as_object_mut() {
                reference.remove("controller");
            }
            owners.push(reference);
        }
        let body = json!({"metadata": {
            "labels": {keys::CLUSTER_NAME: cluster_name},
            "ownerReferences": owners,
        }});
        let path = part.path(self::namespace(&object), name(&object));
        plan.management(Call::merge(path, body));
    }
}

/// Endpoint of a cluster's API: from the Cluster, from its infrastructure cluster, or generated.
fn endpoint_of(view: &View<'_>, cluster: &Value) -> (String, u16) {
    let infrastructure = view
        .management
        .referred(&cluster["spec"]["infrastructureRef"], namespace(cluster))
        .map(|(_, object)| object);
    let specified_endpoint = |object: &Value| {
        let endpoint = &object["spec"]["controlPlaneEndpoint"];
        let host = endpoint["host"].as_str().unwrap_or_default();
        let port = endpoint["port"].as_u64().unwrap_or_default();
        let port = u16::try_from(port).ok().filter(|port| *port > 0);
        (!host.is_empty()).then(|| (host.to_owned(), port.unwrap_or(API_PORT)))
    };
    specified_endpoint(cluster)
        .or_else(|| infrastructure.as_deref().and_then(specified_endpoint))
        .unwrap_or_else(|| (format!("{}.refit.sandbox", name(cluster)), API_PORT))
}

/// Marks an infrastructure cluster as provisioned; returns whether it already was.
fn infrastructure_cluster(
    view: &View<'_>,
    cluster: &Value,
    endpoint: &Value,
    plan: &mut PassWrites,
) -> bool {
    let reference = &cluster["spec"]["infrastructureRef"];
    let Some((place, object)) = view.management.referred(reference, namespace(cluster)) else {
        return false;
    };
    let path = place.path(namespace(&object), name(&object));
    if text(&object, "/spec/controlPlaneEndpoint/host").is_empty() {
        let body = json!({"spec": {"controlPlaneEndpoint": endpoint}});
        plan.management(Call::merge(path.clone(), body));
    }
    if flag(&object, "/status/initialization/provisioned") {
        return true;
    }
    let body = json!({"status": {"ready": true, "initialization": {"provisioned": true}}});
    plan.management(Call::merge(format!("{path}/status"), body));
    false
}

fn cluster_status(view: &View<'_>, cluster: &Value, up: bool, path: &str, plan: &mut PassWrites) {
    let milestones = &cluster["status"]["initialization"];
    let provisioned = milestones["infrastructureProvisioned"] == true;
    let initialized = milestones["controlPlaneInitialized"] == true;
    if provisioned && (initialized || !up) && text(cluster, "/status/phase") == "Provisioned" {
        return;
    }
    let now = rfc3339(view.now);
    let condition = |kind: &str, status: bool, reason: &str| {
        let status = if status { "True" } else { "False" };
        json!({"type": kind, "status": status, "reason": reason, "message": "",
               "lastTransitionTime": now})
    };
    let reason = if up { "Initialized" } else { "NotInitialized" };
    let body = json!({"status": {
        "phase": "Provisioned",
        "observedGeneration": cluster["metadata"]["generation"],
        "initialization": {
            "infrastructureProvisioned": true,
            "controlPlaneInitialized": up,
        },
        "conditions": [
            condition("ControlPlaneInitialized", up, reason),
            condition("InfrastructureReady", true, "Ready"),
        ],
    }});
    plan.management(Call::merge(format!("{path}/status"), body));
}

/// The Machines that may need a write of a provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenMachines {
    /// Their keys; `None` if all of them may.
    keys: Option<BTreeSet<Key>>,
    /// Which Machine uses an infrastructure machine or a bootstrap configuration.
    users: BTreeMap<(String, Key), Key>,
    /// How many clusters were initialized: others join only then.
    initialized: usize,
}

impl OpenMachines {
    /// Takes note of changed objects.
    fn note(&mut self, changed: &Changed, initialized: usize) {
        let of_clusters = changed.iter().any(|(id, _)| id == CLUSTERS);
        if of_clusters || self.initialized != initialized {
            self.initialized = initialized;
            self.keys = None;
        }
        let Some(open) = &mut self.keys else { return };
        for object in changed {
            if object.0 == MACHINES {
                open.insert(object.1.clone());
            }
            open.extend(self.users.get(object).cloned());
        }
    }
}

/// Provides bootstrap data and infrastructure for each Machine, and removes hosts whose infrastructure
/// machine is gone.
pub(crate) fn machines(view: &View<'_>, state: &mut EnvState, plan: &mut PassWrites) {
    let initialized = state.clusters.values().filter(|known| known.initialized).count();
    state.open.note(&view.changed, initialized);
    let (open, everything) = match state.open.keys.take() {
        Some(open) => (open, false),
        None => (view.management.keys(MACHINES), true),
    };
    let mut still_open = BTreeSet::new();
    for key in open {
        if let Some(machine) = view.management.get(MACHINES, &key.0, &key.1)
            && !is_settled(view, &machine, &key, state, plan)
        {
            still_open.insert(key);
        }
    }
    state.open.keys = Some(still_open);
    forget_hosts(view, state, everything);
}

/// Provides what a Machine lacks; returns whether nothing is left to do until it, or an object that it
/// refers to, changes.
fn is_settled(
    view: &View<'_>,
    machine: &Value,
    key: &Key,
    state: &mut EnvState,
    plan: &mut PassWrites,
) -> bool {
    if !text(machine, "/metadata/deletionTimestamp").is_empty() {
        return true;
    }
    let namespace = namespace(machine);
    let cluster = text(machine, "/spec/clusterName");
    let cluster_key = cluster_key(namespace, cluster);
    let provisioned = view
        .management
        .get(CLUSTERS, namespace, cluster)
        .is_some_and(|c| flag(&c, "/status/initialization/infrastructureProvisioned"));
    let Some(known) = state.clusters.get_mut(&cluster_key).filter(|_| provisioned) else {
        return false;
    };
    let calls_before = plan.calls.len();
    bootstrap(view, machine, known, plan);
    infrastructure_machine(view, machine, &cluster_key, state, plan);
    let spec = &machine["spec"];
    let references = [&spec["bootstrap"]["configRef"], &spec["infrastructureRef"]];
    let mut resolved = true;
    for reference in references.into_iter().filter(|reference| reference.is_object()) {
        match view.management.referred(reference, namespace) {
            Some((place, object)) => {
                let used = (namespace.to_owned(), name(&object).to_owned());
                state.open.users.insert((place.id, used), key.clone());
            }
            None => resolved = false,
        }
    }
    resolved && plan.calls.len() == calls_before
}

pub(crate) fn is_control_plane(machine: &Value) -> bool {
    machine["metadata"]["labels"].get(keys::CONTROL_PLANE).is_some()
}

/// Creates the bootstrap data of a Machine: at once for the first control plane machine, for all
/// others when there is a cluster to join.
fn bootstrap(view: &View<'_>, machine: &Value, known: &mut ClusterState, plan: &mut PassWrites) {
    let reference = &machine["spec"]["bootstrap"]["configRef"];
    let namespace = namespace(machine);
    let Some((place, config)) = view.management.referred(reference, namespace) else {
        return;
    };
    if flag(&config, "/status/initialization/dataSecretCreated") {
        return;
    }
    if !known.initialized {
        if !is_control_plane(machine) {
            return;
        }
        if known.first_machine.is_empty() {
            name(machine).clone_into(&mut known.first_machine);
        }
        if known.first_machine != name(machine) {
            return;
        }
    }
    let secret = name(&config);
    let is_canonical = text(reference, "/kind") == canonical::CONFIG;
    let command = match (is_canonical, known.initialized) {
        (true, true) => "k8s join-cluster",
        (true, false) => "k8s bootstrap",
        (false, true) => "kubeadm join",
        (false, false) => "kubeadm init",
    };
    let labels = json!({ keys::CLUSTER_NAME: text(machine, "/spec/clusterName") });
    let body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "cluster.x-k8s.io/secret",
        "metadata": {
            "name": secret,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [owner(&config, &place, text(&config, "/kind"))],
        },
        "stringData": {
            "format": "cloud-config",
            "value": format!("#cloud-config\nruncmd: [{command}]\n"),
        },
    });
    plan.management(Call::create(format!("/api/v1/namespaces/{namespace}/secrets"), body));
    if is_canonical {
        plan.management(canonical::add_node_token(machine));
    }
    let path = place.path(namespace, name(&config));
    let body = json!({"status": {
        "dataSecretName": secret,
        "initialization": {"dataSecretCreated": true},
        "observedGeneration": config["metadata"]["generation"],
    }});
    plan.management(Call::merge(format!("{path}/status"), body));
}

pub(super) fn owner(object: &Value, place: &Place, kind: &str) -> Value {
    json!({
        "apiVersion": place.base.trim_start_matches("/apis/"),
        "kind": kind,
        "name": name(object),
        "uid": text(object, "/metadata/uid"),
        "controller": true,
    })
}

/// Requests the host of a Machine whose bootstrap data exists.
fn infrastructure_machine(
    view: &View<'_>,
    machine: &Value,
    cluster: &str,
    state: &mut EnvState,
    plan: &mut PassWrites,
) {
    let ready = !text(machine, "/spec/bootstrap/dataSecretName").is_empty();
    let reference = &machine["spec"]["infrastructureRef"];
    let namespace = namespace(machine);
    let found = view.management.referred(reference, namespace);
    let Some((place, object)) = found.filter(|_| ready) else {
        return;
    };
    let uid = text(&object, "/metadata/uid");
    let node = name(machine);
    let record = state.hosts.entry(host_key(cluster, node)).or_insert_with(|| HostRecord {
        cluster: cluster.to_owned(),
        node: node.to_owned(),
        namespace: namespace.to_owned(),
        infrastructure_uid: uid.to_owned(),
        infrastructure_resource: place.id.clone(),
        provider_id: format!("sandbox://{node}-{}", short_hash(uid)),
        control_plane: is_control_plane(machine),
        version: text(machine, "/spec/version").to_owned(),
        k8sd: canonical::is_of_canonical(machine),
        snap: canonical::installed_at_first(machine),
        boot_at: view.now + (BOOT + jitter(node)) / view.hurry,
        fail_step: String::new(),
    });
    let path = place.path(namespace, name(&object));
    if text(&object, "/spec/providerID").is_empty() {
        let body = json!({"spec": {"providerID": record.provider_id}});
        plan.management(Call::merge(path.clone(), body));
    }
    if !flag(&object, "/status/initialization/provisioned") {
        let body = json!({"status": {
            "ready": true,
            "initialization": {"provisioned": true},
            "addresses": [{"type": "InternalIP", "address": address(node)}],
        }});
        plan.management(Call::merge(format!("{path}/status"), body));
    }
    if record.boot_at > view.now {
        plan.wake_at(record.boot_at);
    }
}

fn jitter(node: &str) -> SignedDuration {
    let seconds = spread(node, BOOT_SPREAD_SECONDS);
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or_default())
}

/// Address of a node.
pub(crate) fn address(node: &str) -> String {
    let number = spread(node, 250 * 250);
    format!("10.20.{}.{}", 1 + number / 250, 1 + number % 250)
}

/// Removes hosts whose infrastructure machine is gone: of all, or of those that changed.
fn forget_hosts(view: &View<'_>, state: &mut EnvState, everything: bool) {
    let may_be_gone = |host: &HostRecord| {
        let HostRecord { infrastructure_resource, namespace, node, .. } = host;
        let key = (namespace.clone(), node.clone());
        everything || view.changed.contains(&(infrastructure_resource.clone(), key))
    };
    if !everything && view.changed.is_empty() {
        return;
    }
    let gone: Vec<String> = state
        .hosts
        .values()
        .filter(|host| may_be_gone(host))
        .filter(|host| {
            view.management
                .get(&host.infrastructure_resource, &host.namespace, &host.node)
                .is_none_or(|object| {
                    text(&object, "/metadata/uid") != host.infrastructure_uid
                        || !text(&object, "/metadata/deletionTimestamp").is_empty()
                })
        })
        .map(HostRecord::key)
        .collect();
    for key in gone {
        state.hosts.remove(&key);
    }
}

/// Deletes the Nodes of hosts that are gone.
pub(crate) fn forget_nodes(local: &Local<'_>, state: &EnvState, plan: &mut PassWrites) {
    for node in local.nodes.keys() {
        if !state.hosts.contains_key(&host_key(local.cluster, node)) {
            local.send(plan, Call::delete(format!("/api/v1/nodes/{node}")));
        }
    }
}
