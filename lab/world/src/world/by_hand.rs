//! NodeUpdates that an operator creates by hand.

use refit_controller::NewNodeUpdate;
use refit_kinds::{
    json::{name, namespace, text},
    refit::{Goal, MachineRef, Origin, Until, ordinal_of},
};
use serde_json::Value;

use super::World;
use crate::direct::{Call, Direct, DirectError, USER};

/// Creates the next NodeUpdate of a Machine, with the goal that Cluster API's hook would request. It goes as
/// far as `until` allows.
pub(crate) async fn create(
    world: &World,
    machine: &Value,
    version: &str,
    until: Until,
) -> Result<(), DirectError> {
    let Ok(goal) = version.parse().map(Goal::of_version) else {
        tracing::warn!(version, "not a Kubernetes version");
        return Ok(());
    };
    let new = NewNodeUpdate {
        namespace: namespace(machine).to_owned(),
        machine: MachineRef {
            name: name(machine).to_owned(),
            uid: text(machine, "/metadata/uid").into(),
        },
        origin: Origin::Task,
        annotation: None,
        until,
        parts: None,
        bundle: None,
        goal,
    };
    let known = world.node_updates();
    let last = known.iter().filter_map(|update| ordinal_of(name(update), name(machine))).max();
    let update = refit_controller::node_update(&new, last.unwrap_or_default() + 1);
    let body = serde_json::to_value(update).expect("a NodeUpdate is JSON");
    let path = format!("/apis/refit.dev/v1alpha1/namespaces/{}/nodeupdates", namespace(machine));
    let api = Direct::new(world.management().clone(), USER);
    api.send(Call::create(path, body)).await.map(|_| ())
}
