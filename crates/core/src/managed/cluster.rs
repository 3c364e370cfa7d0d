//! The steps of a ClusterUpgrade, for a Cluster of Cluster API: an UpgradeTask for the whole Cluster does the work.

mod extra;
mod hops;
mod roll_back;
mod silencing;
mod steps;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    conditions,
    refit::{
        ClusterUpgrade, ClusterUpgradeStatus, Owner, Stage, TaskPhase, UpgradePhase, UpgradeRecord,
        UpgradeTask, UpgradeTaskStatus, Via,
    },
    version::KubernetesVersion,
};

use self::steps::{MILESTONES, PREPARATIONS, STEPS, WORKERS, named, stop};
pub use self::{
    extra::EXTRA_CAPACITY,
    roll_back::Returning,
    silencing::{MachineVersions, SILENCED},
    steps::was_commenced,
};
use super::{
    capacity::{CapacitySeen, CapacityWrite},
    engine::{Ended, Facts, Looked, Preparations, Request, look, version_at_work},
    graph::GraphRead,
    health::Health,
    notifications::{self, Receivers, Shown},
    silences::{SilenceTried, SilenceWrite},
};
use crate::task::{GroupVersion, HopTo, Obstacle, status::READY, unreachable};

/// Condition of a ClusterUpgrade: what the last check of the Cluster has found.
pub const HEALTHY: &str = "Healthy";
/// How often closed gates, and a version graph without a way, are checked again.
const CHECK_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// Everything that a ClusterUpgrade is decided on.
#[derive(Clone, Debug)]
pub struct Known {
    /// The ClusterUpgrade.
    pub upgrade: Arc<ClusterUpgrade>,
    /// What stands in the way of any upgrade of the Cluster.
    pub obstacle: Option<Obstacle>,
    /// The control plane, if its version is known.
    pub control_plane: Option<GroupVersion>,
    /// The MachineDeployments.
    pub workers: Vec<GroupVersion>,
    /// Of each MachineDeployment, the version that its workers return to if there is one, or why they cannot. Empty unless
    /// they are to return.
    pub returning: Vec<Returning>,
    /// The versions of the Machines.
    pub machines: MachineVersions,
    /// Every UpgradeTask of the Cluster.
    pub tasks: Vec<Arc<UpgradeTask>>,
    /// Whether the Cluster is healthy.
    pub health: Health,
    /// The extra Machines of the Cluster.
    pub capacity: CapacitySeen,
    /// The version graph of the controller.
    pub graph: GraphRead,
    /// Why a write of the last decision could not be made.
    pub hindrance: Option<Hindrance>,
    /// What was written to Alertmanager at this look, and what has come of it.
    pub silenced: Vec<SilenceTried>,
    /// The receivers of notifications.
    pub receivers: Receivers,
    /// The time of the look.
    pub now: Timestamp,
}

/// Why a write could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// A person has to end it.
    Refused(String),
    /// It may end by itself.
    Passing(String),
}

/// A write for a ClusterUpgrade. The status is written before it: what was begun is known after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Create the UpgradeTask that upgrades the Cluster.
    Commence {
        /// Its name.
        task: String,
        /// The version.
        version: KubernetesVersion,
        /// The versions on the way.
        hops: Vec<KubernetesVersion>,
        /// Who works through the Machines; `None` for what reaches them.
        via: Option<Via>,
    },
    /// Stop the UpgradeTask of this name.
    Abort(String),
    /// Write for the extra Machines.
    Capacity(CapacityWrite),
    /// Create the UpgradeTask that rolls back the workers of a stopped upgrade.
    RollBack {
        /// Its name.
        task: String,
        /// The MachineDeployment, and the version.
        to: HopTo,
    },
    /// Write to Alertmanager, before the status: what was created is found again by its comment.
    Silence(SilenceWrite),
}

/// What a ClusterUpgrade shows, and what is to be written for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status.
    pub status: ClusterUpgradeStatus,
    /// The writes.
    pub writes: Vec<Write>,
    /// When the next look is due, apart from changes.
    pub again: Option<Timestamp>,
}

