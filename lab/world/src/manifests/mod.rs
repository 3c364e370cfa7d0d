//! Reads and checks manifests, such as the output of `clusterctl generate cluster`, before the
//! first write.

mod check;
mod crds;
mod fields;
mod refs;
mod rehearsal;

use std::path::Path;

use refit_cluster_api::kinds;
use refit_kinds::json::{kind, text};
use refit_manifests::{LoadError, Manifest, group_of, read, texts};
use serde_json::{Value, json};

pub use crds::{BUNDLED_CRDS, schemaless_crds};
pub use rehearsal::rehearse;

/// Whether a component of the sandbox acts on the object. Other objects are stored unchanged.
pub fn is_acted_on(object: &Value) -> bool {
    let known = [
        kinds::CORE_GROUP,
        kinds::CONTROL_PLANE_GROUP,
        kinds::BOOTSTRAP_GROUP,
        kinds::INFRASTRUCTURE_GROUP,
    ];
    let kind = kind(object);
    (known.contains(&group_of(object)) && !check::UNSUPPORTED_KINDS.contains(&kind))
        || (text(object, "/apiVersion") == "v1" && kind == "Namespace")
}

/// Reads manifest files that contain at least one whole cluster.
///
/// # Errors
/// [`LoadError::Invalid`] holds every problem of every file.
pub fn load(files: &[impl AsRef<Path>]) -> Result<Vec<Manifest>, LoadError> {
    let texts = texts(files)?;
    parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_slice())))
}

/// Reads and checks manifests in memory, given as name and content of each file.
pub fn parse<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<Manifest>, LoadError> {
    let mut first = None;
    let mut found = read(files.into_iter().inspect(|(name, _)| _ = first.get_or_insert(*name)));
    found.problems.extend(check::contents(&found.manifests, &found.unread));
    if found.problems.is_empty() {
        let missing = check::no_cluster(first.unwrap_or("(no file)"), &found.manifests);
        found.problems.extend(missing);
    }
    LoadError::unless_empty(found.problems)?;
    Ok(found.manifests)
}

/// Sets KubeadmControlPlane `maxSurge: 0` and MachineDeployment `maxSurge: 0, maxUnavailable: 1`,
/// so that Cluster API creates no extra machine (`docs/facts/control-plane.md#rollout` and
/// `docs/facts/machine-deployment.md#surge-and-in-place-updates`).
pub fn forbid_surge(objects: &mut [Value]) {
    for object in objects {
        let rolling = match kind(object) {
            "KubeadmControlPlane" => json!({ "maxSurge": 0 }),
            "MachineDeployment" => json!({ "maxSurge": 0, "maxUnavailable": 1 }),
            _ => continue,
        };
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let rollout = spec.entry("rollout").or_insert_with(|| json!({}));
            if !rollout.is_object() {
                *rollout = json!({});
            }
            rollout["strategy"] = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
        }
    }
}

#[cfg(test)]
mod tests;
