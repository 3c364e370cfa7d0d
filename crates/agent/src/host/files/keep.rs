//! Files as they were before a plan, kept so that they can be restored.
//!
//! `snapshots/<plan>/files/<group>/index.json` lists them. A file is added before it changes, and
//! only once: a retry does not keep what the first attempt has half changed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    atomic::{self, Access},
    is_seen,
};
use crate::host::{Site, site::plain, work::WorkError};

/// Group of the files that package steps change.
pub(crate) const PACKAGES: &str = "packages";
/// Group of the kubelet's own files.
pub(crate) const KUBELET: &str = "kubelet";

/// A path and its original content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    path: String,
    was: Original,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Original {
    /// The path did not exist.
    Absent,
    /// A file; its copy is next to the index.
    File { copy: String, mode: u32, uid: u32, gid: u32 },
    /// A symbolic link.
    Link { target: PathBuf },
}

/// Directory of a group of a plan.
pub(crate) fn directory(site: &Site, plan: &str, group: &str) -> PathBuf {
    site.snapshot(plan).join("files").join(plain(group))
}

fn index(directory: &Path) -> Result<Vec<Kept>, WorkError> {
    let path = directory.join("index.json");
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| {
            WorkError::needs_person(format!(
                "cannot read {}, so the previous files are unknown: {error}",
                path.display()
            ))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(WorkError::file(&path, &error)),
    }
}

/// Keeps the file that a write to an absolute path of the host would change, unless this group of
/// the plan already has it. For a link, both the link and its target are kept.
pub(crate) fn keep(site: &Site, plan: &str, group: &str, absolute: &str) -> Result<(), WorkError> {
    keep_itself(site, plan, group, absolute)?;
    match site.resolved(absolute) {
        Some(file) if file != absolute => keep_itself(site, plan, group, &file),
        _ => Ok(()),
    }
}

/// Keeps what is at an absolute path. For a link, only the link is kept and not its target: for
/// callers that replace the link itself.
pub(crate) fn keep_itself(
    site: &Site,
    plan: &str,
    group: &str,
    absolute: &str,
) -> Result<(), WorkError> {
    let directory = directory(site, plan, group);
    let mut kept = index(&directory)?;
    if kept.iter().any(|kept| kept.path == absolute) {
        return Ok(());
    }
    let path = site.path(absolute);
    let error = |error| WorkError::file(&path, &error);
    let link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    let was = if link {
        Original::Link { target: fs::read_link(&path).map_err(error)? }
    } else if let Some((content, file)) = atomic::read(&path)? {
        let copy = format!("{}.saved", kept.len());
        atomic::replace(&directory.join(&copy), &content, Access::of_mode(0o600))?;
        let access = Access::of(&file);
        Original::File {
            copy,
            mode: access.mode,
            uid: access.uid.unwrap_or_default(),
            gid: access.gid.unwrap_or_default(),
        }
    } else {
        Original::Absent
    };
    kept.push(Kept { path: absolute.to_owned(), was });
    let text = serde_json::to_vec_pretty(&kept).expect("plain data serialises to JSON");
    atomic::replace(&directory.join("index.json"), &text, Access::of_mode(0o600))?;
    Ok(())
}

/// Restores everything that a group of a plan has kept, and returns the paths. Paths that did not
/// exist are removed.
pub(crate) fn put_back(site: &Site, plan: &str, group: &str) -> Result<Vec<String>, WorkError> {
    let directory = directory(site, plan, group);
    let kept = index(&directory)?;
    for one in kept.iter().rev() {
        restore(site, &directory, one)?;
    }
    Ok(kept.into_iter().map(|one| one.path).collect())
}

