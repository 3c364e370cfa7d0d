//! Whether the host must boot before all its installed packages are in use, and the boot itself.
//!
//! | the host has | it must boot if |
//! |---|---|
//! | any | `/run/reboot-required` exists, which scripts of packages write |
//! | dnf with `needs-restarting` | `dnf needs-restarting --reboothint` ends with 1 and `Reboot is required` |
//! | dpkg or rpm | a newer kernel of the running kind is installed, or the package of the running one was replaced |
//!
//! A step that installs packages notes whether its host must boot afterwards. The controller then drains the node, so only what was
//! noted boots the host: what others require later is for another update.

use std::{fs, io::ErrorKind, path::PathBuf, time::SystemTime};

use refit_kinds::refit::{PackageDriver, RebootChoice};

use super::{
    Evidence, HostError, Program, ProgramError, Since, Site,
    files::atomic::{self, Access},
    look::booted,
    packages::{self, Packages},
    reboot::{self, Patience},
    snapshot,
    work::WorkError,
};

/// Files that show that a boot is required, with the packages that require it in the file of the same name and `.pkgs`.
const REQUIRED: [&str; 2] = ["/run/reboot-required", "/var/run/reboot-required"];
/// What dnf's plugin prints if a boot is required. Without the plugin dnf ends with the same code.
const DNF_REQUIRES: &str = "Reboot is required";
/// Release of the running kernel.
const RELEASE: &str = "/proc/sys/kernel/osrelease";
/// Files that change when packages do.
const DATABASES: [&str; 5] = [
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite",
    "/var/lib/rpm/Packages",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite-wal",
];
/// The note of a plan, in its snapshot: why its packages need a boot.
const NOTE: &str = "boot-required";
/// Most packages that a reason names.
const MOST_NAMES: usize = 5;

/// What an answer to [`required`] rests on. While it stays the same, so does the answer.
pub(super) type Basis = Vec<Option<SystemTime>>;

/// An answer to [`required`], with what it rests on.
pub(super) type Answer = (Basis, Option<String>);

/// The present [`Basis`] in this boot.
pub(super) fn basis(site: &Site) -> Basis {
    let files = DATABASES.iter().chain(&REQUIRED);
    let changed = |path: &&str| fs::metadata(site.path(path)).and_then(|file| file.modified()).ok();
    files.map(changed).collect()
}

/// Why the host must boot; `None` if it need not.
pub(super) async fn required(site: &Site) -> Result<Option<String>, WorkError> {
    if let Some(path) = REQUIRED.into_iter().find(|path| site.path(path).exists()) {
        let packages = site.read(&format!("{path}.pkgs"));
        return Ok(Some(match names(packages.lines()).as_str() {
            "" => format!("{path} exists"),
            names => format!("{path} exists, for {names}"),
        }));
    }
    match packages::os::driver(site) {
        Some(PackageDriver::Apt) => dpkg_requires(site).await,
        Some(PackageDriver::Dnf) => dnf_requires(site).await,
        Some(PackageDriver::Tarball | PackageDriver::Auto) | None => Ok(None),
    }
}

async fn dpkg_requires(site: &Site) -> Result<Option<String>, WorkError> {
    let running = site.read(RELEASE).trim().to_owned();
    let installed = Packages::of(site, PackageDriver::Apt)?.installed().await?;
    let release_of = |name: &String| {
        let rest = name.strip_prefix("linux-image-")?;
        let rest = rest.strip_prefix("unsigned-").unwrap_or(rest);
        rest.starts_with(|first: char| first.is_ascii_digit()).then(|| rest.to_owned())
    };
    let newest = newest(installed.keys().filter_map(release_of), &running);
    if newest.is_some() {
        return Ok(newest);
    }
    // `... #1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)`: Debian also replaces a kernel under its name.
    let version = site.read("/proc/version");
    let started =
        version.rsplit_once(" Debian ").and_then(|(_, rest)| rest.split_whitespace().next());
    let image = installed.get(&format!("linux-image-{running}"));
    Ok(started.zip(image).filter(|(started, image)| started != image).map(|(started, image)| {
        format!("the running kernel {running} was replaced: it is version {started}, installed is {image}")
    }))
}

async fn dnf_requires(site: &Site) -> Result<Option<String>, WorkError> {
    let dnf = [Program::Dnf5, Program::Dnf].into_iter().find(|program| site.has(*program));
    if let Some(dnf) = dnf {
        // The metadata of repositories is not needed, and their servers may be away.
        let hint = ["needs-restarting", "--reboothint", "--disablerepo=*"];
        match site.ask(dnf, hint).await {
            Ok(_) => return Ok(None),
            Err(error) if error.output_tail().contains(DNF_REQUIRES) => {
                return Ok(Some(dnf_reason(&error)));
            }
            // It lacks the plugin.
            Err(ProgramError::Failed { .. }) => {}
            Err(error @ ProgramError::NotRun { .. }) => return Err(error.into()),
        }
    }
    let format = "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\\n";
    let answer = site.ask(Program::Rpm, ["--query", "--all", "--queryformat", format]).await?;
    let running = site.read(RELEASE).trim().to_owned();
    let release_of = |line: &str| {
        let mut words = line.split_whitespace();
        let is_kernel = ["kernel", "kernel-core"].contains(&words.next()?);
        let (release, architecture) = (words.next()?, words.next()?);
        let release = if running.ends_with(architecture) {
            format!("{release}.{architecture}")
        } else {
            release.to_owned()
        };
        is_kernel.then_some(release)
    };
    Ok(newest(answer.lines().filter_map(release_of), &running))
}

