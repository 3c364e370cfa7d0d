use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions,
    refit::{
        ExceptionRule, GroupOwner, NodeUpdate, Phase, RequestRef, UpgradeTaskSpec,
        UpgradeTaskStatus,
    },
};

use super::{status::OWNER_PAUSED, *};
use crate::{ask::testing::update as node_update, group::owner_argument, report::Refusal};

const TARGET: &str = "v1.35.0";

pub(super) fn task() -> UpgradeTask {
    let spec = UpgradeTaskSpec {
        owner_ref: Some(GroupOwner { kind: "MachineDeployment".into(), ..GroupOwner::default() }),
        version: Some(TARGET.parse().unwrap()),
        ..UpgradeTaskSpec::of("edge-1", Via::Machines)
    };
    let mut task = UpgradeTask::new("t", spec);
    task.metadata.finalizers = Some(vec!["f".into()]);
    task
}

pub(super) fn owner() -> OwnerSeen {
    OwnerSeen {
        owner: Owner::Deployment,
        paused: Paused::ByTask("t".into()),
        deleting: false,
        version: TARGET.into(),
        of_topology: false,
        request: "r".into(),
        is_up_to_date: false,
        replaces_none: false,
    }
}

fn set(name: &str, machines: i64) -> SetSeen {
    SetSeen {
        name: name.into(),
        replicas: machines,
        shown: machines,
        is_observed: true,
        creates: false,
        machines,
        marked: 0,
        leaving: 0,
    }
}

pub(super) fn member(name: &str) -> Member<'_> {
    Member {
        name,
        uid: name.into(),
        task: Some("t"),
        shows: Some(("Unknown", conditions::REASON_WAITING)),
        ..Member::default()
    }
}

pub(super) fn seen<'a>(task: &'a UpgradeTask, machines: Vec<Member<'a>>) -> GroupSeen<'a> {
    let old = i64::try_from(machines.len()).unwrap();
    GroupSeen {
        task,
        obstacle: None,
        owner: Some(owner()),
        sets: Some(SetsSeen {
            current: Some(set("new", 0)),
            old: vec![set("old", old)],
            wanted: old,
            arriving: 0,
            ends: false,
        }),
        machines,
        lacks_machines: false,
        slots: 1,
        order: None,
        is_paced_to_a_halt: false,
        is_held: false,
        now: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn advanced(actions: &[Action]) -> Vec<&str> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Advance { machine, .. } => Some(&**machine),
            Action::AddFinalizer
            | Action::Pause
            | Action::SetVersion(_)
            | Action::Sets(_)
            | Action::Mark(_)
            | Action::Stop(_)
            | Action::Unmark(_)
            | Action::Unpause
            | Action::RemoveFinalizer => None,
        })
        .collect()
}

pub(super) fn in_phase(machine: &str, phase: Phase) -> NodeUpdate {
    let mut update = node_update(1, TARGET, phase);
    update.metadata.name = Some(format!("{machine}-1"));
    update
}

pub(super) fn shown(seen: &GroupSeen<'_>) -> (TaskPhase, String) {
    let status = status(seen, &BTreeMap::new());
    let ready = conditions::get(&status.conditions, status::READY);
    (status.phase, ready.map(|ready| ready.reason.clone()).unwrap_or_default())
}

#[test]
fn a_task_holds_on_to_its_end_before_it_writes_anything() {
    let mut new = task();
    new.metadata.finalizers = None;
    assert_eq!(actions(&seen(&new, vec![member("a")])), [Action::AddFinalizer]);
}

#[test]
fn an_owner_is_paused_before_its_version_is_set() {
    let task = task();
    let mut look = seen(&task, vec![member("a")]);
    let as_is = OwnerSeen { paused: Paused::No, version: "v1.34.2".into(), ..owner() };
    look.owner = Some(as_is.clone());
    assert_eq!(actions(&look), [Action::Pause]);
    look.owner = Some(OwnerSeen { paused: Paused::ByTask("t".into()), ..as_is.clone() });
    assert_eq!(actions(&look), [Action::SetVersion(TARGET.parse().unwrap())]);
    look.owner = Some(OwnerSeen { paused: Paused::ByOthers, ..as_is.clone() });
    assert_eq!(actions(&look), [Action::SetVersion(TARGET.parse().unwrap())]);
    let of_topology = OwnerSeen { of_topology: true, paused: Paused::ByTask("t".into()), ..as_is };
    look.owner = Some(of_topology);
    assert_eq!(actions(&look), [], "the topology sets it");
}

