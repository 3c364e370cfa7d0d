//! The replicas of a MachineDeployment's MachineSets while a task moves Machines between them.
//!
//! A MachineSet deletes Machines that are more than its replicas, and creates those that are missing. It
//! decides on caches of its own, which may lag behind each other. So its replicas are never below the Machines
//! that its own status shows, and it creates none while a Machine is on its way
//! (`docs/facts/machine-deployment.md#machineset-reconcile`):
//!
//! 1. The receiving MachineSet creates none, and gets replicas for the Machines that will arrive.
//! 2. Once its status shows that it knows its replicas, a Machine may be handed over.
//! 3. Once the other's status shows that the Machine has left, its replicas follow.
//!
//! Machines that are missing, because one was deleted or the owner was scaled up, are created by the receiving
//! MachineSet; none is handed over meanwhile.

/// A MachineSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSeen {
    /// Its name.
    pub name: String,
    /// `spec.replicas`.
    pub replicas: i64,
    /// How many Machines its status shows.
    pub shown: i64,
    /// Whether its status is about its current spec.
    pub is_observed: bool,
    /// Whether it creates missing Machines.
    pub creates: bool,
    /// How many Machines it controls; Machines that are being deleted count.
    pub machines: i64,
    /// How many of them are extra, and are to be deleted.
    pub leaving: i64,
}

impl SetSeen {
    /// The lowest replicas with which no Machine is deleted.
    fn floor(&self) -> i64 {
        self.machines.max(self.shown)
    }

    /// The Machines that it has and still creates.
    fn present(&self) -> i64 {
        if self.creates { self.machines.max(self.replicas) } else { self.machines }
    }

    /// Whether it still creates a Machine that was deleted.
    fn is_creating(&self) -> bool {
        self.creates && self.replicas > self.machines
    }

    fn write(&self, replicas: i64, creates: bool) -> Option<SetWrite> {
        let write = SetWrite { name: Some(self.name.clone()), replicas, creates };
        (self.replicas != replicas || self.creates != creates).then_some(write)
    }
}

/// Limits the extra Machines that are leaving to as many as there are, or will be, more than the MachineDeployment requests.
pub fn limit_leaving(sets: &mut [SetSeen], wanted: i64) {
    let mut surplus = sets.iter().map(SetSeen::present).sum::<i64>() - wanted;
    let mut share = |most: i64| {
        let share = most.min(surplus.max(0));
        surplus -= share;
        share
    };
    // Some MachineSets are about to delete theirs already.
    let lowered: Vec<i64> =
        sets.iter().map(|set| share((set.machines - set.replicas).clamp(0, set.leaving))).collect();
    for (set, lowered) in sets.iter_mut().zip(lowered) {
        set.leaving = lowered + share(set.leaving - lowered);
    }
}

/// The MachineSets of a MachineDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetsSeen {
    /// The one with the MachineDeployment's template.
    pub current: Option<SetSeen>,
    /// All others.
    pub old: Vec<SetSeen>,
    /// `spec.replicas` of the MachineDeployment.
    pub wanted: i64,
    /// How many Machines of the others will arrive: their updates have begun.
    pub arriving: i64,
    /// The task is about to end: no Machine is handed over any more.
    pub ends: bool,
}

/// A write of a MachineSet's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetWrite {
    /// Its name; `None` for the one with the MachineDeployment's template, which does not exist yet.
    pub name: Option<String>,
    /// `spec.replicas`.
    pub replicas: i64,
    /// Whether it creates missing Machines.
    pub creates: bool,
}

impl SetsSeen {
    fn missing(&self) -> i64 {
        let all = self.old.iter().chain(&self.current);
        (self.wanted - all.map(|set| set.machines).sum::<i64>()).max(0)
    }

    /// The next write, if one is needed and safe.
    pub fn next_write(&self) -> Option<SetWrite> {
        if self.ends {
            return self.write_at_rest();
        }
        if let Some(creating) = self.old.iter().find(|set| set.creates) {
            return creating.write(creating.replicas, false);
        }
        let Some(current) = &self.current else {
            return Some(SetWrite { name: None, replicas: 0, creates: false });
        };
        self.write_current(current).or_else(|| self.lower_old(false))
    }

