//! Table tests of the planner: the decisions of each section, and the full intent.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    super::{
        keys,
        types::{Machine, MachineDeployment, MachineSet, Strategy, Template},
    },
    *,
};
use crate::IntOrPercent;

fn template(version: &str) -> Template {
    Template { version: version.into(), ..Template::default() }
}

/// A MachineSet with `spec`, `status` and available replicas.
fn set(name: &str, version: &str, spec: i64, status: i64, available: i64) -> MachineSet {
    MachineSet {
        name: name.into(),
        spec_replicas: spec,
        status_replicas: status,
        available_replicas: available,
        up_to_date_replicas: if version == "v2" { available } else { 0 },
        template: template(version),
        annotations: BTreeMap::from([(keys::REVISION.into(), version[1..].into())]),
        ..MachineSet::default()
    }
}

fn machine(name: &str, owner: &str, annotations: &[&str]) -> Machine {
    Machine {
        name: name.into(),
        owner: owner.into(),
        has_node: true,
        annotations: annotations.iter().map(|key| ((*key).into(), String::new())).collect(),
        ..Machine::default()
    }
}

fn moved(name: &str) -> Machine {
    machine(name, "new", &[keys::UPDATE_IN_PROGRESS, keys::PENDING_ACKNOWLEDGE_MOVE])
}

/// A MachineDeployment at v2 in a snapshot.
struct Case {
    deployment: MachineDeployment,
    sets: Vec<MachineSet>,
    machines: Vec<Machine>,
    in_place_updates: bool,
    decisions: Decisions,
}

fn case(replicas: i64, surge: i64, unavailable: i64, sets: Vec<MachineSet>) -> Case {
    let (surge, unavailable) = (IntOrPercent::Int(surge), IntOrPercent::Int(unavailable));
    Case {
        deployment: MachineDeployment {
            name: "md".into(),
            replicas,
            strategy: Strategy::rolling_update(surge, unavailable),
            template: template("v2"),
            rollout_after: None,
        },
        sets,
        machines: Vec::new(),
        in_place_updates: true,
        decisions: Decisions::new(),
    }
}

impl Case {
    fn machines(mut self, machines: impl IntoIterator<Item = Machine>) -> Self {
        self.machines.extend(machines);
        self
    }

    fn answer(mut self, old: &str, answer: bool) -> Self {
        self.decisions.insert((old.into(), "new".into()), answer);
        self
    }

    fn gate_off(mut self) -> Self {
        self.in_place_updates = false;
        self
    }

    fn on_delete(mut self) -> Self {
        self.deployment.strategy = Strategy::OnDelete;
        self
    }

    fn input(&self) -> IntentInput<'_> {
        IntentInput {
            deployment: &self.deployment,
            machine_sets: &self.sets,
            machines: &self.machines,
            in_place_updates: self.in_place_updates,
            decisions: &self.decisions,
            new_name: "new",
            now: Timestamp::default(),
        }
    }

    fn intent(&self) -> RolloutIntent {
        intend(&self.input())
    }

    /// Returns `name before->after (reason)` of every scaled MachineSet, sorted by name.
    fn scaled(&self) -> Vec<String> {
        let intent = self.intent();
        intent
            .machine_sets
            .iter()
            .filter(|(_, set)| set.replicas != set.replicas_before)
            .map(|(name, set)| {
                let reason = reason(&set.notes);
                format!("{name} {}->{} ({reason})", set.replicas_before, set.replicas)
            })
            .collect()
    }

    fn annotation(&self, set: &str, key: &str) -> Option<String> {
        self.intent().machine_sets[set].annotations.get(key).cloned()
    }
}

// --- A: acknowledge moved machines ------------------------------------------------------------

#[test]
fn a_moved_machine_counts_once_and_is_listed_while_pending() {
    let case = case(3, 0, 1, vec![set("old", "v1", 2, 2, 2), set("new", "v2", 0, 1, 0)])
        .machines([moved("m1")])
        .answer("old", true);
    assert_eq!(case.scaled(), ["new 0->1 (acknowledge Machines m1 moved from an old MachineSet)"]);
    assert_eq!(case.annotation("new", keys::ACKNOWLEDGED_MOVE).as_deref(), Some("m1"));
}

#[test]
fn an_acknowledged_machine_is_listed_but_not_counted_again() {
    let mut new = set("new", "v2", 1, 2, 0);
    new.annotations.insert(keys::ACKNOWLEDGED_MOVE.into(), "m1".into());
    let case = case(3, 0, 2, vec![set("old", "v1", 1, 1, 1), new])
        .machines([moved("m1"), moved("m2")])
        .answer("old", true);
    assert_eq!(
        case.scaled(),
        ["new 1->2 (acknowledge Machines m1,m2 moved from an old MachineSet)"]
    );
    assert_eq!(case.annotation("new", keys::ACKNOWLEDGED_MOVE).as_deref(), Some("m1,m2"));
}

