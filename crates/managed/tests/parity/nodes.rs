//! Rows of NodeKeeper.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use refit_openshift::{
    Compat,
    config::DrainConfig,
    kinds::MachineConfigPool,
    nodes::{
        Attention, DrainAction, DrainLook, DrainSeen, DrainSettings, Strategy, UnknownDrainStart,
        drain_timeout, look,
    },
    notify::Notice,
    upgrade_config::UpgradeConfig,
};
use regex::Regex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 92,
        name: "NodeKeeper looks at nodes of workers, while an upgrade is at work on them",
        test: nodes_are_kept_while_workers_are_upgraded,
    },
    Row {
        number: 93,
        name: "the metric of a node that is not cordoned, or was deleted, becomes 0",
        test: nodes_without_a_drain_reset_their_metric,
    },
    Row {
        number: 94,
        name: "each of the 5 drain strategies has its time and its pods",
        test: each_strategy_has_its_time_and_its_pods,
    },
    Row {
        number: 95,
        name: "pods of DaemonSets, in ignored namespaces and on other nodes stay",
        test: exempt_pods_stay,
    },
    Row {
        number: 96,
        name: "with disableDrainStrategies no pod is removed, and a slow drain still fails",
        test: disabled_strategies_only_alert,
    },
    Row {
        number: 97,
        name: "a drain fails by the last strategy that was due, and not before one with pods",
        test: drains_fail_in_four_cases,
    },
    Row {
        number: 98,
        name: "a failed drain sets the metric only while the machine-config daemon is Working",
        test: only_a_working_daemon_raises_the_alert,
    },
    Row {
        number: 99,
        name: "PDB-DELETE sends one Delayed notice",
        test: the_deletion_of_protected_pods_is_notified_of_once,
    },
    Row {
        number: 100,
        name: "a taint without timeAdded is an error",
        test: a_drain_without_a_start_is_an_error,
    },
];

type Change = fn(&mut Value);

pub(crate) const BOTH: [Compat; 2] = [Compat::Repaired, Compat::Strict];

pub(crate) fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn cordoned_at() -> Timestamp {
    "2026-08-20T10:00:00Z".parse().unwrap()
}

pub(crate) fn after_minutes(minutes: i64) -> Timestamp {
    cordoned_at() + SignedDuration::from_mins(minutes)
}

fn config(phase: &str) -> UpgradeConfig {
    from(json!({
        "metadata": {"name": "managed-upgrade-config"},
        "spec": {
            "desired": {"version": "4.16.3"}, "upgradeAt": "", "PDBForceDrainTimeout": 60,
            "type": "OSD",
        },
        "status": {"history": [
            {"version": "4.16.3", "phase": phase}, {"version": "4.15.1", "phase": "Upgrading"},
        ]},
    }))
}

pub(crate) fn pool(name: &str, machines: i32, updated: i32) -> MachineConfigPool {
    from(json!({
        "metadata": {"name": name}, "spec": {},
        "status": {"machineCount": machines, "updatedMachineCount": updated},
    }))
}

pub(crate) fn paused(mut pool: MachineConfigPool) -> MachineConfigPool {
    pool.spec.paused = true;
    pool
}

fn node(change: impl FnOnce(&mut Value)) -> Node {
    let mut node = json!({
        "metadata": {
            "name": "worker-1",
            "annotations": {"machineconfiguration.openshift.io/state": "Working"},
        },
        "spec": {
            "unschedulable": true,
            "taints": [{
                "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule",
                "timeAdded": cordoned_at().to_string(),
            }],
        },
    });
    change(&mut node);
    from(node)
}

fn nodes_are_kept_while_workers_are_upgraded() {
    let cordoned = node(|_| {});
    let upgrading = config("Upgrading");
    let rolling = [pool("master", 3, 3), pool("worker", 3, 1)];
    for compat in BOTH {
        let of = |config: Option<&UpgradeConfig>, pools: &[MachineConfigPool]| {
            Attention::of(config, pools, Some(&cordoned), compat)
        };
        assert_eq!(of(Some(&upgrading), &rolling), Attention::Drain);
        assert_eq!(of(None, &rolling), Attention::Unneeded, "no UpgradeConfig");
        for phase in ["New", "Pending", "Upgraded", "Failed"] {
            assert_eq!(of(Some(&config(phase)), &rolling), Attention::Unneeded, "{phase}");
        }
        let updated = [pool("master", 3, 1), pool("worker", 3, 3)];
        assert_eq!(of(Some(&upgrading), &updated), Attention::Unneeded, "workers are updated");
        assert_eq!(of(Some(&upgrading), &rolling[..1]), Attention::Unneeded, "no pool worker");
        let control_plane =
            node(|node| node["metadata"]["labels"] = json!({"node-role.kubernetes.io/master": ""}));
        let of = Attention::of(Some(&upgrading), &rolling, Some(&control_plane), compat);
        assert_eq!(of, Attention::Unneeded, "a control plane node");
    }
    // M14: custom pools count, unless they are paused.
    let infra = [pool("worker", 3, 3), pool("infra", 2, 0)];
    let held = [pool("worker", 3, 3), paused(pool("infra", 2, 0))];
    for (pools, repaired) in [(&infra, Attention::Drain), (&held, Attention::Unneeded)] {
        let of = |compat| Attention::of(Some(&upgrading), pools, Some(&cordoned), compat);
        assert_eq!(of(Compat::Repaired), repaired);
        assert_eq!(of(Compat::Strict), Attention::Unneeded);
    }
}