    fn write_current(&self, current: &SetSeen) -> Option<SetWrite> {
        let missing = self.missing();
        if missing == 0 {
            return current.write(current.floor().max(current.machines + self.arriving), false);
        }
        // A MachineSet that does not know yet that it creates none may be creating the missing one, and one that
        // does not show its Machines would create too few or too many.
        let is_settled =
            |set: &SetSeen| set.shown == set.machines && (set.creates || set.is_observed);
        if !self.old.iter().all(is_settled) || current.shown != current.machines {
            return None;
        }
        current.write(current.machines + missing, true)
    }

    fn lower_old(&self, creates: bool) -> Option<SetWrite> {
        let lower = |set: &SetSeen| set.write(set.replicas.min(set.floor()), creates);
        self.old.iter().find_map(lower)
    }

    /// At rest, every MachineSet has the replicas of its Machines without those that are leaving, and creates those that are
    /// deleted: before it has, its replicas stay. Machines that are leaving are marked, so the MachineSet deletes them and no
    /// others.
    fn write_at_rest(&self) -> Option<SetWrite> {
        let rests = |set: &SetSeen| {
            let settled = set.shown == set.machines && !set.is_creating();
            settled.then(|| set.write(set.machines - set.leaving, true)).flatten()
        };
        self.old.iter().chain(&self.current).find_map(rests)
    }

    /// The MachineSets that delete extra Machines once their replicas are lowered.
    pub(super) fn to_be_lowered(&self) -> impl Iterator<Item = &SetSeen> {
        let keeps = |set: &&SetSeen| {
            let without = set.machines - set.leaving;
            set.leaving > 0 && set.replicas > without && !set.is_creating()
        };
        self.old.iter().chain(&self.current).filter(keeps)
    }

