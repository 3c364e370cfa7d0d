//! NodeUpdates that an operator creates by hand.

use refit_controller::NewNodeUpdate;
use refit_kinds::{
    json::{name, namespace, text},
    refit::{MachineRef, Origin},
};
use serde_json::Value;

use super::World;
use crate::direct::{Call, Direct, DirectError, USER};

/// Creates the first NodeUpdate of a Machine, with the goal that Cluster API's hook will request.
pub(crate) async fn create(
    world: &World,
    machine: &Value,
    version: &str,
) -> Result<(), DirectError> {
    let mut wanted = machine.clone();
    wanted["spec"]["version"] = Value::from(version);
    let mirror = &world.inner.management_mirror;
    let part = |pointer: &str| {
        let reference = machine.pointer(pointer).unwrap_or(&Value::Null);
        mirror.referred(reference, namespace(machine)).map(|(_, object)| object)
    };
    let bootstrap = part("/spec/bootstrap/configRef");
    let infrastructure = part("/spec/infrastructureRef");
    let infrastructure = infrastructure.as_deref().unwrap_or(&Value::Null);
    let Ok(goal) = refit_core::change::goal(&wanted, bootstrap.as_deref(), infrastructure) else {
        tracing::warn!(machine = name(machine), "failed to derive a goal from the Machine");
        return Ok(());
    };
    let new = NewNodeUpdate {
        namespace: namespace(machine).to_owned(),
        machine: MachineRef {
            name: name(machine).to_owned(),
            uid: text(machine, "/metadata/uid").into(),
        },
        origin: Origin::Task,
        goal,
    };
    let update = refit_controller::node_update(&new, 1);
    let body = serde_json::to_value(update).expect("a NodeUpdate is JSON");
    let path = format!("/apis/refit.dev/v1alpha1/namespaces/{}/nodeupdates", namespace(machine));
    let api = Direct::new(world.management().clone(), USER);
    api.send(Call::create(path, body)).await.map(|_| ())
}
