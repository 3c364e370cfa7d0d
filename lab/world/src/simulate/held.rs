//! Runs in a namespace that holds replacements: what operators do to owners there, with the controller or without it, and whether
//! a machine waits because it would be replaced.

use refit_core::task::Paused;
use refit_kinds::{
    json::{annotation, annotations, label, name, namespace, text, whole_condition},
    keys, refit,
};
use serde_json::Value;

use super::{
    fault::Setting,
    operator,
    shape::{DEPLOYMENT, Shape},
};
use crate::{
    random::Random,
    script::{look::owners, look::owns, session::Session},
    world::World,
};

/// The namespace of the cluster.
pub(super) const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: default\n  \
     labels: {refit.dev/hold-replacements: enabled}\n---\n";

/// Makes the stream of these runs another one than that of their seeds.
const STREAM: u64 = 0x686f_6c64_0000_0000;

/// Value of [`keys::SINGLE_REPLICA`] with which the only machine of a control plane is updated in place.
const IN_PLACE: &str = "InPlace";

/// How a namespace holds replacements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    is_left_alone: bool,
    is_in_place: bool,
}

impl Held {
    /// Every sixth cluster without an Updater, k8sd or a fleet is held; every one of those if `all`.
    pub(super) fn of_seed(seed: u64, shape: &Shape, all: bool) -> Option<Self> {
        let is_plain = shape.updater.is_none() && shape.snaps.is_none() && shape.fleet.is_none();
        (is_plain && (all || seed % 6 == 1)).then(|| Self::new(seed, all))
    }

    fn new(seed: u64, all: bool) -> Self {
        let is_left_alone = all || Random::new(seed ^ STREAM).chance(2, 3);
        let is_in_place = Random::new(seed ^ STREAM ^ 2).chance(1, 2);
        Self { is_left_alone, is_in_place }
    }

    /// The metadata of a control plane with this many machines: every other one of one machine asks to have it updated in place.
    pub(super) fn annotations(self, machines: u32) -> String {
        let asks = self.is_in_place && machines == 1;
        if asks {
            format!(", annotations: {{{}: {IN_PLACE}}}", keys::SINGLE_REPLICA)
        } else {
            String::new()
        }
    }

    /// Whether the controller is absent for long times.
    pub(super) fn is_left_alone(self) -> bool {
        self.is_left_alone
    }

    /// The cluster of the seed; two of three have one machine in a group, or in both.
    pub(super) fn shape(self, seed: u64, shape: Shape) -> Shape {
        let mut random = Random::new(seed ^ STREAM ^ 1);
        let mut shape = Shape { held: Some(self), ..shape };
        if random.chance(2, 3) {
            shape.control_plane = *random.pick(&[1, 1, 3]);
            // The application cannot leave the only machine that it may run on, so that one is not updated in place.
            shape.workers = if shape.tasks.is_some() { 2 } else { *random.pick(&[0, 1, 1, 2]) };
            shape.max_unavailable = 1;
        }
        if shape.workers == 1 {
            (shape.max_surge, shape.max_unavailable) = (1, 0);
        }
        shape.health_check &= shape.workers > 0;
        shape
    }
}

/// The controller is absent, and operators change the owners meanwhile.
pub(super) fn absent(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let minutes = random.between(5, 40);
    let mut lines = vec![format!("kill controller for {minutes}m")];
    if setting.shape.standby {
        lines.push(format!("kill standby for {minutes}m"));
    }
    for _ in 0..random.between(1, 3) {
        lines.push(format!("wait {}s", random.between(1, 20 * minutes)));
        lines.extend(edit(random, setting));
    }
    lines
}

/// What an operator does to an owner.
fn edit(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    match random.between(0, 6) {
        0 => declare(random, setting.shape),
        1 => operator::scale(random, setting.shape),
        2 => vec![format!("delete machine/{}", setting.machine)],
        3 if setting.shape.health_check => operator::remediate(&setting.machine),
        _ => operator::upgrade(setting, false),
    }
}

/// An operator lets Cluster API replace machines, or changes how many more a group may have.
pub(super) fn declare(random: &mut Random, shape: &Shape) -> Vec<String> {
    if shape.workers > 0 && random.chance(1, 3) {
        let surge = format!("md/{DEPLOYMENT} spec.rollout.strategy.rollingUpdate.maxSurge");
        let other = if shape.max_surge == 0 { 1 } else { 2 };
        return operator::passing(random, &surge, &other.to_string(), &shape.max_surge.to_string());
    }
    let (key, value) =
        *random.pick(&[(keys::ON_UNCOVERED, "Replace"), (keys::IN_PLACE, "Disabled")]);
    let owner = shape.owner(random);
    operator::passing(random, &format!("{owner} metadata.annotations.\"{key}\""), value, "-")
}

/// Whether a Machine waits because Cluster API would replace it, the ReplacementHold of its namespace refuses that, and Refit shows
/// so. The only machine of a control plane that asks to have it updated in place does not wait.
pub(super) fn waits(session: &Session, machine: &Value) -> bool {
    let owners = owners(&session.world);
    let Some(owner) = owners.iter().find(|owner| owns(owner, machine)) else { return false };
    let is_only = owner["spec"]["replicas"].as_i64().unwrap_or(1) == 1;
    let is_refused = || {
        let entry = entry(&session.world, owner);
        entry.is_some_and(|entry| entry["create"] == "Refused")
    };
    is_only && is_held(&session.world, machine) && is_refused() && is_shown(&session.world, owner)
}

/// Whether Refit has paused a control plane for an operator to decide, or shows that the surge machine of a MachineDeployment is
/// refused.
fn is_shown(world: &World, owner: &Value) -> bool {
    if owner["kind"] != "MachineDeployment" {
        return annotation(owner, keys::SINGLE_REPLICA) != Some(IN_PLACE)
            && match Paused::of(&annotations(owner)) {
                Paused::ByHold | Paused::ByTask(_) => true,
                Paused::No | Paused::ByOthers => false,
            };
    }
    world.update_groups().iter().any(|group| {
        let is_its = group["spec"]["owner"]["kind"] == owner["kind"]
            && text(group, "/spec/owner/name") == name(owner);
        let blocked = whole_condition(group, "Blocked").filter(|_| is_its);
        blocked.is_some_and(|one| one["status"] == "True" && one["reason"] == "ReplacementHeld")
    })
}

/// Whether replacements are held in the namespace of a Machine.
fn is_held(world: &World, machine: &Value) -> bool {
    let space = world.management().get_value("", "namespaces", "", namespace(machine));
    space.is_some_and(|space| label(&space, keys::HOLD_REPLACEMENTS) == Some("enabled"))
}

/// What the ReplacementHold has about an owner.
fn entry(world: &World, owner: &Value) -> Option<Value> {
    let server = world.management();
    let hold = server.get_value(
        refit::GROUP,
        "replacementholds",
        namespace(owner),
        refit::REPLACEMENT_HOLD,
    )?;
    let owners = hold["spec"]["owners"].as_array()?;
    let is_its =
        |entry: &&Value| entry["kind"] == owner["kind"] && text(entry, "/name") == name(owner);
    owners.iter().find(is_its).cloned()
}