    /// Whether a Machine may be handed over to the MachineSet with the MachineDeployment's template.
    pub fn may_hand_over(&self) -> bool {
        // Otherwise the one that loses the Machine might create another.
        let creates_none = |set: &SetSeen| set.is_observed && !set.creates;
        self.missing() == 0
            && self.old.iter().all(creates_none)
            && self
                .current
                .as_ref()
                .is_some_and(|current| creates_none(current) && current.replicas > current.floor())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(name: &str, replicas: i64, machines: i64, creates: bool) -> SetSeen {
        SetSeen {
            name: name.into(),
            replicas,
            shown: machines,
            is_observed: true,
            creates,
            machines,
            leaving: 0,
        }
    }

    fn write(name: &str, replicas: i64, creates: bool) -> SetWrite {
        SetWrite { name: Some(name.into()), replicas, creates }
    }

    #[test]
    fn machines_move_one_write_at_a_time() {
        let mut seen = SetsSeen {
            current: None,
            old: vec![set("old", 3, 3, true)],
            wanted: 3,
            arriving: 1,
            ends: false,
        };
        assert_eq!(seen.next_write(), Some(write("old", 3, false)));
        seen.old[0].creates = false;
        let first = SetWrite { name: None, replicas: 0, creates: false };
        assert_eq!(seen.next_write(), Some(first));
        seen.current = Some(set("new", 0, 0, false));
        assert_eq!(seen.next_write(), Some(write("new", 1, false)));
        seen.current = Some(SetSeen { is_observed: false, ..set("new", 1, 0, false) });
        assert!(!seen.may_hand_over(), "its own controller does not know its replicas yet");
        seen.current = Some(set("new", 1, 0, false));
        assert!(seen.may_hand_over());
        seen.current = Some(set("new", 1, 1, false));
        seen.old = vec![SetSeen { shown: 3, ..set("old", 3, 2, false) }];
        seen.arriving = 0;
        assert_eq!(seen.next_write(), None, "its own controller still counts the Machine");
        seen.old[0].shown = 2;
        assert_eq!(seen.next_write(), Some(write("old", 2, false)));
    }

    #[test]
    fn a_machine_that_is_missing_is_created_for_the_current_template() {
        let mut seen = SetsSeen {
            current: Some(set("new", 2, 1, false)),
            old: vec![set("old", 1, 1, false)],
            wanted: 3,
            arriving: 1,
            ends: false,
        };
        assert_eq!(seen.next_write(), Some(write("new", 2, true)));
        seen.current = Some(set("new", 2, 1, true));
        assert!(!seen.may_hand_over(), "it would not create the missing one");
        assert_eq!(seen.next_write(), None);
        seen.current = Some(set("new", 2, 2, true));
        assert_eq!(seen.next_write(), Some(write("new", 3, false)));
    }

    #[test]
    fn at_the_end_every_set_cares_for_its_own_machines() {
        let seen = SetsSeen {
            current: Some(set("new", 2, 1, false)),
            old: vec![set("old", 2, 2, false)],
            wanted: 3,
            arriving: 0,
            ends: true,
        };
        assert_eq!(seen.next_write(), Some(write("old", 2, true)));
        let seen = SetsSeen { old: vec![set("old", 2, 2, true)], ..seen };
        assert_eq!(seen.next_write(), Some(write("new", 1, true)));
        let old = SetSeen { leaving: 1, ..set("old", 2, 2, true) };
        let mut seen = SetsSeen { current: Some(set("new", 1, 1, true)), old: vec![old], ..seen };
        assert_eq!(seen.next_write(), Some(write("old", 1, true)), "one extra Machine leaves");
        (seen.old[0].replicas, seen.old[0].machines) = (1, 2);
        assert_eq!(seen.next_write(), None, "it is being deleted");
        seen.old[0] = set("old", 1, 1, true);
        assert_eq!(seen.next_write(), None);
    }

    /// A MachineSet and what its controller has in its caches.
    #[derive(Clone, Debug)]
    struct Lagging {
        replicas: i64,
        creates: bool,
        generation: i64,
        machines: i64,
        knows: (i64, bool, i64),
        knows_machines: i64,
        status: (i64, i64),
    }

    impl Lagging {
        fn new(machines: i64, creates: bool) -> Self {
            Self {
                replicas: machines,
                creates,
                generation: 1,
                machines,
                knows: (machines, creates, 1),
                knows_machines: machines,
                status: (machines, 1),
            }
        }

        fn apply(&mut self, write: &SetWrite) {
            (self.replicas, self.creates) = (write.replicas, write.creates);
            self.generation += 1;
        }

        fn seen(&self, name: &str) -> SetSeen {
            SetSeen {
                name: name.into(),
                replicas: self.replicas,
                shown: self.status.0,
                is_observed: self.status.1 == self.generation,
                creates: self.creates,
                machines: self.machines,
                leaving: 0,
            }
        }

        /// What its controller does: how many Machines it creates, or deletes if negative.
        fn reconcile(&mut self) -> i64 {
            let (replicas, creates, generation) = self.knows;
            let lacks = replicas - self.knows_machines;
            let change = if lacks > 0 && !creates { 0 } else { lacks };
            self.machines += change;
            self.knows_machines += change;
            self.status = (self.knows_machines, generation);
            change
        }
    }

    proptest! {
        /// However far the caches of the MachineSets' controller lag behind: at rest, it deletes the marked Machines and no
        /// others, and in the end there are as many as before.
        #[test]
        fn at_rest_only_machines_that_are_leaving_are_deleted(
            machines in (1..6_i64, 0..4_i64),
            marked in (1..3_i64, 0..3_i64),
            moves in proptest::collection::vec((0..5_u8, 0..2_usize), 1..80),
        ) {
            let wanted = machines.0 + machines.1;
            let mut marked = [marked.0, marked.1];
            let of = |machines, marked| Lagging::new(machines + marked, true);
            let mut sets = [of(machines.0, marked[0]), of(machines.1, marked[1])];
            let catch_up = (0..8).flat_map(|_| [1, 2, 3, 0].map(|step| [(step, 0), (step, 1)])).flatten();
            for (step, at) in moves.into_iter().chain(catch_up) {
                let set = &mut sets[at];
                match step {
                    0 => {
                        let mut seen = [0, 1].map(|at| SetSeen {
                            leaving: marked[at],
                            ..sets[at].seen(&at.to_string())
                        });
                        limit_leaving(&mut seen, wanted);
                        let seen = SetsSeen {
                            old: seen.to_vec(), wanted, ends: true, ..SetsSeen::default()
                        };
                        if let Some(write) = seen.next_write() {
                            let at = usize::from(write.name.as_deref() == Some("1"));
                            sets[at].apply(&write);
                        }
                    }
                    1 => set.knows = (set.replicas, set.creates, set.generation),
                    2 => set.knows_machines = set.machines,
                    3 => {
                        let change = set.reconcile();
                        if change < 0 {
                            let marked = &mut marked[at];
                            prop_assert!(-change <= *marked, "deleted {} of {marked}", -change);
                            *marked += change;
                        }
                    }
                    // One that is not marked is lost.
                    _ => {
                        if set.machines > marked[at] {
                            set.machines -= 1;
                            set.knows_machines = set.knows_machines.min(set.machines);
                        }
                    }
                }
            }
            prop_assert_eq!(sets.iter().map(|set| set.machines).sum::<i64>(), wanted);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Write,
        HandOver,
        LearnSpec(bool),
        LearnMachines(bool),
        Reconcile(bool),
        Lose(bool),
        ScaleUp,
        Begin,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            4 => Just(Move::Write),
            3 => Just(Move::HandOver),
            3 => any::<bool>().prop_map(Move::LearnSpec),
            3 => any::<bool>().prop_map(Move::LearnMachines),
            4 => any::<bool>().prop_map(Move::Reconcile),
            1 => any::<bool>().prop_map(Move::Lose),
            1 => Just(Move::ScaleUp),
            2 => Just(Move::Begin),
        ];
        proptest::collection::vec(one, 1..200)
    }

    proptest! {
        #[test]
        fn no_machine_is_deleted_and_none_is_one_too_many(moves in moves()) {
            let mut old = Lagging::new(4, true);
            let mut new: Option<Lagging> = None;
            let (mut wanted, mut begun) = (4, 0);
            for step in moves {
                let seen = SetsSeen {
                    current: new.as_ref().map(|set| set.seen("new")),
                    old: vec![old.seen("old")],
                    wanted,
                    arriving: begun,
                    ends: false,
                };
                let of = |is_new: bool| is_new && new.is_some();
                let is_new = match step {
                    Move::LearnSpec(is_new) | Move::LearnMachines(is_new)
                    | Move::Reconcile(is_new) | Move::Lose(is_new) => of(is_new),
                    Move::Write | Move::HandOver | Move::ScaleUp | Move::Begin => false,
                };
                match step {
                    Move::Write => match seen.next_write() {
                        Some(SetWrite { name: None, .. }) => new = Some(Lagging::new(0, false)),
                        Some(write) if write.name.as_deref() == Some("new") => {
                            new.as_mut().unwrap().apply(&write);
                        }
                        Some(write) => old.apply(&write),
                        None => {}
                    },
                    Move::HandOver if seen.may_hand_over() && begun > 0 && old.machines > 0 => {
                        old.machines -= 1;
                        new.as_mut().unwrap().machines += 1;
                        begun -= 1;
                    }
                    Move::Begin if begun < old.machines && begun < 2 => begun += 1,
                    Move::ScaleUp if wanted < 7 => wanted += 1,
                    Move::LearnSpec(_) => {
                        let set = if is_new { new.as_mut().unwrap() } else { &mut old };
                        set.knows = (set.replicas, set.creates, set.generation);
                    }
                    Move::LearnMachines(_) => {
                        let set = if is_new { new.as_mut().unwrap() } else { &mut old };
                        set.knows_machines = set.machines;
                    }
                    Move::Reconcile(_) => {
                        let set = if is_new { new.as_mut().unwrap() } else { &mut old };
                        let change = set.reconcile();
                        prop_assert!(change >= 0, "deleted {}", -change);
                    }
                    // Its controller sees the deletion at once: it is slower only for what others write.
                    Move::Lose(_) => {
                        let set = if is_new { new.as_mut().unwrap() } else { &mut old };
                        if set.machines > begun {
                            set.machines -= 1;
                            set.knows_machines = set.knows_machines.min(set.machines);
                        }
                    }
                    Move::HandOver | Move::ScaleUp | Move::Begin => {}
                }
                let all = old.machines + new.as_ref().map_or(0, |set| set.machines);
                prop_assert!(all <= wanted, "{all} Machines for {wanted}");
            }
        }
    }
}
