//! The end state of a run, as far as runs are compared.

use std::collections::BTreeMap;

use refit_kinds::{
    json::{annotations, flag, is_true, name, namespace, text},
    keys,
};
use serde::{Deserialize, Serialize};

use super::{holds, plans, snaps, tasks};
use crate::world::{
    World, lock,
    status::{PASSING, phase},
};

/// The end state of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndState {
    /// Machines by name.
    pub machines: BTreeMap<String, MachineEnd>,
    /// Phases of the NodeUpdates of each Machine, sorted. Their names are not compared: what
    /// matters is that no update is requested twice.
    pub node_updates: BTreeMap<String, Vec<String>>,
    /// Replicas and version of the MachineSets of each MachineDeployment, sorted. Names are not
    /// compared.
    pub machine_sets: BTreeMap<String, Vec<String>>,
    /// Claimed slots, as `group/machine`.
    pub slots: Vec<String>,
    /// How each UpgradeTask ended.
    #[serde(default)]
    pub tasks: BTreeMap<String, String>,
    /// How each ClusterUpgrade ended.
    #[serde(default)]
    pub cluster_upgrades: BTreeMap<String, String>,
    /// How each ClusterUpgradePlan ended.
    #[serde(default)]
    pub plans: BTreeMap<String, String>,
    /// How often each event on a ClusterUpgrade or a plan has occurred.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// What tasks have left on owners.
    #[serde(default)]
    pub left_on_owners: Vec<String>,
    /// What Machines and owners show of upgrades by annotation.
    #[serde(default)]
    pub annotations: BTreeMap<String, BTreeMap<String, String>>,
    /// What the ReplacementHolds contain.
    #[serde(default)]
    pub holds: Vec<String>,
}

/// End state of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineEnd {
    /// uid of the Machine.
    pub uid: String,
    /// Provider ID of the Machine.
    pub provider_id: String,
    /// Name and uid of the Node.
    pub node: String,
    /// Version that the Machine requests.
    pub wanted_version: String,
    /// Version of the kubelet.
    pub kubelet_version: String,
    /// Boot ID of the Node.
    pub boot_id: String,
    /// Number of boots of the host.
    pub boots: u32,
    /// What the machine's snap was last refreshed to.
    #[serde(default)]
    pub snap: String,
    /// How often each command ran that is not idempotent, and how often the snap was refreshed.
    pub runs: BTreeMap<String, u32>,
    /// Whether the Machine is available.
    pub available: bool,
    /// Whether the Node is cordoned.
    pub cordoned: bool,
    /// What Updaters have done with the infrastructure machine.
    pub infrastructure: BTreeMap<String, String>,
    /// Annotations left on Machine and Node that should have been removed.
    pub left: Vec<String>,
}

impl EndState {
    /// The current state of a world.
    pub fn of(world: &World) -> Self {
        let machines = world
            .machines()
            .iter()
            .map(|machine| (name(machine).to_owned(), machine_end(world, machine)))
            .collect();
        let mut node_updates: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for update in world.node_updates() {
            let mut of = text(&update, "/spec/machineRef/name").to_owned();
            if !update["spec"]["goal"]["certificates"].is_null() {
                of.push_str(" for certificates");
            }
            let phases = node_updates.entry(of);
            let phases = phases.or_default();
            phases.push(format!("{:?}", phase(&update)));
            phases.sort();
        }
        let slots = world
            .update_groups()
            .iter()
            .flat_map(|group| {
                let slots = group["status"]["slots"].as_array().cloned();
                let group = name(group).to_owned();
                slots
                    .into_iter()
                    .flatten()
                    .map(move |slot| format!("{group}/{}", text(&slot, "/machine")))
            })
            .collect();
        let mut machine_sets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for set in world.machine_sets() {
            let deployment = set["metadata"]["labels"][keys::DEPLOYMENT_NAME].as_str();
            let wants = format!(
                "{} machines at {}",
                set["spec"]["replicas"],
                text(&set, "/spec/template/spec/version")
            );
            let sets = machine_sets.entry(deployment.unwrap_or_default().to_owned());
            let sets = sets.or_default();
            sets.push(wants);
            sets.sort();
        }
        let mut left_on_owners = tasks::left_on_owners(world);
        left_on_owners.extend(snaps::left_locks(world));
        let (tasks, annotations) = (tasks::ends(world), snaps::shown(world));
        let cluster_upgrades = tasks::cluster_upgrade_ends(world);
        Self {
            machines,
            node_updates,
            machine_sets,
            slots,
            tasks,
            cluster_upgrades,
            plans: plans::ends(world),
            events: plans::events(world),
            left_on_owners,
            annotations,
            holds: holds::shown(world),
        }
    }

    /// Problems that show that the run is unfinished or has failed.
    pub fn unrest(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (machine, end) in &self.machines {
            // A refresh of the snap leaves the Machine's version as it is.
            if end.snap.is_empty() && end.kubelet_version != end.wanted_version {
                let (is, wanted) = (&end.kubelet_version, &end.wanted_version);
                problems.push(format!("{machine} runs {is}, not {wanted}"));
            }
            if !end.available {
                problems.push(format!("{machine} is not available"));
            }
            if end.cordoned {
                problems.push(format!("the node of {machine} is cordoned"));
            }
            if !end.left.is_empty() {
                problems.push(format!("{machine} still has {}", end.left.join(", ")));
            }
        }
        for (machine, phases) in &self.node_updates {
            // In a fleet, one Cluster fails first.
            let is_repaired = !self.plans.is_empty() && phases == &["Failed", "Succeeded"];
            if phases != &["Succeeded"] && !is_repaired {
                problems.push(format!("the NodeUpdates of {machine} are {phases:?}"));
            }
        }
        for slot in &self.slots {
            problems.push(format!("slot {slot} is still taken"));
        }
        for left in &self.left_on_owners {
            problems.push(format!("left on an owner: {left}"));
        }
        problems
    }

