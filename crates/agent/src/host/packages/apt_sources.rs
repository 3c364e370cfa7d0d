//! Where apt takes packages from: the host's own sources, the repository of one minor version of
//! Kubernetes, or a directory of files.
//!
//! Kubernetes has one repository per minor version (`docs/facts/kubeadm.md#package-repositories`),
//! so the source is changed before the next minor version is installed. If the host has a source
//! for another minor version of the same repository, that line is changed; otherwise Refit adds its
//! own file. A rollback restores either.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

use super::{
    Order, access_of_source,
    apt::{Apt, as_root},
    apt_offline,
};
use crate::host::{
    Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    work::WorkError,
};

const DIRECTORY: &str = "/etc/apt/sources.list.d";
const REFIT_SOURCE: &str = "/etc/apt/sources.list.d/refit-kubernetes.list";
const KEYRINGS: [&str; 2] = [
    "/etc/apt/keyrings/kubernetes-apt-keyring.gpg",
    "/usr/share/keyrings/kubernetes-apt-keyring.gpg",
];

/// A source of packages for apt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// Options that each call needs.
    pub(super) options: Vec<String>,
    /// The file of the only source that an update has to fetch. Without it, an update fetches all
    /// sources.
    pub(super) list: Option<PathBuf>,
}

impl Source {
    /// The options of an update.
    pub(super) fn update(&self) -> Vec<String> {
        let list = self.list.iter().flat_map(|list| exactly(list));
        self.options.iter().cloned().chain(list).collect()
    }

    /// The same source, with the other sources of the host.
    pub(super) fn with_all(&self) -> Self {
        Self { list: None, ..self.clone() }
    }
}

/// Makes the packages of an order available to apt.
pub(super) async fn prepare(apt: &Apt<'_>, order: &Order<'_>) -> Result<Source, WorkError> {
    if !order.from.path.is_empty() {
        return only(apt, &apt.site.path(&order.from.path)).await;
    }
    if order.from.repository.is_empty() {
        return Ok(Source::default());
    }
    let list = use_repository(apt.site, order.plan, &order.from.repository)?;
    Ok(Source { list: Some(apt.site.path(list)), ..Source::default() })
}

/// Options with which apt reads one file of sources and no other.
fn exactly(list: &Path) -> [String; 4] {
    [
        "--option".to_owned(),
        format!("Dir::Etc::sourcelist={}", list.display()),
        "--option".to_owned(),
        "Dir::Etc::sourceparts=-".to_owned(),
    ]
}

/// A directory of package files as the only source.
pub(super) async fn only(apt: &Apt<'_>, directory: &Path) -> Result<Source, WorkError> {
    let repository = apt_offline::repository(apt, directory).await?;
    let list = apt.site.state().join("apt").join("offline.list");
    // The files were verified with their bundle or when apt fetched them, or belong to the
    // administrator. No key signs them.
    let line = format!("deb [trusted=yes] file:{} ./\n", repository.display());
    atomic::replace(&list, line.as_bytes(), Access::of_mode(0o644))?;
    let options = exactly(&list).into_iter().chain(as_root()).collect();
    Ok(Source { options, list: None })
}

/// Makes the host use the repository of this minor version, and returns the file that has it.
fn use_repository(site: &Site, plan: &str, url: &str) -> Result<String, WorkError> {
    let url = checked(url)?;
    let mut lists: Vec<String> = fs::read_dir(site.path(DIRECTORY))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("{DIRECTORY}/{}", entry.file_name().to_string_lossy()))
        .filter(|path| {
            let kind = Path::new(path).extension();
            kind.is_some_and(|kind| kind == "list" || kind == "sources")
        })
        .collect();
    lists.sort();
    lists.push("/etc/apt/sources.list".to_owned());
    let mut known = None;
    for list in lists {
        let text = site.read(&list);
        if has_source(&text, &url) {
            known.get_or_insert(list);
        } else if let Some(changed) = at_minor(&text, &url) {
            keep::keep(site, plan, keep::PACKAGES, &list)?;
            // The file may hold credentials, so its permissions are kept.
            let path = site.path(&list);
            let access = Access::like(&path, 0o644);
            atomic::replace(&path, changed.as_bytes(), access)?;
            known.get_or_insert(list);
        }
    }
    if let Some(list) = known {
        return Ok(list);
    }
    let options = if url.starts_with("file:") {
        "[trusted=yes]".to_owned()
    } else {
        let keyring = KEYRINGS.iter().find(|path| site.path(path).exists());
        let keyring = keyring.ok_or_else(|| {
            WorkError::needs_person(format!(
                "the host has no package source like {url} and no key for it; put the key at {}",
                KEYRINGS[0]
            ))
        })?;
        format!("[signed-by={keyring}]")
    };
    keep::keep(site, plan, keep::PACKAGES, REFIT_SOURCE)?;
    let line = format!("# Written by refit-agent.\ndeb {options} {url} /\n");
    atomic::replace(&site.path(REFIT_SOURCE), line.as_bytes(), access_of_source(&url))?;
    Ok(REFIT_SOURCE.to_owned())
}

