//! What is known about one workload cluster: the caches of its watches, and whether they are current.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use refit_kinds::{refit::HostPlan, version::StatedVersion};
use refit_runtime::{Clock, ObjectKey, Store, client::TooLarge};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::{
    agent_access::AgentAccess,
    api_error::{ReadError, is_silence},
    arrivals::Arrivals,
    k8sd::Proxies,
    shared_read::SharedRead,
    workload_objects::{NodeRecord, PodRecord},
};

/// How long after a session the next one begins.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The same after a cluster that answers lists, and no other calls, has done so again and again, or
/// after one that sends too much: each session costs many requests.
const RETRY_CEILING: Duration = Duration::from_mins(5);
/// How long the first lists may take before NodeUpdates report that they wait for them.
const SYNC_OVERDUE: Duration = Duration::from_secs(30);

/// The data from the watches of one workload cluster.
#[derive(Debug)]
pub(crate) struct ClusterView {
    /// HostPlans in the namespace `refit-system`.
    pub(crate) host_plans: Store<HostPlan>,
    /// When their reports arrived.
    pub(crate) arrivals: Arrivals,
    /// All Nodes.
    pub(crate) nodes: Store<NodeRecord>,
    /// Mirror pods of the control plane, in `kube-system`.
    pub(crate) static_pods: Store<PodRecord>,
    /// The pods that forward to k8sd.
    pub(crate) proxies: Proxies,
    /// The Nodes that have a Role for their agent.
    pub(crate) agent_access: AgentAccess,
    /// Reads apart from the watches.
    pub(crate) live: SharedRead<Result<(), ReadError>>,
    unreachable: AtomicBool,
    /// A call got no response.
    silence: Notify,
    /// The version that the API server reports; read where the control plane has no Machines.
    api_version: Mutex<StatedVersion>,
    /// Why the cluster is not watched: it sends too much.
    too_large: Mutex<Option<TooLarge>>,
    /// The NodeUpdates that are being reconciled.
    turns: Semaphore,
    /// When the watch began.
    since: OnceLock<Timestamp>,
    /// When all watches last had listed everything.
    complete_since: Mutex<Option<Timestamp>>,
}

impl ClusterView {
    pub(crate) fn new(
        host_plans: Store<HostPlan>,
        arrivals: Arrivals,
        turns: usize,
        since: Timestamp,
    ) -> Self {
        Self {
            host_plans,
            arrivals,
            nodes: Store::default(),
            static_pods: Store::default(),
            proxies: Proxies::default(),
            agent_access: AgentAccess::default(),
            live: SharedRead::default(),
            unreachable: AtomicBool::default(),
            silence: Notify::default(),
            api_version: Mutex::default(),
            too_large: Mutex::default(),
            turns: Semaphore::new(turns),
            since: since.into(),
            complete_since: Mutex::default(),
        }
    }

    /// A HostPlan, and when the report in it arrived.
    pub(crate) fn host_plan(
        &self,
        key: ObjectKey,
        now: Timestamp,
    ) -> (Option<Arc<HostPlan>>, Option<Timestamp>) {
        let plan = self.host_plans.get(&key);
        let reported_at = plan.as_deref().and_then(|plan| self.arrivals.note(key, plan, now));
        (plan, reported_at)
    }

