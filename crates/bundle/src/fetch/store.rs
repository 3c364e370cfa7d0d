//! The staging directory: verified contents and partial downloads.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::{local::CHUNK, session::Session};
use crate::{
    digest::{Digest, Hasher},
    error::Error,
    manifest::{Blob, Manifest},
};

/// Directory of verified contents.
const BLOBS: &str = "blobs";
/// Directory of partial downloads.
const PARTIAL: &str = "partial";
/// Directory of complete bundles.
const BUNDLES: &str = "bundles";
/// Lock file that is held while a bundle is staged.
const LOCK: &str = "lock";
/// Directories and small files that a bundle needs in addition to its contents.
const EXTRA_FILES: u64 = 64;

/// A staging directory, locked for this process.
#[derive(Clone)]
pub(crate) struct Store {
    directory: PathBuf,
    /// Not read; keeps the lock held.
    _lock: Arc<Lock>,
}

/// The lock of a store. It is released explicitly: a program that another thread is starting has the
/// file open, too, for a moment.
#[derive(Debug)]
struct Lock(fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "cannot release the lock of the bundle directory");
        }
    }
}

impl Store {
    /// Creates the directory if it is missing, and takes its lock.
    pub(crate) async fn open(directory: &Path) -> Result<Self, Error> {
        let directory = directory.to_owned();
        blocking(move || Self::open_now(directory)).await
    }

    fn open_now(directory: PathBuf) -> Result<Self, Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        let parts = [BLOBS, PARTIAL, BUNDLES].map(|part| directory.join(part));
        for path in std::iter::once(directory.clone()).chain(parts) {
            builder.create(&path).map_err(|error| Error::written(&path, error))?;
            check_directory(&path)?;
        }
        let path = directory.join(LOCK);
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let lock = no_follow(&mut options, 0o600)
            .open(&path)
            .map_err(|error| Error::written(&path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { directory, _lock: Arc::new(Lock(lock)) }),
            Err(fs::TryLockError::WouldBlock) => Err(Error::Busy { directory }),
            Err(fs::TryLockError::Error(error)) => Err(Error::written(&path, error)),
        }
    }

    /// Returns the path of a verified content.
    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.directory.join(BLOBS).join(digest.as_str())
    }

    /// Returns the path of a content during the download.
    fn partial(&self, digest: &Digest) -> PathBuf {
        self.directory.join(PARTIAL).join(digest.as_str())
    }

    /// Returns the directory of complete bundles.
    pub(crate) fn bundles(&self) -> PathBuf {
        self.directory.join(BUNDLES)
    }

    /// Returns every directory that holds contents by digest.
    pub(crate) fn content_directories(&self) -> [PathBuf; 2] {
        [self.directory.join(BLOBS), self.directory.join(PARTIAL)]
    }

    /// Checks that the missing contents fit on the disk with `keep_free` bytes to spare.
    pub(crate) async fn make_room(&self, manifest: &Manifest, keep_free: u64) -> Result<(), Error> {
        let (store, blobs) = (self.clone(), manifest.blobs());
        // Importing images needs their size twice: runtimes import an archive.
        let archive = manifest.image_size();
        let spare = keep_free.saturating_add(archive);
        blocking(move || store.check_room(&blobs, spare)).await
    }

    fn check_room(&self, blobs: &[Blob], spare: u64) -> Result<(), Error> {
        let length = |path: PathBuf| fs::symlink_metadata(path).map_or(0, |found| found.len());
        let missing = |blob: &Blob| {
            let there = length(self.blob(&blob.sha256)).max(length(self.partial(&blob.sha256)));
            blob.size.saturating_sub(there)
        };
        let bytes = blobs.iter().map(missing).fold(0, u64::saturating_add);
        if bytes == 0 {
            // Nothing to download. The code that writes the image archive checks its own space.
            return Ok(());
        }
        let files = 2 * blobs.len() as u64 + EXTRA_FILES;
        check_free(&self.directory, bytes.saturating_add(spare), files)
    }

    /// Makes sure that a content is present and verified.
    pub(crate) async fn fetch(
        &self,
        session: &mut Session,
        blob: &Blob,
        file: &str,
    ) -> Result<(), Error> {
        let path = self.blob(&blob.sha256);
        if is_whole(path.clone(), blob.clone()).await? {
            return Ok(());
        }
        match self.download(session, blob, file).await? {
            DownloadOutcome::Whole => {}
            // The bytes of an earlier attempt may be wrong; download the whole file.
            DownloadOutcome::Different { resumed: true, .. } => {
                if let DownloadOutcome::Different { found, .. } =
                    self.download(session, blob, file).await?
                {
                    return Err(different(file, blob, found));
                }
            }
            DownloadOutcome::Different { found, .. } => return Err(different(file, blob, found)),
        }
        let partial = self.partial(&blob.sha256);
        blocking(move || publish_file(&partial, &path)).await
    }

    async fn download(
        &self,
        session: &mut Session,
        blob: &Blob,
        file: &str,
    ) -> Result<DownloadOutcome, Error> {
        let path = self.partial(&blob.sha256);
        let written = |error| Error::written(&path, error);
        let (mut hasher, there, opened) = open_partial(path.clone(), blob.size).await?;
        let mut output = tokio::fs::File::from_std(opened);
        output.set_max_buf_size(CHUNK);
        let mut download = session.blob(blob, there, file).await?;
        if download.at() != there {
            // The server sent the whole file despite the requested range.
            hasher = Hasher::default();
            output.set_len(0).await.map_err(written)?;
            output.rewind().await.map_err(written)?;
        }
        let resumed = download.at() > 0;
        let ended = loop {
            match download.chunk(session.bucket()).await {
                Ok(Some(chunk)) => {
                    hasher.update(&chunk);
                    output.write_all(&chunk).await.map_err(written)?;
                }
                Ok(None) => break download.check_whole(),
                Err(error) => break Err(error),
            }
        };
        output.flush().await.map_err(written)?;
        if let Err(error) = ended {
            if !error.is_retriable() {
                // Wrong bytes are of no use to the next attempt.
                drop(output);
                remove(&path)?;
            }
            return Err(error);
        }
        output.sync_all().await.map_err(written)?;
        let found = hasher.finish();
        if found == blob.sha256 {
            return Ok(DownloadOutcome::Whole);
        }
        drop(output);
        remove(&path)?;
        Ok(DownloadOutcome::Different { found, resumed })
    }
}

