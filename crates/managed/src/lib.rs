//! Managed upgrades of an OpenShift cluster (seed 5), around the decisions of `refit-openshift`.
//!
//! It runs on the cluster itself: there is no Cluster API, and the machine-config operator works the nodes.

pub mod remote;
