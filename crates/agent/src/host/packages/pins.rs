//! Which packages were pinned before a plan: held by apt, locked by dnf.
//!
//! A pin is lifted during an installation and set again afterwards, even after a failure. The pins
//! are recorded before the first one is lifted, so that none is lost if the agent is killed
//! meanwhile.

use std::{collections::BTreeSet, fs, path::PathBuf};

use crate::host::{
    Site,
    files::atomic::{self, Access},
    work::WorkError,
};

fn path(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join("holds.json")
}

/// Whether the pins were recorded for a plan.
pub(super) fn are_kept(site: &Site, plan: &str) -> bool {
    path(site, plan).exists()
}

/// Records the pinned packages.
pub(super) fn keep(site: &Site, plan: &str, pinned: &BTreeSet<String>) -> Result<(), WorkError> {
    let text = serde_json::to_vec(pinned).expect("names serialise to JSON");
    atomic::replace(&path(site, plan), &text, Access::of_mode(0o600))?;
    Ok(())
}

/// Adds pinned packages to the record.
pub(super) fn add(site: &Site, plan: &str, pinned: &BTreeSet<String>) -> Result<(), WorkError> {
    let known = kept(site, plan);
    if pinned.is_subset(&known) {
        return Ok(());
    }
    keep(site, plan, &(&known | pinned))
}

/// Whether a package was pinned before the plan.
pub(super) fn was_pinned(site: &Site, plan: &str, name: &str) -> bool {
    kept(site, plan).contains(name)
}

fn kept(site: &Site, plan: &str) -> BTreeSet<String> {
    let text = fs::read(path(site, plan)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}
