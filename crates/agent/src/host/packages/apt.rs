//! Packages with apt and dpkg.
//!
//! | problem | action |
//! |---|---|
//! | another process holds a lock | wait up to 5 min |
//! | dpkg was interrupted | `dpkg --configure -a`, `apt-get -f install`, unpack half-installed packages again |
//! | the sources move to another minor version | hold the packages of Kubernetes until their installation |
//! | packages of the order are held | lift the hold during the installation, then set it again |
//! | other packages are held | keep the hold: an installation that would change them fails and requires manual intervention |
//! | a package would be removed | refuse, by `--no-remove` |
//! | the mirror is away, or no longer has a fetched package | install what was fetched |
//! | a source of another package is broken | ignore it unless a wanted package is missing |
//! | the repository of the old version is gone | install the old packages that were kept when the new ones were fetched |

use std::collections::{BTreeMap, BTreeSet};

use super::{
    KUBERNETES, Order, Want, Wanted,
    apt_errors::{explain, unsolvable, warnings},
    apt_offline,
    apt_sources::{self, Source},
    fetched, locks, package_files, pins,
};
use crate::host::{Invocation, Program, ProgramError, Site, files::keep, work::WorkError};

/// Message about a file that the mirror no longer has.
const GONE: &str = "404  Not Found";

/// Name, version and status of each package.
pub(super) const STATUSES: &str =
    "--showformat=${binary:Package} ${Version} ${db:Status-Status}\\n";
/// apt and dpkg of a host.
#[derive(Clone, Debug)]
pub struct Apt<'a> {
    pub(super) site: &'a Site,
}

impl PartialEq for Apt<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.site, other.site)
    }
}

impl Eq for Apt<'_> {}

impl<'a> Apt<'a> {
    /// apt and dpkg of a host.
    pub fn new(site: &'a Site) -> Self {
        Self { site }
    }

