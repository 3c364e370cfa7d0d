//! Room for an update, in each directory that it writes to.
//!
//! `/var`, etcd's disk and the image store are often file systems of their own. Each directory is judged
//! by the file system that holds it, and directories on the same file system share its room.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use refit_kinds::refit::PackageDriver;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::{backups, manifest::LocalEtcd};
use crate::host::{
    Site,
    packages::{self, TARBALLS, UNPACKED},
    work::WorkError,
};

const MIB: u64 = 1 << 20;
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
const CONTAINERD_ROOT: &str = "/var/lib/containerd";
const CRIO_ROOT: &str = "/var/lib/containers";
/// `f_type` of btrfs.
const BTRFS: i64 = 0x9123_683E;

/// What an update needs in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    directory: PathBuf,
    bytes: u64,
    /// Files and directories that it creates.
    inodes: u64,
}

/// The file system that holds a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Volume {
    /// The same for all directories that share its room.
    id: u64,
    free: u64,
    /// Free inodes; `None` if the file system has no limit.
    inodes: Option<u64>,
}

/// Checks that each file system has room for what an update writes to it.
pub(super) fn check(site: &Site, etcd: Option<&LocalEtcd>) -> Result<(), WorkError> {
    let copy = etcd.map_or(0, |etcd| backups::bytes_of(&site.path(&etcd.data.host)));
    let images = image_store(&site.read(CONTAINERD_CONFIG), |path| site.path(path).is_dir());
    let needs = needs(site.state(), images, etcd.map(|etcd| etcd.data.host.as_path()), copy);
    let mut found = Vec::new();
    for need in of_packages(site.state(), packages::detect(site)).into_iter().chain(needs) {
        let path = site.path(&need.directory);
        let volume = volume(&path).map_err(|error| WorkError::file(&path, &error))?;
        found.push((need, volume));
    }
    shortage(&found).map_or(Ok(()), |message| Err(WorkError::needs_person(message)))
}

/// The directories that an update writes to. `copy` is the size of etcd's data, of which there are up to
/// three copies: Refit's snapshot, the file that etcd's container writes before it is copied out, and
/// kubeadm's own (`docs/facts/kubeadm.md#backups-of-kubeadm`).
fn needs(state: &Path, images: PathBuf, etcd: Option<&Path>, copy: u64) -> Vec<Need> {
    let need = |directory: &str, bytes, inodes| Need { directory: directory.into(), bytes, inodes };
    let mut needs = vec![
        Need { directory: state.to_owned(), bytes: 256 * MIB + copy, inodes: 1000 },
        Need { directory: images, bytes: 960 * MIB, inodes: 10_000 },
        need("/var/lib/kubelet", 64 * MIB, 1000),
        need("/etc/kubernetes/tmp", copy, 100),
    ];
    needs.extend(etcd.map(|data| Need { directory: data.to_owned(), bytes: copy, inodes: 10 }));
    needs
}

/// What the packages of Kubernetes need, or a tarball with the programs of a node.
fn of_packages(state: &Path, driver: Option<PackageDriver>) -> [Need; 2] {
    let need = |directory, bytes, inodes| Need { directory, bytes, inodes };
    if driver == Some(PackageDriver::Tarball) {
        let (downloads, unpacked) = (state.join(TARBALLS), UNPACKED.into());
        [need(downloads, 256 * MIB, 10), need(unpacked, 512 * MIB, 100)]
    } else {
        [need("/var/cache".into(), 512 * MIB, 100), need("/usr".into(), 256 * MIB, 1000)]
    }
}

/// The directory in which the container runtime keeps images.
fn image_store(config: &str, is_dir: impl Fn(&str) -> bool) -> PathBuf {
    let config: toml::Table = config.parse().unwrap_or_default();
    let root = config.get("root").and_then(toml::Value::as_str).unwrap_or(CONTAINERD_ROOT);
    if !is_dir(root) && is_dir(CRIO_ROOT) { CRIO_ROOT.into() } else { root.into() }
}

