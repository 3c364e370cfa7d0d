//! The location of a file: its name, and its directory held open, so that the directory cannot be
//! exchanged (`walk`). Operations use the descriptor of the directory.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Metadata},
    io::{self, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, openat, renameat, symlinkat, unlinkat},
    io::Errno,
};

use super::{
    MOST_BYTES,
    atomic::Access,
    walk::{Directory, UnsafeFile, Walk, own},
};

/// A name in a directory.
pub(super) struct Place {
    directory: Directory,
    name: OsString,
}

impl Place {
    /// The place that a write to `path` changes. A link of root is followed, so that the link stays;
    /// any other link is an error.
    pub(super) fn of(path: &Path, make: bool) -> io::Result<Self> {
        match Self::target(path)? {
            Some(target) => Ok(target),
            None => Self::itself(path, make),
        }
    }

    /// The place of `path` itself, even if it is a link.
    pub(super) fn itself(path: &Path, make: bool) -> io::Result<Self> {
        let (directory, name) = Walk::new(path, make)?.into_parent()?;
        Ok(Self { directory, name })
    }

    /// The place that `path` leads to; `None` if it is not a link, or the target does not exist.
    pub(super) fn target(path: &Path) -> io::Result<Option<Self>> {
        let target = Walk::new(path, false)?.into_target()?;
        Ok(target.map(|(directory, name)| Self { directory, name }))
    }

    /// The path without links.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Opens the regular file.
    pub(super) fn open(&self) -> io::Result<Option<(File, Metadata)>> {
        // Non-blocking: opening a FIFO must fail and not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match openat(self.directory.fd(), &self.name, flags, Mode::empty()) {
            Ok(fd) => fd.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if metadata.is_file() {
            Ok(Some((file, metadata)))
        } else {
            Err(io::Error::other("not a regular file"))
        }
    }

    /// Reads the regular file. Where other users can create files, one of another name or of any size may be theirs.
    pub(super) fn read(&self) -> io::Result<Option<(Vec<u8>, Metadata)>> {
        let Some((mut file, metadata)) = self.open()? else {
            return Ok(None);
        };
        let mut content = Vec::new();
        if self.directory.is_trusted() {
            file.read_to_end(&mut content)?;
            return Ok(Some((content, metadata)));
        }
        if metadata.nlink() > 1 {
            return Err(io::Error::other(UnsafeFile::SecondName(self.path())));
        }
        let read = file.take(MOST_BYTES + 1).read_to_end(&mut content)?;
        if read as u64 > MOST_BYTES {
            return Err(io::Error::other(UnsafeFile::TooLarge(self.path())));
        }
        Ok(Some((content, metadata)))
    }

    /// Writes the file, durably and atomically.
    pub(super) fn write(&self, content: &[u8], access: Access) -> io::Result<()> {
        let new = self.temporary_name();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = unlinkat(self.directory.fd(), &new, AtFlags::empty());
        let closed = Mode::from_raw_mode(0o600);
        let mut file: File = openat(self.directory.fd(), &new, flags, closed)?.into();
        let written = file
            .write_all(content)
            .and_then(|()| own(&file, access))
            .and_then(|()| file.sync_all());
        self.rename_into_place(&new, written)
    }

    /// Makes this a link to `target`, durably and atomically.
    pub(super) fn link(&self, target: &Path) -> io::Result<()> {
        let new = self.temporary_name();
        let _ = unlinkat(self.directory.fd(), &new, AtFlags::empty());
        let made = symlinkat(target, self.directory.fd(), &new);
        self.rename_into_place(&new, made.map_err(io::Error::from))
    }

    fn rename_into_place(&self, new: &OsStr, made: io::Result<()>) -> io::Result<()> {
        let fd = self.directory.fd();
        let moved = made.and_then(|()| Ok(renameat(fd, new, fd, &self.name)?));
        if let Err(error) = moved {
            let _ = unlinkat(fd, new, AtFlags::empty());
            return Err(error);
        }
        self.directory.file()?.sync_all()
    }

