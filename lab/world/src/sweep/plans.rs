//! The scenario with a ClusterUpgradePlan: a canary, a wave of two whose second Cluster fails until it is repaired, and a
//! last wave whose Cluster has an upgrade of its own that was cancelled.

use std::collections::BTreeMap;

use refit_kinds::{
    json::{annotation, name, text, whole_condition},
    keys,
    refit::Phase,
};
use refit_runtime::gate::Effect;
use serde_json::{Value, json};

use super::SweepError;
use crate::{
    direct::{Call, Direct, DirectError, USER},
    fleet,
    script::look::newest_update,
    world::{
        World,
        status::{is_final, phase},
    },
};

const UPGRADES: &str = "/apis/refit.dev/v1alpha1/namespaces/default/clusterupgrades";
const PLANS: &str = "/apis/refit.dev/v1alpha1/clusterupgradeplans";
const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines";
/// The Cluster whose host fails.
const FAILS: &str = "site-2";
/// The Cluster with an upgrade of its own.
const HAS_OWN: &str = "site-3";
const STEP: &str = "kubeadm-upgrade";

/// The manifests of the fleet.
pub fn plan_manifests() -> String {
    fleet::manifests(4, "v1.34.2")
}

/// Breaks a host, and cancels an upgrade that an operator had requested.
pub(super) async fn prepare(world: &World) -> Result<(), SweepError> {
    for machine in world.machines() {
        if text(&machine, "/spec/clusterName") == FAILS {
            let node = text(&machine, "/status/nodeRef/name");
            world.with_host(node, |host| host.break_step(STEP, u32::MAX));
        }
    }
    let own = json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "ClusterUpgrade",
        "metadata": {"name": HAS_OWN, "namespace": "default"},
        "spec": {"version": "v1.34.9", "stage": "Abort", "hops": ["v1.34.8"]},
    });
    Direct::new(world.management().clone(), USER).send(Call::create(UPGRADES, own)).await?;
    Ok(())
}

/// Creates the plan.
pub(super) async fn start(world: &World, version: &str) -> Result<(), SweepError> {
    let plan = json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "ClusterUpgradePlan",
        "metadata": {"name": "spring"},
        "spec": {
            "version": version,
            "clustersAtOnce": 1,
            "waves": [
                {
                    "name": "canary", "count": 1, "soakMinutes": 2,
                    "clusterSelector": {"matchLabels": {"ring": "canary"}},
                },
                {"name": "half", "percent": 50},
                {"name": "all"},
            ],
        },
    });
    Direct::new(world.management().clone(), USER).send(Call::create(PLANS, plan)).await?;
    Ok(())
}

/// Once the plan has stopped: repairs the hosts whose updates have failed, and has these tried again.
pub(super) async fn repair(world: &World) -> Result<(), DirectError> {
    if !world.cluster_upgrade_plans().iter().any(|plan| text(plan, "/status/phase") == "Stopped") {
        return Ok(());
    }
    let api = Direct::new(world.management().clone(), USER);
    for machine in world.machines() {
        let Some(update) = newest_update(world, &machine) else { continue };
        let retry = annotation(&machine, keys::RETRY);
        if phase(&update) == Phase::Failed && retry != Some(name(&update)) {
            let node = text(&machine, "/status/nodeRef/name");
            world.with_host(node, lab_simhost::HostState::mend);
            let path = format!("{MACHINES}/{}", name(&machine));
            let again = json!({"metadata": {"annotations": {keys::RETRY: name(&update)}}});
            api.send(Call::merge(path, again)).await?;
        }
    }
    Ok(())
}

/// Whether the plan is completed, and no Cluster is under way.
pub(super) fn is_complete(world: &World) -> bool {
    let all = world.cluster_upgrade_plans();
    !all.is_empty()
        && all.iter().all(|plan| text(plan, "/status/phase") == "Completed")
        && world.node_updates().iter().all(|update| is_final(update))
}

/// Whether an effect is a write of a ClusterUpgrade, a plan, or an event: other sweeps cover the rest.
pub(super) fn is_of_plan(effect: &Effect) -> bool {
    let paths = ["/clusterupgrades", "/clusterupgradeplans", "/events"];
    matches!(effect, Effect::Api { path, .. } if paths.iter().any(|one| path.contains(one)))
}

/// How each plan ends: its phase and reason, its waves, and what was posted.
pub(super) fn ends(world: &World) -> BTreeMap<String, String> {
    let end = |plan: &Value| {
        let status = &plan["status"];
        let waves = status["waves"].as_array().into_iter().flatten();
        let waves = waves.map(|wave| {
            let size = &wave["size"];
            format!("{} has {size}: {}", text(wave, "/name"), wave["counts"])
        });
        let posted = notifications(&status["notifications"]);
        let ready = whole_condition(plan, "Ready").map_or("", |ready| text(ready, "/reason"));
        let waves = waves.collect::<Vec<_>>().join("; ");
        format!("{} {ready}, {waves}, {posted}", text(status, "/phase"))
    };
    world.cluster_upgrade_plans().iter().map(|one| (name(one).to_owned(), end(one))).collect()
}

/// The notifications of an object, with the states of their deliveries.
pub(super) fn notifications(all: &Value) -> String {
    let one = |one: &Value| {
        let deliveries = one["deliveries"].as_array().into_iter().flatten();
        let states: Vec<&str> = deliveries.map(|one| text(one, "/state")).collect();
        format!("{} {}", text(one, "/event"), states.join("/"))
    };
    all.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}

/// How often each event on a plan, or on a ClusterUpgrade, has occurred.
pub(super) fn events(world: &World) -> BTreeMap<String, u64> {
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    for event in world.management().list_values("", "events", None) {
        let about = &event["involvedObject"];
        if text(about, "/kind").starts_with("ClusterUpgrade") {
            let key = format!(
                "{}/{} {}",
                text(about, "/kind"),
                text(about, "/name"),
                text(&event, "/reason")
            );
            *events.entry(key).or_default() += event["count"].as_u64().unwrap_or(1);
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fleet_has_the_clusters_of_the_scenario() {
        let yaml = plan_manifests();
        for name in [FAILS, HAS_OWN] {
            assert!(yaml.contains(&format!("{{name: {name}, ")), "{yaml}");
        }
    }
}