#[test]
fn a_task_takes_over_the_owner_that_an_older_task_left_paused() {
    let task = task();
    let mut look = seen(&task, vec![member("a")]);
    look.owner = Some(OwnerSeen { paused: Paused::ByTask("older".into()), ..owner() });
    assert_eq!(actions(&look), [Action::Pause]);
}

#[test]
fn no_more_machines_are_requested_than_may_be_down_and_prepare() {
    let task = task();
    let names = ["a", "b", "c", "d", "e"];
    let mut look = seen(&task, names.map(member).to_vec());
    assert_eq!(advanced(&actions(&look)), ["a", "b"]);
    look.slots = 2;
    assert_eq!(advanced(&actions(&look)), ["a", "b", "c", "d"]);
    look.order = Some(PacingOrder::Name);
    look.owner = Some(OwnerSeen { owner: Owner::ControlPlane, ..owner() });
    assert_eq!(advanced(&actions(&look)), ["a"], "members follow one another");
    look.is_paced_to_a_halt = true;
    assert!(advanced(&actions(&look)).is_empty());
}

#[test]
fn a_machine_whose_update_has_succeeded_is_written_whatever_the_window() {
    let task = task();
    let (running, reached) = (in_phase("a", Phase::Draining), in_phase("b", Phase::Succeeded));
    let mut machines = vec![member("a"), member("b"), member("c")];
    (machines[0].update, machines[1].update) = (Some(&running), Some(&reached));
    assert_eq!(advanced(&actions(&seen(&task, machines))), ["b"]);
}

#[test]
fn a_failed_machine_waits_for_a_person_and_a_retry_needs_no_room() {
    let task = task();
    let failed = in_phase("a", Phase::Failed);
    let (b, c) = (in_phase("b", Phase::Waiting), in_phase("c", Phase::Waiting));
    let mut machines = vec![member("a"), member("b"), member("c")];
    for (member, update) in machines.iter_mut().zip([&failed, &b, &c]) {
        member.update = Some(update);
    }
    assert!(advanced(&actions(&seen(&task, machines.clone()))).is_empty());
    machines[0].retry = Some("a-1");
    assert_eq!(advanced(&actions(&seen(&task, machines))), ["a"]);
}

#[test]
fn a_skipped_machine_is_left_out_and_a_held_one_is_waited_for() {
    let task = task();
    let mut machines = vec![member("a"), member("b")];
    (machines[0].exception, machines[0].task) = (Some(ExceptionRule::Skip), None);
    (machines[1].spec, machines[1].task) = (SpecState::Current, None);
    let mut look = seen(&task, machines);
    look.sets = None;
    assert_eq!(shown(&look), (TaskPhase::Complete, "Complete".into()));
    let paused = status(&look, &BTreeMap::new());
    let paused = conditions::get(&paused.conditions, OWNER_PAUSED).unwrap();
    assert!(paused.message.contains("would replace a."), "{}", paused.message);
    look.machines[0].exception = Some(ExceptionRule::Hold);
    assert_eq!(shown(&look).0, TaskPhase::Ongoing);
    assert!(advanced(&actions(&look)).is_empty());
}

#[test]
fn a_task_fails_once_only_failed_machines_are_left() {
    let task = task();
    let failed = in_phase("a", Phase::Failed);
    let mut machines = vec![member("a"), member("b")];
    machines[0].update = Some(&failed);
    machines[1].spec = SpecState::Current;
    let look = seen(&task, machines);
    assert_eq!(shown(&look), (TaskPhase::Failed, "MachinesFailed".into()));
    let status = status(&look, &BTreeMap::new());
    assert_eq!(status.failures[0].node_update, "a-1");
    let paused = conditions::get(&status.conditions, OWNER_PAUSED).unwrap();
    assert!(paused.message.contains("would replace a."), "{}", paused.message);
    let argument = owner_argument(task.spec.owner_ref.as_ref().unwrap());
    for way in [
        format!("`refit resume {argument}`"),
        format!("`refit release {argument} --accept-replacement`"),
    ] {
        assert!(paused.message.contains(&way), "{}", paused.message);
    }
}

