//! The operators of a release, as their ClusterOperators show them.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::json::{is_true, name, text, time, whole_condition};
use serde_json::json;

use super::config_pools;
use crate::cluster::{
    plan::{Condition, Plan, conditions},
    settings::Trouble,
    view::{Kind, View},
};

/// The operators in the order of their update, and how many minutes it takes. The last one updates the nodes of the control
/// plane in addition.
pub(crate) const PAYLOAD: [(&str, i64); 14] = [
    ("etcd", 4),
    ("kube-apiserver", 12),
    ("kube-controller-manager", 4),
    ("kube-scheduler", 3),
    ("machine-api", 1),
    ("openshift-apiserver", 2),
    ("authentication", 2),
    ("image-registry", 1),
    ("ingress", 2),
    ("storage", 1),
    ("monitoring", 2),
    ("network", 3),
    ("dns", 1),
    (MACHINE_CONFIG, 1),
];
/// The operator of the nodes.
const MACHINE_CONFIG: &str = "machine-config";

/// The operator that an update waits for.
pub(super) struct Waiting<'a> {
    pub(super) name: &'a str,
    /// How many are done.
    pub(super) done: usize,
    /// When it began.
    pub(super) since: Option<Timestamp>,
}

/// The operator that is updated next; `None` if all have the version.
pub(super) fn waiting<'a>(view: &'a View, target: &str) -> Option<Waiting<'a>> {
    let rank = |one: &str| PAYLOAD.iter().position(|(known, _)| *known == one);
    let all = view.list(Kind::ClusterOperator);
    let left = all.iter().filter(|one| text(one, "/status/versions/0/version") != target);
    let done = all.len() - left.clone().count();
    let next = left.min_by_key(|one| rank(name(one)))?;
    let began = whole_condition(next, "Progressing").filter(|one| one["status"] == "True");
    let since = began.and_then(|one| time(one, "/lastTransitionTime"));
    Some(Waiting { name: name(next), done, since })
}

/// The version whose configuration the nodes are to have.
pub(super) fn config_version(view: &View) -> &str {
    let operators = view.list(Kind::ClusterOperator);
    let operator = operators.iter().find(|operator| name(operator) == MACHINE_CONFIG);
    match operator {
        Some(operator) if !is_true(operator, "Progressing") => {
            text(operator, "/status/versions/0/version")
        }
        Some(_) | None => view.target(),
    }
}

pub(super) fn reconcile(plan: &mut Plan<'_>) {
    let view = plan.view;
    let target = view.target();
    let turn = waiting(view, target).filter(|_| view.is_upgrading());
    for operator in view.list(Kind::ClusterOperator) {
        let one = name(operator);
        let degraded = view.settings.message(&Trouble::Degraded(one));
        let unavailable = view.settings.message(&Trouble::Unavailable(one));
        let mut version = text(operator, "/status/versions/0/version");
        let mut progressing = Condition::flag("Progressing", false, "");
        if let Some(turn) = turn.as_ref().filter(|turn| turn.name == one) {
            let is_healthy = degraded.is_none() && unavailable.is_none();
            if is_healthy && is_done(plan, turn) {
                version = target;
            } else {
                progressing =
                    Condition::flag("Progressing", true, format!("Working towards {target}"))
                        .because("Updating");
            }
        }
        let shown = [
            Condition::flag("Available", unavailable.is_none(), unavailable.unwrap_or_default()),
            progressing,
            Condition::flag("Degraded", degraded.is_some(), degraded.unwrap_or_default()),
        ];
        let status = json!({
            "versions": [{"name": "operator", "version": version}],
            "conditions": conditions(operator, &shown, view.now),
        });
        plan.status(Kind::ClusterOperator, operator, &status);
    }
}

/// Whether an operator has finished its update.
fn is_done(plan: &mut Plan<'_>, turn: &Waiting<'_>) -> bool {
    let view = plan.view;
    let settings = &view.settings;
    if settings.has(&Trouble::ControlPlaneStalled) || settings.has(&Trouble::UpdateFails) {
        return false;
    }
    let minutes =
        PAYLOAD.iter().find(|(known, _)| *known == turn.name).map_or(1, |(_, minutes)| *minutes);
    let duration = SignedDuration::from_mins(minutes);
    turn.since.is_some_and(|since| plan.has_elapsed(since, duration))
        && (turn.name != MACHINE_CONFIG || config_pools::has_control_plane(view, view.target()))
}
