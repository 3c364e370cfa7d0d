//! In which order the groups of a Cluster are changed, and when each of them begins.

use std::collections::BTreeMap;

use refit_kinds::{
    json::{annotations, label, text},
    keys,
    refit::Owner,
};
use serde_json::Value;

use crate::{input::Input, outcome::GroupPrediction};

/// Moves the timelines of groups that wait for others behind these.
///
/// Workers wait for the control plane where they must ([`GroupPrediction::after`]). In a Cluster with a topology
/// they wait in any case, and so many of its MachineDeployments are upgraded at a time as an annotation of the
/// Cluster allows, in the order of the topology (`docs/facts/machine-deployment.md#order-in-a-topology`).
pub(crate) fn arrange(input: &Input, groups: &mut [GroupPrediction]) {
    let planes = groups.iter().filter(|group| group.kind == Owner::ControlPlane.kind());
    let planes: BTreeMap<String, (i64, Option<String>)> =
        planes.map(|group| (group.cluster.clone(), (end(group), Some(title(group))))).collect();
    let mut lanes: BTreeMap<String, Vec<(i64, Option<String>)>> = BTreeMap::new();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|index| groups.get(*index).map(|group| position(input, group)));
    for index in order {
        let Some(group) = groups.get_mut(index) else { continue };
        if group.kind != Owner::Deployment.kind() {
            continue;
        }
        let plane = planes.get(&group.cluster).cloned().unwrap_or_default();
        let mut begin = if group.after.is_some() { plane.0 } else { 0 };
        if let Some(at_once) = upgrades_at_once(input, group) {
            let lanes = lanes.entry(group.cluster.clone());
            let lanes = lanes.or_insert_with(|| vec![plane; at_once]);
            let Some(lane) = lanes.iter_mut().min_by_key(|lane| lane.0) else { continue };
            (begin, group.after) = lane.clone();
            *lane = (begin.saturating_add(end(group)), Some(title(group)));
        }
        if let Some(timeline) = &mut group.timeline {
            timeline.shift(begin);
        }
    }
}

fn end(group: &GroupPrediction) -> i64 {
    group.timeline.as_ref().map_or(0, super::Timeline::end)
}

fn title(group: &GroupPrediction) -> String {
    format!("{}/{}", group.kind, group.name)
}

/// How many MachineDeployments of the group's Cluster its topology upgrades at a time; `None` if no topology upgrades the
/// group.
fn upgrades_at_once(input: &Input, group: &GroupPrediction) -> Option<usize> {
    let cluster = input.desired.get("Cluster", &group.namespace, &group.cluster)?;
    let object = input.desired.get(&group.kind, &group.namespace, &group.name)?;
    let owned = label(object, keys::TOPOLOGY_OWNED).is_some();
    if !owned || group.from == group.to || !is_of_topology(cluster, group) {
        return None;
    }
    let stated = annotations(cluster).get(keys::UPGRADE_CONCURRENCY).cloned();
    // Cluster API refuses values that are no positive numbers.
    let at_once = stated.and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    Some(at_once.unwrap_or(1).min(input.targets.len().max(1)))
}

/// Whether the desired version of a group is the one that the topology of its Cluster asks for.
pub(crate) fn is_of_topology(cluster: &Value, group: &GroupPrediction) -> bool {
    text(cluster, "/spec/topology/version") == group.to.to_string()
}

/// The place of a group in the topology of its Cluster; others follow in the order of their names.
fn position(input: &Input, group: &GroupPrediction) -> (usize, String) {
    let place = || {
        let cluster = input.desired.get("Cluster", &group.namespace, &group.cluster)?;
        let object = input.desired.get(&group.kind, &group.namespace, &group.name)?;
        let of = label(object, keys::TOPOLOGY_DEPLOYMENT_NAME)?;
        let all = cluster.pointer("/spec/topology/workers/machineDeployments")?.as_array()?;
        all.iter().position(|one| text(one, "/name") == of)
    };
    (place().unwrap_or(usize::MAX), group.name.clone())
}
