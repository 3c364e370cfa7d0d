//! The rights for extra Machines of a ClusterUpgrade, restricted to exactly those.

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;
use kube::Api;
use lab_world::world::{Enforced, WorldOptions};
use refit_kinds::refit::ClusterUpgrade;
use refit_runtime::Clock;
use serde_json::{Value, json};

use super::{
    ACCOUNT, Log, NEW, TEST, assert_same_machines, create_object, example, granted, in_world,
    installation, missing,
    tasks::{TASKS_BINDING, TASKS_ROLE, TASKS_WORKLOAD_ROLE, bind_admins, task_rights},
    unused, up_with, who, workload,
};

const ROLE: &str = include_str!("../../../../deploy/extra-capacity/role.yaml");
const BINDING: &str = include_str!("../../../../deploy/extra-capacity/role_binding.yaml");

#[test]
fn extra_machines_are_created_and_deleted_with_exactly_their_rights() {
    in_world(async {
        let management = Log::default();
        let mut in_management = installation();
        in_management.extend([TASKS_ROLE, TASKS_BINDING, ROLE, BINDING].map(task_rights));
        let mut in_workload = workload();
        in_workload.push(task_rights(TASKS_WORKLOAD_ROLE));
        let mut binding: Value = in_workload[1].clone();
        binding["metadata"]["name"] = "refit-tasks-workload".into();
        binding["roleRef"]["name"] = "refit-tasks-workload".into();
        in_workload.push(binding);
        let world = up_with(WorldOptions {
            epoch: Clock::real().now_seconds() - SignedDuration::from_hours(48),
            enforced: Some(Enforced {
                installation: in_management,
                workload: in_workload,
                management_recorder: management.recorder(),
                workload_recorder: Log::default().recorder(),
            }),
            ..WorldOptions::new(example())
        })
        .await;
        let before = who(&world).await;
        bind_admins(&world).await;
        let upgrades: Api<ClusterUpgrade> = Api::namespaced(world.client(TEST).unwrap(), "default");
        let spec = json!({"version": NEW, "via": "Machines", "extraCapacity": {}});
        create_object(&upgrades, json!({"metadata": {"name": "edge-1"}, "spec": spec})).await;
        world.pass(Duration::from_hours(1)).await;
        assert!(world.cluster_upgrades_are_complete(), "{:?}", world.cluster_upgrades());
        assert_same_machines(&before, &who(&world).await);

        let asked = management.of(ACCOUNT);
        let rights = granted(world.management(), &[("clusterroles", "", "refit-extra-capacity")]);
        assert_eq!(missing(&asked, false), Vec::<String>::new());
        assert_eq!(unused(&rights, &asked), BTreeSet::new());
    });
}