    /// Every fully installed package and its version.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        // Lists all packages: the query fails for a name that matches nothing.
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        Ok(parse_installed(&answer))
    }

    /// Packages that are held.
    pub async fn held(&self) -> Result<BTreeSet<String>, WorkError> {
        let answer = self.site.ask(Program::AptMark, ["showhold"]).await?;
        Ok(answer.split_whitespace().map(str::to_owned).collect())
    }

    pub(super) fn apt_get<const N: usize>(&self, arguments: [&str; N]) -> Invocation {
        let all = OPTIONS.iter().copied().chain(arguments);
        self.site.call(Program::AptGet, all)
    }

    /// Fetches the packages of an order, and keeps the packages that its rollback needs.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.repair().await?;
        let installed = self.installed().await?;
        // Before the sources change: the repository of the next minor version has no old packages.
        apt_offline::keep_old(self, &order.wants, &installed).await;
        if order.from.path.is_empty() && !order.from.repository.is_empty() {
            self.hold_until_installed(order, &installed).await?;
        }
        let source = apt_sources::prepare(self, order).await?;
        let wants = Self::missing(order, &installed);
        if wants.is_empty() {
            return Ok(());
        }
        match self.fetch_from(&source, order, &wants).await {
            Err(error) if source.list.is_some() => {
                // Dependencies and further packages are in other sources.
                self.site.log_and_go_on(&format!("trying all sources of the host: {error}"));
                self.fetch_from(&source.with_all(), order, &wants).await
            }
            other => other,
        }
    }

    async fn fetch_from(
        &self,
        source: &Source,
        order: &Order<'_>,
        wants: &[Want],
    ) -> Result<(), WorkError> {
        let names = self.find(source, wants).await?;
        let mut call = self.apt_get([
            "install",
            "--download-only",
            "--no-remove",
            "--no-install-recommends",
            "--allow-downgrades",
            // Nothing is installed, so no held package changes.
            "--allow-change-held-packages",
        ]);
        if order.from.path.is_empty() {
            let directory = fetched::prepare(self.site, order.plan)?;
            let cache = format!("Dir::Cache::archives={}/", directory.display());
            call.arguments.extend(["--option".to_owned(), cache]);
        }
        call.arguments.extend(source.options.iter().cloned());
        call.arguments.extend(names);
        locks::run(self.site, &call).await.map_err(explain)?;
        if order.from.path.is_empty() {
            fetched::record(self.site, order.plan, "deb")?;
        }
        Ok(())
    }

    /// Installs the missing packages of an order, and holds the packages of Kubernetes.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.repair().await?;
        let wants = Self::missing(order, &self.installed().await?);
        self.keep_pins(order.plan).await?;
        let outcome =
            if wants.is_empty() { Ok(()) } else { self.install_missing(order, &wants).await };
        // Even after a failure: the lifted holds have to be set again.
        let succeeded = outcome.is_ok();
        let names = order.wants.iter().map(|want| want.name.as_str());
        let hold = names.filter(|name| succeeded && KUBERNETES.contains(name));
        let held = self.hold(order.plan, &order.wants, hold.collect()).await;
        outcome.and(held)
    }

    async fn install_missing(&self, order: &Order<'_>, wants: &[Want]) -> Result<(), WorkError> {
        let wanted: Vec<&str> = wants.iter().map(|want| want.name.as_str()).collect();
        if !order.from.path.is_empty() {
            return self.install_from_host(order, wants, &wanted).await;
        }
        let lost = fetched::discard_damaged(self.site, order.plan)?;
        if let Some((source, names)) = self.find_fetched(order.plan, wants).await {
            self.lift_holds(&wanted).await?;
            match self.install_from(&source, names).await {
                Err(error) if unsolvable(&error).is_some() => {
                    self.site
                        .log_and_go_on(&format!("the fetched packages do not suffice: {error}"));
                }
                other => return other.map_err(explain),
            }
        }
        let installed = self.install_from_host(order, wants, &wanted).await;
        installed.map_err(|error| lost.explain(error))
    }

    async fn install_from_host(
        &self,
        order: &Order<'_>,
        wants: &[Want],
        wanted: &[&str],
    ) -> Result<(), WorkError> {
        let source = apt_sources::prepare(self, order).await?;
        let names = match self.resolve(wants, &source.options).await {
            Ok(names) => names,
            // The package lists are old or missing.
            Err(_) => match self.find(&source, wants).await {
                Err(error) if source.list.is_some() => {
                    self.site.log_and_go_on(&format!("trying all sources of the host: {error}"));
                    self.find(&source.with_all(), wants).await?
                }
                other => other?,
            },
        };
        self.lift_holds(wanted).await?;
        match self.install_from(&source, names).await {
            Err(error) if error.output_tail().contains(GONE) => {
                // The mirror has changed since the lists were fetched: the retry uses new lists.
                if let Err(error) = self.update(&source.with_all()).await {
                    self.site.log_and_go_on(&format!("not every source was updated: {error}"));
                }
                Err(error.into())
            }
            other => other.map_err(explain),
        }
    }

    async fn install_from(&self, source: &Source, names: Vec<String>) -> Result<(), ProgramError> {
        let mut call = self.apt_get(["install", "--no-remove", "--no-install-recommends"]);
        call.arguments.push("--allow-downgrades".to_owned());
        call.arguments.extend(source.options.iter().cloned());
        call.arguments.extend(names);
        locks::run(self.site, &call).await.map(drop)
    }

    /// The packages that the plan fetched as a source, and the wanted packages in it. `None` if one
    /// is missing: the sources of the host are used.
    async fn find_fetched(&self, plan: &str, wants: &[Want]) -> Option<(Source, Vec<String>)> {
        let directory = fetched::directory(self.site, plan);
        if package_files(&directory, "deb").unwrap_or_default().is_empty() {
            return None;
        }
        let found = async {
            let source = apt_sources::only(self, &directory).await?;
            let names = self.find(&source, wants).await?;
            Ok::<_, WorkError>((source, names))
        };
        let found = found.await;
        found
            .inspect_err(|error| self.site.log_and_go_on(&format!("not fetched before: {error}")))
            .ok()
    }

    /// Restores exactly these versions.
    pub async fn restore(
        &self,
        plan: &str,
        packages: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        self.repair().await?;
        keep::put_back(self.site, plan, keep::PACKAGES)?;
        let outcome = self.go_back(packages).await;
        let wants: Vec<Want> = packages
            .iter()
            .map(|(name, version)| Want {
                name: name.clone(),
                version: Wanted::Text(version.clone()),
            })
            .collect();
        let held = self.hold(plan, &wants, BTreeSet::new()).await;
        outcome.and(held)
    }

    async fn go_back(&self, packages: &BTreeMap<String, String>) -> Result<(), WorkError> {
        let installed = self.installed().await?;
        let names: Vec<&str> = packages.keys().map(String::as_str).collect();
        let (gone, older): (Vec<_>, Vec<_>) = packages
            .iter()
            .filter(|(name, version)| installed.get(*name).unwrap_or(&String::new()) != *version)
            .partition(|(_, version)| version.is_empty());
        if !gone.is_empty() || !older.is_empty() {
            self.lift_holds(&names).await?;
        }
        if !older.is_empty() {
            let mut call = self.apt_get(["install", "--no-remove", "--no-install-recommends"]);
            call.arguments.push("--allow-downgrades".to_owned());
            for (name, version) in older {
                let kept = apt_offline::kept(self.site, name, version);
                call.arguments.push(kept.map_or_else(
                    || format!("{name}={version}"),
                    |file| file.display().to_string(),
                ));
            }
            // apt's own user may not read the directory of the kept files.
            call.arguments.extend(as_root());
            locks::run(self.site, &call).await.map_err(explain)?;
        }
        for (name, _) in gone {
            self.remove(name).await?;
        }
        Ok(())
    }

    /// Holds the installed packages of Kubernetes before the sources move to another minor version:
    /// otherwise any upgrade of the host would install it, on a node that is not drained.
    async fn hold_until_installed(
        &self,
        order: &Order<'_>,
        installed: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        self.keep_pins(order.plan).await?;
        let held = self.held().await?;
        let free = KUBERNETES.into_iter().filter(|name| installed.contains_key(*name));
        let free: Vec<&str> = free.filter(|name| !held.contains(*name)).collect();
        let own = free.iter().map(|name| (*name).to_owned()).collect();
        pins::claim(self.site, order.plan, &own)?;
        self.mark("hold", &free).await
    }

    /// Releases the packages that the plan itself holds.
    pub(super) async fn release(&self, plan: &str) -> Result<(), WorkError> {
        let own = pins::own(self.site, plan);
        if own.is_empty() {
            return Ok(());
        }
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        self.lift_holds(&own).await?;
        pins::release(self.site, plan)
    }

    /// Records the holds of the host before the plan changes any.
    async fn keep_pins(&self, plan: &str) -> Result<(), WorkError> {
        if !pins::are_kept(self.site, plan) {
            pins::keep(self.site, plan, &self.held().await?)?;
        }
        Ok(())
    }

    /// Holds the packages that were held before the plan or by the plan, and `more`.
    async fn hold(
        &self,
        plan: &str,
        wants: &[Want],
        more: BTreeSet<&str>,
    ) -> Result<(), WorkError> {
        let held = self.held().await?;
        let own = pins::own(self.site, plan);
        let stays = |name: &str| {
            more.contains(name) || own.contains(name) || pins::was_pinned(self.site, plan, name)
        };
        let hold: Vec<&str> = wants
            .iter()
            .map(|want| want.name.as_str())
            .filter(|name| stays(name))
            .filter(|name| !held.contains(*name))
            .collect();
        self.mark("hold", &hold).await
    }

    /// Removes a package that was not installed before, and no other package.
    async fn remove(&self, name: &str) -> Result<(), WorkError> {
        let simulated = self.apt_get(["remove", "--simulate", name]).output().await?;
        let others: Vec<&str> = simulated
            .lines()
            .filter_map(|line| line.strip_prefix("Remv "))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|other| *other != name)
            .collect();
        if !others.is_empty() {
            return Err(WorkError::needs_person(format!(
                "package {name} was installed by the plan, but {} now depend on it; remove {name} \
                 by hand",
                others.join(", ")
            )));
        }
        locks::run(self.site, &self.apt_get(["remove", name])).await?;
        Ok(())
    }

    fn missing(order: &Order<'_>, installed: &BTreeMap<String, String>) -> Vec<Want> {
        let is_installed = |want: &Want| {
            let found = installed.get(&want.name);
            found.is_some_and(|found| want.version.matches(found))
        };
        order.wants.iter().filter(|want| !is_installed(want)).cloned().collect()
    }

    /// Fetches new package lists, and returns the warnings: apt-get succeeds if it has to keep the old lists of a source.
    pub(super) async fn update(&self, source: &Source) -> Result<String, ProgramError> {
        // The lists of sources that this call leaves out are kept.
        let mut call = self.apt_get(["update", "--option", "APT::Get::List-Cleanup=0"]);
        call.arguments.extend(source.update());
        let output = locks::run(self.site, &call).await?;
        self.site.log_success();
        Ok(warnings(&output))
    }

    /// `name=version` for each wanted package, from new package lists. A source that cannot be
    /// updated matters only if a wanted package is missing.
    async fn find(&self, source: &Source, wants: &[Want]) -> Result<Vec<String>, WorkError> {
        let updated = self.update(source).await;
        if let Err(error) = &updated {
            self.site.log_and_go_on(&format!("not every source was updated: {error}"));
        }
        self.resolve(wants, &source.options).await.map_err(|mut error| {
            let cause = updated.unwrap_or_else(|error| error.to_string());
            if !cause.is_empty() {
                error.message = format!("{}; the package lists may be old: {cause}", error.message);
            }
            error
        })
    }

    /// `name=version` for each wanted package, from the package lists.
    pub(super) async fn resolve(
        &self,
        wants: &[Want],
        options: &[String],
    ) -> Result<Vec<String>, WorkError> {
        let mut names = Vec::new();
        for want in wants {
            let mut call = self.site.call(Program::AptCache, ["madison", &want.name]);
            call.arguments.extend(options.iter().cloned());
            let answer = call.output().await?;
            let versions = parse_madison(&answer);
            let found = versions.iter().find(|version| want.version.matches(version));
            let version = found.ok_or_else(|| {
                let there = match versions.as_slice() {
                    [] => "there is no package of that name".to_owned(),
                    some => format!("available versions: {}", some[..some.len().min(5)].join(", ")),
                };
                let way_out = match want.version {
                    Wanted::Kubernetes(_) => {
                        "; Kubernetes has one repository per minor version: check \
                         packages.repository"
                    }
                    Wanted::Text(_) => "",
                };
                WorkError::retriable(format!(
                    "the repositories of the host have no package {} at {}; {there}{way_out}",
                    want.name, want.version
                ))
            })?;
            names.push(format!("{}={version}", want.name));
        }
        Ok(names)
    }

    pub(super) async fn mark(&self, verb: &str, names: &[&str]) -> Result<(), WorkError> {
        if names.is_empty() {
            return Ok(());
        }
        let arguments = [verb].into_iter().chain(names.iter().copied());
        let call = self.site.call(Program::AptMark, arguments);
        locks::run(self.site, &call).await?;
        Ok(())
    }

    async fn lift_holds(&self, names: &[&str]) -> Result<(), WorkError> {
        let held = self.held().await?;
        let lift: Vec<&str> = names.iter().copied().filter(|n| held.contains(*n)).collect();
        self.mark("unhold", &lift).await
    }
}

/// Options of every apt-get call.
const OPTIONS: [&str; 8] = [
    "--yes",
    "--quiet",
    "--option",
    "DPkg::Lock::Timeout=300",
    "--option",
    "Dpkg::Options::=--force-confold",
    "--option",
    "Dpkg::Options::=--force-confdef",
];

/// Options with which apt reads files that only root may read.
pub(super) fn as_root() -> [String; 2] {
    ["--option".to_owned(), "APT::Sandbox::User=root".to_owned()]
}

/// Parses the dpkg-query output in the format `STATUSES`. Only installed packages count.
pub(super) fn parse_installed(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version) = (words.next()?, words.next()?);
            let name = name.split(':').next()?;
            (words.next()? == "installed").then(|| (name.to_owned(), version.to_owned()))
        })
        .collect()
}

/// The versions of `apt-cache madison`, newest first.
fn parse_madison(text: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut columns = line.split('|').map(str::trim);
        let (Some(_), Some(version), Some(place)) =
            (columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        if !place.ends_with("Sources") && !versions.iter().any(|known| known == version) {
            versions.push(version.to_owned());
        }
    }
    versions
}

#[cfg(test)]
#[path = "apt_tests.rs"]
mod tests;
