//! The rights for UpgradeTasks, restricted to exactly those.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use lab_apiserver::{ApiServer, auth::Attributes};
use lab_world::world::{World, WorldOptions};
use refit_cluster_api::{cluster_configuration::admins_binding, kinds::Cluster};
use refit_kinds::refit::{ClusterUpgrade, ClusterUpgradePlan, UpgradeTask};
use serde_json::{Value, json};

use super::{
    ACCOUNT, CLUSTER, Log, NEW, TEST, WORKLOAD_USER, assert_same_machines, create_object, enforced,
    granted, in_sandbox, in_world, missing, unused, up_with, upgraded, who, with_rights, workload,
};
use crate::{
    common::OLD,
    external_upgrade::{accepted, pause_and_request, request},
};

pub(super) const TASKS_ROLE: &str = include_str!("../../../../deploy/tasks/role.yaml");
pub(super) const TASKS_BINDING: &str = include_str!("../../../../deploy/tasks/role_binding.yaml");
const TASKS_SPEC_ROLE: &str = include_str!("../../../../deploy/tasks/spec_role.yaml");
const TASKS_SPEC_BINDING: &str = include_str!("../../../../deploy/tasks/spec_role_binding.yaml");
const TASKS_EXTERNAL_ROLE: &str = include_str!("../../../../deploy/tasks-external/role.yaml");
const TASKS_EXTERNAL_BINDING: &str =
    include_str!("../../../../deploy/tasks-external/role_binding.yaml");
const TASKS_WORKLOAD_ROLE: &str = include_str!("../../../../deploy/tasks/workload_role.yaml");
const NEXT: &str = "v1.35.1";
const FURTHER: &str = "v1.35.2";
const LAST: &str = "v1.35.3";
/// The name in the certificate of Secret refit-hook-client.
const HOOK_CLIENT: &str = "refit-hook-client";

/// The rights in a workload cluster, with those for tasks via Machines.
pub(super) fn workload_of_tasks() -> Vec<Value> {
    let mut all = workload();
    let mut binding = all[1].clone();
    binding["metadata"]["name"] = "refit-tasks-workload".into();
    binding["roleRef"]["name"] = "refit-tasks-workload".into();
    all.extend([in_sandbox(TASKS_WORKLOAD_ROLE), binding]);
    all
}

/// The ClusterRoleBinding that kubeadm, since v1.29, makes when it initialises a cluster.
pub(super) async fn bind_admins(world: &World) {
    let bindings: Api<ClusterRoleBinding> = Api::all(world.workload_client(CLUSTER, TEST).unwrap());
    create_object(&bindings, admins_binding(&NEW.parse().unwrap()).unwrap()).await;
}

/// A task for the whole Cluster, or for a group of it.
pub(super) async fn task(world: &World, via: &str, owner: Option<(&str, &str, &str)>) {
    let tasks: Api<UpgradeTask> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let name = owner.map_or("cluster", |(_, _, name)| name);
    let mut spec = json!({"clusterRef": {"name": "edge-1"}, "version": NEW, "via": via});
    if let Some((group, kind, name)) = owner {
        let api_version = format!("{group}/v1beta2");
        spec["ownerRef"] = json!({"apiVersion": api_version, "kind": kind, "name": name});
    }
    create_object(&tasks, json!({"metadata": {"name": format!("task-{name}")}, "spec": spec}))
        .await;
}

/// A plan for the upgrade of the whole fleet, which is one cluster.
pub(super) async fn plan(world: &World, version: &str, start_at: Option<&str>) {
    let plans: Api<ClusterUpgradePlan> = Api::all(world.client(TEST).unwrap());
    let mut spec = json!({"version": version, "via": "Machines"});
    if let Some(at) = start_at {
        spec["startAt"] = at.into();
    }
    create_object(&plans, json!({"metadata": {"name": "fleet"}, "spec": spec})).await;
}

