//! The simulated environment: everything around Cluster API and Refit that a real cluster has.
//!
//! | module | stands for |
//! |---|---|
//! | [`infrastructure`] | infrastructure and bootstrap providers, Cluster API's Cluster controller |
//! | [`kubelet`] | kubelets: Nodes, mirror pods, pods that start and end |
//! | [`workloads`] | ReplicaSet, DaemonSet and scheduler of a workload cluster |
//! | [`managers`] | the Deployments that a Cluster API installation is known by |
//! | [`setup`] | what `kubeadm init` leaves in a new cluster, and an application on it |
//! | [`quorum`] | etcd: whether the API of a workload cluster answers |
//! | [`trouble`] | failures that a user orders by an annotation |
//! | [`state`] | what the environment remembers beside the API: its hosts |
//!
//! It is no process of ours and is never killed. Each pass looks at everything (mirrors of the API
//! stores, hosts, the time) and says which writes are due; passing again after them says none. So a
//! world that was restored from a snapshot goes on by itself.

pub(crate) mod infrastructure;
pub(crate) mod kubelet;
pub(crate) mod managers;
pub(crate) mod quorum;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod state;
pub(crate) mod trouble;
pub(crate) mod workloads;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::HostView;
pub(crate) use lab_simhost::kubelet::short_hash;
use refit_kinds::json::{flag, name, namespace, text, time};

use crate::{direct::Call, mirror::Mirror};
use state::EnvState;

/// How long it takes from the request for a machine until kubeadm is done on it.
pub(crate) const BOOT: SignedDuration = SignedDuration::from_secs(40);
/// How much longer single machines may take, by a hash of their name.
pub(crate) const BOOT_SPREAD_SECONDS: u64 = 8;
/// How long an ordinary pod takes until it is ready.
pub(crate) const POD_START: SignedDuration = SignedDuration::from_secs(5);
/// How long a static pod takes until it is ready.
pub(crate) const STATIC_POD_START: SignedDuration = SignedDuration::from_secs(2);
/// How often an idle kubelet reports. Real ones report every 5 minutes where nothing changes.
pub(crate) const HEARTBEAT: SignedDuration = SignedDuration::from_secs(300);
/// How long a kubelet may be down before its Node counts as unreachable: the node monitor's grace
/// period.
pub(crate) const SILENCE: SignedDuration = SignedDuration::from_secs(50);
/// When the environment tries again after a write was refused.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The management cluster.
    Management,
    /// The workload cluster with this key.
    Workload(String),
}

/// What one pass wants.
#[derive(Debug, Default)]
pub(crate) struct PassWrites {
    /// Writes, in order.
    pub(crate) calls: Vec<(Target, Call)>,
    /// When the next pass is due, if nothing happens before.
    pub(crate) wake: Option<Timestamp>,
}

impl PassWrites {
    pub(crate) fn management(&mut self, call: Call) {
        self.calls.push((Target::Management, call));
    }

    pub(crate) fn workload(&mut self, cluster: &str, call: Call) {
        self.calls.push((Target::Workload(cluster.to_owned()), call));
    }

    /// Asks for a pass at a time in the future.
    pub(crate) fn wake_at(&mut self, when: Timestamp) {
        self.wake = Some(self.wake.map_or(when, |known| known.min(when)));
    }
}

/// What one pass looks at.
pub(crate) struct View<'a> {
    /// The time.
    pub(crate) now: Timestamp,
    /// The management cluster.
    pub(crate) management: &'a Mirror,
    /// The workload clusters, by key.
    pub(crate) workloads: &'a BTreeMap<String, Mirror>,
    /// Hosts that have booted, by key.
    pub(crate) hosts: &'a BTreeMap<String, HostView>,
    /// How many times faster than real ones machines boot.
    pub(crate) hurry: i32,
}

/// Decides what the environment does now.
pub(crate) fn plan(view: &View<'_>, state: &mut EnvState) -> PassWrites {
    let mut plan = PassWrites::default();
    infrastructure::clusters(view, state, &mut plan);
    infrastructure::machines(view, state, &mut plan);
    infrastructure::forget_hosts(view, state, &mut plan);
    for (cluster, mirror) in view.workloads {
        if state.clusters.get(cluster).is_some_and(|known| known.initialized) {
            let local = kubelet::Local::new(view, state, cluster, mirror);
            kubelet::nodes(&local, &mut plan);
            kubelet::static_pods(&local, &mut plan);
            workloads::daemon_pods(&local, &mut plan);
            workloads::replicas(&local, &mut plan);
            kubelet::pods(&local, &mut plan);
        }
    }
    plan
}

/// A time and a while: times in objects are anybody's, and some are close to the end of all time.
pub(crate) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Time as Kubernetes writes it.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number below `limit` that follows from a text.
pub(crate) fn spread(input: &str, limit: u64) -> u64 {
    u64::from_str_radix(&short_hash(input), 16).unwrap_or(0) % limit.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_somebody_wrote_may_be_the_last_one() {
        let last = time(&serde_json::json!({"t": "9999-12-30T21:59:59Z"}), "/t").unwrap();
        assert_eq!(later(last, HEARTBEAT), Timestamp::MAX);
    }
}
