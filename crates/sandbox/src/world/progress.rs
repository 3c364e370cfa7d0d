//! How far every machine is, for people who watch.

use std::sync::Arc;

use kube::{Api, ResourceExt as _};
use refit_api::{
    capi::Machine,
    keys,
    refit::{NodeUpdate, Phase, StepState, ordinal_of},
};
use refit_kube::{
    Store,
    store::{everything, reflect},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::AbortHandle};

use super::{World, WorldError, facts::owner_of};

/// User agent of whoever watches.
const WATCHER: &str = "refit-sandbox-progress";

/// How far one machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineProgress {
    /// Name of the Machine.
    pub machine: String,
    /// Name of its Node, empty before it has one.
    pub node: String,
    /// KubeadmControlPlane or MachineDeployment that it belongs to, as `Kind/name`.
    pub owner: String,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// Cluster API's phase of the Machine: `Provisioning`, `Running`, `Updating`, `Deleting`.
    pub machine_phase: String,
    /// Version that the Machine is to have.
    pub wanted_version: String,
    /// Version of its kubelet.
    pub kubelet_version: String,
    /// Its newest NodeUpdate, empty where there is none.
    pub node_update: String,
    /// How far that is; absent where there is none.
    pub phase: Option<Phase>,
    /// The step that is under way, empty where none is.
    pub step: String,
    /// 0 to 100.
    pub percent: i32,
    /// Predicted rest, where there is something to predict from.
    pub remaining_seconds: Option<i32>,
    /// What happens, or what it waits for.
    pub message: String,
}

/// Snapshots of all machines' progress, each sorted by name; the newest counts.
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
    /// Waits for a change and returns how far all machines are; `None` once the world is gone.
    pub async fn next(&mut self) -> Option<Vec<MachineProgress>> {
        self.receiver.changed().await.ok()?;
        Some(self.receiver.borrow_and_update().clone())
    }

    /// How far all machines are now.
    pub fn current(&self) -> Vec<MachineProgress> {
        self.receiver.borrow().clone()
    }
}

impl World {
    /// Watches all machines with a client of its own.
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
            let watch_machines = reflect(
                Api::<Machine>::all(client.clone()),
                everything(),
                machines,
                |_| publish(),
            );
            let watch_updates = reflect(
                Api::<NodeUpdate>::all(client),
                everything(),
                updates,
                |_| again(),
            );
            futures::join!(watch_machines, watch_updates);
        };
        Ok(ProgressFeed {
            receiver,
            task: self.inner.spawn(task),
        })
    }
}

fn rows(machines: &[Arc<Machine>], updates: &[Arc<NodeUpdate>]) -> Vec<MachineProgress> {
    machines
        .iter()
        .map(|machine| row(machine, updates))
        .collect()
}

fn row(machine: &Machine, updates: &[Arc<NodeUpdate>]) -> MachineProgress {
    let name = machine.name_any();
    let uid = machine.uid().unwrap_or_default();
    let newest = updates
        .iter()
        .filter(|update| update.spec.machine_ref.uid == uid)
        .max_by_key(|update| ordinal_of(&update.name_any(), &name));
    let status = machine.status.as_ref();
    let mut row = MachineProgress {
        node: status
            .and_then(|status| status.node_ref.as_ref())
            .map(|node| node.name.clone())
            .unwrap_or_default(),
        owner: owner_of(machine),
        control_plane: machine.labels().contains_key(keys::CONTROL_PLANE),
        machine_phase: status
            .and_then(|status| status.phase.clone())
            .unwrap_or_default(),
        wanted_version: machine.spec.version.clone().unwrap_or_default(),
        kubelet_version: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
        machine: name,
        ..MachineProgress::default()
    };
    if let Some(update) = newest {
        row.node_update = update.name_any();
        let status = update.status.clone().unwrap_or_default();
        row.phase = Some(status.phase);
        row.step = status
            .steps
            .iter()
            .find(|step| step.state == StepState::Running)
            .map(|step| step.name.clone())
            .unwrap_or_default();
        if let Some(progress) = &status.progress {
            row.percent = progress.percent;
            row.remaining_seconds = progress.remaining_seconds;
        }
        if status.phase == Phase::Succeeded {
            row.percent = 100;
        }
        row.message = if status.failure_message.is_empty() {
            status.message
        } else {
            status.failure_message
        };
    }
    row
}
