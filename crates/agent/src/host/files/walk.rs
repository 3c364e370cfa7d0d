//! Resolving a path hop by hop, so that only root decides where a write of root ends.
//!
//! Each directory is opened below the one before it, and the kernel follows no link. A link is
//! followed here, and only if it belongs to root and is in a directory that only root can change:
//! any other link could lead root to a file of its owner's choice, also behind a link of root.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStringExt as _,
            fs::{PermissionsExt as _, fchown},
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, readlinkat, statat},
    io::Errno,
    process::geteuid,
};

use super::{MOST_BYTES, atomic::Access};

/// Permission bits: users other than the owner may write, by their group or at all. A sticky bit,
/// such as that of `/tmp`, does not keep them from adding links.
const OTHERS_WRITE: u32 = 0o022;
/// Limit of links in one path, as in Linux: a cycle of links ends.
pub(super) const MOST_LINKS: usize = 40;
/// Flags for opening the directories of a path: search permission is enough.
const FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file that may be one of another user, or a link of theirs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnsafeFile {
    #[error(
        "{} is a symbolic link that other users than root can change, so it is not followed; remove the \
         link, or specify the path that it leads to", .0.display()
    )]
    Link(PathBuf),
    #[error(
        "{} has a second name elsewhere, and other users than root can create files in its directory, so it is not \
         read; replace it by a copy of it", .0.display()
    )]
    SecondName(PathBuf),
    #[error(
        "{} has more than {} MiB, and other users than root can create files in its directory, so it is not read; \
         make it smaller, or remove it", .0.display(), MOST_BYTES >> 20
    )]
    TooLarge(PathBuf),
}

/// A directory, held open, so that it cannot be exchanged.
pub(super) struct Directory {
    fd: OwnedFd,
    /// Its path without links.
    path: PathBuf,
    /// Whether only root, or the user of this process, can create links in it.
    trusted: bool,
}

impl Directory {
    /// Opens a directory. If `make`, creates missing directories of the path.
    pub(super) fn open(path: &Path, make: bool) -> io::Result<Self> {
        let mut walk = Walk::new(path, make)?;
        while let Some(name) = walk.ahead.pop() {
            walk.enter(&name)?;
        }
        Ok(walk.here)
    }

    fn start(absolute: bool) -> io::Result<Self> {
        let path = if absolute { "/" } else { "." };
        Self::of(openat(CWD, path, FLAGS, Mode::empty())?, PathBuf::from(path))
    }

    fn of(fd: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        Ok(Self { fd, path, trusted: is_own(stat.st_uid) && stat.st_mode & OTHERS_WRITE == 0 })
    }

    /// Whether only root, or the user of this process, can create files in it.
    pub(super) fn is_trusted(&self) -> bool {
        self.trusted
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The path without links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory in this one, which must not be a link.
    fn subdirectory(&self, name: &OsStr, make: bool) -> io::Result<Self> {
        let open = || openat(&self.fd, name, FLAGS, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) if make => {
                match mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => open()?,
                    Err(error) => return Err(error.into()),
                }
            }
            other => other?,
        };
        let path = if name == ".." {
            self.path.parent().unwrap_or(&self.path).to_owned()
        } else {
            self.path.join(name)
        };
        Self::of(fd, path)
    }

    /// The target of a link in this directory; `None` if the name is not a link or does not exist.
    fn link(&self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        match readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(OsString::from_vec(target.into_bytes()).into())),
            Err(Errno::INVAL | Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory, opened for syncing and changing its owner, which the `O_PATH` descriptor does
    /// not allow.
    pub(super) fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.fd, ".", flags, Mode::empty())?.into())
    }

    /// Sets the owner and the permissions of the directory.
    pub(super) fn own(&self, access: Access) -> io::Result<()> {
        let file = self.file()?;
        own(&file, access)
    }
}

/// Sets the owner and the permissions of an open file.
pub(super) fn own(file: &File, access: Access) -> io::Result<()> {
    // Called only if an owner is set: the sandbox of the agent's own service blocks it.
    if access.uid.is_some() || access.gid.is_some() {
        fchown(file, access.uid, access.gid)?;
    }
    file.set_permissions(Permissions::from_mode(access.mode))
}

/// Whether a user is root, or the user of this process.
fn is_own(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The walk along a path.
pub(super) struct Walk {
    here: Directory,
    /// The names that are still to be passed, the next one last.
    ahead: Vec<OsString>,
    links: usize,
    make: bool,
}

impl Walk {
    /// A walk from the root, or from the current directory. If `make`, missing directories are
    /// created.
    pub(super) fn new(path: &Path, make: bool) -> io::Result<Self> {
        let here = Directory::start(path.is_absolute())?;
        let mut walk = Self { here, ahead: Vec::new(), links: 0, make };
        walk.add(path);
        Ok(walk)
    }

    fn add(&mut self, path: &Path) {
        self.ahead.extend(path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        }));
    }

    /// Walks to the directory of the last name, and returns both. The name may be a link.
    pub(super) fn into_parent(mut self) -> io::Result<(Directory, OsString)> {
        loop {
            let name = self.ahead.pop().ok_or(io::ErrorKind::InvalidInput)?;
            if self.ahead.is_empty() && name != ".." {
                return Ok((self.here, name));
            }
            self.enter(&name)?;
        }
    }

    /// Walks to the file that the last name leads to; `None` if it is not a link, or leads nowhere.
    pub(super) fn into_target(mut self) -> io::Result<Option<(Directory, OsString)>> {
        let mut through_a_link = false;
        while let Some(name) = self.ahead.pop() {
            if !self.ahead.is_empty() || name == ".." {
                match self.enter(&name) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    other => other?,
                }
            } else if let Some(target) = self.here.link(&name)? {
                through_a_link = true;
                self.follow(&name, &target)?;
            } else {
                let there = statat(&self.here.fd, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
                return Ok((through_a_link && there).then_some((self.here, name)));
            }
        }
        Err(io::ErrorKind::IsADirectory.into())
    }

    /// Enters a directory, or goes on to the target of a link.
    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        if let Some(target) = self.here.link(name)? {
            return self.follow(name, &target);
        }
        self.here = self.here.subdirectory(name, self.make)?;
        Ok(())
    }

    fn follow(&mut self, name: &OsStr, target: &Path) -> io::Result<()> {
        let link = statat(&self.here.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.here.trusted || !is_own(link.st_uid) {
            let link = UnsafeFile::Link(self.here.path.join(name));
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, link));
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        if target.is_absolute() {
            self.here = Directory::start(true)?;
        }
        self.add(target);
        Ok(())
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
