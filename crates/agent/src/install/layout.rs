//! Where the agent keeps its own program on a host.
//!
//! ```text
//! /opt/refit/agent/bin/<id>/refit-agent   one directory per version, named by the program's sha256
//! /opt/refit/agent/current  -> bin/<id>   the version that the unit starts
//! /opt/refit/agent/previous -> bin/<id>   the version that a failed trial restores
//! /opt/refit/agent/wanted   -> bin/<id>   the version that is to replace the running one
//! /opt/refit/agent/trial                  id of a new version that has not reported yet
//! /opt/refit/agent/previous.service       unit of the previous version, until then
//! /opt/refit/agent/lock                   held while versions are installed or removed
//! ```
//!
//! Every change is one rename, so after a power failure a host has the old state or the new one.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// Directory of the program on a host.
pub const BASE: &str = "/opt/refit/agent";
/// Name of the program.
pub(super) const PROGRAM: &str = "refit-agent";
/// Length of a version's id, in hex digits of the sha256.
const ID_LENGTH: usize = 16;

/// A link that names a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The version that the unit starts.
    Current,
    /// The version that a failed trial restores.
    Previous,
    /// The version that is to replace the running one.
    Wanted,
}

impl Link {
    fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Previous => "previous",
            Self::Wanted => "wanted",
        }
    }
}

/// An error of a file, with its path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// The I/O error.
    pub source: io::Error,
}

/// Adds the path to an error.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> FileError + '_ {
    |source| FileError { path: path.to_owned(), source }
}

/// The directory of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    base: PathBuf,
}

/// The lock of the set of versions, until it is dropped. Closing the file alone would not end it while a process that
/// was started meanwhile has inherited it.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "the lock ends with its file");
        }
    }
}

impl Layout {
    /// The layout below this directory, [`BASE`] on a real host.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Returns the directory.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Path of a version's program.
    pub fn program(&self, id: &str) -> PathBuf {
        self.version(id).join(PROGRAM)
    }

    /// Path of the file that records when and why a version was rejected.
    pub fn rejection(&self, id: &str) -> PathBuf {
        self.version(id).join("rejected")
    }

    fn version(&self, id: &str) -> PathBuf {
        self.base.join("bin").join(id)
    }

    fn path_of(&self, link: Link) -> PathBuf {
        self.base.join(link.name())
    }

    /// Path of the saved unit of the previous version.
    pub fn previous_unit(&self) -> PathBuf {
        self.base.join("previous.service")
    }

    /// Locks the set of versions; `None` if another process holds the lock.
    pub fn lock(&self) -> Result<Option<Lock>, FileError> {
        fs::create_dir_all(&self.base).map_err(at(&self.base))?;
        let path = self.base.join("lock");
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(&path).map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }

    fn trial_path(&self) -> PathBuf {
        self.base.join("trial")
    }

    /// Returns the version that a link names; `None` if the link or the program is missing.
    pub fn get(&self, link: Link) -> Option<String> {
        let target = fs::read_link(self.path_of(link)).ok()?;
        let id = target.file_name()?.to_str()?.to_owned();
        self.program(&id).is_file().then_some(id)
    }

    /// Points a link to a version.
    pub fn set(&self, link: Link, id: &str) -> Result<(), FileError> {
        let path = self.path_of(link);
        if self.get(link).as_deref() == Some(id) {
            return Ok(());
        }
        let fresh = self.base.join(format!(".{}.new", link.name()));
        remove(&fresh)?;
        symlink(Path::new("bin").join(id), &fresh).map_err(at(&fresh))?;
        fs::rename(&fresh, &path).map_err(at(&path))?;
        sync_directory(&self.base)
    }

    /// Removes a link.
    pub fn clear(&self, link: Link) -> Result<(), FileError> {
        remove(&self.path_of(link))
    }