#[test]
fn an_owner_goes_on_only_if_it_replaces_no_machine() {
    let task = task();
    let mut done = member("a");
    (done.spec, done.task) = (SpecState::Current, None);
    let mut look = seen(&task, vec![done]);
    look.sets.as_mut().unwrap().old.clear();
    look.sets.as_mut().unwrap().current = Some(SetSeen { creates: true, ..set("new", 1) });
    assert_eq!(actions(&look), []);
    assert_eq!(shown(&look), (TaskPhase::Complete, "Complete".into()), "others are outdated");
    look.owner = Some(OwnerSeen { replaces_none: true, ..owner() });
    assert_eq!(actions(&look), [Action::Unpause]);
    assert_eq!(shown(&look).0, TaskPhase::Ongoing);
    look.owner = Some(OwnerSeen { replaces_none: true, paused: Paused::ByOthers, ..owner() });
    assert_eq!(actions(&look), [], "another client has paused it");
    assert_eq!(shown(&look).0, TaskPhase::Complete);
}

#[test]
fn an_edited_owner_stops_what_has_not_begun() {
    let mut of_version = task();
    of_version.status =
        Some(UpgradeTaskStatus { owner_request: "before".into(), ..UpgradeTaskStatus::default() });
    let mut of_bundle = of_version.clone();
    (of_bundle.spec.version, of_bundle.spec.bundle) = (None, Some("/mnt/bundle".into()));
    let (early, late) = (in_phase("a", Phase::Waiting), in_phase("b", Phase::Disrupting));
    for task in [of_version, of_bundle] {
        let mut machines = vec![member("a"), member("b"), member("c")];
        (machines[0].update, machines[1].update) = (Some(&early), Some(&late));
        let look = seen(&task, machines);
        assert_eq!(actions(&look), [Action::Stop("a-1".into())]);
        assert_eq!(shown(&look), (TaskPhase::Failed, "OwnerEdited".into()));
    }
}

#[test]
fn a_stopped_task_finishes_what_is_under_way_and_leaves_nothing() {
    let mut task = task();
    task.spec.stage = Stage::Abort;
    let (running, reached) = (in_phase("a", Phase::Waiting), in_phase("b", Phase::Succeeded));
    let mut machines = vec![member("a"), member("b"), member("c")];
    (machines[0].update, machines[1].update) = (Some(&running), Some(&reached));
    let found = actions(&seen(&task, machines.clone()));
    assert!(found.contains(&Action::Stop("a-1".into())), "{found:?}");
    let write = Action::Advance { machine: "b".into(), may_hand_over: false, may_request: false };
    assert!(found.contains(&write), "{found:?}");
    assert_eq!(shown(&seen(&task, machines)), (TaskPhase::Ongoing, "Aborting".into()));

    let stopped = in_phase("a", Phase::Stopped);
    let mut machines = vec![member("a"), member("c")];
    machines[0].update = Some(&stopped);
    let unmarks = [Action::Unmark("a".into()), Action::Unmark("c".into())];
    assert_eq!(actions(&seen(&task, machines.clone())), unmarks);
    for member in &mut machines {
        member.task = None;
    }
    assert_eq!(shown(&seen(&task, machines)), (TaskPhase::Aborted, "Aborted".into()));
}

#[test]
fn a_deleted_task_goes_when_nothing_of_it_is_left() {
    let mut task = task();
    task.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let look = seen(&task, vec![member("a")]);
    assert_eq!(actions(&look), [Action::Unmark("a".into())]);
    let mut free = member("a");
    free.task = None;
    let mut look = seen(&task, vec![free]);
    look.sets = None;
    assert_eq!(actions(&look), [Action::RemoveFinalizer]);
}

#[test]
fn an_obstacle_is_named_and_ends_by_itself_or_by_a_person() {
    let task = task();
    let mut look = seen(&task, vec![member("a")]);
    look.owner = Some(OwnerSeen { paused: Paused::No, ..owner() });
    look.obstacle = Some(Obstacle::OlderTask { task: "older".into() });
    assert_eq!(actions(&look), []);
    assert_eq!(shown(&look), (TaskPhase::Pending, "OlderTask".into()));
    look.obstacle = Some(Obstacle::Missing { object: "Updater u".into() });
    assert_eq!(shown(&look), (TaskPhase::Failed, "Missing".into()));
}

