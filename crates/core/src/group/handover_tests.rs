//! Giving an unused slot back while another controller may be about to use it: every order of writes
//! of two controllers whose views are as old as they like.

use std::collections::BTreeSet;

use refit_kinds::refit::UpdateGroupStatus;

use super::*;

/// How many claims there may be: without an end of them the space has none.
const MOST_CLAIMS: i64 = 6;

/// The host's plan, as far as slots go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Plan {
    open: bool,
    returned: ClaimId,
}

/// Every version of both objects: a controller may see any of them.
#[derive(Clone, Debug)]
struct World {
    groups: Vec<UpdateGroupStatus>,
    plans: Vec<Plan>,
}

/// What tells one world from another. Versions that say the same are different versions.
type Key = (Vec<(Vec<(MachineUid, ClaimId)>, ClaimId)>, Vec<Plan>);

impl World {
    fn key(&self) -> Key {
        let groups = self.groups.iter().map(|group| {
            let slots = group.slots.iter();
            let slots = slots.map(|slot| (slot.machine_uid.clone(), slot.claim));
            (slots.collect(), group.claims)
        });
        (groups.collect(), self.plans.clone())
    }

    fn with_group(&self, seen: usize, next: UpdateGroupStatus) -> Option<Self> {
        (seen + 1 == self.groups.len()).then(|| {
            let mut world = self.clone();
            world.groups.push(next);
            world
        })
    }

    fn with_plan(&self, seen: usize, next: Plan) -> Option<Self> {
        (seen + 1 == self.plans.len()).then(|| {
            let mut world = self.clone();
            world.plans.push(next);
            world
        })
    }

    /// Every write that a controller with this view may make, if it is not refused by its
    /// resourceVersion. Whether it goes on or gives the slot back depends on things that change.
    fn writes(&self, group: usize, plan: usize, marks: bool) -> Vec<Self> {
        let (status, host) = (&self.groups[group], self.plans[plan]);
        let limits = Limits { replicas: 2, max_unavailable: 1 };
        let all_well: Vec<Other> = Vec::new();
        let wanted = |uid: &str, returned: ClaimId| Slot {
            claim: returned,
            ..slot(uid, &uid.into(), "update", Timestamp::UNIX_EPOCH)
        };
        let limits = Limits { replicas: limits.slots(), ..limits };
        let mut next = Vec::new();
        if status.claims < MOST_CLAIMS.into() {
            // Another machine wants the slot, too.
            if let Ok(Claim::Take(taken)) =
                claim(status, &wanted("other", 0.into()), limits, &all_well)
            {
                next.extend(self.with_group(group, taken));
            }
        }
        if host.open {
            return next;
        }
        match claim(status, &wanted("ours", host.returned), limits, &all_well) {
            Ok(Claim::Take(taken)) if status.claims < MOST_CLAIMS.into() => {
                next.extend(self.with_group(group, taken));
            }
            Ok(Claim::Held) => next.extend(self.with_plan(plan, Plan { open: true, ..host })),
            _ => {}
        }
        match give_back(status, &"ours".into(), host.returned) {
            Some(GiveBack::Mark(_)) if !marks => {
                next.extend(
                    release(status, &"ours".into()).and_then(|n| self.with_group(group, n)),
                );
            }
            Some(GiveBack::Mark(returned)) => {
                next.extend(self.with_plan(plan, Plan { returned, ..host }));
            }
            Some(GiveBack::Release(released)) => next.extend(self.with_group(group, released)),
            None => {}
        }
        next
    }
}

/// Goes through every world that can be reached; returns the first in which our machine is worked on
/// while the slot is not ours, and how many there were.
fn explore(marks: bool) -> (Option<Key>, usize) {
    let first = World { groups: vec![UpdateGroupStatus::default()], plans: vec![Plan::default()] };
    let mut known = BTreeSet::from([first.key()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        let (group, plan) =
            (&world.groups[world.groups.len() - 1], world.plans[world.plans.len() - 1]);
        if plan.open && !holds(group, &"ours".into()) {
            return (Some(world.key()), known.len());
        }
        for seen_group in 0..world.groups.len() {
            for seen_plan in 0..world.plans.len() {
                for next in world.writes(seen_group, seen_plan, marks) {
                    if known.insert(next.key()) {
                        open.push(next);
                    }
                }
            }
        }
    }
    (None, known.len())
}

#[test]
fn a_slot_is_not_given_back_under_a_machine_that_is_worked_on_however_old_the_views_are() {
    let (wrong, worlds) = explore(true);
    assert_eq!(wrong, None);
    assert!(worlds > 100, "{worlds}");
}

#[test]
fn without_the_mark_on_the_plan_it_would_be() {
    assert!(explore(false).0.is_some());
}
