//! Releasing an unused slot while another controller may be about to use it: every order of writes
//! of two controllers whose views may be arbitrarily old.

use std::collections::BTreeSet;

use refit_kinds::refit::UpdateGroupStatus;

use super::{testing::claim, *};

/// Maximum number of claims, which keeps the state space finite.
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

/// Identifies a world. Versions with equal contents are still different versions.
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

    /// Every write that a controller with this view may make, unless its resourceVersion conflicts.
    /// Both proceeding and releasing the slot are possible, because that depends on conditions that
    /// change.
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
            // Another machine claims a slot, too.
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

/// Explores every reachable world. Returns the first one in which the test's machine is disturbed
/// without holding a slot, and the number of worlds.
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
fn a_slot_in_use_is_never_released_even_with_old_views() {
    let (wrong, worlds) = explore(true);
    assert_eq!(wrong, None);
    assert!(worlds > 100, "{worlds}");
}

#[test]
fn without_the_plans_mark_a_slot_in_use_is_released() {
    assert!(explore(false).0.is_some());
}
