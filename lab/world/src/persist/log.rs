//! Writing down each change.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Write as _},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use tokio::sync::Notify;

use super::{
    folder::{self, PersistError},
    record::{self, FORMAT, Record},
};
use crate::{
    env::state::EnvState,
    snapshot::Snapshot,
    world::{HostSnapshot, lock},
};

/// From how many bytes of changes on a file is rewritten: less is not worth the work.
const LONG_BYTES: u64 = 8 * 1024 * 1024;

/// Where the lines go.
enum Target {
    /// A file of a data folder, open from the first world on.
    File { file: Option<Arc<File>>, path: PathBuf },
    /// Memory, for whoever wants to look at every prefix.
    Memory(Vec<u8>),
}

struct State {
    target: Target,
    seq: u64,
    /// Bytes of the whole world, and of the changes after it.
    world_bytes: u64,
    change_bytes: u64,
    /// What was written last of each host and of the environment.
    hosts: BTreeMap<String, HostSnapshot>,
    env: EnvState,
    begun: bool,
    /// Why nothing is written any more.
    failed: Option<Arc<io::Error>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
    failed: Notify,
}

/// The file that a world writes down what happens in. Clones are handles on the same file.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

impl Log {
    /// A log in memory.
    pub(super) fn in_memory() -> Self {
        Self::new(Target::Memory(Vec::new()))
    }

    /// A log in a file. Whatever stands there stays until a world begins its own.
    pub(super) fn in_file(path: PathBuf) -> Self {
        Self::new(Target::File { file: None, path })
    }

