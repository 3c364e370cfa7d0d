//! The annotations of Machines about their certificates.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use lab_simhost::k8sd::{
    CERTIFICATES_APPROVE, CERTIFICATES_EXPIRY, CERTIFICATES_PLAN, CERTIFICATES_RUN, REFRESH, Reach,
};
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_controller::Canonical;
use refit_core::annotation::Compat;
use refit_kinds::{
    canonical::{CANONICAL, CERTIFICATES_EXPIRY as EXPIRY, Keys, REFIT},
    keys,
    refit::{NodeUpdate, PartState, Phase},
};
use serde_json::{Value, json};

use super::{
    MACHINE,
    lab::{CHANNEL, CONTROL_PLANE, CONTROL_PLANES, Lab, TOKEN, WORKERS},
    pass,
};

const YEAR: i64 = 365 * 24 * 3600;

impl Lab {
    /// Requests new certificates under Canonical's prefix.
    async fn refresh(&self, machine: &str, lifetime: Option<&str>) {
        self.annotate(machine, CANONICAL.certificates.refresh, lifetime).await;
    }

    /// The values of the request and of its status.
    async fn refresh_of(&self, machine: &str, keys: Keys) -> [Option<String>; 2] {
        let machine = self.read(machine).await;
        let get = |key: &str| machine.annotations().get(key).cloned();
        [get(keys.certificates.refresh), get(keys.certificates.status)]
    }

    async fn status_of(&self, machine: &str) -> Option<String> {
        let [_, status] = self.refresh_of(machine, CANONICAL).await;
        status
    }

    async fn until_refresh(&self, machine: &str, status: &str) {
        for _ in 0..4000 {
            if self.status_of(machine).await.as_deref() == Some(status) {
                return;
            }
            pass(1).await;
        }
        panic!("{machine} never shows {status}: {:#?}", self.updates().await);
    }

    /// When the certificates of a Machine expire, as it shows.
    async fn expiry_of(&self, machine: &str) -> Option<jiff::Timestamp> {
        self.read(machine).await.annotations().get(EXPIRY).map(|text| text.parse().unwrap())
    }

    /// When the attempts of a machine began.
    fn attempted_at(&self, machine: &str) -> Vec<jiff::Timestamp> {
        let all = self.k8sd(machine).received().into_iter();
        all.filter(|request| request.path == CERTIFICATES_PLAN).map(|request| request.at).collect()
    }

    /// The bodies of the requests to a machine with this path.
    fn bodies(&self, machine: &str, path: &str) -> Vec<Value> {
        let all = self.k8sd(machine).received().into_iter();
        all.filter(|request| request.path == path).map(|request| request.body).collect()
    }
}

/// Whether k8sd issues certificates for an update.
fn is_at_work(update: &NodeUpdate) -> bool {
    let status = update.status.clone().unwrap_or_default();
    !status.phase.is_final() && status.part("k8sd").state == PartState::Running
}

async fn row_61_a_worker_gets_certificates_that_a_control_plane_node_has_approved(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.refresh(MACHINE, Some("1y")).await;
    lab.until_refresh(MACHINE, "in-progress").await;
    lab.until_refresh(MACHINE, "done").await;
    assert_eq!(lab.refresh_of(MACHINE, CANONICAL).await, [None, Some("done".to_owned())]);
    let runs = lab.bodies(MACHINE, CERTIFICATES_RUN);
    let seed = &runs[0]["seed"];
    assert_eq!(runs, [json!({"seed": seed, "expiration-seconds": YEAR, "extra-sans": []})]);
    assert_eq!(lab.bodies(MACHINE, CERTIFICATES_PLAN), [json!({})]);
    let approvals = lab.bodies(CONTROL_PLANE, CERTIFICATES_APPROVE);
    assert!(!approvals.is_empty() && approvals.iter().all(|body| *body == json!({"seed": seed})));
    let (shown, expires) =
        (lab.expiry_of(MACHINE).await.unwrap(), lab.k8sd(MACHINE).certificates_expire());
    assert!((shown.as_second() - expires.as_second()).abs() <= 1, "{shown} {expires}");
    let events = lab.events_of(MACHINE, "Certificates").await;
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].starts_with("Normal CertificatesRefreshDone: Certificates refreshed, will"));
    let begun = "Normal CertificatesRefreshInProgress: Certificates refresh in progress. TTL: 1y";
    assert_eq!(events[1], begun);
    for other in &WORKERS[1..] {
        assert_eq!(lab.received(other).len(), 0);
    }
}

