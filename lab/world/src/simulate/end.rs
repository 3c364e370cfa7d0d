//! Judges the end of a run: every machine is updated, or failed with a reason that an operator can
//! act on, or waits for one that is.

use std::sync::Arc;

use refit_kinds::{
    json::{annotation, condition, label, name, namespace, text, whole_condition},
    keys,
    refit::Phase,
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    fault::FaultKind,
    oracle::{Problem, Rule, cause_holds, is_off},
    plan::Plan,
    shape::DEPLOYMENT,
};
use crate::{
    script::{
        look::{blockers, newest_update},
        session::Session,
    },
    world::status::{PASSING, is_final, phase},
};

/// Reasons of failures that an operator cannot end: no retry reaches the goal.
const DEAD_ENDS: [&str; 1] = ["SkipsMinor"];

/// What became of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It runs what its owner requests.
    Done,
    /// Its host is off for good.
    Lost,
    /// Its update failed or was stopped, and an operator has to act.
    Ended,
    /// Its update is unfinished.
    Unfinished,
    /// Cluster API requests its update, but no NodeUpdate exists for it.
    Refused,
    /// It has no update, or one that was for an earlier version.
    Untouched,
}

/// A machine, its newest NodeUpdate and its fate.
struct Ended {
    machine: Arc<Value>,
    update: Option<Arc<Value>>,
    fate: Fate,
}

/// Whether all machines run what their owners request, and nothing is under way. A world in which
/// a machine is lost or has failed never settles.
pub(super) fn is_settled(session: &Session) -> bool {
    let world = &session.world;
    let updates = world.node_updates();
    let groups = world.update_groups();
    world.is_ready()
        && updates.iter().all(|update| is_final(update))
        && groups.iter().all(|group| group["status"]["slots"].as_array().is_none_or(Vec::is_empty))
        && machines(session).iter().all(|ended| ended.fate == Fate::Done)
}

/// The problems of a world that had hours to settle.
pub(super) fn problems(session: &Session, plan: &Plan) -> Vec<Problem> {
    let all = machines(session);
    all.iter().filter_map(|one| problem(session, plan, one, &all)).collect()
}

fn machines(session: &Session) -> Vec<Ended> {
    let mut machines = session.world.machines();
    machines.retain(|machine| text(machine, "/metadata/deletionTimestamp").is_empty());
    machines
        .into_iter()
        .map(|machine| {
            let update = newest_update(&session.world, &machine);
            let fate = fate(session, &machine, update.as_deref());
            Ended { machine, update, fate }
        })
        .collect()
}

fn fate(session: &Session, machine: &Value, update: Option<&Value>) -> Fate {
    let wanted = wanted(session, machine);
    let node = session.world.node_of(machine);
    let runs = node.as_deref().map_or("", |node| text(node, "/status/nodeInfo/kubeletVersion"));
    // An operator's request to try an update again means nothing once that update has succeeded.
    let mut passing = PASSING.iter().filter(|key| **key != keys::RETRY);
    let marked = passing.any(|key| annotation(machine, key).is_some());
    let agent = session.world.agent(text(machine, "/status/nodeRef/name"));
    let lost = agent.is_none_or(|agent| is_off(session, &agent));
    if lost {
        return Fate::Lost;
    }
    if runs == wanted && text(machine, "/spec/version") == wanted && !marked {
        return Fate::Done;
    }
    match update {
        Some(update) if !is_final(update) => Fate::Unfinished,
        Some(update) if matches!(phase(update), Phase::Failed | Phase::Stopped) => Fate::Ended,
        Some(_) | None if annotation(machine, keys::PENDING_HOOKS).is_some() => Fate::Refused,
        Some(_) | None => Fate::Untouched,
    }
}

/// The version that the owner of a Machine requests.
fn wanted(session: &Session, machine: &Value) -> String {
    let management = session.world.management();
    let owner = |group: &str, plural: &str, key: &str, pointer: &str| {
        let owner = label(machine, key)?;
        let object = management.get_value(group, plural, namespace(machine), owner)?;
        Some(text(&object, pointer).to_owned())
    };
    owner(
        refit_cluster_api::kinds::CORE_GROUP,
        "machinedeployments",
        keys::DEPLOYMENT_NAME,
        "/spec/template/spec/version",
    )
    .or_else(|| {
        owner(
            refit_cluster_api::kinds::CONTROL_PLANE_GROUP,
            "kubeadmcontrolplanes",
            keys::CONTROL_PLANE_NAME,
            "/spec/version",
        )
    })
    .unwrap_or_default()
}

fn problem(session: &Session, plan: &Plan, one: &Ended, all: &[Ended]) -> Option<Problem> {
    let (rule, what) = match one.fate {
        Fate::Done => None,
        Fate::Lost => {
            let update = one.update.as_deref().filter(|update| !is_final(update))?;
            let what = format!("its host is off for good, and NodeUpdate {} waits", name(update));
            Some((Rule::WaitWithoutEnd, what))
        }
        Fate::Ended => wrong_end(plan, one.update.as_deref()?),
        Fate::Unfinished => endless_wait(session, one, all),
        Fate::Refused => {
            let updating = whole_condition(&one.machine, "Updating");
            let why = updating.map(|condition| text(condition, "/message")).unwrap_or_default();
            Some((Rule::RequestRefused, why.to_owned()))
        }
        Fate::Untouched => left_out(session, one, all),
    }?;
    let text = session.names.shown(&format!("Machine {}: {what}", name(&one.machine)));
    Some(Problem { rule, text })
}

