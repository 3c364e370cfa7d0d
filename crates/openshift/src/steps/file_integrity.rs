//! The FileIntegrity of FedRAMP clusters, which begins again after an upgrade: the upgrade has changed files.

use std::collections::BTreeMap;

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::Compat;

/// Namespace of the object.
pub const NAMESPACE: &str = "openshift-file-integrity";
/// Name of the object.
pub const NAME: &str = "osd-fileintegrity";
const REINIT: &str = "file-integrity.openshift.io/re-init";

/// The kind.
pub fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("fileintegrity.openshift.io", "v1alpha1", "FileIntegrity");
    ApiResource::from_gvk_with_plural(&kind, "fileintegrities")
}

/// The merge patch that has the object begin again. The original replaces all its annotations (M10).
pub fn patch(annotations: &BTreeMap<String, String>, compat: Compat) -> Value {
    let mut next: BTreeMap<&str, Value> = match compat {
        Compat::Repaired => BTreeMap::new(),
        Compat::Strict => annotations.keys().map(|key| (key.as_str(), Value::Null)).collect(),
    };
    next.insert(REINIT, json!(""));
    json!({"metadata": {"annotations": next}})
}
