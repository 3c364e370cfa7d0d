//! A provider: a controller that changes the memory of virtual machines in place, by Refit's contract
//! (`docs/contract/`). Copy it and replace `set_memory`, which stands in for the API of a hypervisor.
//!
//! Refit makes a MemoryUpdate from a MemoryUpdateTemplate for each update of a machine, and opens its gates one
//! after the other. The provider does what it may, and reports how far it is. It keeps nothing in memory.

#![expect(clippy::duplicated_attributes, reason = "a kind has several printer columns")]

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Client, CustomResource, CustomResourceExt as _, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    discovery,
    runtime::{Controller, controller::Action, watcher},
};
use refit_kinds::refit::{Gate, ProviderProgress, ProviderSpec, ProviderStatus, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The memory that a machine has, in MiB. A real provider reports it in the status of its machine.
const HAS: &str = "memory.example/has";
/// The memory that a machine is being given.
const GETS: &str = "memory.example/gets";
/// When to look again at what is on its way, and after an error.
const AGAIN: Duration = Duration::from_secs(10);

/// What a MemoryUpdate is made from.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "memory.example", version = "v1", kind = "MemoryUpdateTemplate", namespaced)]
pub struct MemoryUpdateTemplateSpec {
    /// The spec of the MemoryUpdate, without the members of the contract.
    pub template: Template,
}

/// The part of a template that is copied.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Template {
    /// The settings of this provider.
    #[serde(default)]
    pub spec: Settings,
}

/// The settings of this provider.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The most that a machine may get, in MiB; 0 for any.
    #[serde(default)]
    pub most_mib: i64,
}

