//! A bed for tests: the real kube-apiserver over Debian's etcd, the real Cluster API managers with
//! the in-memory infrastructure provider, our controller as its own process, and hosts that run the
//! real agent over a simulated machine.
//!
//! | module | is for |
//! |---|---|
//! | [`bed`] | everything together: [`Bed`] |
//! | [`cluster`] | a workload cluster on the in-memory provider |
//! | [`hosts`], [`kubelet`] | simulated hosts with the real agent, and what their kubelets say |
//! | [`proxy`] | the way to a workload API server that serves evictions |
//! | [`controller`] | our controller: installed, started, killed |
//! | [`cli`] | our command line |
//! | [`managers`] | Cluster API's managers: definitions, webhooks, processes |
//! | [`apiserver`] | etcd and kube-apiserver |
//! | [`extension`] | an extension that says what ours must not |
//! | [`recorder`], [`history`] | what a flow did to the objects of a rollout, and whether that is as ever |
//! | [`tap`] | what Cluster API says to our hooks, and what they say |
//! | [`fixtures`] | where what was recorded is kept |
//! | [`process`] | a program that ends when the bed does |
//! | [`parts`], [`folder`] | what was built, where logs are, how many beds there may be |
//! | [`network`] | loopback of a test program's own |
//! | [`objects`], [`wait`] | reading and changing objects, waiting for what they say |
//!
//! Everything is on loopback, on free ports, under certificates of the bed's own.

pub mod apiserver;
pub mod bed;
pub mod certs;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod extension;
pub mod fixtures;
pub mod folder;
pub mod history;
pub mod hosts;
pub mod kubelet;
pub mod managers;
pub mod network;
pub mod objects;
pub mod parts;
pub mod process;
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

    /// What a mutex holds, also after somebody panicked while holding it.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
