//! The built-in updater `kubeadm`: a Kubernetes version, and what a pure version bump drags along.

use refit_cluster_api::kubeadm_config::{init_to_join, normalised};

use super::{
    cover::{Case, Updater},
    diff::{Change, changes},
    objects::{Level, Part, root},
};

/// Goes to a newer version of Kubernetes with kubeadm and packages.
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
        // The machine itself is somebody else's: a template that was only renamed has equal specs
        // and nothing to claim.
        Part::Infrastructure => false,
        Part::Bootstrap => !matters(change, case),
    }
}

/// Whether a change of the bootstrap config asks for something on a machine that runs already.
///
/// It does where a difference remains once both sides are stripped of what Cluster API itself
/// rewrites for a version bump or ignores when it compares.
fn matters(change: &Change, case: &Case<'_>) -> bool {
    let level = case.level;
    let (Some(from), Some(to)) =
        (case.current.bootstrap_spec(level), case.desired.bootstrap_spec(level))
    else {
        return true;
    };
    let mut from = from.clone();
    // What a machine joined with instead of initialised is compared. Where the desired side has an
    // init configuration, Cluster API has converted the current one already.
    if level == Level::Machine && to.get("initConfiguration").is_none() {
        init_to_join(&mut from, to);
    }
    let from = normalised(&from, case.from_version);
    let to = normalised(to, case.to_version);
    changes(&root(level), Some(&from), Some(&to)).iter().any(|real| real.path.touches(&change.path))
}
