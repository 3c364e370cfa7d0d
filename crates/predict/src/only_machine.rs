//! Predicts what becomes of a group of one machine that Cluster API would replace by means of a second one, where Refit
//! prevents it.

use refit_cluster_api::rollout::simulate::Answer;
use refit_core::change::OnUncovered;
use refit_kinds::{json::name, keys};

use super::{
    control_planes::{Member, answers, outdated},
    reach::{Read, Shape},
    view::View,
};

/// Predicts the only machine of a control plane that an UpgradeTask updates, or that is held. Whether one of both is the
/// case.
pub(super) fn of_control_plane(view: &mut View<'_>, members: &[Member<'_>]) -> bool {
    let [member] = members else { return false };
    let is_one = matches!(Shape::of(view.wanted), Shape::ControlPlane { replicas: 1, .. });
    let is_due = outdated(&member.sides.differences).is_some();
    if !is_one || is_due || member.sides.is_up_to_date() || declares_replacement(view) {
        return false;
    }
    let machine = name(member.machine).to_owned();
    if !view.policy.single_replica_in_place {
        return is_held(view, &machine, &remedy(view));
    }
    if !holds(view) {
        view.plan.notes.push(format!(
            "Cluster API may create a second machine before Refit has paused the control plane: label Namespace {} with \
             {}=enabled",
            view.group.namespace,
            keys::HOLD_REPLACEMENTS
        ));
    }
    let (answers, refusals) = answers(view, members, true);
    match answers.get(&machine) {
        Some(Answer::InPlace) => {
            view.plan.machines.in_place = 1;
            view.plan.notes.push(format!(
                "an UpgradeTask updates the only machine, because of the annotation {}",
                keys::SINGLE_REPLICA
            ));
        }
        Some(Answer::Wait) | None => {
            view.plan.blocked_by.extend(refusals.into_values().flatten());
        }
        Some(Answer::Replace) => {
            let message = format!(
                "the UpgradeTask cannot compare Machine {machine} with its template: annotate its infrastructure machine \
                 with {} and {}",
                keys::CLONED_FROM_NAME,
                keys::CLONED_FROM_GROUPKIND
            );
            view.block("NotCloned", format!("Machine/{machine}"), message);
        }
    }
    true
}

/// Blocks the replacement of the only machine of a MachineDeployment by its surge machine, if it is held.
pub(super) fn of_workers(view: &mut View<'_>, machine: &str) {
    let remedy = "set spec.rollout.strategy.rollingUpdate to maxSurge 0 and maxUnavailable 1 to update it in place";
    if !declares_replacement(view) && is_held(view, machine, remedy) {
        (view.plan.machines.new, view.plan.machines.deleted) = (0, 0);
        view.plan.causes.clear();
    }
}

/// Whether the machine is held; adds the blocker, with what to do instead.
fn is_held(view: &mut View<'_>, machine: &str, remedy: &str) -> bool {
    if !holds(view) {
        return false;
    }
    let message = format!(
        "Cluster API would create a second machine and delete this one, and the API server refuses it, because Namespace {} \
         holds replacements: {remedy}, or {}=Replace to let it be replaced",
        view.group.namespace,
        keys::ON_UNCOVERED
    );
    view.block("ReplacementHeld", format!("Machine/{machine}"), message);
    true
}

/// What updates the only machine of a control plane in place.
pub(super) fn remedy(view: &View<'_>) -> String {
    format!("annotate {} or its Cluster with {}=InPlace", view.title(), keys::SINGLE_REPLICA)
}

fn declares_replacement(view: &View<'_>) -> bool {
    view.policy.disabled || view.policy.on_uncovered == OnUncovered::Replace
}

fn holds(view: &View<'_>) -> bool {
    match view.input.namespaces.get(&view.group.namespace) {
        Some(Read::Known(labels)) => {
            labels.get(keys::HOLD_REPLACEMENTS).is_some_and(|value| value == "enabled")
        }
        Some(Read::Unknown(_)) | None => false,
    }
}
