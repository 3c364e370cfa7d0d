//! Reads a live cluster as JSON, which keeps fields that a typed object does not know.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams},
    discovery::{self, ApiResource},
};
use refit_runtime::{client::ClientStack, workload::Workloads};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Cluster, attempt};

/// Page size of a list.
const PAGE: u32 = 500;

/// How to reach workload clusters.
#[derive(Clone)]
pub(crate) enum Access {
    /// Through their kubeconfig Secrets.
    Secrets(Box<Workloads>),
    /// Through existing clients, by Cluster name.
    #[cfg(all(test, feature = "sandbox"))]
    Given(BTreeMap<String, Client>),
}

/// Reads the objects for a plan or a diagnosis.
#[derive(Clone)]
pub(crate) struct Reader {
    /// The management cluster.
    pub(crate) cluster: Cluster,
    /// Access to its workload clusters.
    pub(crate) access: Access,
    known: BTreeMap<(String, String), Option<ApiResource>>,
    /// Kinds that the user has no permission to read.
    pub(crate) unread: BTreeSet<String>,
}

/// The result of a read.
pub(crate) enum Found<T> {
    /// The read succeeded.
    Read(T),
    /// The kind or object does not exist.
    Absent,
    /// The read is forbidden.
    Forbidden,
}

impl Reader {
    /// Creates a reader of this cluster.
    pub(crate) fn new(cluster: Cluster) -> Self {
        let stack = ClientStack::production(concat!("refit-cli/", env!("CARGO_PKG_VERSION")));
        let workloads = Workloads::new(cluster.client.clone(), stack, cluster.clock);
        Self::with(cluster, Access::Secrets(Box::new(workloads)))
    }

    /// Creates a reader with its own access to workload clusters.
    pub(crate) fn with(cluster: Cluster, access: Access) -> Self {
        Self { cluster, access, known: BTreeMap::new(), unread: BTreeSet::new() }
    }

    /// Returns a client of a workload cluster, or why it cannot be created.
    pub(crate) async fn workload(&self, name: &str) -> Result<Client, String> {
        match &self.access {
            Access::Secrets(workloads) => workloads
                .client(&self.cluster.namespace, name)
                .await
                .map_err(|error| error.to_string()),
            #[cfg(all(test, feature = "sandbox"))]
            Access::Given(clients) => {
                clients.get(name).cloned().ok_or_else(|| format!("no client for {name}"))
            }
        }
    }

