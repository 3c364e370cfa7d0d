//! A simulated OpenShift cluster: its operators take time as the real ones do, and fail as they do.
//!
//! | module | holds |
//! |---|---|
//! | [`ocm`] | OpenShift Cluster Manager, and its agent in the cluster |
//! | [`cincinnati`] | a version graph |
//! | [`wire`] | what these servers have in common |

pub mod cincinnati;
pub mod ocm;
pub mod wire;
