//! Rows of extra nodes.

use jiff::{SignedDuration, Timestamp};
use refit_openshift::{
    Compat,
    config::ScaleConfig,
    kinds::MachineSet,
    pool_glob::PoolGlob,
    scaler::{
        ScaleDownState, ScaleError, ScaleSeen, ScaleUp, ScaleUpState, clone_of, scale_down,
        scale_up,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 70,
        name: "without capacityReservation both steps are done",
        test: without_reservation,
    },
    Row {
        number: 71,
        name: "without a pool worker and configured pools the upgrade goes on",
        test: without_pools,
    },
    Row { number: 72, name: "a clone has its name, its labels and one Machine", test: a_clone },
    Row {
        number: 73,
        name: "MachineSets of configured pools are cloned once, and only they",
        test: configured_pools,
    },
    Row {
        number: 74,
        name: "an extra node counts once its one Machine has a Ready node",
        test: readiness,
    },
    Row {
        number: 75,
        name: "after the timeout the upgrade goes on without the extra node",
        test: the_timeout,
    },
    Row {
        number: 76,
        name: "MachineSets are deleted, nodes drained, and Machines waited for",
        test: removal,
    },
];

const BOTH: [Compat; 2] = [Compat::Repaired, Compat::Strict];
const CREATED: &str = "2026-03-02T08:00:00Z";
/// Half an hour after that.
const TIMEOUT: &str = "2026-03-02T08:30:00Z";

fn list<T: DeserializeOwned>(items: &[Value]) -> Vec<T> {
    items.iter().map(|item| serde_json::from_value(item.clone()).unwrap()).collect()
}

fn config(pools: &[&str]) -> ScaleConfig {
    ScaleConfig {
        timeout: SignedDuration::from_mins(30),
        extra_machine_pools: pools.iter().map(|pool| PoolGlob::parse(pool).unwrap()).collect(),
    }
}

fn set(name: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "MachineSet",
        "metadata": {
            "name": name, "namespace": "openshift-machine-api", "uid": "1", "resourceVersion": "7",
            "labels": {"hive.openshift.io/machine-pool": pool},
            "annotations": {"machine.openshift.io/vCPU": "4"},
        },
        "spec": {
            "replicas": 0,
            "deletePolicy": "Oldest",
            "selector": {"matchLabels": {"machine.openshift.io/cluster-api-machineset": name}},
            "template": {
                "metadata": {"labels": {
                    "machine.openshift.io/cluster-api-machineset": name,
                    "machine.openshift.io/cluster-api-machine-role": "worker",
                }},
                "spec": {"taints": [{"key": "a"}], "providerSpec": {"value": {"instanceType": "m5"}}},
            },
        },
        "status": {"replicas": 0},
    })
}

fn clone(original: &str, replicas: u32, ready: u32) -> Value {
    json!({
        "metadata": {
            "name": format!("{original}-upgrade"), "creationTimestamp": CREATED,
            "labels": {"upgrade.managed.openshift.io": "true"},
        },
        "spec": {},
        "status": {"replicas": replicas, "readyReplicas": ready},
    })
}