fn dnf_reason(error: &ProgramError) -> String {
    let packages = error.output_tail().lines().filter_map(|line| line.trim().strip_prefix("* "));
    match names(packages).as_str() {
        "" => "dnf needs-restarting requires it".to_owned(),
        names => format!("packages were updated since the host booted: {names}"),
    }
}

/// The first of some names, sorted.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = all.map(str::trim).filter(|name| !name.is_empty()).collect();
    all.sort_unstable();
    all.dedup();
    let more = if all.len() > MOST_NAMES { " and others" } else { "" };
    all.truncate(MOST_NAMES);
    format!("{}{more}", all.join(", "))
}

/// Why the host must boot, if a newer kernel of the running kind is among the installed ones.
fn newest(installed: impl Iterator<Item = String>, running: &str) -> Option<String> {
    let same = installed.filter(|release| kind(release) == kind(running));
    let newer = same.filter(|release| order(release) > order(running));
    let newest = newer.max_by(|one, other| order(one).cmp(&order(other)))?;
    Some(format!("a newer kernel is installed: {newest}; {running} runs"))
}

/// The kind of a kernel: `amd64` of `6.1.0-28-amd64`, `x86_64` of `5.14.0-503.el9.x86_64`.
fn kind(release: &str) -> &str {
    let has_digits = |part: &str| part.starts_with(|first: char| first.is_ascii_digit());
    let parts = release.match_indices('-').map(|(at, _)| at + 1);
    let mut suffixes = parts.filter(|at| !has_digits(&release[*at..]));
    match suffixes.next() {
        Some(at) => &release[at..],
        None => release.rsplit_once('.').map_or("", |(_, last)| last),
    }
}

/// A part of a release. Numbers are newer than text, as rpm has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Text(&'a str),
    Number(u64),
}

/// A release in its order, by its numbers and the text between them.
fn order(release: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for word in release.split(|c: char| !c.is_ascii_alphanumeric()) {
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let is_number = first.is_ascii_digit();
            let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
            let (part, next) = rest.split_at(end);
            parts.push(match part.parse() {
                Ok(number) => Part::Number(number),
                Err(_) => Part::Text(part),
            });
            rest = next;
        }
    }
    parts
}

fn note(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join(NOTE)
}

/// Notes whether the host must boot for what a plan has installed.
pub(super) async fn note_required(
    site: &Site,
    plan: &str,
    choice: RebootChoice,
) -> Result<(), WorkError> {
    let why = required(site).await?;
    site.log(&match &why {
        Some(why) => format!("the host must boot: {why}"),
        None => "the host need not boot".to_owned(),
    });
    snapshot::make_directory(site, plan)?;
    match why.filter(|_| choice == RebootChoice::IfRequired) {
        Some(why) => {
            let access = Access::of_mode(0o600);
            atomic::replace(&note(site, plan), why.as_bytes(), access).map(drop)
        }
        None => atomic::remove(&note(site, plan)),
    }
}

/// Boots the host if that was noted, and is still required.
pub(super) async fn reboot_if_required(
    site: &Site,
    plan: &str,
    patience: Patience,
) -> Result<(), WorkError> {
    let path = note(site, plan);
    match fs::metadata(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            site.log("the packages of this plan need no boot");
            return Ok(());
        }
        Err(error) => return Err(WorkError::file(&path, &error)),
    }
    if let Some(why) = required(site).await? {
        site.log(&format!("the host must boot: {why}"));
        return reboot::reboot(site, patience).await;
    }
    site.log("the host has booted since its packages were installed");
    atomic::remove(&path)
}

/// Whether the host has booted, or need not. The mark of a step that boots the host proves nothing: the shutdown ends it.
pub(super) fn shows(
    site: &Site,
    plan: &str,
    is_marked: bool,
    since: &Since,
) -> Result<Evidence, HostError> {
    let boots = note(site, plan).exists();
    match booted(since)? {
        Evidence::Done => Ok(Evidence::Done),
        Evidence::Missing { .. } if !boots && is_marked => Ok(Evidence::Done),
        missing @ (Evidence::Missing { .. } | Evidence::Refused { .. }) => Ok(missing),
    }
}

#[cfg(test)]
#[path = "boot_tests.rs"]
mod tests;