#[test]
fn the_acknowledged_list_is_removed_when_none_is_pending() {
    let mut new = set("new", "v2", 1, 1, 0);
    new.annotations.insert(keys::ACKNOWLEDGED_MOVE.into(), "m1".into());
    let case = case(3, 0, 1, vec![set("old", "v1", 2, 2, 2), new])
        .machines([machine("m1", "new", &[keys::UPDATE_IN_PROGRESS])])
        .answer("old", true);
    assert_eq!(case.annotation("new", keys::ACKNOWLEDGED_MOVE), None);
}

#[test]
fn nothing_is_acknowledged_with_the_gate_off() {
    let case = case(3, 0, 1, vec![set("old", "v1", 2, 2, 2), set("new", "v2", 0, 1, 0)])
        .machines([moved("m1")])
        .gate_off();
    assert_eq!(case.annotation("new", keys::ACKNOWLEDGED_MOVE), None);
    assert!(case.scaled().iter().all(|line| !line.contains("acknowledge")));
}

#[test]
fn machines_of_other_sets_are_not_acknowledged() {
    let other = Machine { owner: "old".into(), ..moved("m1") };
    let case = case(3, 0, 1, vec![set("old", "v1", 3, 3, 2), set("new", "v2", 0, 0, 0)])
        .machines([other])
        .answer("old", true);
    assert_eq!(case.annotation("new", keys::ACKNOWLEDGED_MOVE), None);
}

// --- B: the new MachineSet --------------------------------------------------------------------

#[test]
fn the_new_set_grows_as_far_as_surge_leaves_room() {
    let old = || set("old", "v1", 3, 3, 3);
    for (surge, new_spec, expected) in
        [(1, 0, Some(1)), (2, 0, Some(2)), (10, 0, Some(3)), (1, 1, None), (0, 0, None)]
    {
        let case = case(3, surge, 0, vec![old(), set("new", "v2", new_spec, new_spec, new_spec)])
            .gate_off();
        let intent = case.intent();
        let replicas = intent.machine_sets["new"].replicas;
        assert_eq!(replicas, expected.unwrap_or(new_spec), "surge {surge}, new at {new_spec}");
    }
}

#[test]
fn existing_machines_use_surge_even_if_not_wanted() {
    // The old set was scaled to 1, but two of its machines still exist.
    let case = case(3, 1, 1, vec![set("old", "v1", 1, 3, 1), set("new", "v2", 1, 1, 1)]).gate_off();
    assert_eq!(case.intent().machine_sets["new"].replicas, 1);
}

#[test]
fn a_new_set_that_is_too_large_shrinks_to_the_replicas() {
    let case = case(3, 1, 0, vec![set("new", "v2", 5, 5, 5)]);
    assert_eq!(
        case.scaled(),
        [
            "new 5->3 (scale down to align MachineSet spec.replicas to MachineDeployment spec.replicas)"
        ]
    );
}

// --- C: old MachineSets -----------------------------------------------------------------------

#[test]
fn old_sets_shrink_down_to_the_minimum_of_available_machines() {
    // (replicas, surge, unavailable), old (spec, status, available), new (same) -> old after
    let table = [
        ((3, 1, 0), (3, 3, 3), (0, 0, 0), 3),
        ((3, 1, 0), (3, 3, 3), (1, 0, 0), 3),
        ((3, 1, 0), (3, 3, 3), (1, 1, 1), 2),
        ((3, 0, 1), (3, 3, 3), (0, 0, 0), 2),
        ((6, 0, 10), (6, 6, 6), (0, 0, 0), 0),
        ((6, 3, 1), (5, 6, 6), (3, 0, 0), 5),
        ((10, 0, 2), (10, 10, 9), (0, 0, 0), 9),
        // Fewer than the minimum are available: only section E scales down.
        ((10, 0, 2), (10, 10, 7), (0, 0, 0), 9),
        ((10, 0, 2), (10, 8, 8), (0, 0, 0), 8),
        ((10, 0, 2), (2, 2, 0), (8, 8, 8), 0),
    ];
    for ((replicas, surge, unavailable), old, new, expected) in table {
        let sets =
            vec![set("old", "v1", old.0, old.1, old.2), set("new", "v2", new.0, new.1, new.2)];
        let case = case(replicas, surge, unavailable, sets).gate_off();
        assert_eq!(
            case.intent().machine_sets["old"].replicas,
            expected,
            "R={replicas} surge={surge} unavailable={unavailable} old={old:?} new={new:?}"
        );
    }
}