fn nodes_without_a_drain_reset_their_metric() {
    let upgrading = config("Upgrading");
    let rolling = [pool("worker", 3, 1)];
    let changes: [(&str, Change); 4] = [
        ("schedulable", |node| node["spec"]["unschedulable"] = json!(false)),
        ("without taints", |node| node["spec"]["taints"] = json!([])),
        ("another effect", |node| node["spec"]["taints"][0]["effect"] = json!("NoExecute")),
        ("another key", |node| node["spec"]["taints"][0]["key"] = json!("key")),
    ];
    for compat in BOTH {
        for (name, change) in changes {
            let node = node(change);
            let of = Attention::of(Some(&upgrading), &rolling, Some(&node), compat);
            assert_eq!(of, Attention::Reset, "{name}");
            let look = Look { node, ..Look::new(compat) };
            assert_eq!(look.at(1000), DrainLook::default(), "{name}");
        }
        let gone = Attention::of(Some(&upgrading), &rolling, None, compat);
        assert_eq!(gone, Attention::Reset, "deleted");
        let idle = Attention::of(None, &rolling, None, compat);
        assert_eq!(idle, Attention::Unneeded, "deleted, without an upgrade");
    }
}

/// A look at worker-1, with the settings of production and 60 minutes for budgets: unprotected pods are removed after 45
/// minutes, protected ones after 68.
struct Look {
    node: Node,
    pods: Vec<Pod>,
    budgets: Vec<PodDisruptionBudget>,
    is_delay_sent: bool,
    had_failed: bool,
    config: DrainConfig,
    pdb_force_drain_minutes: i32,
    compat: Compat,
}

fn drains_after(minutes: i64) -> DrainConfig {
    DrainConfig {
        timeout: SignedDuration::from_mins(minutes),
        expected_time: SignedDuration::from_mins(8),
        disabled: false,
        ignored_namespaces: Vec::new(),
    }
}

fn disabled() -> DrainConfig {
    DrainConfig { disabled: true, ..drains_after(45) }
}

impl Look {
    fn new(compat: Compat) -> Self {
        Self {
            node: node(|_| {}),
            pods: Vec::new(),
            budgets: vec![budget("shop", &json!({"matchLabels": {"app": "db"}}))],
            is_delay_sent: true,
            had_failed: false,
            config: drains_after(45),
            pdb_force_drain_minutes: 60,
            compat,
        }
    }

    fn with(compat: Compat, pods: impl IntoIterator<Item = Pod>) -> Self {
        Self { pods: pods.into_iter().collect(), ..Self::new(compat) }
    }

    fn tried_at(&self, now: Timestamp) -> Result<DrainLook, UnknownDrainStart> {
        let seen = DrainSeen {
            node: &self.node,
            pods: &self.pods,
            budgets: &self.budgets,
            is_delay_sent: self.is_delay_sent,
            had_failed: self.had_failed,
        };
        let settings = DrainSettings {
            config: &self.config,
            pdb_force_drain_minutes: self.pdb_force_drain_minutes,
            compat: self.compat,
        };
        look(&seen, &settings, now)
    }

    fn at(&self, minutes: i64) -> DrainLook {
        self.tried_at(after_minutes(minutes)).unwrap()
    }

    /// The actions at a minute, as text.
    fn actions_at(&self, minutes: i64) -> Vec<String> {
        self.at(minutes).actions.iter().map(text).collect()
    }

    /// The first minute whose look finds that the drain has failed.
    fn fails_at(&self) -> Option<i64> {
        (0..300).find(|minutes| self.at(*minutes).has_failed)
    }
}