/// The URL with a trailing slash. A URL that apt would read as more than one word is refused.
fn checked(url: &str) -> Result<String, WorkError> {
    let good = ["https://", "http://", "file:/"].iter().any(|start| url.starts_with(start))
        && url.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~:/%+@".contains(&b));
    if !good {
        return Err(WorkError::permanent(format!(
            "invalid packages.repository {url:?}, expected an http, https or file URL"
        )));
    }
    Ok(format!("{}/", url.trim_end_matches('/')))
}

/// Whether an active source has this URL.
fn has_source(text: &str, url: &str) -> bool {
    let bare = url.trim_end_matches('/');
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .any(|word| word.trim_end_matches('/') == bare)
}

/// The text with the minor version of `url` in place of another minor version of the same
/// repository.
fn at_minor(text: &str, url: &str) -> Option<String> {
    static MINOR: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"/v1\.[0-9]+/").expect("the pattern is a constant"));
    let at = MINOR.find(url)?;
    let (before, after) = (url.get(..at.start())?, url.get(at.end()..)?);
    let other = format!(
        r"{}/v1\.[0-9]+/{}/?",
        regex::escape(before),
        regex::escape(after.trim_end_matches('/'))
    );
    let other = Regex::new(&other).ok()?;
    let mut changed = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            if line.trim_start().starts_with('#') || !other.is_match(line) {
                return line.to_owned();
            }
            changed = true;
            other.replace_all(line, regex::NoExpand(url)).into_owned()
        })
        .collect();
    changed.then(|| lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const NEW: &str = "https://pkgs.k8s.io/core:/stable:/v1.35/deb/";
    const OLD: &str = "# https://pkgs.k8s.io/core:/stable:/v1.34/deb/\n\
        deb [signed-by=/etc/apt/keyrings/kubernetes-apt-keyring.gpg] \
        https://pkgs.k8s.io/core:/stable:/v1.34/deb/ /\n";

    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        fs::create_dir_all(site.path(DIRECTORY)).unwrap();
        (directory, site)
    }

    #[test]
    fn the_repository_of_the_next_minor_takes_the_place_of_the_old_one() {
        let (_directory, site) = site();
        let list = format!("{DIRECTORY}/kubernetes.list");
        fs::write(site.path(&list), OLD).unwrap();
        let closed = fs::Permissions::from_mode(0o640);
        fs::set_permissions(site.path(&list), closed).unwrap();
        assert_eq!(use_repository(&site, "p", NEW).unwrap(), list);
        let mode = fs::metadata(site.path(&list)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "it may hold credentials");
        let text = site.read(&list);
        assert_eq!(text.matches("v1.35/deb/ /").count(), 1, "{text}");
        assert!(text.starts_with("# https://pkgs.k8s.io/core:/stable:/v1.34"), "{text}");
        assert!(!site.path(REFIT_SOURCE).exists());
        use_repository(&site, "p", NEW).unwrap();
        assert_eq!(site.read(&list), text);
        keep::put_back(&site, "p", keep::PACKAGES).unwrap();
        assert_eq!(site.read(&list), OLD);
    }

    #[test]
    fn deb822_sources_are_changed_too() {
        let text = "Types: deb\nURIs: https://pkgs.k8s.io/core:/stable:/v1.34/deb/\nSuites: /\n";
        let changed = at_minor(text, NEW).unwrap();
        assert!(changed.contains("\nURIs: https://pkgs.k8s.io/core:/stable:/v1.35/deb/\n"));
    }

    #[test]
    fn another_repository_is_left_alone() {
        assert_eq!(at_minor("deb https://other.example/v1.34/deb/ /\n", NEW), None);
        assert_eq!(at_minor("deb https://mirror.example/debian trixie main\n", NEW), None);
    }

    #[test]
    fn a_missing_repository_is_added_if_the_host_has_its_key() {
        let (_directory, site) = site();
        let error = use_repository(&site, "p", NEW).unwrap_err();
        assert!(error.message.contains("no key for it"), "{error}");
        fs::create_dir_all(site.path("/etc/apt/keyrings")).unwrap();
        fs::write(site.path(KEYRINGS[0]), "key").unwrap();
        use_repository(&site, "p", NEW).unwrap();
        assert!(
            site.read(REFIT_SOURCE)
                .contains("[signed-by=/etc/apt/keyrings/kubernetes-apt-keyring.gpg] https")
        );
        keep::put_back(&site, "p", keep::PACKAGES).unwrap();
        assert!(!site.path(REFIT_SOURCE).exists());
    }

    #[test]
    fn only_a_valid_url_becomes_a_source() {
        for bad in
            ["", "pkgs.k8s.io", "https://x y/", "https://x/\ndeb evil", "ftp://x/", "https://x/[a]"]
        {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
        assert_eq!(checked("file:/srv/repo").unwrap(), "file:/srv/repo/");
    }
}