    /// Waits until another NodeUpdate of the cluster may be reconciled.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turns.acquire().await.expect("the semaphore is never closed")
    }

    /// What the cluster sends too much of, if that is why it is not watched.
    pub(crate) fn too_large(&self) -> Option<TooLarge> {
        self.lock_too_large().clone()
    }

    /// The version that the API server last reported; absent where the control plane has Machines.
    pub(crate) fn api_version(&self) -> StatedVersion {
        self.api_version.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the version of the API server. An error of the API server leaves it unknown.
    pub(crate) async fn read_api_version(&self, client: &Client) -> kube::Result<()> {
        let read = match client.apiserver_version().await {
            Ok(info) => info.git_version.as_str().into(),
            Err(error) if is_silence(&error) => return Err(error),
            Err(_) => StatedVersion::Absent,
        };
        self.set_api_version(read);
        Ok(())
    }

    fn set_api_version(&self, version: StatedVersion) {
        *self.api_version.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }

    fn lock_too_large(&self) -> MutexGuard<'_, Option<TooLarge>> {
        self.too_large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the first list of every kind is complete.
    pub(crate) fn synced(&self) -> bool {
        self.host_plans.is_ready() && self.nodes.is_ready() && self.static_pods.is_ready()
    }

    /// Since when the data has been complete; `None` before it was for the first time.
    pub(crate) fn complete_since(&self) -> Option<Timestamp> {
        *self.lock_complete_since()
    }

    fn lock_complete_since(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.complete_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the first list of every kind is complete.
    pub(crate) async fn wait_synced(&self) {
        futures::join!(self.host_plans.ready(), self.nodes.ready(), self.static_pods.ready());
    }

    /// Records that every watch of the session has listed everything.
    pub(crate) fn session_synced(&self, now: Timestamp) {
        *self.lock_complete_since() = Some(now);
        *self.lock_too_large() = None;
        self.unreachable.store(false, Ordering::Relaxed);
    }

    /// Records the end of a session: what it delivered counts only after every kind that is watched in
    /// the workload cluster has been listed again. Returns whether that is news.
    pub(crate) fn session_ended(
        &self,
        too_large: Option<&TooLarge>,
        plans_in_workload: bool,
    ) -> bool {
        let was_synced = self.synced();
        let changed = self.lock_too_large().as_ref() != too_large;
        *self.lock_too_large() = too_large.cloned();
        self.unreachable.store(true, Ordering::Relaxed);
        self.set_api_version(StatedVersion::Absent);
        if plans_in_workload {
            self.host_plans.expect_list();
        }
        self.nodes.expect_list();
        self.static_pods.expect_list();
        self.proxies.expect_list();
        was_synced || changed
    }

    /// Whether the first lists are overdue and NodeUpdates must report it.
    pub(crate) fn is_overdue(&self, clock: &Clock) -> bool {
        let late = |since: &Timestamp| clock.elapsed(*since) > SYNC_OVERDUE;
        !self.synced() && self.since.get().is_some_and(late)
    }

    /// Whether a call to the cluster got no response, and its watches have not listed everything
    /// again since then.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// Waits until a call gets no response.
    pub(crate) async fn silent(&self) {
        self.silence.notified().await;
    }

    /// Records that a call got no response: all watches begin again.
    pub(crate) fn mark_unreachable(&self) {
        if !self.unreachable.swap(true, Ordering::Relaxed) {
            self.silence.notify_one();
        }
    }
}

/// The delay before the next session. A cluster may answer lists, and then no call of a NodeUpdate:
/// after each such session the delay doubles.
#[derive(Debug, Default)]
pub(crate) struct SessionDelay {
    broken_in_a_row: u32,
}

impl SessionDelay {
    /// The delay after a session of this view that `lasted` so long, and ended because the cluster
    /// sends too much, or for another reason.
    pub(crate) fn after(
        &mut self,
        view: &ClusterView,
        lasted: Duration,
        too_large: bool,
    ) -> Duration {
        if too_large {
            return RETRY_CEILING;
        }
        if lasted > RETRY_CEILING {
            self.broken_in_a_row = 0;
        }
        if !view.synced() {
            return RETRY_INTERVAL;
        }
        let delay = RETRY_INTERVAL * 2_u32.pow(self.broken_in_a_row.min(6));
        self.broken_in_a_row += 1;
        delay.min(RETRY_CEILING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(synced: bool) -> ClusterView {
        let view =
            ClusterView::new(Store::default(), Arrivals::default(), 1, Timestamp::UNIX_EPOCH);
        if synced {
            view.host_plans.mark_ready();
            view.nodes.mark_ready();
            view.static_pods.mark_ready();
        }
        view
    }

    #[test]
    fn sessions_that_end_soon_after_their_lists_follow_each_other_ever_more_slowly() {
        let seconds = |delay: &mut SessionDelay, synced, lasted| {
            delay.after(&view(synced), Duration::from_secs(lasted), false).as_secs()
        };
        let mut delay = SessionDelay::default();
        let unlisted: Vec<u64> = (0..3).map(|_| seconds(&mut delay, false, 10)).collect();
        assert_eq!(unlisted, [5, 5, 5], "the cluster is down, and will be back");
        let listed: Vec<u64> = (0..9).map(|_| seconds(&mut delay, true, 10)).collect();
        assert_eq!(listed, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(seconds(&mut delay, true, 301), 5, "a session that worked for long");
        let too_large = delay.after(&view(true), Duration::ZERO, true);
        assert_eq!(too_large, RETRY_CEILING);
    }
}
