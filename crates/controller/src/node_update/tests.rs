//! The whole way of three workers through real API servers.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{Goal, MachineRef, NodeUpdate, Origin, Phase, node_update_name},
};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::json;

use super::lab::{Lab, WORKERS, made_in, phase};
use crate::{
    NewNodeUpdate,
    sabotage::Safeguard,
    testing::{self, FakeApi, context},
};

#[tokio::test(start_paused = true)]
async fn three_workers_are_updated_one_after_the_other() {
    let lab = Lab::new().await;
    lab.ask().await;
    Box::pin(lab.run(Duration::from_hours(100))).await;
    lab.assert_clean().await;
    let updates = lab.updates().await;
    assert_eq!(updates[0].name_any(), node_update_name("w-0", 1));
    assert_eq!(updates.len(), WORKERS.len());
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_dies_every_few_seconds_comes_to_the_same_end() {
    for millis in [6100, 7300, 8900] {
        let lab = Lab::new().await;
        lab.ask().await;
        Box::pin(lab.run(Duration::from_millis(millis))).await;
        lab.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_allows_nothing_is_named_until_it_is_gone() {
    let lab = Lab::new().await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(Lab::client(&lab.workload));
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
    });
    let _: PodDisruptionBudget = made_in(&budgets, budget).await;
    let pods: Api<Pod> = Api::default_namespaced(Lab::client(&lab.workload));
    for name in WORKERS {
        let running = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let name = format!("web-{name}");
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&running)).await.unwrap();
    }
    lab.ask().await;
    let seen = async {
        let mut named = false;
        loop {
            tokio::time::sleep(Duration::from_secs(20)).await;
            let updates = lab.updates().await;
            let blocked =
                updates.iter().filter_map(|update| update.status.as_ref()).any(|status| {
                    status.blocked_by.iter().any(|blocker| blocker.object == "default/web")
                });
            if blocked && !named {
                named = true;
                budgets.delete("web", &<_>::default()).await.unwrap();
            }
            if named && updates.iter().all(|update| phase(update) == Phase::Succeeded) {
                break;
            }
        }
        tokio::time::sleep(Duration::from_hours(10)).await;
    };
    tokio::select! {
        biased;
        () = lab.run(Duration::from_hours(100)) => {}
        () = seen => {}
    }
    lab.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_agents_need_is_installed_once() {
    let lab = Lab::new().await;
    let looks = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let revision = lab.workload.revision();
        let namespaces: Api<Namespace> = Api::all(Lab::client(&lab.workload));
        assert!(namespaces.get_opt(keys::HOST_PLAN_NAMESPACE).await.unwrap().is_some());
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(lab.workload.revision(), revision);
    };
    let lives = async {
        loop {
            let _ = tokio::time::timeout(Duration::from_mins(5), Box::pin(lab.controller())).await;
        }
    };
    tokio::select! {
        biased;
        () = looks => {}
        () = lab.serve() => {}
        () = lives => {}
    }
}

#[tokio::test(start_paused = true)]
async fn without_slots_the_invariants_notice() {
    let mut lab = Lab::new().await;
    lab.without = Some(Safeguard::Slot);
    lab.ask().await;
    Box::pin(lab.run(Duration::from_hours(100))).await;
    let violations = lab.violations.lock().unwrap().clone();
    assert!(violations.iter().any(|line| line.starts_with("invariant 1: ")), "{violations:?}");
}

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
    assert_eq!(phase(&api.node_updates()[0]), Phase::Pending);
    assert!(ctx.stores.machines.get(&ObjectKey::of(&machine)).is_some());

    let new = crate::node_update(&asked("w-8", "gone"), 1);
    let update = updates.create(&PostParams::default(), &new).await.unwrap();
    ctx.stores.node_updates.insert(update.clone());
    for _ in 0..2 {
        super::reconcile(&ctx, &ObjectKey::of(&update)).await.unwrap();
    }
    let ended = updates.get("w-8-1").await.unwrap();
    assert_eq!(phase(&ended), Phase::Stopped);
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
