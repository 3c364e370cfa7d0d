//! A simulated host, for the sandbox, the test bed and the agent's own tests.
//!
//! | module | is for |
//! |---|---|
//! | [`host`] | the host as one incarnation of an agent sees it |
//! | [`state`] | the host itself, as plain state: what is installed, what runs |
//! | `work` | what each command does to it, and how it shows |
//! | [`trouble`], `uptime` | what goes wrong with it, and when its parts answer |
//! | [`disk`] | what survives the agent's process |
//! | [`kubelet`] | what its kubelet reports |
//! | [`wait`] | waiting in tests that run in real time |

pub mod disk;
pub mod host;
pub mod kubelet;
pub mod state;
pub mod trouble;
mod uptime;
pub mod wait;
mod work;

pub use disk::{DiskState, SimDisk};
pub use host::SimHost;
pub use state::HostState;
