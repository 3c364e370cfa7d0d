//! Packages of the operating system with apt.

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::refit::OsPackageArgs;

use super::{
    apt::Apt,
    apt_errors::explain,
    apt_sources::Source,
    os::{Transaction, want},
};
use crate::host::{Program, work::WorkError};

/// A package that a simulated transaction installs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Installed<'a> {
    name: &'a str,
    /// Empty for a new package.
    old: &'a str,
    new: &'a str,
    /// Whether an archive of security updates has the new version.
    security: bool,
}

impl Apt<'_> {
    /// Finds out which packages have to change, from new package lists.
    pub(super) async fn os_transaction(
        &self,
        args: &OsPackageArgs,
    ) -> Result<Transaction, WorkError> {
        self.repair().await?;
        self.refresh(args.security).await?;
        let mut install = BTreeMap::new();
        for package in &args.install {
            let name = package.name.clone();
            let version = if package.version == "*" {
                self.candidate(&name).await?
            } else {
                let found = self.resolve(&[want(package)?], &[]).await?;
                let found = found.into_iter().next().unwrap_or_default();
                found.split_once('=').map(|(_, version)| version.to_owned()).unwrap_or_default()
            };
            install.insert(name, version);
        }
        if args.security {
            for (name, version) in self.security_updates(args).await? {
                install.entry(name).or_insert(version);
            }
        }
        let now = self.installed().await?;
        install.retain(|name, version| now.get(name) != Some(version));
        let before = self.changes(&install, args).await?;
        let answer = self.site.ask(Program::AptMark, ["showauto"]).await?;
        let automatic = answer.split_whitespace().filter(|name| before.contains_key(*name));
        Ok(Transaction { automatic: automatic.map(str::to_owned).collect(), install, before })
    }

    /// Fetches new package lists. Security updates are known only if those of their archives are new.
    async fn refresh(&self, security: bool) -> Result<(), WorkError> {
        let updated = self.update(&Source::default()).await;
        let unknown = |why: &str| {
            WorkError::retriable(format!(
                "the package lists of the host were not all refreshed, so its security updates are not known: {why}"
            ))
        };
        match updated {
            Ok(warnings) => {
                let mut lines = warnings.lines();
                let old = lines
                    .find(|line| line.contains("Failed to fetch") && line.contains("security"));
                old.filter(|_| security).map_or(Ok(()), |line| Err(unknown(line)))
            }
            Err(error) if security => Err(unknown(&error.to_string())),
            Err(error) => {
                self.site.log_and_go_on(&format!("not every source was updated: {error}"));
                Ok(())
            }
        }
    }

    /// The version that apt itself would install.
    async fn candidate(&self, name: &str) -> Result<String, WorkError> {
        let answer = self.site.ask(Program::AptCache, ["policy", name]).await?;
        let found = answer.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        found.filter(|version| *version != "(none)").map(str::to_owned).ok_or_else(|| {
            WorkError::retriable(format!("the repositories of the host have no package {name}"))
        })
    }

    /// The upgrades of installed packages that an archive of security updates has, by name. Packages that are held, or
    /// whose upgrade would remove others, are not among them.
    pub(super) async fn security_updates(
        &self,
        args: &OsPackageArgs,
    ) -> Result<BTreeMap<String, String>, WorkError> {
        let call = self.apt_get(["upgrade", "--simulate", "--with-new-pkgs", "--no-remove"]);
        let answer = call.output().await.map_err(explain)?;
        let due = parse(&answer).into_iter().filter(|package| {
            package.security && !package.old.is_empty() && !args.keeps(package.name)
        });
        Ok(due.map(|package| (package.name.to_owned(), package.new.to_owned())).collect())
    }

    /// The previous versions of all packages that an installation changes.
    async fn changes(
        &self,
        install: &BTreeMap<String, String>,
        args: &OsPackageArgs,
    ) -> Result<BTreeMap<String, String>, WorkError> {
        if install.is_empty() {
            return Ok(BTreeMap::new());
        }
        let options = ["--no-remove", "--no-install-recommends", "--allow-downgrades"];
        let held = ["--simulate", "--allow-change-held-packages"];
        let mut call = self.apt_get(["install"]);
        call.arguments.extend(options.into_iter().chain(held).map(str::to_owned));
        call.arguments.extend(install.iter().map(|(name, version)| format!("{name}={version}")));
        let answer = call.output().await.map_err(explain)?;
        let all = parse(&answer);
        if let Some(kept) = all.iter().find(|package| args.keeps(package.name)) {
            let (name, old) = (kept.name, if kept.old.is_empty() { "missing" } else { kept.old });
            return Err(WorkError::needs_person(format!(
                "package {name}, which keeps its version ({old}), would become {}, because other packages need that; \
                 nothing was changed: upgrade {name} with Kubernetes or the container runtime first, or name older versions",
                kept.new
            )));
        }
        let replaced = all.iter().filter(|package| !package.old.is_empty());
        Ok(replaced.map(|package| (package.name.to_owned(), package.old.to_owned())).collect())
    }

    /// Marks packages as installed only because others need them.
    pub(super) async fn mark_automatic(&self, names: &BTreeSet<String>) -> Result<(), WorkError> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.mark("auto", &names).await
    }
}