/// What is wrong with the end of an update that failed or was stopped.
fn wrong_end(plan: &Plan, update: &Value) -> Option<(Rule, String)> {
    let reason = text(update, "/status/failureReason");
    if phase(update) == Phase::Stopped && !plan.has(FaultKind::Abort) {
        let what = format!("NodeUpdate {} is Stopped: {reason}", name(update));
        return Some((Rule::StoppedUnasked, what));
    }
    let what = format!("its update failed: {reason}");
    DEAD_ENDS.contains(&reason).then_some((Rule::FailedForGood, what))
}

/// What is wrong with an update that is unfinished after hours.
fn endless_wait(session: &Session, one: &Ended, all: &[Ended]) -> Option<(Rule, String)> {
    let update = one.update.as_deref()?;
    if blockers(update).next().is_none() {
        let what = format!("its update is in phase {:?} for ever", phase(update));
        return Some((Rule::WaitWithoutEnd, what));
    }
    let endless = blockers(update).find(|blocker| {
        let reason = text(blocker, "/reason");
        let excused = waits_for_others(reason) && others_are_stuck(one, all);
        let holds = cause_holds(session, update, reason, text(blocker, "/object"));
        !excused && holds != Some(true)
    })?;
    let what = format!("its update waits for ever: {}", text(endless, "/message"));
    Some((Rule::WaitWithoutEnd, what))
}

/// What is wrong with a machine that has no update to the version that its owner requests.
fn left_out(session: &Session, one: &Ended, all: &[Ended]) -> Option<(Rule, String)> {
    let shows = |kind, status| has_condition(session, &one.machine, kind, status);
    if is_downgrade(session, one) {
        let what = "its version is above the requested one, and its UpdateGroup is Covered";
        return (!shows("Covered", "False")).then(|| (Rule::NotShown, what.to_owned()));
    }
    if !others_are_stuck(one, all) || has_room(session, one, all) {
        let (has, wanted) = (text(&one.machine, "/spec/version"), wanted(session, &one.machine));
        return Some((Rule::TurnNeverComes, format!("it has {has} and never gets {wanted}")));
    }
    let what = "it waits, and its UpdateGroup is not Blocked";
    (!shows("Blocked", "True")).then(|| (Rule::NotShown, what.to_owned()))
}

/// Whether a wait for this reason ends only with another machine.
fn waits_for_others(reason: &str) -> bool {
    matches!(
        reason,
        "SlotBusy" | "GroupUnavailable" | "ControlPlaneUnhealthy" | "ControlPlaneBehind"
    )
}

fn others_are_stuck(one: &Ended, all: &[Ended]) -> bool {
    all.iter().any(|other| {
        name(&other.machine) != name(&one.machine)
            && matches!(other.fate, Fate::Lost | Fate::Ended | Fate::Unfinished | Fate::Refused)
    })
}

/// Whether the group of a worker may have one more machine down than it has, and no member of the
/// control plane is in the way.
fn has_room(session: &Session, one: &Ended, all: &[Ended]) -> bool {
    let is_worker = |ended: &Ended| label(&ended.machine, keys::DEPLOYMENT_NAME).is_some();
    let stuck = |ended: &&Ended| ended.fate != Fate::Done && ended.fate != Fate::Untouched;
    let down = all.iter().filter(|ended| is_worker(ended)).filter(stuck).count();
    let members_stuck = all.iter().filter(|ended| !is_worker(ended)).any(|e| e.fate != Fate::Done);
    let deployment = session.world.management().get_value(
        refit_cluster_api::kinds::CORE_GROUP,
        "machinedeployments",
        namespace(&one.machine),
        DEPLOYMENT,
    );
    let limit = deployment.as_ref().and_then(|object| {
        object.pointer("/spec/rollout/strategy/rollingUpdate/maxUnavailable")?.as_u64()
    });
    is_worker(one) && !members_stuck && u64::try_from(down).is_ok_and(|n| n < limit.unwrap_or(1))
}

/// Whether the owner requests a lower version than the node runs: no updater covers that.
fn is_downgrade(session: &Session, one: &Ended) -> bool {
    let version = |text: &str| StatedVersion::from(text).version().cloned();
    let node = session.world.node_of(&one.machine);
    let runs = node.and_then(|node| version(text(&node, "/status/nodeInfo/kubeletVersion")));
    runs > version(&wanted(session, &one.machine))
}

/// Whether the UpdateGroup of a Machine has a condition of this status.
fn has_condition(session: &Session, machine: &Value, kind: &str, status: &str) -> bool {
    let owner = label(machine, keys::DEPLOYMENT_NAME)
        .or_else(|| label(machine, keys::CONTROL_PLANE_NAME))
        .unwrap_or_default();
    session.world.update_groups().iter().any(|group| {
        text(group, "/spec/owner/name") == owner && condition(group, kind) == Some(status)
    })
}