/// Removes everything that a group has kept, of this plan and of earlier ones. Without its index, the next attempt keeps
/// it again.
pub(crate) fn forget(site: &Site, plan: &str, group: &str) -> Result<(), WorkError> {
    let own = site.snapshot(plan);
    let all = own.parent().and_then(|all| fs::read_dir(all).ok());
    for entry in all.into_iter().flatten().flatten() {
        let directory = entry.path().join("files").join(plain(group));
        atomic::remove(&directory.join("index.json"))?;
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(|error| WorkError::file(&directory, &error))?,
        }
    }
    Ok(())
}

/// A path before a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The plan has kept no file there.
    Unknown,
    /// The path did not exist.
    Absent,
    /// A file.
    File(Saved),
}

/// A copy of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// What is in the file.
    pub content: Vec<u8>,
    /// Its permissions and owner.
    pub access: Access,
}

/// Reads what a group of a plan has kept of one path.
pub(crate) fn before(
    site: &Site,
    plan: &str,
    group: &str,
    absolute: &str,
) -> Result<Before, WorkError> {
    let directory = directory(site, plan, group);
    let kept = index(&directory)?.into_iter().find(|one| one.path == absolute);
    Ok(match kept.map(|one| one.was) {
        None | Some(Original::Link { .. }) => Before::Unknown,
        Some(Original::Absent) => Before::Absent,
        Some(Original::File { copy, mode, uid, gid }) => {
            let copy = directory.join(copy);
            let content = fs::read(&copy).map_err(|error| WorkError::file(&copy, &error))?;
            let access = Access { mode, uid: Some(uid), gid: Some(gid) };
            Before::File(Saved { content, access })
        }
    })
}

fn restore(site: &Site, directory: &Path, one: &Kept) -> Result<(), WorkError> {
    let path = site.path(&one.path);
    match &one.was {
        Original::Absent => atomic::remove(&path),
        Original::Link { target } => atomic::link(&path, target),
        Original::File { copy, mode, uid, gid } => {
            let copy = directory.join(copy);
            let content = fs::read(&copy).map_err(|error| WorkError::file(&copy, &error))?;
            if fs::symlink_metadata(&path).is_ok_and(|now| now.is_symlink()) {
                atomic::remove(&path)?;
            }
            let access = Access { mode: *mode, uid: Some(*uid), gid: Some(*gid) };
            atomic::replace(&path, &content, access).map(drop)
        }
    }
}

/// Checks that everything that a group of a plan has kept is restored, as far as the agent's service
/// sees it. Returns the first path that is not.
pub(crate) fn is_back(site: &Site, plan: &str, group: &str) -> Result<Option<String>, WorkError> {
    let directory = directory(site, plan, group);
    let seen = |one: &Kept| {
        let path = Path::new(&one.path);
        match &one.was {
            // Only the link itself was kept, which is where its directory is.
            Original::Link { .. } => path.parent().is_none_or(|parent| is_seen(site, parent)),
            Original::Absent | Original::File { .. } => is_seen(site, path),
        }
    };
    for one in index(&directory)?.into_iter().filter(seen) {
        let path = site.path(&one.path);
        let back = match &one.was {
            Original::Absent => fs::symlink_metadata(&path).is_err(),
            Original::Link { target } => fs::read_link(&path).is_ok_and(|now| now == *target),
            Original::File { copy, mode, .. } => {
                let content = fs::read(directory.join(copy)).unwrap_or_default();
                atomic::is(&path, &content, Access::of_mode(*mode))
            }
        };
        if !back {
            return Ok(Some(one.path));
        }
    }
    Ok(None)
}

