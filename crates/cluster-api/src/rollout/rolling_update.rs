//! The planner of the `RollingUpdate` strategy (`docs/facts/machine-deployment.md#rolling-update`,
//! sections A to E).

use std::collections::BTreeSet;

use super::intent::{Note, Planner};
use super::keys;
use super::types::{Machine, MachineSet};

pub(super) fn decide(planner: &mut Planner<'_>) {
    acknowledge_moved_machines(planner);
    planner.reconcile_new_machine_set();
    reconcile_old_machine_sets(planner);
    prefer_in_place(planner);
    break_deadlock(planner);
}

/// A: counts the machines that were moved to the current MachineSet, each once. The annotation
/// lists the counted machines, for the MachineSet controller and for this planner.
fn acknowledge_moved_machines(planner: &mut Planner<'_>) {
    let input = planner.input;
    if !input.in_place_updates {
        return;
    }
    let new = &mut planner.new;
    let counted_before: BTreeSet<&str> = input
        .machine_sets
        .iter()
        .filter(|set| set.name == new.name)
        .flat_map(MachineSet::acknowledged_machines)
        .collect();
    let pending: BTreeSet<&str> = input
        .machines
        .iter()
        .filter(|machine| machine.owner == new.name && machine.is_pending_acknowledge())
        .map(|machine| machine.name.as_str())
        .collect();
    if pending.is_empty() {
        return;
    }
    let machines = keys::join_sorted(pending.iter().copied());
    let arrived = pending.difference(&counted_before).count();
    if arrived > 0 {
        new.spec += i64::try_from(arrived).unwrap_or(i64::MAX);
        new.note(Note::Acknowledge { machines: machines.clone() });
    }
    new.annotations.insert(keys::ACKNOWLEDGED_MOVE.to_owned(), machines);
}

/// C: scales down old MachineSets as far as the minimum of available machines allows, unavailable
/// machines first. The planner does not know which machine will be deleted, so each existing
/// machine counts as available.
fn reconcile_old_machine_sets(planner: &mut Planner<'_>) {
    if planner.old.iter().all(|old| old.spec == 0) {
        return;
    }
    let minimum = (planner.replicas() - planner.fenceposts.unavailable).max(0);
    let total: i64 = planner.all().map(|set| set.spec).sum();
    let available: i64 = planner.all().map(|set| set.available).sum();
    let pending_down: i64 =
        planner.all().map(|set| (set.status - set.spec.min(set.intended())).max(0)).sum();
    let new_unavailable = (planner.new.spec - planner.new.available).max(0);
    let down = (total - pending_down - minimum - new_unavailable).max(0);
    if down == 0 {
        return;
    }
    planner.sort_old_by_age();
    let mut room = Room { down, available, minimum };
    room.scale_down(planner, true);
    room.scale_down(planner, false);
}

/// The remaining scale-down, and the minimum of available machines.
struct Room {
    down: i64,
    available: i64,
    minimum: i64,
}

impl Room {
    fn scale_down(&mut self, planner: &mut Planner<'_>, only_unavailable: bool) {
        for old in &mut planner.old {
            if self.down <= 0 {
                break;
            }
            let replicas = old.intended();
            if replicas <= 0 {
                continue;
            }
            let most = if only_unavailable { (replicas - old.available).max(0) } else { replicas };
            let mut down = most.min(self.down);
            if down == 0 {
                continue;
            }
            let available_before = self.available;
            if old.available > 0 {
                let mut existing = (old.status - (replicas - down).max(0)).max(0);
                if existing > 0 {
                    let spare = self.available - self.minimum;
                    if spare < existing {
                        let kept = (old.status - spare.max(0)).min(replicas);
                        down = (replicas - kept).max(0);
                        existing = (old.status - kept).max(0);
                    }
                    self.available -= old.available.min(existing);
                }
            }
            if down > 0 {
                old.intent = Some((replicas - down).max(0));
                self.down = (self.down - down).max(0);
                old.note(if self.available == available_before {
                    Note::AlignOrRemoveUnavailable
                } else {
                    Note::AvailableAboveMinimum {
                        available: available_before,
                        minimum: self.minimum,
                    }
                });
            }
        }
    }
}

/// D: turns scale-downs into moves if the extension can update in place, and limits surge to what
/// an in-place update needs.
fn prefer_in_place(planner: &mut Planner<'_>) {
    if !planner.input.in_place_updates || planner.new.spec >= planner.replicas() {
        return;
    }
    let new_name = planner.new.name.clone();
    let mut sources = BTreeSet::new();
    for old in &mut planner.old {
        if old.status <= 0 || !old.eligible {
            continue;
        }
        let pair = (old.name.clone(), new_name.clone());
        match planner.input.decisions.get(&pair) {
            Some(true) => {}
            Some(false) => continue,
            None => {
                planner.pairs_to_ask.insert(pair);
                continue;
            }
        }
        old.note(Note::MoveTo { machine_set: new_name.clone() });
        old.annotations.insert(keys::MOVE_MACHINES.to_owned(), new_name.clone());
        sources.insert(old.name.as_str());
    }
    if sources.is_empty() {
        return;
    }
    planner.new.annotations.insert(keys::RECEIVE_MACHINES.to_owned(), keys::join_sorted(sources));
    limit_surge(planner);
}

fn limit_surge(planner: &mut Planner<'_>) {
    let Some(intent) = planner.new.intent.filter(|intent| *intent > planner.new.spec) else {
        return;
    };
    let total: i64 = planner.all().map(|set| set.intended().max(set.status)).sum();
    let exceeding = (total - planner.replicas()).max(0);
    let up = intent - planner.new.spec;
    let surge = up.min(exceeding);
    if surge <= 0 {
        return;
    }
    let mut without_surge = up - surge;
    if without_surge == 0 && !is_scaling_or_updating(planner) {
        without_surge = 1;
        planner.new.note(Note::SurgeAllowed);
    } else {
        planner.new.note(Note::SurgeDropped { surge });
    }
    let spec = planner.new.spec;
    planner.new.intent = (without_surge > 0).then_some(spec + without_surge);
}

/// Reports whether the rollout progresses by itself, so that no additional machine is needed.
fn is_scaling_or_updating(planner: &Planner<'_>) -> bool {
    let new = &planner.new;
    new.spec != new.status
        || new.spec != new.up_to_date
        || new.spec != new.available
        || planner.old.iter().any(|old| old.spec < old.status || old.intended() < old.spec)
        || planner.input.machines.iter().any(Machine::is_updating)
}

/// E: the rollout is stuck because an old MachineSet has an unavailable machine that C counted as
/// available. Machines of old MachineSets are not remediated, so one replica is given up.
fn break_deadlock(planner: &mut Planner<'_>) {
    let old_status: i64 = planner.old.iter().map(|old| old.status).sum();
    let old_available: i64 = planner.old.iter().map(|old| old.available).sum();
    if old_status == 0 || old_status == old_available {
        return;
    }
    if planner.all().any(|set| set.spec != set.status || set.intent.is_some()) {
        return;
    }
    if planner.new.available != planner.new.status {
        return;
    }
    let stuck = planner.old.iter_mut().find(|old| old.available != old.status && old.spec != 0);
    if let Some(old) = stuck {
        old.intent = Some(old.spec - 1);
        planner.new.note(Note::UnblockStuck { machine_set: old.name.clone() });
    }
}