async fn row_61_a_control_plane_node_gets_certificates_with_its_names(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let clusters: Api<Cluster> = Api::default_namespaced(lab.site.client());
    let body = json!({"spec": {"controlPlaneEndpoint": {"host": "api.edge-1.test", "port": 6443}}});
    clusters.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    lab.extra_names(CONTROL_PLANE, &["10.0.0.9", "edge-1.test"]).await;
    lab.refresh(CONTROL_PLANE, Some("6mo")).await;
    lab.until_refresh(CONTROL_PLANE, "done").await;
    let runs = lab.bodies(CONTROL_PLANE, CERTIFICATES_RUN);
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["extra-sans"], json!(["10.0.0.9", "edge-1.test", "api.edge-1.test"]));
    assert_eq!(runs[0]["expiration-seconds"], 180 * 24 * 3600);
    assert_eq!(lab.k8sd(CONTROL_PLANE).count(CERTIFICATES_APPROVE), 0);
    let expires = lab.k8sd(CONTROL_PLANE).certificates_expire();
    let shown = lab.expiry_of(CONTROL_PLANE).await.map(jiff::Timestamp::as_second);
    assert_eq!(shown, Some(expires.as_second()));
}

async fn row_61_the_expiry_of_every_machine_is_shown_once(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    pass(120).await;
    for machine in [CONTROL_PLANE, MACHINE, WORKERS[1]] {
        let expires = lab.k8sd(machine).certificates_expire().as_second();
        assert_eq!(lab.expiry_of(machine).await.map(jiff::Timestamp::as_second), Some(expires));
        assert_eq!(lab.refresh_of(machine, CANONICAL).await, [None, None]);
    }
    lab.annotate(MACHINE, EXPIRY, Some("2030-01-01T00:00:00Z")).await;
    pass(1200).await;
    assert_eq!(lab.k8sd(MACHINE).count(CERTIFICATES_EXPIRY), 1);
    assert_eq!(lab.expiry_of(MACHINE).await.unwrap().to_string(), "2030-01-01T00:00:00Z");
    // A node that does not answer is asked later.
    lab.k8sd(MACHINE).set_reach(Reach::Refused);
    lab.annotate(MACHINE, EXPIRY, None).await;
    pass(300).await;
    assert_eq!(lab.expiry_of(MACHINE).await, None);
    lab.k8sd(MACHINE).set_reach(Reach::Up);
    pass(120).await;
    assert!(lab.expiry_of(MACHINE).await.is_some());
}

async fn row_61_an_invalid_lifetime_reaches_no_k8sd(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for lifetime in ["soon", "1m", "1 year", ""] {
        lab.refresh(MACHINE, Some(lifetime)).await;
        lab.until_refresh(MACHINE, "failed").await;
        pass(60).await;
        let events = lab.events_of(MACHINE, "Certificates").await;
        let failed = |event: &&String| event.contains("CertificatesRefreshFailed");
        match compat {
            Compat::Corrected => {
                let named = format!("annotation {}: ", CANONICAL.certificates.refresh);
                let about = |event: &&String| {
                    event.contains(&named) && event.contains(&format!("lifetime {lifetime:?}"))
                };
                assert_eq!(events.iter().filter(about).count(), 1, "{events:?}");
                assert!(events.iter().all(|event| event.contains("expected ")), "{events:?}");
            }
            Compat::Strict => {
                let begun = format!("TTL: {lifetime}");
                assert_eq!(events.iter().filter(|event| event.ends_with(&begun)).count(), 1);
                assert_eq!(events.iter().filter(failed).count(), 0);
            }
        }
    }
    assert_eq!((lab.received(MACHINE).len(), lab.updates().await.len()), (0, 0));
    lab.refresh(MACHINE, Some("720h")).await;
    lab.until_refresh(MACHINE, "done").await;
}

