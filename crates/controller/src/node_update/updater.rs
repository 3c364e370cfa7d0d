//! Carries out the part of an Updater: asks or calls its server, or reads whether the objects show what it has
//! done.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use refit_cluster_api::kinds::{ContractRef, Machine};
use refit_core::{
    change::{
        secrets::without_secrets,
        updaters::{accepted, claims_contents, claims_of_kind, hash_of_claimed},
        verify::{Verified, reads, verified},
    },
    node::{Called, after_ask, after_call, after_verification, begun},
};
use refit_kinds::{
    canonical::K8SD,
    hooks::MachineObjects,
    refit::{
        MachineUid, NodeUpdate, PartState, PartStatus, ProviderPart, Updater, UpdaterHook,
        UpdaterTemplate,
    },
};
use refit_runtime::{ObjectKey, foreign::ForeignObject};
use serde_json::{Value, json};

use super::{k8sd, look::Look};
use crate::{
    api_error::{cause, is_silence},
    context::Context,
    providers::template_of,
};

/// The state of an Updater's part after the question whether the Updater can be called: it is valid, what it gets
/// can be read, and its server answers.
pub(super) async fn asked(ctx: &Context, look: &Look, name: &str) -> kube::Result<PartStatus> {
    let part = look.snapshot.update.status.clone().unwrap_or_default().part(name);
    if name == K8SD {
        return Ok(k8sd::asked(ctx, look, &part).await);
    }
    let updater = ctx.stores.updaters.get(&ObjectKey::new("", name));
    let answered = match provider_part(look, name) {
        Some(part) => has_template(ctx, look, &part.template).await.map(Ok),
        None => match prepared(ctx, look, name, updater.as_deref()).await {
            Ok((hook, _)) => Ok(ctx.updater_servers.ask(name, &hook).await),
            Err(unread) => Err(unread),
        },
    };
    let answer = match answered {
        Ok(answer) => answer,
        Err(Unread::Refused(why)) => Err(why),
        Err(Unread::Silent(error)) => return Err(error),
    };
    Ok(after_ask(&part, answer, ctx.clock.now_seconds()))
}

/// What a provider does for an Updater in this update.
fn provider_part<'a>(look: &'a Look, updater: &str) -> Option<&'a ProviderPart> {
    let mut parts = look.snapshot.update.spec.provider_parts();
    parts.find(|part| part.updater == updater)?.template.as_ref()
}

async fn has_template(
    ctx: &Context,
    look: &Look,
    template: &UpdaterTemplate,
) -> Result<(), Unread> {
    let object = template_of(&look.snapshot.update, template);
    let what = format!("{} {}", object.kind, object.name);
    let found = ctx.foreign.read(&ctx.client, &object).await;
    found.map(drop).map_err(|error| Unread::of(&what, error))
}

/// The next state of an Updater's part. That it begins is written before its first call: after a crash it is
/// known that the machine may have been changed.
pub(super) async fn advanced(ctx: &Context, look: &Look, name: &str) -> kube::Result<PartStatus> {
    let status = look.snapshot.update.status.clone().unwrap_or_default();
    let part = status.part(name);
    if name == K8SD {
        return Ok(k8sd::advanced(ctx, look, &part).await);
    }
    let updater = ctx.stores.updaters.get(&ObjectKey::new("", name));
    let now = || ctx.clock.now_seconds();
    Ok(match part.state {
        PartState::Pending | PartState::Ongoing => {
            let node = look.seen().and_then(|seen| seen.node());
            let boot_id = node.map(|node| node.boot_id.clone()).unwrap_or_default();
            let boot_id = if part.boot_id.is_empty() { boot_id } else { part.boot_id.clone() };
            PartStatus { boot_id, ..begun(&part, now()) }
        }
        PartState::Verifying => {
            let shows = match &updater {
                Some(updater) => shows(ctx, look, updater).await?,
                None => Err(format!("Updater {name} does not exist")),
            };
            after_verification(&part, shows, now())
        }
        PartState::Running | PartState::Done | PartState::Unverified | PartState::Left
            if let Some(provider) = provider_part(look, name) =>
        {
            let has_version = look.snapshot.update.spec.goal.kubernetes_version.is_some();
            match updater.map(|updater| !updater.spec.verify.is_empty()) {
                None => {
                    let message =
                        format!("Updater {name}, which has the verification, does not exist");
                    after_call(&part, &Called::Failed { message }, false, now())
                }
                // The kubelet shows the version.
                Some(false) if provider.brings_version && has_version => {
                    after_verification(&part, Ok(()), now())
                }
                Some(is_verified) => after_call(&part, &Called::Done, is_verified, now()),
            }
        }
        PartState::Running | PartState::Done | PartState::Unverified | PartState::Left => {
            let (called, hash) = call(ctx, look, name, updater.as_deref()).await?;
            let is_verified = updater.is_some_and(|updater| !updater.spec.verify.is_empty());
            let next = after_call(&part, &called, is_verified, now());
            PartStatus { hash: hash.unwrap_or(part.hash), ..next }
        }
    })
}

