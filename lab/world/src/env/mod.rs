//! The simulated environment: the rest of a real cluster, without Cluster API and Refit.
//!
//! | module | simulates |
//! |---|---|
//! | [`canonical`] | the control plane and bootstrap providers of Canonical Kubernetes |
//! | [`infrastructure`] | infrastructure and bootstrap providers, and the Cluster controller |
//! | [`kubelet`] | kubelets: Nodes, mirror pods, pods that start and end |
//! | [`workloads`] | ReplicaSet, DaemonSet and scheduler of a workload cluster |
//! | [`managers`] | the Deployments by which a Cluster API installation is recognized |
//! | [`setup`] | the objects that `kubeadm init` leaves in a new cluster, and an application |
//! | [`quorum`] | etcd: whether the API of a workload cluster is up |
//! | [`trouble`] | failures that a user requests by an annotation |
//! | [`state`] | the environment's own state outside the API: its hosts |
//!
//! The environment is not a process of Refit and is never killed. Each pass reads everything
//! (mirrors of the API stores, hosts, the time) and returns the writes that are due; a pass right
//! after those writes returns none. So a world restored from a snapshot continues by itself.

pub(crate) mod canonical;
pub(crate) mod infrastructure;
pub(crate) mod kubelet;
pub(crate) mod managers;
pub(crate) mod quorum;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod state;
pub(crate) mod trouble;
pub(crate) mod workloads;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::HostView;
pub(crate) use lab_simhost::kubelet::short_hash;
use refit_kinds::json::{flag, name, namespace, text, time};

use crate::{
    direct::Call,
    mirror::{Changed, Mirror},
};
use state::EnvState;

/// How long a machine takes from its request until kubeadm has finished on it.
pub(crate) const BOOT: SignedDuration = SignedDuration::from_secs(40);
/// Upper bound of the extra boot time per machine, which a hash of its name determines.
pub(crate) const BOOT_SPREAD_SECONDS: u64 = 8;
/// How long an ordinary pod takes to become ready.
pub(crate) const POD_START: SignedDuration = SignedDuration::from_secs(5);
/// How long a static pod takes to become ready.
pub(crate) const STATIC_POD_START: SignedDuration = SignedDuration::from_secs(2);
/// How often an idle kubelet reports. Real kubelets report every 5 minutes if nothing changes.
pub(crate) const HEARTBEAT: SignedDuration = SignedDuration::from_secs(300);
/// How long a kubelet may be down before its Node counts as unreachable: the node monitor grace
/// period.
pub(crate) const SILENCE: SignedDuration = SignedDuration::from_secs(50);
/// When the environment retries after a rejected write.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The API that receives a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The management cluster.
    Management,
    /// The workload cluster with this key.
    Workload(String),
}

/// The result of one pass.
#[derive(Debug, Default)]
pub(crate) struct PassWrites {
    /// The writes, in order.
    pub(crate) calls: Vec<(Target, Call)>,
    /// When the next pass is due if nothing changes earlier.
    pub(crate) wake: Option<Timestamp>,
}

impl PassWrites {
    pub(crate) fn management(&mut self, call: Call) {
        self.calls.push((Target::Management, call));
    }

    pub(crate) fn workload(&mut self, cluster: &str, call: Call) {
        self.calls.push((Target::Workload(cluster.to_owned()), call));
    }

    /// Requests a pass at a time in the future.
    pub(crate) fn wake_at(&mut self, when: Timestamp) {
        self.wake = Some(self.wake.map_or(when, |known| known.min(when)));
    }
}

/// The views of booted hosts, by key.
pub(crate) type HostViews = BTreeMap<String, Arc<HostView>>;

/// The input of one pass.
pub(crate) struct View<'a> {
    /// The current time.
    pub(crate) now: Timestamp,
    /// The management cluster.
    pub(crate) management: &'a Mirror,
    /// The workload clusters, by key.
    pub(crate) workloads: &'a BTreeMap<String, Mirror>,
    /// The objects of the management cluster that changed since the last pass.
    pub(crate) changed: Changed,
    /// Booted hosts: the same map as in the last pass while none of them changes.
    pub(crate) hosts: Arc<HostViews>,
    /// How many times faster than real machines these boot.
    pub(crate) hurry: i32,
}

/// Decides what the environment writes now.
///
/// Passes are frequent, and most change little: what an earlier pass found to be as it should be is not
/// read again before something that it depends on has changed.
pub(crate) fn plan(view: &View<'_>, state: &mut EnvState) -> PassWrites {
    let mut plan = PassWrites::default();
    infrastructure::clusters(view, state, &mut plan);
    canonical::control_planes(view, state, &mut plan);
    infrastructure::machines(view, state, &mut plan);
    for (cluster, mirror) in view.workloads {
        if state.clusters.get(cluster).is_some_and(|known| known.initialized) {
            workload(view, state, cluster, mirror, &mut plan);
        }
    }
    plan
}

/// The state in which a pass had nothing to write to a workload cluster.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    revision: u64,
    hosts: Arc<HostViews>,
    known_hosts: usize,
    wake: Option<Timestamp>,
}

fn workload(
    view: &View<'_>,
    state: &mut EnvState,
    cluster: &str,
    mirror: &Mirror,
    plan: &mut PassWrites,
) {
    let revision = mirror.revision().environment;
    let known_hosts = state.hosts.len();
    if let Some(settled) = state.settled.get(cluster)
        && settled.revision == revision
        && settled.known_hosts == known_hosts
        && settled.wake.is_none_or(|wake| view.now < wake)
        && Arc::ptr_eq(&settled.hosts, &view.hosts)
    {
        settled.wake.into_iter().for_each(|wake| plan.wake_at(wake));
        return;
    }
    let mut own = PassWrites::default();
    let local = kubelet::Local::new(view, state, cluster, mirror);
    infrastructure::forget_nodes(&local, state, &mut own);
    kubelet::nodes(&local, &mut own);
    kubelet::static_pods(&local, &mut own);
    workloads::daemon_pods(&local, &mut own);
    workloads::replicas(&local, &mut own);
    kubelet::pods(&local, &mut own);
    drop(local);
    if own.calls.is_empty() {
        let hosts = view.hosts.clone();
        let settled = Settled { revision, hosts, known_hosts, wake: own.wake };
        state.settled.insert(cluster.to_owned(), settled);
    } else {
        state.settled.remove(cluster);
    }
    own.wake.into_iter().for_each(|wake| plan.wake_at(wake));
    plan.calls.extend(own.calls);
}

/// Saturating add: timestamps in objects may be near the maximum.
pub(crate) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Formats a time as Kubernetes does.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number below `limit` that is derived from a text.
pub(crate) fn spread(input: &str, limit: u64) -> u64 {
    u64::from_str_radix(&short_hash(input), 16).unwrap_or(0) % limit.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_to_a_time_near_the_maximum_saturates() {
        let last = time(&serde_json::json!({"t": "9999-12-30T21:59:59Z"}), "/t").unwrap();
        assert_eq!(later(last, HEARTBEAT), Timestamp::MAX);
    }
}
