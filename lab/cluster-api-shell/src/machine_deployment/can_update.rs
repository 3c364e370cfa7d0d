//! Whether the Machines of an old MachineSet can be updated in place
//! (`docs/facts/machine-deployment.md#canupdatemachineset`).

use std::sync::Arc;

use refit_cluster_api::kinds::ContractRef;
use refit_cluster_api::rollout::RolloutIntent;
use refit_runtime::ObjectKey;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Group;
use crate::{
    context::{Context, lock},
    error::Error,
    hooks::{MachineSetVerdict, for_hooks, only_one},
    templates,
};

const HOOK: &str = "CanUpdateMachineSet";

/// Asks the extension whether Machines can move from one MachineSet to another in place.
///
/// Positive and negative results are cached for a day. An error is not cached, and stops the
/// rollout.
pub(super) async fn ask(
    context: &Arc<Context>,
    group: &Group,
    plan: &RolloutIntent,
    old: &str,
    new: &str,
) -> Result<bool, Error> {
    let Some(extension) = only_one(context, HOOK, &group.namespace)? else {
        return Ok(false);
    };
    let pair = [old, new].map(|name| ObjectKey::new(&group.namespace, name));
    let now = context.now();
    if let Some(answer) = lock(&context.decisions).get(&pair[0], &pair[1], now) {
        return Ok(answer);
    }
    let current = objects(context, group, plan, old).await?;
    let desired = objects(context, group, plan, new).await?;
    let with_bootstrap = |objects: &Value| objects.get("bootstrapConfigTemplate").is_some();
    let answer = if with_bootstrap(&current) == with_bootstrap(&desired) {
        let request = json!({"current": current, "desired": desired});
        let answer = extension.call(context, HOOK, request).await?;
        let uncovered = MachineSetVerdict::uncovered(&current, &desired, &answer)?;
        if !uncovered.is_empty() {
            tracing::info!(
                reason = uncovered.join(", "),
                "MachineSet {old} cannot be updated in-place by extensions"
            );
        }
        uncovered.is_empty()
    } else {
        false
    };
    let [old, new] = pair;
    lock(&context.decisions).put(old, new, answer, now);
    Ok(answer)
}

/// The templates of a MachineSet, as the hook receives them.
async fn objects(
    context: &Context,
    group: &Group,
    plan: &RolloutIntent,
    name: &str,
) -> Result<Value, Error> {
    let mut set = group.set_intent(plan, name);
    let resource = context.sets.resource();
    set["apiVersion"] = json!(resource.api_version);
    set["kind"] = json!(resource.kind);
    let spec = &set["spec"]["template"]["spec"];
    let infrastructure = reference(&spec["infrastructureRef"])
        .ok_or_else(|| Error::Invalid(format!("MachineSet {name} has no infrastructureRef")))?;
    let infrastructure = templates::fetch(context, &group.namespace, &infrastructure).await?;
    let bootstrap = reference(&spec["bootstrap"]["configRef"]);
    let mut objects = json!({
        "machineSet": for_hooks(&set),
        "infrastructureMachineTemplate": for_hooks(&infrastructure.json),
    });
    if let Some(bootstrap) = bootstrap {
        let bootstrap = templates::fetch(context, &group.namespace, &bootstrap).await?;
        objects["bootstrapConfigTemplate"] = for_hooks(&bootstrap.json);
    }
    Ok(objects)
}

fn reference(value: &Value) -> Option<ContractRef> {
    ContractRef::deserialize(value).ok()
}
