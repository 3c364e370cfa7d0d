//! Packages of the operating system with dnf.

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::refit::{OsPackage, OsPackageArgs, PROTECTED_PACKAGES};

use super::{
    dnf::{Dnf, Flavour},
    locks,
    os::Transaction,
};
use crate::host::work::WorkError;

/// Name and version of each package, one a line. dnf 5 adds no line break of its own.
const FORMAT: &str = "--queryformat=%{name} %{version}-%{release}\n";
/// Packages of which the host has several versions at the same time, such as the running kernel and the next one.
const INSTALL_ONLY: [&str; 8] = [
    "kernel-core",
    "kernel-modules",
    "kernel-devel",
    "kernel-debug",
    "kernel-uki",
    "kernel-uek",
    "kernel-rt",
    "kernel-64k",
];

/// Which metadata of the repositories a query uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metadata {
    /// That of now.
    New,
    /// That which was fetched last: the repositories may be away.
    Fetched,
}

impl Dnf<'_> {
    /// The same package manager, which does not change what keeps its version.
    pub(super) fn keeping(mut self, args: &OsPackageArgs) -> Self {
        let protected = PROTECTED_PACKAGES.iter().map(|name| (*name).to_owned());
        self.excluded = protected.chain(args.exclude.iter().cloned()).collect();
        self
    }

    /// Finds out which packages have to change, from new metadata.
    pub(super) async fn os_transaction(
        &self,
        args: &OsPackageArgs,
    ) -> Result<Transaction, WorkError> {
        let mut install = BTreeMap::new();
        for package in &args.install {
            let version = match package.version.strip_suffix('*') {
                Some(start) => self.newest(package, start).await?,
                None => package.version.clone(),
            };
            install.insert(package.name.clone(), version);
        }
        if args.security {
            for (name, version) in self.security_updates(args, Metadata::New).await? {
                install.entry(name).or_insert(version);
            }
        }
        let now = self.installed().await?;
        install.retain(|name, version| now.get(name) != Some(version));
        let replaced = install.keys().filter(|name| !is_install_only(name));
        let before = replaced.filter_map(|name| Some((name.clone(), now.get(name)?.clone())));
        Ok(Transaction { before: before.collect(), install, automatic: BTreeSet::new() })
    }

    /// The newest version of a package that starts with a text.
    async fn newest(&self, package: &OsPackage, start: &str) -> Result<String, WorkError> {
        let OsPackage { name, version } = package;
        let spec = if start.is_empty() { name.clone() } else { format!("{name}-{version}") };
        let found = self
            .query(
                Metadata::New,
                &["--latest-limit=1", &spec],
                &format!("name the version of {name}"),
            )
            .await?;
        let found =
            parse(&found).find(|(found, version)| found == name && version.starts_with(start));
        found.map(|(_, version)| version).ok_or_else(|| {
            WorkError::retriable(format!(
                "the repositories of the host have no package {name} at {version}"
            ))
        })
    }

    /// The upgrades of installed packages that an advisory on security names, by package name. Packages that the host
    /// excludes or has locked are not among them.
    pub(super) async fn security_updates(
        &self,
        args: &OsPackageArgs,
        metadata: Metadata,
    ) -> Result<BTreeMap<String, String>, WorkError> {
        let instead = "name the packages in osPackages.install, and do not set osPackages.security";
        let answer = self.query(metadata, &["--upgrades", "--security"], instead).await?;
        Ok(parse(&answer).filter(|(name, _)| !args.keeps(name)).collect())
    }

    /// Queries the repositories of the host.
    async fn query(
        &self,
        metadata: Metadata,
        arguments: &[&str],
        instead: &str,
    ) -> Result<String, WorkError> {
        if self.flavour == Flavour::Tdnf {
            return Err(WorkError::permanent(format!(
                "the host has only tdnf, which cannot show which packages have to change: {instead}"
            )));
        }
        let metadata = match metadata {
            Metadata::New => "--refresh",
            Metadata::Fetched => "--cacheonly",
        };
        let mut call = self.dnf(["repoquery", "--quiet", metadata, FORMAT]);
        call.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Ok(locks::run(self.site, &call).await?)
    }
}

/// Whether a new version is installed next to the old one.
fn is_install_only(name: &str) -> bool {
    name == "kernel" || INSTALL_ONLY.iter().any(|start| name.starts_with(start))
}

/// The lines in [`FORMAT`].
fn parse(answer: &str) -> impl Iterator<Item = (String, String)> {
    let two_words = |line: &str| {
        let (name, version) = line.trim().split_once(' ')?;
        let plain = !version.contains(' ') && version.contains('-') && !name.ends_with(':');
        plain.then(|| (name.to_owned(), version.to_owned()))
    };
    answer.lines().filter_map(two_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_versions_are_read_from_an_answer() {
        let text = "Unable to detect release version\nopenssl 3.0.7-27.el9\n\nkernel-core 5.14.0-503.el9\n";
        let found: Vec<_> = parse(text).collect();
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(found, [pair("openssl", "3.0.7-27.el9"), pair("kernel-core", "5.14.0-503.el9")]);
    }

    #[test]
    fn kernels_are_installed_next_to_each_other() {
        for (name, next_to) in [
            ("kernel", true),
            ("kernel-core", true),
            ("kernel-modules-core", true),
            ("kernel-headers", false),
            ("kernel-tools", false),
            ("openssl", false),
        ] {
            assert_eq!(is_install_only(name), next_to, "{name}");
        }
    }
}
