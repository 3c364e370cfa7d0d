//! Objects of kinds that are known at run time only, such as infrastructure machines.

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::GroupVersionKind,
    discovery,
};
use serde_json::Value;

/// Names an object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// apiVersion, such as `infrastructure.cluster.x-k8s.io/v1beta1`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ForeignObject {
    async fn api(&self, client: &Client) -> kube::Result<Api<DynamicObject>> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        let kind = GroupVersionKind::gvk(group, version, &self.kind);
        let (resource, _) = discovery::pinned_kind(client, &kind).await?;
        Ok(Api::namespaced_with(client.clone(), &self.namespace, &resource))
    }

    /// Reads the object.
    pub async fn read(&self, client: &Client) -> kube::Result<Value> {
        let found = self.api(client).await?.get(&self.name).await?;
        serde_json::to_value(found).map_err(kube::Error::SerdeError)
    }

    /// Has the API server admit the object as `change` makes it, and store nothing. An error of the API is
    /// its refusal.
    pub async fn dry_run(
        &self,
        client: &Client,
        change: impl FnOnce(&Value) -> Value,
    ) -> kube::Result<()> {
        let api = self.api(client).await?;
        let live = serde_json::to_value(api.get(&self.name).await?);
        let changed = live.and_then(|live| serde_json::from_value(change(&live)));
        let changed: DynamicObject = changed.map_err(kube::Error::SerdeError)?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        #[expect(clippy::disallowed_methods, reason = "it has every field, and nothing is stored")]
        api.replace(&self.name, &params, &changed).await.map(drop)
    }
}
