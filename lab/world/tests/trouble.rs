//! Upgrades despite failures and processes that die.

use std::{path::PathBuf, time::Duration};

use crate::common::{
    CLUSTER, NEW, OLD, TEST, UPGRADE, assert_clean, assert_same_machines, control_planes, in_world,
    load, picture, up, up_with, updates_of, upgraded, who, workers,
};
use k8s_openapi::api::{core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use lab_apiserver::Down;
use lab_world::world::{Actor, World, WorldOptions};
use refit_cluster_api::kinds::{KubeadmControlPlane, Machine, MachineDeployment};
use refit_kinds::{
    canonical::REFIT,
    json::{name, text},
};
use serde_json::{Value, json};

async fn until_phase(world: &World, phase: &str) -> String {
    let mut found = String::new();
    world
        .until(&format!("a NodeUpdate is {phase}"), UPGRADE, |world| {
            let updates = world.node_updates();
            let first = updates.iter().find(|u| text(u, "/status/phase") == phase);
            found = first.map(|u| text(u, "/spec/machineRef/name").to_owned()).unwrap_or_default();
            !found.is_empty()
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", picture(world)));
    found
}

/// Runs an upgrade and calls `disturb` once when a machine is in `phase`.
async fn disturbed(phase: &str, disturb: impl AsyncFnOnce(&World, &str)) {
    let world = up().await;
    let before = who(&world).await;
    world.upgrade(NEW).await.unwrap();
    let machine = until_phase(&world, phase).await;
    disturb(&world, &machine).await;
    upgraded(&world, NEW).await;
    assert_same_machines(&before, &who(&world).await);
    for machine in world.machines() {
        assert_eq!(updates_of(&world, name(&machine)).len(), 1, "{}", picture(&world));
    }
}

#[test]
fn an_upgrade_survives_the_death_of_the_controller() {
    in_world(disturbed("Draining", async |world, _| {
        assert!(world.kill(&Actor::Controller));
    }));
}

#[test]
fn an_upgrade_survives_the_death_of_cluster_api() {
    in_world(disturbed("Upgrading", async |world, _| {
        assert!(world.kill(&Actor::Capi));
    }));
}

#[test]
fn an_agent_that_dies_in_a_step_does_not_repeat_it() {
    in_world(disturbed("Upgrading", async |world, machine| {
        let agent = world.agent(machine).unwrap();
        world.pass(Duration::from_secs(5)).await;
        assert!(world.kill(&agent));
        let (world, machine) = (world, machine.to_owned());
        upgraded(world, NEW).await;
        let runs = world.with_host(&machine, |host| host.runs.clone()).unwrap();
        assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    }));
}

#[test]
fn repeated_deaths_of_all_processes_lose_nothing() {
    in_world(disturbed("Staging", async |world, _| {
        for _ in 0..20 {
            world.pass(Duration::from_secs(47)).await;
            for (actor, _) in world.processes() {
                world.kill(&actor);
            }
        }
    }));
}

#[test]
fn an_unavailable_workload_api_only_costs_time() {
    in_world(disturbed("Upgrading", async |world, _| {
        let server = world.workload(CLUSTER).unwrap();
        server.faults().set_down(Some(Down::Refuse));
        world.pass(Duration::from_mins(10)).await;
        server.faults().set_down(None);
    }));
}

#[test]
fn an_unavailable_management_api_only_costs_time() {
    in_world(disturbed("Disrupting", async |world, _| {
        world.management().faults().set_down(Some(Down::Unavailable));
        world.pass(Duration::from_mins(10)).await;
        world.management().faults().set_down(None);
    }));
}

#[test]
fn a_drain_blocked_by_a_budget_is_reported() {
    in_world(async {
        let world = up().await;
        let client = world.workload_client(CLUSTER, TEST).unwrap();
        let budgets = Api::<PodDisruptionBudget>::default_namespaced(client);
        let allow = async |count: i32| {
            let body = json!({"spec": {"maxUnavailable": count}});
            let patch = Patch::Merge(&body);
            budgets.patch("web", &PatchParams::default(), &patch).await.unwrap();
        };
        allow(0).await;
        world.upgrade(NEW).await.unwrap();
        let blocked = |world: &World| {
            world.node_updates().iter().any(|update| {
                text(update, "/status/blockedBy/0/object").ends_with("web")
                    && text(update, "/status/blockedBy/0/reason").contains("Budget")
            })
        };
        world
            .until("a drain is blocked", UPGRADE, blocked)
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", picture(&world)));
        world.pass(Duration::from_mins(10)).await;
        assert!(blocked(&world), "{}", picture(&world));
        allow(2).await;
        upgraded(&world, NEW).await;
    });
}

#[test]
fn a_machine_whose_node_an_admin_cordoned_waits_until_it_is_uncordoned() {
    in_world(async {
        let world = up().await;
        let worker = workers(&world).remove(2);
        let client = world.workload_client(CLUSTER, TEST).unwrap();
        let nodes = Api::<Node>::all(client);
        let cordon = async |on: bool| {
            let body = json!({"spec": {"unschedulable": on}});
            nodes.patch(&worker, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
        };
        cordon(true).await;
        world.upgrade(NEW).await.unwrap();
        let waits = |world: &World| {
            world.node_updates().iter().any(|update| {
                text(update, "/status/blockedBy/0/reason") == "NodeCordoned"
                    && text(update, "/status/blockedBy/0/object") == worker
            })
        };
        world
            .until("an update waits for the admin", UPGRADE, waits)
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", picture(&world)));
        world.pass(Duration::from_mins(10)).await;
        assert!(waits(&world), "{}", picture(&world));
        let node = nodes.get(&worker).await.unwrap();
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
        cordon(false).await;
        upgraded(&world, NEW).await;
    });
}

#[test]
fn a_users_own_guard_against_remediation_survives() {
    in_world(async {
        let world = up().await;
        let worker = workers(&world).remove(0);
        let machines = Api::<Machine>::default_namespaced(world.client(TEST).unwrap());
        let key = refit_kinds::keys::SKIP_REMEDIATION;
        let body = json!({"metadata": {"annotations": {key: "mine"}}});
        machines.patch(&worker, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
        world.upgrade(NEW).await.unwrap();
        let done = |world: &World| {
            world.node_updates().iter().all(|u| text(u, "/status/phase") == "Succeeded")
                && world.node_updates().len() == 8
        };
        world.until("the upgrade is complete", UPGRADE, done).await.unwrap();
        world.pass(Duration::from_mins(1)).await;
        let machine = machines.get(&worker).await.unwrap();
        assert_eq!(machine.metadata.annotations.unwrap()[key], "mine");
        assert_clean(&world);
    });
}

#[test]
fn a_step_that_fails_twice_is_retried() {
    in_world(async {
        let world = up().await;
        let worker = workers(&world).remove(1);
        world.with_host(&worker, |host| host.break_step("kubelet-install", 2)).unwrap();
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let update = updates_of(&world, &worker).remove(0);
        let steps = update["status"]["steps"].as_array().unwrap().clone();
        let step = steps.iter().find(|s| s["name"] == "kubelet-install").unwrap();
        assert_eq!(step["attempt"], 3, "{}", picture(&world));
    });
}

#[test]
fn a_step_that_keeps_failing_stops_the_rollout_with_a_reason() {
    in_world(async {
        let world = up().await;
        for worker in workers(&world) {
            world.with_host(&worker, |host| host.break_step("kubeadm-upgrade", 1000)).unwrap();
        }
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        let failed = until_phase(&world, "Failed").await;
        world.pass(Duration::from_mins(30)).await;
        let update = updates_of(&world, &failed).remove(0);
        assert!(!text(&update, "/status/failureReason").is_empty());
        assert!(!text(&update, "/status/failureMessage").is_empty());
        // No machine was replaced, and no other machine was changed.
        assert_same_machines(&before, &who(&world).await);
        let broken = world.node_updates();
        let broken = broken.iter().filter(|u| text(u, "/status/phase") == "Failed");
        assert_eq!(broken.count(), 1, "{}", picture(&world));
        assert_clean(&world);
    });
}

#[test]
fn a_requested_update_repairs_a_kubelet_changed_by_hand() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let worker = workers(&world).remove(0);
        world
            .with_host(&worker, |host| {
                host.kubelet_version = OLD.to_owned();
                host.root.insert("/packages/kubelet".to_owned(), "1.34.2-1.1".to_owned());
            })
            .unwrap();
        world.pass(Duration::from_secs(400)).await;
        let first = updates_of(&world, &worker).remove(0);
        let mut again: refit_kinds::refit::NodeUpdate =
            serde_json::from_value((*first).clone()).unwrap();
        again.metadata = kube::api::ObjectMeta {
            name: Some(format!("{worker}-2")),
            labels: again.metadata.labels.clone(),
            owner_references: again.metadata.owner_references.clone(),
            ..kube::api::ObjectMeta::default()
        };
        again.status = None;
        let api = Api::default_namespaced(world.client(TEST).unwrap());
        api.create(&kube::api::PostParams::default(), &again).await.unwrap();
        world
            .until("the second update is complete", UPGRADE, |world| world.is_updated(NEW))
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", picture(&world)));
        assert_eq!(updates_of(&world, &worker).len(), 2);
        let runs = world.with_host(&worker, |host| host.runs.clone()).unwrap();
        assert!(runs.values().any(|count| *count == 2), "{runs:?}");
    });
}

#[test]
fn a_world_restored_midway_ends_the_same() {
    in_world(async {
        let world = up().await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        until_phase(&world, "Disrupting").await;
        let snapshot = world.snapshot();
        drop(world);
        let world = World::restore(&snapshot, &WorldOptions::new(Vec::new())).unwrap();
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
    });
}

#[test]
fn default_strategies_replace_one_machine_of_each_group() {
    in_world(async {
        let mut manifests = crate::common::example();
        for object in &mut manifests {
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("rollout");
            }
        }
        let world = up_with(WorldOptions::new(manifests)).await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let after = who(&world).await;
        assert_eq!(after.len(), 8);
        for control_plane in [true, false] {
            let kept = after
                .iter()
                .filter(|f| f.control_plane == control_plane)
                .filter(|f| before.iter().any(|b| b.uid == f.uid))
                .count();
            assert_eq!(kept, if control_plane { 2 } else { 4 });
        }
    });
}

/// A typical cluster on vSphere, without surge; `None` without the data.
fn vsphere() -> Option<Vec<Value>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("../shared/data/clusters/vsphere.yaml");
    if !file.exists() {
        #[expect(clippy::print_stdout, reason = "why a test was not run")]
        {
            println!("not run: no data at {}", file.display());
        }
        return None;
    }
    let mut objects = load(&file);
    lab_world::manifests::forbid_surge(&mut objects);
    Some(objects)
}

