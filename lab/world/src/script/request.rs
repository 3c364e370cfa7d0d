//! UpdateMachine requests that Cluster API sent, to send them again: a retry may arrive long after
//! the request was answered, even from a Cluster API that has lost its leadership.

use std::collections::BTreeMap;

use lab_cluster_api_shell::for_hooks;
use refit_cluster_api::kinds::update_hook_pending;
use refit_kinds::{
    hooks,
    json::{annotation, annotations, name, namespace, text},
    keys,
    refit::Until,
};
use serde_json::{Value, json};

use super::{
    command::{Wrong, wrong},
    session::Session,
};
use crate::world::{World, by_hand};

/// The first request of each update, oldest first, by the Machine's name.
#[derive(Debug, Default)]
pub(super) struct Requests(BTreeMap<String, Vec<Value>>);

impl Requests {
    /// Remembers the requests that Cluster API can send now.
    pub(super) fn learn(&mut self, world: &World) {
        for machine in world.machines() {
            // Most Machines have no pending hook, and this looks at all of them each second.
            let has_hooks = annotation(&machine, keys::PENDING_HOOKS).is_some();
            if !has_hooks || !update_hook_pending(&annotations(&machine)) {
                continue;
            }
            let sent = self.0.entry(name(&machine).to_owned()).or_default();
            let version = text(&machine, "/spec/version");
            let known =
                sent.iter().any(|one| text(one, "/desired/machine/spec/version") == version);
            if !known {
                sent.push(request(world, &machine));
            }
        }
    }

    /// Sends the first request about a Machine again and returns the answer's message.
    pub(super) async fn repeat(&self, world: &World, machine: &str) -> Result<String, Wrong> {
        let request = self.0.get(machine).and_then(|sent| sent.first()).ok_or_else(|| {
            wrong("repeat", machine, "a Machine for which UpdateMachine was called before")
        })?;
        let path = hooks::path("UpdateMachine", Some("update-machine"));
        let (status, answer) = world
            .call_hook_server(&path, request)
            .await
            .map_err(|error| wrong("repeat", format!("{error:#}"), "a controller that answers"))?;
        Ok(format!("{status}: {}", text(&answer, "/message")))
    }
}

/// Creates the next NodeUpdate of a Machine as an operator does.
pub(super) async fn update_by_hand(
    session: &Session,
    machine: &str,
    version: &str,
    until: Until,
) -> Result<(), Wrong> {
    let real = session.names.real(machine);
    let machines = session.world.machines();
    let found = machines.iter().find(|one| name(one) == real);
    let found = found.ok_or_else(|| wrong("update", machine, "a Machine"))?;
    by_hand::create(&session.world, found, version, until).await.map_err(|error| {
        wrong("update", error.to_string(), "a NodeUpdate that the API server accepts")
    })
}

fn request(world: &World, machine: &Value) -> Value {
    let mirror = &world.inner.management_mirror;
    let part = |pointer: &str| {
        let reference = machine.pointer(pointer).unwrap_or(&Value::Null);
        mirror.referred(reference, namespace(machine)).map(|(_, object)| for_hooks(&object))
    };
    json!({
        "apiVersion": hooks::API_VERSION,
        "kind": "UpdateMachineRequest",
        "desired": {
            "machine": for_hooks(machine),
            "infrastructureMachine": part("/spec/infrastructureRef"),
            "bootstrapConfig": part("/spec/bootstrap/configRef"),
        },
    })
}