async fn row_61_a_failed_attempt_is_shown_and_repeated_ever_later(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    pass(60).await;
    lab.k8sd(MACHINE).set_token("another");
    lab.refresh(MACHINE, Some("90d")).await;
    lab.until_refresh(MACHINE, "failed").await;
    pass(60).await;
    let attempts = lab.k8sd(MACHINE).count(CERTIFICATES_PLAN);
    assert!((4..=6).contains(&attempts), "at once, after 5 s, 10 s, 20 s: {attempts}");
    pass(3600).await;
    assert!(lab.k8sd(MACHINE).count(CERTIFICATES_PLAN) < attempts + 12, "every 10 min");
    let failed = lab.events_of(MACHINE, "CertificatesRefreshFailed").await;
    assert!(failed.len() >= 4, "{failed:?}");
    let why = "Warning CertificatesRefreshFailed: Failed to refresh certificates: HTTP request failed with status code: \
               401 (invalid token)";
    assert!(failed.iter().all(|event| event == why), "{failed:?}");
    let updates = lab.updates().await;
    assert!(updates[0].status.as_ref().unwrap().message.contains("invalid token"));
    lab.k8sd(MACHINE).set_token(TOKEN);
    lab.until_refresh(MACHINE, "done").await;
    assert_eq!(lab.k8sd(MACHINE).count(CERTIFICATES_RUN), 1);
}

