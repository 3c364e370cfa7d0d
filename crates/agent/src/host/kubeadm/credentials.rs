//! Certificates with their keys, and kubeconfigs, that a power cut has damaged.
//!
//! kubeadm renews them before it replaces the manifest of the static pod that reads them, and syncs neither: after a power cut
//! they may be empty (`docs/facts/kubeadm.md#certificates`). kubeadm cannot repair that. It needs the API server, which does
//! not start with an empty certificate.

use std::path::Path;

use refit_runtime::tls::{KeyAndCert, ReloadableCert};
use serde_json::Value;

use super::certificates;
use crate::host::{
    Site,
    files::{
        atomic,
        keep::{self, Before, Saved},
    },
    snapshot,
    work::WorkError,
};

/// Group of these files among those that a plan keeps.
const GROUP: &str = "credentials";

/// What kubeadm writes together, as absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credential {
    /// A certificate and its key.
    Pair([String; 2]),
    /// A kubeconfig with the certificate and the key of its user.
    Kubeconfig([String; 1]),
}

impl Credential {
    fn files(&self) -> &[String] {
        match self {
            Self::Pair(files) => files,
            Self::Kubeconfig(files) => files,
        }
    }

    /// Whether a file of it is complete. A truncated one lacks its end.
    fn is_complete(&self, content: &[u8]) -> bool {
        let text = String::from_utf8_lossy(content);
        match self {
            Self::Pair(_) => text.trim_end().ends_with("-----") && text.contains("-----END "),
            Self::Kubeconfig(_) => {
                let config = serde_saphyr::from_str::<Value>(&text);
                text.ends_with('\n') && config.is_ok_and(|config| config["kind"] == "Config")
            }
        }
    }

    /// Whether the files belong together: a power cut may leave one of them as it was.
    fn fits(&self, contents: &[&[u8]]) -> bool {
        match (self, contents) {
            (Self::Pair(_), [certificate, key]) => {
                let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
                let pair = KeyAndCert { cert_pem: text(certificate), key_pem: text(key) };
                ReloadableCert::new(&pair).is_ok()
            }
            (Self::Pair(_) | Self::Kubeconfig(_), _) => true,
        }
    }

    /// Decides about its files from what they are now, and were before kubeadm ran. kubeadm writes them in place, so that
    /// none can be missing because of it.
    ///
    /// | now | before | verdict |
    /// |---|---|---|
    /// | unchanged | with content | leave |
    /// | complete and fitting, or not there | any | leave |
    /// | complete, but from different renewals | fitting | restore |
    /// | damaged | with content, or not there | restore |
    /// | damaged | empty, or unknown | lost |
    fn decide(&self, now: &[Option<Vec<u8>>], before: &[Before]) -> Verdict {
        let is_damaged = now.iter().zip(before).any(|(now, before)| {
            now.as_deref().is_some_and(|now| {
                let is_unchanged = content(before) == Some(now);
                is_empty(now) || !is_unchanged && !self.is_complete(now)
            })
        });
        if is_damaged {
            let is_usable = before.iter().all(|before| match before {
                Before::File(kept) => !is_empty(&kept.content),
                Before::Absent => true,
                Before::Unknown => false,
            });
            return if is_usable { Verdict::Restore } else { Verdict::Lost };
        }
        let now: Vec<&[u8]> = now.iter().flatten().map(Vec::as_slice).collect();
        let kept: Vec<&[u8]> = before.iter().filter_map(content).collect();
        if !self.fits(&now) && kept.len() == self.files().len() && self.fits(&kept) {
            Verdict::Restore
        } else {
            Verdict::Leave
        }
    }
}

/// Whether a file has no content that was written: a power cut may also leave zeros.
fn is_empty(content: &[u8]) -> bool {
    content.is_empty() || content.contains(&0)
}

fn content(before: &Before) -> Option<&[u8]> {
    match before {
        Before::File(Saved { content, .. }) => Some(content),
        Before::Absent | Before::Unknown => None,
    }
}

/// What to do about a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is whole, or this host does not have it.
    Leave,
    /// Its files become what they were before kubeadm ran.
    Restore,
    /// It is damaged, and there is no copy.
    Lost,
}

/// Keeps what kubeadm may renew, until it has run. Copies of keys are for root only, as the keys themselves.
pub(super) fn keep(site: &Site, plan: &str) -> Result<(), WorkError> {
    snapshot::make_directory(site, plan)?;
    for credential in certificates::credentials(site) {
        for file in credential.files() {
            keep::keep(site, plan, GROUP, file)?;
        }
    }
    Ok(())
}

/// Removes what this plan and earlier ones have kept, once the files on the host are whole and synced: copies of keys.
pub(in crate::host) fn forget(site: &Site, plan: &str) -> Result<(), WorkError> {
    keep::forget(site, plan, GROUP)
}

/// Restores what a power cut has damaged. Returns whether that was anything. An error does not keep it from the others.
pub(in crate::host) fn restore(site: &Site, plan: &str) -> Result<bool, WorkError> {
    let all = certificates::credentials(site).into_iter();
    let outcomes: Vec<_> = all.map(|credential| restore_one(site, plan, &credential)).collect();
    outcomes.into_iter().try_fold(false, |is_any, restored| Ok(restored? || is_any))
}

fn restore_one(site: &Site, plan: &str, credential: &Credential) -> Result<bool, WorkError> {
    let files = credential.files();
    let read = |file: &String| Ok(atomic::read(&site.path(file))?.map(|(content, _)| content));
    let now = files.iter().map(read).collect::<Result<Vec<_>, WorkError>>()?;
    let before = files.iter().map(|file| keep::before(site, plan, GROUP, file));
    let before = before.collect::<Result<Vec<_>, WorkError>>()?;
    match credential.decide(&now, &before) {
        Verdict::Leave => Ok(false),
        Verdict::Restore => {
            for (file, before) in files.iter().zip(&before) {
                put_back(&site.path(file), before)?;
            }
            site.log(&format!("restored {}, which a power cut had damaged", files.join(" and ")));
            Ok(true)
        }
        Verdict::Lost => Err(WorkError::needs_person(match credential {
            Credential::Pair([certificate, key]) => format!(
                "{certificate} or {key} is empty or incomplete, and the snapshot of this plan has no copy: remove both, \
                 and create them again with `kubeadm init phase certs`"
            ),
            Credential::Kubeconfig([kubeconfig]) => format!(
                "{kubeconfig} is empty or incomplete, and the snapshot of this plan has no copy: remove it, and create \
                 it again with `kubeadm init phase kubeconfig`"
            ),
        })),
    }
}

fn put_back(path: &Path, before: &Before) -> Result<(), WorkError> {
    match before {
        Before::File(kept) => atomic::replace(path, &kept.content, kept.access).map(drop),
        Before::Absent => atomic::remove(path),
        Before::Unknown => Ok(()),
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
