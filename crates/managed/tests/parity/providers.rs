//! Rows of the providers of UpgradeConfigs.

use k8s_openapi::api::core::v1::Secret;
use refit_openshift::{
    Compat::{Repaired, Strict},
    config::{Platform, Source},
    provider::{
        AccessToken, Cluster, Get, OcmClient, PolicyState, ProviderError, UpgradePolicy,
        local_spec, next_policy, parse_policies, parse_state, policies_request, state_path,
        wanted_spec,
    },
    upgrade_config::UpgradeConfig,
};
use serde_json::{Value, json};

use crate::{
    Row,
    config::{COMPATS, config},
};

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 17,
        name: "policies that are pending, completed, cancelled or without a version want nothing",
        test: passive_policies_want_nothing,
    },
    Row {
        number: 18,
        name: "the channel follows from channel group and version",
        test: channels_are_inferred,
    },
    Row { number: 19, name: "a policy becomes a spec, field by field", test: a_policy_is_a_spec },
    Row {
        number: 20,
        name: "a cluster that OCM does not return exactly once is an error",
        test: clusters_are_found_once,
    },
    Row {
        number: 21,
        name: "the token is read out of the pull secret, and is shown nowhere else",
        test: the_pull_secret_has_the_token,
    },
    Row {
        number: 22,
        name: "the URL of ocm-agent selects its client",
        test: the_url_selects_the_client,
    },
    Row {
        number: 23,
        name: "a local UpgradeConfig without history, or complete, stays, and wants nothing in the original",
        test: local_specs,
    },
];

pub(crate) fn upgrade_config(history: &Value) -> UpgradeConfig {
    serde_json::from_value(json!({
        "apiVersion": "upgrade.managed.openshift.io/v1alpha1", "kind": "UpgradeConfig",
        "metadata": {
            "name": "managed-upgrade-config", "namespace": "openshift-managed-upgrade-operator",
        },
        "spec": spec("4.16.3"), "status": {"history": history},
    }))
    .unwrap()
}

pub(crate) fn spec(version: &str) -> Value {
    json!({
        "desired": {"version": version, "channel": "stable-4.16"},
        "upgradeAt": "2026-01-01T00:00:00Z", "PDBForceDrainTimeout": 60, "type": "OSD",
    })
}

pub(crate) fn history(phase: &str) -> Value {
    json!([
        {"version": "4.16.3", "phase": phase},
        {"version": "4.15.9", "phase": "Upgraded"},
    ])
}

fn cluster(group: &str, grace: &Value) -> Cluster {
    let body = json!({
        "kind": "ClusterList", "page": 1, "size": 1, "total": 1,
        "items": [{
            "id": "1a2b", "external_id": "e-1",
            "version": {"id": "openshift-v4.15.9", "channel_group": group},
            "node_drain_grace_period": {"value": grace, "unit": "minutes"},
        }],
    });
    OcmClient::Api.parse_cluster("e-1", body.to_string().as_bytes()).unwrap()
}

fn policy(fields: &Value) -> UpgradePolicy {
    let mut item = json!({
        "id": "p-1", "kind": "UpgradePolicy", "schedule_type": "manual", "version": "4.16.3",
        "next_run": "2026-06-20T00:00:00Z", "enable_minor_version_upgrades": true,
    });
    for (name, value) in fields.as_object().unwrap() {
        item[name] = value.clone();
    }
    let body = json!({"kind": "UpgradePolicyList", "total": 1, "items": [item]}).to_string();
    parse_policies(body.as_bytes()).unwrap().remove(0)
}

fn state(value: &str) -> PolicyState {
    parse_state(json!({"value": value, "description": ""}).to_string().as_bytes()).unwrap()
}

fn passive_policies_want_nothing() {
    let cluster = cluster("stable", &json!(60));
    let wanted = |policy: &UpgradePolicy, value: &str, compat| {
        wanted_spec(&cluster, policy, &state(value), Platform::Osd, compat).unwrap().is_some()
    };
    for compat in COMPATS {
        for (value, wants) in [
            ("pending", false),
            ("Completed", false),
            ("CANCELLED", false),
            ("scheduled", true),
            ("started", true),
            ("delayed", true),
            ("failed", true),
            ("", true),
        ] {
            assert_eq!(wanted(&policy(&json!({})), value, compat), wants, "{value}");
        }
        assert!(!wanted(&policy(&json!({"version": ""})), "scheduled", compat));
        // A policy that wants nothing needs no valid version.
        assert!(!wanted(&policy(&json!({"version": "?"})), "pending", compat));
    }
    // Of several policies, the earliest counts.
    let late = policy(&json!({}));
    let early = policy(&json!({"id": "p-2", "next_run": "2026-05-20T00:00:00Z"}));
    let both = [late.clone(), early.clone()];
    assert_eq!(next_policy(&both), Some(&early));
    assert_eq!(next_policy(&[late.clone(), policy(&json!({"id": "p-3"}))]), Some(&late));
    assert_eq!(next_policy(&[]), None);
}

