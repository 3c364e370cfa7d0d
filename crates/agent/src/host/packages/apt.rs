//! Packages by apt and dpkg.
//!
//! | trouble | what is done |
//! |---|---|
//! | somebody else holds dpkg's lock | waited for, 5 min |
//! | dpkg was interrupted | `dpkg --configure -a`, `apt-get -f install`, what is half unpacked once more |
//! | our packages are held | the hold is lifted for the moment of the installation, and set again |
//! | other held packages | kept: a change of one of them fails, and needs a person |
//! | something would be removed | refused by `--no-remove` |
//! | the repository of the old version is gone | its packages were kept when the new ones were fetched |

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use super::{KUBERNETES, Order, Want, Wanted, apt_offline, apt_sources, pins};
use crate::host::{Invocation, Program, ProgramError, Site, files::keep, work::WorkError};

/// How long somebody else may hold a lock of apt or dpkg: a whole run of unattended-upgrades.
const LOCK_SECONDS: u32 = 300;
/// Wait before a lock is tried again that apt does not wait for itself.
const LOCK_PAUSE: Duration = Duration::from_secs(2);
/// What is said of a lock that is held.
const LOCKED: [&str; 4] = [
    "Could not get lock",
    "frontend lock was locked by another process",
    "database lock was locked by another process",
    "dpkg status database is locked",
];

/// What apt says of a file that the mirror has no longer.
const GONE: &str = "404  Not Found";

