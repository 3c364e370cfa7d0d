use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use refit_cluster_api::{IntOrPercent, kinds::ExtensionConfig};
use serde_json::json;
use strum::VariantNames as _;

use super::*;
use crate::managers::Provider;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn selector(value: serde_json::Value) -> Selector {
    let selector: LabelSelector = serde_json::from_value(value).unwrap();
    selector.try_into().unwrap()
}

fn refit_extension() -> Extension {
    Extension {
        name: EXTENSION.into(),
        selector: Ok(Some(selector(json!({"matchLabels": {"refit.dev/in-place": "enabled"}})))),
        hooks: HOOKS.map(str::to_owned).to_vec(),
        discovered: Some(("True".into(), String::new())),
        current: true,
        has_ca_bundle: true,
        paused: false,
    }
}

fn manager(provider: Provider, version: &str, gates: &[&str]) -> Manager {
    Manager {
        provider,
        deployment: format!("{}/manager", provider.label()),
        version: version.parse().ok(),
        image: format!("controller:{version}"),
        gates: gates.iter().map(|gate| ((*gate).to_owned(), true)).collect(),
        missing_flags: Vec::new(),
        user: String::new(),
        client_secret: None,
    }
}

fn sound() -> Reach {
    let gates = ["RuntimeSDK", "InPlaceUpdates"];
    Reach {
        group: GroupRef {
            kind: "KubeadmControlPlane".into(),
            namespace: "default".into(),
            name: "edge-1".into(),
        },
        shape: Shape::ControlPlane { replicas: 3, max_surge: 0 },
        paused: None,
        disabled: None,
        bootstrap_kind: Some("KubeadmConfig".into()),
        extensions: Read::Known(vec![refit_extension()]),
        namespace_labels: Read::Known(labels(&[("refit.dev/in-place", "enabled")])),
        managers: Read::Known(
            Provider::ALL.iter().map(|p| manager(*p, "v1.12.4", &gates)).collect(),
        ),
    }
}

fn with(change: impl FnOnce(&mut Reach)) -> Reach {
    let mut facts = sound();
    change(&mut facts);
    facts
}

fn with_extension(change: impl FnOnce(&mut Extension)) -> Reach {
    let mut extension = refit_extension();
    change(&mut extension);
    with(|facts| facts.extensions = Read::Known(vec![extension]))
}

fn deployment(replicas: i64, strategy: Strategy) -> Reach {
    with(|facts| {
        facts.group.kind = "MachineDeployment".into();
        facts.shape = Shape::Deployment { replicas, strategy };
    })
}

fn rolling(surge: i64, unavailable: i64) -> Strategy {
    Strategy::rolling_update(IntOrPercent::Int(surge), IntOrPercent::Int(unavailable))
}

#[test]
fn a_healthy_installation_is_reached() {
    assert_eq!(reach(&sound()), Ok(()));
    assert_eq!(notes(&sound()), Vec::<String>::new());
    for replicas in [1, 3] {
        assert_eq!(reach(&deployment(replicas, rolling(0, 1))), Ok(()));
    }
    assert_eq!(reach(&deployment(3, rolling(1, 0))), Ok(()));
}

