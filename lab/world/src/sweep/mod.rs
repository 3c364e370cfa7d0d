//! Kills every process at every effect, before and after it, and checks that the end state is the
//! same.
//!
//! The scenario first runs undisturbed. Before each effect of a process (a mutating API request, a
//! journal append, a command on a host) the whole world is snapshotted. Then each snapshot is
//! continued twice: only state is restored, and the process dies just before, or just after, it
//! repeats the same effect. It restarts after 2 s; a lagging watch cache shows it old NodeUpdates
//! for a few seconds. The end state must equal that of the undisturbed run, invariants are checked
//! after every write, and a kill that did not happen is a failure.
//!
//! [`Scenario::replicas`] runs two controllers. Each effect of a controller then has more points:
//! the replica is paused until its Lease has expired, or the other replica dies, or both die. A
//! write by a replica that does not hold the Lease is a failure. [`Scenario::updaters`] has updates of three
//! parts, and [`Scenario::providers`] of the agent and a provider. In [`Scenario::tasks`], UpgradeTasks upgrade the
//! machines instead of Cluster API, in [`Scenario::managed`] a ClusterUpgrade, in [`Scenario::plans`] a ClusterUpgradePlan those of a fleet, and in [`Scenario::snaps`] k8sd refreshes the snaps of machines whose owners are
//! annotated. In [`Scenario::holds`], a namespace holds replacements; the controller dies at its effects, and at each also for
//! good: it starts again only once the run is over.
//!
//! With [`Sabotage`], one safeguard is disabled while the points run. If the sweep finds no failure
//! then, the sweep itself is broken.

mod configuration;
mod end;
mod holds;
mod plans;
mod point;
mod record;
mod scenario;
mod snaps;
mod tasks;
mod updaters;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
};

use refit_controller::sabotage::Safeguard;
use refit_runtime::gate::Effect;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{Display, EnumString, VariantNames};

use crate::{
    direct::DirectError,
    snapshot::SnapshotError,
    world::{Side, TimedOut, World, WorldError, WorldOptions},
};

pub use end::EndState;
pub use holds::hold_manifests;
pub use plans::plan_manifests;
pub use point::{Point, PointFile};
pub use record::{Counts, Recording, record, record_scenario};
pub use scenario::Scenario;

/// A safeguard that is disabled on purpose.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Sabotage {
    /// NodeUpdates claim no slot.
    Slot,
    /// Agents' journals keep no records.
    Journal,
    /// Names of NodeUpdates contain no ordinal.
    Ordinal,
    /// A replica that has lost its Lease continues as the leader.
    Lease,
    /// What disturbs a machine is decided on caches.
    LiveRead,
    /// The update of a host that does not return never ends.
    HostLost,
    /// No admission policy holds replacements.
    Holds,
}

impl Sabotage {
    /// Disables the safeguard in a world that is about to be created or restored with these options.
    pub(crate) fn apply(self, options: &mut WorldOptions) {
        match self {
            Self::Slot => options.without = Some(Safeguard::Slot),
            Self::Ordinal => options.without = Some(Safeguard::Ordinal),
            Self::Lease => options.without = Some(Safeguard::Lease),
            Self::LiveRead => options.without = Some(Safeguard::LiveRead),
            Self::HostLost => options.without = Some(Safeguard::HostLost),
            Self::Journal => options.journal = false,
            Self::Holds => {}
        }
    }

    /// Disables the safeguard in a new world.
    pub(crate) async fn apply_to(self, world: &World) -> Result<(), DirectError> {
        match self {
            Self::Holds => world.remove_policies().await,
            Self::Slot
            | Self::Journal
            | Self::Ordinal
            | Self::Lease
            | Self::LiveRead
            | Self::HostLost => Ok(()),
        }
    }
}

/// Options of a sweep.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// Manifests of the scenario's cluster.
    pub manifests: Vec<Value>,
    /// The scenario to sweep.
    pub scenario: Scenario,
    /// The safeguard that is disabled.
    pub sabotage: Option<Sabotage>,
    /// Number of points to run, evenly spread; all of them by default.
    pub points: Option<usize>,
    /// Number of worker threads.
    pub threads: usize,
    /// Directory to which failing points are saved.
    pub directory: PathBuf,
    /// Whether to stop at the first failure.
    pub stop_at_first: bool,
}

impl SweepOptions {
    /// Options of a complete sweep of a cluster on two threads.
    pub fn new(manifests: Vec<Value>) -> Self {
        Self {
            manifests,
            scenario: Scenario::demo(),
            sabotage: None,
            points: None,
            threads: 2,
            directory: PathBuf::from("target/sweep"),
            stop_at_first: false,
        }
    }
}

/// Progress of a sweep, for display.
#[derive(Debug)]
pub enum Event<'a> {
    /// The undisturbed run has finished.
    Recorded {
        /// Number of effects.
        counts: Counts,
        /// Number of points to run.
        points: usize,
    },
    /// One point has finished.
    Point {
        /// Number of finished points.
        done: usize,
        /// Number of points to run.
        points: usize,
        /// The failure, if the point failed.
        failure: Option<&'a Failure>,
    },
}

