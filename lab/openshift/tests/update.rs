//! The cluster-version operator and the operators of a release.

use lab_openshift::{Blueprint, Release, Workers};
use refit_kinds::json::{condition, text, time, whole_condition};
use refit_openshift::{
    cluster_version::{self, Commence},
    kinds::ClusterVersion,
    upgrade_config::Desired,
};
use serde_json::{Value, json};

use crate::common::{Lab, list, read, shown};

fn update_to(version: &str) -> Value {
    json!({"spec": {"desiredUpdate": {"version": version, "image": null}}})
}

fn message(object: &Value, type_: &str) -> String {
    whole_condition(object, type_).map_or("", |one| text(one, "/message")).to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_requested_update_updates_control_plane_and_workers() {
    let lab = Lab::start(&Blueprint::default()).await;
    let before = lab.version().await;
    assert_eq!(before["status"]["availableUpdates"][0]["version"], "4.16.4");
    assert_eq!(before["status"]["conditionalUpdates"][0]["release"]["version"], "4.16.5");
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(10).await;
    let during = lab.version().await;
    let entry = &during["status"]["history"][0];
    assert_eq!((&entry["state"], &entry["version"]), (&json!("Partial"), &json!("4.16.4")));
    assert!(time(entry, "/startedTime").is_some() && entry["completionTime"].is_null(), "{entry}");
    assert_eq!(condition(&during, "Progressing"), Some("True"));
    let shown = message(&during, "Progressing");
    assert!(
        shown.starts_with("Working towards 4.16.4: ") && shown.contains("% complete)"),
        "{shown}"
    );
    let minutes =
        lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    assert!((40..110).contains(&minutes), "as long as a real one, but {minutes} minutes");
    assert!(lab.pool_has("master", "4.16.4").await);
    lab.until(60, "workers", async |lab| lab.pool_has("worker", "4.16.4").await).await;
    let kubelet = &Release::new("4.16.4").kubelet;
    for node in lab.nodes().list(&kube::api::ListParams::default()).await.unwrap() {
        let node = json!(node);
        assert_eq!(text(&node, "/status/nodeInfo/kubeletVersion"), kubelet);
        assert!(node["spec"]["unschedulable"].is_null(), "{node}");
    }
    for operator in list(&lab.operators()).await {
        assert_eq!(text(&operator, "/status/versions/0/version"), "4.16.4");
    }
    let after = lab.version().await;
    let history = after["status"]["history"].as_array().unwrap();
    assert_eq!(history.len(), 3);
    assert_eq!(condition(&after, "Progressing"), Some("False"));
    let typed: ClusterVersion = serde_json::from_value(after).unwrap();
    assert_eq!(cluster_version::current(&typed).unwrap(), "4.16.4");
}

#[tokio::test(start_paused = true)]
async fn operators_are_updated_one_after_another() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.patch_version(update_to("4.16.4")).await;
    let mut seen = Vec::new();
    while !lab.is_completed("4.16.4").await {
        let operators = list(&lab.operators()).await;
        let busy: Vec<&Value> =
            operators.iter().filter(|one| condition(one, "Progressing") == Some("True")).collect();
        assert!(busy.len() <= 1, "{busy:?}");
        for one in busy {
            seen.push(text(one, "/metadata/name").to_owned());
        }
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    }
    seen.dedup();
    assert_eq!((&*seen[0], &*seen[1], seen.len()), ("etcd", "kube-apiserver", 14), "{seen:?}");
    assert_eq!(seen.last().unwrap(), "machine-config");
}