    fn new(target: Target) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                target,
                seq: 0,
                world_bytes: 0,
                change_bytes: 0,
                hosts: BTreeMap::new(),
                env: EnvState::default(),
                begun: false,
                failed: None,
            }),
            changed: Notify::new(),
            failed: Notify::new(),
        }))
    }

    /// Begins with a world; changes are written from here on.
    pub(crate) fn begin(&self, world: Snapshot) {
        self.rewrite(world);
        lock(&self.0.state).begun = true;
    }

    pub(crate) fn has_begun(&self) -> bool {
        lock(&self.0.state).begun
    }

    /// Writes a record down. The caller may hold whatever the record is about: nothing else is
    /// locked in here.
    pub(crate) fn write(&self, at: Timestamp, record: &Record) {
        self.append(&mut lock(&self.0.state), at, record);
    }

    fn append(&self, state: &mut State, at: Timestamp, record: &Record) {
        // After a failure the file may end in half a line: nothing may follow that.
        if state.failed.is_some() {
            return;
        }
        let line = record::encode(state.seq + 1, at, record);
        let outcome = match &mut state.target {
            Target::File { file: Some(file), .. } => (&**file).write_all(&line),
            // Nothing is written before a world has begun.
            Target::File { file: None, .. } => Ok(()),
            Target::Memory(bytes) => {
                bytes.extend_from_slice(&line);
                Ok(())
            }
        };
        match outcome {
            Ok(()) => {
                state.seq += 1;
                state.change_bytes += line.len() as u64;
                self.0.changed.notify_one();
            }
            Err(error) => self.fail(state, error),
        }
    }

    fn fail(&self, state: &mut State, error: io::Error) {
        tracing::error!("the world is not written down any more: {error}");
        state.failed = Some(Arc::new(error));
        self.0.failed.notify_one();
    }

    /// Writes down how a host changed.
    pub(crate) fn host(&self, at: Timestamp, key: &str, now: HostSnapshot) {
        let mut state = lock(&self.0.state);
        if let Some(record) = record::host_change(key, state.hosts.get(key), &now) {
            self.append(&mut state, at, &record);
            state.hosts.insert(key.to_owned(), now);
        }
    }

    /// Writes down what the environment remembers, where that is news.
    pub(crate) fn env(&self, at: Timestamp, now: &EnvState) {
        let mut state = lock(&self.0.state);
        if state.env != *now {
            self.append(&mut state, at, &Record::Env(Box::new(now.clone())));
            state.env = now.clone();
        }
    }

    /// Waits for the next change.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Waits until the file cannot be written any more, and says why.
    pub async fn failed(&self) -> PersistError {
        loop {
            self.0.failed.notified().await;
            let state = lock(&self.0.state);
            if let (Some(source), Target::File { path, .. }) = (&state.failed, &state.target) {
                return PersistError::file(path, io::Error::new(source.kind(), source.clone()));
            }
        }
    }

    /// Whether the changes are more than what a rewrite would leave.
    pub(super) fn is_long(&self) -> bool {
        let state = lock(&self.0.state);
        matches!(state.target, Target::File { .. })
            && state.failed.is_none()
            && state.change_bytes > LONG_BYTES.max(state.world_bytes)
    }

    /// Puts a file in the place of this one that holds the world as it is now and nothing else.
    /// Until the new file has its name the old one is good.
    pub(super) fn rewrite(&self, world: Snapshot) {
        let mut state = lock(&self.0.state);
        let world = world.kept();
        let record = Record::World { format: FORMAT, world: Box::new(world.clone()) };
        let line = record::encode(state.seq + 1, world.time, &record);
        let bytes = line.len() as u64;
        let outcome = match &mut state.target {
            Target::Memory(bytes) => {
                *bytes = line;
                Ok(())
            }
            Target::File { file, path } => folder::replace(path, &line).map(|new| {
                *file = Some(Arc::new(new));
            }),
        };
        if let Err(error) = outcome {
            self.fail(&mut state, error);
            return;
        }
        state.seq += 1;
        state.world_bytes = bytes;
        state.change_bytes = 0;
        state.hosts = world.hosts;
        state.env = world.env;
    }

    /// Makes durable what was written.
    pub(crate) async fn sync(&self) {
        let file = match &lock(&self.0.state).target {
            Target::File { file: Some(file), .. } => file.clone(),
            _ => return,
        };
        let outcome = tokio::task::spawn_blocking(move || file.sync_data()).await;
        if let Ok(Err(error)) = outcome {
            self.fail(&mut lock(&self.0.state), error);
        }
    }

    /// What stands in the log, where that is in memory.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match &lock(&self.0.state).target {
            Target::Memory(bytes) => bytes.clone(),
            Target::File { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{
        persist::Folder,
        snapshot,
        world::{World, WorldOptions, runtime},
    };

    /// A world without anything in it.
    async fn empty() -> Snapshot {
        let world = World::new(WorldOptions::new(Vec::new())).await.unwrap();
        world.snapshot()
    }

    fn with_log(log: &Log) -> WorldOptions {
        WorldOptions { log: Some(log.clone()), ..WorldOptions::new(Vec::new()) }
    }

    async fn write_something(world: &World, name: &str) {
        let body = json!({"metadata": {"name": name}, "data": {}});
        let path = "/api/v1/namespaces/default/configmaps";
        crate::direct::Direct::new(world.management().clone(), crate::direct::USER)
            .send(crate::direct::Call::create(path, body))
            .await
            .unwrap();
    }

    #[test]
    fn a_rewritten_file_is_short_and_what_follows_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let log = folder.log();
        let revision = runtime().unwrap().block_on(async {
            let world = World::restore(&empty().await, &with_log(&log)).unwrap();
            world.pass(Duration::from_secs(10)).await;
            write_something(&world, "before").await;
            let seq = lock(&log.0.state).seq;
            log.rewrite(snapshot::take(&world.inner));
            assert_eq!(lock(&log.0.state).seq, seq + 1);
            write_something(&world, "after").await;
            world.management().revision()
        });
        let kept = folder.load().unwrap().unwrap();
        assert_eq!(kept.management.revision(), revision);
        let text = std::fs::read_to_string(folder.path().join("world.log")).unwrap();
        assert!(text.lines().count() < 10);
        runtime().unwrap().block_on(async {
            let world = World::restore(&kept, &WorldOptions::new(Vec::new())).unwrap();
            for name in ["before", "after"] {
                let found = world.management().get_value("", "configmaps", "default", name);
                assert!(found.is_some(), "{name}");
            }
        });
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_and_never_written_again() {
        let place = tempfile::tempdir().unwrap();
        let log = Log::in_file(place.path().join("missing/world.log"));
        runtime().unwrap().block_on(async {
            let world = World::restore(&empty().await, &with_log(&log)).unwrap();
            let error = log.failed().await.to_string();
            assert!(error.contains("missing/world.log cannot be used"), "{error}");
            write_something(&world, "more").await;
            assert_eq!(lock(&log.0.state).seq, 0);
        });
    }
}
