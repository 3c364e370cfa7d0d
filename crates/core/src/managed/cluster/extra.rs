//! The extra Machines of a ClusterUpgrade: they are Ready before the upgrade is commenced, and removed after its workers.
//! Those of an upgrade that ends otherwise, or goes on without them, are removed as well.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::{
    conditions, keys,
    refit::{
        CapacityMethod, CapacityState, CapacityTimeout, ClusterUpgradeStatus, ExtraCapacity,
        UpgradePhase, UpgradeRecord, Via,
    },
};

use super::{
    Hindrance, Known, Write, roll_back,
    steps::{REMOVED, RESERVED, trying},
};
use crate::managed::{
    capacity::{CapacityWrite, Reserve},
    steps::{ERROR, Progress},
};

/// Condition of a ClusterUpgrade: whether its extra Machines are Ready.
pub const EXTRA_CAPACITY: &str = "ExtraCapacity";

/// What the message of the step ends with after the deadline.
const STILL_WAITS: &str =
    ". That takes longer than spec.extraCapacity.withinMinutes, and the upgrade still waits for it";

/// The step: extra Machines are Ready before the upgrade begins, or it goes on without.
pub(super) fn reserved(known: &Known) -> Progress<Write> {
    let Some(capacity) = known.capacity_due() else { return Progress::Unneeded };
    let Reserve::Waits { why, mut writes } = known.capacity.reserve(capacity) else {
        return Progress::Done;
    };
    if !writes.is_empty() && !known.is_guarded() {
        // Otherwise what is created could outlive the request.
        writes = vec![CapacityWrite::Guard];
    }
    let is_late = known.is_out_of_time();
    if is_late && known.proceeds() {
        // What the last try has shown is clearer than what is lacking.
        let failed = known.waiting(RESERVED).filter(|step| step.reason == ERROR);
        let failed = failed.map_or(&*why, |step| &step.message);
        return Progress::waits(known.skipped(failed.strip_suffix(STILL_WAITS).unwrap_or(failed)));
    }
    if let Some(problem) = known.health.problem()
        && writes.iter().any(CapacityWrite::adds_machines)
    {
        // What is unhealthy gets no Machines. It may lose some: one that is not Ready can be why.
        writes.retain(|write| !write.adds_machines());
        if writes.is_empty() {
            return Progress::waits(problem);
        }
    }
    if known.hindrance.is_none() && !writes.is_empty() {
        return trying(known, RESERVED, why, all(writes));
    }
    let (why, is_refused) = match &known.hindrance {
        Some(Hindrance::Refused(why)) => (why.clone(), true),
        Some(Hindrance::Passing(why)) => (why.clone(), false),
        None => (why, false),
    };
    if is_late {
        return Progress::error(why + STILL_WAITS);
    }
    if is_refused { Progress::error(why) } else { Progress::waits(why) }
}

/// The step: the extra Machines are deleted.
pub(super) fn removed(known: &Known) -> Progress<Write> {
    if !known.capacity.remains() {
        return match known.capacity_state() {
            Some(CapacityState::Reserving | CapacityState::Reserved | CapacityState::Removed) => {
                Progress::Done
            }
            Some(CapacityState::Skipped) | None => Progress::Unneeded,
        };
    }
    match &known.hindrance {
        Some(Hindrance::Refused(why)) => return Progress::error(why.clone()),
        Some(Hindrance::Passing(why)) => return Progress::waits(why.clone()),
        None => {}
    }
    let why = format!("deletion of {}", with_cause(known, known.capacity.left()));
    let writes = known.capacity.removal();
    if !writes.is_empty() {
        return trying(known, REMOVED, why, all(writes));
    }
    if known.takes_long(REMOVED) { Progress::error(why) } else { Progress::waits(why) }
}

/// Notes in the record how far the extra Machines are.
pub(super) fn note(known: &Known, record: &mut UpgradeRecord) {
    record.extra_capacity = next_state(known, record);
}

fn next_state(known: &Known, record: &UpgradeRecord) -> Option<CapacityState> {
    let state = record.extra_capacity;
    let remains = known.capacity.remains();
    let removed = state.map(|state| match state {
        CapacityState::Skipped => CapacityState::Skipped,
        CapacityState::Reserving | CapacityState::Reserved | CapacityState::Removed => {
            CapacityState::Removed
        }
    });
    match record.phase {
        UpgradePhase::Upgrading => {}
        UpgradePhase::New
        | UpgradePhase::Pending
        | UpgradePhase::Completed
        | UpgradePhase::Failed => return removed,
    }
    if known.upgrade.spec.extra_capacity.is_none() || is_done(record, REMOVED) {
        return removed;
    }
    if state == Some(CapacityState::Skipped) {
        return state;
    }
    if known.task().is_some() {
        return match (state, remains) {
            // Without a record, what is there was Ready before.
            (None, true) => Some(CapacityState::Reserved),
            (Some(_), false) => removed,
            (None, false) | (Some(_), true) => state,
        };
    }
    let step = record.conditions.iter().find(|step| step.type_ == RESERVED);
    let Some(step) = step else { return state };
    if step.status == "True" {
        return remains.then_some(CapacityState::Reserved);
    }
    // Another step may keep an upgrade waiting whose extra Machines are Ready.
    let lacks_some = known.lacks_capacity();
    let is_skipped = lacks_some && known.is_out_of_time() && known.proceeds();
    Some(if is_skipped { CapacityState::Skipped } else { CapacityState::Reserving })
}

