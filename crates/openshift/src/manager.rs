//! The manager of UpgradeConfigs: when it syncs with the provider, and what a sync does to the object in the cluster
//! (`docs/facts/openshift-upgrades.md#manager`).

use jiff::{SignedDuration, Timestamp};

use crate::{
    Compat,
    cluster_version::is_updating,
    kinds::{ClusterVersion, MachineConfigPool},
    pools::are_being_updated,
    upgrade_config::{Desired, NAME, NAMESPACE, Phase, UpgradeConfig, UpgradeConfigSpec},
};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_hours(1);
/// How often the object is read until it is deleted.
const POLL: SignedDuration = SignedDuration::from_secs(5);
/// How long its deletion may take.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);

/// Whether an object is the one that is worked on.
pub fn is_managed(config: &UpgradeConfig) -> bool {
    config.metadata.name.as_deref() == Some(NAME)
        && config.metadata.namespace.as_deref() == Some(NAMESPACE)
}

/// What became of the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSync {
    /// No valid watch interval was read yet.
    Unconfigured,
    /// There was no sync yet.
    Never,
    /// It succeeded.
    Succeeded {
        /// When.
        at: Timestamp,
        /// The watch interval.
        interval: SignedDuration,
    },
    /// It failed, or no source is configured.
    Failed {
        /// How many have failed since the last one that succeeded, at least 1.
        in_a_row: u32,
    },
}

impl LastSync {
    /// Returns what a failure makes of it.
    pub fn failed(self) -> Self {
        let before = match self {
            Self::Unconfigured | Self::Never | Self::Succeeded { .. } => 0,
            Self::Failed { in_a_row } => in_a_row,
        };
        Self::Failed { in_a_row: before.saturating_add(1) }
    }

    /// Returns how long to wait for the next sync. `random` spreads it by 10 % in both directions; it is any number, evenly
    /// distributed.
    pub fn next_after(self, random: u32) -> SignedDuration {
        match self {
            // There is nothing to spread: this only reads the configuration again.
            Self::Unconfigured => MINUTE,
            Self::Never => spread(MINUTE, random),
            Self::Succeeded { interval, .. } => spread(interval, random),
            Self::Failed { in_a_row } => {
                // From 2^6 minutes on the limit holds.
                let doubled = MINUTE * (1 << in_a_row.saturating_sub(1).min(6));
                spread(doubled.min(LONGEST_BACKOFF), random)
            }
        }
    }

    /// Returns the new value of the metric of the sync timestamp: only a success changes it.
    pub fn timestamp(self) -> Option<Timestamp> {
        match self {
            Self::Succeeded { at, .. } => Some(at),
            Self::Unconfigured | Self::Never | Self::Failed { .. } => None,
        }
    }
}

fn spread(duration: SignedDuration, random: u32) -> SignedDuration {
    let millis = duration.as_millis();
    let width = millis / 5;
    SignedDuration::from_millis_i128(
        millis - millis / 10 + width * i128::from(random) / (i128::from(u32::MAX) + 1),
    )
}

/// What a refresh decides by.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The object in the cluster.
    pub existing: Option<&'a UpgradeConfig>,
    /// What the provider wants.
    pub wanted: Option<&'a UpgradeConfigSpec>,
    /// Whether the ClusterVersion already desires the release of `existing`.
    pub commenced: bool,
    /// Whether the object is then held ([`crate::config::Config::holds_while_upgrading`]).
    pub hold: bool,
}

/// What a refresh does to the object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Nothing: it is as the provider wants it.
    Unchanged,
    /// Nothing, although the provider wants something else: its upgrade is under way.
    Held {
        /// What is held back, as a sentence.
        why: String,
    },
    /// It is deleted, on the condition that its resourceVersion is the one that was read.
    Delete,
    /// It is created.
    Create(UpgradeConfigSpec),
    /// It is deleted as with `Delete`, with a grace period of 0. [`after_delete`] decides when it is created.
    Replace(UpgradeConfigSpec),
}

impl Refresh {
    /// Whether it changes the object.
    pub fn changes(&self) -> bool {
        match self {
            Self::Unchanged | Self::Held { .. } => false,
            Self::Delete | Self::Create(_) | Self::Replace(_) => true,
        }
    }
}

/// Whether an upgrade that was commenced still needs extra machines and silences: the cluster does not run the requested release yet, or
/// a worker does not that can still be updated. Otherwise, existing ones are leftovers.
pub fn is_under_way(cluster: &ClusterVersion, pools: &[MachineConfigPool], compat: Compat) -> bool {
    is_updating(cluster) || are_being_updated(pools, compat)
}

fn is_upgrading(existing: Option<&UpgradeConfig>) -> bool {
    let phase = existing.and_then(|existing| Some(existing.entry()?.phase));
    phase == Some(Phase::Upgrading)
}

/// Decides what becomes of the object in the cluster.
pub fn refresh(known: Known<'_>) -> Refresh {
    let is_held =
        |existing: &UpgradeConfig| known.hold && known.commenced && is_upgrading(Some(existing));
    match (known.existing, known.wanted) {
        (None, None) => Refresh::Unchanged,
        (None, Some(wanted)) => Refresh::Create(wanted.clone()),
        (Some(existing), Some(wanted)) if normal(&existing.spec) == normal(wanted) => {
            Refresh::Unchanged
        }
        (Some(existing), None) if is_held(existing) => Refresh::Held {
            why: format!("The provider wants no upgrade any more, but {UNDER_WAY}"),
        },
        (Some(existing), Some(_)) if is_held(existing) => {
            Refresh::Held { why: format!("The provider wants another upgrade, but {UNDER_WAY}") }
        }
        (Some(_), None) => Refresh::Delete,
        (Some(_), Some(wanted)) => Refresh::Replace(wanted.clone()),
    }
}

const UNDER_WAY: &str =
    "the cluster is being upgraded: the UpgradeConfig stays until that is done.";

/// On the wire, an empty text and `false` are the same as a field that is missing.
fn normal(spec: &UpgradeConfigSpec) -> UpgradeConfigSpec {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let Desired { version, channel, image } = &spec.desired;
    UpgradeConfigSpec {
        desired: Desired { version: text(version), channel: text(channel), image: text(image) },
        capacity_reservation: spec.capacity_reservation.filter(|reserved| *reserved),
        ..spec.clone()
    }
}

/// Whether an upgrade that is due may start after a refresh: the provider's last chance to change it. `None` stands for a
/// cluster without a source, which has no such chance.
pub fn may_start(refresh: Option<&Refresh>) -> bool {
    refresh.is_none_or(|refresh| !refresh.changes())
}

/// What follows the deletion of an object that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDelete {
    /// It is gone: the new one is created.
    Create,
    /// It still exists, and is read again after this.
    Poll(SignedDuration),
}

/// The object that is replaced still exists. The next sync tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "UpgradeConfig {NAME} still exists {} s after it was deleted, remove its finalizers",
    DELETION_TIMEOUT.as_secs()
)]
pub struct StillExists;

/// Decides what follows the deletion of an object, by whether it still exists and how long ago it was deleted.
pub fn after_delete(exists: bool, elapsed: SignedDuration) -> Result<AfterDelete, StillExists> {
    if !exists {
        Ok(AfterDelete::Create)
    } else if elapsed < DELETION_TIMEOUT {
        Ok(AfterDelete::Poll(POLL))
    } else {
        Err(StillExists)
    }
}
