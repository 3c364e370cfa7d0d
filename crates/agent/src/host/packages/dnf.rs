//! Packages with dnf and rpm.
//!
//! The Kubernetes repository is configured to exclude its own packages, so that ordinary updates do
//! not change them. Each call overrides this (`docs/facts/hosts.md#dnf`), with an option that
//! differs between dnf 4, dnf 5 and tdnf.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use refit_kinds::refit::PackageArgs;
use refit_kinds::version::KubernetesVersion;

use super::{
    KUBERNETES, Order, Want, Wanted,
    dnf_errors::{explain, is_unsolvable},
    dnf_offline, dnf_signatures,
    dnf_sources::{self, Section},
    fetched, locks, package_files, pins, rpm_database, rpm_leftovers,
};
use crate::host::{Invocation, Program, ProgramError, Site, files::keep, work::WorkError};

/// Files of the plugin that pins versions. One of them exists if the plugin is installed.
const VERSION_LOCK: [&str; 2] =
    ["/etc/dnf/plugins/versionlock.conf", "/usr/lib64/dnf5/plugins/versionlock.so"];

/// A variant of dnf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Dnf4,
    Dnf5,
    /// The small variant of Azure Linux and Photon, with fewer options.
    Tdnf,
}

/// The operation for which packages are unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change<'a> {
    Fetch(Work<'a>),
    Install,
    Restore,
}

/// Where dnf takes packages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// The repositories of the host.
    Host,
    /// Only this repository on the host, whose packages were verified with their bundle or belong
    /// to the administrator.
    Directory(&'a Path),
    /// Only this repository on the host, with the packages that the plan fetched.
    Fetched(&'a Path),
}

/// What dnf does with the packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work<'a> {
    /// Installs or downgrades them.
    Install,
    /// Fetches them into a directory.
    Fetch(&'a Path),
    /// Only resolves their dependencies.
    Resolve,
}

/// dnf and rpm of a host.
#[derive(Clone, Debug)]
pub struct Dnf<'a> {
    pub(super) site: &'a Site,
    pub(super) flavour: Flavour,
    version_lock: bool,
    /// Packages that no transaction changes.
    pub(super) excluded: Vec<String>,
}

impl PartialEq for Dnf<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.site, other.site) && self.flavour == other.flavour
    }
}

impl Eq for Dnf<'_> {}

impl<'a> Dnf<'a> {
    /// dnf and rpm of a host.
    pub fn new(site: &'a Site) -> Result<Self, WorkError> {
        let flavours = [
            (Program::Dnf5, Flavour::Dnf5),
            (Program::Dnf, Flavour::Dnf4),
            (Program::Tdnf, Flavour::Tdnf),
        ];
        let found = flavours.iter().find(|(program, _)| site.has(*program));
        let (_, flavour) = found.ok_or_else(|| {
            WorkError::permanent("packages.driver is Dnf, but the host has no dnf, dnf5 or tdnf")
        })?;
        Ok(Self {
            site,
            flavour: *flavour,
            version_lock: *flavour != Flavour::Tdnf
                && VERSION_LOCK.iter().any(|path| site.path(path).exists()),
            excluded: Vec::new(),
        })
    }

