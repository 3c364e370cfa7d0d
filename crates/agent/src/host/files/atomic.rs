//! A file that is replaced whole: after a crash it is the old one or the new one.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
};

use crate::host::work::WorkError;

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Permission bits.
    pub mode: u32,
    /// Owner, or as it comes.
    pub uid: Option<u32>,
    /// Group, or as it comes.
    pub gid: Option<u32>,
}

impl Access {
    /// These permission bits, owned by whoever the agent is: root.
    pub fn of_mode(mode: u32) -> Self {
        Self {
            mode,
            uid: None,
            gid: None,
        }
    }

    fn holds(&self, file: &fs::Metadata) -> bool {
        file.mode() & 0o7777 == self.mode
            && self.uid.is_none_or(|uid| file.uid() == uid)
            && self.gid.is_none_or(|gid| file.gid() == gid)
    }
}

/// Whether a file is there with this content and access.
pub fn is(path: &Path, content: &[u8], access: Access) -> bool {
    fs::metadata(path).is_ok_and(|file| {
        file.is_file() && file.len() == content.len() as u64 && access.holds(&file)
    }) && fs::read(path).is_ok_and(|found| found == content)
}

/// Replaces a file, durably, unless it is that already; folders above it are made. Says whether it
/// wrote.
///
/// The content is never readable by more than may read the end result.
pub fn replace(path: &Path, content: &[u8], access: Access) -> Result<bool, WorkError> {
    // Through a symbolic link, as an editor would: the link stays.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if is(path, content, access) {
        return Ok(false);
    }
    write(path, content, access)
        .map(|()| true)
        .map_err(|error| WorkError::file(path, &error))
}

fn write(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let temporary = beside(path);
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    let outcome = file
        .write_all(content)
        .and_then(|()| own(&temporary, access))
        .and_then(|()| file.set_permissions(Permissions::from_mode(access.mode)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = outcome {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder(folder)
}

/// Asks for an owner only where one is wanted: the agent's own service may not make that call.
fn own(path: &Path, access: Access) -> io::Result<()> {
    if access.uid.is_none() && access.gid.is_none() {
        return Ok(());
    }
    chown(path, access.uid, access.gid)
}

/// Points a symbolic link to `target`, durably and without a moment in which there is none.
pub fn link(path: &Path, target: &Path) -> Result<(), WorkError> {
    let point = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let temporary = beside(path);
        let _ = fs::remove_file(&temporary);
        symlink(target, &temporary)?;
        fs::rename(&temporary, path)?;
        sync_folder(folder)
    };
    point().map_err(|error| WorkError::file(path, &error))
}

/// Removes a file, durably, if it is there.
pub fn remove(path: &Path) -> Result<(), WorkError> {
    match fs::remove_file(path) {
        Ok(()) => path
            .parent()
            .map_or(Ok(()), sync_folder)
            .map_err(|error| WorkError::file(path, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(WorkError::file(path, &error)),
    }
}

/// Makes what is in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.refit-new"))
}

#[cfg(test)]
mod tests {
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
