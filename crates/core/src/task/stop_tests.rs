//! A task that is to stop.

use refit_kinds::refit::{OnAbort, Phase};

use super::{
    tests::{in_phase, member, owner, seen, shown, task},
    *,
};

/// A task that is to stop.
fn stopped(on_abort: OnAbort, via: Via) -> UpgradeTask {
    let mut task = task();
    (task.spec.stage, task.spec.on_abort, task.spec.via) = (Stage::Abort, on_abort, via);
    task
}

fn is_stopped(task: &UpgradeTask, phase: Phase) -> bool {
    let update = in_phase("a", phase);
    let mut machine = member("a");
    machine.update = Some(&update);
    let look = seen(task, vec![machine]);
    assert_eq!(shown(&look), (TaskPhase::Ongoing, "Aborting".into()), "{phase:?}");
    actions(&look).contains(&Action::Stop("a-1".into()))
}

#[test]
fn machines_in_progress_are_finished_or_rolled_back() {
    let finish = stopped(OnAbort::Finish, Via::Machines);
    let roll_back = stopped(OnAbort::RollBack, Via::Machines);
    for phase in [Phase::Pending, Phase::Staging, Phase::Waiting] {
        assert!(is_stopped(&finish, phase), "{phase:?} has disturbed nothing");
        assert!(is_stopped(&roll_back, phase), "{phase:?}");
    }
    for phase in [Phase::Upgrading, Phase::Draining, Phase::Disrupting, Phase::Uncordoning] {
        assert!(!is_stopped(&finish, phase), "{phase:?}");
        assert!(is_stopped(&roll_back, phase), "{phase:?}");
    }
    let mut goes_on = finish;
    goes_on.spec.stage = Stage::Ongoing;
    let update = in_phase("a", Phase::Waiting);
    let mut machine = member("a");
    machine.update = Some(&update);
    let found = actions(&seen(&goes_on, vec![machine]));
    assert!(!found.contains(&Action::Stop("a-1".into())), "only with stage Abort: {found:?}");
}

/// What is next for a task that leaves its Machines to Cluster API and is to stop, and what it shows.
fn left_to_cluster_api(
    task: &UpgradeTask,
    machines: &[Member<'_>],
    change: impl FnOnce(&mut GroupSeen<'_>),
) -> (Vec<Action>, TaskPhase) {
    let unmarked = machines.iter().map(|member| Member { task: None, ..member.clone() });
    let mut look = seen(task, unmarked.collect());
    look.owner = Some(OwnerSeen { paused: Paused::No, ..owner() });
    change(&mut look);
    (actions(&look), shown(&look).0)
}

#[test]
fn cluster_api_begins_no_other_machine_of_a_stopped_task() {
    let running = in_phase("a", Phase::Draining);
    let failed = in_phase("a", Phase::Failed);
    let mut at_work = member("a");
    (at_work.update, at_work.is_updated_by_cluster_api) = (Some(&running), true);
    let asked = Member { update: None, ..at_work.clone() };
    let broken = Member { update: Some(&failed), ..at_work.clone() };
    let done = Member { spec: SpecState::Current, ..member("c") };
    let (paused, none) = (vec![Action::Pause], Vec::new());
    for on_abort in [OnAbort::RollBack, OnAbort::Finish] {
        let task = stopped(on_abort, Via::Spec);
        let next = |machines: &[Member<'_>], paused: Paused| {
            left_to_cluster_api(&task, machines, |look| {
                look.owner.as_mut().unwrap().paused = paused;
            })
        };
        let own = || Paused::ByTask("t".into());
        let others = [at_work.clone(), member("b")];
        assert_eq!(next(&others, Paused::No), (paused.clone(), TaskPhase::Ongoing));
        assert_eq!(next(&others, own()), (none.clone(), TaskPhase::Ongoing), "it is finished");
        let others = [asked.clone(), member("b")];
        assert_eq!(next(&others, own()), (none.clone(), TaskPhase::Ongoing), "it has been begun");
        let others = [done.clone(), member("b")];
        assert_eq!(next(&others, own()), (none.clone(), TaskPhase::Aborted));
        let others = [broken.clone(), member("b")];
        assert_eq!(
            next(&others, own()),
            (none.clone(), TaskPhase::Aborted),
            "it waits for a person"
        );
        let last = [at_work.clone(), done.clone()];
        assert_eq!(next(&last, Paused::No), (none.clone(), TaskPhase::Ongoing), "no other is left");
        assert_eq!(
            next(std::slice::from_ref(&done), Paused::No),
            (none.clone(), TaskPhase::Aborted)
        );
        assert_eq!(next(&[member("b")], Paused::ByOthers), (none.clone(), TaskPhase::Aborted));
    }
}

#[test]
fn an_owner_is_paused_only_if_a_stopped_task_has_asked_for_its_version() {
    let task = stopped(OnAbort::Finish, Via::Spec);
    let next = |change: fn(&mut GroupSeen<'_>)| left_to_cluster_api(&task, &[member("a")], change);
    let ends = (Vec::new(), TaskPhase::Aborted);
    assert_eq!(next(|look| look.owner.as_mut().unwrap().version = "v1.34.2".into()), ends);
    let older = Obstacle::OlderTask { task: "older".into() };
    assert_eq!(
        left_to_cluster_api(&task, &[member("a")], |look| look.obstacle = Some(older)),
        ends,
        "the Machines are another task's"
    );
    let of_topology = |look: &mut GroupSeen<'_>, replaces_none| {
        let owner = look.owner.as_mut().unwrap();
        (owner.version, owner.of_topology) = ("v1.34.2".into(), true);
        owner.replaces_none = replaces_none;
    };
    let next = |replaces_none| {
        left_to_cluster_api(&task, &[member("a")], |look| of_topology(look, replaces_none))
    };
    assert_eq!(next(false), (vec![Action::Pause], TaskPhase::Ongoing), "the topology would set it");
    assert_eq!(next(true), ends);
}

#[test]
fn an_owner_that_a_stopped_task_has_left_paused_is_taken_over_and_goes_on() {
    let mut task = task();
    task.spec.via = Via::Spec;
    let mut look = seen(&task, vec![member("a")]);
    let own = Paused::ByTask("t".into());
    let older = OwnerSeen { paused: own, version: "v1.34.2".into(), ..owner() };
    look.owner = Some(older);
    assert_eq!(
        actions(&look),
        [Action::SetVersion("v1.35.0".parse().unwrap())],
        "before it goes on"
    );
    let mut next = |paused| {
        look.owner = Some(OwnerSeen { paused, ..owner() });
        actions(&look)
    };
    assert_eq!(next(Paused::ByTask("older".into())), [Action::Pause]);
    assert_eq!(next(Paused::ByTask("t".into())), [Action::Unpause]);
    assert_eq!(next(Paused::No), []);
    assert_eq!(next(Paused::ByOthers), []);
}
