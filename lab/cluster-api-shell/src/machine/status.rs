//! The status of a Machine.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, MachineStatus, update_in_progress};
use refit_kinds::canonical::CERTIFICATES_EXPIRY;
use refit_runtime::ObjectKey;
use serde_json::{Map, Value, json};

use super::{
    ObservedNode, Part, Parts,
    conditions::{self, MachineObservation, NodeState, ObservedPart},
    in_place::Update,
    up_to_date,
};
use crate::{
    conditions::{DesiredCondition, merged},
    context::{Context, controller_of, namespace_of},
    error::Error,
    live::Live,
    snapshot,
    workload::ready_condition,
};

/// Writes the status if it changed. Returns when to reconcile again.
pub(super) async fn write(
    context: &Arc<Context>,
    key: &ObjectKey,
    parts: &Parts,
    node: &ObservedNode,
    update: &Update,
) -> Result<Option<Duration>, Error> {
    // Read again to include this reconcile's own writes, above all annotations.
    let Some(machine) = context.machines.get(key) else {
        return Ok(None);
    };
    let is_updating = update_in_progress(machine.as_ref());
    let updating = is_updating.then(|| match &update.condition {
        Some((reason, message)) => ((*reason).to_owned(), message.clone()),
        None => ("InPlaceUpdating".to_owned(), up_to_date::UPDATING.to_owned()),
    });
    let mut status = facts(&machine, parts, node);
    let with_facts = with_status(&machine, &status)?;
    let message = updating.as_ref().map(|(_, message)| message.as_str());
    let up_to_date = worker_up_to_date(context, &with_facts, message)?;
    let mut seen = observe(&machine, parts, node);
    seen.updating = updating;
    seen.up_to_date = up_to_date;
    finish(context, &machine, &seen, &mut status).await
}

/// Writes the status of a Machine that is being deleted.
pub(super) async fn write_deleting(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    parts: &Parts,
    (reason, message): (&str, &str),
    extra: Map<String, Value>,
) -> Result<(), Error> {
    let mut status = extra;
    let mut seen = observe(machine, parts, &ObservedNode::NotConnected);
    seen.deleting = Some((reason.to_owned(), message.to_owned()));
    if update_in_progress(machine) {
        let message = up_to_date::updating_message(machine).unwrap_or(up_to_date::UPDATING);
        seen.updating = Some(("InPlaceUpdating".to_owned(), message.to_owned()));
    }
    finish(context, machine, &seen, &mut status).await?;
    Ok(())
}

