//! The condition MachineUpToDate on a Machine, in the form of the version that Cluster API serves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{conditions::MACHINE_UP_TO_DATE, keys};
use refit_runtime::{apply, client::Served};
use serde_json::{Value, json};

use crate::context::Context;

/// Sets the condition on a Machine, or removes it.
pub(crate) async fn write(
    ctx: &Context,
    machine: &Machine,
    condition: Option<&Condition>,
) -> kube::Result<()> {
    let namespace = machine.namespace().unwrap_or_default();
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &namespace);
    let name = machine.name_any();
    let conditions = condition.map(|condition| json!({ "conditions": [condition] }));
    let status = match ctx.served.of(&Machine::kind(&())) {
        Served::Newer | Served::Missing => conditions,
        Served::Older => {
            write_older(ctx, machine, condition).await?;
            conditions.map(|conditions| json!({ "v1beta2": conditions }))
        }
    };
    // Applying an empty status removes the condition that Refit applied before.
    let status = status.unwrap_or_else(|| json!({}));
    let written = apply::apply_status(&api, keys::MANAGER, &name, &status).await?;
    ctx.stores.machines.insert(written);
    Ok(())
}

/// Writes the condition among those of v1beta1. Their list has one owner: it is read and written as a whole.
async fn write_older(
    ctx: &Context,
    machine: &Machine,
    condition: Option<&Condition>,
) -> kube::Result<()> {
    let namespace = machine.namespace().unwrap_or_default();
    let mut kind = ApiResource::erase::<Machine>(&());
    kind.api_version = ctx.served.api_version(&kind.api_version, &kind.kind);
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), &namespace, &kind);
    let live = api.get(&machine.name_any()).await?;
    let before = live.data.pointer("/status/conditions").and_then(Value::as_array);
    let before = before.cloned().unwrap_or_default();
    let next = with_condition(&before, condition);
    if live.metadata.uid != machine.metadata.uid || next == before {
        return Ok(());
    }
    let version = live.resource_version().unwrap_or_default();
    let status = json!({ "conditions": next });
    apply::swap_status(&api, &live.name_any(), &version, &status).await.map(drop)
}

/// The conditions of v1beta1 with this one, and those of others as they are.
fn with_condition(before: &[Value], condition: Option<&Condition>) -> Vec<Value> {
    let others = before.iter().filter(|known| known["type"] != MACHINE_UP_TO_DATE);
    others.cloned().chain(condition.map(older_form)).collect()
}

/// The condition as v1beta1 has it: a severity for what is false, no generation, and nothing empty.
fn older_form(condition: &Condition) -> Value {
    let mut older = json!(condition);
    if let Some(fields) = older.as_object_mut() {
        fields.remove("observedGeneration");
        fields.retain(|_, value| value != "");
        if condition.status == "False" {
            fields.insert("severity".to_owned(), "Error".into());
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    const SINCE: &str = "2026-01-01T00:00:00Z";

    fn condition(status: &str, message: &str) -> Condition {
        Condition {
            type_: MACHINE_UP_TO_DATE.to_owned(),
            status: status.to_owned(),
            reason: "R".to_owned(),
            message: message.to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(SINCE.parse().unwrap()),
        }
    }

    #[test]
    fn conditions_of_others_are_kept() {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": SINCE});
        let before = [ready.clone()];
        let failed = with_condition(&before, Some(&condition("False", "why")));
        let own = json!({
            "type": MACHINE_UP_TO_DATE, "status": "False", "severity": "Error", "reason": "R",
            "message": "why", "lastTransitionTime": SINCE,
        });
        assert_eq!(failed, [ready.clone(), own]);
        let waits = with_condition(&failed, Some(&condition("Unknown", "why")));
        assert_eq!((waits.len(), &waits[0], &waits[1]["status"]), (2, &ready, &json!("Unknown")));
        assert_eq!(with_condition(&failed, None), before);
    }

    #[test]
    fn only_a_false_condition_has_a_severity() {
        let older = older_form(&condition("Unknown", ""));
        assert_eq!(
            older,
            json!({"type": MACHINE_UP_TO_DATE, "status": "Unknown", "reason": "R", "lastTransitionTime": SINCE})
        );
    }
}