    /// Every installed package, and its version with release.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        let query = ["--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
        let answer = self.site.ask(Program::Rpm, query).await?;
        Ok(parse_installed(&answer))
    }

    /// Fetches the packages of an order.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        rpm_database::repair(self.site, &order.wants).await?;
        dnf_sources::prepare(self.site, order)?;
        let wants = self.missing(order).await?;
        if let Some(offline) = self.offline(order).await? {
            let source = Source::Directory(&offline);
            return self.unlocked(order, &wants, source, Change::Fetch(Work::Resolve)).await;
        }
        let directory = fetched::prepare(self.site, order.plan)?;
        let work = Work::Fetch(&directory);
        self.unlocked(order, &wants, Source::Host, Change::Fetch(work)).await?;
        fetched::record(self.site, order.plan, "rpm")
    }

    /// Installs the missing packages of an order, and locks the packages of Kubernetes.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        rpm_database::repair(self.site, &order.wants).await?;
        rpm_leftovers::remove(self.site).await?;
        dnf_sources::prepare(self.site, order)?;
        let wants = self.missing(order).await?;
        if wants.is_empty() {
            return self.unlocked(order, &wants, Source::Host, Change::Install).await;
        }
        if let Some(offline) = self.offline(order).await? {
            let source = Source::Directory(&offline);
            return self.unlocked(order, &wants, source, Change::Install).await;
        }
        let lost = fetched::discard_damaged(self.site, order.plan)?;
        let fetched = self.fetched(order.plan, &wants).await;
        let source = fetched.as_deref().map_or(Source::Host, Source::Fetched);
        let installed = self.unlocked(order, &wants, source, Change::Install).await;
        installed.map_err(|error| lost.explain(error))
    }

    /// Changes packages while their version locks are lifted. Afterwards, even after a failure, the
    /// packages that were locked before the plan are locked again. A successful installation also
    /// locks the packages of Kubernetes.
    async fn unlocked(
        &self,
        order: &Order<'_>,
        wants: &[Want],
        source: Source<'_>,
        change: Change<'_>,
    ) -> Result<(), WorkError> {
        let work = match change {
            Change::Fetch(work) => work,
            Change::Install | Change::Restore => Work::Install,
        };
        let outcome = match self.unlock(order.plan, wants, change).await {
            Ok(()) if !wants.is_empty() => self.change(source, wants, work).await,
            other => other,
        };
        let lock_kubernetes = outcome.is_ok() && change == Change::Install;
        let locked = self.lock(order, lock_kubernetes).await;
        outcome.and(locked)
    }

    /// The repository for the plan's directory of packages, if it has one.
    async fn offline(&self, order: &Order<'_>) -> Result<Option<PathBuf>, WorkError> {
        if order.from.path.is_empty() {
            return Ok(None);
        }
        let directory = self.site.path(&order.from.path);
        dnf_offline::repository(self.site, &directory).await.map(Some)
    }

    /// A repository of the packages that the plan fetched, if it has all wanted packages.
    async fn fetched(&self, plan: &str, wants: &[Want]) -> Option<PathBuf> {
        let directory = fetched::directory(self.site, plan);
        let files = package_files(&directory, "rpm").unwrap_or_default();
        let found = async {
            if self.flavour == Flavour::Tdnf {
                dnf_signatures::check(self.site, &files).await?;
            }
            dnf_offline::of_files(self.site, files, wants).await
        };
        found.await.unwrap_or_else(|error| {
            self.site.log_and_go_on(&format!("cannot use the fetched packages: {error}"));
            None
        })
    }

    /// Restores exactly these versions.
    pub async fn restore(
        &self,
        plan: &str,
        packages: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        keep::put_back(self.site, plan, keep::PACKAGES)?;
        let all = packages.iter().map(|(name, version)| Want {
            name: name.clone(),
            version: Wanted::Text(version.clone()),
        });
        let all: Vec<Want> = all.collect();
        rpm_database::repair(self.site, &all).await?;
        rpm_leftovers::remove(self.site).await?;
        let installed = self.installed().await?;
        let mut wants = Vec::new();
        for (name, version) in packages {
            let now = installed.get(name).map(String::as_str).unwrap_or_default();
            if now == version {
                continue;
            }
            if version.is_empty() {
                let call = self.dnf(["remove", "--assumeyes", "--noautoremove", name]);
                locks::run(self.site, &call).await?;
            } else {
                wants.push(Want { name: name.clone(), version: Wanted::Text(version.clone()) });
            }
        }
        let offline = if wants.is_empty() {
            None
        } else {
            dnf_offline::of_bundles(self.site, &wants).await?
        };
        let from = PackageArgs::default();
        // All packages: an earlier attempt may have left some unlocked.
        let order = Order { plan, from: &from, wants: all };
        let source = offline.as_deref().map_or(Source::Host, Source::Directory);
        self.unlocked(&order, &wants, source, Change::Restore).await
    }

    async fn missing(&self, order: &Order<'_>) -> Result<Vec<Want>, WorkError> {
        let installed = self.installed().await?;
        let is_installed = |want: &Want| {
            let found = installed.get(&want.name);
            found.is_some_and(|found| want.version.matches(found))
        };
        Ok(order.wants.iter().filter(|want| !is_installed(want)).cloned().collect())
    }

    /// Changes packages. If what was fetched does not suffice, the repositories of the host are
    /// used; a broken database is rebuilt once.
    async fn change(
        &self,
        source: Source<'_>,
        wants: &[Want],
        work: Work<'_>,
    ) -> Result<(), WorkError> {
        let mut outcome = self.transact(source, wants, work).await?;
        if let Err(error) = &outcome
            && rpm_database::is_broken(error.output_tail())
        {
            rpm_database::rebuild(self.site, &error.to_string()).await?;
            rpm_leftovers::remove(self.site).await?;
            outcome = self.transact(source, wants, work).await?;
        }
        if let (Source::Fetched(_), Err(error)) = (source, &outcome)
            && is_unsolvable(error)
        {
            self.site.log_and_go_on(&format!("the fetched packages do not suffice: {error}"));
            outcome = self.transact(Source::Host, wants, work).await?;
        }
        outcome.map_err(|error| explain(error, &dnf_sources::sections(self.site), wants))
    }

    async fn transact(
        &self,
        source: Source<'_>,
        wants: &[Want],
        work: Work<'_>,
    ) -> Result<Result<(), ProgramError>, WorkError> {
        let installed = self.installed().await?;
        let (down, up): (Vec<_>, Vec<_>) = wants.iter().cloned().partition(|want| {
            installed.get(&want.name).is_some_and(|now| is_older(&want.version, now))
        });
        for (verb, wants) in [("install", up), ("downgrade", down)] {
            if wants.is_empty() {
                continue;
            }
            if work == Work::Install {
                rpm_leftovers::begin(self.site, &wants).await?;
            }
            let call = self.transaction(verb, source, &wants, work);
            if let Err(error) = locks::run(self.site, &call).await {
                return Ok(Err(error));
            }
            if work == Work::Install {
                rpm_leftovers::end(self.site)?;
            }
        }
        Ok(Ok(()))
    }

    /// The call that installs, downgrades or fetches packages.
    fn transaction(
        &self,
        verb: &str,
        source: Source<'_>,
        wants: &[Want],
        work: Work<'_>,
    ) -> Invocation {
        let sections = dnf_sources::sections(self.site);
        let mut call = self.dnf([verb, "--assumeyes"]);
        let mut add = |argument: String| call.arguments.push(argument);
        self.fetch_options(work).into_iter().for_each(&mut add);
        if work != Work::Install || source != Source::Host {
            // dnf caches the metadata of a repository for two days. An installation uses the
            // metadata from the fetch.
            add("--refresh".to_owned());
        }
        if let Some(option) = self.without_excludes(&sections, wants) {
            add(option);
        }
        self.excluded.iter().map(|name| format!("--exclude={name}")).for_each(&mut add);
        if self.flavour != Flavour::Tdnf {
            // No package is removed for it, and weak dependencies are not installed.
            add("--setopt=install_weak_deps=False".to_owned());
        }
        if let Source::Directory(directory) | Source::Fetched(directory) = source {
            let verified = matches!(source, Source::Directory(_)) || self.verifies_when_fetching();
            if verified || !sections.iter().any(Section::checks_signatures) {
                add("--nogpgcheck".to_owned());
            } else {
                add("--setopt=refit-offline.gpgcheck=1".to_owned());
            }
            add(format!("--repofrompath=refit-offline,file://{}", directory.display()));
            if self.flavour == Flavour::Tdnf {
                add("--disablerepo=*".to_owned());
                add("--enablerepo=refit-offline".to_owned());
            } else {
                add("--repo=refit-offline".to_owned());
            }
        }
        for want in wants {
            add(format!("{}-{}", want.name, spec(&want.version)));
        }
        call
    }

    /// dnf 5 does not verify signatures before an installation. Those of tdnf are
    /// [verified](dnf_signatures) before its packages are used.
    fn verifies_when_fetching(&self) -> bool {
        match self.flavour {
            Flavour::Dnf4 | Flavour::Tdnf => true,
            Flavour::Dnf5 => false,
        }
    }

    /// Checks that a program in a fetched package may run before the installation: the signature of the package was
    /// verified when it was fetched, is valid, or is not required by the repositories of the host.
    pub(crate) async fn check_before_run(&self, package: &Path) -> Result<(), WorkError> {
        match self.flavour {
            Flavour::Dnf4 => Ok(()),
            Flavour::Dnf5 | Flavour::Tdnf => {
                dnf_signatures::check(self.site, &[package.to_owned()]).await
            }
        }
    }

    fn fetch_options(&self, work: Work<'_>) -> Vec<String> {
        let only = "--downloadonly".to_owned();
        // Without keepcache, dnf notes what it fetched and deletes it after the next transaction.
        let keep = "--setopt=keepcache=1".to_owned();
        match (work, self.flavour) {
            (Work::Install, _) => Vec::new(),
            (Work::Resolve, _) => vec![only],
            (Work::Fetch(to), Flavour::Dnf4) => {
                vec![only, keep, format!("--downloaddir={}", to.display())]
            }
            (Work::Fetch(to), Flavour::Dnf5) => {
                vec![only, keep, format!("--setopt=destdir={}", to.display())]
            }
            (Work::Fetch(to), Flavour::Tdnf) => {
                vec![only, format!("--downloaddir={}", to.display())]
            }
        }
    }

    /// Overrides the excludes that hide a wanted package, and no others.
    fn without_excludes(&self, sections: &[Section], wants: &[Want]) -> Option<String> {
        let hiding = dnf_sources::hiding(sections, wants);
        let ids: BTreeSet<&str> = hiding.iter().map(|section| section.id.as_str()).collect();
        let ids = ids.into_iter().collect::<Vec<_>>().join(",");
        let option = match self.flavour {
            Flavour::Dnf4 => format!("--disableexcludes={ids}"),
            Flavour::Dnf5 => format!("--setopt=disable_excludes={ids}"),
            Flavour::Tdnf => return Some("--disableexcludes".to_owned()),
        };
        (!ids.is_empty()).then_some(option)
    }

    pub(super) fn dnf<const N: usize>(&self, arguments: [&str; N]) -> Invocation {
        let program = match self.flavour {
            Flavour::Dnf4 => Program::Dnf,
            Flavour::Dnf5 => Program::Dnf5,
            Flavour::Tdnf => Program::Tdnf,
        };
        self.site.call(program, arguments)
    }

    /// Those of the wanted packages whose versions are locked.
    async fn locked(&self, wants: &[Want]) -> Result<BTreeSet<String>, WorkError> {
        let list = self.versionlock("list", None).await?;
        let names = wants.iter().map(|want| &want.name);
        Ok(names.filter(|name| is_locked(&list, name)).cloned().collect())
    }

    /// Runs the plugin that pins versions. It loads the metadata of all enabled repositories, although
    /// it needs none: their servers may be away.
    async fn versionlock(&self, verb: &str, name: Option<&str>) -> Result<String, ProgramError> {
        let mut call = self.dnf(["versionlock", verb]);
        let rest = name.into_iter().chain(["--disablerepo=*"]);
        call.arguments.extend(rest.map(str::to_owned));
        locks::run(self.site, &call).await
    }

    async fn unlock(
        &self,
        plan: &str,
        wants: &[Want],
        change: Change<'_>,
    ) -> Result<(), WorkError> {
        if !self.version_lock || wants.is_empty() {
            return Ok(());
        }
        let locked = self.locked(wants).await?;
        // Each step records the locks of its own packages. At a rollback a lock may have been set
        // by Refit.
        if change != Change::Restore {
            pins::add(self.site, plan, &locked)?;
        }
        for name in &locked {
            self.versionlock("delete", Some(name)).await?;
        }
        Ok(())
    }

    async fn lock(&self, order: &Order<'_>, lock_kubernetes: bool) -> Result<(), WorkError> {
        if !self.version_lock {
            return Ok(());
        }
        let locked = self.locked(&order.wants).await?;
        let wanted = |name: &str| {
            (lock_kubernetes && KUBERNETES.contains(&name))
                || pins::was_pinned(self.site, order.plan, name)
        };
        let names = order.wants.iter().map(|want| &want.name);
        for name in names.filter(|name| wanted(name) && !locked.contains(*name)) {
            self.versionlock("add", Some(name)).await?;
        }
        Ok(())
    }
}

