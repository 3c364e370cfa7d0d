//! Records what a flow does to the objects of a rollout, and compares it with a recording.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use refit_runtime::Clock;
use tokio::task::JoinHandle;

use crate::{
    bed::Bed,
    cluster::Cluster,
    fixtures,
    history::{self, Sighting},
    lock,
    objects::{CONTROL_PLANE, Kind, MACHINE, MACHINE_DEPLOYMENT, MACHINE_SET, Objects},
    parts::Line,
};

/// The recorded kinds.
const KINDS: [Kind; 4] = [CONTROL_PLANE, MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE];
/// A flow has ended after no change for this duration.
const QUIET: Duration = Duration::from_secs(4);
/// How long to wait for the end of a flow.
const PATIENCE: Duration = Duration::from_mins(1);
/// Delay before a watch that ended is restarted.
const WATCH_RETRY: Duration = Duration::from_millis(200);

/// Records the changes in a namespace until it is dropped.
#[derive(Debug)]
pub struct Recorder {
    namespace: String,
    seen: Arc<Mutex<Vec<Sighting>>>,
    since: u64,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Recorder {
    /// Starts recording.
    pub async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let seen: Arc<Mutex<Vec<Sighting>>> = Arc::default();
        let objects = &cluster.objects;
        let mut tasks = Vec::new();
        let mut since = 0;
        for kind in KINDS {
            let (list, revision) = objects.list_at(kind).await?;
            lock(&seen).extend(list.into_iter().map(Sighting::of));
            since = since.max(revision.parse().unwrap_or_default());
            tasks.push(tokio::spawn(watch(objects.clone(), kind, revision, seen.clone())));
        }
        Ok(Self { namespace: cluster.namespace.clone(), seen, since, tasks })
    }

    /// Waits until no more changes happen, and returns the history.
    pub async fn history(&self) -> String {
        let clock = Clock::real();
        let since = clock.now();
        let mut before = None;
        loop {
            let now = history::reduce(lock(&self.seen).clone(), self.since);
            if before.as_ref() == Some(&now) || clock.elapsed(since) > PATIENCE {
                return now;
            }
            before = Some(now);
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Returns the number of Machines of a group that are not being deleted, at the start and after each change so far.
    pub fn counts(&self, group: &str) -> Vec<usize> {
        history::counts(lock(&self.seen).clone(), self.since, group)
    }

    /// Compares the history with the fixture of this name. With [`fixtures::RECORD`] set, writes
    /// the fixture instead, and the calls of Refit's hooks with it.
    pub async fn compare(&self, bed: &Bed, name: &str) -> anyhow::Result<()> {
        let found = self.history().await;
        let path = fixture(bed.line, name);
        if let Some(tap) = bed.tap() {
            fixtures::write(&path, &found)?;
            return tap.write(bed.line, name, Some(&self.namespace));
        }
        let wanted = fixtures::read(&path)?;
        let differences = history::differences(&wanted, &found);
        anyhow::ensure!(
            differences.is_empty(),
            "the history differs from {}; if the change is intended, run this flow with {}=1:\n{}",
            path.display(),
            fixtures::RECORD,
            differences.join("\n")
        );
        Ok(())
    }
}

/// Path of a recorded history.
pub fn fixture(line: Line, name: &str) -> PathBuf {
    fixtures::directory().join(format!("histories/{line}/{name}.txt"))
}

async fn watch(
    objects: Objects,
    kind: Kind,
    mut revision: String,
    seen: Arc<Mutex<Vec<Sighting>>>,
) {
    let api = objects.api(kind);
    loop {
        let outcome = async {
            let events = api.watch(&WatchParams::default(), &revision).await?;
            let mut events = events.boxed();
            while let Some(event) = events.try_next().await? {
                let (object, gone) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(mark) => {
                        revision = mark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(error) => return Err(kube::Error::Api(error)),
                };
                let mut sighting = Sighting::of(value(&object));
                sighting.gone = gone;
                revision = sighting.revision.to_string();
                lock(&seen).push(sighting);
            }
            Ok(())
        };
        if let Err(error) = outcome.await {
            tracing::warn!("a watch of {} ended: {error}", kind.name());
        }
        tokio::time::sleep(WATCH_RETRY).await;
    }
}

fn value(object: &DynamicObject) -> serde_json::Value {
    serde_json::to_value(object).expect("an object of the API is valid JSON")
}
