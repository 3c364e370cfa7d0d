//! Reads and changes objects of any kind, as JSON.

use std::path::Path;

use anyhow::Context as _;
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    },
};
use refit_kinds::json::whole_condition;
pub use refit_kinds::json::{annotation, is_true, name, text};
use serde_json::{Value, json};

/// Field manager of the test bed.
pub const MANAGER: &str = "refit-testbed";

/// A kind of object.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

impl Kind {
    /// Name of the kind.
    pub const fn name(self) -> &'static str {
        self.kind
    }
}

const fn kind(group: &'static str, version: &'static str, kind: &'static str) -> Kind {
    Kind { group, version, kind }
}

const CORE: &str = "cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
/// Cluster.
pub const CLUSTER: Kind = kind(CORE, "v1beta2", "Cluster");
/// Machine.
pub const MACHINE: Kind = kind(CORE, "v1beta2", "Machine");
/// MachineSet.
pub const MACHINE_SET: Kind = kind(CORE, "v1beta2", "MachineSet");
/// MachineDeployment.
pub const MACHINE_DEPLOYMENT: Kind = kind(CORE, "v1beta2", "MachineDeployment");
/// MachineHealthCheck.
pub const MACHINE_HEALTH_CHECK: Kind = kind(CORE, "v1beta2", "MachineHealthCheck");
/// KubeadmControlPlane.
pub const CONTROL_PLANE: Kind =
    kind("controlplane.cluster.x-k8s.io", "v1beta2", "KubeadmControlPlane");
/// KubeadmConfig.
pub const KUBEADM_CONFIG: Kind = kind("bootstrap.cluster.x-k8s.io", "v1beta2", "KubeadmConfig");
/// DevCluster.
pub const DEV_CLUSTER: Kind = kind(INFRASTRUCTURE, "v1beta2", "DevCluster");
/// DevMachine.
pub const DEV_MACHINE: Kind = kind(INFRASTRUCTURE, "v1beta2", "DevMachine");
/// SandboxMachine, the infrastructure machine of `refit sandbox`.
pub const SANDBOX_MACHINE: Kind = kind(INFRASTRUCTURE, "v1beta2", "SandboxMachine");
/// DevMachineTemplate.
pub const DEV_MACHINE_TEMPLATE: Kind = kind(INFRASTRUCTURE, "v1beta2", "DevMachineTemplate");
/// ExtensionConfig.
pub const EXTENSION_CONFIG: Kind = kind("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
/// NodeUpdate.
pub const NODE_UPDATE: Kind = kind("refit.dev", "v1alpha1", "NodeUpdate");
/// UpdateGroup.
pub const UPDATE_GROUP: Kind = kind("refit.dev", "v1alpha1", "UpdateGroup");
/// An UpgradeTask.
pub const UPGRADE_TASK: Kind = kind("refit.dev", "v1alpha1", "UpgradeTask");
/// A ClusterUpgrade.
pub const CLUSTER_UPGRADE: Kind = kind("refit.dev", "v1alpha1", "ClusterUpgrade");
/// ReplacementHold.
pub const REPLACEMENT_HOLD: Kind = kind("refit.dev", "v1alpha1", "ReplacementHold");
/// Namespace, of the cluster.
pub const NAMESPACE: Kind = kind("", "v1", "Namespace");
/// Updater.
pub const UPDATER: Kind = kind("refit.dev", "v1alpha1", "Updater");
/// HostPlan.
pub const HOST_PLAN: Kind = kind("refit.dev", "v1alpha1", "HostPlan");
/// CustomResourceDefinition.
pub const DEFINITION: Kind = kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
/// ClusterRole.
pub const CLUSTER_ROLE: Kind = kind("rbac.authorization.k8s.io", "v1", "ClusterRole");
/// HostUpgrade of the provider of `examples/provider-go`.
pub const HOST_UPGRADE: Kind = kind("hosts.example", "v1", "HostUpgrade");
/// Secret.
pub const SECRET: Kind = kind("", "v1", "Secret");
/// Event.
pub const EVENT: Kind = kind("", "v1", "Event");
/// Pod.
pub const POD: Kind = kind("", "v1", "Pod");
/// Node.
pub const NODE: Kind = kind("", "v1", "Node");

/// The objects of one namespace, or cluster-scoped objects if there is no namespace.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: Option<String>,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Objects {
    /// Objects of a namespace.
    pub fn in_namespace(client: Client, namespace: &str) -> Self {
        Self { client, namespace: Some(namespace.to_owned()) }
    }

    /// Cluster-scoped objects.
    pub fn of_cluster(client: Client) -> Self {
        Self { client, namespace: None }
    }

    /// Returns the API of a kind.
    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk(&gvk);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Returns an object, or `None` if it does not exist.
    pub async fn find(&self, kind: Kind, name: &str) -> anyhow::Result<Option<Value>> {
        let found = self.api(kind).get_opt(name).await;
        let found = found.with_context(|| format!("failed to read {} {name}", kind.kind))?;
        Ok(found.map(|object| value(&object)))
    }

    /// Returns an object that must exist.
    pub async fn get(&self, kind: Kind, name: &str) -> anyhow::Result<Value> {
        let found = self.find(kind, name).await?;
        found.with_context(|| format!("{} {name} does not exist", kind.kind))
    }

    /// Returns all objects of a kind, by name.
    pub async fn list(&self, kind: Kind) -> anyhow::Result<Vec<Value>> {
        self.select(kind, "").await
    }

    /// Returns the objects of a kind with these labels, by name.
    pub async fn select(&self, kind: Kind, labels: &str) -> anyhow::Result<Vec<Value>> {
        let params = ListParams::default().labels(labels);
        let list = self.api(kind).list(&params).await;
        let list = list.with_context(|| format!("failed to list {}s", kind.kind))?;
        let mut objects: Vec<Value> = list.items.iter().map(value).collect();
        objects.sort_by(|a, b| name(a).cmp(name(b)));
        Ok(objects)
    }

    /// Applies an object in the namespace that it names.
    pub async fn apply(&self, object: &Value) -> anyhow::Result<Value> {
        apply(&self.client, object).await
    }

    /// Returns all objects of a kind, and the resourceVersion of the list.
    pub async fn list_at(&self, kind: Kind) -> anyhow::Result<(Vec<Value>, String)> {
        let list = self.api(kind).list(&ListParams::default()).await;
        let list = list.with_context(|| format!("failed to list {}s", kind.kind))?;
        let revision = list.metadata.resource_version.unwrap_or_default();
        // Items of a list have no kind.
        let all = list.items.iter().map(|item| {
            let mut object = value(item);
            object["kind"] = json!(kind.kind);
            object
        });
        Ok((all.collect(), revision))
    }

    /// Applies a merge patch.
    pub async fn merge(&self, kind: Kind, name: &str, patch: &Value) -> anyhow::Result<Value> {
        let (params, body) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.api(kind).patch(name, &params, &body).await;
        let patched = patched.with_context(|| format!("failed to patch {} {name}", kind.kind))?;
        Ok(value(&patched))
    }

    /// Applies a merge patch to the status.
    pub async fn merge_status(&self, kind: Kind, name: &str, patch: &Value) -> anyhow::Result<()> {
        let params = PatchParams::default();
        let patched = self.api(kind).patch_status(name, &params, &Patch::Merge(patch)).await;
        patched.with_context(|| format!("failed to patch the status of {} {name}", kind.kind))?;
        Ok(())
    }

    /// Sets annotations; `None` removes one.
    pub async fn annotate(
        &self,
        kind: Kind,
        name: &str,
        annotations: &[(&str, Option<&str>)],
    ) -> anyhow::Result<()> {
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        self.merge(kind, name, &json!({"metadata": {"annotations": annotations}})).await?;
        Ok(())
    }

    /// Deletes an object. A missing object is not an error.
    pub async fn delete(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        match self.api(kind).delete(name, &DeleteParams::default()).await {
            Err(error) if !refit_runtime::apply::is_not_found(&error) => {
                Err(error).with_context(|| format!("failed to delete {} {name}", kind.kind))
            }
            _ => Ok(()),
        }
    }
}

