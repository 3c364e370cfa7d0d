//! Packages of the operating system: what has to change is found out when a plan is staged, and exactly that is installed.
//!
//! | question | apt | dnf 4, dnf 5 |
//! |---|---|---|
//! | the newest version, `*` | the candidate of `apt-cache policy` | `dnf repoquery --latest-limit=1` |
//! | security updates | `apt-get upgrade --simulate`: a `-security` suite has the new version | `dnf repoquery --upgrades --security` |
//! | what keeps its version | the whole transaction is simulated, and refused if it changes such a package | `--exclude` |
//!
//! All of it is one transaction, recorded in the plan's snapshot with the previous versions, from which a rollback restores
//! them. Packages that are new, such as a kernel, stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::PathBuf,
};

use refit_kinds::refit::{OsPackage, OsPackageArgs, PackageArgs, PackageDriver};
use serde::{Deserialize, Serialize};

use super::{Evidence, Order, Packages, Want, Wanted, compare, compare_restored, os_dnf::Metadata};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    snapshot,
    work::WorkError,
};

/// The record of a plan, in its snapshot.
const RECORD: &str = "os-packages.json";

/// What a plan changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Transaction {
    /// The packages to install, at these versions.
    pub(super) install: BTreeMap<String, String>,
    /// The previous versions of all packages that change.
    pub(super) before: BTreeMap<String, String>,
    /// Those of the packages that are installed only because others need them. They stay so.
    pub(super) automatic: BTreeSet<String>,
}

impl Transaction {
    fn path(site: &Site, plan: &str) -> PathBuf {
        site.snapshot(plan).join(RECORD)
    }

    /// The record of a plan; `None` before it was staged.
    fn load(site: &Site, plan: &str) -> Result<Option<Self>, WorkError> {
        let path = Self::path(site, plan);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(WorkError::file(&path, &error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            WorkError::needs_person(format!(
                "the record {} of the packages to install is damaged, start another update: {error}",
                path.display()
            ))
        })
    }

    fn save(&self, site: &Site, plan: &str) -> Result<(), WorkError> {
        snapshot::make_directory(site, plan)?;
        let text = serde_json::to_vec_pretty(self).expect("plain data serialises to JSON");
        atomic::replace(&Self::path(site, plan), &text, Access::of_mode(0o600)).map(drop)
    }

    fn wants(&self) -> Vec<Want> {
        let want = |(name, version): (&String, &String)| Want {
            name: name.clone(),
            version: Wanted::Text(version.clone()),
        };
        self.install.iter().map(want).collect()
    }
}

/// Finds out what has to change, and fetches it.
pub(crate) async fn stage(site: &Site, plan: &str, args: &OsPackageArgs) -> Result<(), WorkError> {
    for package in &args.install {
        check(package, args)?;
    }
    let transaction = match manager(site)? {
        Packages::Apt(apt) => apt.os_transaction(args).await?,
        Packages::Dnf(dnf) => dnf.os_transaction(args).await?,
        Packages::Tarball(_) => return Err(no_manager()),
    };
    let list: Vec<String> =
        transaction.install.iter().map(|(name, version)| format!("{name} {version}")).collect();
    site.log(&match list.as_slice() {
        [] => "no package has to change".to_owned(),
        some => format!("to be installed: {}", some.join(", ")),
    });
    let from = PackageArgs::default();
    let order = Order { plan, from: &from, wants: transaction.wants() };
    match manager(site)? {
        Packages::Dnf(dnf) => dnf.keeping(args).fetch(&order).await?,
        other @ (Packages::Apt(_) | Packages::Tarball(_)) => other.fetch(&order).await?,
    }
    // Last, so that what has a record was fetched.
    transaction.save(site, plan)
}

/// Installs what was staged, and checks that it is installed.
pub(crate) async fn install(
    site: &Site,
    plan: &str,
    args: &OsPackageArgs,
) -> Result<(), WorkError> {
    let transaction = Transaction::load(site, plan)?.ok_or_else(|| {
        WorkError::permanent("the plan has no step os-packages-stage that ended before this one")
    })?;
    let from = PackageArgs::default();
    let order = Order { plan, from: &from, wants: transaction.wants() };
    let manager = match manager(site)? {
        Packages::Dnf(dnf) => Packages::Dnf(dnf.keeping(args)),
        other @ (Packages::Apt(_) | Packages::Tarball(_)) => other,
    };
    manager.install(&order).await?;
    if let Packages::Apt(apt) = &manager {
        apt.mark_automatic(&transaction.automatic).await?;
    }
    if args.security {
        report_rest(site, &manager, args, &transaction).await?;
    }
    Ok(())
}

