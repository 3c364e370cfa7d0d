//! The rights for extra Machines of a ClusterUpgrade, restricted to exactly those.

use std::{collections::BTreeSet, time::Duration};

use kube::Api;
use refit_kinds::refit::ClusterUpgrade;
use serde_json::json;

use super::{
    ACCOUNT, Log, NEW, TEST, assert_same_machines, create_object, enforced, granted, in_world,
    missing,
    tasks::{TASKS_BINDING, TASKS_ROLE, bind_admins, workload_of_tasks},
    unused, up_with, who, with_rights,
};

const ROLE: &str = include_str!("../../../../deploy/extra-capacity/role.yaml");
const BINDING: &str = include_str!("../../../../deploy/extra-capacity/role_binding.yaml");

#[test]
fn extra_machines_are_created_and_deleted_with_exactly_their_rights() {
    in_world(async {
        let management = Log::default();
        let files = [TASKS_ROLE, TASKS_BINDING, ROLE, BINDING];
        let rights = enforced(&files, workload_of_tasks(), &management, &Log::default());
        let world = up_with(with_rights(rights)).await;
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