/// Name, version and status of each package.
const STATUSES: &str = "--showformat=${binary:Package} ${Version} ${db:Status-Status}\\n";
/// What a package is in the middle of.
const HALF: [&str; 5] =
    ["half-configured", "half-installed", "triggers-awaited", "triggers-pending", "unpacked"];

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

    /// Every package that is fully installed, and its version.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        // All of them: a name that matches nothing would make the query fail.
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        Ok(parse_installed(&answer))
    }

    /// Packages that are held back.
    pub async fn held(&self) -> Result<BTreeSet<String>, WorkError> {
        let answer = self.site.ask(Program::AptMark, ["showhold"]).await?;
        Ok(answer.split_whitespace().map(str::to_owned).collect())
    }

    /// Whether dpkg was interrupted, or a package is half installed.
    async fn is_broken(&self) -> Result<bool, WorkError> {
        let journal = self.site.path("/var/lib/dpkg/updates");
        let pending = fs::read_dir(journal).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(char::is_numeric))
            })
        });
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        Ok(pending || answer.lines().filter_map(status_of).any(|status| HALF.contains(&status)))
    }

    /// Ends what dpkg had begun when it was interrupted.
    pub async fn repair(&self) -> Result<(), WorkError> {
        if !self.is_broken().await? {
            return Ok(());
        }
        self.site.say("dpkg was interrupted: ending what it had begun");
        // First what apt-get would refuse to go on without.
        let configure =
            self.site.call(Program::Dpkg, ["--force-confold", "--configure", "--pending"]);
        let configured = self.patiently(&configure).await;
        let mend = self.apt_get(["--fix-broken", "--no-remove", "install"]);
        let mended = self.patiently(&mend).await;
        self.unpack_again().await?;
        if self.is_broken().await? {
            let error = configured.err().or(mended.err());
            let said = error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(WorkError::retriable(format!(
                "dpkg was interrupted and neither `dpkg --configure -a` nor `apt-get -f install` \
                 ends what it had begun{said}"
            )));
        }
        Ok(())
    }

    /// Unpacks packages whose unpacking was cut off: apt does nothing about them by itself, nor does
    /// it take the version that dpkg notes for one that has to be installed. One that cannot be had
    /// again is left to the installation of another version.
    async fn unpack_again(&self) -> Result<(), WorkError> {
        let answer = self.site.ask(Program::DpkgQuery, ["--show", STATUSES]).await?;
        for line in answer.lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(version), Some("half-installed")) =
                (words.next(), words.next(), words.next())
            {
                let wanted = format!("{name}={version}");
                let again = self.apt_get([
                    "--reinstall",
                    "--allow-downgrades",
                    "--allow-change-held-packages",
                    "--no-remove",
                    "install",
                    &wanted,
                ]);
                if let Err(error) = self.patiently(&again).await {
                    self.site.say(&format!("{wanted} is not unpacked again: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Runs a program again while somebody else holds a lock that it does not wait for.
    pub(super) async fn patiently(&self, call: &Invocation) -> Result<String, ProgramError> {
        let tries = LOCK_SECONDS / u32::try_from(LOCK_PAUSE.as_secs()).unwrap_or(1);
        let mut left = tries;
        loop {
            match self.site.run(call).await {
                Err(error) if left > 0 && is_locked(&error) => {
                    left -= 1;
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    pub(super) fn apt_get<const N: usize>(&self, arguments: [&str; N]) -> Invocation {
        let all = OPTIONS.iter().copied().chain(arguments);
        self.site.call(Program::AptGet, all)
    }

    /// Fetches what an order needs, and keeps the packages that its undo needs.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.repair().await?;
        let installed = self.installed().await?;
        // Before the sources change: the repository of the next minor has not the old packages.
        apt_offline::keep_old(self, &order.wants, &installed).await;
        let from = apt_sources::prepare(self, order).await?;
        self.update(&from).await?;
        let wants = Self::missing(order, &installed);
        if wants.is_empty() {
            return Ok(());
        }
        let names = self.resolve(&wants, &from).await?;
        let mut call = self.apt_get([
            "install",
            "--download-only",
            "--no-remove",
            "--no-install-recommends",
            "--allow-downgrades",
            // Nothing is changed, so nothing that is held either.
            "--allow-change-held-packages",
        ]);
        call.arguments.extend(from.clone());
        call.arguments.extend(names);
        self.patiently(&call).await.map_err(explain)?;
        Ok(())
    }

    /// Installs what an order wants and is not there, and holds the packages of Kubernetes.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.repair().await?;
        let wants = Self::missing(order, &self.installed().await?);
        if !pins::are_kept(self.site, order.plan) {
            pins::keep(self.site, order.plan, &self.held().await?)?;
        }
        let outcome =
            if wants.is_empty() { Ok(()) } else { self.install_missing(order, &wants).await };
        // Whatever became of it: nobody else would set again what was lifted.
        let own = outcome.is_ok();
        let names = order.wants.iter().map(|want| want.name.as_str());
        let hold = names.filter(|name| own && KUBERNETES.contains(name));
        let held = self.hold(order.plan, &order.wants, hold.collect()).await;
        outcome.and(held)
    }

    async fn install_missing(&self, order: &Order<'_>, wants: &[Want]) -> Result<(), WorkError> {
        let from = apt_sources::prepare(self, order).await?;
        let names = if let Ok(names) = self.resolve(wants, &from).await {
            names
        } else {
            // Fetched long ago, or never: the lists are old.
            self.update(&from).await?;
            self.resolve(wants, &from).await?
        };
        let own: Vec<&str> = wants.iter().map(|want| want.name.as_str()).collect();
        self.lift_holds(&own).await?;
        let mut call = self.apt_get(["install", "--no-remove", "--no-install-recommends"]);
        call.arguments.push("--allow-downgrades".to_owned());
        call.arguments.extend(from.iter().cloned());
        call.arguments.extend(names);
        match self.patiently(&call).await {
            Err(error) if error.said().contains(GONE) => {
                // The mirror has moved on since the lists were fetched: the next try sees its own.
                self.update(&from).await?;
                Err(error.into())
            }
            other => other.map(drop).map_err(explain),
        }
    }

    /// Goes back to exactly these versions.
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
            // Kept files are in a folder that apt's own user may not read.
            call.arguments.extend(as_root());
            self.patiently(&call).await.map_err(explain)?;
        }
        for (name, _) in gone {
            self.remove(name).await?;
        }
        Ok(())
    }

    /// Holds what was held before the plan, and `more`.
    async fn hold(
        &self,
        plan: &str,
        wants: &[Want],
        more: BTreeSet<&str>,
    ) -> Result<(), WorkError> {
        let held = self.held().await?;
        let hold: Vec<&str> = wants
            .iter()
            .map(|want| want.name.as_str())
            .filter(|name| more.contains(name) || pins::was_pinned(self.site, plan, name))
            .filter(|name| !held.contains(*name))
            .collect();
        self.mark("hold", &hold).await
    }

    /// Removes a package that was not there before, and only that one.
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
                "package {name} was not there before, but {} need it now; remove it by hand",
                others.join(", ")
            )));
        }
        self.patiently(&self.apt_get(["remove", name])).await?;
        Ok(())
    }

    fn missing(order: &Order<'_>, installed: &BTreeMap<String, String>) -> Vec<Want> {
        let there = |want: &Want| {
            let found = installed.get(&want.name);
            found.is_some_and(|found| want.version.is(found))
        };
        order.wants.iter().filter(|want| !there(want)).cloned().collect()
    }

    async fn update(&self, from: &[String]) -> Result<(), WorkError> {
        // Lists of sources that are left out for the moment stay.
        let mut call = self.apt_get(["update", "--option", "APT::Get::List-Cleanup=0"]);
        call.arguments.extend(from.iter().cloned());
        self.patiently(&call).await?;
        Ok(())
    }

    /// `name=version` for each want, from what the lists have.
    async fn resolve(&self, wants: &[Want], from: &[String]) -> Result<Vec<String>, WorkError> {
        let mut names = Vec::new();
        for want in wants {
            let mut call = self.site.call(Program::AptCache, ["madison", &want.name]);
            call.arguments.extend(from.iter().cloned());
            let answer = call.output().await?;
            let versions = parse_madison(&answer);
            let found = versions.iter().find(|version| want.version.is(version));
            let version = found.ok_or_else(|| {
                let there = match versions.as_slice() {
                    [] => "there is none of that name".to_owned(),
                    some => format!("there are {}", some[..some.len().min(5)].join(", ")),
                };
                let way_out = match want.version {
                    Wanted::Kubernetes(_) => {
                        "; repositories of Kubernetes are one per minor version: is \
                         packages.repository that of this one?"
                    }
                    Wanted::Text(_) => "",
                };
                WorkError::retriable(format!(
                    "no package {} of {} is in the repositories of the host: {there}{way_out}",
                    want.name, want.version
                ))
            })?;
            names.push(format!("{}={version}", want.name));
        }
        Ok(names)
    }

    async fn mark(&self, verb: &str, names: &[&str]) -> Result<(), WorkError> {
        if names.is_empty() {
            return Ok(());
        }
        let arguments = [verb].into_iter().chain(names.iter().copied());
        let call = self.site.call(Program::AptMark, arguments);
        self.patiently(&call).await?;
        Ok(())
    }

    async fn lift_holds(&self, names: &[&str]) -> Result<(), WorkError> {
        let held = self.held().await?;
        let lift: Vec<&str> = names.iter().copied().filter(|n| held.contains(*n)).collect();
        self.mark("unhold", &lift).await
    }
}

/// What every call of apt-get says.
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

fn is_locked(error: &ProgramError) -> bool {
    LOCKED.iter().any(|text| error.said().contains(text))
}

/// What a failed installation is.
fn explain(error: ProgramError) -> WorkError {
    let said = error.said().to_lowercase();
    let known = [
        ("held packages were changed", "a package that somebody holds would have to change"),
        ("packages need to be removed", "something would have to be removed"),
        ("unmet dependencies", "dependencies are not met"),
        ("pkgproblemresolver::resolve generated breaks", "dependencies are not met"),
        ("not authenticated", "the repository is not signed by a key of the host"),
        ("is not signed", "the repository is not signed by a key of the host"),
    ];
    match known.iter().find(|(text, _)| said.contains(text)) {
        Some((_, what)) => WorkError::needs_person(format!(
            "{what}; mend it on the host by apt, nothing was changed: {error}"
        )),
        None => error.into(),
    }
}

/// Reads our format of dpkg-query; only packages that are installed count.
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

/// The status of a package, which is the last word: one that was never whole has no version.
fn status_of(line: &str) -> Option<&str> {
    line.split_whitespace().next_back()
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
