//! Machine: state from its providers and its Node, its in-place update, its deletion
//! (`docs/facts/machine.md`).

mod conditions;
mod delete;
mod drain;
mod in_place;
mod status;
pub(crate) mod up_to_date;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::{
    desired::owner,
    kinds::{Cluster, ContractRef, Machine},
};
use refit_kinds::keys;
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::{Map, Value, json};

use crate::{
    cache::Cache,
    context::{Context, controller_uid, is_paused, namespace_of},
    error::Error,
    live::{Bare, Live},
    workload,
};

/// How long to wait for an unreachable workload cluster.
const REACH_WAIT: Duration = Duration::from_secs(5);

/// An object of a provider: infrastructure machine or bootstrap config.
pub(crate) struct Part {
    pub(crate) cache: Cache<Bare>,
    pub(crate) reference: ContractRef,
    pub(crate) object: Option<Arc<Live<Bare>>>,
}

/// The provider objects of a Machine.
pub(crate) struct Parts {
    pub(crate) infrastructure: Part,
    pub(crate) bootstrap: Option<Part>,
}

impl Part {
    async fn load(
        context: &Arc<Context>,
        namespace: &str,
        reference: &ContractRef,
    ) -> Result<Self, Error> {
        let (cache, object) = context.provided(namespace, reference).await?;
        Ok(Self { cache, reference: reference.clone(), object })
    }

    /// One field of the object, `Null` if it is missing.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.object.as_ref().map_or(&Value::Null, |object| object.at(pointer))
    }
}

impl Parts {
    /// Reads the provider objects of a Machine.
    pub(crate) async fn load(
        context: &Arc<Context>,
        machine: &Live<Machine>,
    ) -> Result<Self, Error> {
        let namespace = namespace_of(machine);
        let bootstrap = match &machine.spec.bootstrap.config_ref {
            Some(reference) => Some(Part::load(context, &namespace, reference).await?),
            None => None,
        };
        let reference = &machine.spec.infrastructure_ref;
        Ok(Self { infrastructure: Part::load(context, &namespace, reference).await?, bootstrap })
    }

    /// Both, the infrastructure machine first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Part> {
        [&self.infrastructure].into_iter().chain(&self.bootstrap)
    }
}

/// The Node of a Machine, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) enum ObservedNode {
    /// The workload cluster is unreachable.
    NotConnected,
    /// No Node has the Machine's providerID.
    None,
    /// The Node.
    Node(Arc<Live<Node>>),
}

/// Advances a Machine by one step.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(machine) = context.machines.get(key) else {
        return Ok(Action::Done);
    };
    let cluster = context.cluster(&key.namespace, &machine.spec.cluster_name);
    let Some(cluster) = cluster else {
        return Ok(Action::Done);
    };
    if is_paused(&cluster, machine.as_ref()) {
        return Ok(Action::Done);
    }
    let parts = Parts::load(context, &machine).await?;
    if machine.is_deleting() {
        return delete::reconcile(context, &cluster, &machine, &parts).await;
    }
    adopt(context, &machine, &parts).await?;
    let machine = mirror(context, &machine, &parts).await?;
    let (node, reach_wait) = look_for_node(context, &cluster, &machine).await;
    let update = in_place::reconcile(context, &machine, &parts).await;
    let waits = status::write(context, key, &parts, &node, &update).await?;
    if let Some(error) = update.error {
        return Err(error);
    }
    let waits = [update.requeue, waits, reach_wait];
    Ok(match waits.into_iter().flatten().min() {
        Some(wait) => Action::RequeueAfter(wait),
        None => Action::Done,
    })
}

/// Makes the Machine the owner of its provider objects, in place of the MachineSet or control plane
/// that created them.
async fn adopt(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    parts: &Parts,
) -> Result<(), Error> {
    for part in parts.all() {
        let Some(object) = &part.object else { continue };
        if object.is_deleting() || controller_uid(object.as_ref()) == Some(machine.uid_text()) {
            continue;
        }
        let body = adoption(machine, object);
        context.merge(&part.cache, object, &body).await?;
    }
    Ok(())
}

fn adoption(machine: &Live<Machine>, object: &Live<Bare>) -> Value {
    let owners = object.at("/metadata/ownerReferences").as_array();
    // A control plane of another provider owns them until then, too.
    let owns_machine = |owner: &Value| {
        let mut of_machine = machine.owner_references().iter();
        of_machine.any(|known| owner["uid"] == known.uid.as_str())
    };
    let mut owners: Vec<Value> = owners
        .into_iter()
        .flatten()
        .filter(|owner| {
            let kind = owner["kind"].as_str().unwrap_or_default();
            let owned_before = ["MachineSet", "KubeadmControlPlane", "Machine"].contains(&kind);
            !owned_before && !owns_machine(owner)
        })
        .cloned()
        .collect();
    let resource = ApiResource::erase::<Machine>(&());
    let (name, uid) = (machine.name_any(), machine.uid_text());
    owners.push(owner(&resource, &name, uid, true));
    let mut metadata = json!({
        "resourceVersion": object.resource_version(),
        "ownerReferences": owners,
    });
    if !object.labels().contains_key(keys::CLUSTER_NAME) {
        metadata["labels"] = json!({ keys::CLUSTER_NAME: machine.spec.cluster_name });
    }
    json!({ "metadata": metadata })
}

