//! The status of a control plane.

use refit_cluster_api::{
    kinds::{KubeadmControlPlaneStatus, Machine},
    rollout::control_plane::Component,
};
use refit_kinds::{conditions, version::KubernetesVersion};
use serde_json::json;

use super::Plane;
use crate::{
    aggregate::machines_up_to_date,
    conditions::{DesiredCondition, merged},
    context::Context,
    error::Error,
    live::Live,
};

/// Writes the status if it changed.
pub(super) async fn write(
    context: &Context,
    plane: &Plane,
    initialized: bool,
) -> Result<(), Error> {
    let machines = plane.machines(context);
    let machines: Vec<&Live<Machine>> = machines.iter().map(AsRef::as_ref).collect();
    let object = &plane.object;
    let existing: KubeadmControlPlaneStatus = object.status.clone().unwrap_or_default();
    let count = |type_: &str| machines.iter().filter(|one| is(one, type_)).count();
    let generation = object.metadata.generation;
    let desired = desired_conditions(&machines, &plane.desired().components(), initialized);
    let mut status = json!({
        "replicas": machines.len(),
        "readyReplicas": count(conditions::READY),
        "availableReplicas": count(conditions::AVAILABLE),
        "upToDateReplicas": count(conditions::UP_TO_DATE),
        "observedGeneration": generation,
        "conditions": merged(&existing.conditions, context.now(), generation, &desired),
    });
    if let Some(version) = lowest_version(&machines) {
        status["version"] = json!(version);
    }
    if initialized {
        status["initialization"] = json!({"controlPlaneInitialized": true});
    }
    context.merge_status(&context.control_planes, object, &status).await?;
    Ok(())
}

fn is(machine: &Machine, type_: &str) -> bool {
    let status = machine.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, type_))
}

fn lowest_version<'a>(machines: &[&'a Live<Machine>]) -> Option<&'a KubernetesVersion> {
    machines.iter().filter_map(|machine| machine.spec.version.version()).min()
}

fn desired_conditions(
    machines: &[&Live<Machine>],
    components: &[Component],
    initialized: bool,
) -> Vec<DesiredCondition> {
    let outdated = machines.iter().filter(|machine| !is(machine, conditions::UP_TO_DATE)).count();
    let rolling = if initialized && outdated > 0 {
        let message = format!("Rolling out {outdated} not up-to-date replicas");
        DesiredCondition::new("RollingOut", true, "RollingOut", message)
    } else {
        DesiredCondition::new("RollingOut", false, "NotRollingOut", "")
    };
    let initialization = if initialized {
        DesiredCondition::new("Initialized", true, "Initialized", "")
    } else {
        DesiredCondition::new("Initialized", false, "NotInitialized", "")
    };
    vec![
        initialization,
        available(machines, components, initialized),
        machines_up_to_date(machines.iter().map(|machine| &***machine)),
        rolling,
    ]
}

/// A control plane is available while one of its machines serves the API and etcd has quorum.
fn available(
    machines: &[&Live<Machine>],
    components: &[Component],
    initialized: bool,
) -> DesiredCondition {
    let type_ = conditions::AVAILABLE;
    if !initialized {
        let message = "Control plane not yet initialized";
        return DesiredCondition::new(type_, false, "NotAvailable", message);
    }
    let healthy = |machine: &&&Live<Machine>, etcd: bool| {
        components
            .iter()
            .filter(|one| matches!(one, Component::EtcdPod | Component::EtcdMember) == etcd)
            .all(|one| is(machine, one.condition()))
    };
    let serving = machines.iter().filter(|one| healthy(one, false)).count();
    let members = machines.iter().filter(|one| healthy(one, true)).count();
    if serving == 0 {
        let message = "There are no Machines with healthy control plane components, at least 1 \
                       required";
        return DesiredCondition::new(type_, false, "NotAvailable", message);
    }
    if members * 2 <= machines.len() {
        let message = format!(
            "{members} of {} etcd members are healthy, at least {} required for etcd quorum",
            machines.len(),
            machines.len() / 2 + 1
        );
        return DesiredCondition::new(type_, false, "NotAvailable", message);
    }
    DesiredCondition::new(type_, true, "Available", "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conditions::Status;

    const ALL: [Component; 5] = [
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::EtcdPod,
        Component::EtcdMember,
    ];

    fn machine(version: &str, healthy: bool) -> Live<Machine> {
        let conditions: Vec<_> = ALL
            .iter()
            .map(|component| {
                json!({
                    "type": component.condition(), "status": if healthy { "True" } else { "False" },
                    "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            })
            .collect();
        Live::read(json!({
            "metadata": {"name": "m"}, "spec": {"clusterName": "c", "version": version},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn a_control_plane_needs_its_quorum() {
        let (good, bad) = (machine("v1.34.2", true), machine("v1.34.2", false));
        let cases = [
            (vec![&good, &good, &good], Status::True),
            (vec![&good, &good, &bad], Status::True),
            (vec![&good, &bad, &bad], Status::False),
            (vec![&good, &bad], Status::False),
            (vec![&bad], Status::False),
            (vec![&good], Status::True),
        ];
        for (machines, status) in cases {
            assert_eq!(available(&machines, &ALL, true).status, status);
        }
        assert_eq!(available(&[&good], &ALL, false).reason, "NotAvailable");
    }

    #[test]
    fn the_version_is_the_lowest_by_number() {
        let (old, new) = (machine("v1.9.9", true), machine("v1.10.0", true));
        assert_eq!(lowest_version(&[&new, &old]), Some(&KubernetesVersion::new(1, 9, 9)));
        assert_eq!(lowest_version(&[]), None);
    }
}
