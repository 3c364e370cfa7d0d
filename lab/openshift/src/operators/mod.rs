//! OpenShift's operators, the kubelets and the cloud, as far as an upgrade meets them (`docs/facts/openshift-operators.md`).
//!
//! | module | plays |
//! |---|---|
//! | [`version`] | the cluster-version operator |
//! | [`cluster_operators`] | the other operators, as their ClusterOperators show them |
//! | [`config_pools`] | the machine-config operator: its pools |
//! | [`config_daemon`] | its daemon on each node, and its drains |
//! | [`machine_sets`] | the machine API: MachineSets |
//! | [`machines`] | the machine API and the cloud: Machines |
//! | [`nodes`] | the kubelets' Nodes, and the taints that Kubernetes derives from them |
//! | [`pods`] | the kubelets' pods |
//! | [`workloads`] | ReplicaSets and DaemonSets |
//! | [`budgets`] | PodDisruptionBudgets |
//!
//! Each is a function of the [`View`](crate::cluster::view::View): a pass right after its writes writes nothing.

mod budgets;
mod cluster_operators;
mod config_daemon;
mod config_pools;
mod drain;
mod machine_sets;
mod machines;
mod nodes;
mod pods;
mod version;
mod workloads;

pub(crate) use self::{
    cluster_operators::PAYLOAD,
    config_pools::{CURRENT, DESIRED, STATE, rendered},
    nodes::node_info,
};
use crate::cluster::plan::Plan;

/// Decides what all of them write now.
pub(crate) fn reconcile(plan: &mut Plan<'_>) {
    version::reconcile(plan);
    cluster_operators::reconcile(plan);
    config_pools::reconcile(plan);
    config_daemon::reconcile(plan);
    machine_sets::reconcile(plan);
    machines::reconcile(plan);
    nodes::reconcile(plan);
    pods::reconcile(plan);
    workloads::reconcile(plan);
    budgets::reconcile(plan);
}
