//! Judges the end of a run: every machine is updated, or failed with a reason that an operator can
//! act on, or waits for one that is.

use std::sync::Arc;

use lab_simhost::kubelet::is_ready;
use refit_core::{
    node::{MEMBER_MISSING, REQUEST_WITHDRAWN},
    report::{EndsBy, Reason, RefusalReason},
};
use refit_kinds::{
    json::{annotation, condition, name, namespace, text, whole_condition},
    keys,
    refit::Phase,
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    cause::{infrastructure, is_off, memory, owner_name},
    configure,
    fault::FaultKind,
    fleet, held,
    rule::{Problem, Rule},
    run::Happened,
    shape::DEPLOYMENT,
    snaps, tasks,
};
use crate::{
    script::{
        look::{blockers, newest_update, owners, owns, wanted_version},
        session::Session,
    },
    world::{
        Actor, lock,
        status::{PASSING, is_final, is_worker, phase},
    },
};

/// Reasons with which no update of a simulation may fail: no retry reaches the goal, or a journal was
/// lost, which no fault does.
const DEAD_ENDS: [&str; 3] = ["SkipsMinor", "DowngradeNotAsked", "PlanOfEarlierHost"];
/// Reason of an update that an operator has aborted.
const ABORTED: &str = "Aborted";

/// What became of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It runs what its owner requests.
    Done,
    /// Its host is off for good.
    Lost,
    /// It never got a Node.
    WithoutNode,
    /// Its deletion has not ended.
    Deleting,
    /// Its update failed or was stopped, and an operator has to act.
    Ended,
    /// Its update is unfinished.
    Unfinished,
    /// Cluster API requests its update, but no NodeUpdate exists for it.
    Refused,
    /// It has no update, or one that was for an earlier version.
    Untouched,
    /// Untouched, and so the UpgradeTask that has ended keeps its owner paused, or shows that it was skipped: an operator
    /// has to act.
    LeftByTask,
    /// Untouched, because Cluster API would replace it and replacements are held: an operator has to act.
    Held,
}

impl Fate {
    /// Whether nothing more happens to the machine by itself although nothing is wrong.
    fn is_at_rest(self) -> bool {
        matches!(self, Self::Done | Self::Held)
    }
}

/// A machine, its newest NodeUpdate and its fate.
struct MachineEnd {
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
        && groups.iter().all(|group| slots(group).next().is_none())
        && world.upgrade_tasks().iter().all(tasks::has_ended)
        && world.cluster_upgrades().iter().all(tasks::cluster_has_ended)
        && world.cluster_upgrade_plans().iter().all(fleet::plan_has_ended)
        && machines(session)
            .iter()
            .all(|end| end.fate.is_at_rest() && !snaps::lacks_certificates(&end.machine))
}

fn slots(group: &Value) -> impl Iterator<Item = &Value> {
    group["status"]["slots"].as_array().into_iter().flatten()
}

/// The problems of a world that had hours to settle.
pub(super) fn problems(session: &Session, happened: &[Happened]) -> Vec<Problem> {
    let all = machines(session);
    let of_machines = all.iter().filter_map(|one| problem(session, happened, one, &all));
    let mut found: Vec<Problem> = of_machines.chain(older_updates(session, &all)).collect();
    found.extend(all.iter().filter_map(|one| half_rolled_back(session, one)));
    found.extend(all.iter().filter_map(|one| updater_forgotten(session, one)));
    found.extend(all.iter().filter_map(|one| configuration_forgotten(session, one)));
    found.extend(tasks::problems(session, &updated_owners(session, &all)));
    let is_undone = |one: &MachineEnd, cluster: &str| {
        one.fate != Fate::Done && text(&one.machine, "/spec/clusterName") == cluster
    };
    let is_done = |cluster: &str| !all.iter().any(|one| is_undone(one, cluster));
    found.extend(tasks::cluster_problems(session, is_done));
    let were_deleted = happened.iter().any(|fault| fault.kind == FaultKind::DeleteOfPlan);
    found.extend(fleet::problems(session, were_deleted));
    if found.is_empty() && !is_settled(session) && all.iter().all(|one| one.fate == Fate::Done) {
        found.push(unsettled(session, all.len()));
    }
    found
}

