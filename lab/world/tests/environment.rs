//! The environment alone: Machines created by hand get hosts, Nodes and pods.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use lab_world::world::{World, WorldOptions, runtime};
use serde_json::{Value, json};

const TEST: &str = "test";

fn manifests() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": "edge", "namespace": "default"},
            "spec": {"infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "MetalCluster",
                "name": "edge",
            }},
        }),
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha3",
            "kind": "MetalCluster",
            "metadata": {"name": "edge", "namespace": "default"},
            "spec": {},
        }),
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha3",
            "kind": "MetalMachineTemplate",
            "metadata": {"name": "edge", "namespace": "default"},
            "spec": {"template": {"spec": {"cpus": 4}}},
        }),
    ]
}

fn api(client: &kube::Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// Creates a Machine as Cluster API would, with the objects that it refers to.
async fn machine(client: &kube::Client, name: &str, control_plane: bool) {
    let infra = "infrastructure.cluster.x-k8s.io";
    let boot = "bootstrap.cluster.x-k8s.io";
    let core = "cluster.x-k8s.io";
    let labels =
        if control_plane { json!({"cluster.x-k8s.io/control-plane": ""}) } else { json!({}) };
    let objects = [
        (infra, "v1alpha3", "MetalMachine", json!({"spec": {"cpus": 4}})),
        (boot, "v1beta2", "KubeadmConfig", json!({"spec": {}})),
        (
            core,
            "v1beta2",
            "Machine",
            json!({"spec": {
                "clusterName": "edge",
                "version": "v1.34.2",
                "bootstrap": {"configRef": {"apiGroup": boot, "kind": "KubeadmConfig", "name": name}},
                "infrastructureRef": {"apiGroup": infra, "kind": "MetalMachine", "name": name},
            }}),
        ),
    ];
    for (group, version, kind, mut body) in objects {
        body["apiVersion"] = json!(format!("{group}/{version}"));
        body["kind"] = json!(kind);
        body["metadata"] = json!({"name": name, "labels": labels});
        let object: DynamicObject = serde_json::from_value(body).unwrap();
        api(client, group, version, kind).create(&PostParams::default(), &object).await.unwrap();
    }
}

/// Copies from the bootstrap config what the Machine controller would copy.
async fn hand_over_bootstrap(world: &World, client: &kube::Client, name: &str) {
    let configs = api(client, "bootstrap.cluster.x-k8s.io", "v1beta2", "KubeadmConfig");
    for _ in 0..60 {
        let config = configs.get(name).await.unwrap();
        if config.data["status"]["dataSecretName"].is_string() {
            let body = json!({"spec": {"bootstrap": {"dataSecretName": name}}});
            api(client, "cluster.x-k8s.io", "v1beta2", "Machine")
                .patch(name, &PatchParams::default(), &Patch::Merge(&body))
                .await
                .unwrap();
            return;
        }
        world.pass(Duration::from_secs(1)).await;
    }
    panic!("{name} got no bootstrap data");
}

async fn three_nodes() -> World {
    let world = World::new(WorldOptions::new(manifests())).await.unwrap();
    let client = world.client(TEST).unwrap();
    machine(&client, "edge-cp-0", true).await;
    hand_over_bootstrap(&world, &client, "edge-cp-0").await;
    for worker in ["edge-w-0", "edge-w-1"] {
        machine(&client, worker, false).await;
    }
    for worker in ["edge-w-0", "edge-w-1"] {
        hand_over_bootstrap(&world, &client, worker).await;
    }
    world
        .until("there are three Nodes", Duration::from_mins(2), |w| w.nodes().len() == 3)
        .await
        .unwrap();
    world.pass(Duration::from_secs(15)).await;
    world
}

fn in_world<F: Future<Output = ()>>(test: F) {
    runtime().unwrap().block_on(test);
}

async fn pods(world: &World, selector: &str) -> Vec<Pod> {
    let client = world.workload_client("default/edge", TEST).unwrap();
    let list = Api::<Pod>::all(client).list(&ListParams::default().labels(selector)).await;
    list.unwrap().items
}

fn ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    status.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

#[test]
fn machines_become_nodes_with_identity_and_version() {
    in_world(async {
        let world = three_nodes().await;
        let client = world.workload_client("default/edge", TEST).unwrap();
        let nodes = Api::<Node>::all(client).list(&ListParams::default()).await.unwrap();
        assert_eq!(nodes.items.len(), 3);
        for node in nodes {
            let id = node.spec.as_ref().unwrap().provider_id.clone().unwrap();
            assert!(id.starts_with(&format!("sandbox://{}-", node.name_any())), "{id}");
            let info = node.status.unwrap().node_info.unwrap();
            assert_eq!(info.kubelet_version, "v1.34.2");
            assert!(!info.boot_id.is_empty());
        }
    });
}

#[test]
fn machines_join_only_after_the_first_control_plane_machine() {
    in_world(async {
        let world = World::new(WorldOptions::new(manifests())).await.unwrap();
        let client = world.client(TEST).unwrap();
        machine(&client, "edge-w-0", false).await;
        world.pass(Duration::from_mins(1)).await;
        let configs = api(&client, "bootstrap.cluster.x-k8s.io", "v1beta2", "KubeadmConfig");
        let config = configs.get("edge-w-0").await.unwrap();
        assert!(config.data["status"]["dataSecretName"].is_null());
    });
}

#[test]
fn control_planes_show_their_static_pods_with_their_images() {
    in_world(async {
        let world = three_nodes().await;
        let found = pods(&world, "tier=control-plane").await;
        let mut images: Vec<String> = found
            .iter()
            .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
            .collect();
        images.sort();
        assert_eq!(images.len(), 4);
        assert!(images.contains(&"registry.k8s.io/kube-apiserver:v1.34.2".to_owned()));
        assert!(found.iter().all(ready));
        assert!(found.iter().all(|p| p.annotations().contains_key("kubernetes.io/config.mirror")));
    });
}

#[test]
fn the_application_runs_on_workers_and_moves_on_eviction() {
    in_world(async {
        let world = three_nodes().await;
        let web = pods(&world, "app=web").await;
        assert_eq!(web.len(), 8);
        assert!(web.iter().all(ready));
        let node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        assert!(web.iter().all(|pod| node(pod).starts_with("edge-w-")));
        let client = world.workload_client("default/edge", TEST).unwrap();
        let body = json!({"spec": {"unschedulable": true}});
        Api::<Node>::all(client.clone())
            .patch("edge-w-0", &PatchParams::default(), &Patch::Merge(&body))
            .await
            .unwrap();
        let api = Api::<Pod>::default_namespaced(client);
        let on_first: Vec<_> = web.iter().filter(|p| node(p) == "edge-w-0").collect();
        let mut refused = 0;
        for pod in &on_first {
            while api.evict(&pod.name_any(), &EvictParams::default()).await.is_err() {
                refused += 1;
                world.pass(Duration::from_secs(5)).await;
            }
        }
        // The budget allows two of eight pods to be missing, and four have to move.
        assert_eq!(on_first.len(), 4);
        assert!(refused > 0);
        world.pass(Duration::from_secs(20)).await;
        let web = pods(&world, "app=web").await;
        assert_eq!(web.len(), 8);
        assert!(web.iter().all(|pod| ready(pod) && node(pod) == "edge-w-1"));
    });
}

#[test]
fn a_host_is_removed_with_its_infrastructure_machine() {
    in_world(async {
        let world = three_nodes().await;
        let client = world.client(TEST).unwrap();
        let infra = "infrastructure.cluster.x-k8s.io";
        api(&client, infra, "v1alpha3", "MetalMachine")
            .delete("edge-w-1", &DeleteParams::default())
            .await
            .unwrap();
        world.pass(Duration::from_secs(30)).await;
        assert_eq!(world.nodes().len(), 2);
        assert!(world.agent("edge-w-1").is_none());
        let web = pods(&world, "app=web").await;
        assert_eq!(web.iter().filter(|pod| ready(pod)).count(), 8);
    });
}

#[test]
fn an_idle_environment_writes_only_heartbeats() {
    in_world(async {
        let world = three_nodes().await;
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        for server in [world.workload("default/edge").unwrap(), world.management().clone()] {
            let writes = writes.clone();
            server.observe(Box::new(move |event| {
                if event.user_agent == "sandbox-env" {
                    writes.lock().unwrap().push(event.resource.id.to_string());
                }
            }));
        }
        world.pass(Duration::from_mins(10)).await;
        assert_eq!(*writes.lock().unwrap(), ["nodes"; 6]);
    });
}

#[test]
fn a_restored_world_continues_by_itself() {
    in_world(async {
        let world = World::new(WorldOptions::new(manifests())).await.unwrap();
        let client = world.client(TEST).unwrap();
        machine(&client, "edge-cp-0", true).await;
        hand_over_bootstrap(&world, &client, "edge-cp-0").await;
        world.pass(Duration::from_secs(10)).await;
        let snapshot = world.snapshot();
        drop(world);
        let text = serde_json::to_string(&snapshot).unwrap();
        let snapshot = serde_json::from_str(&text).unwrap();
        let world = World::restore(&snapshot, &WorldOptions::new(Vec::new())).unwrap();
        world
            .until("there is a Node", Duration::from_mins(1), |w| w.nodes().len() == 1)
            .await
            .unwrap();
    });
}
