//! Files that outlive the process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use futures::future::BoxFuture;

/// Files that outlive the process once they are synced.
///
/// Paths are names inside the disk's own directory. The methods are futures so that a test can stop
/// at any of them: a killed process gets no result at all, not an error.
pub trait Disk: Send + Sync + 'static {
    /// Returns the content of a file, or `None` if there is no such file.
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>>;
    /// Appends to a file. The bytes may be lost until [`Disk::sync`].
    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Makes appended bytes durable, directory entry included. `what` describes them in a few
    /// words.
    ///
    /// After an error the file may show bytes that never reached the disk, and a second sync may
    /// still succeed. Write the content again with [`Disk::write_atomic`] instead.
    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>>;
    /// Makes bytes durable that another process left in a file, even if a sync by that process
    /// failed.
    fn settle<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        self.sync(path, what)
    }
    /// Replaces a file durably: after a crash it is the old or the new one, never a mix.
    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>>;
}

/// A directory on a real disk.
///
/// Its methods block: the files are small, and the agent must not continue before they are written.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Opens `root`, and creates it if it is missing.
    ///
    /// A directory that this function creates is closed to others, because snapshots hold secrets.
    /// An existing directory may be shared, so its mode is not changed, and everything secret in it
    /// is stored in closed files and directories. An existing directory that others may write to is
    /// an error.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let missing: Vec<&Path> = root.ancestors().take_while(|path| !path.is_dir()).collect();
        if missing.is_empty() {
            refuse_writable_by_others(&root)?;
        } else {
            if let Some(above) = root.parent() {
                fs::create_dir_all(above)?;
            }
            fs::DirBuilder::new().mode(0o700).create(&root)?;
            // The entry of each new directory is stored in its parent.
            let above = missing.into_iter().filter_map(Path::parent);
            for parent in above.filter(|path| !path.as_os_str().is_empty()) {
                sync_directory(parent)?;
            }
        }
        Ok(Self { root })
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.root.join(format!(".{path}.new"));
        let mut file = private().write(true).truncate(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, self.root.join(path))?;
        sync_directory(&self.root)
    }
}

/// Options of a file that only the agent may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

fn refuse_writable_by_others(directory: &Path) -> io::Result<()> {
    let mode = fs::metadata(directory)?.permissions().mode();
    if mode & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} is writable by other users (mode {:04o}), who could forge the journal; choose \
             another directory, or run chmod go-w on it",
            directory.display(),
            mode & 0o7777
        ),
    ))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Disk for RealDisk {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            match fs::read(self.root.join(path)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { private().append(true).open(self.root.join(path))?.write_all(bytes) })
    }

    fn sync<'a>(&'a self, path: &'a str, _: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            // fsync applies to the file, not to the descriptor that wrote it.
            File::open(self.root.join(path))?.sync_all()?;
            sync_directory(&self.root)
        })
    }

    fn settle<'a>(&'a self, path: &'a str, _: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match fs::read(self.root.join(path)) {
                Ok(bytes) => self.replace(path, &bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        _: &'a str,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.replace(path, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn content(disk: &dyn Disk) -> Option<String> {
        let bytes = disk.read("f").await.unwrap()?;
        Some(String::from_utf8(bytes).unwrap())
    }

    #[tokio::test]
    async fn a_replaced_file_leaves_no_temporary_one_behind() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap();
        disk.write_atomic("f", b"1", "").await.unwrap();
        disk.write_atomic("f", b"2", "").await.unwrap();
        let names: Vec<_> =
            fs::read_dir(disk.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["f"]);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn new_files_are_private_and_existing_ones_keep_their_mode() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        RealDisk::open(&shared).unwrap();
        assert_eq!(mode(&shared), 0o755);
        let own = shared.join("refit");
        let disk = RealDisk::open(&own).unwrap();
        assert_eq!((mode(&shared), mode(&own)), (0o755, 0o700));
        disk.append("f", b"a").await.unwrap();
        assert_eq!(mode(&own.join("f")), 0o600);
        disk.write_atomic("f", b"b", "").await.unwrap();
        assert_eq!(mode(&own.join("f")), 0o600);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), open).unwrap();
        let error = RealDisk::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("mode 0777") && error.contains("chmod go-w"), "{error}");
    }

    #[tokio::test]
    async fn settling_copies_the_content_into_a_new_file() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap();
        disk.settle("f", "").await.unwrap();
        assert_eq!(content(&disk).await, None);
        disk.append("f", b"x").await.unwrap();
        let inode = |disk: &RealDisk| fs::metadata(disk.root().join("f")).unwrap().ino();
        let before = inode(&disk);
        disk.settle("f", "").await.unwrap();
        assert_ne!(inode(&disk), before);
        assert_eq!(content(&disk).await.as_deref(), Some("x"));
    }
}