fn machine(name: &str, original: &str, phase: &str, node: Option<&str>) -> Value {
    let labels = json!({
        "upgrade.managed.openshift.io": "true",
        "machine.openshift.io/cluster-api-machineset": format!("{original}-upgrade"),
    });
    let node = node.map(|name| json!({"name": name}));
    let status = json!({"phase": phase, "nodeRef": node});
    json!({"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})
}

fn node(name: &str, ready: &str) -> Value {
    let conditions = json!([{"type": "Ready", "status": ready}]);
    json!({"metadata": {"name": name}, "status": {"conditions": conditions}})
}

struct Seen {
    sets: Vec<Value>,
    machines: Vec<Value>,
    nodes: Vec<Value>,
}

impl Seen {
    fn sets(sets: &[Value]) -> Self {
        Self { sets: sets.to_vec(), machines: Vec::new(), nodes: Vec::new() }
    }

    /// A MachineSet `a` with a clone that is ready.
    fn ready() -> Self {
        Self {
            sets: vec![set("a", "worker"), clone("a", 1, 1)],
            machines: vec![machine("m", "a", "Running", Some("n"))],
            nodes: vec![node("n", "True")],
        }
    }

    fn scale_up(&self, pools: &[&str], compat: Compat) -> Result<ScaleUp, ScaleError> {
        self.scale_up_at(TIMEOUT, pools, compat)
    }

    fn scale_up_at(
        &self,
        now: &str,
        pools: &[&str],
        compat: Compat,
    ) -> Result<ScaleUp, ScaleError> {
        let (sets, machines, nodes) = (list(&self.sets), list(&self.machines), list(&self.nodes));
        let seen = ScaleSeen { sets: &sets, machines: &machines, nodes: &nodes };
        let now: Timestamp = now.parse().unwrap();
        scale_up((true, false), seen, &config(pools), now, compat)
    }
}

fn created(up: &ScaleUp) -> Vec<&str> {
    up.create.iter().filter_map(|set| set.metadata.name.as_deref()).collect()
}

fn without_reservation() {
    let sets = list(&[set("a", "worker")]);
    let seen = ScaleSeen { sets: &sets, machines: &[], nodes: &[] };
    let unneeded = ScaleUp { create: Vec::new(), state: ScaleUpState::Unneeded };
    for (reserved, commenced) in [(false, false), (true, true)] {
        let now = Timestamp::UNIX_EPOCH;
        for compat in BOTH {
            let up = scale_up((reserved, commenced), seen, &config(&[]), now, compat);
            assert_eq!(up, Ok(unneeded.clone()));
        }
    }
    assert_eq!(scale_down(false, &list(&[clone("a", 1, 1)]), &[]), None);
}

fn without_pools() {
    for compat in BOTH {
        let seen = Seen::sets(&[set("a", "infra")]);
        let skipped = ScaleUp { create: Vec::new(), state: ScaleUpState::Skipped };
        assert_eq!(seen.scale_up(&[], compat), Ok(skipped));
        assert_eq!(seen.scale_up(&["other-*"], compat), Err(ScaleError::NoOriginals));
        assert_eq!(created(&seen.scale_up(&["inf*"], compat).unwrap()), ["a-upgrade"]);
    }
}

fn a_clone() {
    let original: MachineSet = serde_json::from_value(set("a", "worker")).unwrap();
    let wanted = json!({
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "MachineSet",
        "metadata": {
            "name": "a-upgrade", "namespace": "openshift-machine-api",
            "labels": {"upgrade.managed.openshift.io": "true"},
        },
        "spec": {
            "replicas": 1,
            "deletePolicy": "Oldest",
            "selector": {"matchLabels": {
                "machine.openshift.io/cluster-api-machineset": "a-upgrade",
                "upgrade.managed.openshift.io": "true",
            }},
            "template": {
                "metadata": {"labels": {
                    "machine.openshift.io/cluster-api-machineset": "a-upgrade",
                    "machine.openshift.io/cluster-api-machine-role": "worker",
                    "upgrade.managed.openshift.io": "true",
                }},
                "spec": {"taints": [{"key": "a"}], "providerSpec": {"value": {"instanceType": "m5"}}},
            },
        },
    });
    assert_eq!(json!(clone_of(&original).unwrap()), wanted);
    let bare: MachineSet =
        serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": {}})).unwrap();
    let labels = &json!(clone_of(&bare).unwrap())["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["machine.openshift.io/cluster-api-machineset"], "b-upgrade");
    let mut malformed = set("a", "worker");
    malformed["spec"]["template"]["metadata"] = json!("text");
    let malformed: MachineSet = serde_json::from_value(malformed).unwrap();
    let error = clone_of(&malformed).unwrap_err().to_string();
    assert_eq!(error, "MachineSet \"a\" has an invalid template, expected an object");
}

fn configured_pools() {
    let sets = [
        set("serving", "non-serving-9a"),
        set("a", "worker"),
        set("infra", "infra"),
        set("b", "worker"),
    ];
    let without_pool = json!({"metadata": {"name": "x"}, "spec": {}});
    for compat in BOTH {
        let mut all = sets.to_vec();
        all.push(without_pool.clone());
        let up = Seen::sets(&all).scale_up(&["non-serving-*", "w*", "*9a"], compat).unwrap();
        assert_eq!(created(&up), ["a-upgrade", "b-upgrade", "serving-upgrade"]);
        assert!(matches!(up.state, ScaleUpState::Waits(_)));
    }
    // One of three was created, and is ready.
    let mut seen = Seen::ready();
    seen.sets.extend([set("b", "worker"), set("c", "worker")]);
    let up = seen.scale_up(&[], Compat::Strict).unwrap();
    let nothing = ScaleUp { create: Vec::new(), state: ScaleUpState::Ready };
    assert_eq!(up, nothing, "the original stops there");
    let up = seen.scale_up(&[], Compat::Repaired).unwrap();
    assert_eq!(created(&up), ["b-upgrade", "c-upgrade"]);
    let why = "creating the MachineSets b-upgrade, c-upgrade".to_owned();
    assert_eq!(up.state, ScaleUpState::Waits(why));
    seen.sets.rotate_left(2);
    let up = seen.scale_up(&[], Compat::Strict).unwrap();
    let before = (vec!["b-upgrade", "c-upgrade"], ScaleUpState::Ready);
    assert_eq!((created(&up), up.state.clone()), before, "those before it do not count yet");
}

type Change = fn(&mut Seen);

/// What keeps a clone from being ready, and whether the original gives up on it.
const NOT_READY: [(Change, bool); 7] = [
    (|seen| seen.sets[1] = clone("a", 1, 0), true),
    (|seen| seen.nodes[0] = node("n", "Unknown"), true),
    (|seen| seen.machines.clear(), false),
    (|seen| seen.machines[0]["metadata"]["labels"] = json!({}), false),
    (|seen| seen.machines.push(machine("m2", "a", "Running", Some("n"))), false),
    (|seen| seen.machines[0] = machine("m", "a", "Provisioned", None), false),
    (|seen| seen.nodes.clear(), false),
];

fn readiness() {
    for compat in BOTH {
        let ready = ScaleUp { create: Vec::new(), state: ScaleUpState::Ready };
        assert_eq!(Seen::ready().scale_up(&[], compat), Ok(ready));
        for (number, (change, _)) in NOT_READY.iter().enumerate() {
            let mut seen = Seen::ready();
            change(&mut seen);
            let state = seen.scale_up(&[], compat).unwrap().state;
            assert!(matches!(state, ScaleUpState::Waits(_)), "{number}: {state:?}");
        }
        let mut seen = Seen::ready();
        seen.sets.extend([set("b", "worker"), clone("b", 1, 0)]);
        let why = "MachineSet b-upgrade has 0 of 1 Machines ready".to_owned();
        assert_eq!(seen.scale_up(&[], compat).unwrap().state, ScaleUpState::Waits(why));
    }
}

fn the_timeout() {
    let late = "2026-03-02T08:30:01Z";
    for (number, (change, original_gives_up)) in NOT_READY.iter().enumerate() {
        let mut seen = Seen::ready();
        change(&mut seen);
        for (compat, gives_up) in [(Compat::Repaired, true), (Compat::Strict, *original_gives_up)] {
            let state = seen.scale_up_at(late, &[], compat).unwrap().state;
            let timed_out = matches!(state, ScaleUpState::TimedOut(_));
            assert_eq!(timed_out, gives_up, "{number} {compat}: {state:?}");
        }
    }
    let state = Seen::ready().scale_up_at(late, &[], Compat::Repaired).unwrap().state;
    assert_eq!(state, ScaleUpState::Ready);
}

fn removal() {
    let mut deleting = clone("b", 1, 1);
    deleting["metadata"]["deletionTimestamp"] = json!(CREATED);
    let sets = list(&[set("a", "worker"), clone("a", 1, 1), deleting]);
    let other = json!({"metadata": {"name": "other"}, "spec": {}, "status": {"phase": "Running"}});
    let machines = [
        machine("m1", "a", "Running", Some("n1")),
        machine("m2", "b", "Deleting", Some("n2")),
        machine("m3", "b", "Provisioned", None),
        other,
    ];
    let down = scale_down(true, &sets, &list(&machines)).unwrap();
    assert_eq!(down.delete, ["a-upgrade"]);
    let nodes = ["n1", "n2"].map(str::to_owned);
    assert_eq!(down.drain, Ok(nodes.to_vec()));
    let why = "waiting for the removal of Machines m1, m2, m3".to_owned();
    for compat in BOTH {
        assert_eq!(down.state(&[], compat), Ok(ScaleDownState::Waits(why.clone())));
        let failed = down.state(&nodes[1..], compat);
        assert_eq!(failed, Err(ScaleError::DrainFailed { node: "n2".to_owned(), compat }));
        let done = scale_down(true, &sets, &list(&machines[3..])).unwrap();
        assert_eq!(done.state(&[], compat), Ok(ScaleDownState::Done));
        let lost = list(&[machine("m", "a", "Running", None)]);
        let lost = scale_down(true, &sets, &lost).unwrap();
        let error = lost.state(&[], compat).unwrap_err();
        assert_eq!(error.to_string(), "an upgrade machine m exists but has no node association");
        assert_eq!(lost.delete, ["a-upgrade"], "the MachineSets are deleted before");
    }
    let text = |compat| ScaleError::DrainFailed { node: "n2".to_owned(), compat }.to_string();
    assert_eq!(text(Compat::Strict), "n2");
    assert!(text(Compat::Repaired).starts_with("failed to drain the extra node n2 in time"));
}