#[tokio::test(start_paused = true)]
async fn updates_of_a_new_channel_are_known_after_some_time() {
    let lab = Lab::start(&Blueprint::default()).await;
    let desired = Desired {
        version: Some("4.17.1".to_owned()),
        channel: Some("stable-4.17".to_owned()),
        image: None,
    };
    let typed = async || serde_json::from_value::<ClusterVersion>(lab.version().await).unwrap();
    let Commence::Channel(patch) = cluster_version::commence(&typed().await, &desired).unwrap()
    else {
        panic!("the channel comes first");
    };
    lab.patch_version(patch).await;
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert_eq!(cluster_version::commence(&typed().await, &desired).unwrap(), Commence::NotOffered);
    lab.minutes(2).await;
    let Commence::Patch(patch) = cluster_version::commence(&typed().await, &desired).unwrap()
    else {
        panic!("it is offered by now");
    };
    lab.patch_version(patch).await;
    lab.until(150, "control plane", async |lab| lab.is_completed("4.17.1").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_by_image_needs_no_offer() {
    let lab = Lab::start(&Blueprint::default()).await;
    let image = Release::new("4.16.5").image;
    lab.patch_version(json!({"spec": {"desiredUpdate": {"image": image, "version": null}}})).await;
    lab.minutes(1).await;
    assert_eq!(lab.version().await["status"]["desired"]["version"], "4.16.5");
}

#[tokio::test(start_paused = true)]
async fn a_simulation_that_is_started_again_continues() {
    let mut lab = Lab::start(&Blueprint::default()).await;
    lab.patch_version(update_to("4.16.4")).await;
    for _ in 0..6 {
        lab.minutes(7).await;
        lab.restart();
    }
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    lab.until(60, "workers", async |lab| lab.pool_has("worker", "4.16.4").await).await;
    assert_eq!(lab.version().await["status"]["history"].as_array().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_degraded_operator_stops_the_update_and_fails_it_after_40_minutes() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.set_degraded("etcd", Some("EtcdMembersDegraded: 1 of 3 members")).await.unwrap();
    lab.minutes(1).await;
    let operator = read(&lab.operators(), "etcd").await;
    assert_eq!(condition(&operator, "Degraded"), Some("True"));
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(30).await;
    assert_eq!(condition(&lab.version().await, "Failing"), Some("False"));
    lab.minutes(15).await;
    let failing = lab.version_condition("Failing").await;
    assert_eq!(failing, ("True".to_owned(), "ClusterOperatorDegraded".to_owned()));
    lab.cluster.set_degraded("etcd", None).await.unwrap();
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    assert_eq!(condition(&lab.version().await, "Failing"), Some("False"));
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_is_not_available_fails_the_update_at_once() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.set_unavailable("etcd", Some("no quorum")).await.unwrap();
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(1).await;
    assert_eq!(condition(&read(&lab.operators(), "etcd").await, "Available"), Some("False"));
    let failing = lab.version_condition("Failing").await;
    assert_eq!(failing, ("True".to_owned(), "ClusterOperatorNotAvailable".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_control_plane_does_not_proceed() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(6).await;
    lab.cluster.stall_control_plane(true).await.unwrap();
    lab.minutes(1).await;
    let before = message(&lab.version().await, "Progressing");
    lab.minutes(180).await;
    assert_eq!(message(&lab.version().await, "Progressing"), before);
    lab.cluster.stall_control_plane(false).await.unwrap();
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_update_shows_why_and_proceeds_later() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.patch_version(update_to("4.16.4")).await;
    lab.cluster.fail_update(Some("could not update deployment")).await.unwrap();
    lab.minutes(1).await;
    let seen = lab.version().await;
    assert_eq!(shown(&seen, "Failing"), ("True".to_owned(), "UpdatePayloadFailed".to_owned()));
    assert!(message(&seen, "Progressing").starts_with("Unable to apply 4.16.4"));
    lab.cluster.fail_update(None).await.unwrap();
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_update_begins_once_it_is_accepted() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.refuse_updates(Some("the signature is invalid")).await.unwrap();
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(5).await;
    let seen = lab.version().await;
    assert_eq!(condition(&seen, "ReleaseAccepted"), Some("False"));
    assert_eq!(seen["status"]["desired"]["version"], "4.16.3");
    lab.cluster.refuse_updates(None).await.unwrap();
    lab.minutes(1).await;
    let seen = lab.version().await;
    assert_eq!(condition(&seen, "ReleaseAccepted"), Some("True"));
    assert_eq!(seen["status"]["desired"]["version"], "4.16.4");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_not_offered_is_refused() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.patch_version(update_to("4.17.1")).await;
    lab.minutes(1).await;
    assert_eq!(condition(&lab.version().await, "ReleaseAccepted"), Some("False"));
}

#[tokio::test(start_paused = true)]
async fn another_minor_version_may_be_forbidden() {
    let channel = "stable-4.17".to_owned();
    let lab = Lab::start(&Blueprint { channel, ..Blueprint::default() }).await;
    lab.cluster.forbid_minor_upgrades(Some("an API is in use")).await.unwrap();
    lab.patch_version(update_to("4.17.1")).await;
    lab.minutes(1).await;
    let seen = lab.version().await;
    assert_eq!(condition(&seen, "Upgradeable"), Some("False"));
    assert_eq!(shown(&seen, "ReleaseAccepted").1, "PreconditionChecks");
    lab.patch_version(update_to("4.16.4")).await;
    lab.minutes(1).await;
    assert_eq!(lab.version().await["status"]["desired"]["version"], "4.16.4");
}

#[tokio::test(start_paused = true)]
async fn without_the_graph_no_updates_are_shown() {
    let lab = Lab::start(&Blueprint::default()).await;
    lab.cluster.cut_off_graph(Some("connection refused")).await.unwrap();
    lab.minutes(1).await;
    let seen = lab.version().await;
    assert_eq!(condition(&seen, "RetrievedUpdates"), Some("False"));
    assert!(seen["status"]["availableUpdates"].is_null());
    lab.cluster.cut_off_graph(None).await.unwrap();
    lab.minutes(3).await;
    assert_eq!(lab.version().await["status"]["availableUpdates"][0]["version"], "4.16.4");
}

#[tokio::test(start_paused = true)]
async fn releases_that_a_script_sets_are_offered() {
    let lab = Lab::start(&Blueprint::default()).await;
    let releases = ["4.16.3", "4.16.9"].map(Release::new);
    lab.cluster.set_releases(&releases).await.unwrap();
    lab.minutes(1).await;
    let offered = lab.version().await["status"]["availableUpdates"].clone();
    assert_eq!(offered.as_array().unwrap().len(), 1);
    assert_eq!(offered[0]["version"], "4.16.9");
}

#[tokio::test(start_paused = true)]
async fn a_paused_custom_pool_keeps_its_release() {
    let infra = Workers { has_own_config: true, ..Workers::new("infra", 1) };
    let workers = vec![Workers::new("worker", 2), infra];
    let lab = Lab::start(&Blueprint { workers, ..Blueprint::default() }).await;
    crate::common::merge(&lab.pools(), "infra", json!({"spec": {"paused": true}})).await;
    lab.patch_version(update_to("4.16.4")).await;
    lab.until(120, "control plane", async |lab| lab.is_completed("4.16.4").await).await;
    lab.until(60, "workers", async |lab| lab.pool_has("worker", "4.16.4").await).await;
    let pool = read(&lab.pools(), "infra").await;
    assert_eq!(
        (&pool["status"]["machineCount"], &pool["status"]["updatedMachineCount"]),
        (&json!(1), &json!(0))
    );
    crate::common::merge(&lab.pools(), "infra", json!({"spec": {"paused": false}})).await;
    lab.until(30, "infra", async |lab| lab.pool_has("infra", "4.16.4").await).await;
}
