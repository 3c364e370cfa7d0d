//! An external updater: it changes the memory of virtual machines in place. Copy it and replace
//! `set_memory`, which stands in for the API of a hypervisor.
//!
//! A server of an Updater speaks two of Cluster API's hooks: Discovery, which names the handler of
//! UpdateMachine, and UpdateMachine itself. Refit calls UpdateMachine again and again until it answers
//! Success without `retryAfterSeconds`. So a handler looks at the machine, does the next step, and answers
//! soon: it keeps nothing in memory, and may be killed at any time.

use axum::{Json, Router, body::Bytes, extract::State, routing::post};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::pinned_kind,
};
use serde_json::{Value, json};

/// apiVersion of all hooks.
const HOOKS: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// The memory that a machine has, in MiB. A real provider reports it in the status of its machine.
const HAS: &str = "memory.example/has";
/// The memory that a machine is being given.
const GETS: &str = "memory.example/gets";

/// Serves the hooks. Its two paths are fixed: `/HOOKS/discovery`, and `/HOOKS/updatemachine/` with the
/// handler that Discovery names.
pub fn router(client: Client) -> Router {
    Router::new()
        .route(&format!("/{HOOKS}/discovery"), post(discovery))
        .route(&format!("/{HOOKS}/updatemachine/memory"), post(update_machine))
        .with_state(client)
}

async fn discovery() -> Json<Value> {
    Json(json!({
        "apiVersion": HOOKS,
        "kind": "DiscoveryResponse",
        "status": "Success",
        "handlers": [{
            "name": "memory",
            "requestHook": { "apiVersion": HOOKS, "hook": "UpdateMachine" },
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
        }],
    }))
}

/// What is to be done with a machine.
enum Progress {
    /// It is as desired.
    Done,
    /// It is on its way: ask again.
    Underway { message: String, seconds: u32 },
}

async fn update_machine(State(client): State<Client>, body: Bytes) -> Json<Value> {
    let (status, message, seconds) = match work(&client, &body).await {
        Ok(Progress::Done) => ("Success", String::new(), 0),
        Ok(Progress::Underway { message, seconds }) => ("Success", message, seconds),
        Err(error) => ("Failure", format!("{error:#}"), 0),
    };
    Json(json!({
        "apiVersion": HOOKS,
        "kind": "UpdateMachineResponse",
        "status": status,
        "message": message,
        "retryAfterSeconds": seconds,
    }))
}

/// Brings one machine a step closer to the desired state in a request.
async fn work(client: &Client, body: &[u8]) -> anyhow::Result<Progress> {
    let request: Value = serde_json::from_slice(body)?;
    let machine = &request["desired"]["infrastructureMachine"];
    let Some(wanted) = machine["spec"]["memoryMiB"].as_i64() else {
        anyhow::bail!("the infrastructure machine has no spec.memoryMiB");
    };
    set_memory(client, machine, wanted).await
}

/// Gives a machine its memory. A hypervisor would take two calls and some time; here, two annotations of
/// the infrastructure machine stand in for it.
async fn set_memory(client: &Client, machine: &Value, wanted: i64) -> anyhow::Result<Progress> {
    let text = |pointer: &str| machine.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or_default();
    let kind = GroupVersionKind::gvk(group, version, text("/kind"));
    let (resource, _) = pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), text("/metadata/namespace"), &resource);
    let name = text("/metadata/name");

    // The request is a snapshot. What is so now decides what to do next.
    let live = api.get(name).await?;
    let annotation = |key: &str| live.metadata.annotations.as_ref()?.get(key).cloned();
    let wanted = wanted.to_string();
    if annotation(HAS).as_ref() == Some(&wanted) {
        return Ok(Progress::Done);
    }
    let (changes, progress) = if annotation(GETS).as_ref() == Some(&wanted) {
        (json!({ HAS: wanted, GETS: null }), Progress::Done)
    } else {
        let message = format!("giving the machine {wanted} MiB of memory");
        (json!({ GETS: wanted }), Progress::Underway { message, seconds: 10 })
    };
    let body = json!({ "metadata": { "annotations": changes } });
    api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(progress)
}
