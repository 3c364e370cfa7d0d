//! Forecasts of drains: what the pods of a node make of it.

use super::{
    live::{change_machine, hosts, live},
    *,
};

/// A node with room for its own pods and no more.
fn node(name: &str, memory: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "4", "memory": memory, "pods": "20"},
    }})
}

fn pod(name: &str, memory: &str, owner: Option<&str>) -> Value {
    let owners = owner.map(|kind| {
        json!([{
            "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true,
        }])
    });
    json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": "web"},
            "ownerReferences": owners},
        "spec": {"nodeName": "edge-1-0", "restartPolicy": "Always", "containers": [
            {"name": "c", "resources": {"requests": {"memory": memory}}},
        ]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn budget(allowed: i64) -> Value {
    json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed, "expectedPods": 3, "currentHealthy": 3,
            "desiredHealthy": 3 - allowed}})
}

fn with(mut value: Value, pointer: &str, key: &str, what: Value) -> Value {
    value.pointer_mut(pointer).unwrap()[key] = what;
    value
}

/// A control plane whose first node runs these pods, while the others have 1 Gi left.
fn run(budgets: &[Value], pods: &[Value]) -> Input {
    let mut input = live();
    let nodes = [node("edge-1-0", "8Gi"), node("edge-1-1", "1Gi"), node("edge-1-2", "1Gi")];
    let reported_at = std::mem::take(&mut hosts(&mut input).reported_at);
    *hosts(&mut input) = Hosts { reported_at, ..Hosts::of(&[], &nodes, budgets, pods) };
    input
}

fn forecast(input: &Input) -> (DrainForecast, GroupPrediction) {
    let found = only(predict(input));
    let drain = found.drains.iter().find(|drain| drain.node == "edge-1-0");
    (drain.unwrap_or_else(|| panic!("{found:#?}")).clone(), found)
}

fn concerns(drain: &DrainForecast) -> Vec<&str> {
    drain.concerns.iter().map(|one| one.reason).collect()
}

fn replicated(name: &str, memory: &str) -> Value {
    pod(name, memory, Some("ReplicaSet"))
}

#[test]
fn a_drain_succeeds_if_all_pods_fit_elsewhere() {
    let daemon = pod("daemon", "4Gi", Some("DaemonSet"));
    let finished = with(pod("done", "4Gi", None), "/status", "phase", json!("Succeeded"));
    let (drain, found) = forecast(&run(&[], &[replicated("web-1", "1Gi"), daemon, finished]));
    assert_eq!((drain.outcome, drain.pods), (DrainOutcome::Succeeds, 1), "{drain:#?}");
    assert!(drain.concerns.is_empty() && found.blocked_by.is_empty());
    let outcomes: Vec<_> = found.drains.iter().map(|drain| (&*drain.machine, drain.pods)).collect();
    assert_eq!(outcomes, [("edge-1-0", 1), ("edge-1-1", 0), ("edge-1-2", 0)]);
}

#[test]
fn a_pod_that_fits_nowhere_stays_pending_and_does_not_block() {
    let (drain, found) = forecast(&run(&[], &[replicated("web-1", "2Gi")]));
    assert_eq!(drain.outcome, DrainOutcome::LeavesPending);
    assert_eq!(concerns(&drain), ["PodFitsNowhere"]);
    assert_eq!(
        drain.concerns[0].message,
        "pod default/web-1 stays Pending until Node edge-1-0 is back: 0 of 2 other nodes: 2 \
         insufficient memory"
    );
    assert_eq!(found.outcome, PredictedOutcome::InPlace);
    assert!(found.notes.iter().any(|note| note.contains("autoscalers")), "{:#?}", found.notes);
}

#[test]
fn constraints_that_are_not_modelled_are_named() {
    let spread =
        json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
    let pod = with(replicated("web-1", "1"), "/spec", "topologySpreadConstraints", spread);
    let (_, found) = forecast(&run(&[], &[pod]));
    let note = found.notes.iter().find(|note| note.starts_with("where evicted pods could go"));
    assert!(note.unwrap().ends_with("not by topology spread constraints"), "{note:?}");
}

