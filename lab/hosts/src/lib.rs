//! Real hosts for tests: systemd, apt and dpkg in containers of systemd-nspawn.
//!
//! | module | is for |
//! |---|---|
//! | [`isolation`] | namespaces of a test's own: whatever happens, nothing of it stays on the machine |
//! | [`base`] | the Debian root that all hosts share, made once |
//! | [`overlay`] | what all hosts of a test have on top of it |
//! | [`net`] | a bridge, and an address for each host |
//! | [`disk`] | a host's own disk, which a power cut catches as it is |
//! | [`host`] | one host: boot, reboot, power cut, commands in it |
//! | [`packages`] | our own packages and the repository that serves them |
//! | [`management`] | a management cluster: its API, Cluster API's side and Refit's controller |
//! | [`cluster`] | that, and the API of a workload cluster of stand-ins |
//! | [`cluster_nodes`] | hosts as nodes of that cluster |
//! | [`kubernetes_build`] | what hosts of a real cluster are made of |
//! | [`kubernetes`] | a real cluster that kubeadm makes of hosts |
//! | [`registry`] | the container images of that cluster, and the registry that serves them |
//! | [`balancer`] | the way to the API servers of that cluster, and whether they answered |
//! | [`workload`] | what runs in that cluster, and whether its budget was kept |
//! | [`script`] | the same upgrade by a plain script |
//! | [`workloads`] | what runs pods of a workload cluster, and watches its budget |
//! | [`plans`] | HostPlans written by hand, and what an agent says of them |
//!
//! A host boots in one to two seconds. It shares the machine's kernel and its control groups of
//! version 1; it cannot load modules. The tests are started by `cargo xtask hosts test`.

pub mod balancer;
pub mod base;
pub mod cluster;
pub mod cluster_nodes;
pub mod disk;
pub mod host;
pub mod isolation;
pub mod kubernetes;
pub mod kubernetes_build;
pub mod management;
pub mod net;
pub mod overlay;
pub mod packages;
pub mod plans;
pub mod registry;
mod run;
pub mod script;
pub mod workload;
pub mod workloads;

pub use lab_simhost::wait::eventually;
pub use run::{run, say};
