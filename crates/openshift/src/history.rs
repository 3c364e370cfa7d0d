//! The entry of an upgrade in the history of its UpgradeConfig (`docs/facts/openshift-upgrades.md#upgradeconfig`).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_core::managed::steps::{DONE, ERROR, IN_PROGRESS};
use refit_kinds::refit::StepCondition;

use crate::{
    Compat,
    cluster_version::{VersionError, has_commenced, preceding},
    kinds::ClusterVersion,
    upgrade_config::{Phase, UpgradeCondition, UpgradeConfig, UpgradeConfigStatus, UpgradeHistory},
};

/// The entry of a version that has none: one that was commenced already, before the UpgradeConfig was created again, is
/// finished.
///
/// # Errors
/// Nothing is requested. Repaired, such a request has an entry, and is not valid.
pub fn first(
    upgrade: &UpgradeConfig,
    cluster: &ClusterVersion,
    (now, compat): (Timestamp, Compat),
) -> Result<UpgradeHistory, VersionError> {
    let version = upgrade.spec.desired.version.clone().unwrap_or_default();
    let is_under_way = match (has_commenced(cluster, &upgrade.spec.desired), compat) {
        (Ok(is_under_way), _) => is_under_way,
        (Err(_), Compat::Repaired) => false,
        (Err(error), Compat::Strict) => return Err(error),
    };
    Ok(UpgradeHistory {
        preceding_version: preceding(cluster, &version).to_owned(),
        version,
        phase: if is_under_way { Phase::Upgrading } else { Phase::New },
        start_time: is_under_way.then_some(Time(now)),
        ..UpgradeHistory::default()
    })
}

/// The status with an entry: in the place of the one for its version, or in front. That of a release image whose version was not known
/// yet makes room for the one of its version; the original keeps it.
pub fn with_entry(
    status: Option<&UpgradeConfigStatus>,
    entry: UpgradeHistory,
    compat: Compat,
) -> UpgradeConfigStatus {
    let mut status = status.cloned().unwrap_or_default();
    match compat {
        Compat::Repaired => {
            status.history.retain(|one| !one.version.is_empty() || one.version == entry.version);
        }
        Compat::Strict => {}
    }
    match status.history.iter_mut().find(|one| one.version == entry.version) {
        Some(known) => *known = entry,
        None => status.history.insert(0, entry),
    }
    status
}

/// What is wrong although the upgrade goes on, or waits for it to end: a condition that is True meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Trouble {
    /// The operator's configuration is invalid.
    ConfigurationInvalid,
    /// The provider wants something else, which waits for the end of the upgrade (M17).
    UpgradeConfigHeld,
    /// The provider cannot be asked, or its answer not be carried out.
    SyncFailed,
}

/// Shows a trouble, or that it is over. Its condition comes after those of the steps: the first one is shown as the latest step.
pub fn show_trouble(
    entry: &mut UpgradeHistory,
    trouble: Trouble,
    why: Option<&str>,
    now: Timestamp,
) {
    let type_ = trouble.to_string();
    let Some(why) = why else { return entry.conditions.retain(|one| one.type_ != type_) };
    if let Some(known) = entry.conditions.iter_mut().find(|one| one.type_ == type_) {
        return reword(known, why, now);
    }
    let reason = match trouble {
        Trouble::ConfigurationInvalid => "Invalid",
        Trouble::UpgradeConfigHeld => "UnderWay",
        Trouble::SyncFailed => "NotSynced",
    };
    entry.conditions.push(condition(&type_, ("True", reason, why), now));
}

/// Sets or removes a condition that is of no step, in front.
pub(crate) fn show(
    entry: &mut UpgradeHistory,
    type_: &str,
    shown: Option<(&str, &str, &str)>,
    now: Timestamp,
) {
    let known = entry.conditions.iter().position(|one| one.type_ == type_);
    let before = known.map(|at| entry.conditions.remove(at));
    let Some((status, reason, message)) = shown else { return };
    let mut next = before
        .filter(|before| before.status == status && before.reason == reason)
        .unwrap_or_else(|| condition(type_, (status, reason, message), now));
    reword(&mut next, message, now);
    entry.conditions.insert(0, next);
}

/// Changes the message of a condition, and leaves its times.
fn reword(condition: &mut UpgradeCondition, message: &str, now: Timestamp) {
    if condition.message != message {
        message.clone_into(&mut condition.message);
        condition.last_probe_time = Some(Time(now));
    }
}

fn condition(
    type_: &str,
    (status, reason, message): (&str, &str, &str),
    now: Timestamp,
) -> UpgradeCondition {
    UpgradeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
        start_time: Some(Time(now)),
        complete_time: None,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// Whether a condition is that of a step.
fn is_of(step: &[&str], condition: &UpgradeCondition) -> bool {
    step.contains(&&*condition.type_)
}

/// The conditions of these steps, as the step engine has them.
pub(crate) fn decode(entry: &UpgradeHistory, steps: &[&str], now: Timestamp) -> Vec<StepCondition> {
    let of_steps = entry.conditions.iter().filter(|one| is_of(steps, one));
    let decoded = of_steps.map(|one| {
        let reason = match &*one.status {
            "True" => DONE,
            _ if one.message.ends_with(STILL) => IN_PROGRESS,
            _ => ERROR,
        };
        StepCondition {
            type_: one.type_.clone(),
            status: one.status.clone(),
            reason: reason.to_owned(),
            message: one.message.clone(),
            start_time: one.start_time.clone().unwrap_or(Time(now)),
            complete_time: one.complete_time.clone(),
            last_transition_time: one.last_transition_time.clone().unwrap_or(Time(now)),
        }
    });
    decoded.collect()
}

const STILL: &str = " still in progress";

/// Sets the conditions of steps, in front of those that are of none: those record notifications.
pub(crate) fn encode(
    entry: &mut UpgradeHistory,
    (steps, reached): (&[&str], &[&str]),
    conditions: &[StepCondition],
    (now, compat): (Timestamp, Compat),
) {
    let before = std::mem::take(&mut entry.conditions);
    let encoded = conditions.iter().map(|one| {
        let type_ = &one.type_;
        let is_done = one.status == "True";
        let message = match &*one.reason {
            DONE => format!("{type_} is completed"),
            ERROR => one.message.clone(),
            _ => format!("{type_}{STILL}"),
        };
        let known = before.iter().find(|known| known.type_ == *type_);
        // Two steps may share a condition: what they change in between is not shown.
        let unchanged = known.filter(|known| known.status == one.status);
        let transition = unchanged.and_then(|known| known.last_transition_time.clone());
        let next = UpgradeCondition {
            type_: type_.clone(),
            status: one.status.clone(),
            last_probe_time: known.and_then(|known| known.last_probe_time.clone()),
            last_transition_time: transition.or_else(|| Some(one.last_transition_time.clone())),
            start_time: Some(one.start_time.clone()),
            complete_time: one.complete_time.clone(),
            reason: format!("{type_} {}", if is_done { "done" } else { "not done" }),
            message,
        };
        // The original writes the status at each look.
        let is_probed = match compat {
            Compat::Strict => reached.contains(&&**type_),
            Compat::Repaired => known != Some(&next),
        };
        if is_probed { UpgradeCondition { last_probe_time: Some(Time(now)), ..next } } else { next }
    });
    let others = before.iter().filter(|one| !is_of(steps, one)).cloned();
    entry.conditions = encoded.chain(others).collect();
}