/// Checks that a directory's file system has room for this many bytes and files.
pub(crate) fn check_free(directory: &Path, bytes: u64, files: u64) -> Result<(), Error> {
    let free =
        rustix::fs::statvfs(directory).map_err(|error| Error::read(directory, error.into()))?;
    let space =
        |needed, free, unit| Error::Space { directory: directory.to_owned(), needed, free, unit };
    let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
    if bytes > free_bytes {
        return Err(space(bytes, free_bytes, "bytes"));
    }
    // Some file systems create inodes on demand and report none.
    if free.f_files > 0 && files > free.f_favail {
        return Err(space(files, free.f_favail, "files"));
    }
    Ok(())
}

/// How a download ended.
enum DownloadOutcome {
    Whole,
    Different { found: Digest, resumed: bool },
}

fn different(file: &str, blob: &Blob, found: Digest) -> Error {
    Error::Content { file: file.to_owned(), expected: blob.sha256.clone(), found }
}

/// Refuses a directory in which another user could change verified files.
fn check_directory(path: &Path) -> Result<(), Error> {
    let unsafe_directory =
        |problem: String| Error::Directory { directory: path.to_owned(), problem };
    let found = fs::symlink_metadata(path).map_err(|error| Error::read(path, error))?;
    if !found.is_dir() {
        return Err(unsafe_directory(
            "it is a link or a file; specify the directory itself".to_owned(),
        ));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us {
        let problem = format!("it belongs to user {}, but this process runs as {us}", found.uid());
        return Err(unsafe_directory(problem));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o022 != 0 {
        let problem = format!("it is writable by other users (mode {mode:03o}); run chmod go-w");
        return Err(unsafe_directory(problem));
    }
    Ok(())
}

/// Opens the file itself, never the target of a link.
pub(crate) fn no_follow(options: &mut fs::OpenOptions, mode: u32) -> &mut fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    options.custom_flags(flags).mode(mode)
}

/// Opens a partial download and hashes it; discards it if it cannot be the beginning of the file.
async fn open_partial(path: PathBuf, size: u64) -> Result<(Hasher, u64, fs::File), Error> {
    blocking(move || {
        let written = |error| Error::written(&path, error);
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        let mut file = no_follow(&mut options, 0o600).open(&path).map_err(written)?;
        let found = file.metadata().map_err(written)?;
        if !found.is_file() || found.nlink() != 1 {
            let error = io::Error::other("not a regular file with one link");
            return Err(Error::written(&path, error));
        }
        if found.len() > size {
            file.set_len(0).map_err(written)?;
        }
        let mut hasher = Hasher::default();
        let length = hash_into(&mut file, &mut hasher).map_err(written)?;
        Ok((hasher, length, file))
    })
    .await
}

/// Reports whether a content is present and valid; removes it if it is not valid.
async fn is_whole(path: PathBuf, blob: Blob) -> Result<bool, Error> {
    blocking(move || {
        let read = |error| Error::read(&path, error);
        let mut options = fs::OpenOptions::new();
        let mut file = match no_follow(options.read(true), 0).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(read(error)),
        };
        let mut hasher = Hasher::default();
        let length = hash_into(&mut file, &mut hasher).map_err(read)?;
        let good = length == blob.size && hasher.finish() == blob.sha256;
        if !good {
            remove(&path)?;
        }
        Ok(good)
    })
    .await
}

/// Hashes the rest of a file.
pub(crate) fn hash_into(file: &mut fs::File, hasher: &mut Hasher) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut length = 0;
    loop {
        let read = file.read(&mut buffer)?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(length);
        };
        hasher.update(bytes);
        length += read as u64;
    }
}

/// Moves a verified, synced file to its final path. The directory is synced once for all files,
/// before the bundle appears.
fn publish_file(from: &Path, to: &Path) -> Result<(), Error> {
    let written = |error| Error::written(to, error);
    // Package managers read the file as their own users.
    fs::set_permissions(from, fs::Permissions::from_mode(0o644)).map_err(written)?;
    fs::rename(from, to).map_err(written)
}

/// Syncs the parent directory of this path, so that new names survive a power loss.
pub(crate) fn sync_parent(path: &Path) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::written(directory, error))
}

/// Removes a file; a missing file is not an error.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::written(path, error)),
        _ => Ok(()),
    }
}

/// Runs blocking code outside the async runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The task is cancelled only when the runtime shuts down; then no caller waits for it.
            Err(_) => std::future::pending().await,
        },
    }
}