fn text(action: &DrainAction) -> String {
    let (verb, strategy, pods) = match action {
        DrainAction::Delete { strategy, pods } => ("delete", strategy, pods),
        DrainAction::ClearFinalizers { strategy, pods } => ("clear", strategy, pods),
        DrainAction::NotifyDelayed => return "notify".to_owned(),
    };
    let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    format!("{strategy}: {verb} {}", names.join(" "))
}

fn budget(namespace: &str, selector: &Value) -> PodDisruptionBudget {
    from(json!({
        "metadata": {"name": "budget", "namespace": namespace}, "spec": {"selector": selector},
    }))
}

/// A pod in namespace `shop` on worker-1. A name with `t` is being deleted, one with `f` has a finalizer.
fn pod(name: &str, app: &str) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": app}},
        "spec": {"nodeName": "worker-1", "containers": []},
    });
    let (_, facts) = name.split_once('-').unwrap_or_default();
    if facts.contains('t') {
        pod["metadata"]["deletionTimestamp"] = json!("2026-08-20T10:01:00Z");
    }
    if facts.contains('f') {
        pod["metadata"]["finalizers"] = json!(["example.org/hold"]);
    }
    from(pod)
}

fn each_strategy_has_its_time_and_its_pods() {
    let names = ["", "-t", "-f", "-tf"];
    let pods = || {
        let free = names.map(|facts| pod(&format!("web{facts}"), "web"));
        let protected = names.map(|facts| pod(&format!("db{facts}"), "db"));
        free.into_iter().chain(protected)
    };
    let early = [
        "DELETE: delete web web-f",
        "DEFAULT-FINALIZER: clear web-f web-tf",
        "POD-STUCK-TERMINATING: delete web-t",
    ];
    let late = ["PDB-DELETE: delete db db-f", "PDB-FINALIZER: clear db-f db-tf"];
    for compat in BOTH {
        let look = Look::with(compat, pods());
        assert_eq!(look.actions_at(45), [""; 0], "after more than 45 minutes");
        assert_eq!(look.actions_at(46), early);
        assert_eq!(look.actions_at(68), early, "after more than 68 minutes");
        assert_eq!(look.actions_at(69), [&early[..], &late].concat());
        let look = Look { pdb_force_drain_minutes: 0, ..Look::with(compat, pods()) };
        assert_eq!(look.actions_at(9), late, "budgets may block for a shorter time");
    }
    budgets_protect_their_own_pods();
}

/// M2: a budget protects the pods in its namespace that its whole selector matches.
fn budgets_protect_their_own_pods() {
    let both = json!({"matchLabels": {"app": "web", "tier": "front"}});
    let expression =
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]});
    let app = json!({"matchLabels": {"app": "web"}});
    let wrong =
        json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]});
    let cases = [
        ("the same labels", "shop", app.clone(), true, true),
        ("one of two labels", "shop", both, false, true),
        ("another namespace", "bank", app, false, true),
        ("an expression", "shop", expression, true, false),
        ("an invalid expression", "shop", wrong, false, false),
        ("an empty selector", "shop", json!({}), true, false),
        ("a missing selector", "shop", Value::Null, false, false),
    ];
    for (name, namespace, selector, repaired, strict) in cases {
        for (compat, is_protected) in [(Compat::Repaired, repaired), (Compat::Strict, strict)] {
            let look = Look {
                budgets: vec![budget(namespace, &selector)],
                ..Look::with(compat, [pod("web", "web")])
            };
            let actions = look.actions_at(46);
            assert_eq!(actions.is_empty(), is_protected, "{name}, {compat}: {actions:?}");
        }
    }
}

fn exempt_pods_stay() {
    let mut daemon = pod("daemon", "web");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
    daemon.metadata.owner_references = from(owner);
    let mut ignored = pod("ignored", "web");
    ignored.metadata.namespace = Some("my-storage-1".to_owned());
    let mut elsewhere = pod("elsewhere", "web");
    elsewhere.spec = from(json!({"nodeName": "worker-2", "containers": []}));
    let mut unplaced = pod("unplaced", "web");
    unplaced.spec = from(json!({"containers": []}));
    // Patterns match any part of a name.
    let patterns = ["^kube-", "stor[a-z]+"].map(|pattern| Regex::new(pattern).unwrap());
    for compat in BOTH {
        let exempt = [&daemon, &ignored, &elsewhere, &unplaced].map(Clone::clone);
        let look = Look {
            config: DrainConfig { ignored_namespaces: patterns.to_vec(), ..drains_after(45) },
            ..Look::with(compat, exempt.into_iter().chain([pod("web", "web")]))
        };
        assert_eq!(look.actions_at(500), ["DELETE: delete web"]);
    }
}

