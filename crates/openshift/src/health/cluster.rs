//! Operators, MachineSets and Nodes.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::{Check, Found, Read, Reason};
use crate::{
    kinds::ClusterOperator,
    nodes::{cordon, is_worked_on},
};

const WORKER: &str = "node-role.kubernetes.io/worker";
const INFRA: &str = "node-role.kubernetes.io/infra";
const PRESSURE: [&str; 3] = [
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
];

/// Operators that are degraded or unavailable.
pub(super) fn operators(operators: &Read<Vec<ClusterOperator>>) -> Check {
    let (reason, message) = match operators {
        Ok(operators) => {
            let degraded = operators.iter().filter(|operator| is_degraded(operator));
            let names: Vec<String> = degraded.map(ClusterOperator::name_any).collect();
            let reason = (!names.is_empty()).then_some(Reason::ClusterOperatorsDegraded);
            (reason, format!("degraded operators: {}", names.join(", ")))
        }
        Err(error) => (Some(Reason::ClusterOperatorStatusFailed), error.clone()),
    };
    let token = "ClusterOperatorsHealthcheckFailed".to_owned();
    Check::new(
        &[Reason::ClusterOperatorStatusFailed, Reason::ClusterOperatorsDegraded],
        reason.map(|reason| Found { reason, token, message }),
    )
}

fn is_degraded(operator: &ClusterOperator) -> bool {
    let conditions = operator.status.iter().flat_map(|status| &status.conditions);
    conditions
        .map(|condition| (&*condition.type_, &*condition.status))
        .any(|condition| matches!(condition, ("Degraded", "True") | ("Available", "False")))
}

/// Whether capacity can be reserved.
pub(super) fn capacity(can_scale: &Read<bool>) -> Check {
    let message = match can_scale {
        Ok(true) => None,
        Ok(false) => Some(
            "capacity is to be reserved, and no MachineSet is of the machine pool worker"
                .to_owned(),
        ),
        Err(error) => Some(error.clone()),
    };
    let reason = Reason::DefaultWorkerMachinepoolNotFound;
    let token = "CapacityReservationHealthcheckFailed".to_owned();
    Check::new(
        &[Reason::DefaultWorkerMachinepoolNotFound],
        message.map(|message| Found { reason, token, message }),
    )
}

/// Workers that are cordoned, and not by the machine-config operator.
pub(super) fn cordons(nodes: &Read<Vec<Node>>) -> Check {
    let found = found_on(
        nodes,
        |nodes| {
            let cordoned = nodes.iter().filter(|node| is_worker(node) && cordon(node).is_some());
            cordoned.filter(|node| !is_worked_on(node)).map(Node::name_any).collect()
        },
        (Reason::ClusterNodeManuallyCordoned, "cordoned nodes"),
        "NodeUnschedulableHealthcheckFailed",
    );
    Check::new(&[Reason::ClusterNodeQueryFailed, Reason::ClusterNodeManuallyCordoned], found)
}

/// Nodes with a taint for pressure, by the kind of pressure: one with two of them is named twice.
pub(super) fn pressure(nodes: &Read<Vec<Node>>) -> Check {
    let found = found_on(
        nodes,
        |nodes| {
            let pressed = PRESSURE.iter().flat_map(|key| {
                nodes.iter().filter(|node| has_taint(node, key)).map(Node::name_any)
            });
            pressed.collect()
        },
        (Reason::ClusterNodeTaintUnschedulable, "unschedulable taints on nodes"),
        "NodeUnschedulableTaintHealthcheckFailed",
    );
    Check::new(&[Reason::ClusterNodeQueryFailed, Reason::ClusterNodeTaintUnschedulable], found)
}

fn found_on(
    nodes: &Read<Vec<Node>>,
    names: fn(&[Node]) -> Vec<String>,
    (reason, text): (Reason, &str),
    token: &str,
) -> Option<Found> {
    let nodes = match nodes {
        Ok(nodes) => names(nodes),
        Err(error) => {
            let reason = Reason::ClusterNodeQueryFailed;
            return Some(Found { reason, token: format!("{token}:()"), message: error.clone() });
        }
    };
    (!nodes.is_empty()).then(|| Found {
        reason,
        token: format!("{token}:({})", nodes.join(",")),
        message: format!("{text}: {}", nodes.join(", ")),
    })
}

fn is_worker(node: &Node) -> bool {
    node.labels().contains_key(WORKER) && !node.labels().contains_key(INFRA)
}

fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == key && taint.effect == "NoSchedule")
}
