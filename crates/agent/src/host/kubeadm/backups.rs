//! Backups that kubeadm writes to `/etc/kubernetes/tmp` at each upgrade and never removes: old
//! manifests, a copy of etcd's data, kubelet configurations
//! (`docs/facts/kubeadm.md#backups-of-kubeadm`). They fill root file systems.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::host::Site;

/// kubeadm's backup directory.
pub(super) const DIRECTORY: &str = "/etc/kubernetes/tmp";
/// How many backups of each kind are kept.
pub(super) const KEPT: usize = 1;
/// Directories with the manifests that an upgrade replaced.
pub(super) const MANIFESTS: &str = "kubeadm-backup-manifests-";
const KINDS: [&str; 4] =
    ["kubeadm-backup-etcd-", MANIFESTS, "kubeadm-kubelet-config", "kubeadm-upgraded-manifests"];

/// kubeadm's backups by kind, oldest first.
pub(super) fn find(site: &Site) -> BTreeMap<&'static str, Vec<PathBuf>> {
    let mut found: BTreeMap<&'static str, Vec<(std::time::SystemTime, PathBuf)>> = BTreeMap::new();
    for entry in fs::read_dir(site.path(DIRECTORY)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Some(kind) = KINDS.into_iter().find(|kind| name.starts_with(kind)) else {
            continue;
        };
        let Ok(changed) = entry.metadata().and_then(|data| data.modified()) else {
            continue;
        };
        found.entry(kind).or_default().push((changed, entry.path()));
    }
    found
        .into_iter()
        .map(|(kind, mut paths)| {
            paths.sort();
            (kind, paths.into_iter().map(|(_, path)| path).collect())
        })
        .collect()
}

/// Backups of a manifest, the newest first.
pub(super) fn of_manifest(site: &Site, name: &str) -> Vec<PathBuf> {
    let directories = find(site).remove(MANIFESTS).unwrap_or_default();
    let files = directories.into_iter().rev().map(|path| path.join(format!("{name}.yaml")));
    files.filter(|path| path.is_file()).collect()
}

/// Removes all but the newest `keep` backups of each kind, to free disk space. Best effort.
///
/// After an upgrade that is not `complete`, all backups of manifests stay: they are small, and an older one may be the
/// last copy of a manifest that a power cut has damaged.
pub(super) fn prune(site: &Site, keep: usize, complete: bool) {
    let is_done_with = |kind: &str| complete || kind != MANIFESTS;
    let all = find(site).into_iter().filter(|(kind, _)| is_done_with(kind));
    for (_, paths) in all {
        let drop = paths.len().saturating_sub(keep);
        for path in paths.into_iter().take(drop) {
            let outcome =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match outcome {
                Ok(()) => {
                    site.log(&format!("removed {}, left by an older upgrade", path.display()));
                }
                Err(error) => site.log(&format!("cannot remove {}: {error}", path.display())),
            }
        }
    }
}

/// Size of a copy of a directory; 0 if it does not exist.
pub(super) fn bytes_of(directory: &Path) -> u64 {
    size(directory, 6)
}

fn size(path: &Path, depth: usize) -> u64 {
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() && depth > 0 => size(&entry.path(), depth - 1),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_backup_of_each_kind_stays_and_what_is_not_kubeadms_too() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let tmp = site.path(DIRECTORY);
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_hours(1);
        for name in [
            "kubeadm-backup-etcd-2026-01-01-10-00-00",
            "kubeadm-backup-manifests-2026-01-01-10-00-00",
            "kubeadm-kubelet-config100",
        ] {
            fs::create_dir_all(tmp.join(name)).unwrap();
            fs::write(tmp.join(name).join("x"), "x").unwrap();
            fs::File::open(tmp.join(name)).unwrap().set_modified(old).unwrap();
        }
        for name in [
            "kubeadm-backup-etcd-2026-03-01-10-00-00",
            "kubeadm-backup-manifests-2026-03-01-10-00-00",
            "notes-of-an-admin",
        ] {
            fs::create_dir_all(tmp.join(name)).unwrap();
        }
        assert_eq!(find(&site)["kubeadm-backup-etcd-"].len(), 2);
        prune(&site, KEPT, false);
        let left = find(&site);
        assert_eq!((left["kubeadm-backup-etcd-"].len(), left[MANIFESTS].len()), (1, 2));
        prune(&site, KEPT, true);
        let mut left: Vec<String> = fs::read_dir(&tmp)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "kubeadm-backup-etcd-2026-03-01-10-00-00",
                "kubeadm-backup-manifests-2026-03-01-10-00-00",
                "kubeadm-kubelet-config100",
                "notes-of-an-admin",
            ]
        );
    }

    #[test]
    fn the_copy_of_etcd_is_as_large_as_its_data() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("etcd");
        assert_eq!(bytes_of(&data), 0);
        fs::create_dir_all(data.join("member/snap")).unwrap();
        fs::write(data.join("member/snap/db"), vec![0; 5000]).unwrap();
        assert_eq!(bytes_of(&data), 5000);
    }
}
