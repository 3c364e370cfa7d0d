//! The control plane and bootstrap providers of Canonical Kubernetes, as far as Refit meets them: they create the
//! Machines of a control plane, and the tokens by which k8sd is reached. They roll out nothing.

use std::sync::Arc;

use lab_simhost::kubelet::is_ready;
use refit_cluster_api::{
    desired::{Pairs, Template, made_of},
    kinds::{self, ContractRef},
};
use refit_kinds::{keys, refit::hash_json, version::KubernetesVersion};
use serde_json::{Value, json};

use super::{
    PassWrites, View, flag,
    infrastructure::owner,
    name, namespace, short_hash,
    state::{EnvState, cluster_key},
    text,
};
use crate::{direct::Call, mirror::Place};

/// Kind of a control plane.
pub(crate) const CONTROL_PLANE: &str = "CK8sControlPlane";
/// Plural of that kind.
pub(crate) const CONTROL_PLANES: &str = "ck8scontrolplanes";
/// Kind of a bootstrap configuration.
pub(crate) const CONFIG: &str = "CK8sConfig";
/// Port of k8sd.
pub(crate) const K8SD_PORT: u16 = 2380;
/// How the names of the pods begin through which k8sd is reached.
pub(crate) const K8SD_PROXY: &str = "k8sd-proxy-";

/// Whether k8sd runs on a machine.
pub(crate) fn is_of_canonical(machine: &Value) -> bool {
    text(machine, "/spec/bootstrap/configRef/kind") == CONFIG
}

/// The option by which the snap of a new machine is installed.
pub(crate) fn installed_at_first(machine: &Value) -> String {
    let version = text(machine, "/spec/version").parse::<KubernetesVersion>();
    version.map_or_else(
        |_| String::new(),
        |version| format!("channel={}.{}-classic/stable", version.major(), version.minor()),
    )
}

/// The token with which clients of a node's k8sd authenticate.
pub(crate) fn node_token(node: &str) -> String {
    let mut token = hash_json(&json!(["node-token", node]));
    token.truncate(32);
    token
}

/// Creates the Secret with the tokens of a cluster (`docs/facts/k8sd.md`).
pub(crate) fn token_secret(cluster: &str) -> Call {
    let (namespace, cluster) = cluster.split_once('/').unwrap_or(("default", cluster));
    let body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "cluster.x-k8s.io/secret",
        "metadata": {
            "name": token_secret_name(cluster),
            "namespace": namespace,
            "labels": {keys::CLUSTER_NAME: cluster},
        },
        "stringData": {"value": node_token(cluster)},
    });
    Call::create(format!("/api/v1/namespaces/{namespace}/secrets"), body)
}

fn token_secret_name(cluster: &str) -> String {
    format!("{cluster}-token")
}

/// Adds the token of a new machine to the Secret of its cluster.
pub(crate) fn add_node_token(machine: &Value) -> Call {
    let secret = token_secret_name(text(machine, "/spec/clusterName"));
    let key = format!("node-token-{}", name(machine));
    let body = json!({"stringData": {key: node_token(name(machine))}});
    Call::merge(format!("/api/v1/namespaces/{}/secrets/{secret}", namespace(machine)), body)
}

/// Creates the missing Machines of each control plane, deletes those that are too many, and reports.
pub(crate) fn control_planes(view: &View<'_>, state: &EnvState, plan: &mut PassWrites) {
    let Some(place) = view.management.place(kinds::CONTROL_PLANE_GROUP, CONTROL_PLANE) else {
        return;
    };
    for object in view.management.list(&place.id) {
        let is_deleted = !text(&object, "/metadata/deletionTimestamp").is_empty();
        let Some(cluster) = cluster_of(view, &object).filter(|_| !is_deleted) else { continue };
        let key = cluster_key(namespace(&object), name(&cluster));
        let initialized = state.clusters.get(&key).is_some_and(|known| known.initialized);
        let plane = Plane { view, object: &object, place: &place, cluster: &cluster, initialized };
        plane.scale(plan);
        plane.report(&key, plan);
    }
}

fn cluster_of(view: &View<'_>, plane: &Value) -> Option<Arc<Value>> {
    let id = format!("clusters.{}", kinds::CORE_GROUP);
    view.management.list(&id).into_iter().find(|cluster| {
        let reference = &cluster["spec"]["controlPlaneRef"];
        namespace(cluster) == namespace(plane)
            && text(reference, "/kind") == CONTROL_PLANE
            && text(reference, "/name") == name(plane)
            && flag(cluster, "/status/initialization/infrastructureProvisioned")
    })
}

struct Plane<'a> {
    view: &'a View<'a>,
    object: &'a Value,
    place: &'a Place,
    cluster: &'a Value,
    initialized: bool,
}