#[test]
fn the_oldest_set_shrinks_first_and_names_break_ties() {
    let mut b = set("b", "v1", 2, 2, 2);
    b.created_at = Timestamp::from_second(1).unwrap();
    let a = set("a", "v0", 2, 2, 2);
    let c = set("c", "v0", 2, 2, 2);
    let case = case(6, 0, 3, vec![b, c, a, set("new", "v2", 0, 0, 0)]).gate_off();
    let intent = case.intent();
    let after = |name: &str| intent.machine_sets[name].replicas;
    assert_eq!((after("a"), after("c"), after("b")), (0, 1, 2));
    assert_eq!(intent.old_in_order, ["a", "c", "b"]);
}

#[test]
fn unavailable_replicas_of_any_old_set_go_before_available_ones() {
    let sets = vec![set("a", "v0", 3, 3, 3), set("b", "v1", 1, 1, 0), set("new", "v2", 1, 1, 1)];
    let case = case(4, 1, 0, sets).gate_off();
    assert_eq!(
        case.scaled(),
        ["b 1->0 (scale down to align to existing Machines or scale down by removing unavailable \
         replicas (and no available replicas exist on the MachineSet))"]
    );
}

#[test]
fn unavailable_new_machines_stop_the_old_sets_from_shrinking() {
    let case = case(6, 0, 1, vec![set("old", "v1", 5, 5, 5), set("new", "v2", 1, 1, 0)]).gate_off();
    assert_eq!(case.intent().machine_sets["old"].replicas, 5);
}

// --- D: in place ------------------------------------------------------------------------------

#[test]
fn both_sides_of_a_move_are_annotated() {
    let sets = vec![
        set("b", "v1", 2, 2, 2),
        set("a", "v0", 1, 1, 1),
        set("empty", "v0", 0, 0, 0),
        set("new", "v2", 0, 0, 0),
    ];
    let case = case(3, 0, 1, sets).answer("a", true).answer("b", true).answer("empty", true);
    assert_eq!(case.annotation("a", keys::MOVE_MACHINES).as_deref(), Some("new"));
    assert_eq!(case.annotation("b", keys::MOVE_MACHINES).as_deref(), Some("new"));
    assert_eq!(case.annotation("empty", keys::MOVE_MACHINES), None);
    assert_eq!(case.annotation("new", keys::RECEIVE_MACHINES).as_deref(), Some("a,b"));
}

#[test]
fn each_old_set_has_its_own_answer() {
    let sets = vec![set("a", "v0", 2, 2, 2), set("b", "v1", 1, 1, 1), set("new", "v2", 0, 0, 0)];
    let case = case(3, 0, 1, sets).answer("a", false).answer("b", true);
    assert_eq!(case.annotation("a", keys::MOVE_MACHINES), None);
    assert_eq!(case.annotation("new", keys::RECEIVE_MACHINES).as_deref(), Some("b"));
    // The set that cannot be updated is scaled down by deletion.
    assert_eq!(case.scaled(), ["a 2->1 (3 available replicas > 2 minimum available replicas)"]);
}

#[test]
fn a_plan_lists_the_pairs_to_ask_about() {
    let sets = vec![set("a", "v0", 2, 2, 2), set("b", "v1", 1, 1, 1), set("new", "v2", 0, 0, 0)];
    let case = case(3, 0, 1, sets).answer("a", true);
    let intent = case.intent();
    assert!(!intent.is_complete());
    assert_eq!(intent.pairs_to_ask, BTreeSet::from([("b".to_owned(), "new".to_owned())]));
}

#[test]
fn no_pairs_are_asked_at_full_size_or_with_the_gate_off() {
    let full = case(3, 1, 0, vec![set("old", "v1", 1, 1, 1), set("new", "v2", 3, 3, 3)]);
    assert!(full.intent().is_complete());
    let off = case(3, 1, 0, vec![set("old", "v1", 3, 3, 3), set("new", "v2", 0, 0, 0)]).gate_off();
    assert!(off.intent().is_complete());
    assert_eq!(off.annotation("old", keys::MOVE_MACHINES), None);
}

