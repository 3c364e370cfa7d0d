//! Which packages were pinned before a plan: held by apt, locked by dnf.
//!
//! A pin is lifted during an installation and set again afterwards, even after a failure. The pins
//! are recorded before the first one is lifted, so that none is lost if the agent is killed
//! meanwhile.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

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
    write(&path(site, plan), pinned)
}

fn write(path: &Path, names: &BTreeSet<String>) -> Result<(), WorkError> {
    let text = serde_json::to_vec(names).expect("names serialise to JSON");
    atomic::replace(path, &text, Access::of_mode(0o600))?;
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
    read(&path(site, plan))
}

fn read(path: &Path) -> BTreeSet<String> {
    let text = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Packages that the plan itself pinned, from the change of their source until their installation.
/// An undo of the plan releases them.
pub(super) fn own(site: &Site, plan: &str) -> BTreeSet<String> {
    read(&own_path(site, plan))
}

/// Records the packages that the plan is about to pin.
pub(super) fn claim(site: &Site, plan: &str, names: &BTreeSet<String>) -> Result<(), WorkError> {
    write(&own_path(site, plan), &(&own(site, plan) | names))
}

/// Forgets the packages that the plan pinned: they are released.
pub(super) fn release(site: &Site, plan: &str) -> Result<(), WorkError> {
    atomic::remove(&own_path(site, plan))
}

fn own_path(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join("own-holds.json")
}
