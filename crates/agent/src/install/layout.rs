//! Where the agent keeps its own program on a host.
//!
//! ```text
//! /opt/refit/agent/bin/<id>/refit-agent   one folder per version, named by the program's sha256
//! /opt/refit/agent/current  -> bin/<id>   what the unit starts
//! /opt/refit/agent/previous -> bin/<id>   what it goes back to
//! /opt/refit/agent/wanted   -> bin/<id>   what the running agent is to exchange itself for
//! /opt/refit/agent/trial                  the id of a new version that has not reported yet
//! /opt/refit/agent/previous.service       the unit of the version of before, until then
//! /opt/refit/agent/lock                   held while versions are put in place or removed
//! ```
//!
//! Every change is one rename, so a host that loses power has the old state or the new one.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// Folder of the program on a host.
pub const BASE: &str = "/opt/refit/agent";
/// Name of the program.
pub(super) const PROGRAM: &str = "refit-agent";
/// How much of the sha256 names a version.
const ID_LENGTH: usize = 16;

/// A link that says which version is what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// What the unit starts.
    Current,
    /// What it goes back to.
    Previous,
    /// What the running agent is to exchange itself for.
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

/// What went wrong with a file, by its path.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be used: {source}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Adds the path to an error.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> FileError + '_ {
    |source| FileError { path: path.to_owned(), source }
}

/// The folder of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    base: PathBuf,
}

impl Layout {
    /// The layout below this folder, [`BASE`] on a real host.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// The folder.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The program of a version.
    pub fn program(&self, id: &str) -> PathBuf {
        self.version(id).join(PROGRAM)
    }

    /// Where it is written that a version was rejected, and why.
    pub fn rejection(&self, id: &str) -> PathBuf {
        self.version(id).join("rejected")
    }

    fn version(&self, id: &str) -> PathBuf {
        self.base.join("bin").join(id)
    }

    fn path_of(&self, link: Link) -> PathBuf {
        self.base.join(link.name())
    }

    /// Where the unit of the version of before is kept.
    pub fn previous_unit(&self) -> PathBuf {
        self.base.join("previous.service")
    }

    /// Keeps others from changing which versions there are, for as long as the file is open; `None`
    /// where somebody else does.
    pub fn lock(&self) -> Result<Option<File>, FileError> {
        fs::create_dir_all(&self.base).map_err(at(&self.base))?;
        let path = self.base.join("lock");
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(&path).map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }

    fn trial_path(&self) -> PathBuf {
        self.base.join("trial")
    }

    /// The version that a link names; `None` where there is none.
    pub fn get(&self, link: Link) -> Option<String> {
        let target = fs::read_link(self.path_of(link)).ok()?;
        let id = target.file_name()?.to_str()?.to_owned();
        self.program(&id).is_file().then_some(id)
    }

    /// Makes a link name a version.
    pub fn set(&self, link: Link, id: &str) -> Result<(), FileError> {
        let path = self.path_of(link);
        if self.get(link).as_deref() == Some(id) {
            return Ok(());
        }
        let fresh = self.base.join(format!(".{}.new", link.name()));
        remove(&fresh)?;
        symlink(Path::new("bin").join(id), &fresh).map_err(at(&fresh))?;
        fs::rename(&fresh, &path).map_err(at(&path))?;
        sync_folder(&self.base)
    }

    /// Takes a link away.
    pub fn clear(&self, link: Link) -> Result<(), FileError> {
        remove(&self.path_of(link))
    }

    /// The version that has not reported yet.
    pub fn trial(&self) -> Option<String> {
        let text = fs::read_to_string(self.trial_path()).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Notes that a version is on trial.
    pub fn begin_trial(&self, id: &str) -> Result<(), FileError> {
        write_atomic(&self.trial_path(), format!("{id}\n").as_bytes(), 0o644)
    }

    /// Notes that none is.
    pub fn end_trial(&self) -> Result<(), FileError> {
        remove(&self.trial_path())
    }

    /// Puts a program in place and returns its id. What is there and is whole stays.
    pub fn put(&self, program: &[u8]) -> Result<String, FileError> {
        let id = id_of(program);
        let path = self.program(&id);
        let is_whole = fs::read(&path).is_ok_and(|there| there == program);
        if !is_whole {
            let folder = self.version(&id);
            fs::create_dir_all(&folder).map_err(at(&folder))?;
            write_atomic(&path, program, 0o755)?;
            let there = fs::read(&path).map_err(at(&path))?;
            if id_of(&there) != id {
                let error = io::Error::new(io::ErrorKind::InvalidData, "it was not written whole");
                return Err(at(&path)(error));
            }
        }
        Ok(id)
    }

    /// Removes every version that no link names. Best effort: one that stays takes room only. While
    /// one is put in place, none is removed: no link names that yet.
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
            // A rejected one is remembered, so that it is not tried again at once.
            if known || entry.path().join("rejected").exists() {
                continue;
            }
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::debug!(%error, path = %entry.path().display(), "an old version stays");
            }
        }
    }
}

/// The id of a program.
pub(super) fn id_of(program: &[u8]) -> String {
    sha256(program).chars().take(ID_LENGTH).collect()
}

/// sha256 in hex.
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
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(at(folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = folder.join(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        let mut file = File::create(&fresh)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().map_err(at(&fresh))?;
    fs::rename(&fresh, path).map_err(at(path))?;
    sync_folder(folder)
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> Result<(), FileError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_put_once_and_mended_where_it_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let id = layout.put(b"one").unwrap();
        assert_eq!(id, &sha256(b"one")[..16]);
        let mode = fs::metadata(layout.program(&id)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
        fs::write(layout.program(&id), "on").unwrap();
        assert_eq!(layout.put(b"one").unwrap(), id);
        assert_eq!(fs::read(layout.program(&id)).unwrap(), b"one");
    }

    #[test]
    fn a_link_to_nothing_is_no_version() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        assert_eq!(layout.get(Link::Current), None);
        let id = layout.put(b"one").unwrap();
        layout.set(Link::Current, &id).unwrap();
        assert_eq!(layout.get(Link::Current).as_deref(), Some(id.as_str()));
        fs::remove_file(layout.program(&id)).unwrap();
        assert_eq!(layout.get(Link::Current), None);
    }

    #[test]
    fn only_versions_that_nobody_names_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
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