impl Plane<'_> {
    fn members(&self) -> Vec<Arc<Value>> {
        let mut all = self.view.management.list(&format!("machines.{}", kinds::CORE_GROUP));
        let uid = text(self.object, "/metadata/uid");
        all.retain(|machine| text(machine, "/metadata/ownerReferences/0/uid") == uid);
        all
    }

    fn scale(&self, plan: &mut PassWrites) {
        let members = self.members();
        let wanted = self.object["spec"]["replicas"].as_u64().unwrap_or(1);
        let count = u64::try_from(members.len()).unwrap_or(u64::MAX);
        if count < wanted && (self.initialized || members.is_empty()) {
            let is_free = |name: &String| members.iter().all(|machine| self::name(machine) != name);
            if let Some(new) = (0..=count).map(|number| self.member_name(number)).find(is_free) {
                self.create(&new, plan);
            }
        }
        let is_live = |machine: &&Arc<Value>| {
            text(machine, "/metadata/deletionTimestamp").is_empty() && count > wanted
        };
        if let Some(last) = members.iter().rfind(is_live) {
            plan.management(Call::delete(self.machines() + "/" + name(last)));
        }
    }

    fn machines(&self) -> String {
        let namespace = namespace(self.object);
        format!(
            "/apis/{}/{}/namespaces/{namespace}/machines",
            kinds::CORE_GROUP,
            kinds::CONTRACT_VERSION
        )
    }

    fn member_name(&self, number: u64) -> String {
        let uid = text(self.object, "/metadata/uid");
        format!("{}-{}", name(self.object), &short_hash(&format!("{uid}-{number}"))[..5])
    }

    /// Creates a Machine with its bootstrap configuration and its infrastructure machine.
    fn create(&self, new: &str, plan: &mut PassWrites) {
        let (object, namespace) = (self.object, namespace(self.object));
        let reference = &object["spec"]["machineTemplate"]["infrastructureTemplate"];
        let api_version = text(reference, "/apiVersion");
        let template = ContractRef {
            api_group: api_version.split_once('/').unwrap_or_default().0.to_owned(),
            kind: text(reference, "/kind").to_owned(),
            name: text(reference, "/name").to_owned(),
        };
        let Some((place, json)) = self.view.management.referred(&json!(template), namespace) else {
            tracing::warn!(name = text(reference, "/name"), "no such infrastructure template");
            return;
        };
        let cluster = name(self.cluster);
        let labels = Pairs::from([
            (keys::CLUSTER_NAME.to_owned(), cluster.to_owned()),
            (keys::CONTROL_PLANE.to_owned(), String::new()),
            (keys::CONTROL_PLANE_NAME.to_owned(), name(object).to_owned()),
        ]);
        let mut owner = owner(object, self.place, CONTROL_PLANE);
        owner["blockOwnerDeletion"] = true.into();
        let machine_owners = json!([owner]);
        // The Machine becomes the controller of what belongs to it.
        owner["controller"] = false.into();
        let owners = json!([owner]);
        let infrastructure = made_of(&template, new);
        let template = Template { reference: template, json: (*json).clone() };
        let mut machine = template.instance(namespace, new, &labels, &Pairs::new());
        machine["apiVersion"] = json!(api_version);
        machine["kind"] = json!(infrastructure.kind);
        machine["metadata"]["ownerReferences"] = owners.clone();
        let plural = place.plural.replace("machinetemplates", "machines");
        plan.management(Call::create(
            format!("{}/namespaces/{namespace}/{plural}", place.base),
            machine,
        ));
        let configs =
            format!("/apis/{}/v1beta2/namespaces/{namespace}/ck8sconfigs", kinds::BOOTSTRAP_GROUP);
        let metadata = json!({
            "name": new, "namespace": namespace, "labels": labels, "ownerReferences": owners,
        });
        let config = json!({
            "apiVersion": format!("{}/v1beta2", kinds::BOOTSTRAP_GROUP),
            "kind": CONFIG,
            "metadata": metadata.clone(),
            "spec": object["spec"]["spec"],
        });
        plan.management(Call::create(configs, config));
        let reference = ContractRef {
            api_group: kinds::BOOTSTRAP_GROUP.to_owned(),
            kind: CONFIG.to_owned(),
            name: new.to_owned(),
        };
        let mut metadata = metadata;
        metadata["ownerReferences"] = machine_owners;
        let machine = json!({
            "apiVersion": format!("{}/{}", kinds::CORE_GROUP, kinds::CONTRACT_VERSION),
            "kind": "Machine",
            "metadata": metadata,
            "spec": {
                "clusterName": cluster,
                "version": object["spec"]["version"],
                "bootstrap": {"configRef": reference},
                "infrastructureRef": infrastructure,
            },
        });
        plan.management(Call::create(self.machines(), machine));
    }

    /// Writes what the contract wants of a control plane's status (`docs/facts/control-plane.md#contract`).
    fn report(&self, cluster: &str, plan: &mut PassWrites) {
        let members = self.members();
        let Some(nodes) = self.view.workloads.get(cluster).filter(|_| self.initialized) else {
            return;
        };
        let is_member_ready = |machine: &&Arc<Value>| {
            let node = nodes.get("nodes", "", text(machine, "/status/nodeRef/name"));
            node.is_some_and(|node| is_ready(&node))
        };
        let status = json!({
            "initialization": {"controlPlaneInitialized": true},
            "replicas": members.len(),
            "readyReplicas": members.iter().filter(is_member_ready).count(),
            "version": self.object["spec"]["version"],
            "observedGeneration": self.object["metadata"]["generation"],
        });
        if self.object["status"] != status {
            let path = self.place.path(namespace(self.object), name(self.object));
            plan.management(Call::merge(path + "/status", json!({"status": status})));
        }
    }
}
