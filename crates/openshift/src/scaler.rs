//! Extra nodes for the Pods of drained ones, while an upgrade runs (`docs/facts/openshift-upgrades.md#extra-nodes`).
//!
//! Each MachineSet of the machine pool `worker`, and of the configured pools, has a clone with one Machine meanwhile.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};

use crate::{
    Compat,
    config::ScaleConfig,
    kinds::{Machine, MachineSet},
};

/// Label of a MachineSet: its machine pool.
pub const POOL: &str = "hive.openshift.io/machine-pool";
/// Label of clones and their Machines, with the value `true`.
pub const UPGRADE: &str = "upgrade.managed.openshift.io";
/// Label of a Machine: its MachineSet.
pub const MACHINE_SET: &str = "machine.openshift.io/cluster-api-machineset";
/// The machine pool of the workers.
const WORKER: &str = "worker";

/// Why extra nodes can be neither added nor removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// There is nothing to clone.
    #[error(
        "failed to get any machinesets to scale: expected a MachineSet with the label \
         hive.openshift.io/machine-pool and the value worker, or one that matches scale.extraMachinePools"
    )]
    NoOriginals,
    /// A MachineSet has a field of another type than the labels that are to be added.
    #[error("MachineSet {machine_set:?} has an invalid {field}, expected an object")]
    Malformed {
        /// The MachineSet.
        machine_set: String,
        /// The field.
        field: &'static str,
    },
    /// A Machine that runs or is being deleted has no node that could be drained.
    #[error("an upgrade machine {0} exists but has no node association")]
    NoNode(String),
    /// A node could not be drained in time.
    #[error("{}", match .compat {
        Compat::Repaired => format!("failed to drain the extra node {} in time, remove what blocks its Pods", .node),
        Compat::Strict => .node.clone(),
    })]
    DrainFailed {
        /// The node: its series of the gauge for failed drains is set.
        node: String,
        /// The original shows the name of the node only.
        compat: Compat,
    },
}

/// What is known of Machines, each list read once per look.
#[derive(Clone, Copy, Debug)]
pub struct ScaleSeen<'a> {
    /// The MachineSets of the namespace of the machine API.
    pub sets: &'a [MachineSet],
    /// The Machines of that namespace.
    pub machines: &'a [Machine],
    /// All Nodes.
    pub nodes: &'a [Node],
}

/// How extra nodes are added.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleUp {
    /// The clones to be created, in this order; the first error is that of the step.
    pub create: Vec<MachineSet>,
    /// How far the step is.
    pub state: ScaleUpState,
}

/// How far the step is that adds extra nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleUpState {
    /// It is done: no extra nodes are requested, or the upgrade was commenced.
    Unneeded,
    /// It is done without extra nodes: there is nothing to clone. `StateScaleSkipped` is sent; if it cannot be, that is
    /// logged.
    Skipped,
    /// It waits, for this reason.
    Waits(String),
    /// It is done without all extra nodes, for this reason: the gauge for failed scaling is set to 1 and `StateSkipped`
    /// sent. If it cannot be sent, that is the error of the step.
    TimedOut(String),
    /// It is done: the gauge for failed scaling is set to 0.
    Ready,
}

/// How extra nodes are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleDown {
    /// The MachineSets to be deleted first.
    pub delete: Vec<String>,
    /// The nodes whose drain is then brought forward, unless the upgrade has failed; or the error of the step.
    pub drain: Result<Vec<String>, ScaleError>,
    /// The Machines that exist yet.
    pub left: Vec<String>,
}

/// How far the step is that removes extra nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleDownState {
    /// It is done: all series of the gauge for failed drains are removed.
    Done,
    /// It waits, for this reason.
    Waits(String),
}

/// Whether a cluster has a MachineSet of the pool `worker`.
pub fn can_scale(sets: &[MachineSet]) -> bool {
    sets.iter().any(|set| pool(set) == Some(WORKER))
}