/// Requests an upgrade without a plan, for which each MachineDeployment gets one more replica.
async fn request_with_extra_replicas(world: &World, version: &str) {
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let body = json!({"spec": {"version": version, "extraCapacity": {"method": "Replicas"}}});
    upgrades.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

/// Asserts that no request was refused, and that the role grants nothing else.
fn assert_exact(server: &ApiServer, role: &str, asked: &[(Attributes, u32, u32)]) {
    let rights = granted(server, &[("clusterroles", "", role)]);
    assert_eq!(missing(asked, false), Vec::<String>::new());
    assert_eq!(unused(&rights, asked), BTreeSet::new());
}

async fn topology_version(world: &World, version: &str) {
    let clusters: Api<Cluster> = Api::namespaced(world.client(TEST).unwrap(), "default");
    let body = json!({"spec": {"topology": {"classRef": {"name": "edge"}, "version": version}}});
    clusters.patch("edge-1", &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

#[test]
fn an_upgrade_task_uses_exactly_its_rights() {
    in_world(async {
        let (management, workload_log) = (Log::default(), Log::default());
        let files = [TASKS_ROLE, TASKS_BINDING];
        let rights = enforced(&files, workload_of_tasks(), &management, &workload_log);
        let world = up_with(with_rights(rights)).await;
        let before = who(&world).await;
        bind_admins(&world).await;
        task(&world, "Machines", None).await;
        upgraded(&world, NEW).await;
        world.pass(Duration::from_mins(10)).await;
        plan(&world, NEXT, None).await;
        upgraded(&world, NEXT).await;
        world.pass(Duration::from_mins(10)).await;
        let plans: Api<ClusterUpgradePlan> = Api::all(world.client(TEST).unwrap());
        let further = json!({"spec": {"version": FURTHER}});
        plans.patch("fleet", &PatchParams::default(), &Patch::Merge(&further)).await.unwrap();
        upgraded(&world, FURTHER).await;
        world.pass(Duration::from_mins(10)).await;
        plans.delete("fleet", &DeleteParams::default()).await.unwrap();
        request_with_extra_replicas(&world, LAST).await;
        upgraded(&world, LAST).await;
        world.pass(Duration::from_mins(10)).await;
        assert!(world.cluster_upgrades_are_complete(), "{:?}", world.cluster_upgrades());
        assert_same_machines(&before, &who(&world).await);

        assert_exact(world.management(), "refit-tasks", &management.of(ACCOUNT));
        let server = world.workload(CLUSTER).unwrap();
        assert_exact(&server, "refit-tasks-workload", &workload_log.of(WORKLOAD_USER));
    });
}

#[test]
fn an_upgrade_task_that_sets_versions_uses_exactly_its_rights() {
    in_world(async {
        let management = Log::default();
        let files = [TASKS_SPEC_ROLE, TASKS_SPEC_BINDING];
        let rights = enforced(&files, workload(), &management, &Log::default());
        let world = up_with(with_rights(rights)).await;
        let before = who(&world).await;
        let plane = ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane", "edge-1");
        task(&world, "Spec", Some(plane)).await;
        world.pass(Duration::from_hours(1)).await;
        task(&world, "Spec", Some(("cluster.x-k8s.io", "MachineDeployment", "edge-1-md-0"))).await;
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
        // No controller of topologies follows it here; the task sets the version, and makes its children.
        topology_version(&world, OLD).await;
        let clusters: Api<Cluster> = Api::namespaced(world.client(TEST).unwrap(), "default");
        let tasks: Api<UpgradeTask> = Api::namespaced(world.client(TEST).unwrap(), "default");
        create_object(
            &tasks,
            json!({"metadata": {"name": "next"}, "spec": {
                "clusterRef": {"name": "edge-1"}, "version": NEXT, "via": "Spec",
            }}),
        )
        .await;
        world.pass(Duration::from_hours(1)).await;
        let topology = clusters.get("edge-1").await.unwrap().spec.topology.unwrap().0;
        assert_eq!(topology["version"], NEXT);

        assert_exact(world.management(), "refit-tasks-spec", &management.of(ACCOUNT));
    });
}

#[test]
fn an_external_upgrade_uses_exactly_its_rights() {
    in_world(async {
        let management = Log::default();
        let files = [TASKS_EXTERNAL_ROLE, TASKS_EXTERNAL_BINDING, TASKS_ROLE, TASKS_BINDING];
        let rights = enforced(&files, workload(), &management, &Log::default());
        let settings = refit_controller::Settings {
            external_upgrade_clients: [HOOK_CLIENT.to_owned()].into(),
            ..refit_controller::Settings::default()
        };
        let world = up_with(WorldOptions { settings, ..with_rights(rights) }).await;
        pause_and_request(&world).await;
        let request = request(&world, &[]).await;
        // Both create the task: the slower one reads it.
        let both = futures::join!(accepted(&world, &request), accepted(&world, &request));
        assert_eq!(both.0, both.1);
        world.pass(Duration::from_mins(30)).await;

        assert_exact(world.management(), "refit-tasks-external", &management.of(ACCOUNT));
    });
}
