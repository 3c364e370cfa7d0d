use jiff::Timestamp;
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{observe::CONTROLLER, *};

mod at_rest;
mod deletions;
mod fleet;
mod providers;

const CAPI: &str = "cluster.x-k8s.io";
/// No violation.
const OK: [u8; 0] = [];

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// A MachineDeployment of five and a control plane of three, all healthy.
fn world() -> World {
    let mut world = World::new();
    put(&mut world, CAPI, "Cluster", &json!({"metadata": meta("edge-1")}));
    put(&mut world, CAPI, "MachineDeployment", &deployment(0, 1));
    let set = json!({
        "metadata": with(meta("md-abc"), json!({"ownerReferences": owner("MachineDeployment", "md")})),
        "spec": {"replicas": 5},
    });
    put(&mut world, CAPI, "MachineSet", &set);
    let kcp = json!({
        "metadata": meta("cp"),
        "spec": {
            "replicas": 3, "version": "v1.35.0",
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}},
        },
    });
    put(&mut world, "controlplane.cluster.x-k8s.io", "KubeadmControlPlane", &kcp);
    for n in 0..5 {
        put(&mut world, CAPI, "Machine", &machine(&format!("w-{n}"), "MachineSet", "md-abc"));
        world.observe("", "Node", Some("edge-1"), None, Some(&node(&format!("w-{n}"))), "kubelet");
    }
    for n in 0..3 {
        let name = format!("c-{n}");
        let member = machine(&name, "KubeadmControlPlane", "cp");
        let member = with(member, json!({"metadata": {"labels": {keys::CONTROL_PLANE: ""}}}));
        put(&mut world, CAPI, "Machine", &member);
        world.observe("", "Node", Some("edge-1"), None, Some(&node(&name)), "kubelet");
        world.observe("", "Pod", Some("edge-1"), None, Some(&etcd(&name, true)), "kubelet");
    }
    world
}

fn put(world: &mut World, group: &str, kind: &str, object: &Value) {
    let found = world.observe(group, kind, None, None, Some(object), "user");
    assert!(found.is_empty(), "{found:?}");
}

fn meta(name: &str) -> Value {
    json!({"namespace": "default", "name": name, "uid": format!("uid-{name}")})
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"kind": kind, "name": name, "controller": true}])
}

fn with(mut object: Value, more: Value) -> Value {
    fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                for (key, value) in more {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, more) => *into = more,
        }
    }
    merge(&mut object, more);
    object
}

fn deployment(surge: i32, unavailable: i32) -> Value {
    json!({
        "metadata": meta("md"),
        "spec": {
            "replicas": 5,
            "template": {"spec": {"version": "v1.35.0"}},
            "rollout": {"strategy": {"rollingUpdate": {
                "maxSurge": surge, "maxUnavailable": unavailable,
            }}},
        },
    })
}

fn machine(name: &str, kind: &str, by: &str) -> Value {
    json!({
        "metadata": with(meta(name), json!({"ownerReferences": owner(kind, by)})),
        "spec": {"clusterName": "edge-1"},
        "status": {
            "nodeRef": {"name": name},
            "conditions": [{"type": "Available", "status": "True"}],
        },
    })
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.2"},
        },
    })
}

fn not_ready(name: &str) -> Value {
    with(node(name), json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}))
}

fn cordoned(name: &str) -> Value {
    let note = json!({"annotations": {keys::CORDONED_BY: format!("{name}-1")}});
    with(node(name), json!({"metadata": note, "spec": {"unschedulable": true}}))
}

fn etcd(node: &str, ready: bool) -> Value {
    json!({
        "metadata": {
            "namespace": "kube-system",
            "name": format!("etcd-{node}"),
            "labels": {"tier": "control-plane", "component": "etcd"},
        },
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })
}

fn plan(node: &str, gate: &str) -> Value {
    json!({
        "metadata": {"namespace": "refit-system", "name": node},
        "spec": {"planId": format!("uid-{node}-1"), "gate": gate},
    })
}

