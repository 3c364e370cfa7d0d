//! Reads a control plane and its Machines for the next decision
//! (`docs/facts/control-plane.md#reconcile-order` and `docs/facts/control-plane.md#rollout`).

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;
use refit_cluster_api::rollout::{
    control_plane::{ControlPlane, ControlPlaneMachine},
    difference::Difference,
};

use super::Plane;
use crate::{context::Context, error::Error, live::Live, machine::Parts};

/// The differences between each Machine and the spec, by Machine name.
pub(super) async fn all(
    context: &Arc<Context>,
    plane: &Plane,
) -> Result<BTreeMap<String, Vec<Difference>>, Error> {
    let mut differences = BTreeMap::new();
    for machine in plane.machines(context) {
        let parts = Parts::load(context, &machine).await?;
        let bootstrap = parts.bootstrap.as_ref();
        let bootstrap = bootstrap.and_then(|part| part.object.as_deref());
        let found = Difference::all(
            plane.desired(),
            machine.json(),
            parts.infrastructure.object.as_deref().map(Live::json),
            bootstrap.map(Live::json),
            context.now(),
        );
        differences.insert(machine.name_any(), found);
    }
    Ok(differences)
}

/// The control plane as plain data for the next decision.
pub(super) fn snapshot(
    context: &Context,
    plane: &Plane,
    differences: &BTreeMap<String, Vec<Difference>>,
) -> ControlPlane {
    let machines = plane.machines(context);
    let machines = machines.iter().map(|machine| {
        let found = differences.get(&machine.name_any()).map(Vec::as_slice);
        ControlPlaneMachine::of(machine.json(), found.unwrap_or_default())
    });
    ControlPlane::of(plane.desired(), plane.cluster.json(), machines.collect())
}
