//! Static pod manifests, and what their pods need, that a power cut has damaged.
//!
//! kubeadm moves each manifest away and a new one in, and syncs neither: after a power cut a manifest may be missing,
//! empty or truncated (`docs/facts/kubeadm.md#static-pods`). kubeadm cannot repair that. It waits for the static pod that
//! the manifest describes, and takes a host without `kube-apiserver.yaml` for a worker.
//!
//! An older etcd cannot read what a newer one has written. Restoring its previous manifest is still safe, because the
//! [new one is synced](super::sync) before the kubelet starts the new etcd.

use std::time::Duration;

use refit_kinds::refit::Role;

use super::{
    COMPONENTS, INSTANCE_CONFIG, KUBELET_FLAGS, MANIFESTS, backups, credentials, manifest, running,
};
use crate::host::{
    Program, Site,
    files::{
        atomic::{self, Access},
        keep::{self, Before, Saved},
    },
    snapshot::{self, CONFIGURATION},
    work::WorkError,
};

const API_SERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";

/// How long the kubelet may take to start static pods. It pauses for up to five minutes before it starts one again that
/// has failed.
const START: Duration = Duration::from_mins(7);
const POLL: Duration = Duration::from_secs(1);

/// What to do about a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict<'a> {
    /// It is whole, or this host does not have one.
    Leave,
    /// This copy replaces it.
    Restore(&'a Saved),
    /// It is damaged, and there is no copy.
    Lost,
}

/// Decides about a manifest from what was read. `backups` are those of kubeadm, the newest first. An `optional` manifest
/// is left out if the snapshot does not know it: an old backup may be from a time when etcd was not external. Any other
/// one that was absent when the plan began was lost before, by the power cut of an earlier plan.
///
/// | now | before the plan | verdict |
/// |---|---|---|
/// | whole | any | leave |
/// | missing | absent or unknown, optional | leave |
/// | damaged | absent, optional | lost: another program has written it |
/// | missing or damaged | a pod, or another one with a backup | restore |
/// | missing or damaged | otherwise | lost |
fn decide<'a>(
    now: Option<&[u8]>,
    before: &'a Before,
    backups: &'a [Saved],
    optional: bool,
) -> Verdict<'a> {
    let kept = match before {
        Before::File(kept) => Some(kept),
        Before::Absent | Before::Unknown => None,
    };
    let is_left = match now {
        Some(now) => is_whole(now, kept),
        None => optional && kept.is_none(),
    };
    if is_left {
        return Verdict::Leave;
    }
    let backups: &[Saved] = if optional && *before == Before::Absent { &[] } else { backups };
    let mut copies = kept.into_iter().chain(backups);
    copies.find(|copy| is_pod(&copy.content)).map_or(Verdict::Lost, Verdict::Restore)
}

/// Whether a manifest is complete. kubeadm ends each with a line break, and a truncated one may still be a pod.
fn is_whole(now: &[u8], kept: Option<&Saved>) -> bool {
    is_pod(now) && (now.ends_with(b"\n") || kept.is_some_and(|kept| kept.content == now))
}

/// Whether a text is a pod with containers.
fn is_pod(text: &[u8]) -> bool {
    let pod: Option<serde_json::Value> =
        std::str::from_utf8(text).ok().and_then(|text| serde_saphyr::from_str(text).ok());
    pod.is_some_and(|pod| pod["kind"] == "Pod" && pod["spec"]["containers"][0]["image"].is_string())
}

/// Restores what a power cut during an earlier attempt has damaged: the kubelet's configuration, and on a control plane
/// certificates, kubeconfigs and the static pods, for which it waits.
pub(super) async fn damages(site: &Site, plan: &str, role: Role) -> Result<(), WorkError> {
    for path in snapshot::CONFIGURATION_FILES {
        restore_empty(site, plan, path)?;
    }
    create_instance_config_again(site, plan)?;
    match role {
        Role::Worker => Ok(()),
        Role::FirstControlPlane | Role::ControlPlane => static_pods(site, plan).await,
    }
}

/// Restores a file of the kubelet that is empty or missing, and was not when the plan began.
fn restore_empty(site: &Site, plan: &str, absolute: &str) -> Result<(), WorkError> {
    let path = site.path(absolute);
    let is_empty = atomic::read(&path)?.is_none_or(|(content, _)| content.is_empty());
    match keep::before(site, plan, CONFIGURATION, absolute)? {
        Before::File(kept) if is_empty && !kept.content.is_empty() => {
            atomic::replace(&path, &kept.content, kept.access)?;
            site.log(&format!("restored {absolute}, which a power cut had left empty"));
            Ok(())
        }
        Before::File(_) | Before::Absent | Before::Unknown => Ok(()),
    }
}