fn channels_are_inferred() {
    for compat in COMPATS {
        let wanted = |group: &str, version: &str| {
            let (cluster, policy) =
                (cluster(group, &json!(60)), policy(&json!({"version": version})));
            wanted_spec(&cluster, &policy, &state("scheduled"), Platform::Osd, compat)
        };
        for (group, version, channel) in [
            ("fast", "4.9.1", "fast-4.9"),
            ("", "4.16.3", "stable-4.16"),
            ("stable", "4.16.3-rc.1", "stable-4.16"),
            ("candidate", "5.0.0", "candidate-5.0"),
            ("eus", "4.15.3", "eus-4.16"),
            ("eus", "4.16.3", "eus-4.16"),
        ] {
            let spec = wanted(group, version).unwrap().unwrap();
            assert_eq!(spec.desired.channel.as_deref(), Some(channel), "{group} {version}");
        }
        for version in ["crashme", "4.16", "v4.16.3"] {
            let error = wanted("eus", version).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "invalid version {version:?} of upgrade policy p-1, expected X.Y.Z: correct the policy in OCM"
                )
            );
        }
    }
}

fn a_policy_is_a_spec() {
    for compat in COMPATS {
        let wanted = |fields: Value, grace: Value, platform| {
            let policy = policy(&fields);
            wanted_spec(&cluster("fast", &grace), &policy, &state("scheduled"), platform, compat)
        };
        let spec = wanted(json!({}), json!(60), Platform::Osd).unwrap().unwrap();
        assert_eq!(
            serde_json::to_value(spec).unwrap(),
            json!({
                "desired": {"version": "4.16.3", "channel": "fast-4.16"},
                "upgradeAt": "2026-06-20T00:00:00Z", "PDBForceDrainTimeout": 60, "type": "OSD",
                "capacityReservation": true,
            })
        );
        let fraction = json!({"next_run": "2026-06-20T00:00:00.75Z"});
        let spec = wanted(fraction, json!(45.9), Platform::Aro).unwrap().unwrap();
        assert_eq!(spec.upgrade_at, "2026-06-20T00:00:00Z");
        assert_eq!((spec.pdb_force_drain_timeout, spec.type_.0.as_str()), (45, "ARO"));
        // OCM knows whether capacity is reserved; the original does not read it.
        for reserved in [true, false] {
            let fields = json!({"capacity_reservation": reserved});
            let spec = wanted(fields, json!(60), Platform::Osd).unwrap().unwrap();
            assert_eq!(spec.capacity_reservation, Some(reserved || compat == Strict));
        }
        for minutes in [json!(-1), json!(2_147_483_648_u32), json!(1e300)] {
            let error = wanted(json!({}), minutes, Platform::Osd).unwrap_err();
            assert!(matches!(error, ProviderError::GracePeriod { .. }), "{error}");
        }
        let error = wanted(json!({"next_run": null}), json!(60), Platform::Osd).unwrap_err();
        assert_eq!(
            error.to_string(),
            "upgrade policy p-1 has no next_run: schedule the policy in OCM"
        );
    }
}

fn clusters_are_found_once() {
    let parse = |body: Value| OcmClient::Api.parse_cluster("e-1", body.to_string().as_bytes());
    for (body, clusters) in [
        (json!({"total": 0, "items": []}), 0),
        (json!({"total": 0}), 0),
        (json!({"total": 2, "items": [{"id": "a"}]}), 2),
        (json!({"total": 1, "items": []}), 0),
        (json!({"total": 1, "items": [{"id": ""}]}), 0),
    ] {
        let error = parse(body).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "OCM returned {clusters} clusters with ID for clusterID \"e-1\" of the ClusterVersion, expected 1: check the pull secret, and whether OCM has disabled the owner of the cluster"
            )
        );
    }
    assert_eq!(parse(json!({"total": 1, "items": [{"id": "1a2b"}]})).unwrap().id, "1a2b");
    for body in [json!("no"), json!({"total": 1, "items": [{"id": "../x"}]})] {
        let error = parse(body).unwrap_err();
        assert!(matches!(error, ProviderError::Answer { .. }), "{error}");
    }
    assert!(matches!(parse_policies(b"no policies"), Err(ProviderError::Answer { .. })));
}