/// What a call of an Updater needs: its server, and what the server gets.
async fn prepared(
    ctx: &Context,
    look: &Look,
    name: &str,
    updater: Option<&Updater>,
) -> Result<(UpdaterHook, MachineObjects), Unread> {
    let refused = |why: String| Unread::Refused(format!("Updater {name} {why}"));
    let updater = updater.ok_or_else(|| refused("does not exist".to_owned()))?;
    accepted(updater).map_err(|why| refused(format!("is not valid: {why}")))?;
    let hook = updater.spec.hook.clone().ok_or_else(|| refused("has no spec.hook".to_owned()))?;
    Ok((hook, desired(ctx, &look.snapshot.update, updater).await?))
}

/// Calls the server; with the hash of what it was called with.
async fn call(
    ctx: &Context,
    look: &Look,
    name: &str,
    updater: Option<&Updater>,
) -> kube::Result<(Called, Option<String>)> {
    let (hook, desired) = match prepared(ctx, look, name, updater).await {
        Ok(prepared) => prepared,
        Err(Unread::Silent(error)) => return Err(error),
        Err(Unread::Refused(message)) => return Ok((Called::Failed { message }, None)),
    };
    // The write that follows is fenced; the call cannot be.
    if !ctx.leadership.is_held() {
        let message = "the call is left to the next leader".to_owned();
        return Ok((Called::Again { message, seconds: 1 }, None));
    }
    let hash = {
        let objects = [&desired.machine, &desired.infrastructure_machine];
        let all: Vec<&Value> = objects.into_iter().chain(&desired.bootstrap_config).collect();
        updater.and_then(|updater| hash_of_claimed(updater, &all))
    };
    let started = ctx.clock.now();
    let called = ctx.updater_servers.update(name, &hook, desired).await;
    ctx.metrics.updater_called(name, &called, ctx.clock.elapsed(started));
    let node_update = look.snapshot.update.metadata.name.as_deref().unwrap_or_default();
    match &called {
        Called::Done => tracing::info!(updater = name, node_update, "Updater has ended"),
        Called::Again { .. } => tracing::debug!(updater = name, node_update, "Updater is at work"),
        Called::Failed { message } => {
            tracing::warn!(updater = name, node_update, %message, "Updater fails");
        }
    }
    Ok((called, hash))
}

/// Why an object could not be read.
enum Unread {
    /// The API server did not answer: the request is repeated.
    Silent(kube::Error),
    /// Its words.
    Refused(String),
}

impl Unread {
    fn of(what: &str, error: kube::Error) -> Self {
        if is_silence(&error) && matches!(error, kube::Error::Api(_) | kube::Error::Service(_)) {
            return Self::Silent(error);
        }
        Self::Refused(format!("{what} cannot be read: {}", cause(&error)))
    }
}

