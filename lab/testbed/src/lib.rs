//! A test bed: the real kube-apiserver over Debian's etcd, the real Cluster API managers with the
//! in-memory infrastructure provider, the Refit controller as a separate process, and hosts that
//! run the real agent on a simulated machine.
//!
//! | module | is for |
//! |---|---|
//! | [`bed`] | everything together: [`Bed`] |
//! | [`cluster`] | a workload cluster on the in-memory provider |
//! | [`hosts`], [`kubelet`] | simulated hosts with the real agent, and their kubelets |
//! | [`proxy`] | a proxy for a workload API server that also serves evictions |
//! | [`controller`] | the Refit controller: installing, starting and killing it |
//! | [`cli`] | the `refit` command line |
//! | [`managers`] | Cluster API's managers: definitions, webhooks, processes |
//! | [`apiserver`] | etcd and kube-apiserver |
//! | [`extension`] | a test extension with responses that Refit must not give |
//! | [`fault`] | cuts the Refit controller off before or after one of its writes |
//! | [`recorder`], [`history`] | recording what a flow did to a rollout, and comparing histories |
//! | [`prometheus`] | Debian's Prometheus, with Refit's alert rules |
//! | [`alertmanager`] | Debian's Alertmanager |
//! | [`tap`] | records Cluster API's calls of Refit's hooks, and the responses |
//! | [`fixtures`] | where recorded fixtures are stored |
//! | [`process`] | a program that ends together with the bed |
//! | [`parts`], [`directory`] | built programs, log directories, and the limit on parallel beds |
//! | [`network`] | a separate loopback network for a test program |
//! | [`objects`], [`wait`] | reading and changing objects, and waiting for their state |
//!
//! Everything listens on loopback, on free ports, with certificates from the bed's own authority.

pub mod alertmanager;
pub mod apiserver;
pub mod bed;
pub mod certs;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod directory;
pub mod extension;
pub mod fault;
pub mod fixtures;
pub mod history;
pub mod hosts;
pub mod kubelet;
pub mod managers;
pub mod network;
pub mod objects;
pub mod parts;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod recorder;
pub mod tap;
pub mod wait;

pub use bed::Bed;
pub use cluster::{Cluster, ClusterSpec};
pub use parts::Line;
pub use wait::eventually;

pub(crate) use lock::lock;

mod lock {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Locks a mutex, also after a thread panicked while holding it.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
