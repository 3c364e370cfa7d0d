//! Entries of rpm's database that an interrupted transaction of a plan left.
//!
//! A transaction that a power cut interrupted leaves two entries of a package: the new one and the
//! one from before, which is the newer version if the transaction was a downgrade. The entry from
//! before is removed, and the files of the new one stay. Only what the agent's own transaction has
//! touched is removed: other packages may be installed twice on purpose, such as kernels
//! (`docs/facts/hosts.md#dnf`). The record of it does not belong to the plan: that may have failed, and
//! the next one removes what is left.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Want, dnf_sources, locks};
use crate::host::{
    Program, Site,
    files::atomic::{self, Access},
    work::WorkError,
};

/// Prints name, architecture, the transaction that installed the package, and its full name.
const QUERY: &str = "%{NAME}\\t%{ARCH}\\t%{INSTALLTID}\\t%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\\n";
/// What a package provides that may be installed more than once.
const INSTALL_ONLY: [&str; 2] = ["installonlypkg(", "multiversion("];
/// Start of the names of kernels and their modules.
const KERNEL: &str = "kernel";
/// The entries of imported keys: one per key.
const KEYS: &str = "gpg-pubkey";

/// An entry of rpm's database.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<'a> {
    name: &'a str,
    arch: &'a str,
    transaction: &'a str,
    full: &'a str,
}

/// What is known before a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    wanted: BTreeSet<String>,
    /// Full names of all installed packages.
    before: BTreeSet<String>,
}

fn path(site: &Site) -> PathBuf {
    site.state().join("rpm-transaction.json")
}

/// Records the state before a transaction.
pub(super) async fn begin(site: &Site, wants: &[Want]) -> Result<(), WorkError> {
    let answer = query(site).await?;
    let record = Record {
        wanted: wants.iter().map(|want| want.name.clone()).collect(),
        before: entries(&answer).map(|entry| entry.full.to_owned()).collect(),
    };
    let text = serde_json::to_vec(&record).expect("names serialise to JSON");
    atomic::replace(&path(site), &text, Access::of_mode(0o600))?;
    Ok(())
}

/// The transaction has ended.
pub(super) fn end(site: &Site) -> Result<(), WorkError> {
    atomic::remove(&path(site))
}

/// Removes what an interrupted transaction of this or an earlier plan left.
pub(super) async fn remove(site: &Site) -> Result<(), WorkError> {
    let Some(record) = read(&path(site)) else {
        return Ok(());
    };
    let answer = query(site).await?;
    let now: Vec<Entry<'_>> = entries(&answer).collect();
    for entry in leftovers(&record, &now) {
        if is_install_only(site, entry).await? {
            continue;
        }
        site.log(&format!("removing {}, left by an interrupted transaction", entry.full));
        let call = site.call(Program::Rpm, ["--erase", "--nodeps", entry.full]);
        locks::run(site, &call).await?;
    }
    end(site)
}

/// `None` if no transaction was interrupted.
fn read(path: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

async fn query(site: &Site) -> Result<String, WorkError> {
    Ok(site.ask(Program::Rpm, ["--query", "--all", "--queryformat", QUERY]).await?)
}

fn entries(answer: &str) -> impl Iterator<Item = Entry<'_>> {
    answer.lines().filter_map(|line| {
        let mut words = line.split('\t');
        let (name, arch) = (words.next()?, words.next()?);
        Some(Entry { name, arch, transaction: words.next()?, full: words.next()? })
    })
}

