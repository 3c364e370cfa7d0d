//! The words of upgrades by annotation, for Machines and their owners alike.

use std::collections::BTreeMap;

use crate::node::{Announcement, Severity};

/// Reason of the event that a refresh has begun.
pub(super) const IN_PROGRESS: &str = "InPlaceUpgradeInProgress";
/// Reason of the event that all that was requested is installed.
pub(super) const DONE: &str = "InPlaceUpgradeDone";
/// Reason of the event that an attempt has failed.
pub(super) const FAILED: &str = "InPlaceUpgradeFailed";
/// Reason of the event that the request was removed before it was reached.
const CANCELLED: &str = "InPlaceUpgradeCancelled";
/// Reason of the event that Canonical's controllers may be there as well.
const LEFT_TO_OTHERS: &str = "CanonicalControllersPresent";
/// Prefix of [`Keys::noted`] for a request that is not an option; its text follows.
const REFUSED: &str = "refused: ";
/// The same for a request whose task a person has stopped.
const STOPPED: &str = "stopped: ";
/// The same for a request that is left to Canonical's controllers.
pub(super) const LEFT: &str = "left: ";

pub(super) fn refused_note(text: &str) -> String {
    format!("{REFUSED}{text}")
}

pub(super) fn stopped_note(text: &str) -> String {
    format!("{STOPPED}{text}")
}

pub(super) fn left_note(text: &str) -> String {
    format!("{LEFT}{text}")
}

/// The change of annotations to these values: what is so already is left out.
pub(super) fn changed(
    known: &BTreeMap<String, String>,
    values: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> BTreeMap<&'static str, Option<String>> {
    let is_so = |key: &str, value: &Option<String>| known.get(key) == value.as_ref();
    values.into_iter().filter(|(key, value)| !is_so(key, value)).collect()
}

pub(super) fn normal(reason: &'static str, message: String) -> Announcement {
    Announcement { severity: Severity::Normal, reason, message }
}

pub(super) fn cancelled() -> Announcement {
    normal(CANCELLED, "The in-place upgrade is cancelled.".to_owned())
}

/// An attempt has failed, or none can begin.
pub(super) fn failed_with(option: &str, why: &str) -> Announcement {
    failed(format!("Failed to perform in place upgrade with {option}: {why}"))
}

pub(super) fn failed(message: String) -> Announcement {
    Announcement { severity: Severity::Warning, reason: FAILED, message }
}

/// Refit does nothing about an annotation. `what` is what Canonical's controllers may work on.
pub(super) fn left_to_others(annotation: &str, what: &str) -> Announcement {
    Announcement {
        severity: Severity::Warning,
        reason: LEFT_TO_OTHERS,
        message: format!(
            "Refit does not serve {annotation}: CK8sConfig is served here, so the controllers of Canonical's provider may \
             work on {what} as well. Disable them, then start Refit with --canonical ControllersAbsent"
        ),
    }
}