/// A NodeUpdate that waits for a Machine that its group lacks, or for another one.
fn waiting_for(machine: &str, lacks_machines: bool) -> NodeUpdate {
    let mut update = in_phase(machine, Phase::Waiting);
    let refusal = Refusal::GroupUnavailable { available: 1, needed: 2, lacks_machines };
    let blocker = refusal.blocker(&[], jiff::Timestamp::UNIX_EPOCH);
    update.status.as_mut().unwrap().blocked_by = vec![blocker];
    update
}

#[test]
fn a_task_fails_when_its_paused_control_plane_lacks_a_machine() {
    let task = task();
    let (missing, busy) = (waiting_for("a", true), waiting_for("a", false));
    let running = in_phase("a", Phase::Upgrading);
    let plane = |paused| OwnerSeen { owner: Owner::ControlPlane, paused, ..owner() };
    let by_task = || Paused::ByTask("t".into());
    let workers = OwnerSeen { paused: by_task(), ..owner() };
    for (what, update, owner, lacks, fails) in [
        ("paused by the task", &missing, plane(by_task()), true, true),
        ("paused by others", &missing, plane(Paused::ByOthers), true, true),
        ("not paused", &missing, plane(Paused::No), true, false),
        ("complete", &missing, plane(by_task()), false, false),
        ("another machine is down", &busy, plane(by_task()), true, false),
        ("a member is at work", &running, plane(by_task()), true, false),
        ("MachineSets create workers", &missing, workers, true, false),
    ] {
        let mut machines = vec![member("a"), member("b")];
        machines[0].update = Some(update);
        let look = GroupSeen {
            owner: Some(owner),
            lacks_machines: lacks,
            sets: None,
            ..seen(&task, machines)
        };
        let wanted = if fails { "MachineMissing" } else { "Upgrading" };
        assert_eq!(shown(&look).1, wanted, "{what}");
        assert_eq!(shown(&look).0 == TaskPhase::Failed, fails, "{what}");
        assert!(!actions(&look).contains(&Action::Unpause), "{what}");
    }
}

#[test]
fn the_status_of_a_task_for_30_000_machines_stays_small() {
    let task = task();
    let names: Vec<String> =
        (0..30_000).map(|n| format!("edge-1-md-0-bcdfg-{n:05}-x7k2p")).collect();
    let mut failed = in_phase("a", Phase::Failed);
    let status_of_update = failed.status.as_mut().unwrap();
    status_of_update.failure_message = "m".repeat(1000);
    let machines = names.iter().map(|name| Member { update: Some(&failed), ..member(name) });
    let look = seen(&task, machines.collect());
    let text = serde_json::to_string(&status(&look, &BTreeMap::new())).unwrap();
    assert!(text.len() < 256 << 10, "{}", text.len());
}

fn to_be_replaced() -> BTreeMap<String, Refused> {
    let why = Refused {
        reason: "UncoveredReplace",
        message: "m".into(),
        is_final: true,
        is_to_be_replaced: true,
    };
    BTreeMap::from([("Machine b".to_owned(), why)])
}

fn reason(status: &UpgradeTaskStatus) -> &str {
    &conditions::get(&status.conditions, status::READY).unwrap().reason
}

#[test]
fn a_task_ends_and_lets_cluster_api_replace_what_no_updater_covers_if_the_policy_requires_it() {
    let mut task = task();
    let next = status(&seen(&task, vec![member("a"), member("b")]), &to_be_replaced());
    assert_eq!((next.phase, reason(&next)), (TaskPhase::Aborted, status::REPLACED));
    task.status = Some(next);
    let look = seen(&task, vec![member("a")]);
    assert_eq!(actions(&look), [Action::Unmark("a".to_owned())]);
    let mut look = seen(&task, vec![Member { task: None, ..member("a") }]);
    look.sets = None;
    assert!(actions(&look).contains(&Action::Unpause), "{:?}", actions(&look));
    let mut held = look.clone();
    held.machines[0].exception = Some(ExceptionRule::Hold);
    assert!(!actions(&held).contains(&Action::Unpause), "a machine was held meanwhile");
    let mut edited = look.clone();
    edited.owner = Some(OwnerSeen { request: "other".into(), paused: Paused::No, ..owner() });
    assert_eq!(actions(&edited), []);
    assert_eq!(status(&edited, &BTreeMap::new()).phase, TaskPhase::Aborted, "it has ended");
}