    /// Removes the file or link, durably, if it exists.
    pub(super) fn remove(&self) -> io::Result<()> {
        match unlinkat(self.directory.fd(), &self.name, AtFlags::empty()) {
            Ok(()) => self.directory.file()?.sync_all(),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn temporary_name(&self) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(".refit-new");
        name
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, chown, symlink},
    };

    use refit_kinds::refit::FailureKind;

    use super::*;
    use crate::host::files::atomic;

    /// A user who is neither root nor the user who runs the tests.
    const OTHER_USER: u32 = 12_345;

    /// A directory of another user; `None` if the tests are not allowed to create one.
    fn foreign_directory() -> Option<(tempfile::TempDir, PathBuf)> {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(OTHER_USER), Some(OTHER_USER)).ok()?;
        Some((directory, home))
    }

    #[test]
    fn links_in_an_untrusted_directory_are_not_followed() {
        let Some((directory, home)) = foreign_directory() else {
            return;
        };
        let secret = directory.path().join("shadow");
        fs::write(&secret, "root's").unwrap();
        symlink(&secret, home.join("keys")).unwrap();
        assert!(atomic::read(&home.join("keys")).is_err());
        assert!(!atomic::is(&home.join("keys"), b"root's", Access::of_mode(0o644)));
        let error = atomic::replace(&home.join("keys"), b"mine", Access::of_mode(0o600));
        let error = error.unwrap_err().message;
        assert!(error.contains("home/keys is a symbolic link that other users"), "{error}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
        // The link itself can be removed.
        atomic::remove(&home.join("keys")).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
        // Links to directories are not followed either.
        let etc = directory.path().join("etc");
        fs::create_dir(&etc).unwrap();
        symlink(&etc, home.join(".ssh")).unwrap();
        let through = home.join(".ssh/authorized_keys");
        assert!(atomic::replace(&through, b"key", Access::of_mode(0o600)).is_err());
        assert!(atomic::remove(&through).is_err());
        assert!(Directory::open(&home.join(".ssh"), true).is_err());
        assert_eq!(fs::read_dir(&etc).unwrap().count(), 0);
    }

    #[test]
    fn files_that_may_be_anything_are_not_read_from_an_untrusted_directory() {
        let Some((directory, home)) = foreign_directory() else {
            return;
        };
        let keys = home.join("authorized_keys");
        fs::File::create(&keys).unwrap().set_len(MOST_BYTES + 1).unwrap();
        let error = atomic::read(&keys).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains("home/authorized_keys has more than 16 MiB"), "{error}");
        fs::remove_file(&keys).unwrap();
        let secret = directory.path().join("shadow");
        fs::write(&secret, "root's").unwrap();
        fs::hard_link(&secret, &keys).unwrap();
        let error = atomic::read(&keys).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(error.message.contains("home/authorized_keys has a second name"), "{error}");
        assert!(atomic::read(&secret).is_ok(), "in a directory of root");
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_untrusted() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("tmp");
        fs::create_dir(&open).unwrap();
        let (there, by) = (directory.path().join("there"), open.join("by"));
        fs::write(&there, "old").unwrap();
        symlink(&there, &by).unwrap();
        for (mode, trusted) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false)] {
            fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            assert_eq!(atomic::read(&by).is_ok(), trusted, "{mode:o}");
        }
    }

    #[test]
    fn a_new_file_gets_its_owner() {
        let Some((directory, _)) = foreign_directory() else { return };
        let access = Access { mode: 0o4750, uid: Some(OTHER_USER), gid: Some(OTHER_USER) };
        let path = directory.path().join("deep/program");
        atomic::replace(&path, b"x", access).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (OTHER_USER, OTHER_USER));
        assert_eq!(found.mode() & 0o7777, 0o4750);
        assert_eq!(Access::like(&path, 0o644), access);
    }
}
