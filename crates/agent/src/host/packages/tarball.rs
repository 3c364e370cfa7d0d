//! Binaries from a tarball: unpacked to one directory per version, and switched by symbolic links.
//!
//! A binary is unpacked to, for example, `/opt/refit/kubernetes/v1.35.0/kubeadm`. The link to it is
//! where the host had its kubeadm, or in `/usr/local/bin`. The link is replaced by a rename, so the
//! program is never missing. A rollback switches the link back.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use refit_bundle::{
    digest::Digest,
    fetch::{self, Limits},
};
use refit_kinds::version::KubernetesVersion;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::{
    KUBERNETES, Order, Want, Wanted,
    apt_offline::digest,
    fetched::{self, Lost},
};
use crate::host::{
    Invocation, Program, Site,
    files::{
        self,
        atomic::{self, Access},
        keep,
    },
    program::DIRECTORIES,
    work::WorkError,
};

/// Directory of the unpacked versions.
pub(crate) const STORE: &str = "/opt/refit/kubernetes";
/// Directory of downloaded tarballs in the agent's own directory.
pub(crate) const DOWNLOADS: &str = "tarballs";
/// Directory of links for programs that the host does not have yet.
const DEFAULT_LINKS: &str = "/usr/local/bin";
/// File of an unpacked version with the sha256 of its tarball.
const SUM: &str = "sha256";
/// File of an unpacked version with the sha256 of its programs.
const PROGRAM_SUMS: &str = "programs.json";
/// Depth limit of the search for programs in a tarball, such as `kubernetes/server/bin/kubeadm`.
const DEPTH: usize = 5;

/// Binaries from a tarball, behind symbolic links.
#[derive(Clone, Debug)]
pub struct Tarball<'a> {
    site: &'a Site,
}

impl PartialEq for Tarball<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.site, other.site)
    }
}

impl Eq for Tarball<'_> {}

impl<'a> Tarball<'a> {
    /// The binaries of a host.
    pub fn new(site: &'a Site) -> Self {
        Self { site }
    }

    /// The programs that are linked to an unpacked tarball, with its version without `v`.
    pub fn installed(&self) -> BTreeMap<String, String> {
        KUBERNETES
            .into_iter()
            .filter_map(|name| {
                let target = fs::read_link(self.site.path(self.place(name))).ok()?;
                let inside = target.strip_prefix(STORE).ok()?;
                let version = inside.parent()?.to_str()?;
                let version = version.parse::<KubernetesVersion>().ok()?;
                Some((name.to_owned(), version.bare()))
            })
            .collect()
    }

    /// Path of the link of a program: where the agent starts the program if the host has it, or the
    /// default directory.
    fn place(&self, name: &str) -> String {
        let at = |directory: &str| {
            let path = self.site.path(format!("{directory}/{name}"));
            fs::symlink_metadata(path).is_ok()
        };
        let directory = DIRECTORIES.iter().find(|directory| at(directory));
        format!("{}/{name}", directory.unwrap_or(&DEFAULT_LINKS))
    }

    /// The directory of the programs of a version.
    pub(crate) fn unpacked(&self, version: &KubernetesVersion) -> PathBuf {
        self.site.path(STORE).join(version.to_string())
    }

