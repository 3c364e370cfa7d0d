//! One reconciliation over stores and an API that do not agree.

use kube::{Api, ResourceExt as _, api::PostParams};
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Goal, MachineRef, NodeUpdate, Origin, Phase};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::json;

use crate::{
    NewNodeUpdate,
    groups::phase_of,
    testing::{self, FakeApi, context},
};

fn asked(machine: &str, uid: &str) -> NewNodeUpdate {
    NewNodeUpdate {
        namespace: "default".into(),
        machine: MachineRef { name: machine.into(), uid: uid.into() },
        origin: Origin::Task,
        goal: Goal { kubernetes_version: "v1.35.0".into(), ..Goal::default() },
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_forbidden_is_shown_in_the_status() {
    let api = FakeApi::default();
    let ctx = testing::fleet(&api);
    let updates: Api<NodeUpdate> = Api::default_namespaced(api.client());
    let new = crate::node_update(&asked("edge-1-w-0", "uid-edge-1-w-0"), 1);
    let update = updates.create(&PostParams::default(), &new).await.unwrap();
    ctx.stores.node_updates.insert(update.clone());
    api.forbid("/machines/");
    let key = ObjectKey::of(&update);
    super::reconcile(&ctx, &key).await.unwrap();
    let writes = api.writes().len();
    let action = super::reconcile(&ctx, &key).await.unwrap();
    assert_eq!(action, Action::RequeueAfter(super::AFTER_REFUSAL));
    let status = api.node_updates()[0].status.clone().unwrap();
    let refused = status.blocked_by.iter().find(|b| b.reason == "ApiRefused");
    assert_eq!(
        refused.map(|blocker| blocker.object.as_str()),
        Some("a write to the Machine's status")
    );
    for _ in 0..3 {
        super::reconcile(&ctx, &key).await.unwrap();
    }
    assert_eq!(api.writes().len(), writes + 1, "it is said once: {:?}", api.writes());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_the_cache_lacks_is_asked_for_before_its_update_is_ended() {
    let api = FakeApi::default();
    let ctx = context(&api);
    ctx.stores.mark_ready();
    let client = api.client();
    let mut machine = testing::machine("w-9", "v1.34.2");
    machine.metadata.uid = None;
    let machines: Api<Machine> = Api::default_namespaced(client.clone());
    let machine = machines.create(&PostParams::default(), &machine).await.unwrap();
    let updates: Api<NodeUpdate> = Api::default_namespaced(client);
    let new = crate::node_update(&asked("w-9", &machine.uid().unwrap()), 1);
    let update = updates.create(&PostParams::default(), &new).await.unwrap();
    ctx.stores.node_updates.insert(update.clone());
    let key = ObjectKey::of(&update);
    super::reconcile(&ctx, &key).await.unwrap();
    assert_eq!(phase_of(&api.node_updates()[0]), Phase::Pending);
    assert!(ctx.stores.machines.get(&ObjectKey::of(&machine)).is_some());

    let new = crate::node_update(&asked("w-8", "gone"), 1);
    let update = updates.create(&PostParams::default(), &new).await.unwrap();
    ctx.stores.node_updates.insert(update.clone());
    for _ in 0..2 {
        super::reconcile(&ctx, &ObjectKey::of(&update)).await.unwrap();
    }
    let ended = updates.get("w-8-1").await.unwrap();
    assert_eq!(phase_of(&ended), Phase::Stopped);
}

#[test]
fn only_what_another_attempt_cannot_bring_is_a_refusal() {
    let error = |code: u16| {
        let status = json!({"status": "Failure", "message": "no", "reason": "", "code": code});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    };
    for (code, refused) in [
        (400, true),
        (401, false),
        (403, true),
        (404, false),
        (409, false),
        (422, true),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let got = super::act::refusal("a write to the Node", &error(code));
        assert_eq!(got.is_some(), refused, "{code}");
    }
}
