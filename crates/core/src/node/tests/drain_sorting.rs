//! Which pods leave: the table of kinds, labels, rules and policies.

use refit_cluster_api::kinds::MachineDrainRule;
use refit_kinds::keys;
use serde_json::json;

use super::world::{at, pod};
use crate::node::{
    PodPolicy::{Evict, Leave, Wait},
    *,
};

fn rule(name: &str, spec: serde_json::Value) -> MachineDrainRule {
    let mut spec = spec;
    if spec.get("drain").is_none() {
        spec["drain"] = json!({"behavior": "Drain"});
    }
    let rule = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
        "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(rule).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

/// The decision about one pod, as a word.
fn fate(view: &DrainView, policy: &DrainPolicy, node_ready: bool) -> String {
    let sorted = sort(view, policy, node_ready, at(1000));
    let leaving = sorted.leaving.iter().map(|(_, order)| format!("leaves {order}"));
    let waited = sorted.waited.iter().map(|(_, why)| why.reason().to_owned());
    let staying = sorted.staying.iter().map(|_| "stays".to_owned());
    leaving.chain(waited).chain(staying).collect::<Vec<_>>().join(" ")
}

fn fate_with(pod: PodView, rules: Vec<MachineDrainRule>, policy: &DrainPolicy) -> String {
    let view = DrainView {
        pods: vec![pod],
        rules,
        namespaces: [("default".to_owned(), labels(&[("stage", "prod")]))].into(),
        attachments: None,
    };
    fate(&view, policy, true)
}

fn labelled(value: &str) -> PodView {
    PodView { labels: labels(&[(keys::POD_DRAIN, value), ("app", "web")]), ..pod("web-1") }
}

#[test]
fn the_table_of_policies() {
    let naked = PodView { unreplicated: true, ..pod("a") };
    let local = PodView { local_storage: true, ..pod("a") };
    let both = PodView { unreplicated: true, ..local.clone() };
    let going = PodView { terminating: true, ..both.clone() };
    let table = [
        (&naked, Wait, Evict, "PodUnreplicated"),
        (&naked, Evict, Wait, "leaves 0"),
        (&naked, Leave, Evict, "stays"),
        (&local, Wait, Evict, "leaves 0"),
        (&local, Evict, Wait, "PodLocalStorage"),
        (&local, Evict, Leave, "stays"),
        (&both, Wait, Wait, "PodUnreplicated"),
        (&both, Evict, Wait, "PodLocalStorage"),
        (&both, Leave, Wait, "stays"),
        (&going, Wait, Wait, "leaves 0"),
    ];
    for (pod, unreplicated, local_storage, expected) in table {
        let policy = DrainPolicy { unreplicated, local_storage, ..DrainPolicy::default() };
        assert_eq!(
            fate_with(pod.clone(), Vec::new(), &policy),
            expected,
            "{unreplicated:?} {local_storage:?}"
        );
    }
}

#[test]
fn a_pods_own_label_wins_over_every_rule() {
    let drain = || vec![rule("a", json!({"drain": {"behavior": "Drain", "order": 7}}))];
    let policy = DrainPolicy::default();
    let table = [
        ("skip", "stays"),
        ("Skip", "stays"),
        ("wait-completed", "PodWaitCompleted"),
        ("later", "DrainRuleNotUnderstood"),
    ];
    for (value, expected) in table {
        assert_eq!(fate_with(labelled(value), drain(), &policy), expected, "{value}");
    }
    assert_eq!(fate_with(pod("a"), drain(), &policy), "leaves 7");
}

#[test]
fn the_first_matching_rule_by_name_applies() {
    let policy = DrainPolicy::default();
    let behavior = |word: &str| json!({"drain": {"behavior": word}});
    let table = [
        (behavior("Skip"), "stays"),
        (behavior("WaitCompleted"), "PodWaitCompleted"),
        (behavior("Pray"), "DrainRuleNotUnderstood"),
        (
            json!({"drain": {"behavior": "Skip"},
                "pods": [{"selector": {"matchLabels": {"app": "other"}}}]}),
            "leaves 5",
        ),
        (
            json!({"drain": {"behavior": "Skip"},
                "pods": [{"namespaceSelector": {"matchLabels": {"stage": "prod"}}}]}),
            "stays",
        ),
        (
            json!({"drain": {"behavior": "Skip"}, "pods": [
                {"selector": {"matchLabels": {"app": "web"}},
                    "namespaceSelector": {"matchLabels": {"stage": "test"}}},
                {"selector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}},
            ]}),
            "leaves 5",
        ),
    ];
    let web = PodView { labels: labels(&[("app", "web")]), ..pod("web-1") };
    for (spec, expected) in table {
        let rules = vec![
            rule("z", json!({"drain": {"behavior": "Drain", "order": 5}})),
            rule("a", spec.clone()),
        ];
        let rules = rules_of(rules, &Labels::new(), &Labels::new());
        assert_eq!(fate_with(web.clone(), rules, &policy), expected, "{spec}");
    }
}

#[test]
fn rules_select_machines_and_clusters() {
    let (machine, cluster) = (labels(&[("os", "linux")]), labels(&[("stage", "prod")]));
    let table = [
        (json!({}), true),
        (json!({"machines": [{"selector": {"matchLabels": {"os": "linux"}}}]}), true),
        (json!({"machines": [{"selector": {"matchLabels": {"os": "none"}}}]}), false),
        (
            json!({"machines": [{"selector": {"matchLabels": {"os": "linux"}},
                "clusterSelector": {"matchLabels": {"stage": "test"}}}]}),
            false,
        ),
        (
            json!({"machines": [{"selector": {"matchLabels": {"os": "none"}}},
                {"clusterSelector": {"matchLabels": {"stage": "prod"}}}]}),
            true,
        ),
    ];
    for (spec, applies) in table {
        let found = rules_of([rule("a", spec.clone())], &machine, &cluster);
        assert_eq!(!found.is_empty(), applies, "{spec}");
    }
    let asks = |spec| asks_for_namespaces(&[rule("a", spec)]);
    assert!(!asks(json!({"pods": [{"selector": {}}]})));
    assert!(asks(json!({"pods": [{"namespaceSelector": {}}]})));
}

#[test]
fn pods_past_their_grace_on_a_silent_node_are_ignored() {
    let ending = |end| PodView { terminating: true, deletion_at: Some(at(end)), ..pod("a") };
    for (end, ready, expected) in
        [(999, true, "leaves 0"), (999, false, "stays"), (1001, false, "leaves 0")]
    {
        let view = DrainView { pods: vec![ending(end)], ..DrainView::default() };
        let policy = DrainPolicy::default();
        assert_eq!(fate(&view, &policy, ready), expected, "{end} {ready}");
    }
}

#[test]
fn volumes_of_pods_that_stay_are_not_waited_for() {
    let claims = |name: &str| vec![name.to_owned()];
    let view = DrainView {
        pods: vec![
            PodView { daemon_set: true, claims: claims("logs"), ..pod("a") },
            PodView { finished: true, claims: claims("old"), ..pod("b") },
            PodView { claims: claims("data"), ..pod("c") },
        ],
        ..DrainView::default()
    };
    let policy = DrainPolicy::default();
    assert_eq!(
        claims_that_stay(&view, &policy, true, at(0)),
        [("default".to_owned(), "logs".to_owned())]
    );
    assert!(!is_emptied(&view, &policy, true, at(0)));
}
