use serde_json::json;

use super::*;
use crate::resources::Registry;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

/// The cells of an object by column name, including those of `-o wide`.
fn cells(group: &str, plural: &str, object: &Value) -> Value {
    let registry = Registry::builtin();
    let resource = registry.find(group, "v1", plural).unwrap();
    let table = of_one(resource, object, Include::Nothing, now());
    let names = table["columnDefinitions"].as_array().unwrap();
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(names.len(), cells.len(), "{plural}");
    let pairs = names.iter().zip(cells);
    pairs
        .map(|(name, cell)| (name["name"].as_str().unwrap().to_owned(), cell.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn every_built_in_kind_prints_an_empty_object() {
    for resource in Registry::builtin().all() {
        let object = json!({"metadata": {"name": "a"}});
        let table = of_one(resource, &object, Include::Metadata, now());
        let columns = table["columnDefinitions"].as_array().unwrap();
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(columns.len(), cells.len(), "{resource:?}");
        assert!(cells.contains(&json!("a")), "{resource:?}");
        for (column, cell) in columns.iter().zip(cells) {
            let fits = match column["type"].as_str().unwrap() {
                "integer" => cell.is_i64(),
                "boolean" => cell.is_boolean() || cell.is_string(),
                _ => cell.is_string(),
            };
            assert!(fits, "{resource:?} {column} {cell}");
        }
    }
}

#[test]
fn pods_show_what_their_containers_do() {
    let pod = |metadata: Value, status: Value| {
        json!({
            "metadata": metadata,
            "spec": {"nodeName": "n", "containers": [{"name": "a"}, {"name": "b"}]},
            "status": status,
        })
    };
    let born = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"});
    let running = json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [
        {"ready": true, "restartCount": 1, "state": {"running": {}},
            "lastState": {"terminated": {"finishedAt": "2026-01-01T00:05:00Z"}}},
        {"ready": false, "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    ]});
    let shown = cells("", "pods", &pod(born, running));
    assert_eq!(shown["Ready"], "1/2");
    assert_eq!(shown["Status"], "CrashLoopBackOff");
    assert_eq!(shown["Restarts"], "3 (5m ago)");
    assert_eq!(shown["Age"], "10m");
    assert_eq!(shown["Node"], "n");
    let going = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let shown = cells("", "pods", &pod(going.clone(), json!({"phase": "Running"})));
    assert_eq!(shown["Status"], "Terminating");
    let shown = cells("", "pods", &pod(going, json!({"phase": "Succeeded"})));
    assert_eq!(shown["Status"], "Succeeded");
    let starting = json!({"phase": "Pending", "initContainerStatuses": [
        {"state": {"running": {}}}]});
    let mut object = pod(json!({"name": "p"}), starting);
    object["spec"]["initContainers"] = json!([{"name": "i"}]);
    assert_eq!(cells("", "pods", &object)["Status"], "Init:0/1");
}

#[test]
fn nodes_show_readiness_roles_and_cordons() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
            "nodeInfo": {"kubeletVersion": "v1.35.0", "osImage": "Debian"},
        },
    });
    let shown = cells("", "nodes", &node);
    assert_eq!(shown["Status"], "Ready,SchedulingDisabled");
    assert_eq!(shown["Roles"], "control-plane");
    assert_eq!(shown["Version"], "v1.35.0");
    assert_eq!(shown["Internal-IP"], "10.0.0.9");
    assert_eq!(shown["External-IP"], "<none>");
    assert_eq!(shown["Kernel-Version"], "<unknown>");
}

#[test]
fn other_kinds_show_their_own_columns() {
    let budget = json!({"spec": {"maxUnavailable": "50%"}, "status": {"disruptionsAllowed": 2}});
    let shown = cells("policy", "poddisruptionbudgets", &budget);
    assert_eq!(shown["Min Available"], "N/A");
    assert_eq!(shown["Max Unavailable"], "50%");
    assert_eq!(shown["Allowed Disruptions"], 2);
    let service = json!({"spec": {"clusterIP": "10.1.0.1", "ports": [{"port": 80},
        {"port": 53, "protocol": "UDP", "nodePort": 30000}], "selector": {"a": "b"}}});
    let shown = cells("", "services", &service);
    assert_eq!(shown["Type"], "ClusterIP");
    assert_eq!(shown["Port(s)"], "80/TCP,53:30000/UDP");
    assert_eq!(shown["Selector"], "a=b");
    let deployment = json!({"spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}},
        "status": {"readyReplicas": 2, "updatedReplicas": 1}});
    let shown = cells("apps", "deployments", &deployment);
    assert_eq!(shown["Ready"], "2/3");
    assert_eq!(shown["Up-to-date"], 1);
    assert_eq!(shown["Selector"], "a=b");
    let event = json!({"type": "Warning", "reason": "X", "message": "m\n", "count": 4,
        "involvedObject": {"kind": "Node", "name": "n"}, "source": {"component": "c"},
        "lastTimestamp": "2026-01-01T00:09:00Z"});
    let shown = cells("", "events", &event);
    assert_eq!(shown["Object"], "node/n");
    assert_eq!(shown["Last Seen"], "60s");
    assert_eq!(shown["Message"], "m");
    assert_eq!(shown["Count"], "4");
    let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
        {"kind": "ServiceAccount", "namespace": "x", "name": "s"}, {"kind": "User", "name": "u"}]});
    let shown = cells("rbac.authorization.k8s.io", "rolebindings", &binding);
    assert_eq!(shown["Role"], "ClusterRole/r");
    assert_eq!(shown["ServiceAccounts"], "x/s");
}

#[test]
fn columns_of_custom_kinds_follow_their_types() {
    let column = |kind: &str, path: &str| {
        let column = json!({"name": "C", "type": kind, "jsonPath": path, "priority": 1});
        Column::read(&column).unwrap()
    };
    let object = json!({
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"n": 3, "f": 1.5, "b": true, "s": "text", "map": {"a": 1}, "null": null},
    });
    let cases = [
        ("integer", ".spec.n", json!(3)),
        ("integer", ".spec.s", Value::Null),
        ("number", ".spec.f", json!(1.5)),
        ("boolean", ".spec.b", json!(true)),
        ("string", ".spec.s", json!("text")),
        ("string", ".spec.n", json!("3")),
        ("string", ".spec.map", json!("{\"a\":1}")),
        ("string", ".spec.null", Value::Null),
        ("string", ".spec.missing", Value::Null),
        ("date", ".metadata.creationTimestamp", json!("10m")),
        ("date", ".spec.s", json!("<invalid>")),
    ];
    for (kind, path, wanted) in cases {
        assert_eq!(column(kind, path).cell(&object, now()), wanted, "{kind} {path}");
    }
    assert_eq!(column("string", ".x").definition()["priority"], 1);
}
