//! The scenario with held replacements: a control plane of one machine and a worker that its MachineDeployment would replace by
//! a surge. The ReplacementHold is deleted, then the worker's Machine; then the MachineDeployment requests the version of the
//! control plane, and the control plane a later one.

use std::time::Duration;

use jiff::SignedDuration;
use refit_kinds::{
    json::{annotation, created_at, name, namespace},
    refit,
};
use serde_json::{Value, json};

use super::{EndState, SweepError};
use crate::{
    direct::{Call, Direct, DirectError, USER},
    script::look::{owners, owns},
    world::{World, status::is_worker},
};

/// Version of the control plane, which the worker is to get later.
const VERSION: &str = "v1.34.3";
const LATER_VERSION: &str = "v1.34.4";
const DEPLOYMENT: &str =
    "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments/edge-1-md-0";
const PLANE: &str =
    "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmcontrolplanes/edge-1";
const SPACE: &str = "/api/v1/namespaces/default";
const HOLD: &str = "/apis/refit.dev/v1alpha1/namespaces/default/replacementholds/refit";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";
/// Annotation of the namespace: how many of its changes the simulated user has made.
const CHANGES: &str = "example.com/changes";
/// When the user makes each change, after the creation of the namespace.
const AT: [SignedDuration; 3] =
    [SignedDuration::from_mins(10), SignedDuration::from_mins(15), SignedDuration::from_mins(25)];
/// When a run is over: Cluster API has tried to replace the worker several times.
const OVER: SignedDuration = SignedDuration::from_mins(50);
/// How long everything may take once the controller is back: Cluster API tries again after 17 minutes at most, for one object after
/// another.
pub(super) const RECOVERS: Duration = Duration::from_hours(1);

/// The manifests of the scenario.
pub fn hold_manifests() -> &'static str {
    include_str!("held.yaml")
}

/// Deletes the ReplacementHold.
pub(super) async fn start(world: &World) -> Result<(), SweepError> {
    Direct::new(world.management().clone(), USER).send(Call::delete(HOLD)).await?;
    Ok(())
}

/// Makes the changes that are due; returns whether the run is over.
pub(super) async fn go_on(world: &World) -> Result<bool, DirectError> {
    let Some(space) = world.management().get_value("", "namespaces", "", "default") else {
        return Ok(false);
    };
    let passed = world.now().duration_since(created_at(&space));
    if passed >= OVER {
        // Without its ReplacementHold the namespace refuses some of the changes.
        return Ok(true);
    }
    let made = annotation(&space, CHANGES).and_then(|made| made.parse().ok()).unwrap_or(0);
    if AT.get(made).is_some_and(|at| passed >= *at) {
        let api = Direct::new(world.management().clone(), USER);
        match made {
            0 => {
                for worker in world.machines().iter().filter(|machine| is_worker(machine)) {
                    api.send(Call::delete(format!("{MACHINES}/{}", name(worker)))).await?;
                }
            }
            1 => {
                let body = json!({"spec": {"template": {"spec": {"version": VERSION}}}});
                api.send(Call::merge(DEPLOYMENT, body)).await?;
            }
            // While a control plane is outdated, Cluster API creates no workers.
            _ if !world.machines().iter().any(|machine| is_worker(machine)) => return Ok(false),
            _ => {
                api.send(Call::merge(PLANE, json!({"spec": {"version": LATER_VERSION}}))).await?;
            }
        }
        let next = (made + 1).to_string();
        let body = json!({"metadata": {"annotations": {CHANGES: next}}});
        api.send(Call::merge(SPACE, body)).await?;
    }
    Ok(false)
}

/// What each ReplacementHold has about each owner.
pub(super) fn shown(world: &World) -> Vec<String> {
    let holds = world.management().list_values(refit::GROUP, "replacementholds", None);
    let line = |hold: &Value| format!("{} {}", namespace(hold), hold["spec"]);
    holds.iter().map(line).collect()
}

/// What is wrong with a world while the controller is absent: a machine beyond the only one of its group, or another control plane.
/// Cluster API waits for the controller with a Machine that the user has deleted.
pub(super) fn replaced(world: &World, expected: &EndState) -> Vec<String> {
    let machines = world.machines();
    let mut problems = Vec::new();
    for owner in owners(world) {
        let count = machines.iter().filter(|machine| owns(&owner, machine)).count();
        if count > 1 {
            problems.push(format!("{} has {count} Machines", name(&owner)));
        }
    }
    for machine in machines.iter().filter(|machine| !is_worker(machine)) {
        if !expected.machines.contains_key(name(machine)) {
            problems.push(format!("Machine {} is another one", name(machine)));
        }
    }
    problems
}

/// What is wrong at the end of a run with the controller: each group has the machine that it is to have, and each ReplacementHold
/// is as expected. The name of a worker depends on how often Cluster API has tried to create it.
pub(super) fn problems(world: &World, expected: &EndState) -> Vec<String> {
    let mut problems = replaced(world, expected);
    let (found, wanted) = (world.machines().len(), expected.machines.len());
    if found != wanted || !world.is_ready() {
        problems.push(format!("{found} of {wanted} machines are there, or one is not available"));
    }
    if shown(world) != expected.holds {
        problems.push(format!(
            "ReplacementHolds are {:?}, expected {:?}",
            shown(world),
            expected.holds
        ));
    }
    problems
}