    /// Verifies and unpacks the tarball, unless this was done before.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        let Some(version) = version_of(&order.wants)? else {
            return Ok(());
        };
        let has = |want: &Want| self.unpacked(version).join(&want.name).is_file();
        let sum = order.from.sha256.to_lowercase();
        // What is unpacked may be from another tarball with this version.
        let unpacked_sum = fs::read_to_string(self.unpacked(version).join(SUM)).unwrap_or_default();
        let is_unpacked = !sum.is_empty() && unpacked_sum.trim() == sum;
        let lost = if is_unpacked { self.lost(version, &order.wants) } else { Lost::default() };
        if is_unpacked && lost.is_empty() && order.wants.iter().all(has) {
            return Ok(());
        }
        if !lost.is_empty() {
            self.site.log(&format!("to be unpacked again: {lost}"));
        }
        let archive = self.archive(order).await.map_err(|error| lost.explain(error))?;
        check_sha256(&archive, &sum).map_err(|error| lost.explain(error))?;
        self.unpack(&archive, version, &sum).await?;
        if archive.starts_with(self.downloads()) {
            // The download is no longer needed once it is unpacked.
            let _ = fs::remove_file(&archive);
        }
        for want in &order.wants {
            if !has(want) {
                return Err(WorkError::permanent(format!(
                    "the tarball {} does not contain the program {}; use one with the node or server \
                     binaries of Kubernetes",
                    archive.display(),
                    want.name
                )));
            }
        }
        Ok(())
    }

    /// The wanted programs of an unpacked version that are not as they were unpacked.
    fn lost(&self, version: &KubernetesVersion, wants: &[Want]) -> Lost {
        let directory = self.unpacked(version);
        let is_wanted = |name: &str| wants.iter().any(|want| want.name == name);
        Lost::of(&directory, &directory.join(PROGRAM_SUMS), is_wanted)
    }

    /// Switches the links.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        let Some(version) = version_of(&order.wants)? else {
            return Ok(());
        };
        self.fetch(order).await?;
        for want in &order.wants {
            let place = self.place(&want.name);
            keep::keep_itself(self.site, order.plan, &group(&want.name), &place)?;
            self.switch(&want.name, version)?;
            files::restore_labels(self.site, &self.site.path(&place)).await;
        }
        self.prune(version);
        Ok(())
    }

    /// Switches the links back to a version that is still unpacked, or restores the original file.
    pub fn restore(
        &self,
        plan: &str,
        packages: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        for (name, version) in packages {
            let known = format!("v{version}").parse::<KubernetesVersion>().ok();
            match known.filter(|version| self.unpacked(version).join(name).is_file()) {
                Some(version) => self.switch(name, &version)?,
                None => {
                    keep::put_back(self.site, plan, &group(name))?;
                }
            }
        }
        Ok(())
    }

    fn switch(&self, name: &str, version: &KubernetesVersion) -> Result<(), WorkError> {
        let target = Path::new(STORE).join(version.to_string()).join(name);
        let place = self.site.path(self.place(name));
        if fs::read_link(&place).is_ok_and(|now| now == target) {
            return Ok(());
        }
        self.site.log(&format!("{} -> {}", place.display(), target.display()));
        atomic::link(&place, &target)
    }

    /// Directory of downloaded tarballs until they are unpacked.
    fn downloads(&self) -> PathBuf {
        self.site.state().join(DOWNLOADS)
    }

    async fn archive(&self, order: &Order<'_>) -> Result<PathBuf, WorkError> {
        let from = order.from;
        let path = match (from.path.as_str(), from.url.as_str()) {
            ("", "") => {
                return Err(WorkError::permanent(
                    "the plan names no tarball: set packages.path, packages.url, or a bundle with \
                     one",
                ));
            }
            ("", url) => match url.strip_prefix("file://") {
                Some(path) => path,
                None => return self.download(url, &from.sha256).await,
            },
            (path, _) => path,
        };
        let path = self.site.path(path);
        if path.is_dir() {
            return Err(WorkError::permanent(format!(
                "packages.path {} is a directory; specify the tarball in it",
                path.display()
            )));
        }
        Ok(path)
    }

    /// Downloads a tarball. An interrupted download is resumed.
    async fn download(&self, url: &str, sha256: &str) -> Result<PathBuf, WorkError> {
        let sum = Digest::try_from(sha256.to_lowercase()).map_err(|error| {
            WorkError::permanent(format!("invalid packages.sha256 for {url}: {error}"))
        })?;
        let to = self.downloads().join(sum.as_str());
        if to.is_file() {
            return Ok(to);
        }
        self.site.log(&format!("fetching {url}"));
        let limits = Limits { proxies: self.site.proxies().clone(), ..Limits::default() };
        let fetched = Box::pin(fetch::file(url, &sum, &to, &limits)).await;
        fetched.map_err(|error| {
            let message = format!("cannot fetch the tarball: {error}");
            if error.is_retriable() {
                WorkError::retriable(message)
            } else if matches!(error, refit_bundle::Error::Url { .. }) {
                WorkError::permanent(message)
            } else {
                WorkError::needs_person(message)
            }
        })?;
        Ok(to)
    }

    async fn unpack(
        &self,
        archive: &Path,
        version: &KubernetesVersion,
        sum: &str,
    ) -> Result<(), WorkError> {
        let target = self.unpacked(version);
        let raw = target.with_file_name(format!(".{version}.raw"));
        let new = target.with_file_name(format!(".{version}.new"));
        let file = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| WorkError::file(&path, &error)
        };
        for directory in [&raw, &new] {
            let _ = fs::remove_dir_all(directory);
            fs::create_dir_all(directory).map_err(file(directory))?;
        }
        let call = self.site.call(
            Program::Tar,
            [
                "--extract",
                "--no-same-owner",
                "--file",
                &archive.display().to_string(),
                "--directory",
                &raw.display().to_string(),
            ],
        );
        self.site.run(&call).await?;
        let mut found = BTreeMap::new();
        find(&raw, DEPTH, &mut found);
        let mut programs = Vec::new();
        for (name, path) in found {
            let to = new.join(name);
            fs::rename(&path, &to).map_err(file(&path))?;
            fs::set_permissions(&to, Permissions::from_mode(0o755)).map_err(file(&to))?;
            File::open(&to).and_then(|open| open.sync_all()).map_err(file(&to))?;
            check_version(name, &to, version).await?;
            programs.push(to);
        }
        fetched::write_sums(&new.join(PROGRAM_SUMS), &programs)?;
        let _ = fs::remove_dir_all(&raw);
        atomic::replace(&new.join(SUM), sum.as_bytes(), Access::of_mode(0o644))?;
        exchange(&new, &target).map_err(file(&target))?;
        files::restore_labels(self.site, &target).await;
        let _ = fs::remove_dir_all(&new);
        atomic::sync_directory(&self.site.path(STORE)).map_err(file(&target))
    }

    /// Removes versions that are no longer needed. The previous version is kept for a rollback.
    fn prune(&self, version: &KubernetesVersion) {
        // Pre-releases and builds of the version itself are neither older nor the previous version.
        let release =
            |version: &KubernetesVersion| (version.major(), version.minor(), version.patch());
        let store = self.site.path(STORE);
        let mut others: Vec<(KubernetesVersion, PathBuf)> = fs::read_dir(&store)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some((name.parse::<KubernetesVersion>().ok()?, entry.path()))
            })
            .filter(|(other, _)| release(other) < release(version))
            .collect();
        others.sort_by_key(|(other, _)| release(other));
        others.pop();
        for (_, path) in others {
            if let Err(error) = fs::remove_dir_all(&path) {
                self.site.log_and_go_on(&format!("cannot remove {}: {error}", path.display()));
            }
        }
    }
}