    /// Lists the objects of a Refit or Cluster API kind in the namespace.
    pub(crate) async fn list<K>(&self, selector: &str) -> anyhow::Result<Found<Vec<Value>>>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &resource);
        self.found::<K>(pages(&api, &resource, selector).await)
    }

    /// Lists the objects of a cluster-scoped kind of Refit's.
    pub(crate) async fn cluster_scoped<K>(&self) -> anyhow::Result<Found<Vec<Value>>>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::all_with(self.cluster.client.clone(), &resource);
        self.found::<K>(pages(&api, &resource, "").await)
    }

    fn found<K>(&self, listed: kube::Result<Vec<Value>>) -> anyhow::Result<Found<Vec<Value>>>
    where
        K: Resource<DynamicType = ()>,
    {
        match listed {
            Err(error) if is_gone(&error) => Ok(Found::Absent),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Found::Forbidden),
            outcome => {
                let explain = |error| self.cluster.explain(error, &attempt::<K>("list"));
                outcome.map(Found::Read).map_err(explain)
            }
        }
    }

    /// Lists the objects of a kind in all namespaces; if that is forbidden, in the requested
    /// namespace.
    pub(crate) async fn everywhere<K>(&self) -> anyhow::Result<Vec<Value>>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::all_with(self.cluster.client.clone(), &resource);
        match pages(&api, &resource, "").await {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            Err(kube::Error::Api(status)) if status.code == 403 => self.all::<K>("").await,
            outcome => outcome.map_err(|error| self.cluster.explain(error, &attempt::<K>("list"))),
        }
    }

    /// Lists the objects of a kind that must exist.
    pub(crate) async fn all<K>(&self, selector: &str) -> anyhow::Result<Vec<Value>>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &resource);
        pages(&api, &resource, selector)
            .await
            .map_err(|error| self.cluster.explain(error, &attempt::<K>("list")))
    }

    /// Gets an object by reference; discovers the API version once per kind.
    pub(crate) async fn follow(
        &mut self,
        group: &str,
        kind: &str,
        name: &str,
    ) -> anyhow::Result<Option<Value>> {
        let Some(resource) = self.resource(group, kind).await? else {
            return Ok(None);
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &resource);
        match api.get(name).await {
            Ok(object) => Ok(Some(json_of(&object, &resource)?)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.unread.insert(kind.to_owned());
                Ok(None)
            }
            Err(error) => Err(error_of(&self.cluster, &error, &format!("get {kind} {name}"))),
        }
    }

    /// Lists all objects of a kind that a reference names, in all namespaces: none if they cannot be read.
    pub(crate) async fn everywhere_of(
        &mut self,
        group: &str,
        kind: &str,
    ) -> anyhow::Result<Vec<Value>> {
        let Some(resource) = self.resource(group, kind).await? else {
            return Ok(Vec::new());
        };
        let api = Api::all_with(self.cluster.client.clone(), &resource);
        match pages(&api, &resource, "").await {
            Ok(objects) => Ok(objects),
            Err(kube::Error::Api(_)) => Ok(Vec::new()),
            Err(error) => Err(error_of(&self.cluster, &error, &format!("list {kind}"))),
        }
    }

    /// Lists all objects of the kind that a reference names.
    pub(crate) async fn list_kind(
        &mut self,
        group: &str,
        kind: &str,
        selector: &str,
    ) -> anyhow::Result<Vec<Value>> {
        let Some(resource) = self.resource(group, kind).await? else {
            return Ok(Vec::new());
        };
        let api =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &resource);
        match pages(&api, &resource, selector).await {
            Ok(objects) => Ok(objects),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.unread.insert(kind.to_owned());
                Ok(Vec::new())
            }
            Err(error) => Err(error_of(&self.cluster, &error, &format!("list {kind}"))),
        }
    }

    async fn resource(&mut self, group: &str, kind: &str) -> anyhow::Result<Option<ApiResource>> {
        let key = (group.to_owned(), kind.to_owned());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let found = match discovery::group(&self.cluster.client, group).await {
            Ok(group) => group.recommended_kind(kind).map(|(resource, _)| resource),
            Err(kube::Error::Discovery(_)) => None,
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                let attempt = format!("look up API group {group}");
                return Err(error_of(&self.cluster, &error, &attempt));
            }
        };
        self.known.insert(key, found.clone());
        Ok(found)
    }
}

fn error_of(cluster: &Cluster, error: &kube::Error, attempt: &str) -> anyhow::Error {
    anyhow::anyhow!("cannot {attempt} at {}: {error}", cluster.url)
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn json_of(object: &DynamicObject, resource: &ApiResource) -> anyhow::Result<Value> {
    let mut json = serde_json::to_value(object)?;
    json["apiVersion"] = resource.api_version.clone().into();
    json["kind"] = resource.kind.clone().into();
    Ok(json)
}

/// Lists page by page.
async fn pages(
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    selector: &str,
) -> kube::Result<Vec<Value>> {
    let mut objects = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    if !selector.is_empty() {
        params = params.labels(selector);
    }
    loop {
        let page = api.list(&params).await?;
        for object in &page.items {
            let mut json = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
            json["apiVersion"] = resource.api_version.clone().into();
            json["kind"] = resource.kind.clone().into();
            objects.push(json);
        }
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(objects),
        }
    }
}

/// Lists all objects of a kind in a cluster; returns none if the cluster does not know the kind.
pub(crate) async fn everything(
    client: &Client,
    resource: &ApiResource,
) -> Result<Vec<Value>, String> {
    let api = Api::all_with(client.clone(), resource);
    match pages(&api, resource, "").await {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        outcome => outcome.map_err(|error| format!("{} {}", resource.plural, reason_of(&error))),
    }
}

/// Calls a function with each object of a kind in a cluster: what it does not keep is freed page by page. A cluster
/// that
/// does not know the kind has none.
pub(crate) async fn each<K>(client: &Client, mut keep: impl FnMut(K)) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list(&params).await {
            Err(error) if is_gone(&error) => return Ok(()),
            page => page?,
        };
        page.items.into_iter().for_each(&mut keep);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// Returns the last cause of a read error: the outermost error only reports that the read failed.
pub(crate) fn reason_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("cannot be read: {}", status.message);
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    format!("cannot be read, the API server is unreachable: {last}")
}