#[test]
fn surge_is_kept_to_the_one_machine_that_gets_a_rollout_going() {
    let case = case(3, 3, 0, vec![set("old", "v1", 3, 3, 3), set("new", "v2", 0, 0, 0)])
        .answer("old", true);
    assert_eq!(
        case.scaled(),
        ["new 0->1 (3 current Machines < 3 MachineDeployment spec.replicas + 3 maxSurge, surge 1 \
         allowed to create availability for in-place updates)"]
    );
}

#[test]
fn surge_is_dropped_while_the_rollout_moves_by_itself() {
    let up = |sets: Vec<MachineSet>, machines: Vec<Machine>| {
        let case = case(6, 3, 1, sets).answer("old", true).machines(machines);
        let intent = case.intent();
        let new = &intent.machine_sets["new"];
        (new.replicas, new.notes.contains(&Note::SurgeAllowed))
    };
    // Old sets may scale down by one: no surge machine is needed.
    let old = set("old", "v1", 6, 6, 6);
    assert_eq!(up(vec![old.clone(), set("new", "v2", 0, 0, 0)], Vec::new()), (0, false));
    // No set may scale down, and one machine is updating.
    let updating = machine("m1", "new", &[keys::UPDATE_IN_PROGRESS]);
    let sets = vec![set("old", "v1", 5, 5, 5), set("new", "v2", 1, 1, 0)];
    assert_eq!(up(sets, vec![updating]), (1, false));
}

#[test]
fn replicas_needed_for_a_scale_up_are_not_dropped_as_surge() {
    // Scaled from 6 to 12 during the rollout: 6 of 9 new machines are needed for the scale-up.
    let case = case(12, 3, 1, vec![set("old", "v1", 3, 3, 3), set("new", "v2", 3, 3, 3)])
        .answer("old", true);
    assert_eq!(
        case.scaled(),
        [
            "new 3->9 (6 current Machines < 12 MachineDeployment spec.replicas + 3 maxSurge, surge 3 \
         dropped to prioritize in-place updates)"
        ]
    );
}

#[test]
fn a_single_replica_with_surge_is_never_moved() {
    let start = case(1, 1, 0, vec![set("old", "v1", 1, 1, 1), set("new", "v2", 0, 0, 0)])
        .answer("old", true);
    assert_eq!(start.intent().machine_sets["new"].replicas, 1);
    let then = case(1, 1, 0, vec![set("old", "v1", 1, 1, 1), set("new", "v2", 1, 1, 1)])
        .answer("old", true);
    assert_eq!(then.annotation("old", keys::MOVE_MACHINES), None);
    assert_eq!(then.intent().machine_sets["old"].replicas, 0);
}

// --- E: deadlock ------------------------------------------------------------------------------

#[test]
fn a_rollout_stuck_behind_an_unavailable_machine_gives_one_up() {
    let sets = || vec![set("old", "v1", 3, 3, 2), set("new", "v2", 1, 1, 1)];
    let stuck = case(3, 1, 0, sets()).gate_off();
    let intent = stuck.intent();
    assert_eq!(intent.machine_sets["old"].replicas, 2);
    assert_eq!(
        reason(&intent.machine_sets["new"].notes),
        "scaling down by 1 to unblock rollout stuck due to unavailable Machine on old"
    );
}

#[test]
fn no_machine_is_given_up_while_anything_still_moves() {
    let kept = |old: MachineSet, new: MachineSet| {
        let case = case(3, 1, 0, vec![old, new]).gate_off();
        case.intent().machine_sets["old"].replicas == case.sets[0].spec_replicas
    };
    // A machine of the new set is not available.
    assert!(kept(set("old", "v1", 3, 3, 2), set("new", "v2", 1, 1, 0)));
    // The new set is still creating.
    assert!(kept(set("old", "v1", 3, 3, 2), set("new", "v2", 1, 0, 0)));
    // The old set is still deleting.
    assert!(kept(set("old", "v1", 2, 3, 2), set("new", "v2", 1, 1, 1)));
    // No machine is unavailable.
    assert!(kept(set("old", "v1", 2, 2, 2), set("new", "v2", 1, 1, 1)));
}

// --- OnDelete ---------------------------------------------------------------------------------

#[test]
fn on_delete_only_follows_the_user() {
    let untouched =
        case(3, 0, 0, vec![set("old", "v1", 3, 3, 3), set("new", "v2", 0, 0, 0)]).on_delete();
    assert_eq!(untouched.scaled(), Vec::<String>::new());
    assert!(untouched.intent().is_complete());
    assert_eq!(untouched.annotation("old", keys::DISABLE_MACHINE_CREATE).as_deref(), Some("true"));
    assert_eq!(untouched.annotation("new", keys::DISABLE_MACHINE_CREATE).as_deref(), Some("false"));
    let deleted =
        case(3, 0, 0, vec![set("old", "v1", 3, 2, 2), set("new", "v2", 0, 0, 0)]).on_delete();
    assert_eq!(deleted.scaled(), ["old 3->2 (scale down to align to existing Machines)"]);
    let replaced =
        case(3, 0, 0, vec![set("old", "v1", 2, 2, 2), set("new", "v2", 0, 0, 0)]).on_delete();
    assert_eq!(
        replaced.scaled(),
        ["new 0->1 (2 current Machines < 3 MachineDeployment spec.replicas)"]
    );
}

