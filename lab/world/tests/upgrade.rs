//! Upgrades of a whole cluster, undisturbed.

use std::time::Duration;

use crate::common::{
    CLUSTER, NEW, OLD, assert_clean, assert_same_machines, control_planes, in_world, picture, up,
    updates_of, upgraded, who, workers,
};
use jiff::Timestamp;
use refit_kinds::json::{name, text};

#[test]
fn the_cluster_comes_up_with_three_and_five_machines() {
    in_world(async {
        let world = up().await;
        let facts = who(&world).await;
        assert_eq!(facts.len(), 8);
        assert_eq!(facts.iter().filter(|f| f.control_plane).count(), 3);
        for machine in &facts {
            assert_eq!(machine.kubelet_version, OLD.into(), "{machine:?}");
            assert!(machine.provider_id.starts_with("sandbox://"));
            assert_eq!(machine.node_name, machine.name);
        }
        assert_clean(&world);
    });
}

#[test]
fn an_upgrade_keeps_every_machine() {
    in_world(async {
        let world = up().await;
        let before = who(&world).await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let after = who(&world).await;
        assert_same_machines(&before, &after);
        assert!(after.iter().all(|f| f.kubelet_version == NEW.into()));
    });
}

#[test]
fn every_machine_has_one_node_update_that_succeeded() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        for machine in world.machines() {
            let updates = updates_of(&world, name(&machine));
            assert_eq!(updates.len(), 1, "{}", picture(&world));
            assert_eq!(text(&updates[0], "/status/phase"), "Succeeded");
            assert_eq!(text(&updates[0], "/status/fromVersion"), OLD);
        }
    });
}

fn time(update: &serde_json::Value, field: &str) -> Timestamp {
    text(update, &format!("/status/{field}")).parse().unwrap()
}

#[test]
fn the_control_plane_goes_first_and_one_at_a_time() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let span = |machine: &String| {
            let update = updates_of(&world, machine).remove(0);
            (time(&update, "startedAt"), time(&update, "finishedAt"))
        };
        let mut spans: Vec<_> = control_planes(&world).iter().map(span).collect();
        spans.sort();
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{spans:?}");
        }
        let last = spans.last().unwrap().1;
        for worker in workers(&world) {
            assert!(span(&worker).0 >= last);
        }
    });
}

#[test]
fn only_the_first_control_plane_machine_runs_kubeadm_apply() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        world
            .until("a first step has started", Duration::from_mins(10), |world| {
                world.node_updates().iter().any(|u| !text(u, "/status/role").is_empty())
            })
            .await
            .unwrap();
        // Cluster API updates kubeadm-config before it calls any hook
        // (`docs/facts/control-plane.md#kubeadm-config`).
        let server = world.workload(CLUSTER).unwrap();
        let config = server.get_value("", "configmaps", "kube-system", "kubeadm-config").unwrap();
        let text_of = text(&config, "/data/ClusterConfiguration").to_owned();
        assert!(text_of.contains(&format!("kubernetesVersion: {NEW}")), "{text_of}");
        upgraded(&world, NEW).await;
        let mut roles: Vec<(Timestamp, String)> = control_planes(&world)
            .iter()
            .map(|machine| {
                let update = updates_of(&world, machine).remove(0);
                (time(&update, "startedAt"), text(&update, "/status/role").to_owned())
            })
            .collect();
        roles.sort();
        let roles: Vec<&str> = roles.iter().map(|(_, role)| role.as_str()).collect();
        assert_eq!(roles, ["FirstControlPlane", "ControlPlane", "ControlPlane"]);
    });
}

#[test]
fn nothing_is_left_on_machines_and_nodes() {
    in_world(async {
        let world = up().await;
        let annotations = |world: &lab_world::world::World| -> Vec<(String, String)> {
            let machines = world.machines();
            let nodes = world.nodes();
            machines
                .iter()
                .chain(nodes.values())
                .map(|object| {
                    let annotations = object["metadata"]["annotations"].to_string();
                    (name(object).to_owned(), annotations)
                })
                .collect()
        };
        let before = annotations(&world);
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        world.pass(Duration::from_mins(1)).await;
        assert_eq!(annotations(&world), before);
        assert!(world.nodes().values().all(|node| node["spec"]["unschedulable"] != true));
    });
}

#[test]
fn a_second_upgrade_does_the_work_again() {
    in_world(async {
        let world = up().await;
        let before = who(&world).await;
        for (count, version) in [(1, NEW), (2, "v1.35.1")] {
            world.upgrade(version).await.unwrap();
            upgraded(&world, version).await;
            for machine in world.machines() {
                assert_eq!(updates_of(&world, name(&machine)).len(), count);
            }
        }
        assert_same_machines(&before, &who(&world).await);
    });
}

#[test]
fn a_downgrade_is_not_covered_and_replaces_no_machine() {
    in_world(async {
        let world = up().await;
        let before = who(&world).await;
        world.upgrade("v1.34.3").await.unwrap();
        upgraded(&world, "v1.34.3").await;
        world.upgrade(OLD).await.unwrap();
        world.pass(Duration::from_mins(30)).await;
        let now = who(&world).await;
        assert_same_machines(&before, &now);
        assert!(now.iter().all(|f| f.kubelet_version == "v1.34.3".into()));
        let groups = world.update_groups();
        assert!(groups.iter().all(|group| {
            let lines = group["status"]["uncovered"].to_string();
            lines.contains("v1.34.3") && lines.contains(OLD)
        }));
        // An upgrade is still possible.
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        assert_same_machines(&before, &who(&world).await);
    });
}

#[test]
fn a_quiet_cluster_stays_quiet() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        world.pass(Duration::from_mins(2)).await;
        let revision = world.management().revision();
        world.pass(Duration::from_hours(1)).await;
        assert_eq!(world.management().revision(), revision);
        assert_clean(&world);
    });
}

#[test]
fn two_runs_are_the_same() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let end = (world.now(), world.management().revision());
        drop(world);
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        assert_eq!((world.now(), world.management().revision()), end);
    });
}

#[test]
fn the_objects_of_a_cluster_are_labelled_and_owned_by_it() {
    in_world(async {
        let world = up().await;
        let one = |group: &str, plural: &str| {
            let found = world.management().list_values(group, plural, None);
            found.into_iter().next().unwrap()
        };
        let cluster = one("cluster.x-k8s.io", "clusters");
        for (group, plural) in [
            ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes"),
            ("cluster.x-k8s.io", "machinedeployments"),
            ("infrastructure.cluster.x-k8s.io", "sandboxclusters"),
        ] {
            let part = one(group, plural);
            let owner = &part["metadata"]["ownerReferences"][0];
            assert_eq!(owner["uid"], cluster["metadata"]["uid"], "{plural}");
            let label = &part["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"];
            assert_eq!(*label, cluster["metadata"]["name"], "{plural}");
        }
    });
}
