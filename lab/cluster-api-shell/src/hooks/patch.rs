//! Applies an extension's patches and compares the result (`docs/facts/hooks.md#patches` and
//! `docs/facts/control-plane.md#compared-fields`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refit_cluster_api::kinds::MachineSpec;
use refit_kinds::version::StatedVersion;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::HookError;

/// The compared part of an object for a Machine's hook: its spec.
const SPEC: &str = "/spec";
/// The compared part of an object for a MachineSet's hook.
const TEMPLATE_SPEC: &str = "/spec/template/spec";

/// An object as hooks receive it: apiVersion, kind, name, namespace, labels, annotations and spec.
pub fn for_hooks(object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "labels", "annotations"] {
        match object["metadata"].get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) if map.is_empty() => {}
            Some(value) => {
                metadata.insert(key.to_owned(), value.clone());
            }
        }
    }
    let mut stripped = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": metadata,
    });
    if let Some(spec) = object.get("spec") {
        stripped["spec"] = spec.clone();
    }
    stripped
}

/// Applies the patch under `key` of a response to `object`, and keeps only the value at `path` of
/// the result.
fn apply(object: &Value, answer: &Value, key: &str, path: &str) -> Result<Value, HookError> {
    let patch = &answer[key];
    let text = |key: &str| patch[key].as_str().unwrap_or_default();
    let (patch_type, encoded) = (text("patchType"), text("patch"));
    let refuse = |reason: String| HookError::Patch(format!("{key}: {reason}"));
    if !patch.is_null() && !patch["patch"].is_string() && !patch["patch"].is_null() {
        return Err(refuse("patch is not a base64 text".to_owned()));
    }
    if patch_type.is_empty() && encoded.is_empty() {
        return Ok(object.clone());
    }
    let bytes = STANDARD.decode(encoded).map_err(|error| refuse(error.to_string()))?;
    let patched = match patch_type {
        "" => return Err(HookError::Patch("patchType is not set".to_owned())),
        "JSONPatch" => json_patch(object, &bytes).map_err(refuse)?,
        "JSONMergePatch" => merge_patch(object, &bytes).map_err(refuse)?,
        other => return Err(HookError::Patch(format!("unknown patchType {other}"))),
    };
    let mut result = object.clone();
    if let Some(value) = patched.pointer(path) {
        put_at(&mut result, path, value.clone());
    }
    Ok(result)
}

/// Sets a value at a path of object keys.
fn put_at(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for key in path.split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[key];
    }
    *place = value;
}

fn json_patch(object: &Value, bytes: &[u8]) -> Result<Value, String> {
    let patch: json_patch::Patch =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    // Patches a clone: `patch` would roll back a patch that fails halfway, and panic if it cannot.
    let mut patched = object.clone();
    json_patch::patch_unsafe(&mut patched, &patch).map_err(|error| error.to_string())?;
    Ok(patched)
}

fn merge_patch(object: &Value, bytes: &[u8]) -> Result<Value, String> {
    let mut patched = object.clone();
    if bytes.is_empty() {
        return Ok(patched);
    }
    let patch: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    json_patch::merge(&mut patched, &patch);
    Ok(patched)
}

/// The compared fields of a Machine's spec: version and failure domain; all other fields change in
/// place or not at all (`docs/facts/control-plane.md#compared-fields`).
fn machine_diff_fields(spec: &Value) -> Result<(StatedVersion, String), HookError> {
    let spec = MachineSpec::deserialize(spec)
        .map_err(|error| HookError::Patch(format!("the result is not a valid Machine: {error}")))?;
    Ok((spec.version, spec.failure_domain.unwrap_or_default()))
}

/// Compares the patched `current` with `desired`, and names the parts that differ.
struct Comparison<'a> {
    current: &'a Value,
    desired: &'a Value,
    answer: &'a Value,
    path: &'static str,
    uncovered: Vec<String>,
}

impl Comparison<'_> {
    fn pointer(object: &Value, path: &str) -> Value {
        object.pointer(path).cloned().unwrap_or(Value::Null)
    }

    fn machine(&mut self, key: &str, patch: &str) -> Result<(), HookError> {
        let patched = apply(&self.current[key], self.answer, patch, self.path)?;
        let got = machine_diff_fields(&Self::pointer(&patched, self.path))?;
        let want = machine_diff_fields(&Self::pointer(&self.desired[key], self.path))?;
        if got != want {
            self.uncovered.push(key.to_owned());
        }
        Ok(())
    }

    fn exact(&mut self, key: &str, patch: &str) -> Result<(), HookError> {
        let (current, desired) = (&self.current[key], &self.desired[key]);
        if current.is_null() && desired.is_null() {
            return Ok(());
        }
        let patched = apply(current, self.answer, patch, self.path)?;
        if Self::pointer(&patched, self.path) != Self::pointer(desired, self.path) {
            self.uncovered.push(key.to_owned());
        }
        Ok(())
    }
}

/// Whether an extension's response to CanUpdateMachine covers the change.
pub(crate) struct MachineVerdict;

impl MachineVerdict {
    /// The parts that are not covered, by their key in the request; an empty list means yes.
    pub(crate) fn uncovered(
        current: &Value,
        desired: &Value,
        answer: &Value,
    ) -> Result<Vec<String>, HookError> {
        let mut comparison =
            Comparison { current, desired, answer, path: SPEC, uncovered: Vec::new() };
        comparison.machine("machine", "machinePatch")?;
        comparison.exact("infrastructureMachine", "infrastructureMachinePatch")?;
        comparison.exact("bootstrapConfig", "bootstrapConfigPatch")?;
        Ok(comparison.uncovered)
    }
}

/// Whether an extension's response to CanUpdateMachineSet covers the change.
pub(crate) struct MachineSetVerdict;

impl MachineSetVerdict {
    /// The parts that are not covered, by their key in the request; an empty list means yes.
    pub(crate) fn uncovered(
        current: &Value,
        desired: &Value,
        answer: &Value,
    ) -> Result<Vec<String>, HookError> {
        let mut comparison =
            Comparison { current, desired, answer, path: TEMPLATE_SPEC, uncovered: Vec::new() };
        comparison.machine("machineSet", "machineSetPatch")?;
        comparison.exact("infrastructureMachineTemplate", "infrastructureMachineTemplatePatch")?;
        comparison.exact("bootstrapConfigTemplate", "bootstrapConfigTemplatePatch")?;
        Ok(comparison.uncovered)
    }
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