/// The packages that a simulation of apt-get installs (`docs/facts/hosts.md#apt`). Those of another architecture follow
/// the host's own.
fn parse(answer: &str) -> Vec<Installed<'_>> {
    answer.lines().filter_map(parse_line).filter(|package| !package.name.contains(':')).collect()
}

/// `Inst NAME [OLD] (NEW LABEL:RELEASE/SUITE, ... [ARCHITECTURE])`, without `[OLD]` for a new package.
fn parse_line(line: &str) -> Option<Installed<'_>> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
    let (old, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once("] ")?,
        None => ("", rest),
    };
    let (inside, _) = rest.strip_prefix('(')?.split_once(')')?;
    let (new, archives) = inside.split_once(' ')?;
    let archives = archives.split(" [").next().unwrap_or_default();
    let security = archives.split(", ").any(is_security);
    Some(Installed { name, old, new, security })
}

/// Whether an archive has security updates: by its suite, or in old releases of Debian by its label.
fn is_security(archive: &str) -> bool {
    let suite = archive.rsplit_once('/').map_or("", |(_, suite)| suite);
    suite.ends_with("-security") || archive.starts_with("Debian-Security:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_installations_are_read_with_their_archives() {
        let text = "\
NOTE: This is only a simulation!
Inst libssl3 [3.0.15-1~deb12u1] (3.0.17-1~deb12u2 Debian-Security:12/stable-security [amd64]) []
Inst libssl3:i386 [3.0.15-1] (3.0.17-1 Debian-Security:12/stable-security [i386])
Inst vim [2:9.0] (2:9.1 Debian:12.11/stable [amd64])
Inst linux-image-6.1.0-28-amd64 (6.1.119-1 Debian:12.8/stable, Debian-Security:12/stable-security [amd64])
Inst curl [7.81.0-1ubuntu1.20] (7.81.0-1ubuntu1.21 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy-security [amd64])
Inst old [1] (2 Debian-Security:10/oldoldstable [amd64])
Inst local [1] (2 localhost [amd64])
Conf libssl3 (3.0.17-1~deb12u2 Debian-Security:12/stable-security [amd64])
Remv gone [1]
";
        let found: Vec<_> =
            parse(text).iter().map(|one| (one.name, one.old, one.new, one.security)).collect();
        let wanted = [
            ("libssl3", "3.0.15-1~deb12u1", "3.0.17-1~deb12u2", true),
            ("vim", "2:9.0", "2:9.1", false),
            ("linux-image-6.1.0-28-amd64", "", "6.1.119-1", true),
            ("curl", "7.81.0-1ubuntu1.20", "7.81.0-1ubuntu1.21", true),
            ("old", "1", "2", true),
            ("local", "1", "2", false),
        ];
        assert_eq!(found, wanted);
    }
}