/// A point that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The point.
    pub point: Point,
    /// The problems that were found.
    pub problems: Vec<String>,
    /// File to which the point was saved.
    pub file: Option<PathBuf>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.point)?;
        for problem in &self.problems {
            write!(f, "\n    {problem}")?;
        }
        if let Some(file) = &self.file {
            write!(f, "\n    reproduce: cargo xtask sweep demo --from {}", file.display())?;
        }
        Ok(())
    }
}

/// Result of a sweep.
#[derive(Clone, Debug)]
pub struct SweepReport {
    /// Effects of the undisturbed run.
    pub counts: Counts,
    /// Number of points that were run.
    pub points: usize,
    /// The failed points, in order.
    pub failures: Vec<Failure>,
}

/// Why a sweep cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The undisturbed run failed.
    #[error("the undisturbed run failed: {0}")]
    Undisturbed(String),
    /// A world cannot be created.
    #[error(transparent)]
    World(#[from] WorldError),
    /// An object of the scenario cannot be written.
    #[error("the scenario cannot begin: {0}")]
    Refused(#[from] DirectError),
    /// A condition was not met in time.
    #[error("the undisturbed run failed: {0}")]
    TimedOut(#[from] TimedOut),
    /// The runtime cannot be created.
    #[error("failed to create a runtime: {0}")]
    Runtime(#[from] std::io::Error),
    /// A saved point cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Runs a sweep of a scenario.
pub fn sweep(
    options: &SweepOptions,
    watch: impl FnMut(&Event<'_>),
) -> Result<SweepReport, SweepError> {
    let recording = record_scenario(&options.manifests, options.scenario.clone())?;
    Ok(sweep_recorded(&recording, options, watch))
}

/// Runs a sweep whose undisturbed run is already recorded. The manifests of the options are not
/// used.
pub fn sweep_recorded(
    recording: &Recording,
    options: &SweepOptions,
    mut watch: impl FnMut(&Event<'_>),
) -> SweepReport {
    let points = chosen(recording, options.points, options.sabotage);
    watch(&Event::Recorded { counts: recording.counts, points: points.len() });
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..options.threads.max(1) {
            let sender = sender.clone();
            let (next, stop, points) = (&next, &stop, &points);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed)
                    && let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let problems = point::run(recording, point, options.sabotage);
                    if sender.send((point, problems)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (done, (point, problems)) in receiver.iter().enumerate() {
            let failure = (!problems.is_empty()).then(|| Failure {
                file: point::save(&options.directory, recording, point, options.sabotage),
                point: point.clone(),
                problems,
            });
            watch(&Event::Point {
                done: done + 1,
                points: points.len(),
                failure: failure.as_ref(),
            });
            if failure.is_some() && options.stop_at_first {
                stop.store(true, Ordering::Relaxed);
            }
            failures.extend(failure);
        }
    });
    failures.sort_by_key(|failure| (failure.point.index, failure.point.side));
    SweepReport { counts: recording.counts, points: points.len(), failures }
}

/// Every point, or a given number of them, evenly spread.
fn chosen(recording: &Recording, wanted: Option<usize>, sabotage: Option<Sabotage>) -> Vec<Point> {
    let mut all = recording.points();
    if sabotage == Some(Sabotage::Lease) {
        // Only a leader that continues without its Lease can show that this safeguard is missing:
        // it is paused at writes that no hook makes.
        all.retain(|point| point.side == Side::Paused && is_status_of_update(&point.effect));
    }
    match wanted {
        Some(wanted) if wanted < all.len() => {
            (0..wanted).map(|i| all[i * all.len() / wanted.max(1)].clone()).collect()
        }
        _ => all,
    }
}

/// Whether only the leader makes this effect: hooks write no status of a NodeUpdate.
fn is_status_of_update(effect: &Effect) -> bool {
    matches!(effect, Effect::Api { path, .. }
        if path.contains("/nodeupdates/") && path.ends_with("/status"))
}

/// Runs one saved point again and returns its problems.
pub fn continue_from(path: &Path) -> Result<(Point, Vec<String>), SweepError> {
    let file: PointFile = crate::snapshot::read(path)?;
    let point = file.point();
    Ok((point, file.run()))
}

/// An effect as stored in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StoredEffect {
    Api { method: String, path: String },
    Journal { record: String },
    Host { command: String },
}

impl From<&Effect> for StoredEffect {
    fn from(effect: &Effect) -> Self {
        match effect.clone() {
            Effect::Api { method, path } => Self::Api { method, path },
            Effect::Journal { record } => Self::Journal { record },
            Effect::Host { command } => Self::Host { command },
        }
    }
}

impl From<StoredEffect> for Effect {
    fn from(effect: StoredEffect) -> Self {
        match effect {
            StoredEffect::Api { method, path } => Self::Api { method, path },
            StoredEffect::Journal { record } => Self::Journal { record },
            StoredEffect::Host { command } => Self::Host { command },
        }
    }
}
