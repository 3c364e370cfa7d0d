//! A simulated host, for the sandbox, the test bed and the agent's own tests.
//!
//! | module | is for |
//! |---|---|
//! | [`host`] | the host as one run of the agent process sees it |
//! | [`state`] | the host as plain data: what is installed, what runs |
//! | [`in_place`] | changes of its configuration: units, etcd's image, commands, keys |
//! | `work` | how each command changes the host, and how the change is detected |
//! | `trouble`, `uptime` | injected failures, and when the components respond |
//! | [`disk`] | what survives the agent's process |
//! | [`kubelet`] | what its kubelet reports |
//! | [`service`] | an API that upgrades hosts without their agents |
//! | [`k8sd`], `snap` | the API through which Canonical Kubernetes refreshes a node, and what a refresh changes |
//! | [`wait`] | waiting in tests that run in real time |

pub mod disk;
pub mod host;
pub mod in_place;
pub mod k8sd;
pub mod kubelet;
pub mod os_packages;
pub mod service;
mod snap;
pub mod state;
mod trouble;
mod uptime;
pub mod wait;
mod work;

pub use disk::{DiskState, SimDisk};
pub use host::SimHost;
pub use state::HostState;