fn update(machine: &str, ordinal: u32, phase: &str) -> Value {
    json!({
        "metadata": meta(&format!("{machine}-{ordinal}")),
        "spec": {
            "machineRef": {"name": machine, "uid": format!("uid-{machine}")},
            "goal": {"kubernetesVersion": "v1.35.0"},
        },
        "status": {"phase": phase},
    })
}

fn raise(world: &mut World, node: &str, gate: &str) -> Vec<u8> {
    let object = plan(node, gate);
    numbers(&world.observe(
        "refit.dev",
        "HostPlan",
        Some("edge-1"),
        None,
        Some(&object),
        "controller",
    ))
}

fn cordon(world: &mut World, name: &str) -> Vec<u8> {
    numbers(&world.observe("", "Node", Some("edge-1"), None, Some(&cordoned(name)), "controller"))
}

fn kubelet(world: &mut World, object: &Value) -> Vec<u8> {
    numbers(&world.observe("", "Node", Some("edge-1"), None, Some(object), "kubelet"))
}

fn observe_update(world: &mut World, object: &Value) -> Vec<u8> {
    numbers(&world.observe("refit.dev", "NodeUpdate", None, None, Some(object), "controller"))
}

fn rest(world: &World) -> Vec<u8> {
    numbers(&world.at_rest(now()))
}

fn numbers(found: &[Violation]) -> Vec<u8> {
    found.iter().map(|violation| violation.invariant.number()).collect()
}

#[test]
fn one_worker_may_be_disturbed_but_not_a_second() {
    let mut world = world();
    assert_eq!(raise(&mut world, "w-0", "Stage"), OK);
    assert_eq!(raise(&mut world, "w-1", "Stage"), OK);
    assert_eq!(raise(&mut world, "w-0", "Upgrade"), OK);
    assert_eq!(cordon(&mut world, "w-0"), OK);
    assert_eq!(raise(&mut world, "w-0", "Disrupt"), OK);
    assert_eq!(raise(&mut world, "w-1", "Upgrade"), [1]);
}

#[test]
fn a_cordon_or_an_eviction_also_disturbs() {
    let mut world = world();
    raise(&mut world, "w-0", "Upgrade");
    assert_eq!(cordon(&mut world.clone(), "w-1"), [1]);
    let pod = json!({"metadata": meta("web"), "spec": {"nodeName": "w-1"}});
    let evict = |world: &mut World, actor| {
        numbers(&world.observe("", "Pod", Some("edge-1"), Some(&pod), None, actor))
    };
    assert_eq!(evict(&mut world.clone(), "controller"), [1]);
    assert_eq!(evict(&mut world.clone(), "kubelet"), OK);
}

#[test]
fn the_next_worker_may_follow_once_the_first_is_available() {
    let mut world = world();
    observe_update(&mut world, &update("w-0", 1, "Upgrading"));
    raise(&mut world, "w-0", "Disrupt");
    kubelet(&mut world, &not_ready("w-0"));
    assert_eq!(raise(&mut world.clone(), "w-1", "Upgrade"), [1]);
    kubelet(&mut world, &node("w-0"));
    assert_eq!(raise(&mut world.clone(), "w-1", "Upgrade"), [1]);
    observe_update(&mut world, &update("w-0", 1, "Succeeded"));
    assert_eq!(raise(&mut world, "w-1", "Upgrade"), OK);
}

#[test]
fn a_machine_that_is_already_down_may_be_repaired() {
    let mut world = world();
    kubelet(&mut world, &not_ready("w-0"));
    kubelet(&mut world, &not_ready("w-1"));
    assert_eq!(raise(&mut world.clone(), "w-0", "Upgrade"), OK);
    assert_eq!(raise(&mut world, "w-2", "Upgrade"), [1]);
}

#[test]
fn the_owner_sets_the_limit() {
    let mut world = world();
    put(&mut world, CAPI, "MachineDeployment", &deployment(0, 2));
    raise(&mut world, "w-0", "Upgrade");
    assert_eq!(raise(&mut world, "w-1", "Upgrade"), OK);
    assert_eq!(raise(&mut world, "w-2", "Upgrade"), [1]);
}