#[test]
fn a_bare_pod_makes_the_drain_wait_unless_a_policy_or_its_end_helps() {
    let bare = || pod("bare", "1", None);
    let annotate = |value: &str| {
        let mut input = run(&[], &[bare()]);
        let annotations = json!({keys::DRAIN_UNREPLICATED: value});
        change_machine(&mut input, 0, |machine| machine["metadata"]["annotations"] = annotations);
        input
    };
    let gives_up = |input: &mut Input| {
        change_machine(input, 0, |machine| {
            machine["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 60});
        });
    };
    let mut limited = run(&[], &[bare()]);
    gives_up(&mut limited);
    let job = with(bare(), "/spec", "restartPolicy", json!("Never"));
    for (input, outcome, reason, blocks) in [
        (run(&[], &[bare()]), DrainOutcome::Waits, "PodUnreplicated", true),
        (run(&[], &[job]), DrainOutcome::Waits, "PodUnreplicated", false),
        (limited, DrainOutcome::Succeeds, "PodUnreplicated", false),
        (annotate("Evict"), DrainOutcome::LosesPods, "PodLost", false),
    ] {
        let (drain, found) = forecast(&input);
        assert_eq!((drain.outcome, concerns(&drain)), (outcome, vec![reason]), "{drain:#?}");
        let blocked: Vec<&str> = found.blocked_by.iter().map(|one| &*one.reason).collect();
        assert_eq!(blocked, if blocks { vec![reason] } else { Vec::new() });
        assert_eq!(found.outcome == PredictedOutcome::Blocked, blocks);
    }
    let (drain, _) = forecast(&annotate("Leave"));
    assert_eq!((drain.outcome, drain.pods), (DrainOutcome::Succeeds, 0));
}

#[test]
fn data_on_the_node_is_a_concern() {
    let volume = |what: &str, body: Value| json!([{"name": "v", what: body}]);
    let of = |name: &str, volumes: Value| with(replicated(name, "1"), "/spec", "volumes", volumes);
    let pods: Vec<Value> = (0..5)
        .map(|i| of(&format!("cache-{i}"), volume("emptyDir", json!({}))))
        .chain([of("log", volume("hostPath", json!({"path": "/x"})))])
        .collect();
    let (drain, _) = forecast(&run(&[], &pods));
    assert_eq!(concerns(&drain), ["LocalDataLost", "LocalDataStays"]);
    let message = &drain.concerns[0].message;
    assert!(message.contains("default/cache-2 and 2 more of Node edge-1-0"), "{message}");
    assert_eq!(drain.outcome, DrainOutcome::Succeeds);
}

#[test]
fn pods_that_fit_nowhere_use_up_their_budget() {
    let large = |count: usize| (0..count).map(|i| replicated(&format!("large-{i}"), "2Gi"));
    let small = || replicated("small", "1");
    for (allowed, pods, used_up, blocks) in [
        (2, large(1).collect::<Vec<_>>(), false, false),
        (1, large(1).collect(), true, false),
        (1, large(1).chain([small()]).collect(), true, false),
        (1, large(2).collect(), true, true),
    ] {
        let (drain, found) = forecast(&run(&[budget(allowed)], &pods));
        assert_eq!(concerns(&drain).contains(&"BudgetUsedUp"), used_up, "{drain:#?}");
        assert_eq!(drain.outcome == DrainOutcome::Waits, blocks, "{drain:#?}");
        assert_eq!(found.blocked_by.iter().any(|one| one.reason == "BudgetUsedUp"), blocks);
    }
}

#[test]
fn a_budget_that_allows_nothing_is_the_concern_that_blocks_already() {
    let (drain, found) = forecast(&run(&[budget(0)], &[replicated("web-1", "1")]));
    assert_eq!(drain.outcome, DrainOutcome::Waits);
    assert_eq!(concerns(&drain), ["PodDisruptionBudget"]);
    assert_eq!(found.blocked_by.len(), 1, "{:#?}", found.blocked_by);
}

#[test]
fn a_node_that_is_not_drained_has_no_concerns() {
    let mut input = run(&[], &[pod("bare", "1", None)]);
    change_machine(&mut input, 0, |machine| {
        machine["metadata"]["annotations"] = json!({keys::EXCLUDE_NODE_DRAINING: ""});
    });
    let (drain, found) = forecast(&input);
    assert_eq!((drain.outcome, drain.pods), (DrainOutcome::NotDrained, 0));
    assert!(found.blocked_by.is_empty());
}

#[test]
fn a_drain_rule_decides_about_its_pods() {
    for (behavior, outcome, reasons) in [
        ("Skip", DrainOutcome::Succeeds, vec![]),
        ("WaitCompleted", DrainOutcome::Waits, vec!["PodWaitCompleted"]),
    ] {
        let mut input = run(&[], &[replicated("web-1", "2Gi")]);
        let rule = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
            "metadata": {"name": "r", "namespace": "default"},
            "spec": {"drain": {"behavior": behavior},
                "pods": [{"selector": {"matchLabels": {"app": "web"}}}]}});
        input.current.extend([rule]);
        let (drain, found) = forecast(&input);
        assert_eq!((drain.outcome, concerns(&drain)), (outcome, reasons), "{behavior}");
        assert!(found.blocked_by.is_empty());
    }
}

#[test]
fn many_drains_that_wait_are_one_blocker() {
    let on = |index: usize| {
        let bare = pod(&format!("bare-{index}"), "1", None);
        with(bare, "/spec", "nodeName", json!(format!("edge-1-{index}")))
    };
    let (_, found) = forecast(&run(&[], &[on(0), on(1), on(2)]));
    let [blocked] = &found.blocked_by[..] else { panic!("{:#?}", found.blocked_by) };
    assert!(blocked.message.starts_with("3 machines (edge-1-0, edge-1-1, edge-1-2): "));
    assert_eq!(blocked.object, "Machine/edge-1-0");
}
