//! The location of a file: its name, and its directory held open, so that the directory cannot be
//! exchanged.
//!
//! A directory that other users may write to can hold links that redirect root, and can be
//! exchanged at any moment. Each directory of a path is therefore opened separately. Links in a
//! directory that not only root can write to are not followed, and operations use descriptors.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, Permissions},
    io::{self, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt as _, fchown},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, symlinkat,
        unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use super::atomic::Access;

/// Permission bit: other users may write.
const OTHERS_WRITE: u32 = 0o002;

/// A directory, held open.
pub(super) struct Directory {
    fd: OwnedFd,
    /// Whether only root, or the user of this process, can create links in it.
    trusted: bool,
}

impl Directory {
    /// Opens a directory. If `make`, creates missing directories of the path.
    pub(super) fn open(path: &Path, make: bool) -> io::Result<Self> {
        let start = if path.is_absolute() { "/" } else { "." };
        let fd = openat(CWD, start, FLAGS, Mode::empty())?;
        let mut directory = Self::of(fd)?;
        for part in path.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::ParentDir => OsStr::new(".."),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            };
            directory = directory.enter(name, make)?;
        }
        Ok(directory)
    }

    fn of(fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        let own = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
        Ok(Self { fd, trusted: own && stat.st_mode & OTHERS_WRITE == 0 })
    }

    fn enter(&self, name: &OsStr, make: bool) -> io::Result<Self> {
        let follow = if self.trusted { OFlags::empty() } else { OFlags::NOFOLLOW };
        let open = || openat(&self.fd, name, FLAGS | follow, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) if make => {
                match mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => open()?,
                    Err(error) => return Err(error.into()),
                }
            }
            other => other?,
        };
        Self::of(fd)
    }

    fn is_link(&self, name: &OsStr) -> bool {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// The directory, opened for syncing and changing its owner, which the `O_PATH` descriptor does
    /// not allow.
    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.fd, ".", flags, Mode::empty())?.into())
    }

    /// Sets the owner and the permissions of the directory.
    pub(super) fn own(&self, access: Access) -> io::Result<()> {
        let file = self.file()?;
        own(&file, access)
    }
}

/// Flags for opening the directories of a path: search permission is enough.
const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn own(file: &File, access: Access) -> io::Result<()> {
    // Called only if an owner is set: the sandbox of the agent's own service blocks it.
    if access.uid.is_some() || access.gid.is_some() {
        fchown(file, access.uid, access.gid)?;
    }
    file.set_permissions(Permissions::from_mode(access.mode))
}

/// A name in a directory.
pub(super) struct Place {
    directory: Directory,
    name: OsString,
}

impl Place {
    /// The place that a write to `path` changes. A link in a directory of root is followed, so that
    /// the link stays.
    pub(super) fn of(path: &Path, make: bool) -> io::Result<Self> {
        let place = Self::itself(path, make)?;
        match place.target(path) {
            Some(target) => Self::itself(&target, make),
            None => Ok(place),
        }
    }

    /// The place of `path` itself, even if it is a link.
    pub(super) fn itself(path: &Path, make: bool) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok(Self { directory: Directory::open(parent, make)?, name: name.to_owned() })
    }

    /// The target of a link that may be followed; `None` if this is not a link, or the target does
    /// not exist.
    pub(super) fn target(&self, path: &Path) -> Option<PathBuf> {
        if self.directory.trusted && self.directory.is_link(&self.name) {
            fs::canonicalize(path).ok()
        } else {
            None
        }
    }

    /// Opens the regular file.
    pub(super) fn open(&self) -> io::Result<Option<(File, Metadata)>> {
        // Non-blocking: opening a FIFO must fail and not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match openat(&self.directory.fd, &self.name, flags, Mode::empty()) {
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

    /// Reads the regular file.
    pub(super) fn read(&self) -> io::Result<Option<(Vec<u8>, Metadata)>> {
        let Some((mut file, metadata)) = self.open()? else {
            return Ok(None);
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(Some((content, metadata)))
    }

    /// Writes the file, durably and atomically.
    pub(super) fn write(&self, content: &[u8], access: Access) -> io::Result<()> {
        let new = self.temporary_name();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = unlinkat(&self.directory.fd, &new, AtFlags::empty());
        let closed = Mode::from_raw_mode(0o600);
        let mut file: File = openat(&self.directory.fd, &new, flags, closed)?.into();
        let written = file
            .write_all(content)
            .and_then(|()| own(&file, access))
            .and_then(|()| file.sync_all());
        self.rename_into_place(&new, written)
    }

    /// Makes this a link to `target`, durably and atomically.
    pub(super) fn link(&self, target: &Path) -> io::Result<()> {
        let new = self.temporary_name();
        let _ = unlinkat(&self.directory.fd, &new, AtFlags::empty());
        let made = symlinkat(target, &self.directory.fd, &new);
        self.rename_into_place(&new, made.map_err(io::Error::from))
    }

    fn rename_into_place(&self, new: &OsStr, made: io::Result<()>) -> io::Result<()> {
        let fd = &self.directory.fd;
        let moved = made.and_then(|()| Ok(renameat(fd, new, fd, &self.name)?));
        if let Err(error) = moved {
            let _ = unlinkat(fd, new, AtFlags::empty());
            return Err(error);
        }
        self.directory.file()?.sync_all()
    }

    /// Removes the file or link, durably, if it exists.
    pub(super) fn remove(&self) -> io::Result<()> {
        match unlinkat(&self.directory.fd, &self.name, AtFlags::empty()) {
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
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};

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
        atomic::replace(&home.join("keys"), b"mine", Access::of_mode(0o600)).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
        assert_eq!(fs::read_to_string(home.join("keys")).unwrap(), "mine");
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
    fn a_world_writable_directory_is_untrusted() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("tmp");
        fs::create_dir(&open).unwrap();
        let (there, by) = (directory.path().join("there"), open.join("by"));
        fs::write(&there, "old").unwrap();
        symlink(&there, &by).unwrap();
        assert_eq!(atomic::read(&by).unwrap().unwrap().0, b"old");
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        assert!(atomic::read(&by).is_err());
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