/// Checks that the security updates that were staged are not offered any more. Those that were released since are for
/// another update.
async fn report_rest(
    site: &Site,
    manager: &Packages<'_>,
    args: &OsPackageArgs,
    transaction: &Transaction,
) -> Result<(), WorkError> {
    let offered = match manager {
        Packages::Apt(apt) => apt.security_updates(args).await,
        Packages::Dnf(dnf) => dnf.security_updates(args, Metadata::Fetched).await,
        Packages::Tarball(_) => Ok(BTreeMap::new()),
    };
    let offered = match offered {
        Ok(offered) => offered,
        Err(error) => {
            // Their versions are checked all the same.
            site.log_and_go_on(&format!("cannot list the security updates that are left: {error}"));
            return Ok(());
        }
    };
    let staged =
        |(name, version): &(&String, &String)| transaction.install.get(*name) == Some(version);
    let (left, later): (Vec<_>, Vec<_>) = offered.iter().partition(staged);
    let list = |all: Vec<(&String, &String)>| {
        all.into_iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if !left.is_empty() {
        let left = list(left);
        return Err(WorkError::retriable(format!(
            "the packages were installed, and the package manager still offers {left} as security updates"
        )));
    }
    if !later.is_empty() {
        site.log(&format!(
            "security updates that were not there when the plan was staged: {}",
            list(later)
        ));
    }
    Ok(())
}

/// Whether everything that was staged is installed.
pub(crate) async fn installed(site: &Site, plan: &str) -> Result<Evidence, WorkError> {
    let Some(transaction) = Transaction::load(site, plan)? else {
        return Ok(Evidence::Missing { what: "the packages were not staged".to_owned() });
    };
    Ok(compare(&manager(site)?.installed().await?, &transaction.wants()))
}

/// Restores the previous versions of the packages that the plan has changed.
pub(crate) async fn restore(site: &Site, plan: &str) -> Result<(), WorkError> {
    let Some(transaction) = Transaction::load(site, plan)? else { return Ok(()) };
    let manager = manager(site)?;
    manager.restore(plan, &transaction.before).await?;
    if let Packages::Apt(apt) = &manager {
        apt.mark_automatic(&transaction.automatic).await?;
    }
    Ok(())
}

/// Whether the previous versions are installed.
pub(crate) async fn is_restored(site: &Site, plan: &str) -> Result<Evidence, WorkError> {
    let Some(transaction) = Transaction::load(site, plan)? else { return Ok(Evidence::Done) };
    Ok(compare_restored(&manager(site)?.installed().await?, &transaction.before))
}

/// The package manager of the operating system, also where Kubernetes is from a tarball.
fn manager(site: &Site) -> Result<Packages<'_>, WorkError> {
    let driver = driver(site).ok_or_else(no_manager)?;
    Packages::of(site, driver)
}

/// The driver for packages of the operating system.
pub(crate) fn driver(site: &Site) -> Option<PackageDriver> {
    let debian = site.has(Program::AptGet) && site.path("/var/lib/dpkg/status").exists();
    if debian {
        return Some(PackageDriver::Apt);
    }
    let mut dnf = [Program::Dnf5, Program::Dnf, Program::Tdnf].into_iter();
    dnf.any(|program| site.has(program)).then_some(PackageDriver::Dnf)
}

fn no_manager() -> WorkError {
    WorkError::permanent(
        "the host has neither apt nor dnf; remove osPackages from the HostSettings of this host, or exclude it in the selector of the Updater",
    )
}

/// Refuses a package that keeps its version, and text that must not become an argument of a program that runs as root.
fn check(package: &OsPackage, args: &OsPackageArgs) -> Result<(), WorkError> {
    let OsPackage { name, version } = package;
    if args.keeps(name) {
        return Err(WorkError::permanent(format!(
            "osPackages.install names {name}, which keeps its version; Kubernetes and the container runtime have settings of \
             their own: packages.install and containerRuntime"
        )));
    }
    if version == "*" {
        let any = OsPackage { version: "0".to_owned(), ..package.clone() };
        return want(&any).map(drop);
    }
    want(package).map(drop)
}

/// A package of a plan, its version with the `*`.
pub(super) fn want(package: &OsPackage) -> Result<Want, WorkError> {
    let OsPackage { name, version } = package.clone();
    Want::of(&refit_kinds::refit::PackageVersion { name, version })
}

#[cfg(test)]
#[path = "os_tests.rs"]
mod tests;