/// Removes the instance configuration that kubeadm was creating, if a power cut has left it empty, and restores the flags
/// from which kubeadm moved its content: otherwise kubeadm would not create it again, and the kubelet would not know the
/// socket of its runtime.
fn create_instance_config_again(site: &Site, plan: &str) -> Result<(), WorkError> {
    let path = site.path(INSTANCE_CONFIG);
    let is_empty = atomic::read(&path)?.is_some_and(|(content, _)| content.is_empty());
    if !is_empty || keep::before(site, plan, CONFIGURATION, INSTANCE_CONFIG)? != Before::Absent {
        return Ok(());
    }
    if let Before::File(kept) = keep::before(site, plan, CONFIGURATION, KUBELET_FLAGS)? {
        atomic::replace(&site.path(KUBELET_FLAGS), &kept.content, kept.access)?;
    }
    atomic::remove(&path)?;
    site.log(&format!("removed {INSTANCE_CONFIG}, which a power cut had left empty"));
    Ok(())
}

/// Restores the manifests of a control plane that are missing, empty or truncated, and damaged credentials, and waits until
/// the kubelet runs the pods. The manifest of the API server is the first, because it shows whether etcd runs on this host,
/// and where the credentials are.
async fn static_pods(site: &Site, plan: &str) -> Result<(), WorkError> {
    let mut restored = Vec::new();
    let mut names = COMPONENTS;
    names.sort_by_key(|name| *name != API_SERVER);
    for name in names {
        if restore(site, plan, name)? {
            restored.push(name);
        }
    }
    credentials::keep(site, plan)?;
    if credentials::restore(site, plan)? {
        let is_here = |name: &&str| site.path(MANIFESTS).join(format!("{name}.yaml")).exists();
        let others = [ETCD, API_SERVER].into_iter().filter(is_here);
        let others: Vec<_> = others.filter(|name| !restored.contains(name)).collect();
        restored.extend(others);
    }
    wait_for_pods(site, &restored, START).await
}

/// Restores one manifest if it is damaged; returns whether it was.
fn restore(site: &Site, plan: &str, name: &str) -> Result<bool, WorkError> {
    let absolute = format!("{MANIFESTS}/{name}.yaml");
    let path = site.path(&absolute);
    let now = atomic::read(&path)?.map(|(content, _)| content);
    let before = keep::before(site, plan, CONFIGURATION, &absolute)?;
    let backups = backups(site, name)?;
    let is_here = !backups.is_empty() && manifest::connects_to_this_host(site);
    let optional = name == ETCD && !is_here;
    match decide(now.as_deref(), &before, &backups, optional) {
        Verdict::Leave => Ok(false),
        Verdict::Restore(copy) => {
            atomic::replace(&path, &copy.content, copy.access)?;
            site.log(&format!("restored {absolute}, which a power cut had left incomplete"));
            Ok(true)
        }
        Verdict::Lost => Err(WorkError::needs_person(format!(
            "{absolute} is missing or incomplete, and neither the snapshot of this plan nor {}/{}* has a copy: write the \
             manifest, for example with the one of another control plane as a pattern",
            backups::DIRECTORY,
            backups::MANIFESTS
        ))),
    }
}

/// kubeadm's backups of a manifest, the newest first.
fn backups(site: &Site, name: &str) -> Result<Vec<Saved>, WorkError> {
    let files = backups::of_manifest(site, name).into_iter();
    let read = files.map(|path| atomic::read(&path)).filter_map(Result::transpose);
    read.map(|read| read.map(|(content, file)| Saved { content, access: Access::of(&file) }))
        .collect()
}

/// Waits until the kubelet runs these static pods and the API server, which kubeadm calls: after a power cut the kubelet
/// may have just started, too. Without `crictl`, kubeadm's own patience has to do.
async fn wait_for_pods(
    site: &Site,
    restored: &[&str],
    patience: Duration,
) -> Result<(), WorkError> {
    if !site.has(Program::Crictl) {
        return Ok(());
    }
    let api_server = [API_SERVER].into_iter().filter(|name| !restored.contains(name));
    let started = async {
        for name in restored.iter().copied().chain(api_server) {
            loop {
                match running(site, name).await {
                    Ok(ids) if !ids.is_empty() => break,
                    // The runtime cannot be queried here, and kubeadm reports it if it matters.
                    Err(_) if restored.is_empty() => return,
                    Ok(_) | Err(_) => tokio::time::sleep(POLL).await,
                }
            }
        }
    };
    match tokio::time::timeout(patience, started).await {
        Ok(()) => Ok(()),
        Err(_) if restored.is_empty() => {
            site.log("kube-apiserver does not run on this host");
            Ok(())
        }
        Err(_) => Err(WorkError::retriable(format!(
            "the static pods whose files were restored ({}) and kube-apiserver did not start within {} s; see `crictl \
             logs` of their containers and `journalctl -u kubelet` on the host",
            restored.join(", "),
            patience.as_secs()
        ))),
    }
}

#[cfg(test)]
#[path = "mend_tests.rs"]
mod tests;