    /// The differences from the expected end state, as text.
    pub fn differences(&self, expected: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        compare(&self.machines, &expected.machines, "Machine", &mut problems);
        compare(&self.node_updates, &expected.node_updates, "NodeUpdates of", &mut problems);
        compare(&self.machine_sets, &expected.machine_sets, "MachineSets of", &mut problems);
        if self.slots != expected.slots {
            problems.push(format!("slots {:?}, expected {:?}", self.slots, expected.slots));
        }
        compare(&self.tasks, &expected.tasks, "UpgradeTask", &mut problems);
        let ended = &self.cluster_upgrades;
        compare(ended, &expected.cluster_upgrades, "ClusterUpgrade", &mut problems);
        compare(&self.plans, &expected.plans, "ClusterUpgradePlan", &mut problems);
        compare(&self.events, &expected.events, "event", &mut problems);
        compare(&self.annotations, &expected.annotations, "annotations of", &mut problems);
        if self.left_on_owners != expected.left_on_owners {
            let (found, expected) = (&self.left_on_owners, &expected.left_on_owners);
            problems.push(format!("left on owners {found:?}, expected {expected:?}"));
        }
        problems
    }
}

fn compare<T: PartialEq + std::fmt::Debug + Serialize>(
    found: &BTreeMap<String, T>,
    expected: &BTreeMap<String, T>,
    what: &str,
    problems: &mut Vec<String>,
) {
    for (name, expected) in expected {
        match found.get(name) {
            None => problems.push(format!("{what} {name} is missing")),
            Some(found) if found != expected => {
                problems.push(format!("{what} {name}: {}", fields(found, expected)));
            }
            Some(_) => {}
        }
    }
    for name in found.keys().filter(|name| !expected.contains_key(*name)) {
        problems.push(format!("{what} {name} is unexpected"));
    }
}

/// The names of the fields that differ.
fn fields<T: Serialize>(found: &T, expected: &T) -> String {
    let json = |value: &T| serde_json::to_value(value).unwrap_or_default();
    let (found, expected) = (json(found), json(expected));
    let (Some(f), Some(e)) = (found.as_object(), expected.as_object()) else {
        return format!("{found}, expected {expected}");
    };
    let differ = e.iter().filter(|(key, value)| f.get(*key) != Some(value));
    differ
        .map(|(key, value)| format!("{key} {}, expected {value}", f[key]))
        .collect::<Vec<_>>()
        .join("; ")
}

fn machine_end(world: &World, machine: &serde_json::Value) -> MachineEnd {
    let node = world.node_of(machine);
    let cluster = text(machine, "/spec/clusterName");
    let host = format!("{}/{cluster}/{}", namespace(machine), name(machine));
    let (boots, mut runs) = lock(&world.inner.hosts)
        .get(&host)
        .map(|host| {
            let state = lock(&host.state);
            (state.boots, state.runs.clone())
        })
        .unwrap_or_default();
    let mut left: Vec<String> = PASSING
        .iter()
        .chain([&keys::TASK])
        .filter(|key| machine["metadata"]["annotations"].get(**key).is_some())
        .map(|key| (*key).to_owned())
        .collect();
    let of_node = |pointer: &str| {
        let node = node.as_deref();
        node.map(|node| text(node, pointer).to_owned()).unwrap_or_default()
    };
    if let Some(node) = &node
        && node["metadata"]["annotations"].get(keys::CORDONED_BY).is_some()
    {
        left.push(keys::CORDONED_BY.to_owned());
    }
    let (snap, refreshes) = snaps::snap(world, machine);
    if refreshes > 0 {
        runs.insert("snap-refresh".to_owned(), refreshes);
    }
    MachineEnd {
        snap,
        uid: text(machine, "/metadata/uid").to_owned(),
        provider_id: text(machine, "/spec/providerID").to_owned(),
        node: format!("{} {}", of_node("/metadata/name"), of_node("/metadata/uid")),
        wanted_version: text(machine, "/spec/version").to_owned(),
        kubelet_version: of_node("/status/nodeInfo/kubeletVersion"),
        boot_id: of_node("/status/nodeInfo/bootID"),
        boots,
        runs,
        available: is_true(machine, refit_kinds::conditions::AVAILABLE),
        cordoned: node.as_deref().is_some_and(|node| flag(node, "/spec/unschedulable")),
        infrastructure: updater_marks(world, machine),
        left,
    }
}

/// The annotations that the server of `examples/hook-updater` writes.
fn updater_marks(world: &World, machine: &serde_json::Value) -> BTreeMap<String, String> {
    let reference = &machine["spec"]["infrastructureRef"];
    let mirror = &world.inner.management_mirror;
    let place = mirror.place(text(reference, "/apiGroup"), text(reference, "/kind"));
    let object =
        place.and_then(|place| mirror.get(&place.id, namespace(machine), text(reference, "/name")));
    let marks = object.map(|object| annotations(&object)).unwrap_or_default();
    marks.into_iter().filter(|(key, _)| key.starts_with("memory.example/")).collect()
}
