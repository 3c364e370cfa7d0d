//! Packages: detection of a host's package manager, and one interface for all of them.
//!
//! | manager | pins with | offline source | rollback to the previous versions |
//! |---|---|---|---|
//! | `apt` | `apt-mark hold` | a directory of `.deb`s, or a local repository | from kept `.deb`s, or the repository |
//! | `dnf` | `exclude=`, versionlock | a directory of `.rpm`s, or a local repository | from bundles on the host, or the repository |
//! | `tarball` | the symbolic link | the tarball itself, from a bundle, a path or a server | by switching the link back |

mod apt;
mod apt_errors;
mod apt_offline;
mod apt_repair;
mod apt_sources;
mod dnf;
mod dnf_errors;
mod dnf_offline;
mod dnf_signatures;
mod dnf_sources;
mod fetched;
mod locks;
pub(crate) mod os;
mod os_apt;
mod os_dnf;
mod pins;
mod rpm_database;
mod rpm_leftovers;
mod tarball;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use refit_kinds::refit::{PackageArgs, PackageDriver, PackageVersion};
use refit_kinds::version::KubernetesVersion;

use super::{Evidence, Site, files::atomic::Access, work::WorkError};
pub(crate) use fetched::STORE as FETCHED;
pub(crate) use tarball::{DOWNLOADS as TARBALLS, STORE as UNPACKED};

/// The packages that have the version of Kubernetes.
pub(crate) const KUBERNETES: [&str; 3] = ["kubeadm", "kubectl", "kubelet"];
/// Packages that the agent reports.
pub(crate) const REPORTED: [&str; 7] =
    ["containerd", "containerd.io", "cri-tools", "kubeadm", "kubectl", "kubelet", "kubernetes-cni"];

/// A package and its wanted version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub name: String,
    /// The wanted version.
    pub version: Wanted,
}

/// The wanted version of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Any revision of this version of Kubernetes.
    Kubernetes(KubernetesVersion),
    /// Exactly this version, or, with a trailing `*`, the newest version with this prefix.
    Text(String),
}