async fn row_61_a_machine_without_a_node_waits(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let api: Api<Machine> = Api::default_namespaced(lab.site.client());
    let node = async |node: Value| {
        let body = json!({"status": {"nodeRef": node}});
        api.patch_status(MACHINE, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    };
    node(Value::Null).await;
    lab.refresh(MACHINE, Some("1y")).await;
    pass(600).await;
    assert_eq!(lab.refresh_of(MACHINE, CANONICAL).await, [Some("1y".to_owned()), None]);
    assert_eq!((lab.received(MACHINE).len(), lab.updates().await.len()), (0, 0));
    node(json!({"name": MACHINE})).await;
    lab.until_refresh(MACHINE, "done").await;
}

async fn row_61_a_machine_that_is_deleted_is_left_alone(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    pass(60).await;
    let api: Api<Machine> = Api::default_namespaced(lab.site.client());
    let body = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    api.patch(MACHINE, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    api.delete(MACHINE, &DeleteParams::default()).await.unwrap();
    lab.annotate(MACHINE, EXPIRY, None).await;
    lab.refresh(MACHINE, Some("1y")).await;
    pass(600).await;
    assert_eq!(lab.refresh_of(MACHINE, CANONICAL).await, [Some("1y".to_owned()), None]);
    assert_eq!((lab.received(MACHINE).len(), lab.updates().await.len()), (0, 0));
    assert_eq!(lab.expiry_of(MACHINE).await, None);
}

async fn row_61_a_paused_cluster_waits(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let clusters: Api<Cluster> = Api::default_namespaced(lab.site.client());
    let paused = async |paused: bool| {
        let body = json!({"spec": {"paused": paused}});
        clusters.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    };
    pass(60).await;
    paused(true).await;
    lab.annotate(MACHINE, EXPIRY, None).await;
    lab.refresh(MACHINE, Some("1y")).await;
    pass(600).await;
    assert_eq!((lab.received(MACHINE).len(), lab.expiry_of(MACHINE).await), (0, None));
    let update = &lab.updates().await[0];
    assert_eq!(update.status.as_ref().unwrap().blocked_by[0].reason, "Paused");
    paused(false).await;
    lab.until_refresh(MACHINE, "done").await;
}

async fn row_61_a_crash_at_any_time_loses_no_refresh(compat: Compat) {
    for machine in [MACHINE, CONTROL_PLANE] {
        for seconds in [0, 1, 2, 4, 8, 16, 40] {
            let mut lab = Lab::in_mode(compat).await;
            lab.k8sd(machine).slow_certificates(Duration::from_secs(10));
            lab.refresh(machine, Some("1y")).await;
            pass(seconds).await;
            lab.restart(20).await;
            lab.until_refresh(machine, "done").await;
            let updates = lab.updates().await;
            assert_eq!(updates.len(), 1, "killed after {seconds} s");
            let seeds = lab.bodies(machine, CERTIFICATES_RUN).into_iter();
            let mut seeds: Vec<Value> = seeds.map(|mut body| body["seed"].take()).collect();
            let runs = seeds.len();
            seeds.dedup();
            assert_eq!(seeds.len(), runs, "each attempt has a plan of its own");
            assert!((1..=2).contains(&runs), "{runs}");
            let at = lab.attempted_at(machine);
            let apart = at.windows(2).all(|two| two[1].duration_since(two[0]).as_secs() >= 60);
            assert!(apart, "no two write at once: {at:?}");
            assert_eq!(lab.refresh_of(machine, CANONICAL).await[0], None);
        }
    }
}

async fn row_61_a_request_without_an_answer_is_repeated_a_minute_later(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.k8sd(CONTROL_PLANE).slow_certificates(Duration::from_secs(10));
    lab.refresh(CONTROL_PLANE, Some("1y")).await;
    lab.until_refresh(CONTROL_PLANE, "in-progress").await;
    pass(3).await;
    lab.k8sd(CONTROL_PLANE).set_reach(Reach::HangsUp);
    lab.until_refresh(CONTROL_PLANE, "failed").await;
    lab.k8sd(CONTROL_PLANE).set_reach(Reach::Up);
    let plans = lab.k8sd(CONTROL_PLANE).count(CERTIFICATES_PLAN);
    pass(45).await;
    assert_eq!(lab.k8sd(CONTROL_PLANE).count(CERTIFICATES_PLAN), plans, "the first may still run");
    lab.until_refresh(CONTROL_PLANE, "done").await;
    assert_eq!(lab.k8sd(CONTROL_PLANE).count(CERTIFICATES_PLAN), plans + 1);
}

async fn row_61_a_request_that_is_removed_ends_the_attempts(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.k8sd(MACHINE).set_token("another");
    lab.refresh(MACHINE, Some("1y")).await;
    lab.until_refresh(MACHINE, "failed").await;
    lab.refresh(MACHINE, None).await;
    pass(120).await;
    assert_eq!(lab.phase("w-0-1").await, Phase::Stopped);
    let kept = (compat == Compat::Strict).then(|| "failed".to_owned());
    assert_eq!(lab.status_of(MACHINE).await, kept, "Canonical's controller keeps it");
    let attempts = lab.k8sd(MACHINE).count(CERTIFICATES_PLAN);
    pass(3600).await;
    assert_eq!(lab.k8sd(MACHINE).count(CERTIFICATES_PLAN), attempts);
    lab.annotate(MACHINE, CANONICAL.certificates.status, Some("in-progress")).await;
    pass(60).await;
    assert_eq!(lab.status_of(MACHINE).await, None);
}

async fn row_61_an_upgrade_and_a_refresh_of_a_machine_follow_one_another(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.ask(MACHINE, CHANNEL).await;
    lab.until(MACHINE, "status=in-progress").await;
    lab.refresh(MACHINE, Some("1y")).await;
    while !lab.shown(MACHINE).await.contains(&"status=done".to_owned()) {
        assert_eq!(lab.k8sd(MACHINE).count(CERTIFICATES_PLAN), 0);
        pass(1).await;
    }
    let waiting = lab.events_of(MACHINE, "CertificatesRefreshWaiting").await;
    assert_eq!(waiting.len(), usize::from(compat == Compat::Corrected), "{waiting:?}");
    assert!(waiting.iter().all(|event| event.contains("NodeUpdate w-0-1")), "{waiting:?}");
    lab.until_refresh(MACHINE, "in-progress").await;
    lab.ask(MACHINE, "revision=7").await;
    while lab.status_of(MACHINE).await.as_deref() != Some("done") {
        assert_eq!(lab.k8sd(MACHINE).count(REFRESH), 1);
        pass(1).await;
    }
    lab.until(MACHINE, "release=revision=7").await;
    let goals = lab.updates().await.into_iter().map(|update| update.spec.target());
    assert_eq!(goals.collect::<Vec<_>>(), [CHANNEL, "new certificates", "revision=7"]);
}

async fn row_61_members_of_a_control_plane_follow_one_another(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    for member in CONTROL_PLANES {
        lab.k8sd(member).slow_certificates(Duration::from_secs(20));
        lab.refresh(member, Some("1y")).await;
    }
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..900 {
        let updates = lab.updates().await;
        assert!(updates.iter().filter(|update| is_at_work(update)).count() <= 1);
        let waiting = updates.iter().flat_map(|update| update.status.iter());
        reasons.extend(waiting.flat_map(|status| &status.blocked_by).map(|by| by.reason.clone()));
        pass(1).await;
    }
    for member in CONTROL_PLANES {
        assert_eq!(lab.status_of(member).await.as_deref(), Some("done"));
        assert_eq!(lab.k8sd(member).count(CERTIFICATES_RUN), 1);
    }
    assert!(!reasons.is_empty(), "those that wait show a reason");
}

async fn row_61_any_ready_control_plane_node_approves(compat: Compat) {
    let lab = Lab::of_three(compat).await;
    let pods: Api<Pod> = Api::namespaced(lab.site.workload_client(), "kube-system");
    pods.delete("k8sd-proxy-cp-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    lab.refresh(MACHINE, Some("1y")).await;
    lab.until_refresh(MACHINE, "done").await;
    assert_eq!(lab.k8sd("cp-0").count(CERTIFICATES_APPROVE), 0);
    assert!(lab.k8sd("cp-1").count(CERTIFICATES_APPROVE) > 0);
}

async fn row_61_another_certificate_of_k8sd_gets_no_token(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    lab.refresh(MACHINE, Some("1y")).await;
    lab.until_refresh(MACHINE, "done").await;
    // Its own certificate is not one of those that were issued, and stays pinned.
    lab.refresh(MACHINE, Some("1y")).await;
    pass(30).await;
    lab.until_refresh(MACHINE, "done").await;
    lab.k8sd(MACHINE).replace_certificate().unwrap();
    let received = lab.received(MACHINE).len();
    lab.refresh(MACHINE, Some("90d")).await;
    lab.until_refresh(MACHINE, "failed").await;
    pass(600).await;
    assert_eq!(lab.received(MACHINE).len(), received);
    let failed = lab.events_of(MACHINE, "CertificatesRefreshFailed").await;
    assert!(failed[0].contains("edge-1-k8sd-certificates"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_kubeadm_is_refused_where_k8sd_issues_certificates() {
    let lab = Lab::new().await;
    for text in ["2026-03-02T08:00:00Z", "soon"] {
        lab.annotate(CONTROL_PLANE, keys::RENEW_CERTIFICATES, Some(text)).await;
        pass(60).await;
        let machine = lab.read(CONTROL_PLANE).await;
        assert!(!machine.annotations().contains_key(keys::RENEW_CERTIFICATES), "{text}");
    }
    let events = lab.events_of(CONTROL_PLANE, "CertificatesRenewalRefused").await;
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events.iter().any(|event| event.contains("refit.dev/refresh-certificates")));
    assert!(lab.updates().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn certificates_are_left_to_canonicals_controllers_unless_these_are_absent() {
    for canonical in [Canonical::Off, Canonical::On] {
        let lab = Lab::with(canonical).await;
        lab.refresh(MACHINE, Some("1y")).await;
        pass(600).await;
        assert_eq!(lab.k8sd(MACHINE).received().len(), 0);
        assert_eq!(lab.refresh_of(MACHINE, CANONICAL).await, [Some("1y".to_owned()), None]);
        let left = lab.events_of(MACHINE, "CanonicalControllersPresent").await;
        assert_eq!(left.len(), usize::from(canonical == Canonical::On));
        // Refit's own prefix works next to them.
        lab.annotate(WORKERS[1], REFIT.certificates.refresh, Some("1y")).await;
        pass(600).await;
        let done = [None, Some("done".to_owned())];
        assert_eq!(lab.refresh_of(WORKERS[1], REFIT).await, done);
        assert!(lab.expiry_of(WORKERS[1]).await.is_some());
        assert_eq!(lab.expiry_of(MACHINE).await, None);
    }
}

in_both_modes! {
    row_61_a_worker_gets_certificates_that_a_control_plane_node_has_approved,
    row_61_a_control_plane_node_gets_certificates_with_its_names,
    row_61_the_expiry_of_every_machine_is_shown_once,
    row_61_an_invalid_lifetime_reaches_no_k8sd,
    row_61_a_failed_attempt_is_shown_and_repeated_ever_later,
    row_61_a_machine_without_a_node_waits,
    row_61_a_machine_that_is_deleted_is_left_alone,
    row_61_a_paused_cluster_waits,
    row_61_a_crash_at_any_time_loses_no_refresh,
    row_61_a_request_without_an_answer_is_repeated_a_minute_later,
    row_61_a_request_that_is_removed_ends_the_attempts,
    row_61_an_upgrade_and_a_refresh_of_a_machine_follow_one_another,
    row_61_members_of_a_control_plane_follow_one_another,
    row_61_any_ready_control_plane_node_approves,
    row_61_another_certificate_of_k8sd_gets_no_token,
}
