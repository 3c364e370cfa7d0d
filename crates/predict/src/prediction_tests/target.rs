//! What the target version breaks.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{
    live::{hosts, live},
    *,
};
use crate::target::{DeprecatedApi, TargetFacts};

const NODE: &str = "edge-1-0";

fn with_facts(change: impl FnOnce(&mut TargetFacts)) -> Input {
    let mut input = live();
    change(&mut hosts(&mut input).target);
    input
}

fn warned(found: &GroupPrediction) -> Vec<&str> {
    found.warnings.iter().map(|one| one.reason).collect()
}

fn blocked(found: &GroupPrediction) -> BTreeSet<&str> {
    found.blocked_by.iter().map(|one| &*one.reason).collect()
}

fn metric(release: &str) -> DeprecatedApi {
    let line = format!(
        "apiserver_requested_deprecated_apis{{group=\"policy\",removed_release=\"{release}\",\
         resource=\"podsecuritypolicies\",subresource=\"\",version=\"v1beta1\"}} 1"
    );
    DeprecatedApi::of_line(&line).unwrap()
}

#[test]
fn apis_that_the_target_does_not_serve_are_warnings() {
    for (release, warnings) in [("1.35", vec!["RemovedApiInUse"]), ("1.36", vec![])] {
        let found = only(predict(&with_facts(|facts| {
            facts.deprecated.insert(metric(release));
        })));
        assert_eq!(warned(&found), warnings, "{release}");
        assert_eq!(found.outcome, PredictedOutcome::InPlace);
    }
    // A patch of the same minor removes none.
    let mut input = with_facts(|facts| {
        facts.deprecated.insert(metric("1.34"));
    });
    let plane = input.desired.get("KubeadmControlPlane", "default", "edge-1").unwrap();
    input.desired.insert(set(plane, "/spec/version", json!("v1.34.9")));
    assert!(warned(&only(predict(&input))).is_empty());
}

fn merged(mut object: Value, pointer: &str, patch: &Value) -> Value {
    json_patch::merge(object.pointer_mut(pointer).unwrap(), patch);
    object
}

#[test]
fn flags_and_gates_that_the_target_has_removed_block() {
    let flag = |program: &str, name: &str, value: &str| match program {
        "kubelet" => json!({"joinConfiguration": {"nodeRegistration": {
            "kubeletExtraArgs": [{"name": name, "value": value}],
        }}}),
        _ => json!({"clusterConfiguration": {program: {
            "extraArgs": [{"name": name, "value": value}],
        }}}),
    };
    for (spec, reason) in [
        (flag("kubelet", "cloud-config", "x"), Some("RemovedFlag")),
        (flag("kubelet", "v", "4"), None),
        (flag("apiServer", "cloud-provider", "x"), Some("RemovedFlag")),
        (flag("apiServer", "v", "4"), None),
        (flag("scheduler", "feature-gates", "NodeSwap=true"), None),
        (
            flag("controllerManager", "feature-gates", "A=true,CPUManager=true"),
            Some("RemovedFeatureGate"),
        ),
    ] {
        let mut input = live();
        let configs: Vec<Value> = input.current.of_kind("KubeadmConfig").cloned().collect();
        input.current.extend(configs.into_iter().map(|config| merged(config, "/spec", &spec)));
        for objects in [&mut input.current, &mut input.desired] {
            let plane = objects.get("KubeadmControlPlane", "default", "edge-1").unwrap().clone();
            objects.insert(merged(plane, "/spec/kubeadmConfigSpec", &spec));
        }
        let found = only(predict(&input));
        let found = blocked(&found);
        let removed: Vec<_> = found.iter().filter(|one| one.starts_with("Removed")).collect();
        assert_eq!(removed, reason.iter().collect::<Vec<_>>(), "{spec}");
    }
    let found = only(predict(&with_facts(|facts| {
        facts.set_kubelet_configuration("featureGates:\n  CPUManager: true\n");
    })));
    assert_eq!(blocked(&found), ["RemovedFeatureGate"].into());
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
}

#[test]
fn the_flags_of_workers_are_those_of_their_template() {
    let mut template = template("KubeadmConfigTemplate", "w", "same");
    template["spec"]["template"]["spec"] = json!({"joinConfiguration": {"nodeRegistration": {
        "kubeletExtraArgs": [{"name": "register-schedulable", "value": "true"}],
    }}});
    let mut input = upgrade(&[deployment(1, 0, 1)]);
    for objects in [&mut input.current, &mut input.desired] {
        objects.insert(template.clone());
    }
    let found = only(predict(&input));
    assert_eq!(found.blocked_by[0].reason, "RemovedFlag", "{found:#?}");
    assert_eq!(found.blocked_by[0].object, "KubeadmConfigTemplate/w");
    let settings = json!({"apiVersion": "refit.dev/v1alpha1", "kind": "HostSettings",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {"settings": {"kubelet": {"removeArgs": ["register-schedulable"]}}}});
    input.current.insert(settings);
    assert_eq!(only(predict(&input)).outcome, PredictedOutcome::InPlace);
}

#[test]
fn a_runtime_without_the_interface_of_the_target_blocks() {
    for (runtime, blocks) in [("containerd://1.5.9", true), ("containerd://1.7.0", false)] {
        let found = only(predict(&with_facts(|facts| {
            facts.runtimes.insert(NODE.to_owned(), runtime.to_owned());
        })));
        assert_eq!(blocked(&found).contains("RuntimeTooOld"), blocks, "{runtime}");
    }
}

#[test]
fn a_clock_that_is_off_is_a_warning() {
    for (seconds, off) in [(60, false), (61, true), (-61, true), (-60, false)] {
        let found = only(predict(&with_facts(|facts| {
            facts.clocks.insert(NODE.to_owned(), SignedDuration::from_secs(seconds));
        })));
        assert_eq!(warned(&found).contains(&"ClockSkew"), off, "{seconds}");
    }
    // The last report of an agent that is silent shows nothing about the clock now.
    let mut input = with_facts(|facts| {
        facts.clocks.insert(NODE.to_owned(), SignedDuration::from_hours(1));
    });
    hosts(&mut input).reported_at.clear();
    assert!(!warned(&only(predict(&input))).contains(&"ClockSkew"));
}

#[test]
fn objects_that_cannot_be_read_are_noted() {
    let found = only(predict(&with_facts(|facts| facts.unread.push("no metrics".to_owned()))));
    assert!(found.notes.contains(&"no metrics".to_owned()), "{:#?}", found.notes);
    let unread = Some("forbidden".to_owned());
    let found = only(predict(&with_facts(|facts| facts.unread_metrics = unread)));
    assert!(found.notes.contains(&"forbidden".to_owned()), "{:#?}", found.notes);
}
