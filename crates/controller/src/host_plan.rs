//! HostPlans and the agents' reports.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::change::can_update::HostReport;
use refit_kinds::{keys, refit::NodeName};
use refit_runtime::ObjectKey;

use crate::{PlanLocation, context::Context, indexes::MACHINES_BY_CLUSTER};

/// Key of the HostPlan of a Machine whose Node has this name.
pub(crate) fn plan_key(ctx: &Context, machine: &Machine, node: &str) -> ObjectKey {
    match ctx.settings.plan_location {
        PlanLocation::Workload => ObjectKey::new(keys::HOST_PLAN_NAMESPACE, node),
        PlanLocation::Management => ObjectKey::of(machine),
    }
}

/// The Machines of a Cluster that have a Node, by the Node's name.
pub(crate) fn machines_by_node(
    ctx: &Context,
    cluster: &ObjectKey,
) -> BTreeMap<NodeName, Arc<Machine>> {
    let machines = ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, cluster);
    machines.into_iter().filter_map(|machine| Some((node_name(&machine)?, machine))).collect()
}

/// The cached report of the agent on a Machine's host: a hook does not wait for a cluster.
pub(crate) fn host_report(ctx: &Context, machine: &Machine) -> HostReport {
    let Some(node) = node_name(machine) else {
        return HostReport::NoNode;
    };
    let cluster = cluster_key(machine);
    let Some(view) = ctx.workload_index.view(&cluster) else {
        return HostReport::Unknown {
            reason: format!("the control plane of cluster {cluster} is not initialised"),
        };
    };
    if !view.host_plans.is_ready() {
        return HostReport::Unknown {
            reason: format!("the HostPlans of cluster {cluster} have not been read yet"),
        };
    }
    let now = ctx.clock.now();
    let (_, reported_at) = view.host_plan(plan_key(ctx, machine, &node), now);
    HostReport::of(&node, reported_at, ctx.settings.stale_after(), now)
}

/// Name of a Machine's Node, once the Node has registered.
pub(crate) fn node_name(machine: &Machine) -> Option<NodeName> {
    let status = machine.status.as_ref()?;
    status.node_ref.as_ref().map(|node| NodeName::from(&*node.name))
}

/// Key of a Machine's Cluster.
pub(crate) fn cluster_key(machine: &Machine) -> ObjectKey {
    ObjectKey::new(machine.namespace().unwrap_or_default(), &machine.spec.cluster_name)
}
