//! The built-in updater `kubeadm`: a Kubernetes version, and changes that follow from a version
//! bump.

use std::collections::BTreeSet;

use refit_cluster_api::kubeadm_config::{init_to_join, normalised};
use refit_kinds::version::Hop;

use super::{
    cover::{Case, PartChanges},
    diff::{Change, MAX_CHANGES, changes},
    objects::{Level, Objects, Part, root},
    path::Path,
};

pub(super) fn claimed(changes: PartChanges, case: &Case<'_>) -> PartChanges {
    if !case.current.is_kubeadm() || !case.desired.is_kubeadm() {
        return Vec::new();
    }
    let version = root(case.level).key("version");
    let real = changes_that_matter(case, case.current);
    let real: Option<BTreeSet<Path>> =
        real.map(|real| real.into_iter().map(|change| change.path).collect());
    let is_claimed = |(part, change): &(Part, Change)| match part {
        Part::Owner => change.path == version && is_reachable(case),
        // Refit does not manage the infrastructure machine. A template that was only renamed has
        // equal specs and nothing to claim.
        Part::Infrastructure => false,
        Part::Bootstrap => real.as_ref().is_some_and(|real| !change.path.touches_any(real)),
    };
    changes.into_iter().filter(is_claimed).collect()
}

/// Whether the hosts can be brought to the desired version, or run it already. Workers may skip minor versions
/// (`docs/facts/kubernetes.md`).
pub(super) fn is_reachable(case: &Case<'_>) -> bool {
    match (case.from_version, case.to_version) {
        (Some(from), Some(to)) => {
            let hop = from.hop_to(to);
            let skips = matches!(hop, Hop::TooFar { .. }) && case.level == Level::MachineSet;
            case.returns || hop.is_upgrade() || skips
        }
        (_, None) | (None, _) => false,
    }
}

/// The changes of the bootstrap config that affect a machine that is already running, if it is now as in `current`;
/// `None` if the config is new or goes, or if there are too many to list.
///
/// They are what remains after both sides are stripped of everything that Cluster API itself rewrites
/// for a version bump or ignores in its comparison.
pub(super) fn changes_that_matter(case: &Case<'_>, current: &Objects) -> Option<Vec<Change>> {
    let level = case.level;
    let mut from = current.bootstrap_spec(level)?.clone();
    let to = case.desired.bootstrap_spec(level)?;
    // An initialised machine is compared as if it had joined. If the desired side has an init
    // configuration, Cluster API has already converted the current one.
    if level == Level::Machine && to.get("initConfiguration").is_none() {
        init_to_join(&mut from, to);
    }
    let from = normalised(&from, case.from_version);
    let to = normalised(to, case.to_version);
    let real = changes(&root(level), Some(&from), Some(&to));
    (real.len() <= MAX_CHANGES).then_some(real)
}
