//! Rows of what is asked outside of the Kubernetes API: how Prometheus and Alertmanager are reached, and proxies.

mod proxy;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refit_kinds::refit::{AlertMatcher, MatchType};
use refit_openshift::{
    Compat,
    maintenance::{NewSilence, SilenceWrite},
    retry::{self, Outcome, Request},
};
use serde_json::{Value, json};

use crate::{
    Row,
    bed::{Bed, Received, reply},
};

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 20,
        name: "a request to OCM is repeated five times, a write only if it was not processed",
        test: repeated,
    },
    Row {
        number: 83,
        name: "the token of a Secret is used, with the service CA and the ports of the Services",
        test: token_of_a_secret,
    },
    Row {
        number: 83,
        name: "without such a Secret a token is requested, and kept until it nearly expires",
        test: token_request,
    },
    Row { number: 83, name: "Routes are used outside of the cluster", test: routes },
    Row {
        number: 107,
        name: "the proxies of the environment are used, but not for the agent of OCM",
        test: proxy::environment,
    },
];

fn repeated() {
    for (outcome, read, write) in [
        (Outcome::Status(429), true, true),
        (Outcome::Unsent, true, true),
        (Outcome::Status(503), true, false),
        (Outcome::Broken, true, false),
        (Outcome::Status(200), false, false),
        (Outcome::Status(404), false, false),
        (Outcome::Status(500), false, false),
        (Outcome::Late, false, false),
    ] {
        for (request, wanted) in [(Request::Read, read), (Request::Write, write)] {
            let repeats = retry::delay(request, outcome, 0, 0.5).is_some();
            assert_eq!(repeats, wanted, "{request:?} {outcome:?}");
        }
    }
    let delays = |random: f64| {
        let delay = |repeated| retry::delay(Request::Read, Outcome::Status(503), repeated, random);
        (0..6).map_while(delay).map(|delay| delay.as_secs_f64()).collect::<Vec<_>>()
    };
    assert_eq!(delays(0.5), [4.0, 8.0, 16.0, 32.0, 64.0]);
    assert_eq!((delays(0.0)[0], delays(1.0)[0]), (5.2, 2.8));
}

/// Runs a test on a paused clock.
fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(test);
}

const PROMETHEUS: &str = "prometheus-k8s.openshift-monitoring.svc.cluster.local";
const ALERTMANAGER: &str = "alertmanager-main.openshift-monitoring.svc.cluster.local";

/// A cluster with monitoring.
async fn cluster() -> Bed {
    let bed = Bed::new().await;
    let ca = bed.authority.material().cert_pem.clone();
    bed.create(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"service-ca.crt": ca},
        "metadata": {"name": "serving-certs-ca-bundle", "namespace": "openshift-monitoring"},
    }))
    .await;
    for (name, port) in [("prometheus-k8s", 9091), ("alertmanager-main", 9094)] {
        bed.create(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "openshift-monitoring"},
            "spec": {"ports": [{"name": "metrics", "port": 9092}, {"name": "web", "port": port}]},
        }))
        .await;
    }
    bed.create(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "prometheus-k8s", "namespace": "openshift-monitoring"},
    }))
    .await;
    bed
}

async fn token_secret(bed: &Bed) {
    for (name, token) in
        [("prometheus-k8s-dockercfg-1", "other"), ("prometheus-k8s-token-abcde", "s3cret")]
    {
        bed.create(json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": {"token": token},
            "metadata": {"name": name, "namespace": "openshift-monitoring"},
        }))
        .await;
    }
}

fn series(one: &Received) -> http::Response<http_body_util::Full<bytes::Bytes>> {
    match &*one.authorization {
        "Bearer " | "" => reply(401, "Unauthorized"),
        _ => reply(
            200,
            r#"{"status": "success", "data": {"resultType": "vector",
                "result": [{"metric": {"alertname": "A", "x": "y"}, "value": [1755172800.1, "1"]}]}}"#,
        ),
    }
}