#[test]
fn two_disturbed_control_plane_members_are_found() {
    let mut world = world();
    assert_eq!(raise(&mut world, "c-0", "Upgrade"), OK);
    assert_eq!(raise(&mut world.clone(), "c-1", "Upgrade"), [1, 2]);
    // A different group is unaffected.
    assert_eq!(raise(&mut world, "w-0", "Upgrade"), OK);
}

#[test]
fn a_control_plane_with_unhealthy_etcd_is_left_alone() {
    let mut world = world();
    let ill = etcd("c-1", false);
    world.observe("", "Pod", Some("edge-1"), None, Some(&ill), "kubelet");
    assert_eq!(raise(&mut world.clone(), "c-0", "Upgrade"), [2]);
    assert_eq!(raise(&mut world, "c-1", "Upgrade"), OK);
}

#[test]
fn an_update_that_keeps_pods_must_not_drain() {
    let goal = |goal: Value, parts: Value| {
        json!({"metadata": meta("c-0-1"), "status": {"phase": "Upgrading"}, "spec": {
            "machineRef": {"name": "c-0", "uid": "uid-c-0"}, "goal": goal, "parts": parts,
        }})
    };
    let part = |disruption: &str| json!([{"updater": "kubeadm", "disruption": disruption}]);
    let (unstated, left) = (
        json!([{"updater": "kubeadm"}]),
        json!([{"updater": "image", "action": "Leave", "disruption": "Drain"}]),
    );
    let provider = json!([{"updater": "nodes", "disruption": "None", "template": {}}]);
    let version = || json!({"kubernetesVersion": "v1.35.0"});
    let certificates = || json!({"certificates": {}});
    let renewal = goal(certificates(), part("Restart"));
    let pod = json!({"metadata": meta("web"), "spec": {"nodeName": "c-0"}});
    for (update, plan_has, keeps) in [
        (renewal.clone(), None, true),
        (goal(certificates(), Value::Null), None, true),
        (goal(certificates(), part("Drain")), None, false),
        (goal(version(), Value::Null), None, false),
        (goal(version(), unstated), None, false),
        (goal(version(), left), None, true),
        (goal(version(), provider), None, false),
        (goal(version(), part("None")), None, true),
        (goal(version(), part("Restart")), Some("Restart"), true),
        // The steps of its plan may need more than its parts say.
        (goal(version(), part("Restart")), Some("Drain"), false),
        (goal(version(), part("Reboot")), Some("Reboot"), false),
        (with(renewal, json!({"status": {"phase": "Succeeded"}})), None, false),
    ] {
        let mut world = world();
        assert_eq!(observe_update(&mut world, &update), OK);
        if let Some(disruption) = plan_has {
            let object = with(plan("c-0", "Stage"), json!({"spec": {"disruption": disruption}}));
            let of = (Some("edge-1"), Some(&object));
            world.observe("refit.dev", "HostPlan", of.0, None, of.1, "controller");
        }
        let wrong: &[u8] = if keeps { &[7] } else { &[] };
        assert_eq!(cordon(&mut world.clone(), "c-0"), wrong, "{update} {plan_has:?}");
        assert_eq!(cordon(&mut world.clone(), "w-0"), OK, "another machine");
        let evicted =
            world.clone().observe("", "Pod", Some("edge-1"), Some(&pod), None, "controller");
        assert_eq!(numbers(&evicted), wrong, "{update} {plan_has:?}");
    }
}

