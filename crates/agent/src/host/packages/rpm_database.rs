//! The repair of a broken rpm database.
//!
//! With a broken database, dnf may take the host for empty, so the database is checked before dnf
//! runs. `rpm --rebuilddb` may leave an empty database and report success
//! (`docs/facts/hosts.md#dnf`), so the result is compared with the database from before, which is
//! restored if packages are missing.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, syncfs};

use super::{Want, locks};
use crate::host::{Program, ProgramError, Site, files::atomic, work::WorkError};

/// Messages about a broken database.
const BROKEN: [&str; 8] = [
    "cannot open Packages",
    "database disk image is malformed",
    "file is not a database",
    "rpmdb open failed",
    "DB_RUNRECOVERY",
    "Thread died in Berkeley DB",
    "PANIC: fatal region error",
    "rpmdb: damaged header",
];
/// Messages about a database that is in use or may not be read.
const NOT_BROKEN: [&str; 2] = ["database is locked", "Permission denied"];

/// Whether the output of rpm or dnf reports a broken database.
pub(super) fn is_broken(output: &str) -> bool {
    let has = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
    has(&BROKEN) && !has(&NOT_BROKEN)
}

/// Rebuilds the database if a query for a wanted package reports that it is broken, or if an
/// interrupted rebuild has not left a sound one.
pub(super) async fn repair(site: &Site, wants: &[Want]) -> Result<(), WorkError> {
    let Some(want) = wants.first() else {
        return Ok(());
    };
    // A query by name reads an index, which may be broken alone. It fails for a package that is not
    // installed.
    if let Err(error) = site.ask(Program::Rpm, ["--query", &want.name]).await
        && is_broken(error.output_tail())
    {
        return rebuild(site, &error.to_string()).await;
    }
    let saved = saved(site);
    if !saved.exists() {
        return Ok(());
    }
    if is_sound(site, &saved).await? {
        site.log("the rpm database is sound, removing the copy from before an earlier rebuild");
        return remove(&saved);
    }
    rebuild(site, "an earlier rebuild was interrupted").await
}

/// Whether the database has as many packages as the copy, as far as the copy can be read. A query
/// that fails for another reason than a broken database is an error, because a copy may be older
/// than the database.
async fn is_sound(site: &Site, saved: &Path) -> Result<bool, WorkError> {
    let present = match count(site, None).await {
        Err(error) if is_broken(error.output_tail()) => return Ok(false),
        counted => counted?,
    };
    let copied = count(site, Some(saved)).await.unwrap_or_default();
    Ok(present >= copied.max(1) && has_itself(site).await)
}

/// Copy of the database while it is rebuilt.
fn saved(site: &Site) -> PathBuf {
    site.state().join("rpm-database")
}

/// Rebuilds the database, and restores it if packages are missing afterwards.
pub(super) async fn rebuild(site: &Site, cause: &str) -> Result<(), WorkError> {
    site.log_and_go_on(&format!("the rpm database is broken, rebuilding it: {cause}"));
    let found = site.ask(Program::Rpm, ["--eval", "%{_dbpath}"]).await?;
    let database = site.path(found.trim());
    // It may be a link.
    let database =
        fs::canonicalize(&database).map_err(|error| WorkError::file(&database, &error))?;
    let saved = saved(site);
    let mut before = count(site, None).await.unwrap_or_default();
    // An earlier rebuild was interrupted.
    if saved.exists() {
        if count(site, Some(&saved)).await.unwrap_or_default() < before {
            remove(&saved)?;
        } else {
            put_back(site, &saved, &database).await?;
            before = count(site, None).await.unwrap_or_default();
        }
    }
    save(site, &database, &saved).await?;
    let rebuilt = locks::run(site, &site.call(Program::Rpm, ["--rebuilddb"])).await;
    let after = count(site, None).await.unwrap_or_default();
    if rebuilt.is_ok() && after >= before.max(1) && has_itself(site).await {
        return remove(&saved);
    }
    put_back(site, &saved, &database).await?;
    let outcome = match rebuilt {
        Ok(_) => format!("leaves {after} packages of {before}"),
        Err(error) => format!("fails: {error}"),
    };
    Err(WorkError::needs_person(format!(
        "the rpm database in {} is broken ({cause}), and `rpm --rebuilddb` {outcome}; it is \
         unchanged, restore it from a backup on the host",
        database.display()
    )))
}

/// How many packages rpm lists in its database, or in the one of another directory.
async fn count(site: &Site, other: Option<&Path>) -> Result<usize, ProgramError> {
    let other = other.map(|path| format!("--dbpath={}", path.display()));
    let query = ["--query", "--all", "--queryformat", "%{NAME}\\n"].map(str::to_owned);
    let answer = site.ask(Program::Rpm, query.into_iter().chain(other)).await?;
    Ok(answer.lines().count())
}

/// Whether rpm finds the package that it is itself from, if it is from one.
async fn has_itself(site: &Site) -> bool {
    !site.path("/usr/bin/rpm").exists()
        || site.ask(Program::Rpm, ["--query", "--file", "/usr/bin/rpm"]).await.is_ok()
}

/// Copies the database. The copy has its name only when it is complete on the disk.
async fn save(site: &Site, database: &Path, saved: &Path) -> Result<(), WorkError> {
    let new = saved.with_extension("new");
    remove(&new)?;
    copy(site, database, &new).await?;
    fs::rename(&new, saved)
        .and_then(|()| saved.parent().map_or(Ok(()), atomic::sync_directory))
        .map_err(|error| WorkError::file(saved, &error))
}

/// Restores the copy of the database.
async fn put_back(site: &Site, saved: &Path, database: &Path) -> Result<(), WorkError> {
    let new = database.with_extension("refit-new");
    remove(&new)?;
    copy(site, saved, &new).await?;
    // Without a moment in which there is no database: rpm would create an empty one.
    rustix::fs::renameat_with(CWD, &new, CWD, database, RenameFlags::EXCHANGE)
        .map_err(std::io::Error::from)
        .and_then(|()| database.parent().map_or(Ok(()), atomic::sync_directory))
        .map_err(|error| WorkError::file(database, &error))?;
    remove(&new)?;
    remove(saved)
}

/// Copies a directory, durably: a power cut must not leave the names without the content.
async fn copy(site: &Site, from: &Path, to: &Path) -> Result<(), WorkError> {
    let paths = [from, to].map(|path| path.display().to_string());
    let call = site.call(Program::Cp, ["--archive".to_owned()].into_iter().chain(paths));
    site.run(&call).await?;
    let synced = fs::File::open(to).and_then(|directory| Ok(syncfs(&directory)?));
    synced.map_err(|error| WorkError::file(to, &error))
}

fn remove(path: &Path) -> Result<(), WorkError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| WorkError::file(path, &error)),
    }
}
