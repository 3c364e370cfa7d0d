//! Which updaters work in an update, and which of them have nothing to do.

use refit_kinds::refit::{Goal, NodeUpdate, Phase, UpdatePart, UpdaterAction, ordinal_of};

use super::{MachineFacts, phase_of};
use crate::change::{Objects, Updater, host_part::BadHostPart, objects::PARTS};

/// What a new update can use.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The goal.
    pub goal: &'a Goal,
    /// The desired objects of the machine.
    pub desired: &'a Objects,
    /// The Updaters for the machine, in order.
    pub updaters: &'a [Updater],
    /// Names of Updaters that leave something in the change that the machine's group is about to make.
    pub left: &'a [String],
}

impl Offer<'_> {
    /// Whether kubeadm bootstrapped the machine. Without a config nothing says otherwise.
    fn is_kubeadm(&self) -> bool {
        self.desired.bootstrap.is_none() || self.desired.is_kubeadm()
    }
}

/// What each updater is to do: nothing, if the Machine has its part of the goal. The request does not tell
/// what has changed, so what earlier updates of the Machine have reached decides. Where none is known, an
/// Updater works: it finds what is done already.
pub fn parts(
    machine: &MachineFacts,
    offer: Offer<'_>,
    updates: &[&NodeUpdate],
) -> Result<Vec<UpdatePart>, BadHostPart> {
    let objects: Vec<_> = PARTS.iter().filter_map(|part| offer.desired.part(*part)).collect();
    let mut of_machine: Vec<&NodeUpdate> = updates
        .iter()
        .copied()
        .filter(|update| update.spec.machine_ref.uid == machine.uid)
        .collect();
    of_machine.sort_by_key(|update| ordinal_of(update.metadata.name.as_deref()?, &machine.name));
    let host = needs_host(machine, offer, &of_machine).then(|| Ok(UpdatePart::kubeadm()));
    let added = offer.goal.parts.iter().filter_map(|part| {
        let updater = offer.updaters.iter().find(|updater| updater.name() == part.updater)?;
        let Updater::Added(added) = updater else {
            return None;
        };
        let reached = reached(&part.updater, &of_machine);
        let needed = match (&reached, added.part.action) {
            (Some(hash), UpdaterAction::Update | UpdaterAction::Leave) => **hash != part.hash,
            (None, UpdaterAction::Update) => true,
            (None, UpdaterAction::Leave) => offer.left.contains(&part.updater),
        };
        needed.then(|| added.part(&objects))
    });
    host.into_iter().chain(added).collect()
}

/// Whether the host must be brought to the version, or what an earlier update has left there must be ended.
fn needs_host(machine: &MachineFacts, offer: Offer<'_>, updates: &[&NodeUpdate]) -> bool {
    let Some(version) = &offer.goal.kubernetes_version else {
        return false;
    };
    let last = updates.iter().rev().find(|update| update.spec.works_on_host());
    let is_whole = last.is_none_or(|last| phase_of(last) == Phase::Succeeded);
    offer.is_kubeadm() && (machine.kubelet_version.as_ref() != Some(version) || !is_whole)
}

/// The hash of what an Updater has reached on the Machine; `None` if that is not known.
fn reached<'a>(updater: &str, updates: &[&'a NodeUpdate]) -> Option<&'a String> {
    updates.iter().rev().find_map(|update| {
        let goal = update.spec.goal.parts.iter().find(|part| part.updater == updater)?;
        let part = update.status.clone().unwrap_or_default().part(updater);
        let succeeded = phase_of(update) == Phase::Succeeded;
        match (part.state.has_begun(), succeeded || part.state.has_ended()) {
            (_, true) => Some(Some(&goal.hash)),
            (true, false) => Some(None),
            // Nothing was done in this one.
            (false, false) => None,
        }
    })?
}
