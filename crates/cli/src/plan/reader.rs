//! Reads of a live cluster as JSON, which loses nothing that a typed object would not know.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams},
    discovery::{self, ApiResource},
};
use refit_runtime::{client::ClientStack, workload::Workloads};
use serde_json::Value;

use crate::client::{Cluster, attempt};

/// How many objects a list brings at once.
const PAGE: u32 = 500;

/// How workload clusters are reached.
#[derive(Clone)]
pub(crate) enum Access {
    /// Through their kubeconfig Secrets.
    Secrets(Workloads),
    /// Through clients that are there already, by the Cluster's name.
    #[cfg(all(test, feature = "sandbox"))]
    Given(BTreeMap<String, Client>),
}

/// Reads what a plan or a diagnosis needs.
#[derive(Clone)]
pub(crate) struct Reader {
    /// The management cluster.
    pub(crate) cluster: Cluster,
    /// Its workload clusters.
    pub(crate) access: Access,
    known: BTreeMap<(String, String), Option<ApiResource>>,
    /// Kinds that may not be read.
    pub(crate) unread: BTreeSet<String>,
}

/// What a read brought.
pub(crate) enum Found<T> {
    /// It was read.
    Read(T),
    /// There is no such kind or object.
    Absent,
    /// It may not be read.
    Forbidden,
}

impl Reader {
    /// A reader of this cluster.
    pub(crate) fn new(cluster: Cluster) -> Self {
        let stack = ClientStack::production(concat!("refit-cli/", env!("CARGO_PKG_VERSION")));
        let workloads = Workloads::new(cluster.client.clone(), stack, cluster.clock);
        Self::with(cluster, Access::Secrets(workloads))
    }

    /// A reader with its own way to workload clusters.
    pub(crate) fn with(cluster: Cluster, access: Access) -> Self {
        Self { cluster, access, known: BTreeMap::new(), unread: BTreeSet::new() }
    }

    /// A client of a workload cluster, or why there is none.
    pub(crate) async fn workload(&self, name: &str) -> Result<Client, String> {
        match &self.access {
            Access::Secrets(workloads) => workloads
                .client(&self.cluster.namespace, name)
                .await
                .map_err(|error| error.to_string()),
            #[cfg(all(test, feature = "sandbox"))]
            Access::Given(clients) => {
                clients.get(name).cloned().ok_or_else(|| format!("there is no client for {name}"))
            }
        }
    }

    /// All objects of a kind of ours or of Cluster API's in the namespace.
    pub(crate) async fn list<K>(&self, selector: &str) -> anyhow::Result<Found<Vec<Value>>>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api =
            Api::namespaced_with(self.cluster.client.clone(), &self.cluster.namespace, &resource);
        match pages(&api, &resource, selector).await {
            Err(error) if is_gone(&error) => Ok(Found::Absent),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Found::Forbidden),
            outcome => {
                let explain = |error| self.cluster.explain(error, &attempt::<K>("list"));
                outcome.map(Found::Read).map_err(explain)
            }
        }
    }

    /// All objects of a kind in all namespaces; where that is forbidden, in the one that was asked
    /// for.
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

    /// All objects of a kind that must be there.
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

    /// One object by the reference that leads to it; its version is asked for once per kind.
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

    /// All objects of a kind that a reference names.
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

/// All objects of a kind in a cluster; none where the cluster does not know the kind.
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

/// Why a read failed, to the last cause: the outermost error only says that it did.
pub(crate) fn reason_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("cannot be read: {}", status.message);
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    format!("cannot be read, the API server is not reached: {last}")
}

/// What is read of a workload cluster.
pub(crate) struct Workload {
    /// HostPlans.
    pub(crate) plans: Vec<Value>,
    /// Nodes.
    pub(crate) nodes: Vec<Value>,
    /// PodDisruptionBudgets.
    pub(crate) budgets: Vec<Value>,
    /// Pods that budgets protect.
    pub(crate) pods: Vec<Value>,
}

/// Reads a workload cluster, or says why it cannot be.
pub(crate) async fn workload(client: &Client) -> Result<Workload, String> {
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use refit_kinds::refit::HostPlan;
    async fn of<K: Resource<DynamicType = ()>>(client: &Client) -> Result<Vec<Value>, String> {
        everything(client, &ApiResource::erase::<K>(&())).await
    }
    let budgets = of::<PodDisruptionBudget>(client).await?;
    let tight = budgets
        .iter()
        .any(|budget| budget.pointer("/status/disruptionsAllowed") == Some(&Value::from(0)));
    Ok(Workload {
        plans: of::<HostPlan>(client).await?,
        nodes: of::<Node>(client).await?,
        // Most are read for nothing where every budget has room.
        pods: if tight { of::<Pod>(client).await? } else { Vec::new() },
        budgets,
    })
}
