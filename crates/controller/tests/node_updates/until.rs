//! `spec.until` of a NodeUpdate, as the API server checks it.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use refit_kinds::refit::{NodeUpdate, Until};
use serde_json::json;

use super::lab::{Lab, asked};
use crate::common::site::settle;

/// The NodeUpdate with this ordinal, without a Machine: the garbage collector would delete it with one.
fn update(ordinal: usize, until: Until) -> NodeUpdate {
    let mut update = asked("w-0", "uid-w-0");
    update.metadata.name = Some(format!("w-0-{ordinal}"));
    update.metadata.owner_references = None;
    update.spec.until = until;
    update
}

/// Whether the API server lets the field go from one value to the other.
async fn moves(updates: &Api<NodeUpdate>, ordinal: usize, from: Until, to: Until) -> bool {
    let update = update(ordinal, from);
    updates.create(&PostParams::default(), &update).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"until": to}}));
    match updates.patch(&update.name_any(), &PatchParams::default(), &change).await {
        Ok(changed) => changed.spec.until == to,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("until only moves forward"), "{text}");
            false
        }
    }
}

#[tokio::test(start_paused = true)]
async fn until_only_moves_forward() {
    let lab = Lab::new().await;
    settle().await;
    let updates: Api<NodeUpdate> = Api::default_namespaced(lab.site.client());
    let all = [Until::Stage, Until::Upgrade, Until::Disrupt];
    let mut ordinal = 0;
    for from in all {
        for to in all {
            ordinal += 1;
            let wanted = from <= to;
            assert_eq!(moves(&updates, ordinal, from, to).await, wanted, "{from} to {to}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_until_an_update_runs_to_completion() {
    let lab = Lab::new().await;
    settle().await;
    let updates: Api<NodeUpdate> = Api::default_namespaced(lab.site.client());
    updates.create(&PostParams::default(), &update(1, Until::Stage)).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"until": null}}));
    let changed = updates.patch("w-0-1", &PatchParams::default(), &change).await.unwrap();
    assert_eq!(changed.spec.until, Until::Disrupt);
}
