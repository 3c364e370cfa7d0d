//! Whether one control plane Machine can be updated in place
//! (`docs/facts/control-plane.md#canupdatemachine`).

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::{
    kinds::Machine,
    kubeadm_config::{self, Entry},
};
use refit_kinds::keys::{self, MANAGER_KUBEADM_CONTROL_PLANE};
use refit_runtime::ObjectKey;
use serde_json::{Value, json};

use super::Plane;
use crate::{
    cache::Cache,
    context::Context,
    error::Error,
    hooks::{MachineVerdict, for_hooks, only_one},
    live::{Bare, Live},
    machine::Parts,
    templates,
};

const HOOK: &str = "CanUpdateMachine";

/// Calls the extension. A negative result replaces the machine; an error stops the rollout.
pub(super) async fn ask(context: &Arc<Context>, plane: &Plane, name: &str) -> Result<bool, Error> {
    let key = ObjectKey::new(&plane.namespace, name);
    let Some(machine) = context.machines.get(&key) else {
        return Ok(false);
    };
    let Some(extension) = only_one(context, HOOK, &plane.namespace)? else {
        tracing::info!("Machine {name} cannot be updated in-place: no extension is registered");
        return Ok(false);
    };
    let Some((current, wanted)) = request(context, plane, &machine).await? else {
        return Ok(false);
    };
    let request = json!({"current": current, "desired": wanted});
    let answer = extension.call(context, HOOK, request).await?;
    let uncovered = MachineVerdict::uncovered(&current, &wanted, &answer)?;
    if !uncovered.is_empty() {
        tracing::info!(
            reason = uncovered.join(", "),
            "Machine {name} cannot be updated in-place by extensions"
        );
    }
    Ok(uncovered.is_empty())
}

/// Current and desired objects; `None` if the machine cannot be updated in place, whatever an
/// extension returns.
async fn request(
    context: &Arc<Context>,
    plane: &Plane,
    machine: &Live<Machine>,
) -> Result<Option<(Value, Value)>, Error> {
    let parts = Parts::load(context, machine).await?;
    let Some(bootstrap) = parts.bootstrap.as_ref() else {
        return Ok(None);
    };
    let (Some(infrastructure), Some(config)) = (&parts.infrastructure.object, &bootstrap.object)
    else {
        return Ok(None);
    };
    if !infrastructure.annotations().contains_key(keys::CLONED_FROM_NAME) {
        return Ok(None);
    }
    let manager = MANAGER_KUBEADM_CONTROL_PLANE;
    let intent = with_uid(plane.desired().updated_machine(machine.json()), machine.uid_text());
    let wanted_machine = context.dry_run(&context.machines, manager, intent).await;
    let attempt = format!("dry-run the desired Machine {}", machine.name_any());
    let wanted_machine = wanted_machine.map_err(Error::api(attempt))?;

    let template = plane.desired().infrastructure_template();
    let template = templates::fetch(context, &plane.namespace, &template).await?;
    let name = infrastructure.name_any();
    let intent = plane.desired().infrastructure(&template, &name, false);
    let intent = with_uid(intent, infrastructure.uid_text());
    let cache = &parts.infrastructure.cache;
    let now = with_spec(&intent, infrastructure.at("/spec"));
    let Some(current_infrastructure) = try_infrastructure(context, cache, now, "current").await?
    else {
        return Ok(None);
    };
    let Some(wanted_infrastructure) = try_infrastructure(context, cache, intent, "desired").await?
    else {
        return Ok(None);
    };

    let (current_config, wanted_config) = configs(plane, &bootstrap.cache, config);
    let current = json!({
        "machine": for_hooks(&typed(machine.json(), context.machines.resource())),
        "infrastructureMachine": for_hooks(&typed(&current_infrastructure, cache.resource())),
        "bootstrapConfig": current_config,
    });
    let wanted = json!({
        "machine": for_hooks(&typed(&wanted_machine, context.machines.resource())),
        "infrastructureMachine": for_hooks(&typed(&wanted_infrastructure, cache.resource())),
        "bootstrapConfig": wanted_config,
    });
    Ok(Some((current, wanted)))
}

/// Dry-runs the desired infrastructure machine. If the server rejects it, for example because of
/// immutable fields, the machine cannot be updated.
async fn try_infrastructure(
    context: &Context,
    cache: &Cache<Bare>,
    intent: Value,
    which: &str,
) -> Result<Option<Value>, Error> {
    match context.dry_run(cache, MANAGER_KUBEADM_CONTROL_PLANE, intent).await {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_invalid() || status.is_forbidden() => {
            tracing::info!(
                reason = status.message,
                "server side apply dry-run for {which} InfraMachine failed"
            );
            Ok(None)
        }
        Err(error) => {
            let attempt = format!("dry-run the {which} infrastructure machine");
            Err(Error::api(attempt)(error))
        }
    }
}

/// Both KubeadmConfigs, without the fields that Cluster API changes by itself; the desired one is
/// for a joining machine.
fn configs(plane: &Plane, cache: &Cache<Bare>, live: &Live<Bare>) -> (Value, Value) {
    let mut wanted = plane.desired().bootstrap(&live.name_any(), Entry::Join, false);
    let mut current_spec = live.at("/spec").clone();
    kubeadm_config::prepare(&mut wanted["spec"], &mut current_spec, Entry::Join);
    let mut current = live.json().clone();
    // Labels and annotations are updated in place anyway, so they are no difference.
    for key in ["labels", "annotations"] {
        current["metadata"][key] = wanted["metadata"][key].clone();
    }
    current["spec"] = current_spec;
    (for_hooks(&typed(&current, cache.resource())), for_hooks(&typed(&wanted, cache.resource())))
}

fn with_uid(mut intent: Value, uid: &str) -> Value {
    intent["metadata"]["uid"] = json!(uid);
    intent
}

fn with_spec(intent: &Value, spec: &Value) -> Value {
    let mut object = intent.clone();
    object["spec"] = if spec.is_null() { json!({}) } else { spec.clone() };
    object
}

fn typed(object: &Value, resource: &kube::discovery::ApiResource) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!(resource.api_version);
    object["kind"] = json!(resource.kind);
    object
}