/// Decides how extra nodes are added. `reserved` is `spec.capacityReservation`.
///
/// # Errors
/// There is nothing to clone although pools are configured, or a MachineSet cannot be cloned.
pub fn scale_up(
    (reserved, commenced): (bool, bool),
    seen: ScaleSeen<'_>,
    config: &ScaleConfig,
    now: Timestamp,
    compat: Compat,
) -> Result<ScaleUp, ScaleError> {
    let only = |state| Ok(ScaleUp { create: Vec::new(), state });
    if !reserved || commenced {
        return only(ScaleUpState::Unneeded);
    }
    if !can_scale(seen.sets) && config.extra_machine_pools.is_empty() {
        return only(ScaleUpState::Skipped);
    }
    let originals = originals(seen.sets, config);
    if originals.is_empty() {
        return Err(ScaleError::NoOriginals);
    }
    let clones: Vec<&MachineSet> = clones(seen.sets).collect();
    let lacks_clone = |set: &&&MachineSet| {
        let name = clone_name(set);
        !clones.iter().any(|clone| clone.name_any() == name)
    };
    let lacking: Vec<&MachineSet> = match compat {
        Compat::Repaired => originals.iter().filter(lacks_clone).copied().collect(),
        // It stops at the first clone that it finds: those after it are never created.
        Compat::Strict => originals.iter().take_while(lacks_clone).copied().collect(),
    };
    let create = lacking.into_iter().map(clone_of).collect::<Result<Vec<_>, _>>()?;
    let waits = match compat {
        Compat::Repaired => !create.is_empty(),
        Compat::Strict => create.len() == originals.len(),
    };
    let state = if waits {
        let names: Vec<String> = create.iter().map(MachineSet::name_any).collect();
        ScaleUpState::Waits(format!("creating the MachineSets {}", names.join(", ")))
    } else {
        readiness(&clones, seen, config, now, compat)
    };
    Ok(ScaleUp { create, state })
}

/// Workers come first; MachineSets of configured pools follow.
fn originals<'a>(sets: &'a [MachineSet], config: &ScaleConfig) -> Vec<&'a MachineSet> {
    let workers = sets.iter().filter(|set| pool(set) == Some(WORKER));
    let extra = sets.iter().filter(|set| {
        pool(set).is_some_and(|pool| {
            pool != WORKER && config.extra_machine_pools.iter().any(|pattern| pattern.matches(pool))
        })
    });
    workers.chain(extra).collect()
}

/// The clone of a MachineSet: its template and selector with the labels of the clone, and one Machine.
///
/// # Errors
/// [`ScaleError::Malformed`].
pub fn clone_of(original: &MachineSet) -> Result<MachineSet, ScaleError> {
    let name = clone_name(original);
    let mut clone = MachineSet::new(&name, original.spec.clone());
    clone.metadata.namespace.clone_from(&original.metadata.namespace);
    clone.metadata.labels = Some([(UPGRADE.to_owned(), "true".to_owned())].into());
    clone.spec.replicas = Some(1);
    for (field, path) in [("template", &["metadata", "labels"][..]), ("selector", &["matchLabels"])]
    {
        let value = clone.spec.rest.entry(field.to_owned()).or_default();
        let labels = path
            .iter()
            .try_fold(value, |value, key| Some(object(value)?.entry(*key).or_insert(Value::Null)));
        let labels = labels
            .and_then(object)
            .ok_or_else(|| ScaleError::Malformed { machine_set: original.name_any(), field })?;
        labels.insert(UPGRADE.to_owned(), json!("true"));
        labels.insert(MACHINE_SET.to_owned(), json!(name));
    }
    Ok(clone)
}

