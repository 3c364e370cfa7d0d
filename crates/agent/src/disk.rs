//! What survives the process: a real folder, or a simulated one.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use refit_runtime::gate::{Effect, Fate, Gate, never};
use serde::{Deserialize, Serialize};

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

/// What a simulated disk holds durably. Part of a snapshot of the world.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// Content by path.
    pub files: BTreeMap<String, String>,
}

/// A disk in memory, as one incarnation of a process sees it.
///
/// What was not synced lives in this handle: another handle on the same [`DiskState`], which is
/// what a restarted process gets, does not see it.
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
    unsynced: Mutex<BTreeMap<String, String>>,
    gate: Arc<dyn Gate>,
    forgetful: bool,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk").field("forgetful", &self.forgetful).finish_non_exhaustive()
    }
}

impl SimDisk {
    /// A disk over `state`. Each durable append passes `gate` as [`Effect::Journal`].
    pub fn new(state: Arc<Mutex<DiskState>>, gate: Arc<dyn Gate>) -> Self {
        Self { state, unsynced: Mutex::default(), gate, forgetful: false }
    }

    /// With `true` it accepts everything and keeps nothing: a journal left out, for sabotage.
    #[must_use]
    pub fn forgetful(mut self, forgetful: bool) -> Self {
        self.forgetful = forgetful;
        self
    }

    /// Loses what was not synced.
    pub fn crash(&self) {
        lock(&self.unsynced).clear();
    }

    async fn durable(
        &self,
        what: &str,
        write: impl FnOnce(&mut DiskState) + Send,
    ) -> io::Result<()> {
        let effect = Effect::Journal { record: what.to_owned() };
        if self.gate.before(&effect) == Fate::Dead {
            return never().await;
        }
        if !self.forgetful {
            write(&mut lock(&self.state));
        }
        if self.gate.after(&effect) == Fate::Dead {
            return never().await;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(bytes: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Disk for SimDisk {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            if self.gate.fate() == Fate::Dead {
                return never().await;
            }
            let durable = lock(&self.state).files.get(path).cloned();
            let unsynced = lock(&self.unsynced).get(path).cloned();
            Ok(match (durable, unsynced) {
                (None, None) => None,
                (durable, unsynced) => {
                    Some((durable.unwrap_or_default() + &unsynced.unwrap_or_default()).into_bytes())
                }
            })
        })
    }

    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            if self.gate.fate() == Fate::Dead {
                return never().await;
            }
            let text = text(bytes)?;
            lock(&self.unsynced).entry(path.to_owned()).or_default().push_str(&text);
            Ok(())
        })
    }

    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let Some(bytes) = lock(&self.unsynced).remove(path) else {
                return Ok(());
            };
            self.durable(what, |state| {
                state.files.entry(path.to_owned()).or_default().push_str(&bytes);
            })
            .await
        })
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let text = text(bytes)?;
            lock(&self.unsynced).remove(path);
            self.durable(what, |state| {
                state.files.insert(path.to_owned(), text);
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests {
    use refit_runtime::gate::Open;

    use super::*;

    fn sim(state: &Arc<Mutex<DiskState>>) -> SimDisk {
        SimDisk::new(state.clone(), Arc::new(Open))
    }

    async fn content(disk: &dyn Disk) -> Option<String> {
        let bytes = disk.read("f").await.unwrap()?;
        Some(String::from_utf8(bytes).unwrap())
    }

    async fn behaves_like_a_file(disk: &dyn Disk) {
        assert_eq!(content(disk).await, None);
        disk.append("f", b"a").await.unwrap();
        disk.append("f", b"b").await.unwrap();
        disk.sync("f", "ab").await.unwrap();
        assert_eq!(content(disk).await.as_deref(), Some("ab"));
        disk.write_atomic("f", b"c", "c").await.unwrap();
        disk.append("f", b"d").await.unwrap();
        assert_eq!(content(disk).await.as_deref(), Some("cd"));
    }

    #[tokio::test]
    async fn real_and_simulated_disks_agree() {
        let folder = tempfile::tempdir().unwrap();
        let real = RealDisk::open(folder.path().join("state/refit")).unwrap();
        behaves_like_a_file(&real).await;
        behaves_like_a_file(&sim(&Arc::default())).await;
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

    #[tokio::test]
    async fn unsynced_bytes_are_lost_in_a_crash() {
        let state = Arc::default();
        let disk = sim(&state);
        disk.append("f", b"kept").await.unwrap();
        disk.sync("f", "").await.unwrap();
        disk.append("f", b" lost").await.unwrap();
        assert_eq!(content(&sim(&state)).await.as_deref(), Some("kept"));
        disk.crash();
        assert_eq!(content(&disk).await.as_deref(), Some("kept"));
    }

    #[tokio::test]
    async fn a_forgetful_disk_accepts_and_keeps_nothing() {
        let state = Arc::default();
        let disk = sim(&state).forgetful(true);
        disk.append("f", b"x").await.unwrap();
        disk.sync("f", "").await.unwrap();
        disk.write_atomic("f", b"y", "").await.unwrap();
        assert_eq!(content(&disk).await, None);
    }

    #[test]
    fn a_disk_state_survives_serialisation() {
        let mut state = DiskState::default();
        state.files.insert("f".to_owned(), "line\n".to_owned());
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<DiskState>(&text).unwrap(), state);
    }

    /// Kills at the first effect, before or after it.
    struct Killer {
        before: Fate,
    }

    impl Gate for Killer {
        fn before(&self, _: &Effect) -> Fate {
            self.before
        }
        fn after(&self, _: &Effect) -> Fate {
            Fate::Dead
        }
        fn fate(&self) -> Fate {
            Fate::Alive
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_before_the_sync_loses_the_record_and_one_after_keeps_it() {
        for (before, expected) in [(Fate::Dead, None), (Fate::Alive, Some("x"))] {
            let state = Arc::default();
            let disk = SimDisk::new(Arc::clone(&state), Arc::new(Killer { before }));
            disk.append("f", b"x").await.unwrap();
            let answer =
                tokio::time::timeout(std::time::Duration::from_secs(1), disk.sync("f", "")).await;
            assert!(answer.is_err(), "a dead process gets no answer");
            assert_eq!(content(&sim(&state)).await.as_deref(), expected);
        }
    }
}
