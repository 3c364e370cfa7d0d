//! Atomic replacement of files: after a crash a file has its old or its new content.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{place::Place, walk::Directory};
use crate::host::work::WorkError;

/// Permissions and ownership of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Permission bits.
    pub mode: u32,
    /// Owner; `None` for the owner of the process.
    pub uid: Option<u32>,
    /// Group; `None` for the group of the process.
    pub gid: Option<u32>,
}

impl Access {
    /// These permission bits, with the owner of the agent: root.
    pub(crate) fn of_mode(mode: u32) -> Self {
        Self { mode, uid: None, gid: None }
    }

    /// The access of the file at `path`, or `mode` if the file does not exist.
    pub(crate) fn like(path: &Path, mode: u32) -> Self {
        let found = Place::of(path, false).and_then(|place| place.open());
        found.ok().flatten().map_or_else(|| Self::of_mode(mode), |(_, file)| Self::of(&file))
    }

    /// The access of a file.
    pub(crate) fn of(file: &Metadata) -> Self {
        Self { mode: file.mode() & 0o7777, uid: Some(file.uid()), gid: Some(file.gid()) }
    }

    fn holds(&self, file: &Metadata) -> bool {
        file.mode() & 0o7777 == self.mode
            && self.uid.is_none_or(|uid| file.uid() == uid)
            && self.gid.is_none_or(|gid| file.gid() == gid)
    }
}

/// Whether a file exists with this content and access.
pub(crate) fn is(path: &Path, content: &[u8], access: Access) -> bool {
    let same = |place: &Place| {
        let (_, file) = place.open().ok()??;
        let so_far = file.len() == content.len() as u64 && access.holds(&file);
        so_far.then(|| place.read().ok()?).flatten()
    };
    let found = Place::of(path, false).ok();
    found.and_then(|place| same(&place)).is_some_and(|(found, _)| found == content)
}

/// The content and metadata of a regular file; `None` if the file does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<(Vec<u8>, Metadata)>, WorkError> {
    match Place::of(path, false).and_then(|place| place.read()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map_err(|error| WorkError::file(path, &error)),
    }
}

/// Replaces a file, durably, unless it is unchanged. Creates missing parent directories. Returns
/// whether the file was written.
///
/// The content is never readable by users who may not read the final file. If `path` is a symbolic
/// link of root, the link stays and its target changes; a link that other users can change is an
/// error.
pub(crate) fn replace(path: &Path, content: &[u8], access: Access) -> Result<bool, WorkError> {
    if is(path, content, access) {
        return Ok(false);
    }
    Place::of(path, true)
        .and_then(|place| place.write(content, access))
        .map(|()| true)
        .map_err(|error| WorkError::file(path, &error))
}

/// The file that [`replace`] would write: the target, if `path` is a link.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let target = Place::target(path).ok().flatten();
    target.map_or_else(|| path.to_owned(), |target| target.path())
}

/// Points a symbolic link to `target`, durably and atomically.
pub(crate) fn link(path: &Path, target: &Path) -> Result<(), WorkError> {
    Place::itself(path, true)
        .and_then(|place| place.link(target))
        .map_err(|error| WorkError::file(path, &error))
}

/// Removes a file or a link, durably, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), WorkError> {
    match Place::itself(path, false).and_then(|place| place.remove()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| WorkError::file(path, &error)),
    }
}

/// Sets the owner and the permissions of a directory.
pub(crate) fn own_directory(path: &Path, access: Access) -> Result<(), WorkError> {
    Directory::open(path, false)
        .and_then(|directory| directory.own(access))
        .map_err(|error| WorkError::file(path, &error))
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn an_unchanged_file_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b.conf");
        let access = Access::of_mode(0o640);
        assert!(replace(&path, b"x", access).unwrap());
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.mode() & 0o777, 0o640);
        assert!(!replace(&path, b"x", access).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert!(replace(&path, b"x", Access::of_mode(0o600)).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_to_a_file_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (file, by) = (directory.path().join("file"), directory.path().join("by"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &by).unwrap();
        replace(&by, b"new", Access::of_mode(0o644)).unwrap();
        assert!(fs::symlink_metadata(&by).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn a_link_replaces_a_file_or_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let by = directory.path().join("by");
        fs::write(&by, "a binary").unwrap();
        link(&by, Path::new("/store/v1/kubeadm")).unwrap();
        link(&by, Path::new("/store/v2/kubeadm")).unwrap();
        assert_eq!(fs::read_link(&by).unwrap(), Path::new("/store/v2/kubeadm"));
    }

    #[test]
    fn removing_a_missing_file_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        remove(&directory.path().join("none")).unwrap();
    }
}
