//! What a change will do to the machines of a group before it is made, and whether it can.
//!
//! Nothing here has a formula of its own for what Cluster API does: its decisions
//! ([`refit_cluster_api::rollout`]) are run to their end on paper, with the answers that our hooks would give
//! ([`refit_core::change`]).
//!
//! | module | decides |
//! |---|---|
//! | [`mod@reach`], [`managers`] | whether Cluster API calls our hooks for a group |
//! | [`input`], [`objects`] | what a plan is made of |
//! | [`outcome`] | what it says |
//! | [`doctor`] | whether an installation is sound |

mod control_planes;
pub mod doctor;
pub mod input;
pub mod managers;
pub mod objects;
pub mod outcome;
mod plane;
pub mod reach;
mod sides;
pub mod unreached;
mod view;
mod workers;

#[cfg(test)]
mod prediction_tests;

use refit_kinds::refit::Owner;

pub use input::{Hosts, Input};
pub use managers::{Manager, Provider};
pub use objects::Objects;
pub use outcome::{
    Blocked, Cause, CauseReason, Counts, GroupPrediction, PathLine, PredictedOutcome, Prediction,
};
pub use reach::{Extension, GroupRef, Reach, Read, Shape, notes, reach};
pub use unreached::Unreached;

/// Reasons that a plan blocks for beside those of [`refit_core::report::Refusal`], [`Unreached`] and
/// [`refit_core::change::NotReady`].
pub const BLOCKED_REASONS: [&str; 4] =
    ["KubeletTooOld", "ManagedByTopology", "TemplateMissing", "TopologyVersionMismatch"];

/// Says what will happen to every group that the input names: control planes first.
pub fn predict(input: &Input) -> Prediction {
    let mut planned: Vec<GroupPrediction> = Vec::new();
    let mut notes = Vec::new();
    let is_plane = |target: &&GroupRef| target.owner() == Some(Owner::ControlPlane);
    let (planes, rest): (Vec<_>, Vec<_>) = input.targets.iter().partition(is_plane);
    for target in planes.into_iter().chain(rest) {
        let found = match target.owner() {
            Some(Owner::ControlPlane) => control_planes::predict(input, target),
            Some(Owner::Deployment) => {
                let of = input
                    .desired
                    .get(&target.kind, &target.namespace, &target.name)
                    .map(|object| refit_kinds::json::text(object, "/spec/clusterName"));
                let control_plane = planned.iter().find(|plan| {
                    plan.kind == Owner::ControlPlane.kind()
                        && plan.namespace == target.namespace
                        && Some(plan.cluster.as_str()) == of
                });
                let control_plane = control_plane.cloned();
                workers::predict(input, target, control_plane.as_ref())
            }
            Some(Owner::Set) | None => workers::unserved(input, target),
        };
        match found {
            Some(plan) => planned.push(plan),
            None => notes.push(format!("{target} is not there")),
        }
    }
    Prediction::of(planned, notes)
}
