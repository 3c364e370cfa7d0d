//! What a ClusterVersion shows of an upgrade, and how the upgrade is requested there
//! (`docs/facts/openshift-upgrades.md#clusterversion`).

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use semver::Version;
use serde_json::{Value, json};

use crate::{
    Compat,
    kinds::{ClusterVersion, OperatorCondition, ReleaseHistory},
    upgrade_config::{Desired, UpgradeConfigSpec},
};

/// State of a release that the cluster runs.
const COMPLETED: &str = "Completed";
const UPGRADEABLE: &str = "Upgradeable";
const RELEASE_ACCEPTED: &str = "ReleaseAccepted";
const RETRIEVED_UPDATES: &str = "RetrievedUpdates";
const FAILING: &str = "Failing";
/// The form in which Go prints a time with `time.UnixDate`.
const UNIX_DATE: &str = "%a %b %e %H:%M:%S UTC %Y";

/// What an upgrade is requested by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// A release image, by digest.
    Image(&'a str),
    /// A version of a channel.
    Version {
        /// The version.
        version: &'a str,
        /// The channel.
        channel: &'a str,
    },
}

/// Why the steps of an upgrade cannot read what they need.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// `spec.desired` has neither an image nor a version with a channel.
    #[error("cannot find the correct upgrade spec source")]
    NoSource,
    /// No release of the ClusterVersion is completed.
    #[error("failed to get current version")]
    NoCurrent,
    /// A version is not one of semver.
    #[error("invalid version {0:?}, expected one such as 4.16.3")]
    Version(String),
    /// `spec.upgradeAt` is not a time.
    #[error("failed to parse spec.upgradeAt: invalid time {0:?}, expected RFC 3339")]
    UpgradeAt(String),
    /// The ClusterVersion forbids another minor version.
    #[error("cluster upgrade to version {version} on {at} has been cancelled: {reason}: {message}")]
    NotUpgradeable {
        /// The version.
        version: String,
        /// The time of the upgrade, as Go's `UnixDate`.
        at: String,
        /// Reason of the condition `Upgradeable`.
        reason: String,
        /// Its message.
        message: String,
    },
}

/// What is to be written to request the upgrade.
#[derive(Clone, Debug, PartialEq)]
pub enum Commence {
    /// It is requested already.
    Done,
    /// This merge patch of the ClusterVersion requests it.
    Patch(Value),
    /// This merge patch selects the channel. The ClusterVersion is read again after it.
    Channel(Value),
    /// The cluster-version operator does not offer the version yet.
    NotOffered,
}

/// What an upgrade is requested by: an image has precedence.
pub fn wanted(desired: &Desired) -> Result<Wanted<'_>, VersionError> {
    fn given(text: Option<&String>) -> Option<&str> {
        text.map(String::as_str).filter(|text| !text.is_empty())
    }
    let version = given(desired.version.as_ref()).zip(given(desired.channel.as_ref()));
    match (given(desired.image.as_ref()), version) {
        (Some(image), _) => Ok(Wanted::Image(image)),
        (None, Some((version, channel))) => Ok(Wanted::Version { version, channel }),
        (None, None) => Err(VersionError::NoSource),
    }
}

/// Whether the upgrade was requested of the ClusterVersion: from then on it is finished.
pub fn has_commenced(cluster: &ClusterVersion, desired: &Desired) -> Result<bool, VersionError> {
    let wanted = wanted(desired)?;
    let update = cluster.spec.desired_update.as_ref();
    Ok(update.is_some_and(|update| match wanted {
        Wanted::Image(image) => update.image == image,
        Wanted::Version { version, .. } => update.version == version,
    }))
}

