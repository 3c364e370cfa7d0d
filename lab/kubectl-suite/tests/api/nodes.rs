//! Nodes, disruption, waiting, describing.

use serde_json::{Value, json};

use crate::{READY, config_map, has, list, machine, namespace, pod, row, suite};

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/worker": "", "suite": name}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.34.2", "osImage": "Simulated", "kernelVersion": "6.1",
                "containerRuntimeVersion": "containerd://2.0", "architecture": "amd64",
                "operatingSystem": "linux", "bootID": "", "kubeProxyVersion": "", "machineID": "",
                "systemUUID": ""},
            "capacity": {"cpu": "4", "pods": "110"},
            "allocatable": {"cpu": "4", "pods": "110"},
        },
    })
}

#[test]
fn cordon_and_uncordon_set_what_get_nodes_shows() {
    let kubectl = &suite().kubectl;
    kubectl.feed("create -f -", &node("cordon-0").to_string()).ok();
    has(&kubectl.run("get nodes").ok(), &["STATUS", "ROLES", "VERSION"]);
    assert_eq!(row(&kubectl.run("get nodes").ok(), "cordon-0")[1..3], ["Ready", "worker"]);
    has(&kubectl.run("cordon cordon-0").ok(), &["node/cordon-0 cordoned"]);
    assert_eq!(row(&kubectl.run("get nodes").ok(), "cordon-0")[1], "Ready,SchedulingDisabled");
    has(&kubectl.run("cordon cordon-0").ok(), &["already cordoned"]);
    has(&kubectl.run("uncordon cordon-0").ok(), &["node/cordon-0 uncordoned"]);
    assert_eq!(row(&kubectl.run("get nodes -o wide").ok(), "cordon-0")[1], "Ready");
}

#[test]
fn taints_come_and_go() {
    let kubectl = &suite().kubectl;
    kubectl.feed("create -f -", &node("taint-0").to_string()).ok();
    kubectl.run("taint nodes taint-0 a=b:NoSchedule c=d:NoExecute").ok();
    let path = "jsonpath={.spec.taints[*].key}";
    assert_eq!(kubectl.args(["get", "node", "taint-0", "-o", path]).ok(), "a c");
    kubectl.run("taint nodes taint-0 a-").ok();
    assert_eq!(kubectl.args(["get", "node", "taint-0", "-o", path]).ok(), "c");
}

