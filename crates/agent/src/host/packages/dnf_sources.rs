//! Where dnf takes packages from, and which packages its repositories exclude.
//!
//! Kubernetes has one repository per minor version (`docs/facts/kubeadm.md#package-repositories`).
//! Its packages are excluded from ordinary updates (`docs/facts/hosts.md#dnf`): a file that does
//! not exclude them yet does so from the moment at which it names another minor version.

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use regex::Regex;

use super::{KUBERNETES, Order, Want, access_of_source};
use crate::host::{
    Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    work::WorkError,
};

const REPOSITORIES: &str = "/etc/yum.repos.d";
const REFIT_REPOSITORY: &str = "/etc/yum.repos.d/refit-kubernetes.repo";
const CONFIGURATION: &str = "/etc/dnf/dnf.conf";
/// Options that hide packages, and the option that hides all others.
const EXCLUDES: [&str; 2] = ["exclude", "excludepkgs"];
const INCLUDES: &str = "includepkgs";

/// A section of dnf's configuration: `main` or a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    /// Its file on the host.
    pub(super) file: String,
    /// Its name, for a repository the id.
    pub(super) id: String,
    values: BTreeMap<String, String>,
}

impl Section {
    /// The option and value that hide a package, as in the file.
    pub(super) fn hides(&self, name: &str) -> Option<String> {
        let shown = |key: &str| self.values.get(key).map(|value| format!("{key}={value}"));
        let excluding = EXCLUDES.into_iter().find(|key| self.list(key).any(|p| covers(p, name)));
        if let Some(key) = excluding {
            return shown(key);
        }
        let mut includes = self.list(INCLUDES).peekable();
        let hidden = includes.peek().is_some() && !includes.any(|pattern| covers(pattern, name));
        hidden.then(|| shown(INCLUDES)).flatten()
    }

    /// Whether the section has dnf verify the signatures of packages.
    pub(super) fn checks_signatures(&self) -> bool {
        let on = |value: &String| ["1", "yes", "true", "on"].contains(&&*value.to_lowercase());
        ["gpgcheck", "pkg_gpgcheck"].iter().any(|key| self.values.get(*key).is_some_and(on))
    }

    /// The words of a list.
    pub(super) fn list(&self, key: &str) -> impl Iterator<Item = &str> {
        let value = self.values.get(key).map(String::as_str).unwrap_or_default();
        value.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty())
    }
}

/// Whether a pattern may match the package: its name, a wildcard, or a name with a version.
fn covers(pattern: &str, name: &str) -> bool {
    match pattern.find(['*', '?', '[']) {
        Some(end) => name.starts_with(&pattern[..end]) || pattern[..end].starts_with(name),
        None => pattern.strip_prefix(name).is_some_and(|rest| {
            let version = rest.strip_prefix('-').unwrap_or_default();
            rest.is_empty()
                || rest.starts_with('.')
                || version.starts_with(|c: char| c.is_ascii_digit())
        }),
    }
}

/// The sections of dnf's configuration on a host.
pub(super) fn sections(site: &Site) -> Vec<Section> {
    let files = repository_files(site).into_iter().chain([CONFIGURATION.to_owned()]);
    files.flat_map(|file| parse(&file, &site.read(&file))).collect()
}

/// Those sections that hide a wanted package.
pub(super) fn hiding(sections: &[Section], wants: &[Want]) -> Vec<Section> {
    let hides = |section: &&Section| wants.iter().any(|want| section.hides(&want.name).is_some());
    sections.iter().filter(hides).cloned().collect()
}

/// The sections of a configuration file.
pub(super) fn parse(file: &str, text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut last = String::new();
    for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
        let word = line.trim();
        if let Some(id) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
            let (file, id) = (file.to_owned(), id.to_owned());
            sections.push(Section { file, id, values: BTreeMap::new() });
            last.clear();
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        if line.starts_with([' ', '\t']) {
            // The value of the line before continues.
            if let Some(value) = section.values.get_mut(&last) {
                *value = format!("{value} {word}");
            }
        } else if let Some((key, value)) = line.split_once('=') {
            key.trim().clone_into(&mut last);
            section.values.insert(last.clone(), value.trim().to_owned());
        }
    }
    sections
}

fn repository_files(site: &Site) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(site.path(REPOSITORIES))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("{REPOSITORIES}/{}", entry.file_name().to_string_lossy()))
        .filter(|path| Path::new(path).extension().is_some_and(|kind| kind == "repo"))
        .collect();
    files.sort();
    files
}

/// Makes the host use the repository of an order.
pub(super) fn prepare(site: &Site, order: &Order<'_>) -> Result<(), WorkError> {
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
    use_repository(site, order.plan, url)
}

/// Makes the host use the repository of this minor version.
fn use_repository(site: &Site, plan: &str, url: &str) -> Result<(), WorkError> {
    for file in repository_files(site) {
        let text = site.read(&file);
        if text.contains(url) {
            return Ok(());
        }
        if let Some(changed) = at_minor(&text, url) {
            keep::keep(site, plan, keep::PACKAGES, &file)?;
            // The file may hold credentials, so its permissions are kept.
            let path = site.path(&file);
            let access = Access::like(&path, 0o644);
            atomic::replace(&path, excluding(&file, &changed, url).as_bytes(), access)?;
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
    atomic::replace(&site.path(REFIT_REPOSITORY), text.as_bytes(), access_of_source(url))?;
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

/// The text with the packages of Kubernetes excluded in each repository at `url`. Without this, any
/// update of the host would install another minor version, on a node that is not drained.
fn excluding(file: &str, text: &str, url: &str) -> String {
    let at_url = |section: &Section| {
        let mut urls = section.list("baseurl");
        urls.any(|word| word.trim_end_matches('/') == url.trim_end_matches('/'))
    };
    let hides_all = |section: &Section| KUBERNETES.iter().all(|name| section.hides(name).is_some());
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for section in parse(file, text).iter().filter(|found| at_url(found) && !hides_all(found)) {
        let header = format!("[{}]", section.id);
        let Some(start) = lines.iter().position(|line| line.trim() == header) else { continue };
        let names = KUBERNETES.join(" ");
        let rest = lines.iter().enumerate().skip(start + 1);
        let mut own = rest.take_while(|(_, line)| !line.trim().starts_with('['));
        let known = own.find_map(|(at, line)| {
            let key = line.split_once('=')?.0.trim();
            EXCLUDES.contains(&key).then_some(at)
        });
        match known {
            Some(at) => lines[at] = format!("{} {names}", lines[at].trim_end()),
            None => lines.insert(start + 1, format!("exclude={names}")),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
#[path = "dnf_sources_tests.rs"]
mod tests;