#[test]
fn every_unreached_case_has_a_reason_and_a_remedy() {
    let other = Extension {
        name: "other".into(),
        selector: Ok(Some(selector(json!({})))),
        ..refit_extension()
    };
    let table = vec![
        (with(|f| f.group.kind = "MachinePool".into()), "Kind"),
        (with(|f| f.group.kind = "RKE2ControlPlane".into()), "Kind"),
        (with(|f| f.bootstrap_kind = Some("RKE2Config".into())), "Bootstrap"),
        (with(|f| f.group.kind = "MachineSet".into()), "LoneMachineSet"),
        (with(|f| f.disabled = Some("Cluster edge-1".into())), "Disabled"),
        (with(|f| f.paused = Some("Cluster edge-1".into())), "Paused"),
        (deployment(3, Strategy::OnDelete), "OnDelete"),
        (deployment(1, rolling(1, 0)), "OnlySurge"),
        (with(|f| f.shape = Shape::ControlPlane { replicas: 1, max_surge: 1 }), "OnlySurge"),
        (with(|f| f.extensions = Read::Known(vec![])), "NotInstalled"),
        (with_extension(|e| e.paused = true), "ExtensionPaused"),
        (with_extension(|e| e.discovered = None), "NotDiscoveredYet"),
        (with_extension(|e| e.current = false), "NotDiscoveredYet"),
        (
            with_extension(|e| e.discovered = Some(("False".into(), "refused".into()))),
            "DiscoveryFailed",
        ),
        (with_extension(|e| e.hooks.truncate(2)), "HookMissing"),
        (with_extension(|e| e.has_ca_bundle = false), "NoCaBundle"),
        (with(|f| f.namespace_labels = Read::Known(labels(&[]))), "NotSelected"),
        (with_extension(|e| e.selector = Ok(None)), "NotSelected"),
        (
            with_extension(|e| e.selector = Err("\"Like\" is not a valid operator".into())),
            "InvalidSelector",
        ),
        (with(|f| f.extensions = Read::Known(vec![other.clone(), refit_extension()])), "Shared"),
        (
            with(|f| f.managers = Read::Known(vec![manager(Provider::Core, "v1.11.9", &[])])),
            "TooOld",
        ),
        (
            with(|f| {
                let gates = ["RuntimeSDK"];
                f.managers = Read::Known(vec![manager(Provider::Core, "v1.12.0", &gates)]);
            }),
            "GateOff",
        ),
        (with(|f| f.extensions = Read::Unknown("forbidden".into())), "NotKnown"),
        (with(|f| f.namespace_labels = Read::Unknown("forbidden".into())), "NotKnown"),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (facts, reason) in table {
        let unreached = reach(&facts).unwrap_err();
        assert_eq!(unreached.reason(), reason, "{unreached}");
        assert!(unreached.to_string().len() > 40, "{unreached}");
        seen.insert(reason);
    }
    assert_eq!(seen, Unreached::VARIANTS.iter().copied().collect(), "every reason has its line");
}

#[test]
fn unreadable_managers_are_noted_and_do_not_block() {
    let unread = with(|f| f.managers = Read::Unknown("Deployments cannot be listed".into()));
    assert_eq!(reach(&unread), Ok(()));
    assert!(notes(&unread)[0].starts_with("Deployments cannot be listed: "));
    let none = with(|f| f.managers = Read::Known(vec![]));
    assert_eq!(reach(&none), Ok(()));
    assert_eq!(notes(&none).len(), 1);
    let gates = ["RuntimeSDK", "InPlaceUpdates"];
    let odd = with(|f| f.managers = Read::Known(vec![manager(Provider::Core, "main", &gates)]));
    assert_eq!(reach(&odd), Ok(()));
    assert!(notes(&odd)[0].contains("controller:main"));
}

#[test]
fn workers_do_not_need_the_control_plane_managers_gate() {
    let without = |facts: Reach| {
        let gates = ["RuntimeSDK", "InPlaceUpdates"];
        Reach {
            managers: Read::Known(vec![
                manager(Provider::Core, "v1.13.0", &gates),
                manager(Provider::KubeadmControlPlane, "v1.13.0", &[]),
            ]),
            ..facts
        }
    };
    assert_eq!(reach(&without(deployment(3, rolling(0, 1)))), Ok(()));
    assert_eq!(reach(&without(sound())).unwrap_err().reason(), "GateOff");
}

#[test]
fn an_extension_for_all_namespaces_needs_no_labels() {
    let all = with_extension(|e| e.selector = Ok(Some(selector(json!({})))));
    let facts = Reach { namespace_labels: Read::Unknown("forbidden".into()), ..all };
    assert_eq!(reach(&facts), Ok(()));
}

#[test]
fn an_invalid_selector_is_named() {
    let config: ExtensionConfig = serde_json::from_value(json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {"name": "refit"},
        "spec": {
            "clientConfig": {},
            "namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "Near", "values": ["a"]},
            ]},
        },
    }))
    .unwrap();
    let facts = with_extension(|e| e.selector = Extension::of(&config).selector);
    let labels = Read::Unknown("forbidden".into());
    for facts in [facts.clone(), Reach { namespace_labels: labels, ..facts }] {
        let unreached = reach(&facts).unwrap_err();
        assert_eq!(unreached.reason(), "InvalidSelector");
        assert!(unreached.to_string().contains("Invalid expression operator"), "{unreached}");
    }
}

#[test]
fn an_extension_for_other_namespaces_or_hooks_is_ignored() {
    let elsewhere = Extension {
        name: "elsewhere".into(),
        selector: Ok(Some(selector(json!({"matchLabels": {"team": "b"}})))),
        ..refit_extension()
    };
    let lifecycle = Extension {
        name: "lifecycle".into(),
        selector: Ok(Some(selector(json!({})))),
        hooks: vec!["BeforeClusterUpgrade".into()],
        ..refit_extension()
    };
    let facts = with(|f| f.extensions = Read::Known(vec![elsewhere, lifecycle, refit_extension()]));
    assert_eq!(reach(&facts), Ok(()));
}

#[test]
fn the_remedy_for_a_namespace_is_the_opt_in_command() {
    let facts = with(|f| f.namespace_labels = Read::Known(labels(&[("a", "b")])));
    let text = reach(&facts).unwrap_err().to_string();
    assert!(text.ends_with("kubectl label namespace default refit.dev/in-place=enabled"), "{text}");
}

#[test]
fn an_extension_config_is_parsed() {
    let mut config: refit_cluster_api::kinds::ExtensionConfig = serde_json::from_value(json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {"name": "refit", "generation": 2},
        "spec": {"clientConfig": {"caBundle": "YQ=="}, "namespaceSelector": {}},
        "status": {
            "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}],
            "handlers": [{"name": "a.refit", "requestHook": {
                "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "UpdateMachine"}}],
        },
    }))
    .unwrap();
    let read = Extension::of(&config);
    assert_eq!(read.hooks, ["UpdateMachine"]);
    assert!(read.has_ca_bundle && !read.current && !read.paused);
    config.metadata.generation = Some(1);
    assert!(Extension::of(&config).current);
}
