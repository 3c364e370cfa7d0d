//! Reads the data for a drain's decisions: pods, MachineDrainRules, namespaces, budgets, volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::{Machine, MachineDrainRule};
use refit_core::{
    node::{
        Attachment, BudgetView, DrainAhead, DrainPolicy, DrainView, PodView, asks_for_namespaces,
        claims_that_stay, is_emptied, namespaces_of_leaving, rules_of,
    },
    report::Refusal,
};

use crate::{api_error::ReadError, context::Context, host_plan::cluster_key};

/// How many VolumeAttachments one request lists.
const ATTACHMENTS_PAGE: u32 = 500;

/// The node to drain, with its Machine and policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainTarget<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) node: &'a str,
    pub(crate) node_ready: bool,
    pub(crate) policy: &'a DrainPolicy,
}

/// Reads everything on a node that a drain needs.
pub(crate) async fn look(
    ctx: &Context,
    client: &Client,
    target: DrainTarget<'_>,
) -> Result<DrainView, ReadError> {
    let pods = || ReadError::workload("the list of pods");
    let mut view = look_at_pods(ctx, client, target).await?;
    let now = ctx.clock.now();
    if is_emptied(&view, target.policy, target.node_ready, now) {
        let volumes = attachments(client, target, &view, now).await;
        view.attachments = Some(volumes.map_err(pods())?);
    }
    Ok(view)
}

/// Reads what a drain would find on a node, before it begins.
pub(crate) async fn look_ahead(
    ctx: &Context,
    client: &Client,
    target: DrainTarget<'_>,
) -> Result<DrainAhead, ReadError> {
    let view = look_at_pods(ctx, client, target).await?;
    let now = ctx.clock.now();
    let mut budgets = Vec::new();
    for namespace in namespaces_of_leaving(&view, target.policy, target.node_ready, now) {
        let api: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
        let list = api.list(&ListParams::default()).await;
        let list = list.map_err(ReadError::workload("the list of PodDisruptionBudgets"))?;
        budgets.extend(list.items.iter().map(BudgetView::of));
    }
    Ok(DrainAhead { view, budgets })
}

async fn look_at_pods(
    ctx: &Context,
    client: &Client,
    target: DrainTarget<'_>,
) -> Result<DrainView, ReadError> {
    let pods = || ReadError::workload("the list of pods");
    let mut view = DrainView {
        rules: rules(ctx, target.machine).await?,
        pods: pods_on(client, target.node).await.map_err(pods())?,
        ..DrainView::default()
    };
    if asks_for_namespaces(&view.rules) {
        view.namespaces = namespaces(client).await.map_err(pods())?;
    }
    Ok(view)
}

/// The MachineDrainRules of a Machine.
async fn rules(ctx: &Context, machine: &Machine) -> Result<Vec<MachineDrainRule>, ReadError> {
    let namespace = machine.namespace().unwrap_or_default();
    let store = &ctx.stores.drain_rules;
    let unreadable = store.unreadable();
    if let Some((key, why)) = unreadable.iter().find(|(key, _)| key.namespace == namespace) {
        return Err(ReadError::Object(Refusal::ApiRefused {
            what: format!("MachineDrainRule {key}"),
            message: format!("cannot read it: {why}"),
        }));
    }
    let all = if store.is_ready() {
        let known = store.list_in(&namespace);
        known.iter().map(|rule| rule.as_ref().clone()).collect()
    } else {
        let api: Api<MachineDrainRule> = Api::namespaced(ctx.client.clone(), &namespace);
        match api.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // 404 means that the kind does not exist: this Cluster API has no drain rules.
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => {
                return Err(ReadError::management("the list of MachineDrainRules")(error));
            }
        }
    };
    let cluster = ctx.stores.clusters.get(&cluster_key(machine));
    let none = BTreeMap::new();
    let cluster_labels = cluster.as_deref().map_or(&none, |cluster| cluster.labels());
    Ok(rules_of(all, machine.labels(), cluster_labels))
}

/// The pods of a node, in order of namespace and name.
async fn pods_on(client: &Client, node: &str) -> kube::Result<Vec<PodView>> {
    let api: Api<Pod> = Api::all(client.clone());
    let list = api.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await?;
    let mut pods: Vec<PodView> = list.items.iter().map(PodView::of).collect();
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    Ok(pods)
}

async fn namespaces(client: &Client) -> kube::Result<BTreeMap<String, BTreeMap<String, String>>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let list = api.list_metadata(&ListParams::default()).await?;
    let name_and_labels = |namespace: &kube::core::PartialObjectMeta<Namespace>| {
        (namespace.name_any(), namespace.labels().clone())
    };
    Ok(list.items.iter().map(name_and_labels).collect())
}

/// Volumes that are attached to the node, except those of pods that stay.
async fn attachments(
    client: &Client,
    target: DrainTarget<'_>,
    view: &DrainView,
    now: Timestamp,
) -> kube::Result<Vec<Attachment>> {
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    // They cannot be selected by Node: a large cluster has more than one answer may contain.
    let mut page = ListParams::default().limit(ATTACHMENTS_PAGE);
    let mut here: Vec<Attachment> = Vec::new();
    loop {
        let list = api.list(&page).await?;
        let on_node = list.items.into_iter().filter(|one| one.spec.node_name == target.node);
        here.extend(on_node.map(|one| Attachment {
            name: one.name_any(),
            volume: one.spec.source.persistent_volume_name.unwrap_or_default(),
        }));
        page.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
        if page.continue_token.is_none() {
            break;
        }
    }
    if here.is_empty() {
        return Ok(here);
    }
    let mut in_use = BTreeSet::new();
    for (namespace, claim) in claims_that_stay(view, target.policy, target.node_ready, now) {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let claim = api.get_opt(&claim).await?;
        in_use.extend(claim.and_then(|claim| claim.spec?.volume_name));
    }
    here.retain(|one| !in_use.contains(&one.volume));
    here.sort();
    Ok(here)
}
