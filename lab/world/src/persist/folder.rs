//! The data folder: its lock, its one file, and what a damaged one is told.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    log::Log,
    record::{FORMAT, Record, decode},
};
use crate::snapshot::Snapshot;

/// Name of the file.
const WORLD: &str = "world.log";
/// Name of the file that is locked while a process uses the folder.
const LOCK: &str = "lock";

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// A file cannot be read or written.
    #[error("{path} cannot be used: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process uses it.
    #[error(
        "{0} is in use by another `refit sandbox`; end that one first, or choose another --data-dir"
    )]
    InUse(PathBuf),
    /// A record is damaged that is not the last.
    #[error(
        "{path} is damaged at byte {offset}: {reason}; what stands before is whole: \
         `truncate -s {offset} {path}` goes on from there, or choose another --data-dir"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged record begins.
        offset: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The file does not begin with a world.
    #[error("{path} is no world of this version of Refit: {reason}; choose another --data-dir")]
    NoWorld {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl PersistError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

/// What the bytes of a file hold, as a world. A last record without its end was being written when
/// the process died, and is left out; so is a tail of zeros, which a loss of power leaves.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Snapshot, PersistError> {
    let mut found: Option<(u64, Snapshot)> = None;
    let mut rest = bytes;
    while !rest.iter().all(|byte| *byte == 0)
        && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
    {
        if let Err(reason) = take_up(&mut found, &rest[..end]) {
            let path = path.to_owned();
            let offset = bytes.len() - rest.len();
            return Err(match found {
                None => PersistError::NoWorld { path, reason },
                Some(_) => PersistError::Damaged { path, offset, reason },
            });
        }
        rest = &rest[end + 1..];
    }
    let (_, world) = found.ok_or_else(|| PersistError::NoWorld {
        path: path.to_owned(),
        reason: "it ends before its first record does".to_owned(),
    })?;
    Ok(world)
}

fn take_up(found: &mut Option<(u64, Snapshot)>, line: &[u8]) -> Result<(), String> {
    let line = decode(line)?;
    let Some((seq, known)) = found else {
        let Record::World { format, world } = line.record else {
            return Err("its first record is no world".to_owned());
        };
        if format != FORMAT {
            return Err(format!("it has format {format}, and this is {FORMAT}"));
        }
        *found = Some((line.seq, *world));
        return Ok(());
    };
    if line.seq != *seq + 1 {
        return Err(format!("record {} follows record {seq}", line.seq));
    }
    known.follow(line.at, line.record)?;
    *seq = line.seq;
    Ok(())
}

/// Writes a file anew: it is the old one or the new one at any time, also after a loss of power.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let temporary = path.with_extension("new");
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    if let Some(parent) = path.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(file)
}

/// A data folder that this process uses.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Open for as long as the folder is in use; the kernel unlocks it however the process ends.
    _lock: File,
}

impl Folder {
    /// Takes a folder, and makes it where it is missing: for this user alone, it holds keys.
    pub fn open(path: &Path) -> Result<Self, PersistError> {
        let unusable = |source| PersistError::file(path, source);
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let path = fs::canonicalize(path).map_err(unusable)?;
        let name = path.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&name)
            .map_err(|source| PersistError::file(&name, source))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(PersistError::InUse(path)),
            Err(TryLockError::Error(source)) => Err(PersistError::file(&name, source)),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The world that is kept here, if there is one.
    pub fn load(&self) -> Result<Option<Snapshot>, PersistError> {
        let path = self.path.join(WORLD);
        match fs::read(&path) {
            Ok(bytes) => read(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PersistError::file(&path, error)),
        }
    }

    /// The log of the world that is going to run here. What is kept stays as it is until then.
    pub fn log(&self) -> Log {
        Log::in_file(self.path.join(WORLD))
    }
}
