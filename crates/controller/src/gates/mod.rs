//! Checks the health gates of groups: asks Prometheus, and reads the objects.
//!
//! One check serves every machine of a group that asked for it before it began. A closed gate is believed for some seconds,
//! an open one never: what begins rests on a check that was made for it.

mod expressions;
mod objects;
mod prometheus;
mod turns;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use refit_core::gates::{ClosedGate, GatedCluster, GatesRead, check_cluster};
use refit_kinds::refit::{GateTest, PacingGate};
use refit_runtime::ObjectKey;

pub(crate) use self::prometheus::Prometheus;
use self::turns::Turns;
use crate::{
    cluster_health, context::Context, node_update::look::WorkloadCluster, shared_read::SharedRead,
};

/// How long a request for a gate may take, once it is its turn.
const DEADLINE: Duration = Duration::from_secs(10);
/// How many gates on objects are checked at once, and how many of one namespace.
const OBJECTS_AT_ONCE: (usize, usize) = (4, 2);
/// For how long a closed gate is believed to be closed.
const CLOSED_FOR: SignedDuration = SignedDuration::from_secs(20);
/// For how long the last check counts where nothing is begun on it.
const RECENT_FOR: SignedDuration = SignedDuration::from_secs(45);

/// The checks of all groups.
pub(crate) struct Gates {
    prometheus: Prometheus,
    objects: Turns,
    groups: Mutex<BTreeMap<ObjectKey, Arc<OfGroup>>>,
}

/// The checks of one group.
#[derive(Default)]
struct OfGroup {
    checks: SharedRead<Arc<GatesRead>>,
    last: Mutex<Option<(Timestamp, Arc<GatesRead>)>>,
}

impl OfGroup {
    /// The last check, if it is not older than this.
    fn last(&self, now: Timestamp, age: SignedDuration) -> Option<Arc<GatesRead>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, read) = last.as_ref()?;
        let is_recent = *at <= now && now.duration_since(*at) < age;
        is_recent.then(|| read.clone())
    }
}

impl Gates {
    pub(crate) fn new(prometheus: Prometheus) -> Self {
        let (all, of_namespace) = OBJECTS_AT_ONCE;
        Self { prometheus, objects: Turns::new(all, of_namespace), groups: Mutex::default() }
    }

    /// What the last check of a group has found, as long as a closed gate is believed.
    pub(crate) fn known_closed(&self, ctx: &Context, group: &ObjectKey) -> Option<Arc<GatesRead>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let last = groups.get(group)?.last(ctx.clock.now(), CLOSED_FOR)?;
        (!last.closed.is_empty()).then_some(last)
    }

    /// Checks the gates of a group now, or waits for a check that begins after this call.
    pub(crate) async fn check(
        &self,
        ctx: &Context,
        group: &ObjectKey,
        cluster: &WorkloadCluster,
    ) -> Arc<GatesRead> {
        let of_group = self.of(group);
        let check = async {
            let read = Arc::new(self.read(ctx, group, cluster).await);
            let now = ctx.clock.now();
            *of_group.last.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((now, read.clone()));
            read
        };
        of_group.checks.share(Box::pin(check)).await
    }

    /// What was found a moment ago, where nothing is begun on it; otherwise the gates are checked now.
    pub(crate) async fn recent(
        &self,
        ctx: &Context,
        group: &ObjectKey,
        cluster: &WorkloadCluster,
    ) -> Arc<GatesRead> {
        let recent = self.of(group).last(ctx.clock.now(), RECENT_FOR);
        match recent.filter(|read| read.gates == gates_of(ctx, group)) {
            Some(read) => read,
            None => self.check(ctx, group, cluster).await,
        }
    }

    /// Forgets a group that does not exist any more.
    pub(crate) fn forget(&self, group: &ObjectKey) {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
    }

    fn of(&self, group: &ObjectKey) -> Arc<OfGroup> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.entry(group.clone()).or_default().clone()
    }

    async fn read(&self, ctx: &Context, group: &ObjectKey, cluster: &WorkloadCluster) -> GatesRead {
        let gates = gates_of(ctx, group);
        let found = join_all(gates.iter().map(|gate| async {
            let outcome = Box::pin(self.gate(ctx, gate, cluster)).await;
            outcome.err().map(|why| ClosedGate::new(&gate.name, &why))
        }));
        let closed = found.await.into_iter().flatten().collect();
        GatesRead { gates, closed }
    }

    /// Whether a gate is open; otherwise the error is why not.
    async fn gate(
        &self,
        ctx: &Context,
        gate: &PacingGate,
        cluster: &WorkloadCluster,
    ) -> Result<(), String> {
        let of = GatedCluster { namespace: &cluster.key.namespace, name: &cluster.key.name };
        match gate.test() {
            Some(GateTest::Checks(checks)) => {
                let read = cluster_health::read(ctx, cluster).await;
                read.map_err(|error| error.to_string())?;
                check_cluster(checks, cluster_health::seen(ctx, &cluster.key)?)
            }
            Some(GateTest::Alerts(alerts)) => self.prometheus.alerts(alerts, &of).await,
            Some(GateTest::Query(query)) => self.prometheus.query(query, &of).await,
            Some(GateTest::Objects(objects)) => {
                let turn = self.objects.next(of.namespace).await?;
                let read = within_deadline(objects::read(ctx, objects, &cluster.key)).await?;
                expressions::judge(turn, objects, read).await
            }
            None => Err("it needs exactly one of checks, alerts, query and objects".to_owned()),
        }
    }
}

/// The result of requests, if it arrives in time.
async fn within_deadline<T>(
    requests: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let late = |_| Err(format!("it could not be checked within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, Box::pin(requests)).await.unwrap_or_else(late)
}

fn gates_of(ctx: &Context, group: &ObjectKey) -> Vec<PacingGate> {
    let object = ctx.stores.update_groups.get(group);
    object.map(|object| object.spec.pacing.gates.clone()).unwrap_or_default()
}
