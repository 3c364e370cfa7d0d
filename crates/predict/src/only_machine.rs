//! Predicts what becomes of a group of one machine that Cluster API would replace by means of a second one, where Refit
//! prevents it.

use std::collections::BTreeMap;

use refit_cluster_api::rollout::simulate::{Act, Answer, Durations, Event};
use refit_core::{
    change::{
        NotReady, OnUncovered,
        asked::{holds_replacements, opted_in},
    },
    task::Paused,
};
use refit_kinds::{
    json::{annotations, name},
    keys,
};

use super::{
    control_planes::{Member, answers, outdated, record_its_template},
    outcome::CauseReason,
    reach::{Read, Shape, is_paused},
    view::View,
};

/// Why no UpgradeTask updates the only machine of a control plane, although the policy asks for it.
enum NotUpdated {
    /// The namespace did not opt in.
    NotOptedIn,
    /// Cluster API may create a second machine before Refit has paused the control plane.
    NotHeld,
}

/// Predicts the only machine of a control plane that an UpgradeTask updates, or that is held. Whether one of both is the
/// case: otherwise Cluster API does what it does without Refit.
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
    match not_updated(view) {
        // The API server refuses a second machine all the same.
        Some(NotUpdated::NotOptedIn) if holds(view) => {
            let why = not_opted_in(view);
            view.block(why.reason(), format!("Machine/{machine}"), why.to_string());
            return true;
        }
        Some(NotUpdated::NotOptedIn | NotUpdated::NotHeld) => return false,
        // Another client decides when it goes on.
        None if view.cluster.is_some_and(is_paused) || paused(view) == Paused::ByOthers => {
            return false;
        }
        None => {}
    }
    let (answers, refusals) = answers(view, members, true);
    match answers.get(&machine) {
        Some(Answer::InPlace) => {
            view.plan.machines.in_place = 1;
            view.plan.notes.push(format!(
                "an UpgradeTask updates the only machine, because of the annotation {}",
                keys::SINGLE_REPLICA
            ));
            if view.now["spec"] == view.wanted["spec"]
                && let Paused::ByTask(task) = paused(view)
            {
                let owner = view.title();
                view.plan.notes.push(format!(
                    "UpgradeTask/{task} pauses {owner}: if it ends without having updated the machine, `refit resume \
                     {owner}` creates another one for what is requested already"
                ));
            }
        }
        Some(Answer::Wait) | None => {
            view.plan.blocked_by.extend(refusals.into_values().flatten());
        }
        Some(Answer::Replace) => {
            let message = format!(
                "the UpgradeTask cannot compare Machine {machine} with its template: {}",
                record_its_template()
            );
            view.block("NotCloned", format!("Machine/{machine}"), message);
        }
    }
    true
}

/// The update of the only machine, if it is updated in place.
pub(super) fn events(
    view: &View<'_>,
    members: &[Member<'_>],
    durations: &mut impl Durations,
) -> Vec<Event> {
    let updated = members.iter().filter(|_| view.plan.machines.in_place > 0);
    let event = |member: &Member<'_>| {
        let machine = name(member.machine).to_owned();
        let span = durations.update(&machine, 0);
        Event { machine: Some(machine), act: Act::Update, asked: 0, span }
    };
    updated.map(event).collect()
}

/// Adds why Cluster API replaces the only machine of a control plane that asks for an update in place. Whether it asks for
/// one.
pub(super) fn explain(view: &mut View<'_>) -> bool {
    if !view.policy.single_replica_in_place || declares_replacement(view) {
        return false;
    }
    let title = view.title();
    match not_updated(view) {
        Some(NotUpdated::NotOptedIn) => {
            let why = not_opted_in(view).to_string();
            view.cause(CauseReason::NotAsked, title, why, "");
        }
        Some(NotUpdated::NotHeld) => {
            let namespace = &view.group.namespace;
            let unknown = match view.input.namespaces.get(namespace) {
                Some(Read::Unknown(why)) => format!("{why}: "),
                Some(Read::Known(_)) | None => String::new(),
            };
            let message = format!(
                "{unknown}Refit updates the only machine in place where the API server refuses a second one, or the control \
                 plane is paused: otherwise Cluster API may create one before Refit has paused the control plane"
            );
            let remedy = format!(
                "label Namespace {namespace} with {}={} first",
                keys::HOLD_REPLACEMENTS,
                keys::OPTED_IN
            );
            view.cause(CauseReason::NotHeld, title, message, remedy);
        }
        None => return false,
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

fn not_updated(view: &View<'_>) -> Option<NotUpdated> {
    if labels(view).is_some_and(|labels| !opted_in(labels)) {
        return Some(NotUpdated::NotOptedIn);
    }
    let is_safe = match paused(view) {
        Paused::ByTask(_) | Paused::ByHold => true,
        Paused::No | Paused::ByOthers => holds(view),
    };
    (!is_safe).then_some(NotUpdated::NotHeld)
}

fn paused(view: &View<'_>) -> Paused {
    Paused::of(&annotations(view.wanted))
}

fn not_opted_in(view: &View<'_>) -> NotReady {
    NotReady::NotOptedIn { namespace: view.group.namespace.clone() }
}

fn holds(view: &View<'_>) -> bool {
    labels(view).is_some_and(holds_replacements)
}

fn labels<'a>(view: &View<'a>) -> Option<&'a BTreeMap<String, String>> {
    match view.input.namespaces.get(&view.group.namespace)? {
        Read::Known(labels) => Some(labels),
        Read::Unknown(_) => None,
    }
}
