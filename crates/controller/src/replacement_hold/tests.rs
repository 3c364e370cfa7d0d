use refit_kinds::refit::Admission;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;
use crate::scan_tests::unconnected;

const NAMESPACE: &str = "fleet";

fn object<K: DeserializeOwned>(name: &str, mut body: Value) -> K {
    body["metadata"]["namespace"] = NAMESPACE.into();
    body["metadata"]["name"] = name.into();
    body["metadata"]["resourceVersion"] = "1".into();
    serde_json::from_value(body).unwrap()
}

/// Adds a control plane of one Machine, which does not exist yet.
fn add_plane(ctx: &Context, name: &str, metadata: &Value) {
    let reference = json!({"apiGroup": "a", "kind": "A", "name": "a"});
    let body = json!({
        "metadata": metadata,
        "spec": {"replicas": 1, "version": "v1.35.0",
                 "machineTemplate": {"spec": {"infrastructureRef": reference}}},
    });
    ctx.stores.control_planes.insert(object(name, body));
}

fn entry(ctx: &Context) -> Option<HeldOwner> {
    held(ctx, HeldKind::KubeadmControlPlane, &ObjectKey::new(NAMESPACE, "cp")).entry
}

fn replaces() -> Value {
    json!({keys::ON_UNCOVERED: "Replace"})
}

#[tokio::test]
async fn an_owner_without_a_known_cluster_is_held_by_its_own_annotations_and_a_missing_one_is_not()
{
    for (metadata, is_held) in [
        (json!({}), true),
        (json!({"labels": {keys::CLUSTER_NAME: "unknown"}}), true),
        (json!({"annotations": replaces()}), false),
    ] {
        let ctx = unconnected();
        assert_eq!(entry(&ctx), None);
        add_plane(&ctx, "cp", &metadata);
        assert_eq!(entry(&ctx).is_some(), is_held, "{metadata}");
    }
}

#[tokio::test]
async fn an_owner_without_the_label_of_its_cluster_has_the_policy_of_the_cluster_that_owns_it() {
    for (annotations, is_held) in [(json!({}), true), (replaces(), false)] {
        let ctx = unconnected();
        let owner = json!([{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "edge-1", "uid": "1",
        }]);
        add_plane(&ctx, "cp", &json!({"ownerReferences": owner}));
        let cluster = json!({"metadata": {"annotations": annotations}, "spec": {}});
        ctx.stores.clusters.insert(object("edge-1", cluster));
        assert_eq!(entry(&ctx).is_some(), is_held, "{annotations}");
    }
}

#[tokio::test]
async fn an_owner_whose_entry_is_as_before_costs_no_write() {
    let ctx = unconnected();
    let kind = HeldKind::KubeadmControlPlane;
    add_plane(&ctx, "cp", &json!({"annotations": replaces()}));
    // Without order, which the next look at the namespace corrects.
    let owners = vec![refused(kind, "z"), refused(kind, "a")];
    let spec = ReplacementHoldSpec { callers: Vec::new(), owners };
    let hold = ReplacementHold::new(REPLACEMENT_HOLD, spec);
    let key = ObjectKey::new(NAMESPACE, "cp");
    assert_eq!(one(&ctx, kind, &key, &hold).await.unwrap(), Action::Done);
}

#[tokio::test]
async fn an_own_write_does_not_have_all_owners_looked_at() {
    let ctx = unconnected();
    let written: ReplacementHold = object(REPLACEMENT_HOLD, json!({"spec": {}}));
    assert!(!ctx.own_holds.is_last(&written));
    ctx.own_holds.note(&written);
    assert!(ctx.own_holds.is_last(&written));
    let mut edited = written.clone();
    edited.metadata.resource_version = Some("2".into());
    assert!(!ctx.own_holds.is_last(&edited), "another client has written it");
}

#[tokio::test]
async fn a_new_replacement_hold_allows_nothing_before_live_reads() {
    let ctx = unconnected();
    // The first Machine may be created, and Cluster API may replace all of the other one.
    add_plane(&ctx, "cp", &json!({}));
    add_plane(&ctx, "free", &json!({"annotations": replaces()}));
    let Known { owners, may_allow_more, .. } = by_caches(&ctx, NAMESPACE, None);
    let kind = HeldKind::KubeadmControlPlane;
    assert_eq!(owners, [refused(kind, "cp"), refused(kind, "free")]);
    assert_eq!(may_allow_more, [(kind, "cp".into()), (kind, "free".into())].into());
}

#[tokio::test]
async fn the_caches_take_from_a_replacement_hold_and_leave_the_rest_to_live_reads() {
    let ctx = unconnected();
    let kind = HeldKind::KubeadmControlPlane;
    let allowed = |name: &str| HeldOwner {
        create: Admission::Allowed,
        delete: Admission::Allowed,
        ..refused(kind, name)
    };
    for name in ["known", "new", "refused"] {
        add_plane(&ctx, name, &json!({}));
    }
    let owners = vec![allowed("gone"), allowed("known"), refused(kind, "refused")];
    let spec = ReplacementHoldSpec { callers: Vec::new(), owners };
    let hold = ReplacementHold::new(REPLACEMENT_HOLD, spec);
    let Known { owners, may_allow_more, .. } = by_caches(&ctx, NAMESPACE, Some(&hold));
    let creates = |name: &str| HeldOwner { delete: Admission::Refused, ..allowed(name) };
    let wanted = [allowed("gone"), creates("known"), creates("new"), refused(kind, "refused")];
    assert_eq!(owners, wanted);
    assert_eq!(may_allow_more, [(kind, "gone".into()), (kind, "refused".into())].into());
}