    /// Returns the version that has not reported yet.
    pub fn trial(&self) -> Option<String> {
        let text = fs::read_to_string(self.trial_path()).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Records that a version is on trial.
    pub fn begin_trial(&self, id: &str) -> Result<(), FileError> {
        write_atomic(&self.trial_path(), format!("{id}\n").as_bytes(), 0o644)
    }

    /// Records that no version is on trial.
    pub fn end_trial(&self) -> Result<(), FileError> {
        remove(&self.trial_path())
    }

    /// Installs a program and returns its id. An intact existing program is kept.
    pub fn put(&self, program: &[u8]) -> Result<String, FileError> {
        let id = id_of(program);
        let path = self.program(&id);
        let is_whole = fs::read(&path).is_ok_and(|there| there == program);
        if !is_whole {
            let directory = self.version(&id);
            fs::create_dir_all(&directory).map_err(at(&directory))?;
            write_atomic(&path, program, 0o755)?;
            let there = fs::read(&path).map_err(at(&path))?;
            if id_of(&there) != id {
                let error = io::Error::new(io::ErrorKind::InvalidData, "the file is incomplete");
                return Err(at(&path)(error));
            }
        }
        Ok(id)
    }

    /// Removes every version that no link names. Best effort: a version that remains only takes
    /// space. While a version is being installed none is removed, because no link names the new one
    /// yet.
    pub fn prune(&self) {
        let Ok(Some(_locked)) = self.lock() else {
            return;
        };
        let kept = [Link::Current, Link::Previous, Link::Wanted].map(|link| self.get(link));
        let Ok(entries) = fs::read_dir(self.base.join("bin")) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let known = kept.iter().flatten().any(|id| name.to_str() == Some(id.as_str()));
            // A rejected version is kept, so that it is not tried again at once.
            if known || entry.path().join("rejected").exists() {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::debug!(%error, path = %entry.path().display(), "old agent version not \
                    removed");
            }
        }
    }
}

/// Returns the id of a program.
pub(super) fn id_of(program: &[u8]) -> String {
    sha256(program).chars().take(ID_LENGTH).collect()
}

/// Returns the sha256 in hex.
pub(super) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}

/// Replaces a file, durably.
pub(super) fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(at(directory))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = directory.join(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        let mut file = File::create(&fresh)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().map_err(at(&fresh))?;
    fs::rename(&fresh, path).map_err(at(path))?;
    sync_directory(directory)
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn sync_directory(path: &Path) -> Result<(), FileError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_installed_once_and_repaired_if_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let id = layout.put(b"one").unwrap();
        assert_eq!(id, &sha256(b"one")[..16]);
        let mode = fs::metadata(layout.program(&id)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
        fs::write(layout.program(&id), "on").unwrap();
        assert_eq!(layout.put(b"one").unwrap(), id);
        assert_eq!(fs::read(layout.program(&id)).unwrap(), b"one");
    }

    #[test]
    fn a_dangling_link_names_no_version() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        assert_eq!(layout.get(Link::Current), None);
        let id = layout.put(b"one").unwrap();
        layout.set(Link::Current, &id).unwrap();
        assert_eq!(layout.get(Link::Current).as_deref(), Some(id.as_str()));
        fs::remove_file(layout.program(&id)).unwrap();
        assert_eq!(layout.get(Link::Current), None);
    }

    #[test]
    fn only_versions_without_a_link_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let ids: Vec<String> =
            [b"a", b"b", b"c", b"d"].iter().map(|program| layout.put(*program).unwrap()).collect();
        layout.set(Link::Current, &ids[0]).unwrap();
        layout.set(Link::Previous, &ids[1]).unwrap();
        fs::write(layout.rejection(&ids[3]), "why").unwrap();
        let putting = layout.lock().unwrap();
        layout.prune();
        assert!(ids.iter().all(|id| layout.program(id).exists()));
        drop(putting);
        layout.prune();
        let there = |id: &String| layout.program(id).exists();
        assert_eq!(ids.iter().map(there).collect::<Vec<_>>(), [true, true, false, true]);
    }
}