/// What an Updater gets: the whole Machine and infrastructure machine, because a server reads missing fields
/// as removals; the bootstrap config only if it claims some of it, without secrets.
async fn desired(
    ctx: &Context,
    update: &NodeUpdate,
    updater: &Updater,
) -> Result<MachineObjects, Unread> {
    let machine = read_machine(ctx, update).await?;
    let spec = typed_spec(&machine)?;
    let infrastructure = read_part(ctx, update, &spec.infrastructure_ref).await?;
    let config = &spec.bootstrap.config_ref;
    let bootstrap = match config {
        Some(config) if claims_of_kind(updater, &config.api_group, &config.kind) => {
            let whole = read_part(ctx, update, config).await?;
            let contents = claims_contents(updater, &config.api_group, &config.kind);
            Some(without_secrets(&as_desired(whole), contents))
        }
        Some(_) | None => None,
    };
    Ok(MachineObjects {
        machine: as_desired(machine),
        infrastructure_machine: as_desired(infrastructure),
        bootstrap_config: bootstrap,
    })
}

fn typed_spec(machine: &Value) -> Result<refit_cluster_api::kinds::MachineSpec, Unread> {
    let spec = serde_json::from_value(machine["spec"].clone());
    spec.map_err(|error| Unread::Refused(format!("the Machine's spec cannot be read: {error}")))
}

/// The desired state of an object: without its status and its managed fields.
fn as_desired(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

async fn read_machine(ctx: &Context, update: &NodeUpdate) -> Result<Value, Unread> {
    let wanted = &update.spec.machine_ref;
    let what = format!("Machine {}", wanted.name);
    let resource = ApiResource::erase::<Machine>(&());
    let namespace = update.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), namespace, &resource);
    let found = api.get(&wanted.name).await.map_err(|error| Unread::of(&what, error))?;
    if MachineUid::of(&found.metadata) != wanted.uid {
        return Err(Unread::Refused(format!("{what} was replaced by another one")));
    }
    let mut found = serde_json::to_value(found)
        .map_err(|error| Unread::Refused(format!("{what} cannot be read: {error}")))?;
    found["apiVersion"] = resource.api_version.into();
    found["kind"] = resource.kind.into();
    Ok(found)
}

async fn read_part(
    ctx: &Context,
    update: &NodeUpdate,
    reference: &ContractRef,
) -> Result<Value, Unread> {
    let ContractRef { api_group, kind, name } = reference;
    let object = ForeignObject {
        group: api_group.clone(),
        version: None,
        kind: kind.clone(),
        namespace: update.metadata.namespace.clone().unwrap_or_default(),
        name: name.clone(),
    };
    let found = ctx.foreign.read(&ctx.client, &object).await;
    found.map_err(|error| Unread::of(&format!("{kind} {name}"), error))
}

/// Whether the objects show what an Updater has done; otherwise why not.
async fn shows(ctx: &Context, look: &Look, updater: &Updater) -> kube::Result<Result<(), String>> {
    let expressions = &updater.spec.verify;
    let update = &look.snapshot.update;
    let read = async {
        let machine = read_machine(ctx, update).await?;
        let infrastructure_machine = if reads(expressions, "infrastructureMachine") {
            read_part(ctx, update, &typed_spec(&machine)?.infrastructure_ref).await?
        } else {
            json!({})
        };
        let node = if reads(expressions, "node") { read_node(ctx, look).await? } else { json!({}) };
        Ok(Verified { machine, infrastructure_machine, node })
    };
    match read.await {
        Ok(objects) => Ok(verified(expressions, &objects)),
        Err(Unread::Silent(error)) => Err(error),
        Err(Unread::Refused(why)) => Ok(Err(why)),
    }
}

async fn read_node(ctx: &Context, look: &Look) -> Result<Value, Unread> {
    let name = look.seen().map(|seen| seen.node_name.to_string()).unwrap_or_default();
    let what = format!("Node {name}");
    let refused = |why: String| Unread::Refused(format!("{what} cannot be read: {why}"));
    let cluster =
        look.cluster.as_ref().ok_or_else(|| refused("its cluster is unknown".to_owned()))?;
    let client: Client = ctx
        .workloads
        .client(&cluster.key.namespace, &cluster.key.name)
        .await
        .map_err(|error| refused(error.to_string()))?;
    let api: Api<Node> = Api::all(client);
    // A workload cluster that does not answer is shown like one that refuses: it is read again.
    let node = api.get(&name).await.map_err(|error| refused(cause(&error)))?;
    serde_json::to_value(node).map_err(|error| refused(error.to_string()))
}
