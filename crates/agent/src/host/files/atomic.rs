//! A file that is replaced whole: after a crash it is the old one or the new one.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::place::{Folder, Place};
use crate::host::work::WorkError;

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Permission bits.
    pub mode: u32,
    /// Owner, or as it comes.
    pub uid: Option<u32>,
    /// Group, or as it comes.
    pub gid: Option<u32>,
}

impl Access {
    /// These permission bits, owned by whoever the agent is: root.
    pub(crate) fn of_mode(mode: u32) -> Self {
        Self { mode, uid: None, gid: None }
    }

    /// As the file at `path` has it, whoever wrote it; `mode` for one that is not there.
    pub(crate) fn like(path: &Path, mode: u32) -> Self {
        fs::metadata(path).map_or_else(|_| Self::of_mode(mode), |file| Self::of(&file))
    }

    /// As a file has it.
    pub(crate) fn of(file: &Metadata) -> Self {
        Self { mode: file.mode() & 0o7777, uid: Some(file.uid()), gid: Some(file.gid()) }
    }

    fn holds(&self, file: &Metadata) -> bool {
        file.mode() & 0o7777 == self.mode
            && self.uid.is_none_or(|uid| file.uid() == uid)
            && self.gid.is_none_or(|gid| file.gid() == gid)
    }
}

/// Whether a file is there with this content and access.
pub(crate) fn is(path: &Path, content: &[u8], access: Access) -> bool {
    let same = |place: &Place| {
        let (_, file) = place.open().ok()??;
        let so_far = file.len() == content.len() as u64 && access.holds(&file);
        so_far.then(|| place.read().ok()?).flatten()
    };
    let found = Place::of(path, false).ok();
    found.and_then(|place| same(&place)).is_some_and(|(found, _)| found == content)
}

/// The content of a plain file and what else is known of it; none where there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<(Vec<u8>, Metadata)>, WorkError> {
    match Place::of(path, false).and_then(|place| place.read()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map_err(|error| WorkError::file(path, &error)),
    }
}

/// Replaces a file, durably, unless it is that already; folders above it are made. Says whether it
/// wrote.
///
/// The content is never readable by more than may read the end result. A symbolic link stays, and
/// its file changes; but none is followed in a folder that others may write to.
pub(crate) fn replace(path: &Path, content: &[u8], access: Access) -> Result<bool, WorkError> {
    if is(path, content, access) {
        return Ok(false);
    }
    Place::of(path, true)
        .and_then(|place| place.write(content, access))
        .map(|()| true)
        .map_err(|error| WorkError::file(path, &error))
}

/// The file that [`replace`] would write: another than `path` where that is a link.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let place = Place::itself(path, false).ok();
    let target = place.and_then(|place| place.target(path));
    target.unwrap_or_else(|| path.to_owned())
}

/// Points a symbolic link to `target`, durably and without a moment in which there is none.
pub(crate) fn link(path: &Path, target: &Path) -> Result<(), WorkError> {
    Place::itself(path, true)
        .and_then(|place| place.link(target))
        .map_err(|error| WorkError::file(path, &error))
}

/// Removes a file or a link, durably, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), WorkError> {
    match Place::itself(path, false).and_then(|place| place.remove()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| WorkError::file(path, &error)),
    }
}

/// Gives a folder its owner and its permissions.
pub(crate) fn own_folder(path: &Path, access: Access) -> Result<(), WorkError> {
    Folder::open(path, false)
        .and_then(|folder| folder.own(access))
        .map_err(|error| WorkError::file(path, &error))
}

/// Makes what is in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_that_is_as_wanted_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.conf");
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
        let folder = tempfile::tempdir().unwrap();
        let (file, by) = (folder.path().join("file"), folder.path().join("by"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &by).unwrap();
        replace(&by, b"new", Access::of_mode(0o644)).unwrap();
        assert!(fs::symlink_metadata(&by).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn a_link_is_switched_even_over_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let by = folder.path().join("by");
        fs::write(&by, "a binary").unwrap();
        link(&by, Path::new("/store/v1/kubeadm")).unwrap();
        link(&by, Path::new("/store/v2/kubeadm")).unwrap();
        assert_eq!(fs::read_link(&by).unwrap(), Path::new("/store/v2/kubeadm"));
    }

    #[test]
    fn what_is_gone_is_removed_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        remove(&folder.path().join("none")).unwrap();
    }
}
