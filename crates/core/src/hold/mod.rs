//! Which Machines of an owner Cluster API may create and delete.
//!
//! Cluster API replaces some machines without asking any extension. An admission policy refuses what would do that; it
//! reads a [`ReplacementHold`](refit_kinds::refit::ReplacementHold), and this module decides its entries. Only
//! the numbers of Machines count: a further Machine is there to replace another one, unless its owner lacks one or has
//! declared that a rollout surges; and a Machine that an owner does not have too many of is deleted to be replaced.

mod deletable;
mod only_machine;
#[cfg(test)]
mod tests;

pub use self::only_machine::{Only, Step, TaskSeen, may_be_outdated};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{
    KubeadmControlPlane, Machine, MachineDeployment, MachineSet, MachineSpec,
};
use refit_kinds::refit::{Admission, HeldKind, HeldOwner};

use self::deletable::Deletable;
use crate::change::{OnUncovered, Policy};

/// What is known of an owner.
#[derive(Clone, Debug)]
pub struct OwnerSeen<'a> {
    /// Its kind.
    pub kind: HeldKind,
    /// Its name.
    pub name: String,
    /// Desired number of Machines.
    pub replicas: i64,
    /// How many Machines more its strategy allows during a rollout.
    pub max_surge: i64,
    /// Machines that are older are to be replaced, from this time on.
    pub rollout_after: Option<Timestamp>,
    /// Machines are to be replaced so long before their certificates expire.
    pub replaced_before_expiry: Option<SignedDuration>,
    /// Whether it or its Cluster is being deleted.
    pub is_deleting: bool,
    /// The policy of it and its Cluster.
    pub policy: Policy,
    /// Its Machines.
    pub machines: Vec<&'a Machine>,
    /// Its MachineSets, if it is a MachineDeployment.
    pub sets: Vec<&'a MachineSet>,
    /// The template of its Machines, if it is a MachineDeployment.
    pub template: MachineSpec,
}

/// What stands in a ReplacementHold for an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The entry; `None` if Cluster API may do everything.
    pub entry: Option<HeldOwner>,
    /// When it may be another one although nothing changes.
    pub again: Option<Timestamp>,
}

impl<'a> OwnerSeen<'a> {
    /// A control plane.
    pub fn control_plane(
        plane: &KubeadmControlPlane,
        policy: Policy,
        machines: Vec<&'a Machine>,
    ) -> Self {
        let rollout = plane.spec.rollout.as_ref();
        let before = rollout.and_then(|rollout| rollout.before.as_ref());
        let days = before.and_then(|before| before.certificates_expiry_days);
        Self {
            kind: HeldKind::KubeadmControlPlane,
            name: plane.name_any(),
            replicas: plane.spec.replicas.unwrap_or(1).into(),
            max_surge: plane.max_surge(),
            rollout_after: rollout.and_then(|rollout| parsed(rollout.after.as_deref())),
            replaced_before_expiry: days
                .map(|days| SignedDuration::from_hours(24 * i64::from(days))),
            is_deleting: plane.metadata.deletion_timestamp.is_some(),
            policy,
            machines,
            sets: Vec::new(),
            template: MachineSpec::default(),
        }
    }

    /// A MachineDeployment.
    pub fn deployment(
        deployment: &MachineDeployment,
        policy: Policy,
        machines: Vec<&'a Machine>,
        sets: Vec<&'a MachineSet>,
    ) -> Self {
        let replicas = deployment.spec.replicas.unwrap_or(1).into();
        let rollout = deployment.spec.rollout.as_ref();
        Self {
            kind: HeldKind::MachineDeployment,
            name: deployment.name_any(),
            replicas,
            max_surge: deployment.max_surge(replicas),
            rollout_after: rollout.and_then(|rollout| parsed(rollout.after.as_deref())),
            replaced_before_expiry: None,
            is_deleting: deployment.metadata.deletion_timestamp.is_some(),
            policy,
            machines,
            sets,
            template: deployment.spec.template.spec.clone(),
        }
    }

    /// Decides what Cluster API may do to the Machines.
    pub fn held(&self, now: Timestamp) -> Held {
        let (due, later): (Vec<Timestamp>, Vec<Timestamp>) =
            self.replacements_by_date().partition(|at| *at <= now);
        let again = later.into_iter().min();
        let is_declared = self.policy.disabled
            || self.policy.on_uncovered == OnUncovered::Replace
            || self.is_deleting
            || !due.is_empty();
        if is_declared {
            return Held { entry: None, again };
        }
        let stays = |machine: &&&Machine| machine.metadata.deletion_timestamp.is_none();
        let stay = self.machines.iter().filter(stays).count();
        let stay = i64::try_from(stay).unwrap_or(i64::MAX);
        // A surge machine of a group of one is its replacement.
        let surge = if self.replicas > 1 { self.max_surge } else { 0 };
        let create = admission(stay < self.replicas.saturating_add(surge));
        let (delete, deletable) = match self.kind {
            // It deletes one Machine at a time.
            HeldKind::KubeadmControlPlane => {
                (admission(stay > self.replicas), Deletable::default())
            }
            HeldKind::MachineDeployment => {
                let Self { machines, sets, replicas, template, .. } = self;
                (Admission::Refused, Deletable::of(machines, sets, *replicas, template, now))
            }
        };
        // The order in which Cluster API deletes Machines changes with their age.
        let ages = (!deletable.machines.is_empty())
            .then(|| now.checked_add(SignedDuration::from_mins(1)).unwrap_or(now));
        let again = again.into_iter().chain(ages).min();
        let entry = HeldOwner {
            kind: self.kind,
            name: self.name.clone(),
            create,
            delete,
            deletable_machines: deletable.machines,
            deletable_machine_sets: deletable.sets,
        };
        Held { entry: Some(entry), again }
    }