/// Names of the owners that have all of their machines, updated.
fn updated_owners(session: &Session, all: &[MachineEnd]) -> Vec<String> {
    let is_updated = |owner: &Value| {
        let own = || all.iter().filter(|one| owns(owner, &one.machine));
        let wanted = owner["spec"]["replicas"].as_u64().unwrap_or(1);
        own().count() as u64 == wanted && own().all(|one| one.fate == Fate::Done)
    };
    let owners = owners(&session.world).into_iter();
    owners.filter(is_updated).map(|owner| name(&owner).to_owned()).collect()
}

/// The memory of a machine that is done is what its infrastructure machine requests, and was not left
/// halfway. A machine that was created with it has no mark.
fn updater_forgotten(session: &Session, end: &MachineEnd) -> Option<Problem> {
    let machine = &end.machine;
    let object = infrastructure(session, machine)?;
    let wanted = object["spec"]["memoryMiB"].to_string();
    let is_half = annotation(&object, "memory.example/gets").is_some();
    let has = annotation(&object, "memory.example/has").unwrap_or(&wanted);
    let is_forgotten = end.fate == Fate::Done && (has != wanted || is_half);
    is_forgotten.then(|| Problem {
        rule: Rule::UpdaterForgotten,
        text: format!("{} has {has} MiB of memory, not {wanted}, or gets more", name(machine)),
    })
}

/// The host of a machine that is done has what its KubeadmConfig asks for.
fn configuration_forgotten(session: &Session, end: &MachineEnd) -> Option<Problem> {
    let text = configure::forgotten(session, &end.machine).filter(|_| end.fate == Fate::Done)?;
    Some(Problem { rule: Rule::UpdaterForgotten, text })
}

fn machines(session: &Session) -> Vec<MachineEnd> {
    let end = |machine: Arc<Value>| {
        let update = newest_update(&session.world, &machine);
        let fate = fate(session, &machine, update.as_deref());
        MachineEnd { machine, update, fate }
    };
    session.world.machines().into_iter().map(end).collect()
}

fn fate(session: &Session, machine: &Value, update: Option<&Value>) -> Fate {
    if machine["metadata"]["deletionTimestamp"].is_string() {
        return Fate::Deleting;
    }
    if agent_of(session, machine).is_none() {
        return Fate::WithoutNode;
    }
    if has_no_power(session, machine) {
        return Fate::Lost;
    }
    let wanted = wanted(session, machine);
    let node = session.world.node_of(machine);
    let runs = node.as_deref().map_or("", |node| text(node, "/status/nodeInfo/kubeletVersion"));
    // An operator's request to try an update again means nothing once that update has succeeded.
    let mut passing = PASSING.iter().filter(|key| **key != keys::RETRY);
    let marked = passing.any(|key| annotation(machine, key).is_some());
    let unfinished = update.is_some_and(|update| !is_final(update));
    let ready = node.as_deref().is_some_and(is_ready);
    let updated = match snaps::is_refreshed(session, machine) {
        // What a snap contains is not visible from outside: an update that failed stays so.
        Some(refreshed) => refreshed && update.is_none_or(|update| phase(update) != Phase::Failed),
        None => runs == wanted && text(machine, "/spec/version") == wanted,
    };
    if updated && ready && !marked && !unfinished {
        return Fate::Done;
    }
    match update {
        Some(_) if unfinished => Fate::Unfinished,
        Some(update) if matches!(phase(update), Phase::Failed | Phase::Stopped) => Fate::Ended,
        Some(_) | None if annotation(machine, keys::PENDING_HOOKS).is_some() => Fate::Refused,
        Some(_) | None
            if tasks::is_left(&session.world, owner_name(machine), name(machine))
                || snaps::is_skipped(session, machine) =>
        {
            Fate::LeftByTask
        }
        Some(_) | None if held::waits(session, machine) => Fate::Held,
        Some(_) | None => Fate::Untouched,
    }
}

fn agent_of(session: &Session, machine: &Value) -> Option<Actor> {
    session.world.agent(text(machine, "/status/nodeRef/name"))
}

fn has_no_power(session: &Session, machine: &Value) -> bool {
    agent_of(session, machine).is_some_and(|agent| is_off(session, &agent))
}

/// The version that the owner of a Machine requests.
fn wanted(session: &Session, machine: &Value) -> String {
    let owners = owners(&session.world);
    let owner = owners.iter().find(|owner| owns(owner, machine));
    owner.map(wanted_version).unwrap_or_default().to_owned()
}

