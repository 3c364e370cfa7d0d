//! The planner of the `OnDelete` strategy: it only follows the user's deletions.

use super::intent::{Note, Planner};

pub(super) fn decide(planner: &mut Planner<'_>) {
    planner.reconcile_new_machine_set();
    reconcile_old_machine_sets(planner);
}

fn reconcile_old_machine_sets(planner: &mut Planner<'_>) {
    let old_replicas: i64 = planner.old.iter().map(|old| old.spec).sum();
    if old_replicas == 0 {
        return;
    }
    let total = old_replicas + planner.new.intended();
    let mut down = (total - planner.replicas()).max(0);
    planner.sort_old_by_age();

    // Replicas without a machine: a user deleted it. They are always removed, and they count as
    // scaled down.
    for old in &mut planner.old {
        let missing = old.spec - old.status;
        if old.spec > 0 && missing > 0 {
            old.note(Note::AlignToExisting);
            old.intent = Some((old.spec - missing).max(0));
            down -= missing;
        }
    }
    for old in &mut planner.old {
        let surplus = old.intended().min(down);
        if surplus > 0 {
            old.note(Note::AlignToDeployment);
            old.intent = Some(old.intended() - surplus);
            down -= surplus;
        }
    }
}