impl Wanted {
    /// Whether a package with `version` matches.
    pub fn matches(&self, version: &str) -> bool {
        match self {
            Self::Kubernetes(wanted) => wanted.is_of_package(version),
            Self::Text(text) => match text.strip_suffix('*') {
                Some(start) => version.starts_with(start),
                None => version == text,
            },
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kubernetes(version) => write!(f, "{version}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Want {
    /// A Kubernetes package.
    pub fn kubernetes(name: &str, version: &KubernetesVersion) -> Self {
        Self { name: name.to_owned(), version: Wanted::Kubernetes(version.clone()) }
    }

    /// A package of a plan. Invalid names and versions are refused, because both become arguments
    /// of programs that run as root.
    pub fn of(package: &PackageVersion) -> Result<Self, WorkError> {
        let is_name = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
        };
        let version = package.version.strip_suffix('*').unwrap_or(&package.version);
        let is_version = version.starts_with(|c: char| c.is_ascii_alphanumeric())
            && version.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.:~_-^".contains(&b));
        if !is_name(&package.name) || !is_version {
            return Err(WorkError::permanent(format!(
                "invalid package {:?} at version {:?}: the name or the version has characters \
                 that are not allowed",
                package.name, package.version
            )));
        }
        Ok(Self { name: package.name.clone(), version: Wanted::Text(package.version.clone()) })
    }
}

/// Packages to install, and their source.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The plan; the previous state is kept under its name.
    pub plan: &'a str,
    /// Source of the packages.
    pub from: &'a PackageArgs,
    /// The wanted packages.
    pub wants: Vec<Want>,
}

/// The package manager of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packages<'a> {
    /// apt and dpkg.
    Apt(apt::Apt<'a>),
    /// dnf and rpm.
    Dnf(dnf::Dnf<'a>),
    /// Binaries from a tarball, behind symbolic links.
    Tarball(tarball::Tarball<'a>),
}

impl<'a> Packages<'a> {
    /// The package manager that a plan sets, or the one that the host has.
    pub fn of(site: &'a Site, driver: PackageDriver) -> Result<Self, WorkError> {
        let driver = match driver {
            PackageDriver::Auto => detect(site).ok_or_else(|| {
                WorkError::needs_person(
                    "the host has neither apt nor dnf, and no Kubernetes from a tarball; name the \
                     driver in the plan's packages.driver",
                )
            })?,
            named @ (PackageDriver::Apt | PackageDriver::Dnf | PackageDriver::Tarball) => named,
        };
        Ok(match driver {
            PackageDriver::Apt => Self::Apt(apt::Apt::new(site)),
            PackageDriver::Dnf => Self::Dnf(dnf::Dnf::new(site)?),
            PackageDriver::Tarball | PackageDriver::Auto => {
                Self::Tarball(tarball::Tarball::new(site))
            }
        })
    }

    /// The driver of this package manager.
    pub fn driver(&self) -> PackageDriver {
        match self {
            Self::Apt(_) => PackageDriver::Apt,
            Self::Dnf(_) => PackageDriver::Dnf,
            Self::Tarball(_) => PackageDriver::Tarball,
        }
    }

    /// Every installed package and its version.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        let (installed, repair) = match self {
            Self::Apt(apt) => (apt.installed().await, "dpkg --configure -a"),
            Self::Dnf(dnf) => (dnf.installed().await, "rpm --rebuilddb"),
            Self::Tarball(tarball) => return Ok(tarball.installed()),
        };
        installed.map_err(|WorkError { kind, message }| WorkError {
            kind,
            message: format!(
                "{message}; if this remains, repair the package database on the host with `{repair}`"
            ),
        })
    }

    /// Fetches the packages that an order and its rollback need, without installing anything.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        match self {
            Self::Apt(apt) => apt.fetch(order).await,
            Self::Dnf(dnf) => dnf.fetch(order).await,
            Self::Tarball(tarball) => tarball.fetch(order).await,
        }
    }

    /// Installs the missing packages of an order.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        match self {
            Self::Apt(apt) => apt.install(order).await,
            Self::Dnf(dnf) => dnf.install(order).await,
            Self::Tarball(tarball) => tarball.install(order).await,
        }
    }

    /// Restores exactly these versions. A package with an empty version is removed.
    pub async fn restore(
        &self,
        plan: &str,
        packages: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        match self {
            Self::Apt(apt) => apt.restore(plan, packages).await,
            Self::Dnf(dnf) => dnf.restore(plan, packages).await,
            Self::Tarball(tarball) => tarball.restore(plan, packages),
        }
    }

    /// Whether all wanted packages are installed.
    pub async fn check(&self, wants: &[Want]) -> Result<Evidence, WorkError> {
        Ok(compare(&self.installed().await?, wants))
    }
}

/// Rolls back what fetching packages changed, except files: releases the packages that the plan
/// holds.
pub(crate) async fn release(site: &Site, plan: &str) -> Result<(), WorkError> {
    apt::Apt::new(site).release(plan).await
}

/// Directory of the packages that a plan fetched.
pub(crate) fn fetched_directory(site: &Site, plan: &str) -> PathBuf {
    fetched::directory(site, plan)
}

/// Directories of the packages that all plans fetched.
pub(crate) fn all_fetched(site: &Site) -> Vec<PathBuf> {
    fetched::all(site)
}

/// Access of a file that names this source: its URL may have a password.
fn access_of_source(url: &str) -> Access {
    Access::of_mode(if url.contains('@') { 0o600 } else { 0o644 })
}

/// The package files in a directory, sorted.
fn package_files(directory: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    Ok(files)
}

/// Whether all wanted packages are among the installed ones.
pub(crate) fn compare(installed: &BTreeMap<String, String>, wants: &[Want]) -> Evidence {
    for want in wants {
        let found = installed.get(&want.name).map(String::as_str);
        if !found.is_some_and(|found| want.version.matches(found)) {
            let found = found.unwrap_or("missing");
            return Evidence::Missing {
                what: format!("package {} is {found}, expected {}", want.name, want.version),
            };
        }
    }
    Evidence::Done
}