/// Moves a directory to a path. What is there changes places with it, because a program in it may be
/// started at any moment.
fn exchange(new: &Path, target: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => fs::rename(new, target),
        // The file system cannot exchange.
        Err(Errno::INVAL) => {
            let _ = fs::remove_dir_all(target);
            fs::rename(new, target)
        }
        Err(error) => Err(error.into()),
    }
}

fn group(name: &str) -> String {
    format!("tarball-{name}")
}

/// The version of an order.
fn version_of(wants: &[Want]) -> Result<Option<&KubernetesVersion>, WorkError> {
    let mut found = None;
    for want in wants {
        match &want.version {
            Wanted::Kubernetes(version) if KUBERNETES.contains(&want.name.as_str()) => {
                found = Some(version);
            }
            Wanted::Kubernetes(_) | Wanted::Text(_) => {
                return Err(WorkError::permanent(format!(
                    "package {} is not part of a Kubernetes tarball; install it with apt or dnf",
                    want.name
                )));
            }
        }
    }
    Ok(found)
}

fn check_sha256(archive: &Path, wanted: &str) -> Result<(), WorkError> {
    if wanted.is_empty() {
        return Err(WorkError::permanent(
            "packages.sha256 is empty; a tarball is not unpacked without its checksum, set it in the plan",
        ));
    }
    let (_, found) = digest(archive)?;
    if !found.eq_ignore_ascii_case(wanted) {
        return Err(WorkError::permanent(format!(
            "{} has sha256 {found}, packages.sha256 is {wanted}; correct packages.sha256, or replace the \
             tarball",
            archive.display()
        )));
    }
    Ok(())
}

async fn check_version(
    name: &str,
    path: &Path,
    version: &KubernetesVersion,
) -> Result<(), WorkError> {
    let arguments: &[&str] = match name {
        "kubeadm" => &["version", "--output=short"],
        "kubectl" => &["version", "--client"],
        _ => &["--version"],
    };
    let call = Invocation::at(path.display().to_string(), arguments.iter().copied());
    let output = call.output().await?;
    if output.split_whitespace().any(|word| word == version.to_string()) {
        return Ok(());
    }
    Err(WorkError::permanent(format!(
        "{name} in the tarball has version {:?}, expected {version}; set packages.path or packages.url, and \
         packages.sha256, to the tarball of that version",
        output.trim()
    )))
}

/// Finds the Kubernetes programs in an unpacked tarball. Links are not followed.
fn find(directory: &Path, depth: usize, found: &mut BTreeMap<&'static str, PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        let name = entry.file_name();
        let known = KUBERNETES.into_iter().find(|known| name == **known);
        match known {
            Some(known) if kind.is_file() => {
                found.entry(known).or_insert_with(|| entry.path());
            }
            _ if kind.is_dir() && depth > 0 => find(&entry.path(), depth - 1, found),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "tarball_tests.rs"]
mod tests;