/// Copies the results of the providers into the Machine's spec.
async fn mirror(
    context: &Arc<Context>,
    machine: &Arc<Live<Machine>>,
    parts: &Parts,
) -> Result<Arc<Live<Machine>>, Error> {
    let spec = mirrored(machine, parts);
    if spec.is_empty() {
        return Ok(machine.clone());
    }
    let body = json!({ "spec": spec });
    context.merge(&context.machines, machine, &body).await
}

fn mirrored(machine: &Live<Machine>, parts: &Parts) -> Map<String, Value> {
    let mut spec = Map::new();
    let provider_id = parts.infrastructure.at("/spec/providerID");
    let provisioned = parts.infrastructure.at("/status/initialization/provisioned") == true;
    if provisioned && provider_id.is_string() && machine.at("/spec/providerID") != provider_id {
        spec.insert("providerID".to_owned(), provider_id.clone());
    }
    if let Some(bootstrap) = &parts.bootstrap {
        let secret = bootstrap.at("/status/dataSecretName");
        let created = bootstrap.at("/status/initialization/dataSecretCreated") == true;
        let known = machine.at("/spec/bootstrap/dataSecretName");
        if created && secret.is_string() && known != secret {
            spec.insert("bootstrap".to_owned(), json!({"dataSecretName": secret}));
        }
    }
    spec
}

/// Finds the Machine's Node by its providerID. An unreachable workload cluster stops nothing else
/// (`docs/facts/machine.md#reconcile`).
async fn look_for_node(
    context: &Arc<Context>,
    cluster: &Live<Cluster>,
    machine: &Live<Machine>,
) -> (ObservedNode, Option<Duration>) {
    let Some(provider_id) = &machine.spec.provider_id else {
        return (ObservedNode::None, None);
    };
    match workload::reach(context, cluster).await {
        Ok(Some(reached)) if reached.nodes.is_ready() => {
            let node = reached.node_of(provider_id);
            (node.map_or(ObservedNode::None, ObservedNode::Node), None)
        }
        // Its first list triggers a reconcile.
        Ok(Some(_)) => (ObservedNode::NotConnected, None),
        Ok(None) => (ObservedNode::NotConnected, Some(REACH_WAIT)),
        Err(error) => {
            tracing::debug!(%error, "failed to reach the workload cluster");
            (ObservedNode::NotConnected, Some(REACH_WAIT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Live<Machine> {
        Live::read(json!({
            "metadata": {"namespace": "d", "name": "m", "uid": "m-uid"},
            "spec": {"clusterName": "edge-1", "providerID": "old"},
        }))
        .unwrap()
    }

    fn part(object: Value) -> Part {
        let gvk = kube::core::gvk::GroupVersionKind::gvk("i", "v1", "X");
        Part {
            cache: Cache::new(ApiResource::from_gvk(&gvk)),
            reference: ContractRef::default(),
            object: Some(Arc::new(Live::read(object).unwrap())),
        }
    }

    #[test]
    fn a_machine_adopts_its_provider_objects() {
        let object = Live::<Bare>::read(json!({"metadata": {
            "name": "m", "resourceVersion": "4",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "MachineSet", "name": "ms", "uid": "ms-uid"},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "o"},
            ],
        }}))
        .unwrap();
        let body = adoption(&machine(), &object);
        let owners = body["metadata"]["ownerReferences"].as_array().unwrap();
        let kinds: Vec<_> = owners.iter().map(|owner| &owner["kind"]).collect();
        assert_eq!(kinds, ["ConfigMap", "Machine"]);
        assert_eq!(owners[1]["controller"], true);
        assert_eq!(body["metadata"]["labels"][keys::CLUSTER_NAME], "edge-1");
    }

    #[test]
    fn only_finished_provider_results_reach_the_spec() {
        let infrastructure = |provisioned: bool| {
            part(json!({
                "metadata": {"name": "m"}, "spec": {"providerID": "x://1"},
                "status": {"initialization": {"provisioned": provisioned}},
            }))
        };
        let bootstrap = part(json!({
            "metadata": {"name": "m"},
            "status": {"dataSecretName": "s", "initialization": {"dataSecretCreated": true}},
        }));
        let parts = Parts { infrastructure: infrastructure(true), bootstrap: Some(bootstrap) };
        assert_eq!(
            Value::Object(mirrored(&machine(), &parts)),
            json!({"providerID": "x://1", "bootstrap": {"dataSecretName": "s"}})
        );
        let parts = Parts { infrastructure: infrastructure(false), bootstrap: None };
        assert!(mirrored(&machine(), &parts).is_empty());
    }
}