/// Shows how far the extra Machines are, and adds the writes that remove those that are not wanted (any more). Returns when
/// it is decided whether the upgrade goes on without.
pub(super) fn keep(
    known: &Known,
    status: &mut ClusterUpgradeStatus,
    writes: &mut Vec<Write>,
) -> Option<Timestamp> {
    let version = known.version();
    let record = status.history.iter().find(|record| record.version == *version)?;
    let state = record.extra_capacity;
    let is_wanted = record.phase == UpgradePhase::Upgrading
        && known.upgrade.spec.extra_capacity.is_some()
        && state != Some(CapacityState::Skipped)
        && !roll_back::is_refused(known);
    if known.hindrance.is_none() && !is_wanted {
        let mut due = known.capacity.removal();
        let is_left = known.capacity.is_left_to_task(|task| known.has_live_task(task));
        if due.is_empty() && known.is_guarded() && !is_left {
            due.push(CapacityWrite::Unguard);
        }
        let is_new = |write: &Write| !writes.contains(write);
        let due: Vec<Write> = all(due).into_iter().filter(is_new).collect();
        writes.extend(due);
    } else if known.hindrance.is_none() && known.is_guarded() && is_done(record, REMOVED) {
        writes.push(Write::Capacity(CapacityWrite::Unguard));
    }
    let ends =
        (state == Some(CapacityState::Reserving)).then(|| known.out_of_time_at(record)).flatten();
    let before = conditions::get(&status.conditions, EXTRA_CAPACITY);
    let shown = shown(known, record, is_wanted, before);
    match shown {
        Some((truth, reason, message)) => {
            let what = (EXTRA_CAPACITY, truth, reason, &*message);
            let generation = known.upgrade.metadata.generation;
            conditions::set(&mut status.conditions, known.now, generation, what);
        }
        None => status.conditions.retain(|condition| condition.type_ != EXTRA_CAPACITY),
    }
    ends.filter(|at| *at > known.now)
}

/// What the condition shows: status, reason and message; `None` without extra Machines.
fn shown(
    known: &Known,
    record: &UpgradeRecord,
    is_wanted: bool,
    before: Option<&Condition>,
) -> Option<(&'static str, &'static str, String)> {
    let waits = |step: &str| {
        let step = record.conditions.iter().find(|one| one.type_ == step);
        step.filter(|step| step.status != "True").map(|step| step.message.clone())
    };
    match record.extra_capacity {
        Some(CapacityState::Skipped) => {
            let before = before.filter(|shown| shown.reason == "Skipped");
            let message = before.map(|shown| shown.message.clone());
            let message = message.or_else(|| waits(RESERVED));
            let message = message.unwrap_or_else(|| "the upgrade goes on without".to_owned());
            Some(("False", "Skipped", message))
        }
        _ if known.capacity.remains() && (!is_wanted || waits(REMOVED).is_some()) => {
            let left = with_cause(known, known.capacity.left());
            let failed = match &known.hindrance {
                Some(Hindrance::Refused(why) | Hindrance::Passing(why)) => format!(": {why}"),
                None => String::new(),
            };
            // What the last try has shown stays until one succeeds.
            let before = before
                .filter(|shown| shown.reason == "Removing" && !known.capacity.removal().is_empty());
            let message = match before {
                Some(before) if failed.is_empty() => before.message.clone(),
                Some(_) | None => format!("deletion of {left}{failed}"),
            };
            Some(("False", "Removing", message))
        }
        None => None,
        Some(CapacityState::Reserving) => {
            Some(("False", "Reserving", waits(RESERVED).unwrap_or_default()))
        }
        Some(CapacityState::Reserved) => {
            Some(("True", "Reserved", format!("in addition: {}", known.capacity.left())))
        }
        Some(CapacityState::Removed) => {
            Some(("False", "Removed", "the extra Machines are deleted".to_owned()))
        }
    }
}

/// What is to be deleted, with what keeps it.
fn with_cause(known: &Known, left: String) -> String {
    match known.capacity.kept_by(|task| known.has_live_task(task)) {
        Some(kept) => format!("{left} ({kept})"),
        None => left,
    }
}

fn is_done(record: &UpgradeRecord, step: &str) -> bool {
    record.conditions.iter().any(|one| one.type_ == step && one.status == "True")
}