#[test]
fn a_task_lets_cluster_api_replace_nothing_but_what_the_policy_is_about() {
    let plain = task();
    let (mut some, mut narrow) = (task(), task());
    some.spec.machines = Some(vec!["a".to_owned()]);
    narrow.spec.updater_ref = Some(refit_kinds::refit::UpdaterRef { name: "u".into() });
    let busy = in_phase("a", Phase::Draining);
    let updating = Member { update: Some(&busy), ..member("a") };
    let held = Member { exception: Some(ExceptionRule::Hold), ..member("a") };
    let mut paused_by_others = seen(&plain, vec![member("a")]);
    paused_by_others.owner = Some(OwnerSeen { paused: Paused::ByOthers, ..owner() });
    for (what, look, phase) in [
        ("one is in progress", seen(&plain, vec![updating, member("b")]), TaskPhase::Ongoing),
        ("one is held", seen(&plain, vec![held, member("b")]), TaskPhase::Failed),
        ("some are named", seen(&some, vec![member("a")]), TaskPhase::Failed),
        ("one Updater is named", seen(&narrow, vec![member("a")]), TaskPhase::Failed),
        ("another client pauses the owner", paused_by_others, TaskPhase::Failed),
    ] {
        assert_eq!(status(&look, &to_be_replaced()).phase, phase, "{what}");
    }
}

#[test]
fn a_task_of_a_request_goes_no_further_once_its_owner_is_edited() {
    let mut task = task();
    task.spec.version = None;
    task.spec.request_ref = Some(RequestRef { name: "external".into() });
    let (waits, begun) = (in_phase("a", Phase::Staging), in_phase("b", Phase::Succeeded));
    let mut machines = vec![member("a"), member("b"), member("c")];
    (machines[0].update, machines[1].update) = (Some(&waits), Some(&begun));
    let mut look = seen(&task, machines);
    let recorded = status(&look, &BTreeMap::new());
    assert_eq!(recorded.owner_request, "r");
    let mut edited = task.clone();
    edited.status = Some(recorded);
    look.task = &edited;
    look.owner =
        Some(OwnerSeen { request: "other".into(), paused: Paused::ByTask("t".into()), ..owner() });
    assert_eq!(actions(&look), [Action::Stop(waits.metadata.name.clone().unwrap())]);
    assert_eq!(shown(&look), (TaskPhase::Failed, "OwnerEdited".into()));
    // Aborted, it does not wait for a write that is not wanted any more.
    let mut aborted = edited.clone();
    aborted.spec.stage = Stage::Abort;
    look.task = &aborted;
    look.machines.remove(0);
    assert!(advanced(&actions(&look)).is_empty());
}

#[test]
fn an_aborted_task_leaves_the_sets_of_an_owner_that_another_task_pauses() {
    let mut task = task();
    task.spec.stage = Stage::Abort;
    let mut look = seen(&task, vec![Member { task: None, ..member("a") }]);
    look.owner = Some(OwnerSeen { paused: Paused::ByTask("t".into()), ..owner() });
    assert!(matches!(actions(&look)[..], [Action::Sets(_), ..]), "{:?}", actions(&look));
    look.owner = Some(OwnerSeen { paused: Paused::ByTask("other".into()), ..owner() });
    assert_eq!(actions(&look), []);
}

