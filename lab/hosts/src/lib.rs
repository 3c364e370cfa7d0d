//! Real hosts for tests: systemd, apt and dpkg in systemd-nspawn containers.
//!
//! | module | is for |
//! |---|---|
//! | [`isolation`] | runs a test in its own namespaces, so that it leaves nothing behind on the
//! machine |
//! | [`base`] | the Debian root that all hosts share, built once |
//! | [`overlay`] | the layers that all hosts of a test have on top of it |
//! | [`net`] | a bridge, and an address for each host |
//! | [`disk`] | a disk for each host, so that a power cut can be simulated |
//! | [`host`] | one host: boot, reboot, power cut, and commands in it |
//! | [`packages`] | the tests' own packages and the repository that serves them |
//! | [`layout`] | where kubeadm has set up a host |
//! | [`management`] | a management cluster: its API, Cluster API's side and Refit's controller |
//! | [`only_machine`] | the only machine of a control plane, and what existed next to it |
//! | [`cluster`] | the management cluster, and the API of a workload cluster of stand-ins |
//! | [`cluster_nodes`] | hosts as nodes of that cluster |
//! | [`kubernetes_build`] | packages, images and layers for hosts of a real cluster |
//! | [`kubernetes`] | a real cluster that kubeadm creates on hosts |
//! | [`registry`] | the container images of that cluster, and the registry that serves them |
//! | [`balancer`] | the balancer of that cluster's API servers, and a probe through it |
//! | [`workload`] | an application in that cluster, and checks of its disruption budget |
//! | [`script`] | the same upgrade by a shell script |
//! | [`workloads`] | simple workload controllers for a workload cluster, and a check of its budget
//! |
//! | [`plans`] | HostPlans written by hand, and the agent's reports about them |
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
pub mod layout;
pub mod management;
pub mod net;
pub mod only_machine;
pub mod overlay;
pub mod packages;
pub mod plans;
pub mod registry;
mod run;
pub mod script;
pub mod workload;
pub mod workloads;

pub use lab_simhost::wait::eventually;
pub use run::{print_line, run};
