//! Package files for apt: a folder of them as a repository, and the old ones kept for an undo.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{Want, apt::Apt};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// Makes a repository of the package files in `folder`, where apt finds dependencies among them
/// too, and says where it is. The folder itself is left as it is.
pub(super) async fn repository(apt: &Apt<'_>, folder: &Path) -> Result<PathBuf, WorkError> {
    let site = apt.site;
    let own = site.state().join("apt");
    let repository = own.join("repository");
    let file = |error: &std::io::Error| WorkError::file(&repository, error);
    if let Err(error) = fs::remove_dir_all(&repository)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(file(&error));
    }
    fs::create_dir_all(&repository).map_err(|error| file(&error))?;
    let mut index = String::new();
    for path in package_files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = path.display().to_string();
        let control = site.ask(Program::DpkgDeb, ["--field", &shown]).await?;
        let (size, sha256) = digest(&path)?;
        symlink(&path, repository.join(&name)).map_err(|error| file(&error))?;
        let control = control.trim_end();
        let _ = write!(index, "{control}\nFilename: ./{name}\nSize: {size}\nSHA256: {sha256}\n\n");
    }
    if index.is_empty() {
        return Err(WorkError::last(format!(
            "packages.path {} holds no .deb file",
            folder.display()
        )));
    }
    let access = Access::of_mode(0o644);
    atomic::replace(&repository.join("Packages"), index.as_bytes(), access)?;
    Ok(repository)
}

fn package_files(folder: &Path) -> Result<Vec<PathBuf>, WorkError> {
    let entries = fs::read_dir(folder).map_err(|error| WorkError::file(folder, &error))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    files.sort();
    Ok(files)
}

/// Size and sha256 of a file, which need not fit into memory.
pub(super) fn digest(path: &Path) -> Result<(u64, String), WorkError> {
    let error = |error: std::io::Error| WorkError::file(path, &error);
    let mut file = fs::File::open(path).map_err(error)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer).map_err(error)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        hash.update(buffer.get(..read).unwrap_or_default());
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok((size, hex))
}

fn folder(site: &Site) -> PathBuf {
    site.state().join("packages")
}

/// The kept file of a package at a version.
pub(super) fn kept(site: &Site, name: &str, version: &str) -> Option<PathBuf> {
    find(&folder(site), name, version)
}

/// apt names files `name_version_arch.deb`, with `%3a` for the colon of an epoch.
fn find(folder: &Path, name: &str, version: &str) -> Option<PathBuf> {
    let start = format!("{name}_{}_", version.replace(':', "%3a"));
    let found = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&start) && path.extension().is_some_and(|kind| kind == "deb")
    };
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(found)
        .collect();
    files.sort();
    files.pop()
}

/// Keeps the files of the installed packages that are about to be replaced, for an undo without
/// their repository. Best effort: what cannot be kept may still be in the repository.
pub(super) async fn keep_old(apt: &Apt<'_>, wants: &[Want], installed: &BTreeMap<String, String>) {
    let site = apt.site;
    let folder = folder(site);
    if let Err(error) = fs::create_dir_all(&folder) {
        site.say(&format!("{} cannot be made: {error}", folder.display()));
        return;
    }
    let old: Vec<(&str, &str)> = wants
        .iter()
        .filter_map(|want| Some((want, installed.get(&want.name)?)))
        .filter(|(want, version)| !want.version.is(version))
        .map(|(want, version)| (want.name.as_str(), version.as_str()))
        .collect();
    forget(site, &folder, &old);
    for (name, version) in old {
        if kept(site, name, version).is_some() {
            continue;
        }
        if let Some(file) = find(&site.path("/var/cache/apt/archives"), name, version) {
            let to = folder.join(file.file_name().unwrap_or_default());
            if fs::copy(&file, &to).is_ok() {
                continue;
            }
        }
        let wanted = format!("{name}={version}");
        let mut call = apt.apt_get(["download", &wanted]).within(&folder);
        call.arguments.extend(super::apt::as_root());
        if let Err(error) = apt.patiently(&call).await {
            site.say(&format!(
                "package {wanted} cannot be kept, so going back would need its repository: {error}"
            ));
        }
    }
}

/// Lets go of kept files of versions that are not installed any more.
fn forget(site: &Site, folder: &Path, old: &[(&str, &str)]) {
    let needed: Vec<PathBuf> =
        old.iter().filter_map(|(name, version)| find(folder, name, version)).collect();
    if old.is_empty() {
        return;
    }
    for path in package_files(folder).unwrap_or_default() {
        if !needed.contains(&path)
            && let Err(error) = fs::remove_file(&path)
        {
            site.say(&format!("{} is not removed: {error}", path.display()));
        }
    }
}