    /// The only Machine, if the API server refuses the surge machine that would replace it.
    pub fn held_only(&self, now: Timestamp) -> Option<&'a Machine> {
        let [machine] = self.machines[..] else { return None };
        let entry = self.held(now).entry;
        let is_refused = entry.is_some_and(|entry| entry.create == Admission::Refused);
        let stays = machine.metadata.deletion_timestamp.is_none();
        (is_refused && stays && self.replicas == 1 && self.max_surge > 0).then_some(machine)
    }

    /// When the owner's own dates ask for the replacement of each Machine.
    fn replacements_by_date(&self) -> impl Iterator<Item = Timestamp> {
        let stays = self.machines.iter().filter(|m| m.metadata.deletion_timestamp.is_none());
        stays.flat_map(|machine| {
            let created = machine.metadata.creation_timestamp.as_ref().map(|created| created.0);
            let is_older = |after: &Timestamp| created.is_none_or(|created| created < *after);
            let status = machine.status.as_ref();
            let expires =
                parsed(status.and_then(|status| status.certificates_expiry_date.as_deref()));
            let before_expiry = expires.zip(self.replaced_before_expiry);
            let before_expiry =
                before_expiry.and_then(|(expires, margin)| expires.checked_sub(margin).ok());
            self.rollout_after.filter(is_older).into_iter().chain(before_expiry)
        })
    }
}

/// Whether an entry allows more than another one, `None` being an owner that is not held.
pub fn allows_more(entry: Option<&HeldOwner>, than: Option<&HeldOwner>) -> bool {
    let Some(than) = than else { return false };
    let Some(entry) = entry else { return true };
    let more = |one, other| one == Admission::Allowed && other == Admission::Refused;
    let names_more = |one: &[String], other: &[String]| {
        than.delete == Admission::Refused && one.iter().any(|name| !other.contains(name))
    };
    more(entry.create, than.create)
        || more(entry.delete, than.delete)
        || names_more(&entry.deletable_machines, &than.deletable_machines)
        || names_more(&entry.deletable_machine_sets, &than.deletable_machine_sets)
}

/// What an entry and another one both allow, `None` being an owner that is not held.
pub fn both_allow(entry: &HeldOwner, other: Option<&HeldOwner>) -> HeldOwner {
    let Some(other) = other else { return entry.clone() };
    let both = |one, other| admission(one == Admission::Allowed && other == Admission::Allowed);
    let named = |list: fn(&HeldOwner) -> &Vec<String>| -> Vec<String> {
        let by = |holder: &HeldOwner, name: &String| {
            holder.delete == Admission::Allowed || list(holder).contains(name)
        };
        let mut names: Vec<String> = list(entry).iter().chain(list(other)).cloned().collect();
        names.retain(|name| by(entry, name) && by(other, name));
        names.sort();
        names.dedup();
        names
    };
    HeldOwner {
        kind: entry.kind,
        name: entry.name.clone(),
        create: both(entry.create, other.create),
        delete: both(entry.delete, other.delete),
        deletable_machines: named(|one| &one.deletable_machines),
        deletable_machine_sets: named(|one| &one.deletable_machine_sets),
    }
}

/// The entry of an owner about which nothing is known.
pub fn refused(kind: HeldKind, name: &str) -> HeldOwner {
    let (create, delete) = (Admission::Refused, Admission::Refused);
    HeldOwner {
        kind,
        name: name.to_owned(),
        create,
        delete,
        deletable_machines: Vec::new(),
        deletable_machine_sets: Vec::new(),
    }
}

/// Whether the ReplacementHold of a namespace has a finalizer. Where the API server asks for the object, it refuses every
/// request about a Machine without it: so it outlives the last Machine.
pub fn keeps_finalizer(namespace_holds: bool, is_deleting: bool, has_machines: bool) -> bool {
    namespace_holds && (!is_deleting || has_machines)
}

fn admission(allowed: bool) -> Admission {
    if allowed { Admission::Allowed } else { Admission::Refused }
}

fn parsed(time: Option<&str>) -> Option<Timestamp> {
    time?.parse().ok()
}