#[test]
fn drain_keeps_a_budget_and_ends_when_it_allows() {
    let home = namespace("drain");
    let kubectl = &suite().kubectl;
    kubectl.feed("create -f -", &list(vec![node("drain-0"), node("drain-1")])).ok();
    home.feed(
        "create -f -",
        &list(vec![
            pod("a", "drain-0", "web"),
            pod("b", "drain-1", "web"),
            pod("c", "drain-0", "other"),
        ]),
    )
    .ok();
    for name in ["a", "b", "c"] {
        home.args(["patch", "pod", name, "--subresource=status", "--type=merge", "-p", READY]).ok();
    }
    home.run("create poddisruptionbudget web --selector=app=web --min-available=2").ok();
    has(&home.run("get pdb").ok(), &["MIN AVAILABLE", "ALLOWED DISRUPTIONS"]);
    assert_eq!(row(&home.run("get pdb").ok(), "web")[1..4], ["2", "N/A", "0"]);
    let blocked = kubectl.run("drain drain-0 --force --timeout=3s");
    has(&blocked.stderr, &["Cannot evict pod as it would violate the pod's disruption budget"]);
    blocked.err();
    assert_eq!(home.run("get pod a -o jsonpath={.metadata.deletionTimestamp}").ok(), "");
    home.run("get pod c").err();
    home.args(["patch", "pdb", "web", "--type=merge", "-p", r#"{"spec":{"minAvailable":1}}"#]).ok();
    let text = kubectl.run("drain drain-0 --force --timeout=30s").ok();
    has(&text, &["pod/a evicted", "node/drain-0 drained"]);
    home.run("get pod a").err();
    assert_eq!(row(&kubectl.run("get nodes").ok(), "drain-0")[1], "Ready,SchedulingDisabled");
}

#[test]
fn wait_sees_conditions_fields_and_deletions() {
    let kubectl = namespace("waits");
    kubectl.feed("create -f -", &machine("m").to_string()).ok();
    has(
        &kubectl.run("wait machine m --for=condition=Ready --timeout=1s").err(),
        &["timed out waiting"],
    );
    let mut child = kubectl.start("wait machine m --for=condition=Ready --timeout=20s");
    let status = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","reason":"Ok","lastTransitionTime":"2026-01-01T00:00:00Z","message":""}]}}"#;
    kubectl
        .args(["patch", "machine", "m", "--subresource=status", "--type=merge", "-p", status])
        .ok();
    assert!(child.wait().unwrap().success());
    kubectl.run("wait machine m --for=jsonpath={.status.phase}=Running --timeout=10s").ok();
    let mut child = kubectl.start("wait machine m --for=delete --timeout=20s");
    kubectl.run("delete machine m").ok();
    assert!(child.wait().unwrap().success());
    let mut child = kubectl.start("wait cm late --for=create --timeout=20s");
    kubectl.feed("create -f -", &config_map("late", json!({})).to_string()).ok();
    assert!(child.wait().unwrap().success());
}

fn event(namespace: &str, about: &Value, uid: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": format!("e-{}", about["name"].as_str().unwrap())},
        "involvedObject": {"apiVersion": about["apiVersion"], "kind": about["kind"],
            "name": about["name"], "namespace": namespace, "uid": uid},
        "type": "Warning",
        "reason": "Uncovered",
        "message": "no updater covers this path",
        "source": {"component": "refit"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 3,
    })
}

#[test]
fn describe_shows_an_object_with_its_events() {
    let kubectl = namespace("describes");
    kubectl.feed("create -f -", &list(vec![machine("m"), pod("p", "n", "x")])).ok();
    let uid = kubectl.run("get machine m -o jsonpath={.metadata.uid}").ok();
    let about = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m"});
    kubectl.feed("create -f -", &event("describes", &about, &uid).to_string()).ok();
    let text = kubectl.run("describe machine m").ok();
    has(
        &text,
        &[
            "Name:         m",
            "Kind:         Machine",
            "Events:",
            "Uncovered",
            "no updater covers this path",
        ],
    );
    has(&kubectl.run("describe pod p").ok(), &["Node:", "Containers:", "example.com/app:1"]);
    has(
        &kubectl.run("get events").ok(),
        &["LAST SEEN", "machine/m", "no updater covers this path"],
    );
    let selected =
        kubectl.run("get events --field-selector involvedObject.name=m,type=Warning -o name").ok();
    assert_eq!(selected, "event/e-m\n");
    has(&kubectl.run("events --for=machine/m").ok(), &["Uncovered"]);
    has(&kubectl.run("describe deployment").stderr, &["No resources found"]);
}

#[test]
fn describe_covers_nodes_secrets_and_crds() {
    let kubectl = &suite().kubectl;
    kubectl.feed("create -f -", &node("described-0").to_string()).ok();
    let text = kubectl.run("describe node described-0").ok();
    has(
        &text,
        &[
            "Roles:              worker",
            "Conditions:",
            "KubeletReady",
            "Kubelet Version:",
            "v1.34.2",
            "Non-terminated Pods",
        ],
    );
    let home = namespace("describe-more");
    home.run("create secret generic s --from-literal=a=secret").ok();
    let text = home.run("describe secret s").ok();
    has(&text, &["a:  6 bytes"]);
    assert!(!text.contains("c2VjcmV0"));
    has(
        &kubectl.run("describe crd nodeupdates.refit.dev").ok(),
        &["Kind:", "NodeUpdate", "Established"],
    );
}

#[test]
fn containers_that_do_not_run_are_reported() {
    let kubectl = namespace("logs");
    kubectl.feed("create -f -", &pod("p", "n", "x").to_string()).ok();
    kubectl.args(["patch", "pod", "p", "--subresource=status", "--type=merge", "-p", READY]).ok();
    has(&kubectl.run("logs p").err(), &["simulated", "there are no logs"]);
    has(&kubectl.run("exec p -- true").err(), &["simulated"]);
}