/// What is to be written so that the cluster-version operator upgrades the cluster. An update with known risks needs its
/// image, too.
pub fn commence(cluster: &ClusterVersion, desired: &Desired) -> Result<Commence, VersionError> {
    if has_commenced(cluster, desired)? {
        return Ok(Commence::Done);
    }
    let (version, channel) = match wanted(desired)? {
        Wanted::Image(image) => {
            let update = json!({"image": image, "version": null});
            return Ok(Commence::Patch(json!({"spec": {"desiredUpdate": update}})));
        }
        Wanted::Version { version, channel } => (version, channel),
    };
    if cluster.spec.channel != channel {
        return Ok(Commence::Channel(json!({"spec": {"channel": channel}})));
    }
    let status = cluster.status.as_ref();
    let conditional = status.and_then(|status| {
        let mut offered = status.conditional_updates.iter().map(|update| &update.release);
        let one = offered.find(|one| one.version == version && !one.image.is_empty())?;
        Some(&one.image)
    });
    let is_available = status.is_some_and(|status| {
        let mut available = status.available_updates.iter().flatten();
        available.any(|one| one.version == version && !one.image.is_empty())
    });
    if conditional.is_none() && !is_available {
        return Ok(Commence::NotOffered);
    }
    let update = json!({"version": version, "image": conditional});
    Ok(Commence::Patch(json!({"spec": {"desiredUpdate": update}})))
}

fn history(cluster: &ClusterVersion) -> &[ReleaseHistory] {
    cluster.status.as_ref().map_or(&[], |status| &status.history)
}

/// The version that the cluster runs: that which was completed last.
pub fn current(cluster: &ClusterVersion) -> Result<&str, VersionError> {
    let completed = history(cluster).iter().filter(|one| one.state == COMPLETED);
    let times = completed.filter(|one| !one.version.is_empty());
    // The history has the newest first: of those with the same time, the first counts.
    let newest = times.rev().max_by_key(|one| one.completion_time.as_ref().map(|time| time.0));
    newest.map(|one| &*one.version).ok_or(VersionError::NoCurrent)
}

/// The version before an upgrade to `version`; empty if it is not known.
pub fn preceding<'a>(cluster: &'a ClusterVersion, version: &str) -> &'a str {
    let now = cluster.status.as_ref().map_or("", |status| &status.desired.version);
    let mut completed = history(cluster).iter().filter(|one| one.state == COMPLETED);
    let other = |one: &&ReleaseHistory| !one.version.is_empty() && one.version != version;
    let before = (now == version).then(|| completed.find(other)).flatten();
    before.map_or(now, |one| &one.version)
}

/// The release of a version in the history. The original also takes an earlier upgrade to the version for this one; repaired, only
/// the newest release counts.
fn release<'a>(
    cluster: &'a ClusterVersion,
    version: &'a str,
    compat: Compat,
) -> impl Iterator<Item = &'a ReleaseHistory> {
    let history = history(cluster);
    let counts = match compat {
        Compat::Repaired => history.get(..1).unwrap_or_default(),
        Compat::Strict => history,
    };
    counts.iter().filter(move |one| one.version == version)
}

/// Whether the control plane runs a version.
pub fn is_completed(cluster: &ClusterVersion, version: &str, compat: Compat) -> bool {
    release(cluster, version, compat).any(|one| one.state == COMPLETED)
}

/// When the cluster-version operator began with a version.
pub fn began(cluster: &ClusterVersion, version: &str, compat: Compat) -> Option<Timestamp> {
    release(cluster, version, compat).find_map(|one| Some(one.started_time.as_ref()?.0))
}

/// Whether the control plane takes longer than `window` to run the requested version: from when the cluster-version operator
/// began, or else from `spec.upgradeAt`.
pub fn is_late(
    cluster: &ClusterVersion,
    spec: &UpgradeConfigSpec,
    window: SignedDuration,
    (now, compat): (Timestamp, Compat),
) -> Result<bool, VersionError> {
    let version = spec.desired.version.as_deref().unwrap_or_default();
    let began = match release(cluster, version, compat).next() {
        Some(one) if one.completion_time.is_some() => return Ok(false),
        Some(one) => one.started_time.as_ref().map(|time| time.0),
        None => Some(upgrade_at(spec)?),
    };
    Ok(began.is_some_and(|began| now.duration_since(began) > window))
}

