//! With two controllers, only the holder of the Lease does the leader's work. Every such write by
//! another replica is recorded. Also whether a controller is at work at all.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use lab_apiserver::{ApiServer, ChangeKind, StoreEvent};
use refit_cluster_api::kinds;
use refit_kinds::{
    json::{name, text},
    refit,
};
use refit_runtime::gate::{Fate, Gate as _};
use serde_json::Value;

use crate::world::{Actor, Inner, Running, World, lock};

/// Maximum number of records kept: the first ones show the cause.
const MOST: usize = 5;
/// Prefix of the controllers' user agents; the whole user agent is the holder identity.
const CONTROLLER: &str = "refit-controller/";
/// How long a controller may take to bring up to date what changed while none was at work.
const CATCHES_UP: SignedDuration = SignedDuration::from_secs(10);

/// A leader's write made by a replica that does not hold the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceBreak {
    /// When the write happened.
    pub at: Timestamp,
    /// Identity of the writer.
    pub writer: String,
    /// Identity of the holder of the Lease.
    pub holder: String,
    /// Kind and name of the written object.
    pub object: String,
}

impl fmt::Display for FenceBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, writer, holder, object } = self;
        write!(f, "{at} {writer} wrote {object} while {holder:?} held the Lease")
    }
}

#[derive(Debug, Default)]
struct State {
    holder: String,
    /// When the holder got the Lease, if that was seen.
    since: Option<Timestamp>,
    found: Vec<FenceBreak>,
}

/// Tracks the Lease and observes every write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaders(Arc<Mutex<State>>);

impl Leaders {
    /// Starts to watch the management cluster.
    pub(crate) fn follow_management(&self, server: &ApiServer) {
        let leases = server.list_values("coordination.k8s.io", "leases", None);
        if let Some(lease) = leases.iter().find(|lease| is_controller_lease(lease)) {
            text(lease, "/spec/holderIdentity").clone_into(&mut lock(&self.0).holder);
        }
        let state = self.0.clone();
        server.observe(Box::new(move |event| {
            if &*event.resource.kind == "Lease" {
                let lease: Value = serde_json::from_slice(event.new).unwrap_or_default();
                let (holder, mut state) = (text(&lease, "/spec/holderIdentity"), lock(&state));
                if is_controller_lease(&lease) && holder != state.holder {
                    holder.clone_into(&mut state.holder);
                    state.since = Some(event.now);
                }
            } else if is_leaders(event) {
                judge(&state, event);
            }
        }));
    }

    /// Starts to watch a workload cluster, in which every write is the leader's.
    pub(crate) fn follow_workload(&self, server: &ApiServer) {
        let state = self.0.clone();
        server.observe(Box::new(move |event| judge(&state, event)));
    }
}

impl Inner {
    /// Whether a controller has been at work for so long that what it maintains is up to date.
    pub(crate) fn is_led(&self, now: Timestamp) -> bool {
        let has_caught_up = |since: Timestamp| now.duration_since(since) >= CATCHES_UP;
        let leads = |identity: &str| {
            let state = lock(&self.leaders.0);
            state.holder == identity && state.since.is_some_and(has_caught_up)
        };
        let is_at_work = |(actor, running): (&Actor, &Running)| {
            actor.is_controller()
                && running.switch.fate() == Fate::Alive
                && has_caught_up(running.since)
                && (!self.two_controllers || leads(&actor.user_agent(running.incarnation)))
        };
        lock(&self.processes).iter().any(is_at_work)
    }
}

impl World {
    /// The leader's writes that were made by another replica.
    pub fn fence_breaks(&self) -> Vec<FenceBreak> {
        lock(&self.inner.leaders.0).found.clone()
    }
}

fn is_controller_lease(lease: &Value) -> bool {
    name(lease) == crate::world::LEASE
}

/// Whether a write to the management cluster is reserved for the leader. Hooks, which every replica
/// serves, create NodeUpdates and groups, stop a NodeUpdate, and write decisions, but no slots, to
/// a group.
fn is_leaders(event: &StoreEvent<'_>) -> bool {
    let kind: &str = &event.resource.kind;
    match &*event.resource.group {
        kinds::CORE_GROUP => kind == "Machine",
        refit::GROUP => {
            let (old, new) = (status(event.old), status(Some(event.new)));
            match kind {
                "NodeUpdate" => old != new,
                "UpdateGroup" => slots(&old) != slots(&new),
                _ => false,
            }
        }
        _ => false,
    }
}

fn status(object: Option<&Bytes>) -> Value {
    let object: Value =
        object.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    object.get("status").cloned().unwrap_or_default()
}

/// The slots of a group. A group without slots equals one with an empty list.
fn slots(status: &Value) -> &[Value] {
    let slots = status.get("slots").and_then(Value::as_array);
    slots.map_or(&[], Vec::as_slice)
}

fn judge(state: &Mutex<State>, event: &StoreEvent<'_>) {
    // Garbage collection carries the user agent of the write that triggered it.
    let by_controller =
        event.user_agent.starts_with(CONTROLLER) && event.kind != ChangeKind::Deleted;
    let mut state = lock(state);
    if by_controller && event.user_agent != state.holder && state.found.len() < MOST {
        let found = FenceBreak {
            at: event.now,
            writer: event.user_agent.to_owned(),
            holder: state.holder.clone(),
            object: format!("{} {}", event.resource.kind, event.name),
        };
        state.found.push(found);
    }
}
