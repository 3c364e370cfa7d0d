//! Packages with dnf and rpm.
//!
//! The Kubernetes repository is configured to exclude its own packages, so that ordinary updates do
//! not change them. Each call overrides this (`docs/facts/hosts.md#dnf`), with an option that
//! differs between dnf 4, dnf 5 and tdnf.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use refit_kinds::refit::PackageArgs;
use refit_kinds::version::KubernetesVersion;
use regex::Regex;

use super::{KUBERNETES, Order, Want, Wanted, dnf_offline, locks, pins};
use crate::host::{
    Invocation, Program, ProgramError, Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    work::WorkError,
};

const REPOSITORIES: &str = "/etc/yum.repos.d";
const REFIT_REPOSITORY: &str = "/etc/yum.repos.d/refit-kubernetes.repo";
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
enum Change {
    Fetch,
    Install,
    Restore,
}

/// dnf and rpm of a host.
#[derive(Clone, Debug)]
pub struct Dnf<'a> {
    site: &'a Site,
    flavour: Flavour,
    version_lock: bool,
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
        })
    }

    /// Every installed package, and its version with release.
    pub async fn installed(&self) -> Result<BTreeMap<String, String>, WorkError> {
        let query = ["--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
        let answer = self.site.ask(Program::Rpm, query).await?;
        Ok(parse_installed(&answer))
    }

    /// Fetches the packages of an order into dnf's cache.
    pub async fn fetch(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.prepare(order)?;
        let wants = self.missing(order).await?;
        let offline = self.offline(order).await?;
        self.unlocked(order, &wants, offline.as_deref(), Change::Fetch).await
    }

    /// Installs the missing packages of an order, and locks the packages of Kubernetes.
    pub async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        self.remove_interrupted_transactions(order).await?;
        self.prepare(order)?;
        let wants = self.missing(order).await?;
        let offline = if wants.is_empty() { None } else { self.offline(order).await? };
        self.unlocked(order, &wants, offline.as_deref(), Change::Install).await
    }

    /// Changes packages while their version locks are lifted. Afterwards, even after a failure, the
    /// packages that were locked before the plan are locked again. A successful installation also
    /// locks the packages of Kubernetes.
    async fn unlocked(
        &self,
        order: &Order<'_>,
        wants: &[Want],
        offline: Option<&Path>,
        change: Change,
    ) -> Result<(), WorkError> {
        let download = change == Change::Fetch;
        let outcome = match self.unlock(order.plan, wants, change).await {
            Ok(()) if !wants.is_empty() => self.transact(offline, wants, download).await,
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

    /// Restores exactly these versions.
    pub async fn restore(
        &self,
        plan: &str,
        packages: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        keep::put_back(self.site, plan, keep::PACKAGES)?;
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
        let all = packages.iter().map(|(name, version)| Want {
            name: name.clone(),
            version: Wanted::Text(version.clone()),
        });
        // All packages: an earlier attempt may have left some unlocked.
        let order = Order { plan, from: &from, wants: all.collect() };
        self.unlocked(&order, &wants, offline.as_deref(), Change::Restore).await
    }

    async fn missing(&self, order: &Order<'_>) -> Result<Vec<Want>, WorkError> {
        let installed = self.installed().await?;
        let is_installed = |want: &Want| {
            let found = installed.get(&want.name);
            found.is_some_and(|found| want.version.matches(found))
        };
        Ok(order.wants.iter().filter(|want| !is_installed(want)).cloned().collect())
    }

    async fn transact(
        &self,
        offline: Option<&Path>,
        wants: &[Want],
        download: bool,
    ) -> Result<(), WorkError> {
        let installed = self.installed().await?;
        let (down, up): (Vec<_>, Vec<_>) = wants.iter().cloned().partition(|want| {
            installed.get(&want.name).is_some_and(|now| is_older(&want.version, now))
        });
        for (verb, wants) in [("install", up), ("downgrade", down)] {
            if wants.is_empty() {
                continue;
            }
            let call = self.transaction(verb, offline, &wants, download);
            locks::run(self.site, &call).await.map_err(explain)?;
        }
        Ok(())
    }

    /// The call that installs, downgrades or downloads packages. If `offline` is set, it uses only
    /// that repository on the host.
    pub fn transaction(
        &self,
        verb: &str,
        offline: Option<&Path>,
        wants: &[Want],
        download: bool,
    ) -> Invocation {
        let mut call = self.dnf([verb, "--assumeyes"]);
        let mut add = |argument: &str| call.arguments.push(argument.to_owned());
        if download {
            add("--downloadonly");
        }
        if download || offline.is_some() {
            // dnf caches the metadata of a repository for two days. An installation uses the
            // metadata from the fetch.
            add("--refresh");
        }
        match self.flavour {
            Flavour::Dnf4 => add("--disableexcludes=kubernetes"),
            Flavour::Dnf5 => add("--setopt=disable_excludes=kubernetes"),
            Flavour::Tdnf => add("--disableexcludes"),
        }
        if self.flavour != Flavour::Tdnf {
            // No package is removed for it, and weak dependencies are not installed.
            add("--setopt=install_weak_deps=False");
        }
        if let Some(directory) = offline {
            add("--nogpgcheck");
            add(&format!("--repofrompath=refit-offline,file://{}", directory.display()));
            if self.flavour == Flavour::Tdnf {
                add("--disablerepo=*");
                add("--enablerepo=refit-offline");
            } else {
                add("--repo=refit-offline");
            }
        }
        for want in wants {
            add(&format!("{}-{}", want.name, spec(&want.version)));
        }
        call
    }

    fn dnf<const N: usize>(&self, arguments: [&str; N]) -> Invocation {
        let program = match self.flavour {
            Flavour::Dnf4 => Program::Dnf,
            Flavour::Dnf5 => Program::Dnf5,
            Flavour::Tdnf => Program::Tdnf,
        };
        self.site.call(program, arguments)
    }

    /// Those of the wanted packages whose versions are locked.
    async fn locked(&self, wants: &[Want]) -> BTreeSet<String> {
        let list = self.dnf(["versionlock", "list"]).output().await;
        let list = list.unwrap_or_default();
        let names = wants.iter().map(|want| &want.name);
        names.filter(|name| is_locked(&list, name)).cloned().collect()
    }

    async fn unlock(&self, plan: &str, wants: &[Want], change: Change) -> Result<(), WorkError> {
        if !self.version_lock || wants.is_empty() {
            return Ok(());
        }
        let locked = self.locked(wants).await;
        // Each step records the locks of its own packages. At a rollback a lock may have been set
        // by Refit.
        if change != Change::Restore {
            pins::add(self.site, plan, &locked)?;
        }
        for name in &locked {
            let call = self.dnf(["versionlock", "delete", name]);
            locks::run(self.site, &call).await?;
        }
        Ok(())
    }

    async fn lock(&self, order: &Order<'_>, lock_kubernetes: bool) -> Result<(), WorkError> {
        if !self.version_lock {
            return Ok(());
        }
        let locked = self.locked(&order.wants).await;
        let wanted = |name: &str| {
            (lock_kubernetes && KUBERNETES.contains(&name))
                || pins::was_pinned(self.site, order.plan, name)
        };
        let names = order.wants.iter().map(|want| &want.name);
        for name in names.filter(|name| wanted(name) && !locked.contains(*name)) {
            let call = self.dnf(["versionlock", "add", name]);
            locks::run(self.site, &call).await?;
        }
        Ok(())
    }

    /// Removes leftovers of interrupted transactions. A transaction that a power cut interrupted
    /// leaves two entries of a package in rpm's database: the older entry is removed, and the files
    /// of the newer one stay. The same package of another architecture is a separate package.
    async fn remove_interrupted_transactions(&self, order: &Order<'_>) -> Result<(), WorkError> {
        for want in &order.wants {
            let query = [
                "--query",
                "--queryformat",
                "%{ARCH} %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\\n",
                &want.name,
            ];
            // The query fails for a package that is not installed.
            let answer = self.site.ask(Program::Rpm, query).await.unwrap_or_default();
            for entry in outdated_entries(&answer) {
                self.site.log(&format!("removing {entry}, left by an interrupted transaction"));
                let call = self.site.call(Program::Rpm, ["--erase", "--nodeps", entry]);
                locks::run(self.site, &call).await?;
            }
        }
        Ok(())
    }

    /// Makes the host use the repository of this minor version.
    fn prepare(&self, order: &Order<'_>) -> Result<(), WorkError> {
        let url = &order.from.repository;
        if url.is_empty() || !order.from.path.is_empty() {
            return Ok(());
        }
        let good = ["https://", "http://", "file:///"].iter().any(|start| url.starts_with(start))
            && url.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~:/%+@".contains(&b));
        if !good {
            return Err(WorkError::permanent(format!(
                "invalid packages.repository {url:?}, expected an http, https or file URL"
            )));
        }
        use_repository(self.site, order.plan, url)
    }
}

fn use_repository(site: &Site, plan: &str, url: &str) -> Result<(), WorkError> {
    let mut files: Vec<String> = fs::read_dir(site.path(REPOSITORIES))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("{REPOSITORIES}/{}", entry.file_name().to_string_lossy()))
        .filter(|path| Path::new(path).extension().is_some_and(|kind| kind == "repo"))
        .collect();
    files.sort();
    for file in files {
        let text = site.read(&file);
        if text.contains(url) {
            return Ok(());
        }
        if let Some(changed) = at_minor(&text, url) {
            keep::keep(site, plan, keep::PACKAGES, &file)?;
            // The file may hold credentials, so its permissions are kept.
            let path = site.path(&file);
            let access = Access::like(&path, 0o644);
            atomic::replace(&path, changed.as_bytes(), access)?;
            return Ok(());
        }
    }
    keep::keep(site, plan, keep::PACKAGES, REFIT_REPOSITORY)?;
    let url = url.trim_end_matches('/');
    let check = u8::from(!url.starts_with("file:"));
    let text = format!(
        "# Written by refit-agent.\n[kubernetes]\nname=Kubernetes\nbaseurl={url}/\nenabled=1\n\
         gpgcheck={check}\ngpgkey={url}/repodata/repomd.xml.key\n\
         exclude=kubelet kubeadm kubectl cri-tools kubernetes-cni\n"
    );
    atomic::replace(&site.path(REFIT_REPOSITORY), text.as_bytes(), Access::of_mode(0o644))?;
    Ok(())
}

