//! Real hosts for tests: systemd, apt and dpkg in containers of systemd-nspawn.
//!
//! | module | is for |
//! |---|---|
//! | [`cage`] | namespaces of a test's own: whatever happens, nothing of it stays on the machine |
//! | [`base`] | the Debian root that all hosts share, made once |
//! | [`layer`] | what all hosts of a test have on top of it |
//! | [`net`] | a bridge, and an address for each host |
//! | [`disk`] | a host's own disk, which a power cut catches as it is |
//! | [`host`] | one host: boot, reboot, power cut, commands in it |
//! | [`packages`] | our own packages and the repository that serves them |
//! | [`management`] | a management cluster: its API, Cluster API's side and Refit's controller |
//! | [`cluster`] | that, and the API of a workload cluster of stand-ins |
//! | [`nodes`] | hosts as nodes of that cluster |
//! | [`kit`] | what hosts of a real cluster are made of |
//! | [`kubernetes`] | a real cluster that kubeadm makes of hosts |
//! | [`registry`] | the container images of that cluster, and the registry that serves them |
//! | [`balancer`] | the way to the API servers of that cluster, and whether they answered |
//! | [`application`] | what runs in that cluster, and whether its budget was kept |
//! | [`script`] | the same upgrade by a plain script |
//! | [`workloads`] | what runs pods of a workload cluster, and watches its budget |
//! | [`plans`] | HostPlans written by hand, and what an agent says of them |
//!
//! A host boots in one to two seconds. It shares the machine's kernel and its control groups of
//! version 1; it cannot load modules. The tests are started by `cargo xtask hosts test`.

pub mod application;
pub mod balancer;
pub mod base;
pub mod cage;
pub mod cluster;
pub mod disk;
pub mod host;
pub mod kit;
pub mod kubernetes;
pub mod layer;
pub mod management;
pub mod net;
pub mod nodes;
pub mod packages;
pub mod plans;
pub mod registry;
mod run;
pub mod script;
pub mod workloads;

pub use run::{eventually, run, say};
