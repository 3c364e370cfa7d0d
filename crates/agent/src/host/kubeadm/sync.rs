//! Syncs what kubeadm writes, while it runs.
//!
//! kubeadm syncs nothing (`docs/facts/kubeadm.md#static-pods`), and a file system may write the name of a new file long
//! before its content: after a power cut the file is empty. Single files are synced and not the whole file system, which
//! would wait for kubeadm's copy of etcd, and slow down etcd itself.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{MANIFESTS, backups, manifest};
use crate::host::Site;

/// How long a file of kubeadm stays unsynced at most, apart from the time of the sync itself.
const INTERVAL: Duration = Duration::from_millis(200);
/// Directories in which kubeadm writes manifests, kubeconfigs and the configuration of the kubelet.
const DIRECTORIES: [&str; 3] = [MANIFESTS, "/etc/kubernetes", "/var/lib/kubelet"];
/// Prefix of the directories in which kubeadm prepares manifests, long before it moves most of them into place.
const PREPARED: &str = "kubeadm-upgraded-manifests";

/// The inode and the time of the last change of each file that has been synced.
type Synced = BTreeMap<PathBuf, (u64, i64, i64)>;

/// The directories in which kubeadm writes on this host, apart from those with names of its own.
fn fixed(site: &Site) -> Vec<PathBuf> {
    let certificates = site.path(manifest::certificates_directory(site));
    let fixed = DIRECTORIES.map(|path| site.path(path)).into_iter();
    fixed.chain([certificates.join("etcd"), certificates]).collect()
}

/// Syncs everything that kubeadm has written, once it has ended.
pub(super) async fn all(site: &Site) {
    let directories = fixed(site);
    let syncing = tokio::task::spawn_blocking(move || sync_new(&directories, &Synced::new()));
    drop(syncing.await);
}

/// Syncs each file soon after kubeadm wrote it, as long as the future runs.
pub(super) async fn while_kubeadm_writes(site: &Site) -> Infallible {
    let fixed = fixed(site);
    let temporary = site.path(backups::DIRECTORY);
    let mut synced = Synced::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let (directories, known) = (directories(&fixed, &temporary), std::mem::take(&mut synced));
        let syncing = tokio::task::spawn_blocking(move || sync_new(&directories, &known));
        synced = syncing.await.unwrap_or_default();
    }
}

fn directories(fixed: &[PathBuf], temporary: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let prepared = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREPARED))
        .map(|entry| entry.path());
    fixed.iter().cloned().chain(prepared).collect()
}

fn files(directories: &[PathBuf]) -> impl Iterator<Item = (PathBuf, (u64, i64, i64))> {
    let entries = directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter());
    entries.flatten().flatten().filter_map(|entry| {
        let path = entry.path();
        let found = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        Some((path, (found.ino(), found.mtime(), found.mtime_nsec())))
    })
}

/// Syncs the files that are new since `known`, and their directories. Returns all files.
fn sync_new(directories: &[PathBuf], known: &Synced) -> Synced {
    let now: Synced = files(directories).collect();
    let new: Vec<&Path> = now
        .iter()
        .filter(|(path, state)| known.get(*path) != Some(state))
        .map(|(path, _)| path.as_path())
        .collect();
    let is_touched =
        |directory: &&PathBuf| new.iter().any(|path| path.parent() == Some(directory.as_path()));
    let touched = directories.iter().filter(is_touched).map(PathBuf::as_path);
    for path in new.iter().copied().chain(touched) {
        let synced = fs::File::open(path).and_then(|file| file.sync_all());
        if let Err(error) = synced {
            tracing::debug!(%error, path = %path.display(), "not synced");
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_kubeadm_has_written_are_found_once_each() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let temporary = site.path(backups::DIRECTORY);
        let prepared = temporary.join("kubeadm-upgraded-manifests100");
        for path in
            [site.path(MANIFESTS), prepared.clone(), temporary.join("kubeadm-backup-etcd-1")]
        {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("etcd.yaml"), "old").unwrap();
        }
        let watched = || directories(&[site.path(MANIFESTS)], &temporary);
        let first = sync_new(&watched(), &Synced::new());
        let (manifest, new) = (site.path(MANIFESTS).join("etcd.yaml"), prepared.join("etcd.yaml"));
        assert_eq!(first.keys().collect::<Vec<_>>(), [&manifest, &new]);
        assert_eq!(sync_new(&watched(), &first), first);
        fs::rename(&new, &manifest).unwrap();
        let second = sync_new(&watched(), &first);
        assert_eq!(second.keys().collect::<Vec<_>>(), [&manifest]);
        assert_ne!(second[&manifest], first[&manifest], "it is another file");
    }
}