/// The text with the minor version of `url` in place of another minor version of the same
/// repository.
fn at_minor(text: &str, url: &str) -> Option<String> {
    static MINOR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"/v1\.[0-9]+/").expect("the pattern is a constant"));
    let minor = MINOR.find(url)?;
    let before = url.get(..minor.start())?;
    let other = Regex::new(&format!(r"{}/v1\.[0-9]+/", regex::escape(before))).ok()?;
    let new = format!("{before}{}", minor.as_str());
    let changed = other.replace_all(text, regex::NoExpand(&new));
    (changed != text).then(|| changed.into_owned())
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

/// Entries that are followed by a newer entry of the same architecture.
fn outdated_entries(answer: &str) -> Vec<&str> {
    let mut newest = BTreeMap::new();
    let mut older = Vec::new();
    for (arch, entry) in answer.lines().filter_map(|line| line.split_once(' ')) {
        older.extend(newest.insert(arch, entry));
    }
    older
}

/// Parses packages in rpm's own order: of two entries of a package the newer one is used.
fn parse_installed(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| (name.to_owned(), version.trim().to_owned()))
        .collect()
}

fn explain(error: ProgramError) -> WorkError {
    let output = error.output_tail();
    let known = ["nothing provides", "conflicting requests", "GPG check FAILED", "is not signed"];
    if known.iter().any(|text| output.contains(text)) {
        return WorkError::needs_person(format!(
            "dnf cannot install the packages; nothing was changed, fix it on the host: {error}"
        ));
    }
    error.into()
}

#[cfg(test)]
#[path = "dnf_tests.rs"]
mod tests;