#[test]
fn a_plan_disturbs_as_its_update_and_its_steps_need() {
    let mut world = world();
    let of_certificates = json!({"spec": {
        "goal": {"kubernetesVersion": null, "certificates": {}}, "parts": null,
    }});
    observe_update(&mut world, &with(update("c-0", 1, "Waiting"), of_certificates));
    let of_image = json!({"spec": {"parts": [{"updater": "image", "disruption": "Reboot"}]}});
    observe_update(&mut world, &with(update("w-0", 1, "Waiting"), of_image));
    let of_file = json!({"spec": {"parts": [{"updater": "file", "disruption": "None"}]}});
    observe_update(&mut world, &with(update("w-1", 1, "Waiting"), of_file));
    let renews = ["preflight", "certificates-renew", "verify"];
    let restarts = ["preflight", "certificates-renew", "kubelet-restart", "verify"];
    let none = Value::Null;
    for (node, disruption, ids, wrong) in [
        ("c-0", json!("Restart"), &renews[..], &OK[..]),
        ("c-0", none.clone(), &renews, &OK),
        ("c-0", json!("Restart"), &restarts, &[7]),
        ("c-0", json!("None"), &renews, &[7]),
        ("w-0", json!("Reboot"), &["os-image-finalize", "reboot"], &OK),
        ("w-0", none, &["os-image-finalize", "reboot"], &[7]),
        ("w-0", json!("Drain"), &["verify"], &[7]),
        ("w-1", json!("None"), &["files", "ntp", "verify"], &OK),
        ("w-1", json!("None"), &["files", "kubelet-restart"], &[7]),
        ("w-1", json!("Restart"), &["files", "kubelet-restart"], &OK),
        ("w-1", json!("Restart"), &["kubelet-install", "kubelet-restart"], &[7]),
        ("w-1", json!("Drain"), &["files", "reboot"], &[7]),
        ("w-1", json!("Reboot"), &["files", "reboot"], &OK),
    ] {
        let steps: Vec<_> = ids.iter().map(|id| json!({"id": id})).collect();
        let mut more = json!({"spec": {"steps": steps}});
        if !disruption.is_null() {
            more["spec"]["disruption"] = disruption.clone();
        }
        let object = with(plan(node, "Upgrade"), more);
        let of = (Some("edge-1"), Some(&object));
        let found = world.clone().observe("refit.dev", "HostPlan", of.0, None, of.1, "controller");
        assert_eq!(numbers(&found), wrong, "{node} {disruption} {ids:?}: {found:?}");
    }
}

#[test]
fn a_plan_that_disturbs_nothing_counts_as_no_machine_that_is_down() {
    let mut world = world();
    let of_file = json!({"spec": {"parts": [{"updater": "file", "disruption": "None"}]}});
    for name in ["w-0", "w-1", "c-0", "c-1"] {
        observe_update(&mut world, &with(update(name, 1, "Upgrading"), of_file.clone()));
        let object = with(plan(name, "Upgrade"), json!({"spec": {"disruption": "None"}}));
        let of = (Some("edge-1"), Some(&object));
        let found = world.observe("refit.dev", "HostPlan", of.0, None, of.1, "controller");
        assert_eq!(numbers(&found), OK, "{name}: {found:?}");
    }
    for name in ["w-2", "c-2"] {
        assert_eq!(raise(&mut world, name, "Upgrade"), OK, "the others are available");
    }
    assert_eq!(raise(&mut world, "w-3", "Upgrade"), [1], "one is down now");
}

#[test]
fn a_machine_that_begins_outside_of_the_windows_of_its_group_is_found() {
    let daily = |start: &str, zone: &str| {
        json!({"weekly": [{
            "days": ["Thursday"], "start": start, "durationMinutes": 60, "timeZone": zone,
        }]})
    };
    let once = |until: &str| json!({"once": [{"from": "2026-01-01T00:00:00Z", "until": until}]});
    let cases = [
        (Value::Null, true),
        (daily("01:00", "UTC"), true),
        (daily("00:00", "UTC"), false),
        (daily("00:00", "Europe/Berlin"), true),
        (once("2026-01-01T01:00:01Z"), true),
        (once("2026-01-01T01:00:00Z"), false),
    ];
    for (windows, is_open) in cases {
        let group = |machine: &str| {
            json!({
                "metadata": meta("group"), "spec": {"pacing": {"windows": windows}},
                "status": {"slots": [
                    {"machine": machine, "machineUid": format!("uid-{machine}"), "since": now()},
                ]},
            })
        };
        let mut world = world();
        let mut claims = |group: &Value| {
            let found =
                world.observe("refit.dev", "UpdateGroup", None, None, Some(group), CONTROLLER);
            found.iter().map(|violation| violation.invariant.number()).collect::<Vec<_>>()
        };
        assert_eq!(claims(&group("w-0")).is_empty(), is_open, "{windows}");
        assert_eq!(claims(&group("w-0")), OK, "it has it already");
        world.observe("", "Node", Some("edge-1"), None, Some(&not_ready("w-1")), "kubelet");
        let late = group("w-1");
        let found = world.observe("refit.dev", "UpdateGroup", None, None, Some(&late), CONTROLLER);
        assert!(found.is_empty(), "it is down already: {found:?}");
    }
}

