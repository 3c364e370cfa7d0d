use std::collections::BTreeMap;

use proptest::prelude::*;
use refit_kinds::{
    canonical::{CANONICAL, Keys, REFIT},
    refit::{
        ExceptionRule, GroupOwner, MachineUid, Stage, UpgradeTaskSpec, UpgradeTaskStatus, Via,
    },
};

use super::*;

const CHANNEL: &str = "channel=1.35-classic/stable";

fn task() -> UpgradeTask {
    let spec = UpgradeTaskSpec {
        owner_ref: Some(GroupOwner { kind: "MachineDeployment".into(), ..GroupOwner::default() }),
        option: Some(CHANNEL.parse().unwrap()),
        ..UpgradeTaskSpec::of("edge-1", Via::Machines)
    };
    let mut task = UpgradeTask::new("t", spec);
    task.metadata.finalizers = Some(vec!["f".into()]);
    task
}

/// Machines whose annotations change as the task writes them.
#[derive(Clone, Debug)]
struct World {
    task: UpgradeTask,
    keys: Keys,
    machines: BTreeMap<String, BTreeMap<String, String>>,
    uids: BTreeMap<String, MachineUid>,
    deleting: Option<String>,
    held: Option<String>,
    lock: Lock,
    at_once: usize,
    is_ready: bool,
    /// The most Machines that were asked at once.
    peak: usize,
}

impl World {
    fn of(keys: Keys, count: usize) -> Self {
        // In the order of their uids, the last one comes first.
        let names: Vec<String> = (0..count).map(|at| format!("m-{at}")).collect();
        let uid = |at: usize| MachineUid::from(format!("uid-{}", count - at).as_str());
        Self {
            task: task(),
            keys,
            uids: names.iter().enumerate().map(|(at, name)| (name.clone(), uid(at))).collect(),
            machines: names.into_iter().map(|name| (name, BTreeMap::new())).collect(),
            deleting: None,
            held: None,
            lock: Lock::Unused,
            at_once: 1,
            is_ready: true,
            peak: 0,
        }
    }

