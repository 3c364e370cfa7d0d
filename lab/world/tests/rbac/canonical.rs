//! The rights for upgrades by annotation, restricted to exactly those.

use std::time::Duration;

use jiff::SignedDuration;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use lab_world::world::{Enforced, World, WorldOptions};
use refit_cluster_api::kinds::{Machine, MachineDeployment, MachineSet};
use refit_controller::{Canonical, Settings};
use refit_kinds::json::kind;
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::{
    ACCOUNT, CLUSTER, Log, TEST, WORKLOAD_USER, create_object, example, granted, in_world,
    installation, missing, name, unused, up_with, workload,
};

const ROLES: &str = include_str!("../../../../deploy/canonical/role.yaml");
const BINDINGS: &str = include_str!("../../../../deploy/canonical/role_binding.yaml");
const WORKLOAD_ROLE: &str = include_str!("../../../../deploy/canonical/workload_role.yaml");
const CANONICAL_CLUSTER: &str = include_str!("../../../../examples/canonical.yaml");
const UPGRADE_TO: &str = "v1beta2.k8sd.io/in-place-upgrade-to";
const STATUS: &str = "v1beta2.k8sd.io/in-place-upgrade-status";
const CERTIFICATES: &str = "v1beta2.k8sd.io/refresh-certificates";
const CHANNEL: &str = "channel=1.35-classic/stable";

fn documents(file: &str) -> Vec<Value> {
    file.split("\n---\n").map(|one| serde_saphyr::from_str(one).unwrap()).collect()
}

/// A cluster of Canonical Kubernetes with one worker, and one of kubeadm next to it.
fn clusters() -> Vec<Value> {
    let mut all = documents(CANONICAL_CLUSTER);
    for deployment in all.iter_mut().filter(|object| kind(object) == "MachineDeployment") {
        deployment["spec"]["replicas"] = 1.into();
    }
    for object in &mut all {
        object["metadata"]["namespace"] = "default".into();
    }
    let other = json!(example()).to_string().replace("edge-1", "edge-2");
    all.extend(serde_json::from_str::<Vec<Value>>(&other).unwrap());
    all
}

fn installed_with(management: &Log, workload_log: &Log) -> Enforced {
    let mut in_management = installation();
    in_management.extend(documents(ROLES).into_iter().chain(documents(BINDINGS)));
    let mut in_workload = workload();
    let mut binding = in_workload[1].clone();
    binding["metadata"]["name"] = "refit-canonical-workload".into();
    binding["roleRef"]["name"] = "refit-canonical-workload".into();
    in_workload.extend(documents(WORKLOAD_ROLE));
    in_workload.push(binding);
    Enforced {
        installation: in_management,
        workload: in_workload,
        management_recorder: management.recorder(),
        workload_recorder: workload_log.recorder(),
    }
}

async fn annotate(world: &World, (group, kind, name): (&str, &str, &str), key: &str, value: &str) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client(TEST).unwrap(), "default", &resource);
    let body = json!({"metadata": {"annotations": {key: value}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

async fn until_shown(world: &World, (group, kind, name): (&str, &str, &str), value: &str) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    let api: Api<DynamicObject> =
        Api::namespaced_with(world.client(TEST).unwrap(), "default", &resource);
    for _ in 0..720 {
        let object = api.get(name).await.unwrap();
        if object.annotations().get(STATUS).is_some_and(|shown| shown == value) {
            return;
        }
        world.pass(Duration::from_secs(10)).await;
    }
    panic!("{kind} {name} never shows {value}: {:?}", api.get(name).await.unwrap().annotations());
}

/// A MachineSet that stands alone, with one Machine.
async fn lone_set(world: &World) {
    let client = world.client(TEST).unwrap();
    let deployments: Api<MachineDeployment> = Api::namespaced(client.clone(), "default");
    let deployment = deployments.get("edge-2-md-0").await.unwrap();
    let labels = json!({"set": "alone"});
    let set = json!({
        "metadata": {"name": "alone"},
        "spec": {
            "clusterName": "edge-2", "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": deployment.spec.template.spec},
        },
    });
    create_object(&Api::<MachineSet>::namespaced(client, "default"), set).await;
    world.pass(Duration::from_mins(5)).await;
}

#[test]
fn upgrades_by_annotation_use_exactly_their_rights() {
    in_world(async {
        let (management, workload_log) = (Log::default(), Log::default());
        let world = up_with(WorldOptions {
            epoch: Clock::real().now_seconds() - SignedDuration::from_hours(48),
            enforced: Some(installed_with(&management, &workload_log)),
            settings: Settings { canonical: Canonical::ControllersAbsent, ..Settings::default() },
            ..WorldOptions::new(clusters())
        })
        .await;
        let plane = ("controlplane.cluster.x-k8s.io", "CK8sControlPlane", "edge-1");
        let workers = ("cluster.x-k8s.io", "MachineDeployment", "edge-1-md-0");
        for owner in [plane, workers] {
            annotate(&world, owner, UPGRADE_TO, CHANNEL).await;
        }
        for owner in [plane, workers] {
            until_shown(&world, owner, "done").await;
        }
        // Requests that are refused are shown on the owner, whatever its kind is.
        lone_set(&world).await;
        let of_kubeadm = ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane", "edge-2");
        for owner in [of_kubeadm, ("cluster.x-k8s.io", "MachineSet", "alone")] {
            annotate(&world, owner, UPGRADE_TO, "bogus=1").await;
            until_shown(&world, owner, "failed").await;
        }
        let machines: Api<Machine> = Api::namespaced(world.client(TEST).unwrap(), "default");
        let all = machines.list(&<_>::default()).await.unwrap().items;
        for machine in all.iter().filter(|machine| machine.spec.cluster_name == "edge-1") {
            let machine = ("cluster.x-k8s.io", "Machine", &*machine.name_any());
            annotate(&world, machine, CERTIFICATES, "1y").await;
        }
        world.pass(Duration::from_mins(30)).await;

        let asked = management.of(ACCOUNT);
        let roles: Vec<Value> = documents(ROLES);
        let roles: Vec<_> = roles.iter().map(|role| ("clusterroles", "", name(role))).collect();
        assert_eq!(missing(&asked, false), Vec::<String>::new());
        assert_eq!(unused(&granted(world.management(), &roles), &asked), <_>::default());
        let server = world.workload(CLUSTER).unwrap();
        let asked = workload_log.of(WORKLOAD_USER);
        let rights = granted(&server, &[("clusterroles", "", "refit-canonical-workload")]);
        assert_eq!(missing(&asked, false), Vec::<String>::new());
        // Real API servers ask for it from v1.35 on, as a test of port-forwards through one shows.
        let unused: Vec<String> = unused(&rights, &asked).into_iter().collect();
        assert_eq!(unused, ["ClusterRole/refit-canonical-workload: create pods/portforward. "]);
    });
}