#[test]
fn a_machine_that_begins_behind_a_gate_that_an_alert_has_closed_is_found() {
    let critical = json!({"name": "alerts", "alerts": {"labels": {"severity": "critical"}}});
    let other = json!({"name": "alerts", "alerts": {"labels": {"severity": "warning"}}});
    let before = |seconds| Some(now() - jiff::SignedDuration::from_secs(seconds));
    for (gate, firing_since, wrong) in [
        (&critical, before(120), true),
        (&critical, before(30), false),
        (&critical, None, false),
        (&other, before(120), false),
    ] {
        let mut world = world();
        world.set_firing(firing_since);
        let group = json!({
            "metadata": meta("group"), "spec": {"pacing": {"gates": [gate]}},
            "status": {"slots": [{"machine": "w-0", "machineUid": "uid-w-0", "since": now()}]},
        });
        let found = world.observe("refit.dev", "UpdateGroup", None, None, Some(&group), CONTROLLER);
        assert_eq!(!found.is_empty(), wrong, "{gate} since {firing_since:?}: {found:?}");
    }
}

#[test]
fn a_second_unfinished_update_of_a_machine_is_found() {
    let mut world = world();
    assert_eq!(observe_update(&mut world, &update("w-0", 1, "Upgrading")), OK);
    assert_eq!(observe_update(&mut world.clone(), &update("w-0", 2, "Pending")), [4]);
    assert_eq!(observe_update(&mut world.clone(), &update("w-1", 1, "Pending")), OK);
    assert_eq!(observe_update(&mut world, &update("w-0", 1, "Succeeded")), OK);
    assert_eq!(observe_update(&mut world, &update("w-0", 2, "Pending")), OK);
}

#[test]
fn a_reopened_update_is_found() {
    let mut world = world();
    observe_update(&mut world, &update("w-0", 1, "Failed"));
    assert_eq!(observe_update(&mut world, &update("w-0", 1, "Upgrading")), [4]);
}

#[test]
fn a_second_start_is_found() {
    let mut world = world();
    let started =
        |at: &str| with(update("w-0", 1, "Staging"), json!({"status": {"startedAt": at}}));
    assert_eq!(observe_update(&mut world, &started("2026-01-01T00:00:00Z")), OK);
    assert_eq!(observe_update(&mut world, &started("2026-01-01T00:00:00Z")), OK);
    assert_eq!(observe_update(&mut world, &started("2026-01-01T00:00:09Z")), [4]);
}

#[test]
fn a_narrowed_gate_is_found() {
    let mut world = world();
    raise(&mut world, "w-0", "Upgrade");
    assert_eq!(raise(&mut world, "w-0", "Stage"), [4]);
}

#[test]
fn a_gate_that_opens_after_an_abort_is_found() {
    let aborted = with(update("w-0", 1, "Waiting"), json!({"spec": {"stage": "Abort"}}));
    let mut early = world();
    assert_eq!(raise(&mut early, "w-0", "Stage"), OK);
    observe_update(&mut early, &aborted);
    assert_eq!(raise(&mut early, "w-0", "Upgrade"), [8]);
    let mut late = world();
    assert_eq!(raise(&mut late, "w-0", "Upgrade"), OK);
    observe_update(&mut late, &aborted);
    assert_eq!(raise(&mut late, "w-0", "Disrupt"), OK, "what has begun may finish");
}