/// Applies an object in the namespace that it names, with the field manager of the bed.
pub async fn apply(client: &Client, object: &Value) -> anyhow::Result<Value> {
    let api_version = text(object, "/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, text(object, "/kind"));
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match text(object, "/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let params = PatchParams::apply(MANAGER).force();
    let applied = api.patch(name(object), &params, &Patch::Apply(object)).await;
    let applied = applied
        .with_context(|| format!("failed to apply {} {}", text(object, "/kind"), name(object)))?;
    Ok(value(&applied))
}

/// Parses the documents of a YAML text and replaces `${NAME}`.
pub fn documents(yaml: &str, values: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
    let mut text = yaml.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    if let Some(at) = text.find("${") {
        let rest: String = text.chars().skip(at).take(40).collect();
        anyhow::bail!("no value is given for {rest:?}");
    }
    let documents = text.split("\n---").map(|part| part.trim_start_matches("---"));
    let documents = documents.filter(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    documents.map(|part| serde_saphyr::from_str(part).context("invalid YAML")).collect()
}

/// Parses the documents of all YAML files of a directory, by file name.
pub fn directory(path: &Path) -> anyhow::Result<Vec<Value>> {
    let entries =
        std::fs::read_dir(path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    let mut found = Vec::new();
    for file in files {
        found.extend(file_documents(&file)?);
    }
    Ok(found)
}

/// Parses the documents of one file.
pub fn file_documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read {}", path.display()))?;
    // Field descriptions may contain `${`.
    let text = text.replace("${", "$ {");
    documents(&text, &[]).with_context(|| path.display().to_string())
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object of the API is valid JSON")
}

/// Returns the number at a pointer, or 0 if it is missing.
pub fn number(object: &Value, pointer: &str) -> i64 {
    let found = object.pointer(pointer).and_then(Value::as_i64);
    found.unwrap_or_default()
}

/// Returns the uid of an object.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Formats a condition in one line: `True/Reason message`.
pub fn condition_text(object: &Value, kind: &str) -> String {
    whole_condition(object, kind).map_or_else(
        || format!("no condition {kind}"),
        |condition| {
            let part = |key: &str| condition[key].as_str().unwrap_or_default();
            format!("{}/{} {}", part("status"), part("reason"), part("message"))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undefined_placeholder_is_an_error() {
        let yaml = "# a comment\n---\na: ${X}\n---\nb: 2\n";
        let found = documents(yaml, &[("X", "1")]).unwrap();
        assert_eq!(found, [json!({"a": 1}), json!({"b": 2})]);
        assert!(documents(yaml, &[]).is_err());
    }
}
