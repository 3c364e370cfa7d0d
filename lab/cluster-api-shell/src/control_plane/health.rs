//! Conditions of control plane Machines: static pods, etcd members, up-to-dateness.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::{Machine, MachineStatus},
    rollout::{control_plane::Component, difference::Difference},
};
use refit_runtime::ObjectKey;
use serde_json::json;

use super::Plane;
use crate::{
    conditions::{DesiredCondition, Status, merged},
    context::Context,
    error::Error,
    live::Live,
    machine::up_to_date,
    workload::{Reached, SYSTEM_NAMESPACE, pod_state},
};

/// Writes each Machine's conditions if they changed.
pub(super) async fn write(
    context: &Arc<Context>,
    plane: &Plane,
    differences: &BTreeMap<String, Vec<Difference>>,
) -> Result<(), Error> {
    for machine in plane.machines(context) {
        if machine.is_deleting() {
            continue;
        }
        let mut desired = Vec::new();
        let node = machine.at("/status/nodeRef/name").as_str();
        if let (Some(reached), Some(node)) = (&plane.reached, node) {
            desired.extend(
                plane
                    .desired()
                    .components()
                    .into_iter()
                    .map(|component| component_condition(reached, component, node)),
            );
        }
        if let Some(found) = differences.get(&machine.name_any()) {
            desired.push(up_to_date_condition(&machine, found));
        }
        let existing: MachineStatus = machine.status.clone().unwrap_or_default();
        let generation = machine.metadata.generation;
        let list = merged(&existing.conditions, context.now(), generation, &desired);
        let status = json!({ "conditions": list });
        context.merge_status(&context.machines, &machine, &status).await?;
    }
    Ok(())
}

fn up_to_date_condition(machine: &Live<Machine>, differences: &[Difference]) -> DesiredCondition {
    let updating = up_to_date::updating_message(machine);
    let messages: Vec<String> = differences.iter().map(ToString::to_string).collect();
    up_to_date::verdict(machine, &messages, updating)
}

fn component_condition(reached: &Reached, component: Component, node: &str) -> DesiredCondition {
    let name = match component {
        Component::ApiServer => "kube-apiserver",
        Component::ControllerManager => "kube-controller-manager",
        Component::Scheduler => "kube-scheduler",
        Component::EtcdPod | Component::EtcdMember => "etcd",
    };
    let name = format!("{name}-{node}");
    let pod = reached.pods.get(&ObjectKey::new(SYSTEM_NAMESPACE, &name));
    let state = pod.as_ref().map(|pod| pod_state(pod));
    pod_condition(component, &name, state)
}

/// The condition of a component; an etcd member is as healthy as its pod.
fn pod_condition(
    component: Component,
    pod: &str,
    state: Option<(String, bool)>,
) -> DesiredCondition {
    let type_ = component.condition();
    if component == Component::EtcdMember {
        return if matches!(state, Some((_, true))) {
            DesiredCondition::new(type_, true, "Healthy", "")
        } else {
            let message = format!("Pod {pod} is not ready");
            DesiredCondition::new(type_, Status::Unknown, "InspectionFailed", message)
        };
    }
    match state {
        None => {
            let message = format!("Pod {pod} does not exist");
            DesiredCondition::new(type_, false, "PodDoesNotExist", message)
        }
        Some((_, true)) => DesiredCondition::new(type_, true, "PodRunning", ""),
        Some((phase, _)) if phase == "Pending" => {
            DesiredCondition::new(type_, false, "PodProvisioning", "Pod is pending")
        }
        Some((phase, _)) if phase == "Failed" || phase == "Succeeded" => DesiredCondition::new(
            type_,
            false,
            "PodFailed",
            "All the containers have been terminated",
        ),
        Some(_) => DesiredCondition::new(type_, false, "PodProvisioning", "Pod is not ready"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_as_healthy_as_its_pod() {
        let state = |phase: &str, ready| Some((phase.to_owned(), ready));
        let cases = [
            (Component::ApiServer, None, Status::False, "PodDoesNotExist"),
            (Component::ApiServer, state("Running", true), Status::True, "PodRunning"),
            (Component::Scheduler, state("Pending", false), Status::False, "PodProvisioning"),
            (Component::Scheduler, state("Running", false), Status::False, "PodProvisioning"),
            (Component::EtcdPod, state("Failed", false), Status::False, "PodFailed"),
            (Component::EtcdMember, state("Running", true), Status::True, "Healthy"),
            (Component::EtcdMember, state("Running", false), Status::Unknown, "InspectionFailed"),
        ];
        for (component, state, status, reason) in cases {
            let condition = pod_condition(component, "p", state);
            assert_eq!((condition.status, condition.reason.as_str()), (status, reason));
            assert_eq!(condition.type_, component.condition());
        }
    }
}
