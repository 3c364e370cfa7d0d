//! The built-in updater `kubeadm`: a Kubernetes version, and changes that follow from a version
//! bump.

use refit_cluster_api::kubeadm_config::{init_to_join, normalised};

use super::{
    cover::{Case, Updater},
    diff::{Change, changes},
    objects::{Level, Part, root},
};

/// Upgrades Kubernetes with kubeadm and packages.
pub const UPDATER: Updater = Updater { name: "kubeadm", claims };

fn claims(part: Part, change: &Change, case: &Case<'_>) -> bool {
    if !case.current.is_kubeadm() || !case.desired.is_kubeadm() {
        return false;
    }
    match part {
        Part::Owner => {
            change.path == root(case.level).key("version")
                && matches!((case.from_version, case.to_version), (Some(from), Some(to))
                    if from.hop_to(to).is_upgrade())
        }
        // Refit does not manage the infrastructure machine. A template that was only renamed has
        // equal specs and nothing to claim.
        Part::Infrastructure => false,
        Part::Bootstrap => !matters(change, case),
    }
}

/// Whether a change of the bootstrap config affects a machine that is already running.
///
/// It does if a difference remains after both sides are stripped of everything that Cluster API
/// itself rewrites for a version bump or ignores in its comparison.
fn matters(change: &Change, case: &Case<'_>) -> bool {
    let level = case.level;
    let (Some(from), Some(to)) =
        (case.current.bootstrap_spec(level), case.desired.bootstrap_spec(level))
    else {
        return true;
    };
    let mut from = from.clone();
    // An initialised machine is compared as if it had joined. If the desired side has an init
    // configuration, Cluster API has already converted the current one.
    if level == Level::Machine && to.get("initConfiguration").is_none() {
        init_to_join(&mut from, to);
    }
    let from = normalised(&from, case.from_version);
    let to = normalised(to, case.to_version);
    changes(&root(level), Some(&from), Some(&to)).iter().any(|real| real.path.touches(&change.path))
}
