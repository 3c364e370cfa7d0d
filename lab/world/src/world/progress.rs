//! The progress of every machine of a world, for display.

use std::sync::Arc;

use kube::Api;
use refit_cluster_api::kinds::Machine;
pub use refit_core::progress::MachineProgress;
use refit_kinds::refit::NodeUpdate;
use refit_runtime::{
    Store,
    store::{everything, reflect},
};
use tokio::{sync::watch, task::AbortHandle};

use super::{World, WorldError};

/// User agent of the client that watches.
const WATCHER: &str = "refit-sandbox-progress";

/// Snapshots of all machines' progress, each sorted by name; only the latest one counts.
#[derive(Debug)]
pub struct ProgressFeed {
    receiver: watch::Receiver<Vec<MachineProgress>>,
    task: AbortHandle,
}

impl Drop for ProgressFeed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProgressFeed {
    /// Waits for a change and returns the progress of all machines; `None` once the world is gone.
    pub async fn next(&mut self) -> Option<Vec<MachineProgress>> {
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }

    /// The current progress of all machines.
    pub fn current(&self) -> Vec<MachineProgress> {
        self.receiver.borrow().clone()
    }
}

impl World {
    /// Watches all machines with a separate client.
    pub fn subscribe(&self) -> Result<ProgressFeed, WorldError> {
        let client = self.client(WATCHER)?;
        let (sender, receiver) = watch::channel(Vec::new());
        let sender = Arc::new(sender);
        let machines: Store<Machine> = Store::default();
        let updates: Store<NodeUpdate> = Store::default();
        let publish = {
            let (machines, updates) = (machines.clone(), updates.clone());
            move || {
                let rows = rows(&machines.list(), &updates.list());
                sender.send_if_modified(|old| {
                    let changed = *old != rows;
                    *old = rows;
                    changed
                });
            }
        };
        let again = publish.clone();
        let task = async move {
            let watch_machines =
                reflect(Api::<Machine>::all(client.clone()), everything(), machines, |_| publish());
            let watch_updates =
                reflect(Api::<NodeUpdate>::all(client), everything(), updates, |_| again());
            futures::join!(watch_machines, watch_updates);
        };
        Ok(ProgressFeed { receiver, task: self.inner.spawn(task) })
    }
}

fn rows(machines: &[Arc<Machine>], updates: &[Arc<NodeUpdate>]) -> Vec<MachineProgress> {
    machines
        .iter()
        .map(|machine| MachineProgress::of(machine, updates.iter().map(|update| &**update)))
        .collect()
}
