//! HostPlans and the agents' reports.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{keys, refit::HostPlan};
use refit_runtime::ObjectKey;

use crate::{PlanLocation, context::Context};

/// What is known of the agent on a Machine's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostReport {
    /// The agent reported lately.
    Fresh,
    /// It did not report for too long.
    Stale {
        /// The Node.
        node: String,
        /// When it last reported.
        reported_at: Timestamp,
    },
    /// It never reported.
    Missing {
        /// The Node.
        node: String,
    },
    /// The Machine has no Node yet.
    NoNode,
    /// The workload cluster's HostPlans are not known yet.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// Key of the HostPlan of a Machine whose Node has this name.
pub(crate) fn plan_key(ctx: &Context, machine: &Machine, node: &str) -> ObjectKey {
    match ctx.settings.plan_location {
        PlanLocation::Workload => ObjectKey::new(keys::HOST_PLAN_NAMESPACE, node),
        PlanLocation::Management => ObjectKey::of(machine),
    }
}

/// The Machines of a Cluster that have a Node, by its name.
pub(crate) fn machines_by_node(
    ctx: &Context,
    cluster: &ObjectKey,
) -> BTreeMap<String, Arc<Machine>> {
    let machines = ctx.stores.machines.list_in(&cluster.namespace);
    let of_cluster =
        machines.into_iter().filter(|machine| machine.spec.cluster_name == cluster.name);
    of_cluster
        .filter_map(|machine| Some((node_name(&machine)?.to_owned(), machine.clone())))
        .collect()
}

/// What is known of the agent on a Machine's host, from memory: a hook waits for no cluster.
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
            reason: format!("the HostPlans of cluster {cluster} are not known yet"),
        };
    }
    let plan = view.host_plans.get(&plan_key(ctx, machine, node));
    let stale_after = SignedDuration::try_from(ctx.settings.report_stale_after)
        .unwrap_or(SignedDuration::from_mins(15));
    judge(node, plan.as_deref(), stale_after, ctx.clock.now())
}

fn judge(
    node: &str,
    plan: Option<&HostPlan>,
    stale_after: SignedDuration,
    now: Timestamp,
) -> HostReport {
    let node = node.to_owned();
    let reported_at = plan
        .and_then(|plan| plan.status.as_ref())
        .and_then(|status| status.reported_at.as_ref())
        .map(|time| time.0);
    match reported_at {
        None => HostReport::Missing { node },
        Some(reported_at) if now.duration_since(reported_at) > stale_after => {
            HostReport::Stale { node, reported_at }
        }
        Some(_) => HostReport::Fresh,
    }
}

/// Name of a Machine's Node, once it registered.
pub(crate) fn node_name(machine: &Machine) -> Option<&str> {
    let status = machine.status.as_ref()?;
    status.node_ref.as_ref().map(|node| node.name.as_str())
}

/// Key of a Machine's Cluster.
pub(crate) fn cluster_key(machine: &Machine) -> ObjectKey {
    ObjectKey::new(machine.namespace().unwrap_or_default(), &machine.spec.cluster_name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use refit_kinds::refit::{HostPlanSpec, HostPlanStatus};

    use super::*;

    fn reported(second: i64) -> HostPlan {
        let mut plan = HostPlan::new("n", HostPlanSpec::default());
        plan.status = Some(HostPlanStatus {
            reported_at: Some(Time(at(second))),
            ..HostPlanStatus::default()
        });
        plan
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_report_is_fresh_for_a_quarter_of_an_hour() {
        let limit = SignedDuration::from_mins(15);
        let plan = reported(1000);
        assert_eq!(judge("n", Some(&plan), limit, at(1900)), HostReport::Fresh);
        assert_eq!(
            judge("n", Some(&plan), limit, at(1901)),
            HostReport::Stale { node: "n".into(), reported_at: at(1000) }
        );
    }

    #[test]
    fn a_plan_that_no_agent_has_seen_is_no_report() {
        let limit = SignedDuration::from_mins(15);
        let empty = HostPlan::new("n", HostPlanSpec::default());
        let missing = HostReport::Missing { node: "n".into() };
        assert_eq!(judge("n", Some(&empty), limit, at(0)), missing);
        assert_eq!(judge("n", None, limit, at(0)), missing);
    }
}
