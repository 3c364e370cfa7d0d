//! Binaries from a tarball: unpacked beside one another by version, and switched by symbolic links.
//!
//! `/opt/refit/kubernetes/v1.35.0/kubeadm` and a link to it where the host had its kubeadm, or in
//! `/usr/local/bin`. The link is replaced by a rename, so there is no moment without the program,
//! and going back is switching it back.

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

use super::{KUBERNETES, Order, Want, Wanted, apt_offline::digest};
use crate::host::{
    Invocation, Program, Site,
    files::{atomic, keep},
    work::WorkError,
};

const STORE: &str = "/opt/refit/kubernetes";
/// Where links may be, the usual place first.
const LINKS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/opt/bin"];
/// How deep in a tarball programs are looked for: `kubernetes/server/bin/kubeadm`.
const DEPTH: usize = 5;

/// Binaries behind symbolic links.
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

    /// The programs that are linked to an unpacked tarball, and its version without `v`.
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

    /// Where the link of a program is or is to be: where the host has the program.
    fn place(&self, name: &str) -> String {
        let at = |folder: &str| {
            let path = self.site.path(format!("{folder}/{name}"));
            fs::symlink_metadata(path).is_ok()
        };
        let folder = LINKS.iter().find(|folder| at(folder)).unwrap_or(&LINKS[0]);
        format!("{folder}/{name}")
    }

    fn unpacked(&self, version: &KubernetesVersion) -> PathBuf {
        self.site.path(STORE).join(version.to_string())
    }

    /// Checks and unpacks the tarball, unless that was done before.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        let Some(version) = version_of(&order.wants)? else {
            return Ok(());
        };
        let has = |want: &Want| self.unpacked(version).join(&want.name).is_file();
        if order.wants.iter().all(has) {
            return Ok(());
        }
        let archive = self.archive(order).await?;
        check_sha256(&archive, &order.from.sha256)?;
        self.unpack(&archive, version).await?;
        if archive.starts_with(self.downloads()) {
            // What it held is unpacked.
            let _ = fs::remove_file(&archive);
        }
        for want in &order.wants {
            if !has(want) {
                return Err(WorkError::last(format!(
                    "the tarball {} holds no program {}",
                    archive.display(),
                    want.name
                )));
            }
        }
        Ok(())
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
        }
        self.prune(version);
        Ok(())
    }

    /// Switches the links back, to a version that is still unpacked or to what was there before.
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
        self.site.say(&format!("{} -> {}", place.display(), target.display()));
        atomic::link(&place, &target)
    }

    /// Where tarballs of servers are until they are unpacked.
    fn downloads(&self) -> PathBuf {
        self.site.state().join("tarballs")
    }

    async fn archive(&self, order: &Order<'_>) -> Result<PathBuf, WorkError> {
        let from = order.from;
        let path = match (from.path.as_str(), from.url.as_str()) {
            ("", "") => {
                return Err(WorkError::last(
                    "the plan names no tarball: set packages.path, packages.url, or a bundle with one",
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
            return Err(WorkError::last(format!(
                "packages.path {} is a folder: name the tarball in it",
                path.display()
            )));
        }
        Ok(path)
    }

    /// Fetches a tarball; one that was cut off goes on where it stopped.
    async fn download(&self, url: &str, sha256: &str) -> Result<PathBuf, WorkError> {
        let sum = Digest::try_from(sha256.to_lowercase()).map_err(|error| {
            WorkError::last(format!(
                "packages.sha256 of {url} is of no use, and nothing is fetched unchecked: {error}"
            ))
        })?;
        let to = self.downloads().join(sum.as_str());
        if to.is_file() {
            return Ok(to);
        }
        self.site.say(&format!("fetching {url}"));
        let limits = Limits::default();
        let fetched = Box::pin(fetch::file(url, &sum, &to, &limits)).await;
        fetched.map_err(|error| {
            let message = format!("the tarball cannot be used: {error}");
            if error.is_retriable() {
                WorkError::retriable(message)
            } else if matches!(error, refit_bundle::Error::Location { .. }) {
                WorkError::last(message)
            } else {
                WorkError::needs_person(message)
            }
        })?;
        Ok(to)
    }

    async fn unpack(&self, archive: &Path, version: &KubernetesVersion) -> Result<(), WorkError> {
        let target = self.unpacked(version);
        let raw = target.with_file_name(format!(".{version}.raw"));
        let new = target.with_file_name(format!(".{version}.new"));
        let file = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| WorkError::file(&path, &error)
        };
        for folder in [&raw, &new] {
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder).map_err(file(folder))?;
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
        for (name, path) in found {
            let to = new.join(name);
            fs::rename(&path, &to).map_err(file(&path))?;
            fs::set_permissions(&to, Permissions::from_mode(0o755)).map_err(file(&to))?;
            File::open(&to).and_then(|open| open.sync_all()).map_err(file(&to))?;
            check_version(name, &to, version).await?;
        }
        let _ = fs::remove_dir_all(&raw);
        let _ = fs::remove_dir_all(&target);
        fs::rename(&new, &target).map_err(file(&target))?;
        atomic::sync_folder(&self.site.path(STORE)).map_err(file(&target))
    }

    /// Lets go of versions that no link needs: the one of before stays for an undo.
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
                self.site.say(&format!("{} is not removed: {error}", path.display()));
            }
        }
    }
}

fn group(name: &str) -> String {
    format!("tarball-{name}")
}

/// The one version that an order is about.
fn version_of(wants: &[Want]) -> Result<Option<&KubernetesVersion>, WorkError> {
    let mut found = None;
    for want in wants {
        match &want.version {
            Wanted::Kubernetes(version) if KUBERNETES.contains(&want.name.as_str()) => {
                found = Some(version);
            }
            Wanted::Kubernetes(_) | Wanted::Text(_) => {
                return Err(WorkError::last(format!(
                    "package {} cannot come from a tarball of Kubernetes; install it by apt or dnf",
                    want.name
                )));
            }
        }
    }
    Ok(found)
}

fn check_sha256(archive: &Path, wanted: &str) -> Result<(), WorkError> {
    if wanted.is_empty() {
        return Err(WorkError::last(
            "packages.sha256 is empty: a tarball is not unpacked unchecked",
        ));
    }
    let (_, found) = digest(archive)?;
    if !found.eq_ignore_ascii_case(wanted) {
        return Err(WorkError::last(format!(
            "{} has sha256 {found}, packages.sha256 is {wanted}",
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
    let said = call.output().await?;
    if said.split_whitespace().any(|word| word == version.to_string()) {
        return Ok(());
    }
    Err(WorkError::last(format!(
        "{name} in the tarball says {:?} of itself, not {version}",
        said.trim()
    )))
}

/// Finds the programs of Kubernetes in an unpacked tarball; links are not followed.
fn find(folder: &Path, depth: usize, found: &mut BTreeMap<&'static str, PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
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
