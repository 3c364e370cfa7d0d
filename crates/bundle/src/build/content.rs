//! The bytes of a bundle while it is built: part of a file, or in memory.

use std::{
    fs,
    io::{self, Read, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use super::BuildError;
use crate::digest::{Digest, Hasher};

/// Bytes per read.
const CHUNK: usize = 256 << 10;

/// The source of some bytes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A range of a file.
    Piece {
        path: PathBuf,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        size: u64,
    },
    /// Bytes in memory.
    Bytes(Vec<u8>),
}

impl Content {
    /// A whole file and its digest. Refuses links, which would pack a file that the spec does not
    /// name.
    pub(crate) fn of_file(path: &Path) -> Result<(Digest, Self), BuildError> {
        let found = fs::symlink_metadata(path).map_err(BuildError::read(path))?;
        if !found.is_file() {
            return Err(BuildError::input(path, "not a regular file; specify the file itself"));
        }
        let content = Self::Piece { path: path.to_owned(), offset: 0, size: found.len() };
        Ok((content.digest()?, content))
    }

    /// Returns the number of bytes.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Piece { size, .. } => *size,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Returns the path of the source, for error messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Piece { path, .. } => path,
            Self::Bytes(_) => Path::new("(made here)"),
        }
    }

    /// Opens the source for reading.
    pub(crate) fn open(&self) -> Result<Box<dyn Read + '_>, BuildError> {
        match self {
            Self::Bytes(bytes) => Ok(Box::new(bytes.as_slice())),
            Self::Piece { path, offset, size } => {
                let mut file = fs::File::open(path).map_err(BuildError::read(path))?;
                file.seek(SeekFrom::Start(*offset)).map_err(BuildError::read(path))?;
                Ok(Box::new(file.take(*size)))
            }
        }
    }

    /// Computes the digest of the bytes.
    pub(crate) fn digest(&self) -> Result<Digest, BuildError> {
        self.copy(&mut io::sink(), self.path())
    }

    /// Copies the bytes and returns their digest; a write error names `to`.
    pub(crate) fn copy(&self, output: &mut dyn io::Write, to: &Path) -> Result<Digest, BuildError> {
        let mut input = self.open()?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; CHUNK];
        let mut left = self.size();
        loop {
            let read = input.read(&mut buffer).map_err(BuildError::read(self.path()))?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            hasher.update(bytes);
            output.write_all(bytes).map_err(BuildError::written(to))?;
            left = left.saturating_sub(read as u64);
        }
        if left > 0 {
            return Err(BuildError::input(self.path(), "the file was truncated while it was read"));
        }
        Ok(hasher.finish())
    }

    /// Reads all bytes, up to `limit`.
    pub(crate) fn read_small(&self, limit: u64) -> Result<Vec<u8>, BuildError> {
        if self.size() > limit {
            let problem = format!("{} bytes exceed the limit of {limit}", self.size());
            return Err(BuildError::input(self.path(), problem));
        }
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes).map_err(BuildError::read(self.path()))?;
        Ok(bytes)
    }
}