fn problem(
    session: &Session,
    happened: &[Happened],
    one: &MachineEnd,
    all: &[MachineEnd],
) -> Option<Problem> {
    let is_down = |other: &MachineEnd| {
        let same_group = is_worker(&other.machine) == is_worker(&one.machine);
        other.fate == Fate::Lost || other.fate == Fate::Ended && same_group
    };
    let (rule, what) = match one.fate {
        Fate::Done if snaps::lacks_certificates(&one.machine) && !all.iter().any(is_down) => {
            let what = "its certificates are requested, and are not issued".to_owned();
            Some((Rule::WaitWithoutEnd, what))
        }
        Fate::Done | Fate::LeftByTask | Fate::Held => None,
        Fate::Lost => {
            // Without the API of its cluster a host is not known to be lost.
            let known = api_is_up(session, &one.machine);
            let update = one.update.as_deref().filter(|update| known && !is_final(update))?;
            // A request by annotation stands until it is removed: nothing has begun, and remediation is free to act.
            let stands = snaps::is_refreshed(session, &one.machine).is_some()
                && phase(update) == Phase::Waiting
                && blockers(update).any(|blocker| {
                    names_host(blocker, &one.machine)
                        || waits_for_control_plane(blocker) && is_shown(session, all)
                });
            if stands {
                return None;
            }
            let (name, phase) = (name(update), phase(update));
            let what = format!("its host is off for good, and NodeUpdate {name} stays {phase:?}");
            Some((Rule::WaitWithoutEnd, what))
        }
        Fate::WithoutNode => Some((Rule::WaitWithoutEnd, "it never got a Node".to_owned())),
        // Cluster API's drain waits for the budget of pods on a host that is off or cordoned.
        Fate::Deleting if has_no_power(session, &one.machine) || all.iter().any(is_down) => None,
        Fate::Deleting => Some((Rule::WaitWithoutEnd, "its deletion never ends".to_owned())),
        Fate::Ended => wrong_end(session, happened, one),
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

/// Whether a blocker is about a machine itself.
fn names_host(blocker: &Value, machine: &Value) -> bool {
    let names = [name(machine), text(machine, "/status/nodeRef/name")];
    let mut words = [text(blocker, "/object"), text(blocker, "/message")].into_iter();
    words.any(|words| names.iter().any(|name| !name.is_empty() && words.contains(name)))
}

fn api_is_up(session: &Session, machine: &Value) -> bool {
    let key = format!("{}/{}", namespace(machine), text(machine, "/spec/clusterName"));
    session.world.inner.apis.borrow().get(&key).copied().unwrap_or(true)
}

/// A host whose update was stopped, and which runs neither the old version nor the new one as a
/// whole.
fn half_rolled_back(session: &Session, one: &MachineEnd) -> Option<Problem> {
    one.update.as_deref().filter(|update| phase(update) == Phase::Stopped)?;
    let Actor::Agent(key) = agent_of(session, &one.machine)? else {
        return None;
    };
    let host = lock(&session.world.inner.hosts).get(&key).cloned()?;
    let host = lock(&host.state);
    let other = host.other_version()?;
    let text = format!(
        "Machine {}: its update was stopped; its kubelet runs {}, and {other} is left",
        name(&one.machine),
        host.kubelet_version
    );
    Some(Problem { rule: Rule::Invariant8, text: session.names.shown(&text) })
}

/// Unfinished NodeUpdates that are not the newest one of their Machine.
fn older_updates(session: &Session, all: &[MachineEnd]) -> Vec<Problem> {
    let newest: Vec<&str> = all.iter().filter_map(|one| one.update.as_deref()).map(name).collect();
    let updates = session.world.node_updates();
    let older = updates.iter().filter(|one| !is_final(one) && !newest.contains(&name(one)));
    let problem = |update: &Arc<Value>| {
        let text = format!("NodeUpdate {} is superseded, and never ends", name(update));
        Problem { rule: Rule::WaitWithoutEnd, text: session.names.shown(&text) }
    };
    older.map(problem).collect()
}

/// A world whose machines are all updated, and which never settles.
fn unsettled(session: &Session, machines: usize) -> Problem {
    let groups = session.world.update_groups();
    let slots = groups.iter().map(|group| slots(group).count()).sum::<usize>();
    let wanted = session.world.wanted_machines();
    let text = format!("{machines} of {wanted} machines are there, {slots} slots are taken");
    Problem { rule: Rule::WaitWithoutEnd, text }
}

/// What is wrong with the end of an update that failed or was stopped.
fn wrong_end(session: &Session, happened: &[Happened], one: &MachineEnd) -> Option<(Rule, String)> {
    let update = one.update.as_deref()?;
    let reason = text(update, "/status/failureReason");
    let title = session.names.shown(name(&one.machine));
    let shown = has_condition(session, &one.machine, "Blocked", "True")
        || tasks::names_as_failed(&session.world, owner_name(&one.machine), name(&one.machine));
    let requested = [keys::UPDATE_IN_PROGRESS, keys::TASK]
        .iter()
        .any(|key| annotation(&one.machine, key).is_some());
    if shown && (reason == MEMBER_MISSING || reason == REQUEST_WITHDRAWN && !requested) {
        return None;
    }
    let goal = text(update, "/spec/goal/kubernetesVersion");
    let gone_on = shown || wanted(session, &one.machine) == goal;
    // An update that is given up is rolled back, unless another machine has ended its own.
    let asks = |kind| kind == FaultKind::Abort || kind == FaultKind::GiveUp && gone_on;
    let stops_all = |kind| {
        matches!(
            kind,
            FaultKind::AbortTask
                | FaultKind::DeleteTask
                | FaultKind::CancelUpgrade
                | FaultKind::DeleteUpgrade
                | FaultKind::CancelOfPlan
                | FaultKind::DeleteOfPlan
        )
    };
    let aborted = happened.iter().any(|fault| {
        stops_all(fault.kind)
            || asks(fault.kind) && fault.line.contains(&format!("nodeupdate/{title}-"))
    });
    if phase(update) == Phase::Stopped && !(aborted && reason == ABORTED) {
        let what = format!("NodeUpdate {} is Stopped: {reason}", name(update));
        return Some((Rule::StoppedUnasked, what));
    }
    // Without Cluster API's request no attempt follows; the UpdateGroup shows what to do instead.
    if requested && annotation(&one.machine, keys::RETRY) == Some(name(update)) {
        let what = format!("NodeUpdate {} is not tried again as requested", name(update));
        return Some((Rule::WaitWithoutEnd, what));
    }
    if !shown && is_behind_its_spec(session, one) {
        let what = format!("its update ended: {reason}, and its UpdateGroup is not Blocked");
        return Some((Rule::NotShown, what));
    }
    let what = format!("its update failed: {reason}");
    // An operator may request a channel before all machines have the one before it, or an older one again; the owner shows
    // that it failed. The machine that failed first keeps its place.
    let owner = owner_name(&one.machine);
    let machines = session.world.machines();
    let mut members = machines.iter().filter(|machine| owner_name(machine) == owner);
    let is_asked_for = shown && members.any(|machine| snaps::is_out_of_reach(session, machine));
    let is_dead_end = reason.is_empty() || DEAD_ENDS.contains(&reason) && !is_asked_for;
    is_dead_end.then_some((Rule::FailedForGood, what))
}

/// Whether a machine runs another version than its Machine requests, or has other memory.
fn is_behind_its_spec(session: &Session, one: &MachineEnd) -> bool {
    let wanted = text(&one.machine, "/spec/version");
    let node = session.world.node_of(&one.machine);
    let has_other_memory = memory(session, &one.machine)
        .is_some_and(|(has, wanted)| has.is_some_and(|has| has != wanted));
    has_other_memory
        || node.is_some_and(|node| text(&node, "/status/nodeInfo/kubeletVersion") != wanted)
}

/// What is wrong with an update that is unfinished after hours. All faults have ended, so only a
/// machine that needs an operator can be what it waits for, or the operator who created it for a version
/// that its owner does not request.
fn endless_wait(session: &Session, one: &MachineEnd, all: &[MachineEnd]) -> Option<(Rule, String)> {
    let update = one.update.as_deref()?;
    // An update of a snap names no version, and is by annotation.
    let goal = text(update, "/spec/goal/kubernetesVersion");
    let by_hand = !goal.is_empty() && wanted(session, &one.machine) != goal;
    let named = blockers(update).next().is_some();
    let lacks_one = tasks::lacks_a_machine(&session.world, owner_name(&one.machine));
    if named && (by_hand || lacks_one || !api_is_up(session, &one.machine)) {
        return None;
    }
    if blockers(update).next().is_none() {
        let what = format!("its update is in phase {:?} for ever", phase(update));
        return Some((Rule::WaitWithoutEnd, what));
    }
    let shown = is_shown(session, all);
    let endless = blockers(update)
        .filter(|blocker| !(shown && waits_for_control_plane(blocker)))
        .filter(|blocker| !waits_for_operator(session, one, blocker))
        .find(|blocker| !waits_for_others(blocker) || stuck_before(one, all).is_none())?;
    let what = format!("its update waits for ever: {}", text(endless, "/message"));
    Some((Rule::WaitWithoutEnd, what))
}

/// Whether an update by hand waits until an operator pauses the control plane or sets its spec back, because Cluster
/// API requests no update: the UpdateGroup shows why not.
fn waits_for_operator(session: &Session, one: &MachineEnd, blocker: &Value) -> bool {
    let replaced = Reason::Update(RefusalReason::WouldBeReplaced);
    let is_stopped = [("Blocked", "True"), ("Covered", "False")]
        .iter()
        .any(|(kind, status)| has_condition(session, &one.machine, kind, status));
    Reason::of(text(blocker, "/reason")) == Some(replaced) && is_stopped
}

fn waits_for_control_plane(blocker: &Value) -> bool {
    let behind = Reason::Update(RefusalReason::ControlPlaneBehind);
    Reason::of(text(blocker, "/reason")) == Some(behind)
}

/// Whether the UpdateGroup of the control plane, or a task, shows why it is not updated.
fn is_shown(session: &Session, all: &[MachineEnd]) -> bool {
    let mut members = all.iter().filter(|end| !is_worker(&end.machine));
    members.any(|end| {
        matches!(end.fate, Fate::LeftByTask | Fate::Held)
            || has_condition(session, &end.machine, "Blocked", "True")
    })
}

/// What is wrong with a machine that has no update to the version that its owner requests.
fn left_out(session: &Session, one: &MachineEnd, all: &[MachineEnd]) -> Option<(Rule, String)> {
    let by_task = tasks::shows_why(&session.world, owner_name(&one.machine));
    let shows = |kind, status| by_task || has_condition(session, &one.machine, kind, status);
    if is_brought_by_hand(session, one) || !api_is_up(session, &one.machine) {
        return None;
    }
    // One Machine that cannot be updated holds up its whole group, and one of the control plane all workers.
    let before = all.iter().filter(|other| is_before(other, one));
    let all_before: Vec<&MachineEnd> = [one].into_iter().chain(before).collect();
    let waits_for_missing =
        |end: &&MachineEnd| tasks::lacks_a_machine(&session.world, owner_name(&end.machine));
    if all_before.iter().any(waits_for_missing) && shows("Blocked", "True") {
        return None;
    }
    if let Some(why) = all_before.into_iter().find_map(|one| uncovered(session, one)) {
        let what = format!("{why}, and its UpdateGroup does not say so");
        let said = shows("Covered", "False") || shows("Blocked", "True");
        return (!said).then_some((Rule::NotShown, what));
    }
    // Cluster API may wait for an update that failed, even if more machines could be down.
    let is_in_the_way =
        |stuck: &&MachineEnd| stuck.fate == Fate::Ended || !has_room(session, one, all);
    let Some(stuck) = stuck_before(one, all).filter(is_in_the_way) else {
        let (has, wanted) = (text(&one.machine, "/spec/version"), wanted(session, &one.machine));
        let lost = all.iter().find(|other| other.fate == Fate::Lost && is_before(other, one));
        let why = lost.map(|other| format!(" while the host of {} is off", name(&other.machine)));
        let what = format!("it has {has} and never gets {wanted}{}", why.unwrap_or_default());
        return Some((Rule::TurnNeverComes, what));
    };
    let update = stuck.update.as_deref();
    let why = update.map(|update| text(update, "/status/failureReason")).unwrap_or_default();
    let (other, fate) = (name(&stuck.machine), stuck.fate);
    let what = format!("it waits for {other} ({fate:?} {why}), and its UpdateGroup is not Blocked");
    (!shows("Blocked", "True")).then_some((Rule::NotShown, what))
}

/// Whether only other machines end a wait: a budget counts pods on hosts that are off, too.
fn waits_for_others(blocker: &Value) -> bool {
    let Some(reason) = Reason::of(text(blocker, "/reason")) else {
        return false;
    };
    let for_others = [RefusalReason::ControlPlaneBehind, RefusalReason::PodDisruptionBudget];
    for_others.map(Reason::Update).contains(&reason)
        || match reason.ends_by() {
            EndsBy::Progress | EndsBy::OthersRecover => true,
            EndsBy::ObjectChange | EndsBy::Deadline | EndsBy::Command => false,
        }
}

/// Whether a machine may have to wait for another one: a worker for the control plane and for the
/// workers of its group, a member of the control plane for the other members.
fn is_before(other: &MachineEnd, one: &MachineEnd) -> bool {
    name(&other.machine) != name(&one.machine)
        && (is_worker(&one.machine) || !is_worker(&other.machine))
}

/// Another machine that needs an operator, and for which this one may have to wait.
fn stuck_before<'a>(one: &MachineEnd, all: &'a [MachineEnd]) -> Option<&'a MachineEnd> {
    let needs_operator = |other: &&MachineEnd| match other.fate {
        Fate::Lost
        | Fate::WithoutNode
        | Fate::Deleting
        | Fate::Ended
        | Fate::Refused
        | Fate::Held
        | Fate::LeftByTask => true,
        Fate::Unfinished => {
            let update = other.update.as_deref();
            update.is_some_and(|update| blockers(update).any(|one| !waits_for_others(one)))
        }
        Fate::Done | Fate::Untouched => false,
    };
    all.iter().find(|other| is_before(other, one) && needs_operator(other))
}

