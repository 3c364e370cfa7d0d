use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_kinds::refit::{NodeUpdate, Phase};
use serde_json::json;

use super::*;

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.34.9";
const NEXT_MINOR: &str = "v1.35.2";

/// MachineDeployment `md`, whose Machines and NodeUpdates are named by letters.
struct World {
    requested: StatedVersion,
    machines: Vec<Machine>,
    updates: Vec<NodeUpdate>,
    cluster: Cluster,
    control_plane: Option<KubernetesVersion>,
}

fn world() -> World {
    World {
        requested: NEW.into(),
        machines: Vec::new(),
        updates: Vec::new(),
        cluster: serde_json::from_value(json!({"metadata": {"name": "edge-1"}, "spec": {}}))
            .unwrap(),
        control_plane: NEW.parse().ok(),
    }
}

impl World {
    fn machine(mut self, name: &str, version: &str) -> Self {
        let machine = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"clusterName": "edge-1", "version": version},
        });
        self.machines.push(serde_json::from_value(machine).unwrap());
        self
    }

    /// A Machine that was created at this second.
    fn created(self, name: &str, version: &str, second: i64) -> Self {
        let mut world = self.machine(name, version);
        let machine = world.machines.last_mut().unwrap();
        machine.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
        world
    }

    fn update(
        mut self,
        machine: &str,
        (from, to): (&str, &str),
        phase: Phase,
        second: i64,
    ) -> Self {
        let update = json!({
            "metadata": {"name": format!("{machine}-{second}")},
            "spec": {"machineRef": {"name": machine, "uid": machine}, "origin": "Task",
                "ordinal": second, "goal": {"kubernetesVersion": to}, "goalHash": "h"},
            "status": {"phase": phase, "fromVersion": from},
        });
        let mut update: NodeUpdate = serde_json::from_value(update).unwrap();
        update.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
        self.updates.push(update);
        self
    }

    /// A Machine that the upgrade has brought to a version.
    fn upgraded(self, name: &str, from: &str, to: &str) -> Self {
        self.machine(name, to).update(name, (from, to), Phase::Succeeded, 20)
    }

    fn before(&self) -> Result<Option<String>, StaysUpgraded> {
        let found = version_before(&WorkersSeen {
            name: "md",
            requested: &self.requested,
            machines: self.machines.iter().collect(),
            updates: self.updates.iter().collect(),
            cluster: &self.cluster,
            control_plane: self.control_plane.as_ref(),
            since: Timestamp::from_second(10).unwrap(),
        });
        Ok(found?.map(|version| version.to_string()))
    }
}

#[test]
fn workers_return_to_the_version_that_their_kubelets_had() {
    let in_progress = ("", NEW);
    let old = World { requested: OLD.into(), ..world() };
    let rows = [
        ("all are upgraded", world().upgraded("a", OLD, NEW).upgraded("b", OLD, NEW), Some(OLD)),
        ("others wait", world().upgraded("a", OLD, NEW).machine("b", OLD), Some(OLD)),
        (
            "one is in progress",
            world().machine("a", OLD).update("a", in_progress, Phase::Staging, 20),
            Some(OLD),
        ),
        (
            "one was stopped",
            world().machine("a", OLD).update("a", (OLD, NEW), Phase::Stopped, 20),
            Some(OLD),
        ),
        ("only the spec was set", world().machine("a", OLD), Some(OLD)),
        (
            "over two versions",
            world().machine("a", NEW).update("a", (OLD, "v1.34.5"), Phase::Succeeded, 20).update(
                "a",
                ("v1.34.5", NEW),
                Phase::Succeeded,
                30,
            ),
            Some(OLD),
        ),
        (
            "one has returned",
            world()
                .machine("a", OLD)
                .update("a", (OLD, NEW), Phase::Succeeded, 20)
                .update("a", (NEW, OLD), Phase::Succeeded, 30)
                .upgraded("b", OLD, NEW),
            Some(OLD),
        ),
        (
            "all have returned",
            World { requested: OLD.into(), ..world() }
                .machine("a", OLD)
                .update("a", (OLD, NEW), Phase::Succeeded, 20)
                .update("a", (NEW, OLD), Phase::Succeeded, 30),
            None,
        ),
        ("it was not their turn", old.machine("a", OLD), None),
        (
            "upgraded before the upgrade",
            world().machine("a", NEW).update("a", (OLD, NEW), Phase::Succeeded, 5),
            None,
        ),
        ("no worker", world(), None),
        (
            "one was created meanwhile",
            world().upgraded("a", OLD, NEW).created("b", NEW, 20),
            Some(OLD),
        ),
        (
            "one was created meanwhile, and has returned",
            world()
                .machine("a", OLD)
                .update("a", (OLD, NEW), Phase::Succeeded, 20)
                .created("b", OLD, 20)
                .update("b", (NEW, OLD), Phase::Succeeded, 30),
            Some(OLD),
        ),
        ("all were created meanwhile", world().created("a", NEW, 20), None),
    ];
    for (case, world, expected) in rows {
        assert_eq!(world.before(), Ok(expected.map(str::to_owned)), "{case}");
    }
}