/// Whether a list of locked versions has a package: `kubeadm-0:1.34.2-1.*` in dnf 4,
/// `Package name: kubeadm` in dnf 5.
fn is_locked(list: &str, name: &str) -> bool {
    list.lines().map(str::trim).any(|line| {
        let word = line.strip_prefix("Package name:").map(str::trim);
        let epoch = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        word == Some(name)
            || epoch.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The version part of a package spec for dnf.
fn spec(version: &Wanted) -> String {
    match version {
        Wanted::Kubernetes(version) => format!("{}-*", version.bare()),
        Wanted::Text(text) => text.clone(),
    }
}

/// Whether the wanted version is older than the installed one, which requires `dnf downgrade`.
fn is_older(wanted: &Wanted, now: &str) -> bool {
    let wanted = match wanted {
        Wanted::Kubernetes(version) => version.clone(),
        Wanted::Text(text) => match KubernetesVersion::of_package(text.trim_end_matches('*')) {
            Ok(version) => version,
            Err(_) => return false,
        },
    };
    KubernetesVersion::of_package(now).is_ok_and(|now| wanted < now)
}

/// Parses packages in rpm's own order: of two entries of a package the newer one is used.
fn parse_installed(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| (name.to_owned(), version.trim().to_owned()))
        .collect()
}

#[cfg(test)]
#[path = "dnf_tests.rs"]
mod tests;
