//! The complete update of three workers through real API servers.

mod disruption_policy;
mod errors;
mod host_settings;
pub(crate) mod lab;
mod neighbours;
mod pruned;
mod refused;
mod until;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use refit_controller::sabotage::Safeguard;
use refit_kinds::{
    keys,
    refit::{Phase, node_update_name},
};
use serde_json::{Value, json};

use self::lab::{Lab, WORKERS, phase};
use crate::common::{
    objects::{label_default, made_in},
    site::settle,
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
async fn a_controller_that_is_killed_often_reaches_the_same_end() {
    for millis in [6100, 7300, 8900] {
        let lab = Lab::new().await;
        lab.ask().await;
        Box::pin(lab.run(Duration::from_millis(millis))).await;
        lab.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocking_budget_is_named_until_it_is_removed() {
    let lab = Lab::new().await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(lab.site.workload_client());
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
    });
    let _: PodDisruptionBudget = made_in(&budgets, budget).await;
    let pods: Api<Pod> = Api::default_namespaced(lab.site.workload_client());
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
async fn workers_of_a_hosted_control_plane_wait_for_the_version_of_its_api_server() {
    let lab = Lab::new().await;
    lab.site.workload.set_git_version(lab::FROM);
    lab.ask().await;
    let waited = AtomicBool::new(false);
    let changes = async {
        tokio::time::sleep(Duration::from_mins(10)).await;
        for update in lab.updates().await {
            let status = update.status.unwrap();
            assert_eq!(status.phase, Phase::Pending, "{status:?}");
            assert_eq!(status.blocked_by[0].reason, "ControlPlaneBehind", "{status:?}");
        }
        waited.store(true, Ordering::Relaxed);
        // No object changes with it.
        lab.site.workload.set_git_version(lab::GOAL);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = lab.run(Duration::from_hours(100)) => {}
        () = changes => {}
    }
    assert!(waited.into_inner());
    lab.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_and_crd_of_agents_are_installed_once() {
    let lab = Lab::new().await;
    let looks = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let revision = lab.site.workload.revision();
        let namespaces: Api<Namespace> = Api::all(lab.site.workload_client());
        assert!(namespaces.get_opt(keys::HOST_PLAN_NAMESPACE).await.unwrap().is_some());
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(lab.site.workload.revision(), revision);
    };
    tokio::select! {
        biased;
        () = looks => {}
        () = lab.lives(Duration::from_mins(5)) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn without_slots_the_invariants_are_violated() {
    let mut lab = Lab::new().await;
    lab.without = Some(Safeguard::Slot);
    lab.ask().await;
    Box::pin(lab.run(Duration::from_hours(100))).await;
    let violations = lab.violations.lock().unwrap().clone();
    assert!(violations.iter().any(|line| line.starts_with("invariant 1: ")), "{violations:?}");
}

/// Labels the namespace of the Machines, or removes the label.
async fn opt_in(lab: &Lab, value: Value) {
    label_default(&lab.site.client(), json!({ keys::IN_PLACE: value })).await;
    settle().await;
}

async fn namespace_of_agents(lab: &Lab) -> Option<Namespace> {
    let namespaces: Api<Namespace> = Api::all(lab.site.workload_client());
    namespaces.get_opt(keys::HOST_PLAN_NAMESPACE).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_a_namespace_that_did_not_opt_in_is_left_alone() {
    let lab = Lab::new().await;
    opt_in(&lab, Value::Null).await;
    let before = lab.site.workload.revision();
    let _controller = lab.site.start(None);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(lab.site.workload.revision(), before, "nothing is written there");
    let metrics = lab.site.metrics().await;
    assert!(!metrics.contains("edge-1"), "no agent is missing: {metrics}");
    opt_in(&lab, keys::OPTED_IN.into()).await;
    assert!(namespace_of_agents(&lab).await.is_some());
    assert!(lab.site.metrics().await.contains("edge-1"));
    opt_in(&lab, Value::Null).await;
    assert!(!lab.site.metrics().await.contains("edge-1"), "the connection ends");
}

#[tokio::test(start_paused = true)]
async fn an_update_ends_although_its_namespace_opted_out() {
    let lab = Lab::new().await;
    let opting_out = async {
        lab.ask().await;
        let mut opted_out = false;
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            lab.hosts_work().await;
            let updates = lab.updates().await;
            if !opted_out && updates.iter().any(|update| phase(update) >= Phase::Upgrading) {
                opt_in(&lab, Value::Null).await;
                opted_out = true;
            }
            if updates.iter().all(|update| phase(update) == Phase::Succeeded) {
                break;
            }
        }
        assert!(opted_out);
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(!lab.site.metrics().await.contains("edge-1"), "nothing is left to do there");
    };
    tokio::select! {
        biased;
        () = opting_out => {}
        () = lab.lives(Duration::from_hours(100)) => panic!("the updates do not end"),
    }
    lab.assert_clean().await;
}