#[test]
fn a_deleted_task_lets_machine_sets_delete_extra_machines_before_it_goes() {
    let mut task = task();
    task.spec.stage = Stage::Abort;
    task.status =
        Some(UpgradeTaskStatus { phase: TaskPhase::Aborted, ..UpgradeTaskStatus::default() });
    task.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let mut look = seen(&task, vec![Member { task: None, ..member("a") }]);
    look.owner = Some(OwnerSeen { paused: Paused::ByTask("t".into()), ..owner() });
    let set = SetSeen { creates: true, marked: 1, leaving: 1, ..set("old", 2) };
    let with = |look: &mut GroupSeen<'_>, set: SetSeen| {
        let sets = SetsSeen { old: vec![set], wanted: 1, ..SetsSeen::default() };
        look.sets = Some(sets);
    };
    // Its status is not about its Machines yet.
    with(&mut look, SetSeen { shown: 1, ..set.clone() });
    assert_eq!(actions(&look), []);
    let status = status(&look, &BTreeMap::new());
    let paused = conditions::get(&status.conditions, OWNER_PAUSED).unwrap();
    assert_eq!(paused.reason, "ExtraMachines");
    assert_eq!(paused.message, "extra Machines are deleted by MachineSets first: old");
    with(&mut look, set.clone());
    let stop = SetWrite { name: Some("old".into()), replicas: 2, creates: false };
    assert_eq!(actions(&look), [Action::Sets(stop)]);
    with(&mut look, SetSeen { creates: false, ..set.clone() });
    let lower = SetWrite { name: Some("old".into()), replicas: 1, creates: true };
    assert_eq!(actions(&look), [Action::Sets(lower)]);
    with(&mut look, SetSeen { replicas: 1, ..set.clone() });
    assert_eq!(actions(&look), [Action::RemoveFinalizer], "its Machine is being deleted");
    // It may be about to create one, so that the extra one is to be deleted.
    let creating = SetSeen { replicas: 3, leaving: 0, ..set };
    with(&mut look, creating.clone());
    let stop = SetWrite { name: Some("old".into()), replicas: 3, creates: false };
    assert_eq!(actions(&look), [Action::Sets(stop)]);
    with(&mut look, SetSeen { creates: false, is_observed: false, ..creating.clone() });
    assert_eq!(actions(&look), []);
    with(&mut look, SetSeen { creates: false, ..creating });
    let rest = SetWrite { name: Some("old".into()), replicas: 2, creates: true };
    assert_eq!(actions(&look), [Action::Sets(rest)]);
    let mut by_cluster_api = task.clone();
    by_cluster_api.spec.via = Via::Spec;
    look.task = &by_cluster_api;
    assert_eq!(actions(&look), [Action::RemoveFinalizer], "such a task writes no MachineSets");
}

#[test]
fn a_pause_with_another_value_is_another_clients_whatever_task_is_named() {
    for (paused, named, wanted) in [
        (None, None, Paused::No),
        (None, Some("old"), Paused::No),
        (Some(keys::TASK), Some("old"), Paused::ByTask("old".into())),
        (Some(keys::TASK), None, Paused::ByOthers),
        (Some(""), Some("old"), Paused::ByOthers),
        (Some(""), None, Paused::ByOthers),
        (Some("maintenance"), Some("old"), Paused::ByOthers),
        (Some(keys::HELD), None, Paused::ByHold),
        (Some(keys::HELD), Some("old"), Paused::ByHold),
    ] {
        let pairs = [(keys::PAUSED, paused), (keys::TASK, named)].into_iter();
        let pairs = pairs.filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
        assert_eq!(Paused::of(&pairs.collect()), wanted, "{paused:?}, {named:?}");
    }
}

#[test]
fn a_task_shows_who_pauses_its_owner_instead_of_it() {
    let mut task = task();
    task.status = Some(UpgradeTaskStatus {
        conditions: status(&seen(&task, vec![member("a")]), &BTreeMap::new()).conditions,
        ..UpgradeTaskStatus::default()
    });
    for (paused, reason) in [
        (Paused::No, "GoesOn"),
        (Paused::ByHold, "Held"),
        (Paused::ByTask("other".into()), "OtherTask"),
        (Paused::ByOthers, "OtherClient"),
    ] {
        let mut look = seen(&task, vec![member("a")]);
        look.owner = Some(OwnerSeen { paused, ..owner() });
        let next = status(&look, &BTreeMap::new());
        let shown = conditions::get(&next.conditions, OWNER_PAUSED).unwrap();
        assert_eq!((&*shown.status, &*shown.reason), ("False", reason));
    }
}

#[test]
fn an_ended_task_of_a_held_owner_names_what_lets_cluster_api_replace_the_machine() {
    let task = task();
    let failed = in_phase("a", Phase::Failed);
    let machines = vec![Member { update: Some(&failed), ..member("a") }];
    for is_held in [true, false] {
        let look = GroupSeen { is_held, ..seen(&task, machines.clone()) };
        let next = status(&look, &BTreeMap::new());
        let shown = conditions::get(&next.conditions, OWNER_PAUSED).unwrap();
        assert_eq!(shown.message.contains("refit.dev/on-uncovered=Replace"), is_held, "{shown:?}");
    }
}

#[test]
fn a_task_takes_over_the_pause_of_a_hold() {
    let task = task();
    let mut look = seen(&task, vec![member("a")]);
    look.owner = Some(OwnerSeen { paused: Paused::ByHold, ..owner() });
    assert_eq!(actions(&look), [Action::Pause]);
}
