use serde_json::{Value, json};

use super::*;

fn node(name: &str, memory: &str, extra: &Value) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": memory, "pods": "10"}},
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        node["spec"][key] = value.clone();
    }
    serde_json::from_value(node).unwrap()
}

fn pod(name: &str, node: &str, memory: &str, spec: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [
            {"name": "c", "resources": {"requests": {"memory": memory}}},
        ]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn plain(name: &str, node: &str, memory: &str) -> Pod {
    pod(name, node, memory, &json!({}))
}

fn cluster(nodes: &[Node], volumes: Volumes, pods: &[Pod]) -> Placement {
    let mut placement = Placement::new(nodes.iter().map(Room::of).collect(), volumes);
    for pod in pods {
        placement.add(pod, true);
    }
    placement
}

/// The pods of a node that fit nowhere, and why.
fn misfits(placement: &Placement, node: &str) -> Vec<(String, String)> {
    let at = placement.by_node[node];
    let pods = placement.pods.get(&at).map(Vec::as_slice).unwrap_or_default();
    let leaving = pods.iter().map(|one| (&*one.namespace, &*one.name)).collect();
    let found = Judge::new(placement).misfits(node, &leaving);
    found.into_iter().map(|one| (one.name, one.why)).collect()
}

fn one(name: &str, why: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), why.to_owned())]
}

#[test]
fn pods_of_a_node_compete_for_the_room_of_the_others() {
    let nodes = ["a", "b", "c"].map(|name| node(name, "8Gi", &json!({})));
    let busy = [plain("x", "b", "5Gi"), plain("y", "c", "6Gi")];
    let both = |of_a: &[Pod]| {
        let pods: Vec<Pod> = of_a.iter().chain(&busy).cloned().collect();
        misfits(&cluster(&nodes, Volumes::default(), &pods), "a")
    };
    assert!(both(&[plain("p", "a", "3Gi"), plain("q", "a", "2Gi")]).is_empty());
    // The larger one goes first: the other one does not take its room.
    assert!(both(&[plain("q", "a", "2Gi"), plain("z", "a", "3Gi")]).is_empty());
    assert_eq!(
        both(&[plain("p", "a", "3Gi"), plain("q", "a", "3Gi")]),
        one("q", "0 of 2 other nodes: 2 insufficient memory")
    );
    // A pod without requests needs a place among the pods.
    let many: Vec<Pod> = (0..19).map(|i| plain(&format!("p{i:02}"), "a", "0")).collect();
    assert_eq!(both(&many), one("p18", "0 of 2 other nodes: 2 too many pods"));
}

#[test]
fn each_node_that_cannot_take_a_pod_counts_with_its_reason() {
    let nodes = [
        node("a", "8Gi", &json!({})),
        node("b", "8Gi", &json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]})),
        node("c", "8Gi", &json!({"unschedulable": true})),
        node("d", "1Gi", &json!({})),
        node("e", "1Gi", &json!({})),
    ];
    let pods = [plain("p", "a", "2Gi")];
    assert_eq!(
        misfits(&cluster(&nodes, Volumes::default(), &pods), "a"),
        one("p", "0 of 4 other nodes: 2 insufficient memory, 1 cordoned, 1 untolerated taint gpu")
    );
    let gpu = json!({"resources": {"requests": {"example.com/gpu": "1"}}});
    assert_eq!(
        misfits(&cluster(&nodes[..1], Volumes::default(), &[pod("p", "a", "0", &gpu)]), "a"),
        one("p", "0 of 0 other nodes: ")
    );
    let pods = [pod("p", "d", "0", &gpu)];
    let found = misfits(&cluster(&nodes, Volumes::default(), &pods), "d");
    assert!(found[0].1.contains("2 insufficient example.com/gpu"), "{found:?}");
}

#[test]
fn a_pod_stays_where_its_selector_or_its_volume_binds_it() {
    let nodes = ["a", "b", "c"].map(|name| node(name, "8Gi", &json!({})));
    let volume = |host: &str| {
        let terms = json!([{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]},
        ]}]);
        let volume: PersistentVolume = serde_json::from_value(json!({"spec": {
            "claimRef": {"namespace": "default", "name": "data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }}))
        .unwrap();
        let mut volumes = Volumes::default();
        volumes.add(&volume);
        volumes
    };
    let claim = json!({"volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
    ]});
    let pods = [pod("p", "a", "1Gi", &claim)];
    assert_eq!(
        misfits(&cluster(&nodes, volume("a"), &pods), "a"),
        one("p", "0 of 2 other nodes: 2 volume bound to other nodes")
    );
    assert!(misfits(&cluster(&nodes, volume("b"), &pods), "a").is_empty());
    let selected =
        [pod("p", "a", "1Gi", &json!({"nodeSelector": {"kubernetes.io/hostname": "a"}}))];
    assert_eq!(
        misfits(&cluster(&nodes, Volumes::default(), &selected), "a"),
        one("p", "0 of 2 other nodes: 2 node selector or affinity")
    );
}

#[test]
fn pods_that_stay_take_room_and_need_no_other() {
    let nodes = ["a", "b"].map(|name| node(name, "8Gi", &json!({})));
    let mut placement = Placement::new(nodes.iter().map(Room::of).collect(), Volumes::default());
    placement.add(&plain("daemon", "b", "6Gi"), false);
    placement.add(&plain("p", "a", "3Gi"), true);
    placement.add(&plain("elsewhere", "unknown", "3Gi"), true);
    assert_eq!(misfits(&placement, "a"), one("p", "0 of 1 other nodes: 1 insufficient memory"));
    assert!(misfits(&placement, "b").is_empty());
}

#[test]
fn candidates_that_the_other_pods_fill_do_not_hide_a_node_with_room() {
    let nodes: Vec<Node> = (0..40).map(|i| node(&format!("n{i:02}"), "8Gi", &json!({}))).collect();
    // Every other node has room for exactly one of the pods.
    let pods: Vec<Pod> = (0..9).map(|i| plain(&format!("p{i}"), "n00", "5Gi")).collect();
    let fits = cluster(&nodes, Volumes::default(), &pods);
    assert!(misfits(&fits, "n00").is_empty());
    let few = cluster(&nodes[..9], Volumes::default(), &pods);
    assert_eq!(misfits(&few, "n00"), one("p8", "0 of 8 other nodes: 8 insufficient memory"));
}

#[test]
fn constraints_that_are_not_modelled_are_known() {
    let spec = json!({
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        ],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname"},
        ]}},
        "volumes": [{"name": "h", "hostPath": {"path": "/x"}}],
    });
    let pods = [pod("p", "a", "1", &spec), plain("q", "a", "1")];
    let placement = cluster(&[node("a", "1Gi", &json!({}))], Volumes::default(), &pods);
    let of = |name: &str| placement.unmodelled("a", "default", name);
    assert_eq!(of("p"), ["pod anti-affinity", "topology spread constraints"].into());
    assert!(of("q").is_empty());
    assert!(placement.has_host_path("a", "default", "p"));
    assert!(!placement.has_host_path("a", "default", "q"));
}
