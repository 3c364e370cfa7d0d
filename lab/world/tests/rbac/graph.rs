//! The right to read a version graph in a ConfigMap, restricted to exactly that.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use lab_world::world::{World, WorldOptions};
use refit_controller::{GraphSource, Settings};
use refit_kinds::{json::text, refit::ClusterUpgrade};
use serde_json::json;

use super::{
    ACCOUNT, Log, NEW, TEST, create_object, enforced, granted, in_world, missing, unused, up_with,
    with_rights, workload,
};

const ROLE: &str = include_str!("../../../../deploy/version-graph/role.yaml");
const BINDING: &str = include_str!("../../../../deploy/version-graph/role_binding.yaml");
const NAME: &str = "refit-version-graph";

async fn reason_of_upgrade(world: &World) -> String {
    world.pass(Duration::from_mins(3)).await;
    let upgrade = world.cluster_upgrades().remove(0);
    let conditions = upgrade["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    ready.map(|ready| text(ready, "/reason").to_owned()).unwrap_or_default()
}

#[test]
fn a_version_graph_in_a_config_map_is_read_with_exactly_its_right() {
    in_world(async {
        let management = Log::default();
        let source = GraphSource::ConfigMap { namespace: "refit-system".into(), name: NAME.into() };
        let settings = Settings { version_graph: Some(source), ..Settings::default() };
        let rights = enforced(&[ROLE, BINDING], workload(), &management, &Log::default());
        let world = up_with(WorldOptions { settings, ..with_rights(rights) }).await;
        let client = world.client(TEST).unwrap();
        let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), "default");
        let spec = json!({"version": NEW, "startAt": "2999-01-01T00:00:00Z"});
        create_object(&upgrades, json!({"metadata": {"name": "edge-1"}, "spec": spec})).await;
        assert_eq!(reason_of_upgrade(&world).await, "GraphUnknown");
        let maps: Api<ConfigMap> = Api::namespaced(client, "refit-system");
        let graph = json!({"nodes": [{"version": NEW}]}).to_string();
        let map = json!({"metadata": {"name": NAME}, "data": {"graph.json": graph}});
        create_object(&maps, map).await;
        assert_eq!(reason_of_upgrade(&world).await, "VersionNotInGraph");

        let asked = management.of(ACCOUNT);
        let rights = granted(world.management(), &[("roles", "refit-system", NAME)]);
        assert_eq!(missing(&asked, false), Vec::<String>::new());
        assert_eq!(unused(&rights, &asked), BTreeSet::new());
    });
}