/// Decides what is next for a ClusterUpgrade.
pub fn decide(known: &Known) -> Decision {
    let ClusterUpgrade { metadata, spec, status } = known.upgrade.as_ref();
    let old = status.clone().unwrap_or_default();
    let Looked { mut history, ready, mut writes, again, begins_at, before } =
        look(&old.history, &known.request(), &known.facts());
    let mut next = ClusterUpgradeStatus { observed_generation: metadata.generation, ..old.clone() };
    let check_at = known.check_at();
    let version = known.version();
    if let Some(record) = history.iter_mut().find(|record| record.version == *version) {
        next.phase = record.phase;
        if record.phase == UpgradePhase::Upgrading || record.complete_time == Some(Time(known.now))
        {
            known.note_task(record);
            if let Some(Write::Commence { task, .. }) = writes.first() {
                record.task = Some(task.clone());
            }
        }
        known.note_hops(record);
        extra::note(known, record);
        if known.shows_health(record) {
            let (status, reason, message) = known.health.condition();
            let what = (HEALTHY, status, reason, &*message);
            conditions::set(&mut next.conditions, known.now, metadata.generation, what);
        }
    }
    if let Some((record, others)) = history.split_first_mut() {
        let unhealthy = conditions::get(&next.conditions, HEALTHY)
            .filter(|shown| shown.status == "False" && known.shows_health(record))
            .map(|shown| (&*shown.reason, &*shown.message));
        let (receivers, milestones) = (&known.receivers, &MILESTONES);
        let (before, ready, now) = (before.as_ref(), &ready, known.now);
        let shown = Shown { before, begins_at, ready, unhealthy, receivers, milestones, now };
        notifications::note(record, &shown);
        for other in others {
            notifications::keep_waiting(other, receivers);
        }
    }
    next.history = history;
    let (silences, silence_ends) = silencing::keep(known, &mut next);
    writes.extend(silences);
    let capacity_due = extra::keep(known, &mut next, &mut writes);
    let superseded = (*version != spec.version)
        .then(|| format!("the upgrade to {version} is finished first: {}", ready.message));
    let message = superseded.unwrap_or(ready.message);
    let is_ready = ready.is_ready && *version == spec.version;
    let what = (READY, if is_ready { "True" } else { "False" }, &*ready.reason, &*message);
    conditions::set(&mut next.conditions, known.now, metadata.generation, what);
    // That a gate opens, or another graph is published, wakes no one.
    let waits = known.health.has_closed_gates() || known.hops().is_err();
    let checks_at = waits.then(|| known.now.saturating_add(CHECK_AGAIN));
    let ahead = check_at.filter(|at| *at > known.now);
    let late = notifications::delayed_at(begins_at)
        .filter(|at| *at > known.now && !known.receivers.is_empty());
    let all = again.into_iter().chain(ahead).chain(late);
    let again =
        all.chain(checks_at.and_then(Result::ok)).chain(silence_ends).chain(capacity_due).min();
    Decision { again: again.filter(|_| !next.phase.has_ended()), status: next, writes }
}

impl Known {
    /// The version that is worked on. Without a record, an unfinished task of this upgrade shows it.
    fn version(&self) -> &KubernetesVersion {
        let requested = &self.upgrade.spec.version;
        let unfinished = || self.own_tasks().find(|task| !task.phase().has_ended());
        let version = version_at_work(self.history(), requested, |record| {
            was_commenced(record)
                || self.own_tasks().any(|task| {
                    !task.phase().has_ended() && task.spec.version.as_ref() == Some(&record.version)
                })
        });
        if version == requested && self.recorded_of(version).is_none() {
            return unfinished().and_then(|task| task.spec.version.as_ref()).unwrap_or(version);
        }
        version
    }

    /// The record of a version, while the upgrade to it is under way.
    fn recorded_of(&self, version: &KubernetesVersion) -> Option<&UpgradeRecord> {
        self.history()
            .iter()
            .find(|record| record.version == *version && record.phase == UpgradePhase::Upgrading)
    }

    fn history(&self) -> &[UpgradeRecord] {
        self.upgrade.status.as_ref().map_or(&[], |status| &status.history)
    }

    fn record(&self) -> Option<&UpgradeRecord> {
        self.history().iter().find(|record| record.version == *self.version())
    }

    fn request(&self) -> Request {
        let spec = &self.upgrade.spec;
        let within = i64::from(spec.start_within_minutes);
        Request {
            version: self.version().clone(),
            start_at: spec.start_at.as_ref().map(|time| time.0),
            start_within: (within > 0).then(|| SignedDuration::from_mins(within)),
            stops: spec.stage == Stage::Abort || self.upgrade.metadata.deletion_timestamp.is_some(),
            by: spec.requested_by.clone(),
            generation: self.upgrade.metadata.generation.unwrap_or_default(),
            is_for_another: *self.version() != spec.version,
        }
    }

