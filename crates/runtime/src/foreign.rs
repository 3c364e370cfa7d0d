//! Objects of kinds that are known at run time only, such as infrastructure machines.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery,
    error::DiscoveryError,
};
use serde_json::Value;

/// Names an object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// API group, such as `infrastructure.cluster.x-k8s.io`.
    pub group: String,
    /// Version; `None` for the one that the API server prefers.
    pub version: Option<String>,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ForeignObject {
    /// The object as stored now, of which this is a copy.
    pub fn stored(copy: &Value) -> Self {
        let text =
            |pointer| copy.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let api_version = text("/apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        Self {
            group: group.to_owned(),
            version: Some(version.to_owned()),
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        }
    }
}

/// Group, version and kind.
type Key = (String, Option<String>, String);

/// Reads objects of kinds that are known at run time only. How the API server serves a kind is asked once.
#[derive(Clone, Debug, Default)]
pub struct ForeignKinds(Arc<Mutex<BTreeMap<Key, ApiResource>>>);

impl ForeignKinds {
    /// The API of an object's kind in its namespace.
    pub async fn api(
        &self,
        client: &Client,
        object: &ForeignObject,
    ) -> kube::Result<Api<DynamicObject>> {
        let ForeignObject { group, version, kind, namespace, .. } = object;
        let key = (group.clone(), version.clone(), kind.clone());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let resource = if let Some(resource) = known {
            resource
        } else {
            let served = served(client, group, version.as_deref(), kind).await?;
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(key, served.clone());
            served
        };
        Ok(Api::namespaced_with(client.clone(), namespace, &resource))
    }

    /// A kind that is not found may be served otherwise now.
    fn forget_gone<T>(&self, object: &ForeignObject, outcome: kube::Result<T>) -> kube::Result<T> {
        if matches!(&outcome, Err(kube::Error::Api(status)) if status.is_not_found()) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.remove(&(object.group.clone(), object.version.clone(), object.kind.clone()));
        }
        outcome
    }

    /// Reads an object.
    pub async fn read(&self, client: &Client, object: &ForeignObject) -> kube::Result<Value> {
        let found = self.api(client, object).await?.get(&object.name).await;
        let found = self.forget_gone(object, found)?;
        serde_json::to_value(found).map_err(kube::Error::SerdeError)
    }

    /// Applies `intent` to an existing object with this field manager, and takes over fields of other managers.
    /// The intent has the uid of the object: one that is gone is not created again.
    pub async fn apply(
        &self,
        client: &Client,
        object: &ForeignObject,
        manager: &str,
        intent: &Value,
    ) -> kube::Result<Value> {
        self.apply_with(client, object, &PatchParams::apply(manager).force(), intent).await
    }

    /// The object that an intent would make of an existing one, with the API server's defaults. Nothing is stored.
    pub async fn apply_dry(
        &self,
        client: &Client,
        object: &ForeignObject,
        manager: &str,
        intent: &Value,
    ) -> kube::Result<Value> {
        let params = PatchParams { dry_run: true, ..PatchParams::apply(manager).force() };
        self.apply_with(client, object, &params, intent).await
    }

    async fn apply_with(
        &self,
        client: &Client,
        object: &ForeignObject,
        params: &PatchParams,
        intent: &Value,
    ) -> kube::Result<Value> {
        let api = self.api(client, object).await?;
        let found = api.patch(&object.name, params, &Patch::Apply(intent)).await;
        let found = self.forget_gone(object, found)?;
        serde_json::to_value(found).map_err(kube::Error::SerdeError)
    }

    /// Has the API server admit an object as `change` makes it, and store nothing. An error of the API is
    /// its refusal. Returns whether it was asked: not if `change` makes nothing of it.
    pub async fn dry_run(
        &self,
        client: &Client,
        object: &ForeignObject,
        change: impl FnOnce(&Value) -> Option<Value>,
    ) -> kube::Result<bool> {
        let api = self.api(client, object).await?;
        let live = self.forget_gone(object, api.get(&object.name).await)?;
        let live = serde_json::to_value(live).map_err(kube::Error::SerdeError)?;
        let Some(changed) = change(&live) else {
            return Ok(false);
        };
        let changed: DynamicObject =
            serde_json::from_value(changed).map_err(kube::Error::SerdeError)?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        #[expect(clippy::disallowed_methods, reason = "it has every field, and nothing is stored")]
        api.replace(&object.name, &params, &changed).await.map(|_| true)
    }
}

async fn served(
    client: &Client,
    group: &str,
    version: Option<&str>,
    kind: &str,
) -> kube::Result<ApiResource> {
    if let Some(version) = version {
        let kind = GroupVersionKind::gvk(group, version, kind);
        return discovery::pinned_kind(client, &kind).await.map(|(resource, _)| resource);
    }
    let found = discovery::group(client, group).await?;
    let missing = || kube::Error::Discovery(DiscoveryError::MissingKind(format!("{kind}.{group}")));
    let (resource, _) = found.recommended_kind(kind).ok_or_else(missing)?;
    Ok(resource)
}