fn token_of_a_secret() {
    run(async {
        let bed = cluster().await;
        token_secret(&bed).await;
        let prometheus = bed.answer(PROMETHEUS, 9091, series);
        let alertmanager = bed.answer(ALERTMANAGER, 9094, |one| match &*one.line {
            "GET /api/v2/silences" => reply(
                200,
                r#"[{"id": "s-1", "status": {"state": "active"}, "updatedAt": "2026-08-14T11:00:00Z",
                     "matchers": [], "startsAt": "2026-08-14T11:00:00Z", "endsAt": "2026-08-14T13:00:00Z",
                     "createdBy": "managed-upgrade-operator", "comment": "c"}]"#,
            ),
            "DELETE /api/v2/silence/gone" => reply(404, ""),
            _ => reply(200, r#"{"silenceID": "s-2"}"#),
        });
        // Without the extra authority of the stack: it trusts the Services by the ConfigMap alone.
        let remote = refit_managed::remote::Remote::new(
            bed.stack(),
            bed.client(),
            bed.clock,
            Compat::Repaired,
        )
        .unwrap();
        let monitoring = remote.monitoring().await.unwrap();
        let found = monitoring.query(r#"ALERTS{a="b"}"#).await.unwrap();
        let labels =
            [("alertname", "A"), ("x", "y")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(found, [(BTreeMap::from(labels), "1".to_owned())]);
        let asked = prometheus.lock().unwrap().clone();
        assert_eq!(asked[0].line, "GET /api/v1/query?query=ALERTS%7Ba%3D%22b%22%7D");
        assert_eq!(asked[0].authorization, "Bearer s3cret");
        assert_eq!(monitoring.silences().await.unwrap()[0].id, "s-1");
        assert!(bed.effects.take().is_empty(), "reads write nothing, and no token is requested");

        let matchers = vec![AlertMatcher {
            name: "severity".to_owned(),
            value: "(warning|info)".to_owned(),
            match_type: MatchType::Matches,
        }];
        let silence = NewSilence {
            matchers,
            comment: "c".to_owned(),
            starts_at: bed.clock.now(),
            ends_at: bed.clock.now() + Duration::from_hours(1),
        };
        monitoring.write(&SilenceWrite::Create(silence)).await.unwrap();
        monitoring.write(&SilenceWrite::Delete { id: "s/1".to_owned() }).await.unwrap();
        let gone = SilenceWrite::Delete { id: "gone".to_owned() };
        let error = monitoring.write(&gone).await.unwrap_err();
        let wanted = "Alertmanager answers DELETE /api/v2/silence/gone with HTTP status 404, \
             check Service openshift-monitoring/alertmanager-main and its Pods";
        assert_eq!(error, wanted);
        let asked = alertmanager.lock().unwrap().clone();
        let lines: Vec<&str> = asked.iter().map(|one| &*one.line).collect();
        let wanted = [
            "GET /api/v2/silences",
            "POST /api/v2/silences",
            "DELETE /api/v2/silence/s%2F1",
            "DELETE /api/v2/silence/gone",
        ];
        assert_eq!(lines, wanted);
        assert_eq!(
            asked[1].body,
            json!({
                "matchers": [{"name": "severity", "value": "(warning|info)", "isRegex": true, "isEqual": true}],
                "startsAt": "2026-08-14T12:00:00Z", "endsAt": "2026-08-14T13:00:00Z",
                "createdBy": "managed-upgrade-operator", "comment": "c",
            })
        );
        assert_eq!(bed.effects.take().len(), 3);
        let shown = format!("{monitoring:?} {remote:?} {error}");
        assert!(!shown.contains("s3cret") && !shown.contains("CERTIFICATE"), "{shown}");
    });
}

fn token_request() {
    run(async {
        let bed = cluster().await;
        let prometheus = bed.answer(PROMETHEUS, 9091, series);
        let remote = bed.remote(Compat::Repaired);
        let requests = Arc::new(AtomicUsize::new(0));
        let seen = requests.clone();
        bed.server.observe_requests(Box::new(move |request| {
            if (request.name, request.subresource) == ("prometheus-k8s", "token") {
                let body: Value = serde_json::from_slice(request.body).unwrap();
                assert_eq!(body["spec"]["expirationSeconds"], 24 * 60 * 60);
                seen.fetch_add(1, Ordering::SeqCst);
            }
        }));
        let ask = async || remote.monitoring().await.unwrap().query("up").await.unwrap();
        ask().await;
        ask().await;
        assert_eq!(requests.load(Ordering::SeqCst), 1);
        let token = |at: usize| prometheus.lock().unwrap()[at].authorization.clone();
        assert!(token(0).starts_with("Bearer ") && token(0) == token(1));
        tokio::time::sleep(Duration::from_hours(22)).await;
        ask().await;
        assert_eq!(token(2), token(0));
        tokio::time::sleep(Duration::from_hours(1)).await;
        ask().await;
        assert_ne!(token(3), token(0));
        assert_eq!(requests.load(Ordering::SeqCst), 2);

        // One that is not accepted is requested again at the next look.
        bed.answer(PROMETHEUS, 9091, |_| reply(401, "Unauthorized"));
        tokio::time::sleep(Duration::from_mins(2)).await;
        remote.monitoring().await.unwrap().query("up").await.unwrap_err();
        remote.monitoring().await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    });
}

fn routes() {
    run(async {
        let bed = cluster().await;
        token_secret(&bed).await;
        bed.create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "routes.route.openshift.io"},
            "spec": {
                "group": "route.openshift.io", "scope": "Namespaced",
                "names": {"kind": "Route", "plural": "routes", "singular": "route"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}],
            },
        }))
        .await;
        bed.create(json!({
            "apiVersion": "route.openshift.io/v1", "kind": "Route",
            "metadata": {"name": "prometheus-k8s", "namespace": "openshift-monitoring"},
            "spec": {"host": "prometheus.apps.example"},
        }))
        .await;
        let prometheus = bed.answer("prometheus.apps.example", 443, series);
        let remote = bed.remote(Compat::Repaired).by_routes(true);
        let monitoring = remote.monitoring().await.unwrap();
        assert_eq!(monitoring.query("up").await.unwrap().len(), 1);
        assert_eq!(prometheus.lock().unwrap()[0].authorization, "Bearer s3cret");
        let error = monitoring.silences().await.unwrap_err();
        assert!(
            error.contains("cannot read Route openshift-monitoring/alertmanager-main"),
            "{error}"
        );
    });
}