/// Ends the message of what keeps an upgrade from beginning until a time. It is no part of the notice of its failure.
pub(crate) const TRIED_AGAIN: &str = "; it is tried again until ";

/// The condition of a type, if it has this status.
fn condition<'a>(
    cluster: &'a ClusterVersion,
    type_: &str,
    status: &str,
) -> Option<&'a OperatorCondition> {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|one| one.type_ == type_ && one.status == status)
}

/// Why the cluster-version operator cannot read which versions are offered.
pub(crate) fn unread_updates(cluster: &ClusterVersion) -> Option<&str> {
    condition(cluster, RETRIEVED_UPDATES, "False").map(|one| &*one.message)
}

/// Why the cluster-version operator does not bring the cluster to the release that is requested.
pub(crate) fn obstacle(cluster: &ClusterVersion) -> Option<String> {
    let refused = condition(cluster, RELEASE_ACCEPTED, "False").map(|one| {
        format!("the cluster-version operator does not accept the release: {}", one.message)
    });
    refused.or_else(|| {
        let failing = condition(cluster, FAILING, "True")?;
        Some(format!("the cluster-version operator reports a failure: {}", failing.message))
    })
}

/// Whether the cluster is brought to another release, or is requested to.
pub fn is_updating(cluster: &ClusterVersion) -> bool {
    let status = cluster.status.as_ref();
    let is_completed = history(cluster).first().is_some_and(|one| one.state == COMPLETED);
    let is_requested = cluster.spec.desired_update.as_ref().is_some_and(|update| {
        let now = status.map(|status| &status.desired);
        let is_other = |wanted: &str, now: Option<&String>| {
            !wanted.is_empty() && now.is_none_or(|now| now != wanted)
        };
        is_other(&update.version, now.map(|now| &now.version))
            || is_other(&update.image, now.map(|now| &now.image))
    });
    !is_completed || is_requested
}

/// The time of the upgrade.
pub fn upgrade_at(spec: &UpgradeConfigSpec) -> Result<Timestamp, VersionError> {
    let at = &spec.upgrade_at;
    let time = at.parse().ok().filter(|_| is_rfc_3339(at));
    time.ok_or_else(|| VersionError::UpgradeAt(at.clone()))
}

/// Whether a time has the form that RFC 3339 demands: others parse as well.
fn is_rfc_3339(text: &str) -> bool {
    let is_separated = |at: usize, separator| text.as_bytes().get(at) == Some(&separator);
    let zone = text.get(19..).map(|rest| {
        rest.trim_start_matches(['.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
    });
    let is_zone = |zone: &str| {
        zone == "Z"
            || zone.len() == 6 && zone.starts_with(['+', '-']) && zone.get(3..4) == Some(":")
    };
    is_separated(10, b'T')
        && is_separated(13, b':')
        && is_separated(16, b':')
        && zone.is_some_and(is_zone)
}

/// A version, as semver.
pub(crate) fn semver(version: &str) -> Result<Version, VersionError> {
    Version::parse(version).map_err(|_| VersionError::Version(version.to_owned()))
}

/// Whether the ClusterVersion permits the upgrade: its condition `Upgradeable` concerns other minor versions only.
pub fn check_upgradeable(
    cluster: &ClusterVersion,
    spec: &UpgradeConfigSpec,
) -> Result<(), VersionError> {
    let version = spec.desired.version.as_deref().unwrap_or_default();
    let (now, next) = (semver(current(cluster)?)?, semver(version)?);
    let at = upgrade_at(spec)?;
    if next.major < now.major || next.minor <= now.minor {
        return Ok(());
    }
    let forbids = condition(cluster, UPGRADEABLE, "False");
    forbids.map_or(Ok(()), |condition| {
        Err(VersionError::NotUpgradeable {
            version: version.to_owned(),
            at: at.to_zoned(TimeZone::UTC).strftime(UNIX_DATE).to_string(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    })
}
