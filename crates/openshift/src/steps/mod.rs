//! The steps of an upgrade, in order (`docs/facts/openshift-upgrades.md#steps`).
//!
//! A step is a function of what is known. It neither reads nor writes: it shows that it is done, or asks for a read
//! ([`Write::Read`]) or a write. After each, the steps are worked through again from the first, so a look ends with the first
//! step that needs only time, or that has failed.

mod after;
mod before;
pub mod file_integrity;
mod flow;
mod gauges;
pub(crate) mod names;

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_core::managed::steps::{Progress, Step};
use serde_json::Value;

use self::names::{
    AUDIBLE, COMMENCED, COMPLETED, CONTROL_PLANE, CONTROL_PLANE_AUDIBLE, DEPENDENCIES,
    HEALTHY_AFTER, HEALTHY_BEFORE, PROCEDURES, REMOVED, RESERVED, SILENCED, STARTED, UPGRADABLE,
    WORKERS, WORKERS_SILENCED,
};
pub(crate) use self::{
    before::failure,
    gauges::{of_health, sent},
};
pub use self::{
    gauges::{Gauge, gauges, reached},
    names::FAILED,
};
use crate::{
    Compat,
    config::{Platform, UpgraderConfig},
    dependencies::Unavailable,
    health::{Essential, Extended, Looked, Read},
    kinds::{ClusterVersion, Machine, MachineConfigPool, MachineSet},
    maintenance::{Silence, SilenceWrite},
    notify::{Event, Notice},
    upgrade_config::{Phase, UpgradeConfig, UpgradeHistory},
    validation::{GraphRequest, ImageRef},
};

/// What the steps are decided on. What only some of them need is `None` until it is asked for.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// The UpgradeConfig.
    pub upgrade: &'a UpgradeConfig,
    /// The entry of its version, with what this look has noted in it.
    pub entry: &'a UpgradeHistory,
    /// Whether faults of the original are repaired.
    pub compat: Compat,
    /// The part of the configuration for the steps.
    pub config: &'a UpgraderConfig,
    /// Whether a version of another channel is looked up in the version graph.
    pub asks_cincinnati: bool,
    /// The architecture of the cluster ([`crate::validation::go_architecture`]).
    pub architecture: &'a str,
    /// The ClusterVersion, as the last write has left it.
    pub cluster: &'a ClusterVersion,
    /// Whether the upgrade had commenced when the look began: then its first steps did not run.
    pub was_commenced: bool,
    /// The MachineConfigPools.
    pub pools: &'a [MachineConfigPool],
    /// What was read at this look.
    pub facts: Facts,
    /// The writes of this look, and why those failed that did.
    pub tried: Vec<(Write, Result<(), String>)>,
    /// The time of the look.
    pub now: Timestamp,
}

/// What was read at a look because a step asked for it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Of [`Fact::Health`].
    pub health: Option<Essential>,
    /// Of [`Fact::MoreHealth`].
    pub more_health: Option<Extended>,
    /// Of [`Fact::Dependencies`].
    pub dependencies: Option<Vec<Unavailable>>,
    /// Of [`Fact::Machines`].
    pub machines: Option<Read<Machines>>,
    /// Of [`Fact::Silences`].
    pub silences: Option<Read<Vec<Silence>>>,
    /// Of [`Fact::Sent`].
    pub sent: BTreeMap<Event, Read<bool>>,
    /// Of [`Write::Drain`]: the nodes that could not be drained in time.
    pub failed_drains: Vec<String>,
    /// Of [`Fact::Release`].
    pub release: Option<Read<String>>,
    /// Of [`Fact::Graph`]: the versions that are offered.
    pub offered: Option<Read<Vec<String>>>,
    /// Of [`Fact::Refresh`]: whether the upgrade may start.
    pub refreshed: Option<Read<bool>>,
    /// Of [`Fact::PagingAlerts`]: the names of the alerts.
    pub paging_alerts: Option<Read<Vec<String>>>,
}