#[test]
fn annotations_of_its_owners_upgrade_a_typical_vsphere_cluster() {
    let Some(objects) = vsphere() else { return };
    in_world(async {
        let world = up_with(WorldOptions::new(objects)).await;
        let before = who(&world).await;
        let client = world.client(TEST).unwrap();
        let key = REFIT.upgrade_to;
        let body =
            Patch::Merge(json!({"metadata": {"annotations": {key: format!("version={NEW}")}}}));
        let params = PatchParams::default();
        let planes = Api::<KubeadmControlPlane>::default_namespaced(client.clone());
        for plane in planes.list(&ListParams::default()).await.unwrap() {
            planes.patch(&plane.name_any(), &params, &body).await.unwrap();
        }
        let deployments = Api::<MachineDeployment>::default_namespaced(client);
        for deployment in deployments.list(&ListParams::default()).await.unwrap() {
            deployments.patch(&deployment.name_any(), &params, &body).await.unwrap();
        }
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
        world.pass(Duration::from_mins(2)).await;
        let all = deployments.list(&ListParams::default()).await.unwrap();
        let status = REFIT.status;
        assert!(all.iter().all(|deployment| deployment.annotations()[status] == "done"));
    });
}

#[test]
fn a_typical_vsphere_cluster_is_upgraded() {
    let Some(objects) = vsphere() else { return };
    in_world(async {
        let world = up_with(WorldOptions::new(objects)).await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
        assert_eq!(control_planes(&world).len() + workers(&world).len(), 8);
    });
}