/// The file system of a directory. One that does not exist yet will be on that of its parent.
fn volume(directory: &Path) -> io::Result<Volume> {
    let mut path = directory;
    let metadata = loop {
        match (fs::metadata(path), path.parent()) {
            (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => path = parent,
            (outcome, _) => break outcome?,
        }
    };
    let found = statvfs(path)?;
    // Nothing is written to a read-only file system, such as `/usr` of an OS image: it is always full.
    let writable = !found.f_flag.contains(StatVfsMountFlags::RDONLY);
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    Ok(Volume {
        id: identity(statfs(path)?.f_type == BTRFS, found.f_fsid, metadata.dev()),
        free: if writable { free } else { u64::MAX },
        inodes: (writable && found.f_files > 0).then_some(found.f_favail),
    })
}

/// What identifies a file system. Each subvolume of btrfs has a device and an `f_fsid` of its own, which differ only in
/// the second half of the latter (`docs/facts/hosts.md#file-systems`).
fn identity(is_btrfs: bool, f_fsid: u64, device: u64) -> u64 {
    if is_btrfs { f_fsid & u64::from(u32::MAX) } else { device }
}

/// The first file system that has too little room, as a whole sentence.
fn shortage(found: &[(Need, Volume)]) -> Option<String> {
    let mut shares: BTreeMap<u64, (Volume, Vec<&Need>)> = BTreeMap::new();
    for (need, volume) in found {
        shares.entry(volume.id).or_insert((*volume, Vec::new())).1.push(need);
    }
    shares.into_values().find_map(|(volume, needs)| {
        let bytes = needs.iter().map(|need| need.bytes).fold(0, u64::saturating_add);
        let inodes: u64 = needs.iter().map(|need| need.inodes).sum();
        let lack = if volume.free < bytes {
            format!("{} MiB free and needs {} MiB", volume.free / MIB, bytes.div_ceil(MIB))
        } else {
            let free = volume.inodes.filter(|free| *free < inodes)?;
            format!("{free} inodes free and needs {inodes}")
        };
        let names: Vec<String> =
            needs.iter().map(|need| need.directory.display().to_string()).collect();
        Some(format!(
            "the file system of {} has {lack}, including the snapshot and kubeadm's copy of etcd's \
             data; free some space, as the update would fail with: No space left on device",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::FailureKind;

    use super::*;

    const PLENTY: u64 = 100 << 30;

    /// The needs of a control plane with 1 GiB of data, on these file systems: prefix of the path and
    /// free bytes, the most special one first.
    fn judge(volumes: &[(&str, u64)], inodes: Option<u64>) -> Option<String> {
        let etcd = Path::new("/var/lib/etcddisk/etcd");
        let state = Path::new("/var/lib/refit-agent");
        let needs = needs(state, CONTAINERD_ROOT.into(), Some(etcd), 1 << 30);
        let found: Vec<(Need, Volume)> = needs
            .into_iter()
            .chain(of_packages(state, None))
            .map(|need| {
                let at = volumes.iter().position(|(path, _)| need.directory.starts_with(path));
                let at = at.unwrap();
                let volume = Volume { id: at as u64, free: volumes[at].1, inodes };
                (need, volume)
            })
            .collect();
        shortage(&found)
    }

    #[test]
    fn each_file_system_needs_room_for_what_is_written_to_it() {
        let five = 5 << 30;
        for (volumes, lack) in [
            (&[("/", five)][..], None),
            (&[("/", five - 1)], Some("5119 MiB free and needs 5120 MiB")),
            // A small root with much room elsewhere: kubeadm's copy and binaries are there.
            (&[("/var", PLENTY), ("/", five / 4)], None),
            (&[("/var", PLENTY), ("/", 1 << 30)], Some("1024 MiB free and needs 1280 MiB")),
            (&[("/var", 1 << 30), ("/", PLENTY)], Some("1024 MiB free and needs 3840 MiB")),
            (
                &[("/var/lib/etcddisk", 1 << 20), ("/", PLENTY)],
                Some("/var/lib/etcddisk/etcd has 1 MiB free and needs 1024 MiB"),
            ),
            (
                &[("/var/lib/containerd", 0), ("/", PLENTY)],
                Some("of /var/lib/containerd has 0 MiB free and needs 960 MiB"),
            ),
        ] {
            let found = judge(volumes, None);
            assert_eq!(found.is_some(), lack.is_some(), "{volumes:?} {found:?}");
            let found = found.unwrap_or_default();
            assert!(found.contains(lack.unwrap_or_default()), "{volumes:?} {found}");
        }
    }

    #[test]
    fn a_file_system_without_free_inodes_has_no_room() {
        let found = judge(&[("/", PLENTY)], Some(13_209)).unwrap();
        assert!(found.contains("13209 inodes free and needs 13210"), "{found}");
        assert_eq!(judge(&[("/", PLENTY)], Some(13_210)), None);
    }

    #[test]
    fn a_worker_needs_no_room_for_etcd() {
        let mut needs = needs(Path::new("/state"), CONTAINERD_ROOT.into(), None, 0);
        needs.extend(of_packages(Path::new("/state"), None));
        assert_eq!(needs.iter().map(|need| need.bytes).sum::<u64>(), 2 << 30);
    }

    #[test]
    fn a_host_with_tarballs_needs_room_where_they_are_downloaded_and_unpacked() {
        let directories = |driver| {
            let needs = of_packages(Path::new("/state"), driver);
            needs.map(|need| need.directory.display().to_string())
        };
        let unpacked = ["/state/tarballs", "/opt/refit/kubernetes"];
        assert_eq!(directories(Some(PackageDriver::Tarball)), unpacked);
        for driver in [None, Some(PackageDriver::Apt), Some(PackageDriver::Dnf)] {
            assert_eq!(directories(driver), ["/var/cache", "/usr"]);
        }
    }

    #[test]
    fn subvolumes_of_btrfs_share_their_room_and_other_devices_do_not() {
        // As seen on one file system: itself and a subvolume.
        let (whole, part) = ((0xd8e6_a2ac_740b_898b, 189), (0xd8e6_a3a9_740b_898b, 190));
        let id = |is_btrfs, (f_fsid, device)| identity(is_btrfs, f_fsid, device);
        assert_eq!(id(true, whole), id(true, part));
        assert_ne!(id(true, whole), id(true, (0xd8e6_a2ac_740b_898c, 191)));
        assert_ne!(id(false, whole), id(false, part));
    }

    #[test]
    fn the_image_store_is_where_the_runtime_has_it() {
        let none = |_: &str| false;
        assert_eq!(image_store("", none), Path::new(CONTAINERD_ROOT));
        assert_eq!(image_store("version = 2\nroot = \"/data/c\"\n", none), Path::new("/data/c"));
        assert_eq!(image_store("not toml", none), Path::new(CONTAINERD_ROOT));
        assert_eq!(image_store("", |path| path == CRIO_ROOT), Path::new(CRIO_ROOT));
        assert_eq!(image_store("", |_| true), Path::new(CONTAINERD_ROOT));
    }

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        let own = volume(directory.path()).unwrap().id;
        assert_eq!(volume(&directory.path().join("a/b/c")).unwrap().id, own);
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        volume(&file.join("x")).unwrap_err();
    }

    #[test]
    fn a_host_without_room_for_etcds_copy_is_for_a_person() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let data = site.path("/var/lib/etcd/member");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir_all(site.path(super::super::MANIFESTS)).unwrap();
        let manifest = site.path(super::super::MANIFESTS).join("etcd.yaml");
        fs::write(manifest, "spec: {containers: [{name: etcd}]}").unwrap();
        // Larger than any disk, and without a block of its own.
        fs::File::create(data.join("db")).unwrap().set_len(1 << 43).unwrap();
        let etcd = LocalEtcd::of(&site).unwrap();
        let error = check(&site, etcd.as_ref()).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains("/var/lib/etcd has "), "{error}");
        assert!(error.message.contains("No space left on device"), "{error}");
    }
}