/// MachineSets and Machines of the machine API, and all Nodes.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    /// The MachineSets.
    pub sets: Vec<MachineSet>,
    /// The Machines.
    pub machines: Vec<Machine>,
    /// The Nodes.
    pub nodes: Vec<k8s_openapi::api::core::v1::Node>,
}

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Critical alerts and ClusterOperators.
    Health,
    /// What the extended health checks need: in the original, those of the feature gate `PreHealthCheck`.
    MoreHealth,
    /// The answers of these URLs.
    Dependencies(Vec<String>),
    /// MachineSets, Machines and Nodes.
    Machines,
    /// All silences of Alertmanager.
    Silences,
    /// Whether a notification was sent: whether the query has a result.
    Sent {
        /// The notification.
        event: Event,
        /// The query for Prometheus.
        query: String,
    },
    /// The label [`crate::validation::RELEASE_LABEL`] of a release image.
    Release(ImageRef),
    /// The versions that a version graph offers ([`crate::validation::offered_by`]).
    Graph(GraphRequest),
    /// The provider, and what follows for the object in the cluster: whether the upgrade may still start
    /// ([`crate::manager::may_start`]).
    Refresh,
    /// The paging alerts that an upgrade has raised: the names in the result of the query.
    PagingAlerts {
        /// The query for Prometheus.
        query: String,
    },
}

/// What a step asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Read something, and decide again.
    Read(Fact),
    /// Send a notification, an entry of the service log as of [`crate::notify::posting`]. Once it is sent, it is noted in the
    /// entry ([`crate::notify::note_sent`]), and that entry is stored before the look goes on.
    Notify(Notification),
    /// Write to Alertmanager. Its silences are read again after it.
    Silence(SilenceWrite),
    /// Create a MachineSet. The Machines are read again after it.
    CreateMachineSet(Box<MachineSet>),
    /// Delete a MachineSet. The Machines are read again after it.
    DeleteMachineSet(String),
    /// Bring the drain of these nodes forward ([`crate::nodes::look`]), and add those that have failed to
    /// [`Facts::failed_drains`]. An error of a look is that of the write.
    Drain(Vec<String>),
    /// Merge this into the ClusterVersion.
    Request(Value),
    /// Annotate the object [`file_integrity::NAME`] by [`file_integrity::patch`], so that it begins again. Without it, the write
    /// fails.
    ReinitFileIntegrity,
    /// Set `spec.desired.version` of the UpgradeConfig to that of its release image. The look ends with it, as the entry is
    /// that of another version then.
    SetVersion(String),
}

/// A notification, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What it is known by.
    pub event: Event,
    /// Its text.
    pub text: String,
}

impl Notification {
    fn of(notice: Notice<'_>, known: &Known<'_>) -> Self {
        Self { event: notice.event(), text: notice.text(known.version(), Some(known.entry)) }
    }
}

/// The steps of a platform. To add one, write its function and give it a name here.
pub fn of<'a>(platform: Platform) -> Vec<Step<Known<'a>, Write>> {
    let step = |name, progress| Step { name, progress };
    let only_osd = |step| match platform {
        Platform::Osd => Some(step),
        Platform::Aro => None,
    };
    let first: [Option<Step<Known<'a>, Write>>; 8] = [
        Some(step(STARTED, before::started)),
        only_osd(step(STARTED, before::delayed)),
        only_osd(step(UPGRADABLE, before::upgradable)),
        Some(step(HEALTHY_BEFORE, before::healthy)),
        Some(step(DEPENDENCIES, before::dependencies)),
        Some(step(RESERVED, before::reserved)),
        Some(step(SILENCED, before::silenced)),
        Some(step(COMMENCED, before::commenced)),
    ];
    let then = [
        Some(step(CONTROL_PLANE, after::control_plane)),
        Some(step(CONTROL_PLANE_AUDIBLE, after::control_plane_audible)),
        Some(step(WORKERS_SILENCED, after::workers_silenced)),
        Some(step(WORKERS, after::workers)),
        Some(step(REMOVED, after::removed)),
        Some(step(AUDIBLE, after::audible)),
        Some(step(HEALTHY_AFTER, after::healthy)),
        only_osd(step(PROCEDURES, after::procedures)),
        Some(step(COMPLETED, after::completed)),
    ];
    first.into_iter().chain(then).flatten().collect()
}

/// What the health checks find for a request that was just made.
pub(crate) fn pre_health(known: &Known<'_>) -> Result<Looked, Progress<Write>> {
    before::health(known, Phase::New)
}