fn all(writes: Vec<CapacityWrite>) -> Vec<Write> {
    writes.into_iter().map(Write::Capacity).collect()
}

impl Known {
    /// Whether extra Machines of the Cluster matter.
    pub fn asks_for_capacity(&self) -> bool {
        let is_recorded = |record: &UpgradeRecord| record.extra_capacity.is_some();
        self.upgrade.spec.extra_capacity.is_some()
            || self.is_guarded()
            || self.history().iter().any(is_recorded)
    }

    /// Whether the ClusterUpgrade is kept until its extra Machines are removed.
    fn is_guarded(&self) -> bool {
        let finalizers = self.upgrade.metadata.finalizers.iter().flatten();
        finalizers.into_iter().any(|one| one == keys::EXTRA_CAPACITY)
    }

    fn capacity_state(&self) -> Option<CapacityState> {
        self.recorded()?.extra_capacity
    }

    /// Why the Cluster cannot have the extra Machines.
    pub(super) fn no_capacity(&self) -> Option<(&'static str, String)> {
        let capacity = self.capacity_due()?;
        let control_plane = &self.control_plane.as_ref()?.highest;
        let invalid = self.capacity.invalid(capacity, (control_plane, self.version()));
        invalid.filter(|_| self.task().is_none())
    }

    /// The extra Machines that are requested, unless the upgrade goes on without, or they were removed after its workers.
    fn capacity_due(&self) -> Option<&ExtraCapacity> {
        let is_over = self.recorded().is_some_and(|record| {
            record.extra_capacity == Some(CapacityState::Skipped) || is_done(record, REMOVED)
        });
        self.upgrade.spec.extra_capacity.as_ref().filter(|_| !is_over)
    }

    /// Whether an UpgradeTask of this name is there, and ends only after its work.
    fn has_live_task(&self, name: &str) -> bool {
        self.tasks.iter().any(|task| {
            let finalizers = task.metadata.finalizers.iter().flatten();
            task.metadata.name.as_deref() == Some(name)
                && finalizers.into_iter().any(|one| one == keys::TASK_FINALIZER)
        })
    }

    /// Whether parts of the Cluster may be unhealthy because of its extra Machines: all that are requested are there, and not
    /// all are Ready, or some are there that are not requested any more.
    pub(super) fn is_reserving(&self) -> bool {
        self.capacity_due().is_some_and(|capacity| {
            self.capacity.has_unwanted(capacity)
                || !self.capacity.lacks_machines(capacity) && self.lacks_capacity()
        })
    }

    /// Whether extra Machines are requested, and not all are Ready.
    fn lacks_capacity(&self) -> bool {
        let capacity = self.upgrade.spec.extra_capacity.as_ref();
        let reserve = capacity.map(|capacity| self.capacity.reserve(capacity));
        matches!(reserve, Some(Reserve::Waits { .. }))
    }

    /// Who works through the Machines; `None` for what reaches them.
    pub(super) fn via(&self) -> Option<Via> {
        let spec = &self.upgrade.spec;
        let by_replicas = |method| match method {
            // Cluster API would upgrade the extra Machines as well.
            CapacityMethod::Replicas => Some(Via::Machines),
            CapacityMethod::Clone => None,
        };
        let method = spec.extra_capacity.as_ref().map(|capacity| capacity.method);
        spec.via.or_else(|| method.and_then(by_replicas))
    }

    /// Whether the upgrade goes on without extra Machines if they are not Ready in time.
    fn proceeds(&self) -> bool {
        self.upgrade.spec.extra_capacity.as_ref().is_some_and(|capacity| {
            match capacity.on_timeout {
                CapacityTimeout::Proceed => true,
                CapacityTimeout::Delay => false,
            }
        })
    }

    /// When the extra Machines are to be Ready: once all were, they have the whole time again.
    fn out_of_time_at(&self, record: &UpgradeRecord) -> Option<Timestamp> {
        let capacity = self.upgrade.spec.extra_capacity.as_ref()?;
        let within = SignedDuration::from_mins(capacity.within_minutes.into());
        let mut steps = record.conditions.iter();
        let step = steps.find(|step| step.type_ == RESERVED && step.status != "True")?;
        step.last_transition_time.0.checked_add(within).ok()
    }

    fn is_out_of_time(&self) -> bool {
        let at = self.recorded().and_then(|record| self.out_of_time_at(record));
        at.is_some_and(|at| at <= self.now)
    }

    /// That the upgrade goes on without extra Machines, and why.
    fn skipped(&self, why: &str) -> String {
        let capacity = self.upgrade.spec.extra_capacity.as_ref();
        let minutes = capacity.map_or(0, |capacity| capacity.within_minutes);
        format!("{why}. After {minutes} minutes, the upgrade goes on without extra Machines")
    }
}