async fn finish(
    context: &Arc<Context>,
    machine: &Live<Machine>,
    seen: &MachineObservation,
    status: &mut Map<String, Value>,
) -> Result<Option<Duration>, Error> {
    let existing: MachineStatus = machine.status.clone().unwrap_or_default();
    let now = context.now();
    let desired = conditions::all(seen, &existing.conditions, now);
    let generation = machine.metadata.generation;
    let list = merged(&existing.conditions, now, generation, &desired);
    let parsed: MachineStatus = parse(&json!({ "conditions": list }))?;
    let wait = conditions::wait_for_available(seen.min_ready_seconds, &parsed.conditions, now);
    status.insert("conditions".to_owned(), list);
    status.insert("phase".to_owned(), json!(phase(seen)));
    status.insert("observedGeneration".to_owned(), json!(generation));
    let status = Value::Object(std::mem::take(status));
    context.merge_status(&context.machines, machine, &status).await?;
    Ok(wait.and_then(|wait| Duration::try_from(wait).ok()))
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, Error> {
    serde_json::from_value(value.clone()).map_err(|error| Error::Invalid(error.to_string()))
}

/// The Machine with these facts in its status.
fn with_status(
    machine: &Live<Machine>,
    facts: &Map<String, Value>,
) -> Result<Live<Machine>, Error> {
    let mut json = machine.json().clone();
    json_patch::merge(&mut json, &json!({ "status": facts }));
    Live::read(json).map_err(|error| Error::Invalid(error.to_string()))
}

/// The facts from the providers and the Node, apart from conditions.
fn facts(machine: &Live<Machine>, parts: &Parts, node: &ObservedNode) -> Map<String, Value> {
    let mut initialization = Map::new();
    if observe_part(&parts.infrastructure, INFRASTRUCTURE).ready {
        initialization.insert("infrastructureProvisioned".to_owned(), json!(true));
    }
    let bootstrapped = match &parts.bootstrap {
        Some(bootstrap) => observe_part(bootstrap, BOOTSTRAP).ready,
        None => machine.spec.bootstrap.data_secret_name.is_some(),
    };
    if bootstrapped {
        initialization.insert("bootstrapDataSecretCreated".to_owned(), json!(true));
    }
    let mut facts = Map::new();
    if !initialization.is_empty() {
        facts.insert("initialization".to_owned(), Value::Object(initialization));
    }
    let addresses = parts.infrastructure.at("/status/addresses");
    if addresses.is_array() {
        facts.insert("addresses".to_owned(), addresses.clone());
    }
    let own = machine.annotations().get(CERTIFICATES_EXPIRY).map(String::as_str);
    let of_config = || {
        let config = parts.bootstrap.as_ref()?.object.as_ref()?;
        config.annotations().get(CERTIFICATES_EXPIRY).map(String::as_str)
    };
    if let Some(expiry) = own.or_else(of_config) {
        facts.insert("certificatesExpiryDate".to_owned(), json!(expiry));
    }
    if let ObservedNode::Node(node) = node {
        facts.insert("nodeRef".to_owned(), json!({"name": node.name_any()}));
        let info = node.at("/status/nodeInfo");
        if info.is_object() {
            facts.insert("nodeInfo".to_owned(), info.clone());
        }
    }
    facts
}

/// The status field of an infrastructure machine that reports it as provisioned.
const INFRASTRUCTURE: &str = "status.initialization.provisioned";
/// The status field of a bootstrap config that reports its data as created.
const BOOTSTRAP: &str = "status.initialization.dataSecretCreated";

fn observe_part(part: &Part, field: &'static str) -> ObservedPart {
    let pointer = format!("/{}", field.replace('.', "/"));
    ObservedPart {
        kind: part.reference.kind.clone(),
        exists: part.object.is_some(),
        ready: part.at(&pointer) == true,
        field,
    }
}

fn observe(machine: &Live<Machine>, parts: &Parts, node: &ObservedNode) -> MachineObservation {
    let status = machine.status.as_ref();
    let node_ref = status.and_then(|status| status.node_ref.as_ref());
    let registered = node_ref.is_some() || matches!(node, ObservedNode::Node(_));
    let node = match (node, node_ref) {
        (ObservedNode::NotConnected, _) => NodeState::NotConnected,
        (ObservedNode::None, Some(node)) => NodeState::Gone(node.name.clone()),
        (ObservedNode::None, None) => {
            NodeState::Awaited { provider_id: machine.spec.provider_id.clone() }
        }
        (ObservedNode::Node(node), _) => NodeState::Known(ready_condition(node)),
    };
    let gates = machine.at("/spec/readinessGates").as_array();
    let gate = |gate: &Value| Some(gate["conditionType"].as_str()?.to_owned());
    MachineObservation {
        infrastructure: observe_part(&parts.infrastructure, INFRASTRUCTURE),
        bootstrap: parts.bootstrap.as_ref().map(|part| observe_part(part, BOOTSTRAP)),
        node,
        registered,
        updating: None,
        deleting: None,
        up_to_date: None,
        gates: gates.into_iter().flatten().filter_map(gate).collect(),
        min_ready_seconds: i64::from(machine.spec.min_ready_seconds.unwrap_or(0)),
    }
}

/// `UpToDate` of a worker; the control plane sets it for its own Machines.
fn worker_up_to_date(
    context: &Context,
    machine: &Live<Machine>,
    updating: Option<&str>,
) -> Result<Option<DesiredCondition>, Error> {
    let Some(("MachineSet", set)) = controller_of(machine) else {
        return Ok(None);
    };
    let namespace = namespace_of(machine);
    let Some(set) = context.sets.get(&ObjectKey::new(&namespace, set)) else {
        return Ok(None);
    };
    let Some(("MachineDeployment", deployment)) = controller_of(set.as_ref()) else {
        return Ok(None);
    };
    let key = ObjectKey::new(&namespace, deployment);
    let Some(deployment) = context.deployments.get(&key) else {
        return Ok(None);
    };
    let json = snapshot::defaulted(&deployment);
    let wanted = snapshot::deployment(&deployment, &json)?;
    let mut wanted_now = wanted;
    wanted_now.rollout_after = wanted_now.rollout_after.filter(|after| *after <= context.now());
    let differences = up_to_date::worker_differences(&snapshot::machine_set(&set), &wanted_now);
    Ok(Some(up_to_date::verdict(machine, &differences, updating)))
}

fn phase(seen: &MachineObservation) -> &'static str {
    let bootstrapped = seen.bootstrap.as_ref().is_none_or(|part| part.ready);
    match seen {
        _ if seen.deleting.is_some() => "Deleting",
        _ if seen.updating.is_some() => "Updating",
        _ if seen.infrastructure.ready && seen.registered => "Running",
        _ if seen.infrastructure.ready => "Provisioned",
        _ if bootstrapped => "Provisioning",
        _ => "Pending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(infrastructure: bool, bootstrap: bool, registered: bool) -> MachineObservation {
        let part = |ready| ObservedPart {
            kind: "X".to_owned(),
            exists: true,
            ready,
            field: INFRASTRUCTURE,
        };
        MachineObservation {
            infrastructure: part(infrastructure),
            bootstrap: Some(part(bootstrap)),
            node: NodeState::NotConnected,
            registered,
            updating: None,
            deleting: None,
            up_to_date: None,
            gates: Vec::new(),
            min_ready_seconds: 0,
        }
    }

    #[test]
    fn the_phase_follows_a_machines_life() {
        assert_eq!(phase(&observation(false, false, false)), "Pending");
        assert_eq!(phase(&observation(false, true, false)), "Provisioning");
        assert_eq!(phase(&observation(true, true, false)), "Provisioned");
        let mut all = observation(true, true, true);
        assert_eq!(phase(&all), "Running");
        all.updating = Some((String::new(), String::new()));
        assert_eq!(phase(&all), "Updating");
        all.deleting = Some((String::new(), String::new()));
        assert_eq!(phase(&all), "Deleting");
    }
}
