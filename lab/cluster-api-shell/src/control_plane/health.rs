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
    conditions::{Says, Status, merged},
    context::Context,
    error::Error,
    live::Live,
    machine::up_to_date,
    workload::{Reached, SYSTEM_NAMESPACE, pod_state},
};

/// Writes each Machine's conditions where they changed.
pub(super) async fn write(
    context: &Arc<Context>,
    plane: &Plane,
    differences: &BTreeMap<String, Vec<Difference>>,
) -> Result<(), Error> {
    for machine in plane.machines(context) {
        if machine.is_deleting() {
            continue;
        }
        let mut says = Vec::new();
        let node = machine.at("/status/nodeRef/name").as_str();
        if let (Some(reached), Some(node)) = (&plane.reached, node) {
            says.extend(
                plane
                    .desired()
                    .components()
                    .into_iter()
                    .map(|component| component_says(reached, component, node)),
            );
        }
        if let Some(found) = differences.get(&machine.name_any()) {
            says.push(up_to_date_says(&machine, found));
        }
        let existing: MachineStatus = machine.status.clone().unwrap_or_default();
        let generation = machine.metadata.generation;
        let list = merged(&existing.conditions, context.now(), generation, &says);
        let status = json!({ "conditions": list });
        context.merge_status(&context.machines, &machine, &status).await?;
    }
    Ok(())
}

fn up_to_date_says(machine: &Live<Machine>, differences: &[Difference]) -> Says {
    let updating = up_to_date::updating_message(machine);
    let messages: Vec<String> = differences.iter().map(ToString::to_string).collect();
    up_to_date::verdict(machine, &messages, updating)
}

fn component_says(reached: &Reached, component: Component, node: &str) -> Says {
    let name = match component {
        Component::ApiServer => "kube-apiserver",
        Component::ControllerManager => "kube-controller-manager",
        Component::Scheduler => "kube-scheduler",
        Component::EtcdPod | Component::EtcdMember => "etcd",
    };
    let name = format!("{name}-{node}");
    let pod = reached.pods.get(&ObjectKey::new(SYSTEM_NAMESPACE, &name));
    let state = pod.as_ref().map(|pod| pod_state(pod));
    says(component, &name, state)
}

/// What a component's condition says; an etcd member is as healthy as its pod.
fn says(component: Component, pod: &str, state: Option<(String, bool)>) -> Says {
    let type_ = component.condition();
    if component == Component::EtcdMember {
        return if matches!(state, Some((_, true))) {
            Says::new(type_, true, "Healthy", "")
        } else {
            let message = format!("Pod {pod} is not ready");
            Says::new(type_, Status::Unknown, "InspectionFailed", message)
        };
    }
    match state {
        None => {
            let message = format!("Pod {pod} does not exist");
            Says::new(type_, false, "PodDoesNotExist", message)
        }
        Some((_, true)) => Says::new(type_, true, "PodRunning", ""),
        Some((phase, _)) if phase == "Pending" => {
            Says::new(type_, false, "PodProvisioning", "Pod is pending")
        }
        Some((phase, _)) if phase == "Failed" || phase == "Succeeded" => {
            Says::new(type_, false, "PodFailed", "All the containers have been terminated")
        }
        Some(_) => Says::new(type_, false, "PodProvisioning", "Pod is not ready"),
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
            let said = says(component, "p", state);
            assert_eq!((said.status, said.reason.as_str()), (status, reason));
            assert_eq!(said.type_, component.condition());
        }
    }
}
