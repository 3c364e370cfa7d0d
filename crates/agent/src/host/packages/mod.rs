//! Packages: which manager a host has, and one face for all of them.
//!
//! | manager | pins by | offline | back to the versions of before |
//! |---|---|---|---|
//! | `apt` | `apt-mark hold` | a folder of `.deb`s, or a local repository | kept `.deb`s, or the repository |
//! | `dnf` | `exclude=`, versionlock | a folder of `.rpm`s, or a local repository | the bundles on the host, or the repository |
//! | `tarball` | the symbolic link | the tarball itself, from a bundle, a path or a server | the link is switched back |

mod apt;
mod apt_offline;
mod apt_sources;
mod dnf;
mod dnf_offline;
mod pins;
mod tarball;

use std::collections::BTreeMap;

use refit_kinds::refit::{PackageArgs, PackageDriver, PackageVersion};
use refit_kinds::version::KubernetesVersion;

use super::{Evidence, Program, Site, work::WorkError};

/// The packages whose versions are those of Kubernetes.
pub(crate) const KUBERNETES: [&str; 3] = ["kubeadm", "kubectl", "kubelet"];
/// Packages that a report names.
pub(crate) const REPORTED: [&str; 7] =
    ["containerd", "containerd.io", "cri-tools", "kubeadm", "kubectl", "kubelet", "kubernetes-cni"];

/// A package, and the version that it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: Wanted,
}

/// Which version of a package is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Any revision of this version of Kubernetes.
    Kubernetes(KubernetesVersion),
    /// Exactly this one, or with a `*` at its end the newest that begins so.
    Text(String),
}

impl Wanted {
    /// Whether a package of `version` is what is wanted.
    pub fn is(&self, version: &str) -> bool {
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
    /// A package of Kubernetes.
    pub fn kubernetes(name: &str, version: &KubernetesVersion) -> Self {
        Self { name: name.to_owned(), version: Wanted::Kubernetes(version.clone()) }
    }

    /// A package of a plan. What is neither a name nor a version is refused: both stand in argument
    /// lists of programs that run as root.
    pub fn of(package: &PackageVersion) -> Result<Self, WorkError> {
        let is_name = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
        };
        let version = package.version.strip_suffix('*').unwrap_or(&package.version);
        let is_version = version.starts_with(|c: char| c.is_ascii_alphanumeric())
            && version.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.:~_-^".contains(&b));
        if !is_name(&package.name) || !is_version {
            return Err(WorkError::last(format!(
                "package {:?} at version {:?} is none that a package manager could have",
                package.name, package.version
            )));
        }
        Ok(Self { name: package.name.clone(), version: Wanted::Text(package.version.clone()) })
    }
}

/// What to install, and where it comes from.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The plan, under whose name is kept what was there before.
    pub plan: &'a str,
    /// Where packages come from.
    pub from: &'a PackageArgs,
    /// What should be there.
    pub wants: Vec<Want>,
}

/// The package manager of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packages<'a> {
    /// apt and dpkg.
    Apt(apt::Apt<'a>),
    /// dnf and rpm.
    Dnf(dnf::Dnf<'a>),
    /// Binaries behind symbolic links.
    Tarball(tarball::Tarball<'a>),
}

impl<'a> Packages<'a> {
    /// The manager that a plan asks for, or the one that the host has.
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

    /// Which one it is.
    pub fn driver(&self) -> PackageDriver {
        match self {
            Self::Apt(_) => PackageDriver::Apt,
            Self::Dnf(_) => PackageDriver::Dnf,
            Self::Tarball(_) => PackageDriver::Tarball,
        }
    }

    /// Every installed package and its version.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        match self {
            Self::Apt(apt) => apt.installed().await,
            Self::Dnf(dnf) => dnf.installed().await,
            Self::Tarball(tarball) => Ok(tarball.installed()),
        }
    }

    /// Fetches what an order needs, and what its undo would need, without installing anything.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        match self {
            Self::Apt(apt) => apt.fetch(order).await,
            Self::Dnf(dnf) => dnf.fetch(order).await,
            Self::Tarball(tarball) => tarball.fetch(order).await,
        }
    }

    /// Installs what an order wants and is not there.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        match self {
            Self::Apt(apt) => apt.install(order).await,
            Self::Dnf(dnf) => dnf.install(order).await,
            Self::Tarball(tarball) => tarball.install(order).await,
        }
    }

    /// Goes back to exactly these versions; a package with an empty version is removed.
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

    /// Whether everything that is wanted is there.
    pub async fn check(&self, wants: &[Want]) -> Result<Evidence, WorkError> {
        Ok(compare(&self.installed().await?, wants))
    }
}

/// Whether everything that is wanted is among what is installed.
pub(crate) fn compare(installed: &BTreeMap<String, String>, wants: &[Want]) -> Evidence {
    for want in wants {
        let found = installed.get(&want.name).map(String::as_str);
        if !found.is_some_and(|found| want.version.is(found)) {
            let found = found.unwrap_or("missing");
            return Evidence::Missing {
                what: format!("package {} is {found}, {} is needed", want.name, want.version),
            };
        }
    }
    Evidence::Done
}

/// What an undo leads to.
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
                    "package {name} is {}, before it was {}",
                    shown(found),
                    shown(version)
                ),
            };
        }
    }
    Evidence::Done
}

/// Which package manager holds the host's Kubernetes, or else which one the host has.
pub(crate) fn detect(site: &Site) -> Option<PackageDriver> {
    if !tarball::Tarball::new(site).installed().is_empty() {
        return Some(PackageDriver::Tarball);
    }
    let debian = site.has(Program::AptGet) && site.path("/var/lib/dpkg/status").exists();
    if debian {
        return Some(PackageDriver::Apt);
    }
    [Program::Dnf5, Program::Dnf, Program::Tdnf]
        .into_iter()
        .any(|program| site.has(program))
        .then_some(PackageDriver::Dnf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse::<KubernetesVersion>().unwrap()
    }

    #[test]
    fn any_revision_of_a_version_will_do() {
        let wanted = Wanted::Kubernetes(version("v1.35.0"));
        assert!(wanted.is("1.35.0-1.1") && wanted.is("1.35.0") && !wanted.is("1.35.1-1.1"));
        assert!(Wanted::Text("2.1.4-1".to_owned()).is("2.1.4-1"));
        assert!(!Wanted::Text("2.1.4-1".to_owned()).is("2.1.4-10"));
        assert!(Wanted::Text("2.1.*".to_owned()).is("2.1.4-10"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let installed = BTreeMap::from([("kubelet".to_owned(), "1.34.2-1.1".to_owned())]);
        let wants = [Want::kubernetes("kubelet", &version("v1.35.0"))];
        let Evidence::Missing { what } = compare(&installed, &wants) else {
            panic!("an old package is enough");
        };
        assert_eq!(what, "package kubelet is 1.34.2-1.1, v1.35.0 is needed");
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
        let of = |name: &str, version: &str| {
            Want::of(&PackageVersion { name: name.to_owned(), version: version.to_owned() })
        };
        assert!(of("containerd.io", "2.1.4-1~debian.12~bookworm").is_ok());
        assert!(of("containerd.io", "2.1.*").is_ok());
        for (name, version) in [
            ("-o", "1"),
            ("a b", "1"),
            ("a", ""),
            ("a", "*"),
            ("a", "1 --force"),
            ("a=1", "1"),
            ("../x.deb", "1"),
        ] {
            assert!(of(name, version).is_err(), "{name} {version}");
        }
    }
}
