//! Packages that a plan fetched. They are installed from here, so that the mirror is not needed
//! after the step that fetched them.
//!
//! They are not in the cache of the package manager: dnf deletes from it what was fetched after the
//! next transaction, and any `clean` deletes all of it (`docs/facts/hosts.md#dnf`). They are not in
//! the agent's own directory either, because apt downloads as a user who may not read that.
//!
//! Their checksums are in the agent's own directory: a package that is damaged or removed before its installation is
//! fetched again.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{apt_offline::digest, package_files};
use crate::host::{
    Site,
    files::atomic::{self, Access},
    site::plain,
    snapshot,
    work::WorkError,
};

/// Directory of the packages of all plans.
pub(crate) const STORE: &str = "/var/cache/refit-agent";
/// The file with the checksums of a plan's packages, in its snapshot.
const SUMS: &str = "fetched.json";
/// What can be wrong with a file.
const DAMAGED: &str = "damaged";
const MISSING: &str = "missing";

/// The sha256 of files, by name.
type Sums = BTreeMap<String, String>;

/// Records the sha256 of files that were verified when they were fetched.
pub(super) fn write_sums(record: &Path, files: &[PathBuf]) -> Result<(), WorkError> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sums = files.iter().map(|path| Ok((name(path), digest(path)?.1)));
    let sums = sums.collect::<Result<Sums, WorkError>>()?;
    let text = serde_json::to_vec_pretty(&sums).expect("plain data serialises to JSON");
    atomic::replace(record, &text, Access::of_mode(0o644)).map(drop)
}

/// Files that are not as they were fetched, each with what is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost(Vec<(PathBuf, &'static str)>);

impl Lost {
    /// The files in a directory that are not as recorded, of those with a name that matters. Without a record, as with
    /// files that an older agent fetched, all of them are taken to be whole.
    pub(super) fn of(directory: &Path, record: &Path, matters: impl Fn(&str) -> bool) -> Self {
        let sums = fs::read(record).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let sums: Sums = sums.unwrap_or_default();
        let sums = sums.into_iter().filter(|(name, _)| matters(name));
        let lost = sums.filter_map(|(name, sum)| {
            let path = directory.join(name);
            match digest(&path) {
                Ok((_, found)) if found == sum => None,
                // A disk may not read what it holds.
                Ok(_) | Err(_) if path.exists() => Some((path, DAMAGED)),
                Ok(_) | Err(_) => Some((path, MISSING)),
            }
        });
        Self(lost.collect())
    }

    /// Whether this file is not as it was fetched.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|(lost, _)| lost == path)
    }

    /// Whether every file is as it was fetched.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The failure of a step that had to fetch them again.
    pub(super) fn explain(&self, error: WorkError) -> WorkError {
        if self.is_empty() {
            return error;
        }
        let message = format!(
            "not everything that was fetched for this plan is as it was fetched: {self}; make the source of the packages \
             reachable, or put the file back: {error}"
        );
        WorkError { message, ..error }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (path, what)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{} is {what}", path.display())?;
        }
        Ok(())
    }
}

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

/// Records the packages that a plan fetched: their manager has verified them just now.
pub(super) fn record(site: &Site, plan: &str, extension: &str) -> Result<(), WorkError> {
    let directory = directory(site, plan);
    let files = package_files(&directory, extension);
    let files = files.map_err(|error| WorkError::file(&directory, &error))?;
    write_sums(&snapshot::make_directory(site, plan)?.join(SUMS), &files)
}

/// Removes the packages of a plan that are damaged since it fetched them, and returns these and those that are missing.
pub(super) fn discard_damaged(site: &Site, plan: &str) -> Result<Lost, WorkError> {
    let lost = Lost::of(&directory(site, plan), &site.snapshot(plan).join(SUMS), |_| true);
    for (path, _) in lost.0.iter().filter(|(_, what)| *what == DAMAGED) {
        atomic::remove(path)?;
    }
    if !lost.is_empty() {
        site.log(&format!("to be fetched again: {lost}"));
    }
    Ok(lost)
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
    use crate::host::scripted::ScriptedHost;

    #[test]
    fn packages_stay_until_another_plan_fetches_its_own() {
        let host = ScriptedHost::with_directories(&[]);
        let site = &host.site;
        let first = prepare(site, "first").unwrap();
        fs::write(first.join("a.rpm"), "").unwrap();
        prepare(site, "first").unwrap();
        assert!(first.join("a.rpm").exists());
        let mode = fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "apt's own user downloads into it");
        let second = prepare(site, "second").unwrap();
        assert_eq!(all(site), [second]);
    }

    #[test]
    fn a_package_that_is_not_as_it_was_fetched_is_named_and_removed() {
        let damage: fn(&Path) = |path| fs::write(path, "A").unwrap();
        let cut: fn(&Path) = |path| fs::write(path, "").unwrap();
        let delete: fn(&Path) = |path| fs::remove_file(path).unwrap();
        let all: fn(&Path) = |path| fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let whole: fn(&Path) = |_| {};
        for (change, lost) in [
            (whole, &[][..]),
            (damage, &[("a.deb", DAMAGED)]),
            (cut, &[("a.deb", DAMAGED)]),
            (delete, &[("a.deb", MISSING)]),
            (all, &[("a.deb", MISSING), ("b.deb", MISSING)]),
        ] {
            let host = ScriptedHost::with_directories(&[]);
            let directory = prepare(&host.site, "p").unwrap();
            for name in ["a.deb", "b.deb", "lock"] {
                fs::write(directory.join(name), "a").unwrap();
            }
            record(&host.site, "p", "deb").unwrap();
            fs::write(directory.join("lock"), "").unwrap();
            change(&directory.join("a.deb"));
            let lost: Vec<_> =
                lost.iter().map(|(name, what)| (directory.join(name), *what)).collect();
            let lost = Lost(lost);
            assert_eq!(discard_damaged(&host.site, "p").unwrap(), lost);
            assert_eq!(directory.join("a.deb").exists(), lost.is_empty());
            let error = lost.explain(WorkError::retriable("Could not resolve"));
            assert!(error.message.ends_with("Could not resolve"));
            for (path, what) in &lost.0 {
                assert!(error.message.contains(&format!("{} is {what}", path.display())));
            }
        }
    }

    #[test]
    fn packages_that_an_older_agent_fetched_are_taken_to_be_whole() {
        let host = ScriptedHost::with_directories(&[]);
        let directory = prepare(&host.site, "p").unwrap();
        fs::write(directory.join("a.deb"), "").unwrap();
        assert_eq!(discard_damaged(&host.site, "p").unwrap(), Lost::default());
        assert!(directory.join("a.deb").exists());
    }
}
