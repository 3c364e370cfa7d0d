//! Reading and changing objects of any kind, as JSON.

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

/// Field manager of a bed.
pub const MANAGER: &str = "refit-testbed";

/// A kind that the bed reads.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

impl Kind {
    /// What it is called.
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
/// DevMachineTemplate.
pub const DEV_MACHINE_TEMPLATE: Kind = kind(INFRASTRUCTURE, "v1beta2", "DevMachineTemplate");
/// ExtensionConfig.
pub const EXTENSION_CONFIG: Kind = kind("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
/// NodeUpdate.
pub const NODE_UPDATE: Kind = kind("refit.dev", "v1alpha1", "NodeUpdate");
/// UpdateGroup.
pub const UPDATE_GROUP: Kind = kind("refit.dev", "v1alpha1", "UpdateGroup");
/// HostPlan.
pub const HOST_PLAN: Kind = kind("refit.dev", "v1alpha1", "HostPlan");
/// CustomResourceDefinition.
pub const DEFINITION: Kind = kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
/// Secret.
pub const SECRET: Kind = kind("", "v1", "Secret");
/// Event.
pub const EVENT: Kind = kind("", "v1", "Event");
/// Pod.
pub const POD: Kind = kind("", "v1", "Pod");
/// Node.
pub const NODE: Kind = kind("", "v1", "Node");

/// The objects of one namespace, or without one those of the cluster.
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
    /// Those of a namespace.
    pub fn in_namespace(client: Client, namespace: &str) -> Self {
        Self { client, namespace: Some(namespace.to_owned()) }
    }

    /// Those of the cluster.
    pub fn of_cluster(client: Client) -> Self {
        Self { client, namespace: None }
    }

    /// The API of a kind.
    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk(&gvk);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// One object; `None` where there is none.
    pub async fn find(&self, kind: Kind, name: &str) -> anyhow::Result<Option<Value>> {
        let found = self.api(kind).get_opt(name).await;
        let found = found.with_context(|| format!("{} {name} cannot be read", kind.kind))?;
        Ok(found.map(|object| value(&object)))
    }

    /// One object that has to be there.
    pub async fn get(&self, kind: Kind, name: &str) -> anyhow::Result<Value> {
        let found = self.find(kind, name).await?;
        found.with_context(|| format!("there is no {} {name}", kind.kind))
    }

    /// All of a kind, in order of their names.
    pub async fn list(&self, kind: Kind) -> anyhow::Result<Vec<Value>> {
        self.select(kind, "").await
    }

    /// Those of a kind with these labels, in order of their names.
    pub async fn select(&self, kind: Kind, labels: &str) -> anyhow::Result<Vec<Value>> {
        let params = ListParams::default().labels(labels);
        let list = self.api(kind).list(&params).await;
        let list = list.with_context(|| format!("{}s cannot be listed", kind.kind))?;
        let mut objects: Vec<Value> = list.items.iter().map(value).collect();
        objects.sort_by(|a, b| name(a).cmp(name(b)));
        Ok(objects)
    }

    /// Applies an object as the bed; it says itself in which namespace it is.
    pub async fn apply(&self, object: &Value) -> anyhow::Result<Value> {
        apply(&self.client, object).await
    }

    /// All of a kind, and the resourceVersion of the list.
    pub async fn list_at(&self, kind: Kind) -> anyhow::Result<(Vec<Value>, String)> {
        let list = self.api(kind).list(&ListParams::default()).await;
        let list = list.with_context(|| format!("{}s cannot be listed", kind.kind))?;
        let revision = list.metadata.resource_version.unwrap_or_default();
        // Items of a list do not say what they are.
        let all = list.items.iter().map(|item| {
            let mut object = value(item);
            object["kind"] = json!(kind.kind);
            object
        });
        Ok((all.collect(), revision))
    }

    /// A merge patch.
    pub async fn merge(&self, kind: Kind, name: &str, patch: &Value) -> anyhow::Result<Value> {
        let (params, body) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.api(kind).patch(name, &params, &body).await;
        let patched = patched.with_context(|| format!("{} {name} cannot be patched", kind.kind))?;
        Ok(value(&patched))
    }

    /// A merge patch of the status.
    pub async fn merge_status(&self, kind: Kind, name: &str, patch: &Value) -> anyhow::Result<()> {
        let params = PatchParams::default();
        let patched = self.api(kind).patch_status(name, &params, &Patch::Merge(patch)).await;
        patched.with_context(|| format!("the status of {} {name} cannot be patched", kind.kind))?;
        Ok(())
    }

    /// Sets annotations; `None` takes one away.
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

    /// Deletes an object; one that is gone is no error.
    pub async fn delete(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        match self.api(kind).delete(name, &DeleteParams::default()).await {
            Err(error) if !refit_runtime::apply::is_not_found(&error) => {
                Err(error).with_context(|| format!("{} {name} cannot be deleted", kind.kind))
            }
            _ => Ok(()),
        }
    }
}

/// Applies an object, in its own namespace, as the bed.
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
        .with_context(|| format!("{} {} cannot be applied", text(object, "/kind"), name(object)))?;
    Ok(value(&applied))
}

/// The documents of a YAML text, with `${NAME}` replaced.
pub fn documents(yaml: &str, values: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
    let mut text = yaml.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    if let Some(at) = text.find("${") {
        let rest: String = text.chars().skip(at).take(40).collect();
        anyhow::bail!("nobody says what {rest:?} is");
    }
    let documents = text.split("\n---").map(|part| part.trim_start_matches("---"));
    let documents = documents.filter(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    documents.map(|part| serde_saphyr::from_str(part).context("it is no YAML")).collect()
}

/// The documents of every YAML file of a folder, in order of the files' names.
pub fn folder(path: &Path) -> anyhow::Result<Vec<Value>> {
    let entries =
        std::fs::read_dir(path).with_context(|| format!("{} cannot be read", path.display()))?;
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

/// The documents of one file.
pub fn file_documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    // Descriptions of fields may hold anything.
    let text = text.replace("${", "$ {");
    documents(&text, &[]).with_context(|| path.display().to_string())
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("what was JSON is JSON")
}

/// A number below a pointer; 0 where there is none.
pub fn number(object: &Value, pointer: &str) -> i64 {
    let found = object.pointer(pointer).and_then(Value::as_i64);
    found.unwrap_or_default()
}

/// The uid of an object.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// A condition in one line: `True/Reason message`.
pub fn told(object: &Value, kind: &str) -> String {
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
    fn a_name_that_nobody_gives_is_refused() {
        let yaml = "# a comment\n---\na: ${X}\n---\nb: 2\n";
        let found = documents(yaml, &[("X", "1")]).unwrap();
        assert_eq!(found, [json!({"a": 1}), json!({"b": 2})]);
        assert!(documents(yaml, &[]).is_err());
    }
}