#[test]
fn a_node_is_downgraded_only_if_its_owner_requests_it() {
    let mut world = world();
    assert_eq!(kubelet(&mut world, &runs("w-0", "v1.35.0")), OK);
    assert_eq!(kubelet(&mut world.clone(), &runs("w-0", "v1.34.2")), [4]);
    let back = json!({"spec": {"template": {"spec": {"version": "v1.34.2"}}}});
    put(&mut world, CAPI, "MachineDeployment", &with(deployment(0, 1), back));
    assert_eq!(kubelet(&mut world, &runs("w-0", "v1.34.2")), OK);
}

fn runs(name: &str, version: &str) -> Value {
    with(node(name), json!({"status": {"nodeInfo": {"kubeletVersion": version}}}))
}

#[test]
fn a_worker_may_be_rolled_back_to_where_its_update_began() {
    for (name, wanted) in [("w-0", &OK[..]), ("c-0", &[4])] {
        let mut world = world();
        assert_eq!(raise(&mut world, name, "Upgrade"), OK);
        assert_eq!(kubelet(&mut world, &runs(name, "v1.35.0")), OK);
        assert_eq!(kubelet(&mut world.clone(), &runs(name, "v1.34.2")), wanted, "{name}");
        assert_eq!(kubelet(&mut world, &runs(name, "v1.33.0")), [4], "{name}");
    }
}

#[test]
fn an_admins_cordon_labels_and_taints_must_survive() {
    let cordoned_by_admin = with(node("w-0"), json!({"spec": {"unschedulable": true}}));
    let mut world = world();
    kubelet(&mut world, &cordoned_by_admin);
    let controller_writes = |world: &mut World, object: &Value| {
        numbers(&world.observe("", "Node", Some("edge-1"), None, Some(object), "controller"))
    };
    assert_eq!(controller_writes(&mut world.clone(), &node("w-0")), [7]);
    assert!(controller_writes(&mut world.clone(), &cordoned("w-0")).contains(&7));
    let label = with(cordoned_by_admin.clone(), json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(controller_writes(&mut world.clone(), &label), [7]);
    let taint = with(cordoned_by_admin.clone(), json!({"spec": {"taints": [{"key": "a"}]}}));
    assert_eq!(controller_writes(&mut world.clone(), &taint), [7]);
    let unschedulable = json!({"spec": {"taints": [{"key": "node.kubernetes.io/unschedulable"}]}});
    assert_eq!(controller_writes(&mut world, &with(cordoned_by_admin, unschedulable)), OK);
}

#[test]
fn an_exclusion_is_removed_only_by_its_owner() {
    let label = json!({"labels": {keys::EXCLUDE_FROM_LOAD_BALANCERS: ""}});
    let excluded_by_admin = with(node("w-0"), json!({"metadata": label}));
    let note = json!({"metadata": {"annotations": {keys::EXCLUDED_BY: "w-0-1"}}});
    let excluded_by_refit = with(excluded_by_admin.clone(), note);
    let writes = |before: &Value, after: &Value| {
        let mut world = world();
        kubelet(&mut world, before);
        numbers(&world.observe("", "Node", Some("edge-1"), None, Some(after), "controller"))
    };
    assert_eq!(writes(&node("w-0"), &excluded_by_refit), OK);
    assert_eq!(writes(&excluded_by_refit, &node("w-0")), OK);
    assert_eq!(writes(&excluded_by_admin, &node("w-0")), [7]);
    assert_eq!(writes(&node("w-0"), &excluded_by_admin), [7]);
    let mut left = world();
    kubelet(&mut left, &excluded_by_refit);
    assert_eq!(rest(&left), [7]);
}

#[test]
fn a_violation_is_displayed_in_one_line() {
    let mut world = world();
    raise(&mut world, "w-0", "Upgrade");
    let object = plan("w-1", "Upgrade");
    let found = world.observe(
        "refit.dev",
        "HostPlan",
        Some("default/edge-1"),
        None,
        Some(&object),
        "controller",
    );
    assert_eq!(
        found[0].to_string(),
        "invariant 1: Machine w-1: its gate is raised to Upgrade while 3 others are available, expected 4"
    );
}