/// Whether a rollback has restored the packages.
pub(crate) fn compare_restored(
    installed: &BTreeMap<String, String>,
    packages: &BTreeMap<String, String>,
) -> Evidence {
    for (name, version) in packages {
        let found = installed.get(name).map(String::as_str).unwrap_or_default();
        if found != version {
            let shown = |text: &str| {
                if text.is_empty() { "missing".to_owned() } else { text.to_owned() }
            };
            return Evidence::Missing {
                what: format!(
                    "package {name} is {}, expected {} as before the plan",
                    shown(found),
                    shown(version)
                ),
            };
        }
    }
    Evidence::Done
}

/// The package manager that installed Kubernetes on the host, or else the one that the host has.
pub(crate) fn detect(site: &Site) -> Option<PackageDriver> {
    if !tarball::Tarball::new(site).installed().is_empty() {
        return Some(PackageDriver::Tarball);
    }
    os::driver(site)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Program;

    fn version(text: &str) -> KubernetesVersion {
        text.parse::<KubernetesVersion>().unwrap()
    }

    #[test]
    fn any_revision_of_a_version_matches() {
        let wanted = Wanted::Kubernetes(version("v1.35.0"));
        assert!(
            wanted.matches("1.35.0-1.1")
                && wanted.matches("1.35.0")
                && !wanted.matches("1.35.1-1.1")
        );
        assert!(Wanted::Text("2.1.4-1".to_owned()).matches("2.1.4-1"));
        assert!(!Wanted::Text("2.1.4-1".to_owned()).matches("2.1.4-10"));
        assert!(Wanted::Text("2.1.*".to_owned()).matches("2.1.4-10"));
    }

    #[tokio::test]
    async fn an_unreadable_package_database_is_reported_with_its_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let fails = || crate::host::Tool { path: "/bin/false".to_owned(), ..Default::default() };
        let site = Site::at(directory.path().join("root"), directory.path().join("state"))
            .with_tool(Program::Dnf, fails())
            .with_tool(Program::Rpm, fails())
            .with_tool(Program::DpkgQuery, fails());
        for (driver, remedy) in [
            (PackageDriver::Apt, "with `dpkg --configure -a`"),
            (PackageDriver::Dnf, "with `rpm --rebuilddb`"),
        ] {
            let manager = Packages::of(&site, driver).unwrap();
            let error = manager.installed().await.unwrap_err();
            assert!(error.message.contains("/bin/false"), "{error}");
            assert!(error.message.ends_with(remedy), "{error}");
        }
    }

    #[test]
    fn a_missing_package_is_named() {
        let installed = BTreeMap::from([("kubelet".to_owned(), "1.34.2-1.1".to_owned())]);
        let wants = [Want::kubernetes("kubelet", &version("v1.35.0"))];
        let Evidence::Missing { what } = compare(&installed, &wants) else {
            panic!("an old package is enough");
        };
        assert_eq!(what, "package kubelet is 1.34.2-1.1, expected v1.35.0");
    }

    #[test]
    fn an_undone_package_is_at_its_old_version_or_gone() {
        let now = BTreeMap::from([("kubelet".to_owned(), "1.34.2-1.1".to_owned())]);
        let gone = BTreeMap::from([("kubectl".to_owned(), String::new())]);
        assert_eq!(compare_restored(&now, &now), Evidence::Done);
        assert_eq!(compare_restored(&now, &gone), Evidence::Done);
        let other = BTreeMap::from([("kubelet".to_owned(), "1.33.0-1.1".to_owned())]);
        assert!(matches!(compare_restored(&now, &other), Evidence::Missing { .. }));
    }

    #[test]
    fn only_names_and_versions_reach_a_command_line() {
        let want = |name: &str, version: &str| {
            Want::of(&PackageVersion { name: name.to_owned(), version: version.to_owned() })
        };
        assert!(want("containerd.io", "2.1.4-1~debian.12~bookworm").is_ok());
        assert!(want("containerd.io", "2.1.*").is_ok());
        for (name, version) in [
            ("-o", "1"),
            ("a b", "1"),
            ("a", ""),
            ("a", "*"),
            ("a", "1 --force"),
            ("a=1", "1"),
            ("../x.deb", "1"),
        ] {
            assert!(want(name, version).is_err(), "{name} {version}");
        }
    }
}
