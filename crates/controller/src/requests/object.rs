//! The object of a new NodeUpdate, for all origins.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use refit_cluster_api::kinds::{CONTRACT_VERSION, CORE_GROUP};
use refit_kinds::{
    keys,
    refit::{
        Goal, MachineRef, NodeUpdate, NodeUpdateSpec, Origin, Stage, Until, UpdatePart,
        node_update_name,
    },
};

/// The request for a new NodeUpdate.
#[derive(Clone, Debug)]
pub struct NewNodeUpdate {
    /// Namespace of the Machine.
    pub namespace: String,
    /// The Machine.
    pub machine: MachineRef,
    /// How the request was made.
    pub origin: Origin,
    /// An annotation of it, with its value: who has requested it.
    pub annotation: Option<(String, String)>,
    /// How far the update may go.
    pub until: Until,
    /// The goal of the update.
    pub goal: Goal,
    /// What updaters do; `None` for `kubeadm` alone.
    pub parts: Option<Vec<UpdatePart>>,
    /// The bundle that its host installs from; `None` for the sources of its HostSettings.
    pub bundle: Option<String>,
}

/// The NodeUpdate of this ordinal, named after its Machine and owned by it. Creating it is a
/// compare-and-swap that only one of several requests wins.
///
/// ```
/// use refit_kinds::refit::{Goal, MachineRef, Origin, Until};
/// use refit_controller::{NewNodeUpdate, node_update};
///
/// let new = NewNodeUpdate {
///     namespace: "default".into(),
///     machine: MachineRef { name: "edge-1-x7k2p".into(), uid: "3f0b".into() },
///     origin: Origin::Task,
///     annotation: None,
///     until: Until::Stage,
///     goal: Goal::of_version("v1.35.0".parse()?),
///     parts: None,
///     bundle: None,
/// };
/// assert_eq!(node_update(&new, 3).metadata.name.as_deref(), Some("edge-1-x7k2p-3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn node_update(new: &NewNodeUpdate, ordinal: u32) -> NodeUpdate {
    let spec = NodeUpdateSpec {
        stage: Stage::Ongoing,
        until: new.until,
        machine_ref: new.machine.clone(),
        origin: new.origin,
        goal_hash: new.goal.hash(),
        parts: new.parts.clone(),
        bundle: new.bundle.clone(),
        goal: new.goal.clone(),
    };
    let mut update = NodeUpdate::new(&node_update_name(&new.machine.name, ordinal), spec);
    let metadata = &mut update.metadata;
    metadata.namespace = Some(new.namespace.clone());
    metadata.labels =
        Some(BTreeMap::from([(keys::MACHINE_NAME.to_owned(), new.machine.name.clone())]));
    metadata.annotations = new.annotation.clone().map(|annotation| BTreeMap::from([annotation]));
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: format!("{CORE_GROUP}/{CONTRACT_VERSION}"),
        kind: "Machine".to_owned(),
        name: new.machine.name.clone(),
        uid: new.machine.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }]);
    update
}