    fn facts(&self) -> Facts<'_, Self, Write> {
        let task = self.task();
        Facts {
            current: self.control_plane.as_ref().map(|group| group.version.clone()),
            is_current: self.is_current(),
            lacks_version: self.control_plane.is_some() && !self.has_version(),
            is_stopping: task.is_some_and(|task| task.spec.stage == Stage::Abort),
            commenced: task.map(|task| begun(task).unwrap_or(self.now)).or_else(|| {
                // Its task was deleted: it is made again.
                let record = self.recorded().filter(|record| was_commenced(record))?;
                record.start_time.as_ref().map(|time| time.0)
            }),
            ended: self.ended(),
            invalid: self.invalid(),
            preparations: match task {
                Some(_) => Preparations::Behind(PREPARATIONS),
                None => Preparations::Due(PREPARATIONS),
            },
            steps: STEPS,
            stop,
            known: self,
            now: self.now,
        }
    }

    /// The record, while the upgrade is under way.
    fn recorded(&self) -> Option<&UpgradeRecord> {
        self.recorded_of(self.version())
    }

    /// How an upgrade has ended whose task was stopped or deleted by another client.
    fn ended(&self) -> Option<Ended> {
        let Some(task) = self.task() else {
            let is_superseded =
                self.recorded().is_some() && *self.version() != self.upgrade.spec.version;
            return is_superseded.then(|| Ended {
                reason: "Superseded",
                message: "its UpgradeTask was deleted, and by now another version is requested"
                    .to_owned(),
            });
        };
        (task.phase() == TaskPhase::Aborted).then(|| Ended {
            reason: "TaskAborted",
            message: format!(
                "{} was stopped by another client. Request the upgrade again to continue",
                named(task)
            ),
        })
    }

    /// The name of the task to create: the recorded one, or a free one of this request.
    fn task_name(&self) -> String {
        if let Some(name) = self.recorded().and_then(|record| record.task.clone()) {
            return name;
        }
        let metadata = &self.upgrade.metadata;
        let cluster = metadata.name.as_deref().unwrap_or_default();
        let version = self.version().to_string().replace('+', "-").to_lowercase();
        let generation = metadata.generation.unwrap_or_default();
        let end = format!("-{version}-{generation}");
        // Names of its children are longer; a name is at most 253 characters.
        let cluster: String = cluster.chars().take(150).collect();
        let is_taken =
            |name: &String| self.tasks.iter().any(|task| task.metadata.name.as_ref() == Some(name));
        let first = format!("{cluster}{end}");
        let mut others = (2..).map(|number: u32| format!("{cluster}{end}-{number}"));
        if is_taken(&first) { others.find(|name| !is_taken(name)).unwrap_or(first) } else { first }
    }

    /// Whether its workers are to return to the version that they had before.
    pub fn rolls_back_workers(&self) -> bool {
        let spec = &self.upgrade.spec;
        spec.roll_back_workers && spec.stage == Stage::Abort
    }

    /// The tasks that this upgrade has made to upgrade the Cluster.
    fn own_tasks(&self) -> impl Iterator<Item = &UpgradeTask> {
        let uid = self.upgrade.metadata.uid.as_deref();
        let own = self.tasks.iter().map(AsRef::as_ref);
        own.filter(move |task| is_controlled_by(task, uid) && !task.spec.roll_back)
    }

    /// The task that does the upgrade: the one of the record, or one that has not ended, if that is not known.
    fn task(&self) -> Option<&UpgradeTask> {
        let recorded = self.recorded().and_then(|record| record.task.as_deref());
        let of_version =
            || self.own_tasks().filter(|task| task.spec.version.as_ref() == Some(self.version()));
        let is_recorded =
            |task: &&UpgradeTask| recorded.is_some() && task.metadata.name.as_deref() == recorded;
        of_version()
            .find(is_recorded)
            .or_else(|| of_version().find(|task| !task.phase().has_ended()))
    }

    /// The parts of the task that are for workers.
    fn worker_tasks(&self) -> impl Iterator<Item = &UpgradeTask> {
        let whole = self.task().and_then(|task| task.metadata.uid.as_deref());
        let parts = self.tasks.iter().map(AsRef::as_ref);
        parts.filter(move |task| {
            whole.is_some()
                && is_controlled_by(task, whole)
                && task
                    .spec
                    .owner_ref
                    .as_ref()
                    .is_some_and(|owner| Owner::of_kind(&owner.kind) == Some(Owner::Deployment))
        })
    }

    fn groups(&self) -> Vec<GroupVersion> {
        self.control_plane.iter().chain(&self.workers).cloned().collect()
    }

    /// Whether every known group has the version.
    fn has_version(&self) -> bool {
        self.groups().iter().all(|group| group.version == *self.version())
    }

    /// Whether every group has the version, and no task is under way.
    fn is_current(&self) -> bool {
        self.control_plane.is_some()
            && self.has_version()
            && self.tasks.iter().all(|task| task.phase().has_ended())
    }

    /// Why the Cluster cannot be upgraded to the version.
    fn invalid(&self) -> Option<(&'static str, String)> {
        if let Some(obstacle) = &self.obstacle {
            return Some((obstacle.into(), obstacle.message()));
        }
        if self.control_plane.is_none() {
            return Some(("OwnerUnknown", "the control plane is not known yet".to_owned()));
        }
        if let Some(why) = unreachable(&self.groups(), self.version()) {
            return Some(("VersionNotReachable", why));
        }
        if let Err(not_taken) = self.hops() {
            return Some(not_taken);
        }
        if let Some(why) = self.no_capacity() {
            return Some(why);
        }
        let own = self.task().and_then(|task| task.metadata.uid.as_deref());
        let mut others = self.tasks.iter().filter(|task| !task.phase().has_ended());
        let other = others.find(|task| {
            task.metadata.uid.as_deref() != own && !(own.is_some() && is_controlled_by(task, own))
        })?;
        let task = other.metadata.name.clone().unwrap_or_default();
        let obstacle = Obstacle::OlderTask { task };
        Some(((&obstacle).into(), obstacle.message()))
    }

    /// When the Cluster is checked ahead of the time of its upgrade.
    fn check_at(&self) -> Option<Timestamp> {
        let spec = &self.upgrade.spec;
        let lead = SignedDuration::from_mins(spec.check_ahead_minutes.into());
        spec.start_at.as_ref()?.0.checked_sub(lead).ok()
    }

    /// Whether the health of the Cluster means something for its upgrade: not while machines are worked on.
    fn shows_health(&self, record: &UpgradeRecord) -> bool {
        let just_ended = record.complete_time == Some(Time(self.now));
        match record.phase {
            UpgradePhase::New => true,
            UpgradePhase::Pending => {
                self.record().is_none() || self.check_at().is_none_or(|at| at <= self.now)
            }
            UpgradePhase::Upgrading => match self.task() {
                Some(task) => task.phase().has_ended(),
                None => !self.is_reserving(),
            },
            UpgradePhase::Completed | UpgradePhase::Failed => just_ended,
        }
    }

    /// Whether the gates of the Cluster's groups decide what is next, or are shown.
    pub fn asks_for_gates(&self) -> bool {
        match self.record() {
            Some(record) => self.shows_health(record),
            None => true,
        }
    }

    /// Notes the task, and the times of the workers.
    fn note_task(&self, record: &mut UpgradeRecord) {
        let Some(task) = self.task() else { return };
        record.task.clone_from(&task.metadata.name);
        let times = |of: fn(&UpgradeTaskStatus) -> Option<&Time>| {
            self.worker_tasks().filter_map(move |task| of(task.status.as_ref()?).cloned())
        };
        record.worker_start_time = times(|status| status.started_at.as_ref()).min();
        if record.conditions.iter().any(|step| step.type_ == WORKERS && step.status == "True") {
            record.worker_complete_time = times(|status| status.finished_at.as_ref()).max();
        }
    }
}

fn is_controlled_by(task: &UpgradeTask, uid: Option<&str>) -> bool {
    let mut owners = task.metadata.owner_references.iter().flatten();
    uid.is_some() && owners.any(|one| one.controller == Some(true) && Some(&*one.uid) == uid)
}

/// When a task was requested.
fn begun(task: &UpgradeTask) -> Option<Timestamp> {
    task.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