fn the_pull_secret_has_the_token() {
    let read = |id: &str, key: &str, value: &str| {
        let secret: Secret = serde_json::from_value(json!({"stringData": {}})).unwrap();
        let data = [(key.to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec()))];
        AccessToken::from_pull_secret(id, &Secret { data: Some(data.into()), ..secret })
    };
    let key = ".dockerconfigjson";
    let auth = r#"{"auths": {"quay.io": {"auth": "other"}, "cloud.openshift.com": {"auth": "dG9r", "email": "a@b"}}}"#;
    let token = read("e-1", key, auth).unwrap();
    assert_eq!(token.authorization(), "AccessToken e-1:dG9r");
    assert_eq!(format!("{token:?}"), "AccessToken { cluster_id: \"e-1\", .. }");
    for (key, value, problem) in [
        ("config.json", auth, "it does not have its key"),
        (key, "dG9r: {", "its value is not JSON"),
        (key, "{\"dG9r\": 1}", "it has no auths"),
        (key, "{\"auths\": {\"dG9r\": {}}}", "it has no such registry"),
        (key, "{\"auths\": \"dG9r\"}", "it has no such registry"),
        (key, "{\"auths\": {\"cloud.openshift.com\": \"dG9r\"}}", "the registry has no auth"),
        (
            key,
            "{\"auths\": {\"cloud.openshift.com\": {\"auth\": [\"dG9r\"]}}}",
            "the registry has no auth",
        ),
        (
            key,
            "{\"auths\": {\"cloud.openshift.com\": {\"auth\": \"dG9r\\n\"}}}",
            "auth is empty or is not one word of ASCII characters",
        ),
        (
            key,
            "{\"auths\": {\"cloud.openshift.com\": {\"auth\": \"\"}}}",
            "auth is empty or is not one word of ASCII characters",
        ),
    ] {
        let error = read("e-1", key, value).unwrap_err();
        assert_eq!(error, ProviderError::PullSecret { problem });
        assert!(!format!("{error} {error:?}").contains("dG9r"));
    }
    assert_eq!(
        read("e-1", key, "").unwrap_err().to_string(),
        "invalid Secret openshift-config/pull-secret: its value is not JSON, expected a token in auths[\"cloud.openshift.com\"].auth of .dockerconfigjson"
    );
    assert!(matches!(read("", key, auth), Err(ProviderError::ClusterId { .. })));
    let empty = AccessToken::from_pull_secret("e-1", &Secret::default()).unwrap_err();
    assert_eq!(empty, ProviderError::PullSecret { problem: "it does not have its key" });
}

fn the_url_selects_the_client() {
    let agent = "http://ocm-agent.openshift-ocm-agent-operator.svc.cluster.local:8081/";
    for compat in COMPATS {
        for (url, client) in [
            ("https://api.openshift.com", OcmClient::Api),
            ("http://ocm-agent.openshift-ocm-agent-operator.svc.cluster.local", OcmClient::Api),
            (agent, OcmClient::Agent),
        ] {
            let yaml = format!("configManager: {{source: OCM, ocmBaseUrl: '{url}'}}");
            let provider = config(&yaml, compat).provider().unwrap().unwrap();
            let Source::Ocm(parsed) = provider.source else { panic!("{provider:?}") };
            assert_eq!((parsed.client(), parsed.as_str()), (client, url));
        }
    }
    // The agent knows one cluster, and answers with it alone.
    let get = |path: &str, query: &[(&'static str, &str)]| Get {
        path: path.to_owned(),
        query: query.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
    };
    assert_eq!(
        OcmClient::Api.cluster_request("e-1"),
        get("/api/clusters_mgmt/v1/clusters", &[("search", "external_id = 'e-1'"), ("size", "1")])
    );
    assert_eq!(OcmClient::Agent.cluster_request("e-1"), get("/", &[]));
    let body = r#"{"id": "1a2b", "version": {"channel_group": "eus"}, "node_drain_grace_period": {"value": 30, "unit": "minutes"}}"#;
    let cluster = OcmClient::Agent.parse_cluster("e-1", body.as_bytes()).unwrap();
    assert_eq!((cluster.id.as_str(), cluster.version.channel_group.as_str()), ("1a2b", "eus"));
    let unknown = OcmClient::Agent.parse_cluster("e-1", b"{}").unwrap_err();
    assert!(matches!(unknown, ProviderError::ClusterNotFound { .. }));
    assert_eq!(
        policies_request(&cluster),
        get(
            "/api/clusters_mgmt/v1/clusters/1a2b/upgrade_policies",
            &[("page", "1"), ("size", "1")]
        )
    );
    assert_eq!(
        state_path(&cluster, "p-1"),
        "/api/clusters_mgmt/v1/clusters/1a2b/upgrade_policies/p-1/state"
    );
}

fn local_specs() {
    let none = json!([]);
    let other_version = json!([{"version": "4.15.9", "phase": "Upgrading"}]);
    for (history, wants) in [
        (none, false),
        (other_version, false),
        (history("Upgraded"), false),
        (history("New"), true),
        (history("Upgrading"), true),
        (history("Failed"), true),
    ] {
        let existing = upgrade_config(&history);
        assert_eq!(local_spec(Some(&existing), Strict).is_some(), wants, "{existing:?}");
        assert_eq!(local_spec(Some(&existing), Repaired), Some(existing.spec));
    }
    for compat in COMPATS {
        assert_eq!(local_spec(None, compat), None);
    }
}