/// Removes the snapshots of older plans, except the newest ones.
pub(crate) fn prune(site: &Site, plan: &str, newest: usize) {
    let own = site.snapshot(plan);
    let Some(all) = own.parent() else { return };
    let mut others: Vec<_> = fs::read_dir(all)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path() != own)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    others.sort();
    let drop = others.len().saturating_sub(newest);
    for (_, path) in others.into_iter().take(drop) {
        if let Err(error) = fs::remove_dir_all(&path) {
            site.log(&format!("cannot remove {}: {error}", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        fs::create_dir_all(site.path("/etc")).unwrap();
        fs::create_dir_all(site.state()).unwrap();
        (directory, site)
    }

    #[test]
    fn files_links_and_absent_paths_are_restored() {
        let (_directory, site) = site();
        let access = Access::of_mode(0o640);
        atomic::replace(&site.path("/etc/a"), b"old", access).unwrap();
        atomic::link(&site.path("/etc/b"), Path::new("v1")).unwrap();
        for path in ["/etc/a", "/etc/b", "/etc/c"] {
            keep(&site, "p", "g", path).unwrap();
        }
        atomic::replace(&site.path("/etc/a"), b"new", Access::of_mode(0o600)).unwrap();
        // The retry does not keep what the first attempt has changed.
        keep(&site, "p", "g", "/etc/a").unwrap();
        atomic::link(&site.path("/etc/b"), Path::new("v2")).unwrap();
        fs::write(site.path("/etc/c"), "x").unwrap();
        assert_eq!(is_back(&site, "p", "g").unwrap(), Some("/etc/a".to_owned()));
        let back = put_back(&site, "p", "g").unwrap();
        assert_eq!(back, ["/etc/a", "/etc/b", "/etc/c"]);
        assert!(atomic::is(&site.path("/etc/a"), b"old", access));
        assert_eq!(fs::read_link(site.path("/etc/b")).unwrap(), Path::new("v1"));
        assert!(!site.path("/etc/c").exists());
        assert_eq!(is_back(&site, "p", "g").unwrap(), None);
        put_back(&site, "p", "g").unwrap();
    }

    #[test]
    fn a_file_replaced_by_a_link_is_restored() {
        let (_directory, site) = site();
        fs::write(site.path("/etc/a"), "binary").unwrap();
        fs::write(site.path("/etc/other"), "other").unwrap();
        keep(&site, "p", "g", "/etc/a").unwrap();
        atomic::link(&site.path("/etc/a"), &site.path("/etc/other")).unwrap();
        put_back(&site, "p", "g").unwrap();
        assert_eq!(site.read("/etc/a"), "binary");
        assert_eq!(site.read("/etc/other"), "other");
    }

    #[test]
    fn a_file_written_through_a_link_is_restored() {
        let (_directory, site) = site();
        let (real, by) = (site.path("/etc/real.conf"), site.path("/etc/by.conf"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink("real.conf", &by).unwrap();
        keep(&site, "p", "g", "/etc/by.conf").unwrap();
        atomic::replace(&by, b"new", Access::of_mode(0o600)).unwrap();
        assert_eq!(site.read("/etc/real.conf"), "new");
        let other = is_back(&site, "p", "g").unwrap();
        assert_eq!(other, Some("/etc/real.conf".to_owned()));
        put_back(&site, "p", "g").unwrap();
        assert_eq!(site.read("/etc/real.conf"), "old");
        assert_eq!(fs::read_link(&by).unwrap(), Path::new("real.conf"));
        // A file in place of the link is rolled back as well.
        fs::remove_file(&by).unwrap();
        fs::write(&by, "new").unwrap();
        put_back(&site, "p", "g").unwrap();
        assert_eq!(fs::read_link(&by).unwrap(), Path::new("real.conf"));
        assert_eq!(is_back(&site, "p", "g").unwrap(), None);
    }

    #[test]
    fn a_plan_that_kept_nothing_restores_nothing() {
        let (_directory, site) = site();
        assert!(put_back(&site, "p", "g").unwrap().is_empty());
    }

    #[test]
    fn only_the_newest_snapshots_are_kept() {
        let (_directory, site) = site();
        for plan in ["a", "b", "c", "now"] {
            fs::create_dir_all(site.snapshot(plan)).unwrap();
        }
        prune(&site, "now", 1);
        assert!(site.snapshot("now").exists());
        let left = fs::read_dir(site.snapshot("now").parent().unwrap()).unwrap();
        assert_eq!(left.count(), 2);
    }
}