#[test]
fn a_task_whose_workers_can_never_return_is_refused_before_a_spec_is_changed() {
    let refusal = |of_topology, to: &str, versions: &[&str]| {
        let versions: Vec<KubernetesVersion> =
            versions.iter().map(|version| version.parse().unwrap()).collect();
        never_returns("md", of_topology, &to.parse().unwrap(), versions.iter()).err()
    };
    assert_eq!(refusal(false, OLD, &[NEW, OLD]), None);
    assert_eq!(refusal(false, NEW, &[OLD]), None, "what is older is upgraded");
    let topology = refusal(true, OLD, &[NEW]);
    assert!(matches!(topology, Some(StaysUpgraded::Topology { .. })), "{topology:?}");
    let minor = refusal(false, OLD, &[NEW, NEXT_MINOR]).map(|why| why.to_string());
    assert!(minor.unwrap().contains("from v1.35.2 back to v1.34.2"));
}

#[test]
fn a_worker_that_cannot_return_is_named_with_its_remedy() {
    let upgraded = || world().upgraded("a", OLD, NEW);
    let mut of_topology = upgraded();
    of_topology.cluster = serde_json::from_value(json!({
        "metadata": {"name": "edge-1"}, "spec": {"topology": {"version": NEW}},
    }))
    .unwrap();
    let mut by_provider = upgraded();
    let part = json!([
        {"updater": "kubeadm", "action": "Update"}, {"updater": "nodes", "action": "Update"},
    ]);
    by_provider.updates[0].spec.parts = serde_json::from_value(part).unwrap();
    let too_old = World { control_plane: "v1.38.0".parse().ok(), ..upgraded() };
    let next_minor = World { requested: NEXT_MINOR.into(), ..world() };
    let rows = [
        ("MachineDeployment md belongs to a Cluster with a topology", of_topology),
        (
            "the updates of b in MachineDeployment md have failed: `refit retry md/md`",
            upgraded().machine("b", OLD).update("b", (OLD, NEW), Phase::Failed, 20),
        ),
        (
            "the version that b in MachineDeployment md had before is not known",
            upgraded().upgraded("b", "", NEW),
        ),
        (
            "MachineDeployment md had several versions before: v1.34.2 (a), v1.34.5 (b)",
            upgraded().upgraded("b", "v1.34.5", NEW),
        ),
        ("md had several versions before: v1.34.2 (a), v1.34.9 (b)", upgraded().machine("b", NEW)),
        (
            "MachineDeployment md would go from v1.35.2 back to v1.34.2",
            next_minor.upgraded("a", OLD, NEXT_MINOR),
        ),
        ("Updater nodes has updated workers of MachineDeployment md", by_provider),
        (
            "MachineDeployment md cannot go back: a kubelet of v1.34.2 is more than 3 minors",
            too_old,
        ),
    ];
    for (expected, world) in rows {
        let why = world.before().unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
        assert!(why.contains("`refit "), "a remedy: {why}");
    }
}

#[test]
fn hosts_go_back_to_patch_releases_of_their_minor_version_only() {
    let rows = [
        (NEW, OLD, true),
        (OLD, NEW, false),
        (OLD, OLD, false),
        (NEXT_MINOR, NEW, false),
        ("v2.34.9", OLD, false),
    ];
    for (from, to, expected) in rows {
        assert_eq!(is_patch(&from.parse().unwrap(), &to.parse().unwrap()), expected, "{from} {to}");
    }
}
