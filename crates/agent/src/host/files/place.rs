//! Where a file is: its folder held open, so that nobody can put another folder in its place.
//!
//! A folder that others may write to can hold links that would lead root elsewhere, and can be
//! exchanged at any moment. So each folder on the way is opened by itself; from one that is not
//! root's alone no link is followed, and what is done there is done by descriptor.

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

/// Others may write to it.
const OTHERS_WRITE: u32 = 0o002;

/// A folder, held open.
pub(super) struct Folder {
    fd: OwnedFd,
    /// Whether only root, or whoever this is, makes links in it.
    trusted: bool,
}

impl Folder {
    /// Opens a folder; makes what is missing on the way if `make`.
    pub(super) fn open(path: &Path, make: bool) -> io::Result<Self> {
        let start = if path.is_absolute() { "/" } else { "." };
        let fd = openat(CWD, start, FLAGS, Mode::empty())?;
        let mut folder = Self::of(fd)?;
        for part in path.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::ParentDir => OsStr::new(".."),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            };
            folder = folder.enter(name, make)?;
        }
        Ok(folder)
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

    /// The folder as something that can be synced and owned: the descriptor that leads there cannot.
    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.fd, ".", flags, Mode::empty())?.into())
    }

    /// Gives the folder its owner and its permissions.
    pub(super) fn own(&self, access: Access) -> io::Result<()> {
        let file = self.file()?;
        own(&file, access)
    }
}

/// How folders on the way are opened: search permission is enough.
const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn own(file: &File, access: Access) -> io::Result<()> {
    // Only where an owner is wanted: the agent's own service may not make that call.
    if access.uid.is_some() || access.gid.is_some() {
        fchown(file, access.uid, access.gid)?;
    }
    file.set_permissions(Permissions::from_mode(access.mode))
}

/// A name in a folder.
pub(super) struct Place {
    folder: Folder,
    name: OsString,
}

impl Place {
    /// Where a write to `path` ends: through a link in a folder of root, as an editor would, so that
    /// the link stays.
    pub(super) fn of(path: &Path, make: bool) -> io::Result<Self> {
        let place = Self::itself(path, make)?;
        match place.target(path) {
            Some(target) => Self::itself(&target, make),
            None => Ok(place),
        }
    }

    /// The name itself, even of a link.
    pub(super) fn itself(path: &Path, make: bool) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok(Self { folder: Folder::open(parent, make)?, name: name.to_owned() })
    }

    /// Where the link leads that is followed here; none for what is no link, or leads nowhere.
    pub(super) fn target(&self, path: &Path) -> Option<PathBuf> {
        if self.folder.trusted && self.folder.is_link(&self.name) {
            fs::canonicalize(path).ok()
        } else {
            None
        }
    }

    /// The plain file that is here.
    pub(super) fn open(&self) -> io::Result<Option<(File, Metadata)>> {
        // One that somebody put here to be waited for ends in an error, not in a wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match openat(&self.folder.fd, &self.name, flags, Mode::empty()) {
            Ok(fd) => fd.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if metadata.is_file() {
            Ok(Some((file, metadata)))
        } else {
            Err(io::Error::other("it is no plain file"))
        }
    }

    /// The content of the plain file that is here.
    pub(super) fn read(&self) -> io::Result<Option<(Vec<u8>, Metadata)>> {
        let Some((mut file, metadata)) = self.open()? else {
            return Ok(None);
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(Some((content, metadata)))
    }

    /// Puts a file here, durably and whole.
    pub(super) fn write(&self, content: &[u8], access: Access) -> io::Result<()> {
        let new = self.beside();
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = unlinkat(&self.folder.fd, &new, AtFlags::empty());
        let closed = Mode::from_raw_mode(0o600);
        let mut file: File = openat(&self.folder.fd, &new, flags, closed)?.into();
        let written = file
            .write_all(content)
            .and_then(|()| own(&file, access))
            .and_then(|()| file.sync_all());
        self.take_place(&new, written)
    }

    /// Points a link from here to `target`, durably and without a moment in which there is none.
    pub(super) fn link(&self, target: &Path) -> io::Result<()> {
        let new = self.beside();
        let _ = unlinkat(&self.folder.fd, &new, AtFlags::empty());
        let made = symlinkat(target, &self.folder.fd, &new);
        self.take_place(&new, made.map_err(io::Error::from))
    }

    fn take_place(&self, new: &OsStr, made: io::Result<()>) -> io::Result<()> {
        let fd = &self.folder.fd;
        let moved = made.and_then(|()| Ok(renameat(fd, new, fd, &self.name)?));
        if let Err(error) = moved {
            let _ = unlinkat(fd, new, AtFlags::empty());
            return Err(error);
        }
        self.folder.file()?.sync_all()
    }

    /// Removes what is here, durably, if there is anything.
    pub(super) fn remove(&self) -> io::Result<()> {
        match unlinkat(&self.folder.fd, &self.name, AtFlags::empty()) {
            Ok(()) => self.folder.file()?.sync_all(),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn beside(&self) -> OsString {
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

    /// Somebody who is neither root nor whoever runs the tests.
    const STRANGER: u32 = 12_345;

    /// A folder of a stranger; none where the tests may not make one.
    fn strange() -> Option<(tempfile::TempDir, PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(STRANGER), Some(STRANGER)).ok()?;
        Some((folder, home))
    }

    #[test]
    fn in_a_folder_of_somebody_else_no_link_leads_anywhere() {
        let Some((folder, home)) = strange() else {
            return;
        };
        let secret = folder.path().join("shadow");
        fs::write(&secret, "root's").unwrap();
        symlink(&secret, home.join("keys")).unwrap();
        assert!(atomic::read(&home.join("keys")).is_err());
        assert!(!atomic::is(&home.join("keys"), b"root's", Access::of_mode(0o644)));
        atomic::replace(&home.join("keys"), b"mine", Access::of_mode(0o600)).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
        assert_eq!(fs::read_to_string(home.join("keys")).unwrap(), "mine");
        // Nor does one that stands for a folder.
        let etc = folder.path().join("etc");
        fs::create_dir(&etc).unwrap();
        symlink(&etc, home.join(".ssh")).unwrap();
        let through = home.join(".ssh/authorized_keys");
        assert!(atomic::replace(&through, b"key", Access::of_mode(0o600)).is_err());
        assert!(atomic::remove(&through).is_err());
        assert!(Folder::open(&home.join(".ssh"), true).is_err());
        assert_eq!(fs::read_dir(&etc).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_all_may_write_to_is_nobodys() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("tmp");
        fs::create_dir(&open).unwrap();
        let (there, by) = (folder.path().join("there"), open.join("by"));
        fs::write(&there, "old").unwrap();
        symlink(&there, &by).unwrap();
        assert_eq!(atomic::read(&by).unwrap().unwrap().0, b"old");
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        assert!(atomic::read(&by).is_err());
    }

    #[test]
    fn a_file_gets_its_owner_by_its_descriptor() {
        let Some((folder, _)) = strange() else { return };
        let access = Access { mode: 0o4750, uid: Some(STRANGER), gid: Some(STRANGER) };
        let path = folder.path().join("deep/program");
        atomic::replace(&path, b"x", access).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (STRANGER, STRANGER));
        assert_eq!(found.mode() & 0o7777, 0o4750);
        assert_eq!(Access::like(&path, 0o644), access);
    }
}
