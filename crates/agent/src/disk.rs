//! What survives the process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use futures::future::BoxFuture;

/// Files that survive the process once they are synced.
///
/// Paths are names inside the disk's own folder. The methods are futures because a killed process
/// gets no answer, not an error.
pub trait Disk: Send + Sync + 'static {
    /// The content of a file; `None` if there is none.
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>>;
    /// Adds to a file's end. It may be lost until [`Disk::sync`].
    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Makes what was appended durable, folder entry included. `what` says it in a few words.
    ///
    /// After an error the file may show what never reached the disk, and another sync may call that
    /// a success: write the content anew by [`Disk::write_atomic`].
    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>>;
    /// Makes what another process left in a file durable, though that process may have seen a sync
    /// of it fail.
    fn settle<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        self.sync(path, what)
    }
    /// Replaces a file, durably: after a crash it is the old or the new one, never a mix.
    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>>;
}

/// A folder on a real disk.
///
/// It blocks: the files are small, and the agent has nothing to do that may run ahead of them.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Uses `root`, and makes it where it is missing.
    ///
    /// A folder that it makes is closed to others, because snapshots hold secrets. One that is there
    /// is taken as it is, but for one that others may write to: it may be shared, so its rights are
    /// not ours to change, and whatever is secret in it lies in closed files and folders of its own.
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
            // The entry of each new folder is in the one above it.
            let above = missing.into_iter().filter_map(Path::parent);
            for parent in above.filter(|path| !path.as_os_str().is_empty()) {
                sync_folder(parent)?;
            }
        }
        Ok(Self { root })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.root.join(format!(".{path}.new"));
        let mut file = private().write(true).truncate(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, self.root.join(path))?;
        sync_folder(&self.root)
    }
}

/// Options of a file that is made for us alone.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

fn refuse_writable_by_others(folder: &Path) -> io::Result<()> {
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "others may write to {} (mode {:04o}), and could put words into the journal's mouth; \
             choose a folder of its own, or close it by chmod go-w",
            folder.display(),
            mode & 0o7777
        ),
    ))
}

fn sync_folder(path: &Path) -> io::Result<()> {
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
            // fsync is of the file, not of the descriptor that wrote.
            File::open(self.root.join(path))?.sync_all()?;
            sync_folder(&self.root)
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
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
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
    async fn what_it_makes_is_closed_to_others_and_what_was_there_keeps_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
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
    fn a_folder_that_others_may_write_to_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), open).unwrap();
        let error = RealDisk::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("mode 0777") && error.contains("chmod go-w"), "{error}");
    }

    #[tokio::test]
    async fn what_another_process_left_is_settled_in_a_file_of_its_own() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path()).unwrap();
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
