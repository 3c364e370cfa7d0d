//! OCM and its agent: rows 20 to 22, 85 and 88.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams};
use lab_openshift::{
    ocm::{AGENT_HOST, AGENT_PORT, Ocm},
    wire::Trouble,
};
use refit_openshift::{
    Compat,
    notify::{
        Event, LogEvent, OcmState, PolicyEvent, is_posted, note_posting, policy, policy_write,
        posting, service_log,
    },
    provider::{OcmClient, ProviderError},
    upgrade_config::UpgradeHistory,
};
use serde_json::json;

use crate::{
    bed::{Bed, CLUSTER_ID, TOKEN},
    servers::{ocm, ocm_url},
};

const URL: &str = "http://api.example";
const STATE: &str = "/api/clusters_mgmt/v1/clusters/1a2b/upgrade_policies/p-1/state";

async fn served() -> (Bed, Ocm) {
    let (bed, ocm) = (Bed::new().await, ocm());
    ocm.schedule("p-1", "4.16.3", "2026-08-15T12:00:00Z".parse().unwrap());
    bed.serve(ocm.clone(), "api.example", 80);
    (bed, ocm)
}

async fn connected(bed: &Bed) -> refit_managed::remote::Ocm {
    bed.remote(Compat::Repaired).ocm(&ocm_url(URL), CLUSTER_ID).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_cluster_its_policy_and_its_state_are_read() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    let cluster = ocm.cluster().await.unwrap();
    assert_eq!((&*cluster.id, &*cluster.version.channel_group), ("1a2b", "stable"));
    let policies = ocm.policies(&cluster).await.unwrap();
    assert_eq!(policies.len(), 1);
    let state = ocm.state(&cluster, &policies[0].id).await.unwrap();
    assert_eq!((&*state.value, &*state.description), ("scheduled", "Upgrade is scheduled"));
    assert_eq!(
        server.troubles().asked(),
        [
            format!(
                "GET /api/clusters_mgmt/v1/clusters?search=external_id+%3D+%27{CLUSTER_ID}%27&size=1"
            ),
            "GET /api/clusters_mgmt/v1/clusters/1a2b/upgrade_policies?page=1&size=1".to_owned(),
            format!("GET {STATE}"),
        ]
    );
    assert!(bed.effects.take().is_empty(), "reads write nothing");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_a_disabled_owner_is_not_found() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    server.set_banned(true);
    let error = ocm.cluster().await.unwrap_err();
    assert!(matches!(error, ProviderError::ClusterNotFound { clusters: 0, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_token_is_that_of_the_pull_secret_and_is_never_shown() {
    let (bed, _server) = served().await;
    let remote = bed.remote(Compat::Repaired);
    // OCM knows the cluster by another ID.
    let ocm = remote.ocm(&ocm_url(URL), "another-id").await.unwrap();
    let error = ocm.cluster().await.unwrap_err();
    assert!(matches!(error, ProviderError::Request { status: Some(401), .. }));
    let text = error.to_string();
    for part in [
        "OCM answers GET /api/clusters_mgmt/v1/clusters with HTTP status 401",
        "CLUSTERS-MGMT-401, Account cannot be authenticated, operation 1f2e3d4c",
        "check the pull secret",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let shown = format!("{text} {error:?} {ocm:?} {remote:?}");
    assert!(!shown.contains(TOKEN), "{shown}");

    let secrets: Api<Secret> = Api::namespaced(bed.client(), "openshift-config");
    secrets.delete("pull-secret", &DeleteParams::default()).await.unwrap();
    let error = remote.ocm(&ocm_url(URL), CLUSTER_ID).await.unwrap_err().to_string();
    assert!(error.contains("cannot read Secret openshift-config/pull-secret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_asked_for_its_cluster() {
    let (bed, server) = served().await;
    let agent = server.agent();
    bed.serve(agent.clone(), AGENT_HOST, AGENT_PORT);
    let url = ocm_url(&format!("http://{AGENT_HOST}:{AGENT_PORT}"));
    let ocm = bed.remote(Compat::Repaired).ocm(&url, CLUSTER_ID).await.unwrap();
    assert_eq!(ocm.client(), OcmClient::Agent);
    let cluster = ocm.cluster().await.unwrap();
    assert_eq!((&*cluster.id, cluster.node_drain_grace_period.value), ("1a2b", 60.0));
    ocm.state(&cluster, "p-1").await.unwrap();
    assert_eq!(agent.troubles().asked(), ["GET /".to_owned(), format!("GET {STATE}")]);
    assert!(server.troubles().asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn reads_are_repeated_while_ocm_cannot_answer() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    let down = [Trouble::Status(503), Trouble::Status(429), Trouble::Lost];
    server.troubles().queue(down);
    let start = bed.clock.now();
    ocm.cluster().await.unwrap();
    assert_eq!(server.troubles().asked().len(), 4);
    let waited = bed.clock.elapsed(start).as_secs_f64();
    // 4 + 8 + 16 s, each by up to 30 % shorter or longer.
    assert!((19.0..37.0).contains(&waited), "{waited}");

    server.troubles().set(Some(Trouble::Status(503)));
    let error = ocm.cluster().await.unwrap_err();
    assert!(matches!(error, ProviderError::Request { status: Some(503), .. }), "{error}");
    assert_eq!(server.troubles().asked().len(), 4 + 6);

    server.troubles().set(Some(Trouble::Status(500)));
    ocm.cluster().await.unwrap_err();
    assert_eq!(server.troubles().asked().len(), 10 + 1, "other errors are final");

    server.troubles().set(Some(Trouble::Slow(Duration::from_mins(1))));
    let error = ocm.cluster().await.unwrap_err().to_string();
    assert!(error.contains("no answer within 30 s"), "{error}");

    bed.network.close("api.example", 80);
    let error = connected(&bed).await.cluster().await.unwrap_err().to_string();
    assert!(error.contains("nothing listens") && error.contains("ocmBaseUrl"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_event_patches_the_state_that_it_may_follow() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    let cluster = ocm.cluster().await.unwrap();
    let policies = ocm.policies(&cluster).await.unwrap();
    let found = policy(&policies, "4.16.3", "2026-08-15T12:00:00Z").unwrap();
    for (event, wanted) in [
        (PolicyEvent::Completed, "scheduled"),
        (PolicyEvent::Started, "started"),
        (PolicyEvent::Delayed, "delayed"),
        (PolicyEvent::Completed, "completed"),
        (PolicyEvent::Failed, "completed"),
    ] {
        let present = ocm.state(&cluster, &found.id).await.unwrap();
        let text = format!("{event}: it will continue to retry");
        let write = policy_write(Compat::Repaired, &present, Event::Policy(event), text).unwrap();
        if let Some(write) = write {
            ocm.set_state(&cluster, &found.id, write.value, &write.description).await.unwrap();
        }
        assert_eq!(server.policy("p-1").unwrap().state, wanted, "{event}");
    }
    assert_eq!(bed.effects.take(), [&*format!("api PATCH {STATE}"); 3]);
    let error = ocm.set_state(&cluster, "p-2", OcmState::Started, "").await.unwrap_err();
    assert!(matches!(error, ProviderError::Request { status: Some(404), .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_only_if_it_was_not_processed() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    let entry = |client| service_log(LogEvent::HealthCheckFailed, "text", "1a2b", client);
    server.troubles().queue([Trouble::Status(429)]);
    ocm.post_log(&entry(OcmClient::Api)).await.unwrap();
    assert_eq!(server.logs().len(), 1);
    let posted = &server.logs()[0];
    for (name, value) in [
        ("kind", json!("LogEntry")),
        ("cluster_id", json!("1a2b")),
        ("severity", json!("Info")),
        ("service_name", json!("RedHat Managed Upgrade Notifications")),
        ("log_type", json!("Cluster Updates")),
        ("internal_only", json!(false)),
        ("summary", json!("Cluster has encountered healthcheck failure during upgrade")),
        ("description", json!("text")),
        ("doc_references", json!(["https://access.redhat.com/solutions/7081505"])),
    ] {
        assert_eq!(posted[name], value, "{name}");
    }

    for trouble in [Trouble::Lost, Trouble::Status(503)] {
        let before = server.troubles().asked().len();
        server.troubles().queue([trouble]);
        ocm.post_log(&entry(OcmClient::Agent)).await.unwrap_err();
        assert_eq!(server.troubles().asked().len(), before + 1, "{trouble:?}");
    }
    assert_eq!(server.logs().len(), 2, "the lost one was processed");
    assert!(server.logs()[1].get("doc_references").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_posted_before_a_crash_is_found() {
    let (bed, server) = served().await;
    let ocm = connected(&bed).await;
    let cluster = ocm.cluster().await.unwrap();
    let event = LogEvent::ControlPlaneFinished;
    // An earlier upgrade has posted the same text.
    ocm.post_log(&service_log(event, "text", &cluster.id, ocm.client())).await.unwrap();
    tokio::time::sleep(Duration::from_hours(1)).await;

    let mut history: UpgradeHistory =
        serde_json::from_value(json!({"version": "4.16.3", "phase": "Upgrading"})).unwrap();
    note_posting(&mut history, event, "text", bed.clock.now());
    let noted = history.conditions[0].clone();
    let found = ocm.logs(&cluster, event).await.unwrap();
    assert!(found.len() == 1 && !is_posted(&noted, &found), "{found:?}");
    server.troubles().queue([Trouble::Lost]);
    let entry = service_log(event, "text", &cluster.id, ocm.client());
    ocm.post_log(&entry).await.unwrap_err();

    // The next look.
    let next = posting(Compat::Repaired, (event, "text"), Some(&history), None);
    assert_eq!(next, refit_openshift::notify::Posting::LookUp(Box::new(noted.clone())));
    let found = ocm.logs(&cluster, event).await.unwrap();
    assert!(found.len() == 2 && is_posted(&noted, &found), "{found:?}");
    let asked = server.troubles().asked().pop().unwrap();
    assert_eq!(
        asked,
        "GET /api/service_logs/v1/cluster_logs?search=cluster_id+%3D+%271a2b%27+and+summary+%3D+%27Cluster+has+finished+\
         control+plane+upgrade%27&order=created_at+desc&page=1&size=20"
    );

    // A cluster that may post but not read: the entry is posted again.
    server.troubles().queue([Trouble::Status(403)]);
    assert!(ocm.logs(&cluster, event).await.unwrap().is_empty());
    server.troubles().queue([Trouble::Status(500)]);
    ocm.logs(&cluster, event).await.unwrap_err();
}
