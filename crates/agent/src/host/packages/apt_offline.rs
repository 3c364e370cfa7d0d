//! Package files for apt: a directory of them as a repository, and old packages kept for a
//! rollback.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{
    Want,
    apt::Apt,
    fetched::{Lost, write_sums},
    locks, package_files,
};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// Creates a repository of the package files in `directory`, in which apt also finds dependencies,
/// and returns its path. The directory itself is not changed.
pub(super) async fn repository(apt: &Apt<'_>, directory: &Path) -> Result<PathBuf, WorkError> {
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
    let files = package_files(directory, "deb");
    for path in files.map_err(|error| WorkError::file(directory, &error))? {
        // apt takes a `%` for the start of an encoded character: `docker-ce_5%3a28.5.1_amd64.deb`.
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace('%', "_");
        let shown = path.display().to_string();
        let control = site.ask(Program::DpkgDeb, ["--field", &shown]).await?;
        let (size, sha256) = digest(&path)?;
        symlink(&path, repository.join(&name)).map_err(|error| file(&error))?;
        let control = control.trim_end();
        let _ = write!(index, "{control}\nFilename: ./{name}\nSize: {size}\nSHA256: {sha256}\n\n");
    }
    if index.is_empty() {
        return Err(WorkError::permanent(format!(
            "packages.path {} contains no .deb file; copy the packages of this version into it",
            directory.display()
        )));
    }
    let access = Access::of_mode(0o644);
    atomic::replace(&repository.join("Packages"), index.as_bytes(), access)?;
    Ok(repository)
}

/// Size and sha256 of a file. The file is not loaded into memory at once.
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

fn directory(site: &Site) -> PathBuf {
    site.state().join("packages")
}

/// The checksums of the kept files.
fn sums(directory: &Path) -> PathBuf {
    directory.join("sums.json")
}

/// The kept file of a package at a version, if it is whole.
pub(super) fn kept(site: &Site, name: &str, version: &str) -> Option<PathBuf> {
    let directory = directory(site);
    let file = find(&directory, name, version)?;
    let is_it = |other: &str| file.file_name().is_some_and(|name| name == other);
    let lost = Lost::of(&directory, &sums(&directory), is_it);
    (!lost.has(&file)).then_some(file)
}

/// Finds the file of a package. apt names files `name_version_arch.deb`, with `%3a` for the colon
/// of an epoch.
fn find(directory: &Path, name: &str, version: &str) -> Option<PathBuf> {
    let start = format!("{name}_{}_", version.replace(':', "%3a"));
    let found = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&start) && path.extension().is_some_and(|kind| kind == "deb")
    };
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(found)
        .collect();
    files.sort();
    files.pop()
}

/// Keeps the files of installed packages that are about to be replaced, for a rollback without
/// their repository. Best effort: a package that cannot be kept may still be in the repository.
pub(super) async fn keep_old(apt: &Apt<'_>, wants: &[Want], installed: &BTreeMap<String, String>) {
    let site = apt.site;
    let directory = directory(site);
    let new = directory.join("new");
    if let Err(error) = fs::create_dir_all(&new) {
        site.log_and_go_on(&format!("cannot create {}: {error}", new.display()));
        return;
    }
    prune(site, &directory, installed);
    let old: Vec<(&str, &str)> = wants
        .iter()
        .filter_map(|want| Some((want, installed.get(&want.name)?)))
        .filter(|(want, version)| !want.version.matches(version))
        .map(|(want, version)| (want.name.as_str(), version.as_str()))
        .collect();
    for (name, version) in old {
        if kept(site, name, version).is_some() {
            continue;
        }
        // Its checksum must not be recorded as that of a whole file.
        if let Some(damaged) = find(&directory, name, version)
            && let Err(error) = fs::remove_file(&damaged)
        {
            site.log_and_go_on(&format!("cannot remove {}: {error}", damaged.display()));
        }
        if let Some(file) = find(&site.path("/var/cache/apt/archives"), name, version) {
            let to = new.join(file.file_name().unwrap_or_default());
            if fs::copy(&file, &to).is_ok() {
                continue;
            }
        }
        let wanted = format!("{name}={version}");
        let mut call = apt.apt_get(["download", &wanted]).within(&new);
        call.arguments.extend(super::apt::as_root());
        if let Err(error) = locks::run(site, &call).await {
            site.log_and_go_on(&format!(
                "cannot keep package {wanted}, so a rollback would need its repository: {error}"
            ));
        }
    }
    if let Err(error) = take_in(&new, &directory) {
        site.log_and_go_on(&format!("cannot keep the installed packages: {error}"));
    }
}

/// Moves files to those that are kept. A file has its name there only when it is complete on the disk.
fn take_in(new: &Path, directory: &Path) -> Result<(), WorkError> {
    for file in package_files(new, "deb").map_err(|error| WorkError::file(new, &error))? {
        let to = directory.join(file.file_name().unwrap_or_default());
        fs::File::open(&file)
            .and_then(|opened| opened.sync_all())
            .and_then(|()| fs::rename(&file, &to))
            .map_err(|error| WorkError::file(&to, &error))?;
    }
    // What an interrupted download has left.
    let rest = fs::remove_dir_all(new).and_then(|()| atomic::sync_directory(directory));
    rest.map_err(|error| WorkError::file(directory, &error))?;
    let kept = package_files(directory, "deb");
    let kept = kept.map_err(|error| WorkError::file(directory, &error))?;
    write_sums(&sums(directory), &kept)
}

/// Removes kept files of versions that are no longer installed.
fn prune(site: &Site, directory: &Path, installed: &BTreeMap<String, String>) {
    for path in package_files(directory, "deb").unwrap_or_default() {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let mut parts = file.split('_');
        let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_installed =
            installed.get(name).is_some_and(|now| now.replace(':', "%3a") == version);
        if !is_installed && let Err(error) = fs::remove_file(&path) {
            site.log_and_go_on(&format!("cannot remove {}: {error}", path.display()));
        }
    }
}
