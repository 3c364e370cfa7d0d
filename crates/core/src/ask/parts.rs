//! Which updaters work in an update, and which of them have nothing to do.

use refit_kinds::refit::{Gate, Goal, KUBEADM, NodeUpdate, Phase, UpdatePart, ordinal_of};

use serde_json::Value;

use super::MachineFacts;
use crate::change::{Level, Objects, Updater, host_part::BadHostPart};

/// What a new update can use.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The goal.
    pub goal: &'a Goal,
    /// The desired objects of the machine.
    pub desired: &'a Objects,
    /// The Updaters that cover a part of the change, in order.
    pub updaters: &'a [Updater],
}

impl Offer<'_> {
    /// Whether kubeadm bootstrapped the machine. Without a config, it counts as that.
    fn is_kubeadm(&self) -> bool {
        self.desired.bootstrap.is_none() || self.desired.is_kubeadm()
    }
}

/// What each updater is to do: nothing, if an earlier update of the Machine has reached its part of the goal.
/// Where none is known, an Updater works: it finds what is done already.
pub fn parts(
    machine: &MachineFacts,
    offer: Offer<'_>,
    updates: &[&NodeUpdate],
) -> Result<Vec<UpdatePart>, BadHostPart> {
    let mut of_machine: Vec<&NodeUpdate> = updates
        .iter()
        .copied()
        .filter(|update| update.spec.machine_ref.uid == machine.uid)
        .collect();
    of_machine.sort_by_key(|update| ordinal_of(update.metadata.name.as_deref()?, &machine.name));
    let needs_version = needs_version(machine, offer, &of_machine);
    let by_provider = offer.updaters.iter().any(Updater::brings_version);
    let by_host = needs_version && offer.is_kubeadm() && !by_provider;
    let host = by_host.then(|| Ok(UpdatePart::kubeadm()));
    let added = offer.goal.parts.iter().filter_map(|part| {
        let updater = offer.updaters.iter().find(|updater| updater.name() == part.updater)?;
        let reached = reached(&part.updater, &of_machine);
        let needed = reached != Some(&part.hash) || needs_version && updater.brings_version();
        match updater {
            Updater::Kubeadm => None,
            Updater::Added(added) => {
                needed.then(|| added.part(offer.desired).transpose()).flatten()
            }
            Updater::Configuration(updater) => {
                let spec = offer.desired.bootstrap_spec(Level::Machine).unwrap_or(&Value::Null);
                needed.then(|| updater.part(spec)).flatten().map(Ok)
            }
        }
    });
    host.into_iter().chain(added).collect()
}

/// The updater that brings the machine to the version by other means than a host: it installs from no bundle.
pub fn without_bundle(parts: &[UpdatePart]) -> Option<&str> {
    let by_provider = parts.iter().find(|part| part.template.is_some() && part.brings_version());
    by_provider.map(|part| &*part.updater)
}

/// Whether the machine must be brought to the version, or what an earlier update has left there must be ended.
fn needs_version(machine: &MachineFacts, offer: Offer<'_>, updates: &[&NodeUpdate]) -> bool {
    let Some(version) = &offer.goal.kubernetes_version else {
        return false;
    };
    let last = updates.iter().rev().find(|update| update.spec.ends_at_version());
    let is_whole = last.is_none_or(|last| last.phase() == Phase::Succeeded);
    machine.kubelet_version.as_ref() != Some(version) || !is_whole
}

/// The parts of an update that takes a host as it was upgraded by hand: its version is verified, and the Updaters work.
pub fn adopting(parts: impl IntoIterator<Item = UpdatePart>) -> Vec<UpdatePart> {
    let others = parts.into_iter().filter(|part| part.updater != KUBEADM);
    [UpdatePart::adopted()].into_iter().chain(others).collect()
}

/// The hash of what an Updater has reached on the Machine; `None` if that is not known.
fn reached<'a>(updater: &str, updates: &[&'a NodeUpdate]) -> Option<&'a String> {
    let touched = |update: &&&NodeUpdate| {
        let begun = update.status.as_ref().is_some_and(|status| {
            let part = status.part(updater);
            part.state.has_begun() || part.gate >= Some(Gate::Upgrade)
        });
        // What an agent has begun of its host's part is not known before its end.
        let mut of_host = update.spec.host_parts();
        let is_of_host = of_host.any(|(part, _)| part.updater == updater);
        let has_plan = update.status.as_ref().is_some_and(|status| !status.steps.is_empty());
        begun || is_of_host && has_plan || reached_by(update, updater).is_some()
    };
    updates.iter().rev().find(touched).and_then(|update| reached_by(update, updater))
}

/// The hash of what an Updater has reached in an update; `None` if it has not ended its part there.
pub(super) fn reached_by<'a>(update: &'a NodeUpdate, updater: &str) -> Option<&'a String> {
    let goal = update.spec.goal.parts.iter().find(|part| part.updater == updater)?;
    let is_listed = update.spec.updater_parts().any(|part| part.updater == updater);
    if !is_listed {
        // The Machine had it already.
        return (update.phase() == Phase::Succeeded).then_some(&goal.hash);
    }
    let parts = update.status.iter().flat_map(|status| &status.parts);
    let part = parts.into_iter().find(|part| part.updater == updater)?;
    // What it was last called with is newer than the goal.
    let hash = if part.hash.is_empty() { &goal.hash } else { &part.hash };
    part.state.has_ended().then_some(hash)
}