#[test]
fn on_delete_scales_down_and_counts_user_deletions() {
    let case =
        case(3, 0, 0, vec![set("old", "v1", 5, 4, 4), set("new", "v2", 1, 1, 1)]).on_delete();
    assert_eq!(
        case.scaled(),
        ["old 5->2 (scale down to align to existing Machines, scale down to align MachineSet \
         spec.replicas to MachineDeployment spec.replicas)"]
    );
}

// --- full intent ------------------------------------------------------------------------------

#[test]
fn a_plan_is_the_full_intent() {
    let mut new = set("new", "v2", 1, 1, 1);
    new.annotations.insert(keys::RECEIVE_MACHINES.into(), "gone".into());
    new.annotations.insert(keys::MOVE_MACHINES.into(), "elsewhere".into());
    let case = case(3, 1, 0, vec![set("old", "v1", 2, 2, 2), new]).answer("old", false);
    let intent = case.intent();
    let annotations = &intent.machine_sets["new"].annotations;
    let expected = BTreeMap::from(
        [
            (keys::DESIRED_REPLICAS, "3"),
            (keys::MAX_REPLICAS, "4"),
            (keys::REVISION, "2"),
            (keys::DISABLE_MACHINE_CREATE, "false"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    assert_eq!(*annotations, expected);
}

#[test]
fn a_missing_set_is_created_with_the_next_revision() {
    let case = case(3, 1, 0, vec![set("old", "v1", 3, 3, 3)]).answer("old", false);
    let intent = case.intent();
    assert_eq!(intent.current, "new");
    assert_eq!(intent.revision, "2");
    let created = intent.create.unwrap();
    assert_eq!((created.name.as_str(), created.replicas), ("new", 1));
    assert_eq!(created.annotations[keys::REVISION], "2");
    assert!(created.create_reason.contains("MachineSet old needs rollout"));
    assert!(!created.notes.contains(&Note::NowCurrent));
}

#[test]
fn an_old_set_made_current_again_gets_the_highest_revision() {
    let mut back = set("back", "v2", 0, 0, 0);
    back.annotations.insert(keys::REVISION.into(), "1".into());
    let mut old = set("old", "v3", 3, 3, 3);
    old.annotations.insert(keys::REVISION.into(), "7".into());
    let case = case(3, 1, 0, vec![old, back]).gate_off();
    let intent = case.intent();
    assert_eq!(intent.revision, "8");
    assert_eq!(intent.machine_sets["back"].annotations[keys::REVISION], "8");
    assert_eq!(intent.machine_sets["back"].notes[0], Note::NowCurrent);
    assert_eq!(intent.machine_sets["old"].annotations[keys::REVISION], "7");
}

#[test]
fn a_paused_deployment_only_drops_moves() {
    let mut old = set("old", "v1", 3, 3, 3);
    old.annotations.insert(keys::MOVE_MACHINES.into(), "new".into());
    let case = case(3, 0, 1, vec![old]).answer("old", true);
    let intent = intend_paused(&case.input());
    assert_eq!(intent.create, None);
    let old = &intent.machine_sets["old"];
    assert_eq!(old.replicas, 3);
    assert_eq!(old.annotations.get(keys::MOVE_MACHINES), None);
}

#[test]
fn a_plan_that_is_written_changes_nothing_the_second_time() {
    let case = case(3, 0, 1, vec![set("old", "v1", 3, 3, 3), set("new", "v2", 0, 0, 0)])
        .answer("old", true);
    let first = case.intent();
    let sets = case.sets.iter().map(|set| {
        let planned = &first.machine_sets[&set.name];
        let annotations = planned.annotations.clone();
        MachineSet { spec_replicas: planned.replicas, annotations, ..set.clone() }
    });
    let again = Case { sets: sets.collect(), ..case };
    let second = again.intent();
    for (name, set) in &second.machine_sets {
        assert_eq!(set.replicas, first.machine_sets[name].replicas);
        assert_eq!(set.annotations, first.machine_sets[name].annotations);
    }
}