/// The entries from before the transaction for which it has installed another one. The same package
/// of another architecture is a separate package.
fn leftovers<'a>(record: &Record, now: &'a [Entry<'a>]) -> Vec<&'a Entry<'a>> {
    let is_new = |entry: &&Entry<'_>| !record.before.contains(entry.full);
    let wanted = now.iter().filter(is_new).filter(|entry| record.wanted.contains(entry.name));
    let transactions: BTreeSet<&str> = wanted.map(|entry| entry.transaction).collect();
    let touched: BTreeSet<(&str, &str)> = now
        .iter()
        .filter(is_new)
        .filter(|entry| transactions.contains(entry.transaction))
        .map(|entry| (entry.name, entry.arch))
        .collect();
    now.iter()
        .filter(|entry| !is_new(entry) && touched.contains(&(entry.name, entry.arch)))
        .filter(|entry| !entry.name.starts_with(KERNEL) && entry.name != KEYS)
        .collect()
}

/// Whether a package may be installed more than once.
async fn is_install_only(site: &Site, entry: &Entry<'_>) -> Result<bool, WorkError> {
    let query = ["--query", "--queryformat", "[%{PROVIDENAME}\\n]", entry.full];
    let provided = site.ask(Program::Rpm, query).await?;
    let sections = dnf_sources::sections(site);
    let configured: BTreeSet<&str> =
        sections.iter().flat_map(|section| section.list("installonlypkgs")).collect();
    Ok(provided.lines().any(|name| {
        name == KERNEL
            || configured.contains(name)
            || INSTALL_ONLY.iter().any(|start| name.starts_with(start))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "glibc\tx86_64\t7\tglibc-2.38-1.x86_64\n\
        glibc\ti686\t7\tglibc-2.38-1.i686\n\
        kernel-core\tx86_64\t7\tkernel-core-6.1-1.x86_64\n\
        gpg-pubkey\t(none)\t7\tgpg-pubkey-1-1.(none)\n\
        cri-tools\tx86_64\t7\tcri-tools-1.34.0-1.x86_64\n\
        kubeadm\tx86_64\t7\tkubeadm-1.34.2-1.x86_64\n";

    fn left(wanted: &[&str], new: &str) -> Vec<String> {
        let record = Record {
            wanted: wanted.iter().map(|name| (*name).to_owned()).collect(),
            before: entries(BEFORE).map(|entry| entry.full.to_owned()).collect(),
        };
        let answer = format!("{BEFORE}{new}");
        let now: Vec<Entry<'_>> = entries(&answer).collect();
        leftovers(&record, &now).into_iter().map(|entry| entry.full.to_owned()).collect()
    }

    #[test]
    fn only_entries_from_before_a_transaction_of_the_plan_are_removed() {
        let upgrade = "kubeadm\tx86_64\t9\tkubeadm-1.35.0-1.x86_64\n";
        let downgrade = "kubeadm\tx86_64\t9\tkubeadm-1.33.0-1.x86_64\n";
        let tools = "cri-tools\tx86_64\t9\tcri-tools-1.35.0-1.x86_64\n";
        let glibc = "glibc\tx86_64\t8\tglibc-2.39-1.x86_64\n";
        let kernel = "kernel-core\tx86_64\t9\tkernel-core-6.2-1.x86_64\n";
        let key = "gpg-pubkey\t(none)\t9\tgpg-pubkey-2-2.(none)\n";
        let old = "kubeadm-1.34.2-1.x86_64";
        assert_eq!(left(&["kubeadm"], upgrade), [old]);
        assert_eq!(left(&["kubeadm"], downgrade), [old], "the newer entry is from before");
        let with_tools = left(&["kubeadm"], &format!("{upgrade}{tools}"));
        assert_eq!(with_tools, ["cri-tools-1.34.0-1.x86_64", old], "a dependency");
        assert!(left(&["kubeadm"], glibc).is_empty(), "another transaction");
        let both = left(&["glibc"], glibc);
        assert_eq!(both, ["glibc-2.38-1.x86_64"], "another architecture stays");
        let kept = left(&["kernel-core", "kubeadm"], &format!("{kernel}{key}"));
        assert!(kept.is_empty(), "{kept:?}");
        assert!(left(&["kubeadm"], "").is_empty());
    }
}
