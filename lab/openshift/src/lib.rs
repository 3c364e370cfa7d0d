//! A simulated OpenShift cluster: its operators take time as the real ones do, and fail as they do.

pub mod alertmanager;
pub mod prometheus;
