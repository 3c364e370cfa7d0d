//! Reads a workload cluster for a plan. Nodes, volumes and pods are many: only what a plan uses of each is kept.

use std::collections::BTreeSet;

use futures::{AsyncBufReadExt as _, AsyncReadExt as _, TryStreamExt as _};
use http::Request;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{ConfigMap, Namespace, Node, PersistentVolume, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, Resource, ResourceExt as _, discovery::ApiResource};
use refit_kinds::refit::HostPlan;
use refit_predict::{
    Hosts, NodeFacts,
    placement::Volumes,
    target::{DeprecatedApi, TargetFacts, Webhook},
};

use super::reader::{each, everything, reason_of};

/// How much of an API server's metrics is read. Those of a cluster with thousands of nodes are some 50 MiB.
const MOST_METRICS: u64 = 256 << 20;

/// Reads a workload cluster; the error gives the reason. Labels of namespaces are read if MachineDrainRules require
/// them.
pub(super) async fn read(client: &Client, asks_for_namespaces: bool) -> Result<Hosts, String> {
    let plans = everything(client, &ApiResource::erase::<HostPlan>(&())).await?;
    let budgets = everything(client, &ApiResource::erase::<PodDisruptionBudget>(&())).await?;
    let mut nodes = Vec::new();
    each(client, |node: Node| nodes.push(NodeFacts::of(&node)))
        .await
        .map_err(|error| failed::<Node>(&error))?;
    let (mut volumes, mut notes) = (Volumes::default(), Vec::new());
    if let Err(error) = each(client, |volume: PersistentVolume| volumes.add(&volume)).await {
        notes.push(format!(
            "{}: pods whose volumes are bound to their nodes may count as pods that other nodes can take",
            failed::<PersistentVolume>(&error)
        ));
    }
    let mut hosts = Hosts::of_nodes(&plans, nodes, &budgets, volumes);
    hosts.notes = notes;
    if asks_for_namespaces {
        let labels = &mut hosts.namespace_labels;
        let keep = |namespace: Namespace| {
            labels.insert(namespace.name_any(), namespace.labels().clone());
        };
        each(client, keep).await.map_err(|error| failed::<Namespace>(&error))?;
    }
    target(client, &mut hosts.target).await;
    each(client, |pod: Pod| hosts.add_pod(&pod)).await.map_err(|error| failed::<Pod>(&error))?;
    Ok(hosts)
}

fn failed<K: Resource<DynamicType = ()>>(error: &kube::Error) -> String {
    format!("{} {}", K::plural(&()), reason_of(error))
}

/// Reads what shows whether a target version fits. What cannot be read is noted.
async fn target(client: &Client, facts: &mut TargetFacts) {
    match deprecated(client).await {
        Ok(apis) => facts.deprecated = apis,
        Err(error) => {
            let why = reason_of(&error);
            let note = format!("/metrics of the API server {why}: use of removed APIs is unknown");
            facts.unread_metrics = Some(note);
        }
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    match maps.get_opt("kubelet-config").await {
        Ok(map) => {
            let text = map.and_then(|map| map.data?.remove("kubelet"));
            facts.set_kubelet_configuration(&text.unwrap_or_default());
        }
        Err(error) => facts.unread.push(format!(
            "ConfigMap kube-system/kubelet-config {}: feature gates of kubelets are unknown",
            reason_of(&error)
        )),
    }
    if let Err(error) = webhooks(client, &mut facts.webhooks).await {
        facts.unread.push(format!(
            "admission webhooks {}: whether one is unavailable during a drain is unknown",
            reason_of(&error)
        ));
    }
}

/// The deprecated APIs that were requested since the API server that answers has started.
async fn deprecated(client: &Client) -> kube::Result<BTreeSet<DeprecatedApi>> {
    let request = Request::get("/metrics").body(Vec::new()).map_err(kube::Error::HttpError)?;
    let metrics = client.request_stream(request).await?;
    let mut lines = metrics.take(MOST_METRICS).lines();
    let mut found = BTreeSet::new();
    let failed = |error: std::io::Error| kube::Error::Service(error.into());
    while let Some(line) = lines.try_next().await.map_err(failed)? {
        found.extend(DeprecatedApi::of_line(&line));
    }
    Ok(found)
}

/// Webhooks with the selectors of their Services.
async fn webhooks(client: &Client, found: &mut Vec<Webhook>) -> kube::Result<()> {
    let keep = |one: ValidatingWebhookConfiguration| found.extend(Webhook::of_validating(&one));
    each(client, keep).await?;
    let keep = |one: MutatingWebhookConfiguration| found.extend(Webhook::of_mutating(&one));
    each(client, keep).await?;
    for webhook in found {
        let (namespace, name) = webhook.service();
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let service = services.get_opt(name).await?;
        let selector = service.and_then(|service| service.spec?.selector);
        webhook.select(selector.unwrap_or_default());
    }
    Ok(())
}
