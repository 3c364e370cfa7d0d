//! Reads the data for a drain's decisions: pods, MachineDrainRules, namespaces, volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::{Machine, MachineDrainRule};
use refit_core::{
    node::{
        Attachment, DrainPolicy, DrainView, PodRef, PodView, asks_for_namespaces, claims_that_stay,
        is_emptied, rules_of,
    },
    report::Refusal,
};

use crate::{
    api_error::ReadError, context::Context, groups::controller_of, host_plan::cluster_key,
};

/// How many VolumeAttachments one request lists.
const ATTACHMENTS_PAGE: u32 = 500;

/// Annotation of a pod that the kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

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
    let mut view = DrainView {
        rules: rules(ctx, target.machine).await?,
        pods: pods_on(client, target.node).await.map_err(pods())?,
        ..DrainView::default()
    };
    if asks_for_namespaces(&view.rules) {
        view.namespaces = namespaces(client).await.map_err(pods())?;
    }
    let now = ctx.clock.now();
    if is_emptied(&view, target.policy, target.node_ready, now) {
        let volumes = attachments(client, target, &view, now).await;
        view.attachments = Some(volumes.map_err(pods())?);
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
    let mut pods: Vec<PodView> = list.items.iter().map(view).collect();
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    Ok(pods)
}

fn view(pod: &Pod) -> PodView {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let owner = controller_of(pod.owner_references());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let volumes = volumes.unwrap_or_default();
    let meta = &pod.metadata;
    PodView {
        pod: PodRef {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        },
        daemon_set: owner.is_some_and(|owner| owner.kind == "DaemonSet"),
        mirror: pod.annotations().contains_key(MIRROR),
        finished: matches!(phase, Some("Succeeded" | "Failed")),
        terminating: meta.deletion_timestamp.is_some(),
        unreplicated: owner.is_none(),
        local_storage: volumes.iter().any(|volume| volume.empty_dir.is_some()),
        labels: pod.labels().clone(),
        claims: volumes
            .iter()
            .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name.clone()),
                // Kubernetes creates the claim under this name.
                (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
                (None, None) => None,
            })
            .collect(),
        created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
        deletion_at: meta.deletion_timestamp.as_ref().map(|time| time.0),
        deletion_grace_seconds: meta.deletion_grace_period_seconds,
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> PodView {
        view(&serde_json::from_value(value).unwrap())
    }

    fn owner(kind: &str) -> serde_json::Value {
        json!([{
            "apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "1", "controller": true,
        }])
    }

    #[test]
    fn daemon_sets_mirrors_and_finished_pods_are_recognised() {
        let daemon = pod(json!({"metadata": {"name": "a", "ownerReferences": owner("DaemonSet")}}));
        assert!(daemon.daemon_set && !daemon.unreplicated);
        let mirror = json!({"name": "b", "annotations": {MIRROR: "x"}});
        assert!(pod(json!({"metadata": mirror})).mirror);
        assert!(pod(json!({"metadata": {"name": "c"}, "status": {"phase": "Failed"}})).finished);
    }

    #[test]
    fn unreplicated_pods_and_local_storage_are_recognised() {
        assert!(pod(json!({"metadata": {"name": "a"}})).unreplicated);
        let full = pod(json!({
            "metadata": {
                "name": "a", "labels": {"app": "db"}, "ownerReferences": owner("StatefulSet"),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30,
            },
            "spec": {"containers": [], "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
            ]},
        }));
        assert!(full.local_storage && full.terminating && !full.unreplicated);
        assert_eq!(full.claims, ["data-0"]);
        assert_eq!(full.labels["app"], "db");
        assert_eq!(full.deletion_grace_seconds, Some(30));
        assert!(full.created_at < full.deletion_at);
    }
}