/// Whether the group of a worker may have one more machine down than it has, and no member of the
/// control plane is in the way.
fn has_room(session: &Session, one: &MachineEnd, all: &[MachineEnd]) -> bool {
    let stuck =
        |end: &&MachineEnd| ![Fate::Done, Fate::Untouched, Fate::LeftByTask].contains(&end.fate);
    let down = all.iter().filter(|end| is_worker(&end.machine)).filter(stuck).count();
    let mut members = all.iter().filter(|end| !is_worker(&end.machine));
    let members_stuck = members.any(|end| end.fate != Fate::Done);
    let deployment = session.world.management().get_value(
        refit_cluster_api::kinds::CORE_GROUP,
        "machinedeployments",
        namespace(&one.machine),
        DEPLOYMENT,
    );
    let limit = deployment.as_ref().and_then(|object| {
        object.pointer("/spec/rollout/strategy/rollingUpdate/maxUnavailable")?.as_u64()
    });
    let room = u64::try_from(down).is_ok_and(|down| down < limit.unwrap_or(1));
    is_worker(&one.machine) && !members_stuck && room
}

/// Why no updater covers the way from the version that a node runs to the one that its owner
/// requests.
fn uncovered(session: &Session, one: &MachineEnd) -> Option<&'static str> {
    let node = session.world.node_of(&one.machine)?;
    let version = |text: &str| StatedVersion::from(text).version().cloned();
    let runs = version(text(&node, "/status/nodeInfo/kubeletVersion"))?;
    let wanted = version(&wanted(session, &one.machine))?;
    if runs > wanted {
        return Some("its version is above the requested one");
    }
    let minors = wanted.minor().saturating_sub(runs.minor());
    (minors > 1).then_some("the requested version skips a minor one")
}

/// Whether a NodeUpdate has brought a Machine to a version that its owner does not request: an operator
/// has created it.
fn is_brought_by_hand(session: &Session, one: &MachineEnd) -> bool {
    let Some(update) = one.update.as_deref().filter(|one| phase(one) == Phase::Succeeded) else {
        return false;
    };
    let node = session.world.node_of(&one.machine);
    let runs = node.as_deref().map_or("", |node| text(node, "/status/nodeInfo/kubeletVersion"));
    let goal = text(update, "/spec/goal/kubernetesVersion");
    goal == runs && goal != text(&one.machine, "/spec/version")
}

/// Whether the UpdateGroup of a Machine has a condition of this status.
fn has_condition(session: &Session, machine: &Value, kind: &str, status: &str) -> bool {
    let owner = owner_name(machine);
    session.world.update_groups().iter().any(|group| {
        text(group, "/spec/owner/name") == owner && condition(group, kind) == Some(status)
    })
}
