//! Reads bundles from a directory on this host.

use std::{
    fs,
    io::{self, SeekFrom},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::OFlags;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::{limits::Bucket, location};
use crate::error::Error;

/// Bytes per read.
pub(crate) const CHUNK: usize = 64 << 10;

/// A range of an open file.
pub(crate) struct Piece {
    file: tokio::fs::File,
    path: PathBuf,
    left: u64,
}

/// Checks that a path can hold a bundle.
pub(crate) fn check_directory(path: &Path) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::Location {
            location: path.display().to_string(),
            problem: location::NO_TAR.to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::Missing { what: path.display().to_string() })
        }
        Err(error) => Err(Error::read(path, error)),
    }
}

/// Opens a file of exactly `size` bytes and seeks to `from`.
pub(crate) async fn open(path: &Path, file: &str, size: u64, from: u64) -> Result<Piece, Error> {
    let (opened, found) = open_regular(path, file).await?;
    if found != size {
        return Err(Error::Size { file: file.to_owned(), expected: size, found });
    }
    piece(opened, path, from, size - from).await
}

/// Opens a file of at most `limit` bytes.
pub(crate) async fn open_small(path: &Path, file: &str, limit: u64) -> Result<(Piece, u64), Error> {
    let (opened, size) = open_regular(path, file).await?;
    if size > limit {
        let file = file.to_owned();
        return Err(Error::Large { file, limit });
    }
    Ok((piece(opened, path, 0, size).await?, size))
}

/// Opens a regular file. A link could point anywhere, and a pipe would never end.
async fn open_regular(path: &Path, file: &str) -> Result<(tokio::fs::File, u64), Error> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let opened =
        tokio::fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path).await;
    let opened = opened.map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Error::Missing { what: format!("{file} ({})", path.display()) }
        } else {
            Error::read(path, error)
        }
    })?;
    let metadata = opened.metadata().await.map_err(|error| Error::read(path, error))?;
    if !metadata.is_file() {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(Error::read(path, error));
    }
    Ok((opened, metadata.len()))
}

async fn piece(mut file: tokio::fs::File, path: &Path, at: u64, left: u64) -> Result<Piece, Error> {
    file.set_max_buf_size(CHUNK);
    if at > 0 {
        let moved = file.seek(SeekFrom::Start(at)).await;
        moved.map_err(|error| Error::read(path, error))?;
    }
    Ok(Piece { file, path: path.to_owned(), left })
}

impl Piece {
    /// Returns the next chunk; `None` at the end of the range or of the file.
    pub(crate) async fn chunk(&mut self, bucket: &Bucket) -> Result<Option<Bytes>, Error> {
        let most = usize::try_from(self.left).unwrap_or(CHUNK).min(bucket.chunk(CHUNK));
        let mut buffer = vec![0; most];
        let read = self.file.read(&mut buffer).await;
        let read = read.map_err(|error| Error::read(&self.path, error))?;
        if read == 0 {
            return Ok(None);
        }
        self.left -= read as u64;
        buffer.truncate(read);
        Ok(Some(buffer.into()))
    }
}
