//! Packages that a plan fetched. They are installed from here, so that the mirror is not needed
//! after the step that fetched them.
//!
//! They are not in the cache of the package manager: dnf deletes from it what was fetched after the
//! next transaction, and any `clean` deletes all of it (`docs/facts/hosts.md#dnf`). They are not in
//! the agent's own directory either, because apt downloads as a user who may not read that.

use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::host::{Site, site::plain, work::WorkError};

/// Directory of the packages of all plans.
pub(crate) const STORE: &str = "/var/cache/refit-agent";

/// Directory of the packages that a plan fetched.
pub(super) fn directory(site: &Site, plan: &str) -> PathBuf {
    site.path(STORE).join(plain(plan))
}

/// Creates the directory of a plan, and removes those of other plans.
pub(super) fn prepare(site: &Site, plan: &str) -> Result<PathBuf, WorkError> {
    let own = directory(site, plan);
    for other in all(site).iter().filter(|path| **path != own) {
        remove_all(site, other);
    }
    fs::create_dir_all(&own).map_err(|error| WorkError::file(&own, &error))?;
    for path in [&site.path(STORE), &own] {
        fs::set_permissions(path, Permissions::from_mode(0o755))
            .map_err(|error| WorkError::file(path, &error))?;
    }
    Ok(own)
}

/// Directories of the packages that all plans fetched.
pub(super) fn all(site: &Site) -> Vec<PathBuf> {
    let entries = fs::read_dir(site.path(STORE)).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn remove_all(site: &Site, path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != ErrorKind::NotFound
    {
        site.log_and_go_on(&format!("cannot remove {}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_stay_until_another_plan_fetches_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let first = prepare(&site, "first").unwrap();
        fs::write(first.join("a.rpm"), "").unwrap();
        prepare(&site, "first").unwrap();
        assert!(first.join("a.rpm").exists());
        let mode = fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "apt's own user downloads into it");
        let second = prepare(&site, "second").unwrap();
        assert_eq!(all(&site), [second]);
    }
}