fn disabled_strategies_only_alert() {
    for compat in BOTH {
        let pods = || [pod("web-f", "web"), pod("db", "db")];
        let look = Look { config: disabled(), ..Look::with(compat, pods()) };
        assert_eq!(look.actions_at(500), [""; 0]);
        assert_eq!(look.fails_at(), Some(46), "pods that are left do not count");
    }
}

fn drains_fail_in_four_cases() {
    let protected = || [pod("db-t", "db")];
    for compat in BOTH {
        let disabled = Look { config: disabled(), ..Look::new(compat) };
        assert_eq!(disabled.fails_at(), Some(46), "no strategies: after the timeout");
        let look = Look::with(compat, protected());
        assert_eq!(look.fails_at(), Some(77), "while a pending strategy has pods, it has not");
        assert_eq!(Look::new(compat).fails_at(), Some(54), "after the last one due, and 8 minutes");
        let patient = Look { config: drains_after(200), ..Look::new(compat) };
        let expected = match compat {
            Compat::Repaired => 209,
            Compat::Strict => 201,
        };
        // The original takes the strategies for budgets as the last ones, also when they are due first.
        assert_eq!(patient.fails_at(), Some(expected), "{compat}: never before the timeout");
        // Those for budgets are due after 68 minutes: the original then waits for another 8.
        let failed = Look { had_failed: true, ..Look::new(compat) };
        let fails = [45, 46, 54, 70, 77].map(|minutes| failed.at(minutes).has_failed);
        let expected = match compat {
            Compat::Repaired => [false, true, true, true, true],
            Compat::Strict => [false, false, true, false, true],
        };
        assert_eq!(fails, expected, "{compat}: a drain that has failed has not begun again");
    }
}

fn only_a_working_daemon_raises_the_alert() {
    let working = node(|_| {});
    let idle = node(|node| node["metadata"]["annotations"] = json!({}));
    let done = node(|node| {
        let state = json!({"machineconfiguration.openshift.io/state": "Done"});
        node["metadata"]["annotations"] = state;
    });
    let deleted =
        node(|node| node["metadata"]["deletionTimestamp"] = json!("2026-08-20T10:01:00Z"));
    for (node, has_failed, metric) in [
        (&working, true, Some(true)),
        (&working, false, Some(false)),
        (&idle, true, None),
        (&done, true, None),
        (&done, false, Some(false)),
        (&deleted, true, Some(false)),
    ] {
        assert_eq!(drain_timeout(node, has_failed), metric, "{has_failed} {:?}", node.metadata);
    }
}

fn the_deletion_of_protected_pods_is_notified_of_once() {
    assert_eq!(
        Notice::NodeDrainDelayed.text("4.16.3", None),
        "Node drain grace period might be impacting cluster upgrade. Please refer to the article for further details \
         https://access.redhat.com/solutions/7075425"
    );
    let db = |name| Look::with(Compat::Repaired, [pod(name, "db")]);
    // If the process ends before a notice that follows the deletion, it is lost: the next look has nothing to delete.
    for (compat, actions) in [
        (Compat::Repaired, ["notify", "PDB-DELETE: delete db"]),
        (Compat::Strict, ["PDB-DELETE: delete db", "notify"]),
    ] {
        let look = Look { compat, is_delay_sent: false, ..db("db") };
        assert_eq!(look.actions_at(69), actions);
        assert_eq!(look.actions_at(68), [""; 0], "not due");
        let sent = Look { is_delay_sent: true, ..look };
        assert_eq!(sent.actions_at(69), ["PDB-DELETE: delete db"]);
        let deleting = Look { compat, is_delay_sent: false, ..db("db-tf") };
        assert_eq!(deleting.actions_at(69), ["PDB-FINALIZER: clear db-tf"], "nothing to delete");
    }
}

fn a_drain_without_a_start_is_an_error() {
    let no_start = || {
        node(|node| {
            node["spec"]["taints"][0].as_object_mut().unwrap().remove("timeAdded");
        })
    };
    for compat in BOTH {
        let look = Look { node: no_start(), ..Look::new(compat) };
        let error = look.tried_at(after_minutes(500)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "taint node.kubernetes.io/unschedulable of cordoned Node worker-1 has no timeAdded, so the start of its drain is \
             unknown; remove the taint, so that Kubernetes sets it again"
        );
        let disabled = Look { config: disabled(), ..look };
        assert_eq!(disabled.at(500), DrainLook::default(), "without strategies it has not failed");
    }
    assert_eq!(
        Strategy::VARIANTS.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["DELETE", "DEFAULT-FINALIZER", "POD-STUCK-TERMINATING", "PDB-DELETE", "PDB-FINALIZER"]
    );
}
