//! The Runtime SDK's messages for in-place updates, as they go over the wire
//! (`docs/facts/hooks.md`).
//!
//! Objects are kept as raw JSON: a patch must make `current` exactly equal to `desired`, and a
//! typed struct would lose unknown fields (`docs/facts/hooks.md#patches`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `apiVersion` of every request and response.
pub const API_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// API group in the paths of the hooks.
pub const GROUP: &str = "hooks.runtime.cluster.x-k8s.io";
/// Version in the paths of the hooks.
pub const VERSION: &str = "v1alpha1";
/// The flags by which Cluster API's managers present a client certificate
/// (`docs/facts/hooks.md#client-certificates`).
pub const CLIENT_FLAGS: [&str; 2] =
    ["--runtime-extension-client-cert-file", "--runtime-extension-client-key-file"];
/// Largest request body that a server must accept: 20 MiB (`docs/facts/hooks.md#paths-and-http`).
pub const MAX_BODY_BYTES: usize = 20 * 1024 * 1024;

/// `Success` or `Failure`; anything else is an error on Cluster API's side
/// (`docs/facts/hooks.md#requests-and-responses`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The response is valid.
    Success,
    /// The rollout stops, and Cluster API shows the message.
    Failure,
}

/// One handler of a [`DiscoveryResponse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handler {
    /// A DNS-1123 label.
    pub name: String,
    /// The hook that the handler serves.
    pub request_hook: RequestHook,
    /// How long Cluster API waits, 1 to 30 s; absent or 0 is 10.
    #[serde(default)]
    pub timeout_seconds: i32,
    /// Always `Fail`: `Ignore` turns a network error into a completed update
    /// (`docs/facts/hooks.md#failure-policy`).
    #[serde(default)]
    pub failure_policy: String,
}

/// Names a hook and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestHook {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `CanUpdateMachine`, `CanUpdateMachineSet` or `UpdateMachine`.
    pub hook: String,
}

/// Response to a Discovery call (`docs/facts/hooks.md#discovery`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryResponse {
    /// [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// `DiscoveryResponse`.
    #[serde(default)]
    pub kind: String,
    /// Whether discovery succeeded.
    pub status: Verdict,
    /// Why discovery failed.
    #[serde(default)]
    pub message: String,
    /// The hooks that are served.
    #[serde(default)]
    pub handlers: Vec<Handler>,
}

/// A Machine with its infrastructure machine and its bootstrap config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineObjects {
    /// The Machine, stripped to metadata and spec.
    pub machine: Value,
    /// The infrastructure machine.
    pub infrastructure_machine: Value,
    /// The bootstrap config, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config: Option<Value>,
}

/// A MachineSet with the templates of its Machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetObjects {
    /// The MachineSet, stripped to metadata and spec.
    pub machine_set: Value,
    /// The infrastructure machine template.
    pub infrastructure_machine_template: Value,
    /// The bootstrap config template, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config_template: Option<Value>,
}

/// A hook request. `T` is [`MachineObjects`] or [`MachineSetObjects`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateRequest<T> {
    /// [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// `CanUpdateMachineRequest` or `CanUpdateMachineSetRequest`.
    #[serde(default)]
    pub kind: String,
    /// `ExtensionConfig.spec.settings`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// The current objects.
    pub current: T,
    /// The desired objects.
    pub desired: T,
}

/// Request of the UpdateMachine hook (`docs/facts/hooks.md#updatemachine`). It carries secrets:
/// never log it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateMachineRequest {
    /// [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// `UpdateMachineRequest`.
    #[serde(default)]
    pub kind: String,
    /// `ExtensionConfig.spec.settings`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// The desired objects. There is no `current`.
    pub desired: MachineObjects,
}

/// Format of a [`HookPatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatchType {
    /// RFC 6902.
    JSONPatch,
    /// RFC 7386.
    JSONMergePatch,
}

/// A patch in a response: the JSON of the patch as base64 (`docs/facts/hooks.md#canupdate-hooks`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookPatch {
    /// Format of the patch.
    pub patch_type: PatchType,
    /// Base64 of the patch's JSON text.
    pub patch: String,
}

/// Response to CanUpdateMachine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineResponse {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `CanUpdateMachineResponse`.
    pub kind: String,
    /// `Failure` blocks the rollout; `Success` without patches replaces the machine.
    pub status: Verdict,
    /// Shown by Cluster API when the status is `Failure`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether a machine may be unavailable during the update (v1.15; earlier versions ignore it). Without
    /// this field it may.
    #[serde(default = "may_be_unavailable")]
    pub affects_availability: bool,
    /// The changes that Refit can make to the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_patch: Option<HookPatch>,
    /// The changes that Refit can make to the infrastructure machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_machine_patch: Option<HookPatch>,
    /// The changes that Refit can make to the bootstrap config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config_patch: Option<HookPatch>,
}

fn may_be_unavailable() -> bool {
    true
}

/// Response to CanUpdateMachineSet. Cluster API reads only `spec.template.spec` of each object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineSetResponse {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `CanUpdateMachineSetResponse`.
    pub kind: String,
    /// `Failure` blocks the rollout; `Success` without patches replaces the machines.
    pub status: Verdict,
    /// Shown by Cluster API when the status is `Failure`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether a machine may be unavailable during the update (v1.15; earlier versions ignore it). Without
    /// this field it may.
    #[serde(default = "may_be_unavailable")]
    pub affects_availability: bool,
    /// The changes that Refit can make to the MachineSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_set_patch: Option<HookPatch>,
    /// The changes that Refit can make to the infrastructure machine template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_machine_template_patch: Option<HookPatch>,
    /// The changes that Refit can make to the bootstrap config template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config_template_patch: Option<HookPatch>,
}

/// Response to UpdateMachine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateMachineResponse {
    /// [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// `UpdateMachineResponse`.
    #[serde(default)]
    pub kind: String,
    /// `Failure` hides Refit's message and backs off to 1000 s
    /// (`docs/facts/machine.md#in-place-update`).
    pub status: Verdict,
    /// Shown in the Machine's `Updating` condition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// 0 means done; a negative number would mean done too
    /// (`docs/facts/hooks.md#effects-of-a-response`).
    #[serde(default)]
    pub retry_after_seconds: i32,
}

/// Path of a hook below a server's base, as Cluster API builds it
/// (`docs/facts/hooks.md#paths-and-http`).
///
/// ```
/// assert_eq!(
///     refit_kinds::hooks::path("UpdateMachine", Some("update-machine")),
///     "/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/update-machine",
/// );
/// ```
pub fn path(hook: &str, handler: Option<&str>) -> String {
    let hook = hook.to_lowercase();
    match handler {
        Some(handler) => format!("/{GROUP}/{VERSION}/{hook}/{}", handler.to_lowercase()),
        None => format!("/{GROUP}/{VERSION}/{hook}"),
    }
}
