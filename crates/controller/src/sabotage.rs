//! Controllers without one safeguard. A crash sweep uses them to prove that it detects the loss.
//!
//! Compiled only with the feature `sabotage`, which no released binary has.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use jiff::SignedDuration;
use kube::{Api, ResourceExt as _, api::PostParams};
use refit_core::group::Limits;
use refit_kinds::refit::{MachineUid, NodeUpdate, Origin, Slot, UpdateGroupStatus};
use refit_runtime::{Clock, lease::Leadership};

use crate::ControllerOptions;

/// The safeguard to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safeguard {
    /// A NodeUpdate claims a slot of its group by compare-and-swap before it disturbs anything.
    /// Without it, each NodeUpdate keeps its slot in the process's memory and sees no other slots.
    Slot,
    /// A request is found again by the ordinal in the NodeUpdate's name, whose creation is a
    /// compare-and-swap. Without it, only one process knows the request.
    Ordinal,
    /// Of several controllers, only the holder of the Lease makes the leader's writes.
    Lease,
    /// What disturbs a machine is decided on a live read. Without it, the caches decide.
    LiveRead,
    /// The update of a host that does not return ends. Without it, the update waits for ever.
    HostLost,
}

/// Runs the process as [`crate::run`] does, without one safeguard.
pub fn run_without(
    options: ControllerOptions,
    safeguard: Safeguard,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(crate::run_to_end(options, Sabotage::of(safeguard)))
}

/// The safeguard that one process lacks, and the memory that replaces it.
#[derive(Debug, Default)]
pub(crate) struct Sabotage {
    without: Option<Safeguard>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Names of the NodeUpdates that this process created.
    created: BTreeSet<String>,
    /// Slots by the uid of their Machine.
    slots: BTreeMap<MachineUid, Slot>,
}

impl Sabotage {
    pub(crate) fn of(safeguard: Safeguard) -> Arc<Self> {
        Arc::new(Self { without: Some(safeguard), memory: Mutex::default() })
    }

    fn lacks(&self, safeguard: Safeguard) -> bool {
        self.without == Some(safeguard)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leadership that fences writes.
    pub(crate) fn fence(&self, leadership: Leadership, clock: Clock) -> Leadership {
        if self.lacks(Safeguard::Lease) { Leadership::alone(clock) } else { leadership }
    }

    /// Never returns if the process continues without its Lease.
    pub(crate) async fn ignore_lost_lease(&self) {
        if self.lacks(Safeguard::Lease) {
            pending::<()>().await;
        }
    }

    /// Whether decisions rest on the caches alone.
    pub(crate) fn trusts_caches(&self) -> bool {
        self.lacks(Safeguard::LiveRead)
    }

    /// When a host counts as lost.
    pub(crate) fn host_lost_after(&self, limit: Option<SignedDuration>) -> Option<SignedDuration> {
        limit.filter(|_| !self.lacks(Safeguard::HostLost))
    }

    /// Limits a NodeUpdate's view to the slot that this process keeps for its Machine.
    pub(crate) fn own_slot(
        &self,
        machine_uid: &MachineUid,
        mut status: UpdateGroupStatus,
        mut limits: Limits,
    ) -> (UpdateGroupStatus, Limits) {
        if self.lacks(Safeguard::Slot) {
            status.slots = self.memory().slots.get(machine_uid).cloned().into_iter().collect();
            limits.max_unavailable = limits.replicas;
        }
        (status, limits)
    }

    /// Keeps a Machine's slot in memory; returns whether this replaced the write.
    pub(crate) fn keep_slot(&self, machine_uid: &MachineUid, next: &UpdateGroupStatus) -> bool {
        let lacks = self.lacks(Safeguard::Slot);
        if lacks {
            let slots = &mut self.memory().slots;
            match next.slots.iter().find(|slot| slot.machine_uid == *machine_uid) {
                Some(slot) => slots.insert(machine_uid.clone(), slot.clone()),
                None => slots.remove(machine_uid),
            };
        }
        lacks
    }

    /// Hides the NodeUpdates of hooks that another process created.
    pub(crate) fn forget_requests(&self, mut known: Vec<Arc<NodeUpdate>>) -> Vec<Arc<NodeUpdate>> {
        if self.lacks(Safeguard::Ordinal) {
            let created = &self.memory().created;
            known.retain(|update| {
                update.spec.origin != Origin::Hook || created.contains(&update.name_any())
            });
        }
        known
    }

    /// Creates the NodeUpdate with a generated name; `None` if names have ordinals.
    pub(crate) async fn create_unnumbered(
        &self,
        api: &Api<NodeUpdate>,
        update: &NodeUpdate,
    ) -> kube::Result<Option<NodeUpdate>> {
        if !self.lacks(Safeguard::Ordinal) {
            return Ok(None);
        }
        let mut update = update.clone();
        update.metadata.generate_name = Some(format!("{}-", update.spec.machine_ref.name));
        update.metadata.name = None;
        let made = api.create(&PostParams::default(), &update).await?;
        self.memory().created.insert(made.name_any());
        Ok(Some(made))
    }
}