/// An object, also where there is nothing yet.
fn object(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

fn readiness(
    clones: &[&MachineSet],
    seen: ScaleSeen<'_>,
    config: &ScaleConfig,
    now: Timestamp,
    compat: Compat,
) -> ScaleUpState {
    let not_ready = clones.iter().find_map(|clone| Some((clone, not_ready(clone, seen)?)));
    let Some((clone, NotReady { why, original_gives_up })) = not_ready else {
        return ScaleUpState::Ready;
    };
    let gives_up = match compat {
        Compat::Repaired => true,
        Compat::Strict => original_gives_up,
    };
    let created = clone.metadata.creation_timestamp.as_ref();
    let elapsed = created.map(|created| now.duration_since(created.0));
    if gives_up && elapsed.is_some_and(|elapsed| elapsed > config.timeout) {
        ScaleUpState::TimedOut(why)
    } else {
        ScaleUpState::Waits(why)
    }
}

struct NotReady {
    why: String,
    /// Whether the original gives up at the timeout.
    original_gives_up: bool,
}

fn not_ready(clone: &MachineSet, seen: ScaleSeen<'_>) -> Option<NotReady> {
    let name = clone.name_any();
    let (replicas, ready) =
        clone.status.as_ref().map_or((0, 0), |status| (status.replicas, status.ready_replicas));
    let because = |original_gives_up, why| {
        Some(NotReady { why: format!("MachineSet {name} {why}"), original_gives_up })
    };
    if replicas != ready {
        return because(true, format!("has {ready} of {replicas} Machines ready"));
    }
    let mut machines = seen.machines.iter().filter(|machine| {
        is_of_upgrade(*machine) && machine.labels().get(MACHINE_SET) == Some(&name)
    });
    let (Some(machine), None) = (machines.next(), machines.next()) else {
        return because(false, "does not have exactly one Machine".to_owned());
    };
    let Some(node) = node_of(machine) else {
        return because(false, format!("has Machine {} without a node", machine.name_any()));
    };
    let Some(found) = seen.nodes.iter().find(|one| one.metadata.name.as_deref() == Some(node))
    else {
        return because(false, format!("has node {node}, which does not exist"));
    };
    if is_ready(found) {
        None
    } else {
        because(true, format!("has node {node}, which is not Ready"))
    }
}

/// Decides how extra nodes are removed; `None` if none were requested: the step is done.
pub fn scale_down(reserved: bool, sets: &[MachineSet], machines: &[Machine]) -> Option<ScaleDown> {
    if !reserved {
        return None;
    }
    let stays = |set: &&MachineSet| set.metadata.deletion_timestamp.is_none();
    let left: Vec<&Machine> = machines.iter().filter(|machine| is_of_upgrade(*machine)).collect();
    let runs = |machine: &&&Machine| {
        let phase = machine.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Running" | "Deleting"))
    };
    let drained = left.iter().filter(runs).map(|machine| {
        let node = node_of(machine).map(str::to_owned);
        node.ok_or_else(|| ScaleError::NoNode(machine.name_any()))
    });
    Some(ScaleDown {
        delete: clones(sets).filter(stays).map(MachineSet::name_any).collect(),
        drain: drained.collect(),
        left: left.into_iter().map(Machine::name_any).collect(),
    })
}

impl ScaleDown {
    /// How far the step is, after its writes. `failed` are the nodes that could not be drained in time.
    ///
    /// # Errors
    /// A Machine has no node, or a node could not be drained in time.
    pub fn state(&self, failed: &[String], compat: Compat) -> Result<ScaleDownState, ScaleError> {
        let drained = self.drain.as_ref().map_err(Clone::clone)?;
        match drained.iter().find(|node| failed.contains(node)) {
            Some(node) => Err(ScaleError::DrainFailed { node: node.clone(), compat }),
            None if self.left.is_empty() => Ok(ScaleDownState::Done),
            None => {
                let left = self.left.join(", ");
                Ok(ScaleDownState::Waits(format!("waiting for the removal of Machines {left}")))
            }
        }
    }
}

fn pool(set: &MachineSet) -> Option<&str> {
    set.labels().get(POOL).map(String::as_str)
}

fn clones(sets: &[MachineSet]) -> impl Iterator<Item = &MachineSet> {
    sets.iter().filter(|set| is_of_upgrade(*set))
}

fn clone_name(original: &MachineSet) -> String {
    format!("{}-upgrade", original.name_any())
}

fn is_of_upgrade(object: &impl kube::Resource) -> bool {
    object.labels().get(UPGRADE).is_some_and(|value| value == "true")
}

fn node_of(machine: &Machine) -> Option<&str> {
    let node = machine.status.as_ref()?.node_ref.as_ref()?;
    Some(&node.name)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True")
}