/// One update of the memory of one machine: the members of the contract, and settings.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "memory.example",
    version = "v1",
    kind = "MemoryUpdate",
    namespaced,
    status = "ProviderStatus",
    label("refit.dev/v1alpha1", "v1"),
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machineRef.name"),
    printcolumn(name = "Gate", type_ = "string", json_path = ".spec.gate"),
    printcolumn(name = "Passed", type_ = "string", json_path = ".status.passed"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Failure", type_ = "string", json_path = ".status.failureMessage")
)]
pub struct MemoryUpdateSpec {
    /// What Refit asks for.
    #[serde(flatten)]
    pub contract: ProviderSpec,
    /// The settings from the template.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The definitions of both kinds, for `kubectl apply`: JSON is YAML.
pub fn crds() -> serde_json::Result<String> {
    let crds = [MemoryUpdateTemplate::crd(), MemoryUpdate::crd()];
    let documents =
        crds.iter().map(|crd| Ok(format!("---\n{}\n", serde_json::to_string_pretty(crd)?)));
    documents.collect()
}

/// What keeps an update from getting on.
#[derive(Debug, thiserror::Error)]
enum Problem {
    /// Another try may help.
    #[error("{0:#}")]
    Passing(#[from] anyhow::Error),
    /// No try can help.
    #[error("{message}")]
    Lasting { reason: &'static str, message: String },
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        Self::Passing(error.into())
    }
}

/// Runs the controller until the future is dropped.
pub async fn run(client: Client) {
    let updates: Api<MemoryUpdate> = Api::all(client.clone());
    let on_error = |_: Arc<MemoryUpdate>, _: &kube::Error, _: Arc<Client>| Action::requeue(AGAIN);
    let controller = Controller::new(updates, watcher::Config::default());
    controller.run(reconcile, on_error, Arc::new(client)).for_each(|_| async {}).await;
}

/// Does the next step of one update, and reports where it is.
async fn reconcile(update: Arc<MemoryUpdate>, client: Arc<Client>) -> Result<Action, kube::Error> {
    // Nothing outside the machine is held for an update: there is nothing to clean up, and no finalizer.
    if update.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let before = update.status.clone().unwrap_or_default();
    // A failure that is not retriable is the end of the work.
    let has_failed = !before.failure_reason.is_empty() && !before.retriable;
    let mut status =
        ProviderStatus { observed_generation: update.metadata.generation, ..before.clone() };
    let mut action = Action::await_change();
    if !has_failed {
        status.failure_reason.clear();
        status.failure_message.clear();
        status.retriable = false;
        let (message, next) = match step(&client, &update, &mut status).await {
            Ok(Some(message)) => (message, Action::requeue(AGAIN)),
            Ok(None) => (String::new(), Action::await_change()),
            Err(problem) => {
                let (reason, retriable) = match &problem {
                    Problem::Passing(_) => ("NotReachable", true),
                    Problem::Lasting { reason, .. } => (*reason, false),
                };
                reason.clone_into(&mut status.failure_reason);
                status.failure_message = problem.to_string();
                status.retriable = retriable;
                (String::new(), Action::requeue(AGAIN))
            }
        };
        status.progress = Some(ProviderProgress { percent: percent(status.passed), message });
        action = next;
    }
    if status != before {
        let namespace = update.namespace().unwrap_or_default();
        let api: Api<MemoryUpdate> = Api::namespaced(Client::clone(&client), &namespace);
        // If Refit has changed the object since, the patch fails and the new order is read first.
        let version = json!({ "resourceVersion": update.metadata.resource_version });
        let body = Patch::Merge(json!({ "metadata": version, "status": cleared(&status) }));
        api.patch_status(&update.name_any(), &PatchParams::default(), &body).await?;
    }
    Ok(action)
}

fn percent(passed: Gate) -> i32 {
    match passed {
        Gate::Closed => 0,
        Gate::Stage => 10,
        Gate::Upgrade => 20,
        Gate::Disrupt => 100,
    }
}

/// A status in which a failure that has ended is removed by the patch.
fn cleared(status: &ProviderStatus) -> Value {
    let mut all = json!({ "failureReason": null, "failureMessage": null });
    if let (Some(all), Value::Object(members)) = (all.as_object_mut(), json!(status)) {
        all.extend(members);
    }
    all
}

/// Goes on as far as the gate allows. Returns what is on its way; `None` if there is nothing to do until the
/// spec changes.
async fn step(
    client: &Client,
    update: &MemoryUpdate,
    status: &mut ProviderStatus,
) -> Result<Option<String>, Problem> {
    let MemoryUpdateSpec { contract, settings } = &update.spec;
    if status.ready {
        return Ok(None);
    }
    if contract.stage == Stage::Abort && !status.past_no_return {
        // Before the gate Disrupt nothing was changed.
        status.ready = true;
        return Ok(None);
    }
    if contract.gate == Gate::Closed || contract.gate <= status.passed {
        return Ok(None);
    }
    // Read only while there is something to do: a Machine may go once it is updated.
    let machine = infrastructure(client, update).await?;
    let wanted = machine.data.pointer("/spec/memoryMiB").and_then(Value::as_i64);
    let Some(wanted) = wanted.filter(|mib| settings.most_mib == 0 || *mib <= settings.most_mib)
    else {
        let message = format!(
            "spec.memoryMiB of {} is {wanted:?}: set it, to {} at most (spec.mostMib of the template; 0 for any)",
            machine.name_any(),
            settings.most_mib
        );
        return Err(Problem::Lasting { reason: "NotPossible", message });
    };
    if contract.gate == Gate::Disrupt {
        // From the first change on, the machine gets all of its memory. That is noted before the change.
        if !status.past_no_return {
            status.past_no_return = true;
            return Ok(Some("the machine is ready for its memory".to_owned()));
        }
        if let Some(underway) = set_memory(client, &machine, wanted).await? {
            return Ok(Some(underway));
        }
        status.ready = true;
    }
    // All that has to be done before is to look whether it is possible.
    status.passed = contract.gate;
    Ok(None)
}

/// The infrastructure machine of the Machine, which must be the one that the update is for.
async fn infrastructure(client: &Client, update: &MemoryUpdate) -> Result<DynamicObject, Problem> {
    let wanted = &update.spec.contract.machine_ref;
    let namespace = update.namespace().unwrap_or_default();
    let gone = |message| Problem::Lasting { reason: "MachineGone", message };
    let of_core = api(client, "cluster.x-k8s.io", "Machine", &namespace).await?;
    let machine = of_core.get_opt(&wanted.name).await?;
    let machine = machine.filter(|machine| machine.uid().as_deref() == Some(&*wanted.uid));
    let machine = machine
        .ok_or_else(|| gone(format!("Machine {} is not there, or another one", wanted.name)))?;
    let reference = |member: &str| {
        let pointer = format!("/spec/infrastructureRef/{member}");
        machine.data.pointer(&pointer).and_then(Value::as_str).unwrap_or_default()
    };
    let api = api(client, reference("apiGroup"), reference("kind"), &namespace).await?;
    Ok(api.get(reference("name")).await?)
}

async fn api(
    client: &Client,
    group: &str,
    kind: &str,
    namespace: &str,
) -> Result<Api<DynamicObject>, Problem> {
    let found = discovery::group(client, group).await?;
    let (resource, _) = found
        .recommended_kind(kind)
        .ok_or_else(|| anyhow::anyhow!("the API server does not serve {kind} of {group}"))?;
    Ok(Api::namespaced_with(client.clone(), namespace, &resource))
}

/// Gives a machine its memory. A hypervisor would take two calls and some time; here, two annotations of
/// the infrastructure machine stand in for it. Returns what is on its way.
async fn set_memory(
    client: &Client,
    machine: &DynamicObject,
    wanted: i64,
) -> Result<Option<String>, Problem> {
    let wanted = wanted.to_string();
    let has = |key: &str| machine.annotations().get(key) == Some(&wanted);
    if has(HAS) {
        return Ok(None);
    }
    let (changes, underway) = if has(GETS) {
        (json!({ HAS: wanted, GETS: null }), None)
    } else {
        let message = format!("giving the machine {wanted} MiB of memory");
        (json!({ GETS: wanted }), Some(message))
    };
    let types = machine.types.clone().unwrap_or_default();
    let (group, _) = types.api_version.split_once('/').unwrap_or_default();
    let namespace = machine.namespace().unwrap_or_default();
    let body = Patch::Merge(json!({ "metadata": { "annotations": changes } }));
    let of_kind = api(client, group, &types.kind, &namespace).await?;
    of_kind.patch(&machine.name_any(), &PatchParams::default(), &body).await?;
    Ok(underway)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definitions_in_the_example_are_those_of_its_types() {
        let written = include_str!("../crds.yaml");
        let repeat = "cargo run -p memory-provider -- crds >examples/provider/crds.yaml";
        assert_eq!(super::crds().unwrap(), written, "run `{repeat}`");
    }
}