    fn seen(&self) -> OptionSeen<'_> {
        let members = self.machines.iter().map(|(name, annotations)| OptionMember {
            name,
            uid: &self.uids[name],
            created: None,
            deleting: self.deleting.as_ref() == Some(name),
            annotations,
            update: None,
            exception: (self.held.as_ref() == Some(name)).then_some(ExceptionRule::Hold),
        });
        OptionSeen {
            task: &self.task,
            option: self.task.spec.option.as_ref().unwrap(),
            keys: self.keys,
            waits_for_status: false,
            obstacle: None,
            owner: Some(OptionOwner { deleting: false, is_ready: self.is_ready }),
            machines: members.collect(),
            lacks_machines: false,
            at_once: self.at_once,
            order: None,
            is_paced_to_a_halt: false,
            lock: self.lock.clone(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    fn asked(&self) -> Vec<&str> {
        let asked =
            self.machines.iter().filter(|(_, known)| known.contains_key(self.keys.upgrade_to));
        asked.map(|(name, _)| name.as_str()).collect()
    }

    /// Makes the next writes, and shows the result.
    fn look(&mut self) -> &UpgradeTaskStatus {
        for action in option_actions(&self.seen()) {
            match action {
                OptionAction::AddFinalizer => {
                    self.task.metadata.finalizers = Some(vec!["f".into()]);
                }
                OptionAction::RemoveFinalizer => self.task.metadata.finalizers = None,
                OptionAction::Lock(machine) => {
                    assert_eq!(self.lock, Lock::Free);
                    self.lock = Lock::Held(machine);
                }
                OptionAction::Unlock => self.lock = Lock::Free,
                OptionAction::Ask(machine) => {
                    let annotations =
                        BTreeMap::from([(self.keys.upgrade_to.to_owned(), CHANNEL.to_owned())]);
                    self.machines.insert(machine, annotations);
                }
                OptionAction::Withdraw(machine) => {
                    self.machines.get_mut(&machine).unwrap().remove(self.keys.upgrade_to);
                }
            }
        }
        self.peak = self.peak.max(self.asked().len());
        self.task.status = Some(option_status(&self.seen(), &BTreeMap::new()));
        self.task.status.as_ref().unwrap()
    }

    /// A Machine that was asked ends its refresh.
    fn finishes(&mut self, machine: &str, succeeds: bool) {
        let known = self.machines.get_mut(machine).unwrap();
        if succeeds {
            let option = known.remove(self.keys.upgrade_to).unwrap();
            known.remove(self.keys.last_failed_attempt_at);
            known.insert(self.keys.release.to_owned(), option);
        } else {
            known.insert(self.keys.last_failed_attempt_at.to_owned(), "now".to_owned());
        }
    }

    fn phase(&self) -> TaskPhase {
        self.seen().phase()
    }
}

#[test]
fn machines_are_asked_in_the_order_of_their_uids() {
    let mut world = World::of(CANONICAL, 3);
    let mut order = Vec::new();
    while world.look().phase != TaskPhase::Complete {
        let asked = world.asked().first().map(|name| (*name).to_owned()).unwrap();
        world.finishes(&asked, true);
        order.push(asked);
    }
    assert_eq!((order, world.peak), (vec!["m-2".into(), "m-1".into(), "m-0".into()], 1));
}

#[test]
fn refits_prefix_asks_as_many_as_may_be_down() {
    let mut world = World { at_once: 2, ..World::of(REFIT, 3) };
    world.look();
    assert_eq!(world.asked(), ["m-1", "m-2"]);
    world.finishes("m-1", true);
    world.look();
    assert_eq!(world.asked(), ["m-0", "m-2"]);
}

#[test]
fn a_machine_that_fails_or_is_deleted_keeps_the_others_waiting() {
    let mut world = World::of(CANONICAL, 3);
    world.look();
    world.finishes("m-2", false);
    let shown = world.look();
    assert_eq!((shown.phase, shown.counts.unwrap().failed), (TaskPhase::Failed, 1));
    assert_eq!(world.asked(), ["m-2"]);
    world.finishes("m-2", true);
    world.deleting = Some("m-1".into());
    assert_eq!(world.look().phase, TaskPhase::Ongoing);
    assert_eq!(world.asked(), [""; 0]);
    world.deleting = None;
    world.look();
    assert_eq!(world.asked(), ["m-1"]);
}

#[test]
fn a_machine_that_is_held_is_left_out_and_the_task_does_not_end() {
    let mut world = World { held: Some("m-1".into()), ..World::of(CANONICAL, 2) };
    world.look();
    world.finishes("m-0", true);
    let shown = world.look();
    assert_eq!((shown.phase, shown.counts.unwrap().excepted), (TaskPhase::Ongoing, 1));
    world.held = None;
    world.look();
    assert_eq!(world.asked(), ["m-1"]);
}

#[test]
fn a_control_plane_that_is_not_ready_begins_with_no_machine() {
    let mut world = World { is_ready: false, lock: Lock::Free, ..World::of(CANONICAL, 3) };
    let shown = world.look();
    assert_eq!((shown.phase, &*shown.conditions[0].reason), (TaskPhase::Pending, "OwnerNotReady"));
    assert_eq!((world.asked().len(), &world.lock), (0, &Lock::Free));
}

#[test]
fn the_lock_is_kept_until_its_machine_has_the_option() {
    let mut world = World { lock: Lock::Free, ..World::of(CANONICAL, 2) };
    world.look();
    world.look();
    assert_eq!(world.lock, Lock::Held("m-1".into()));
    world.finishes("m-1", true);
    world.look();
    assert_eq!((&world.lock, world.asked().len()), (&Lock::Free, 0));
    world.look();
    assert_eq!(world.asked(), ["m-0"]);
}

#[test]
fn a_lock_without_a_request_is_released_and_one_that_cannot_be_read_is_reported() {
    let mut world = World { lock: Lock::Held("m-0".into()), ..World::of(CANONICAL, 2) };
    world.look();
    assert_eq!(world.lock, Lock::Free);
    world.lock = Lock::Unreadable("ConfigMap x".into());
    let shown = world.look();
    assert_eq!((shown.phase, &*shown.conditions[0].message), (TaskPhase::Failed, "ConfigMap x"));
    assert_eq!(world.asked(), [""; 0]);
}

#[test]
fn a_task_that_stops_withdraws_its_request_and_releases_the_lock() {
    let mut world = World { lock: Lock::Free, ..World::of(CANONICAL, 2) };
    world.look();
    world.task.spec.stage = Stage::Abort;
    assert_eq!(world.look().phase, TaskPhase::Ongoing);
    assert_eq!(world.asked(), [""; 0]);
    world.look();
    assert_eq!((&world.lock, world.phase()), (&Lock::Free, TaskPhase::Aborted));
}

#[test]
fn a_request_for_something_else_that_only_waits_gives_way() {
    let mut world = World::of(CANONICAL, 2);
    let other = [(CANONICAL.upgrade_to, "channel=typo"), (CANONICAL.status, "failed")];
    let other = other.map(|(key, value)| (key.to_owned(), value.to_owned()));
    world.machines.insert("m-0".into(), BTreeMap::from(other));
    world.look();
    assert_eq!(world.machines["m-0"][CANONICAL.upgrade_to], CHANNEL);
    assert_eq!(world.asked(), ["m-0"], "it may have begun: it comes before the others");
}

proptest! {
    #[test]
    fn whatever_ends_when_no_more_are_asked_than_may_be_down_and_all_are_upgraded(
        count in 1_usize..6, at_once in 1_usize..4, locked in any::<bool>(),
        ends in proptest::collection::vec((0_usize..6, any::<bool>()), 0..40),
    ) {
        let lock = if locked { Lock::Free } else { Lock::Unused };
        let at_once = if locked { 1 } else { at_once };
        let mut world = World { lock, at_once, ..World::of(CANONICAL, count) };
        let all_succeed = (0..100).map(|at| (at, true));
        for (at, succeeds) in ends.into_iter().chain(all_succeed) {
            if world.look().phase == TaskPhase::Complete {
                break;
            }
            let asked: Vec<String> = world.asked().into_iter().map(str::to_owned).collect();
            if !asked.is_empty() {
                world.finishes(&asked[at % asked.len()], succeeds);
            }
        }
        prop_assert_eq!(world.phase(), TaskPhase::Complete);
        prop_assert!(world.peak <= at_once);
        prop_assert!(world.machines.values().all(|known| known[CANONICAL.release] == CHANNEL));
        prop_assert!(matches!(world.lock, Lock::Unused | Lock::Free));
    }
}
