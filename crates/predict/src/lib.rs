//! Predicts the effect of a change on the machines of a group before it is made, and whether it can
//! be made.
//!
//! This crate has no formulas of its own for Cluster API's behavior: it simulates Cluster API's
//! decisions ([`refit_cluster_api::rollout`]) to the end, with the responses that Refit's hooks
//! would return ([`refit_core::change`]).
//!
//! | module | decides |
//! |---|---|
//! | [`mod@reach`], [`managers`] | whether Cluster API calls Refit's hooks for a group |
//! | [`input`], [`objects`] | the input of a prediction |
//! | [`outcome`] | its result |
//! | [`providers`] | whether the providers of infrastructure machines accept a change |
//! | [`timeline`] | when each machine has its turn |
//! | [`preflight`] | which machines would have to wait |
//! | [`drains`], [`placement`] | whether nodes can be drained, and where their pods could go |
//! | [`target`] | what the target version breaks |
//! | [`doctor`] | whether an installation is healthy |
//! | [`contract`] | whether a provider follows the contract |

mod claimable;
pub mod contract;
mod control_planes;
pub mod doctor;
pub mod drains;
mod host_settings;
pub mod input;
pub mod managers;
pub mod objects;
mod only_machine;
pub mod outcome;
mod pauses;
pub mod placement;
mod plane;
pub mod preflight;
pub mod providers;
pub mod reach;
mod selectors;
mod sides;
pub mod target;
pub mod timeline;
pub mod unreached;
mod view;
mod windows;
mod workers;

#[cfg(test)]
mod prediction_tests;

use refit_kinds::refit::Owner;

pub use drains::{Concern, DrainForecast, DrainOutcome};
pub use input::{Hosts, Input, NodeFacts};
pub use managers::{Manager, Provider};
pub use objects::Objects;
pub use outcome::{
    Blocked, Cause, CauseReason, Counts, GroupPrediction, PathLine, PredictedOutcome, Prediction,
};
pub use providers::{InfrastructureMachine, ProviderQuestion, Providers};
pub use reach::{Extension, GroupRef, Reach, Read, Shape, notes, reach};
pub use target::Warning;
pub use unreached::Unreached;

/// Additional reasons for a blocked prediction, next to those of [`refit_core::report::Refusal`],
/// [`Unreached`] and [`refit_core::change::NotReady`].
pub const BLOCKED_REASONS: [&str; 9] = [
    "BudgetUsedUp",
    "KubeletTooOld",
    "ManagedByTopology",
    "RemovedFeatureGate",
    "RemovedFlag",
    "ReplacementHeld",
    "RuntimeTooOld",
    "TemplateMissing",
    "TopologyVersionMismatch",
];

/// Predicts the rollout of every group in the input, control planes first.
pub fn predict(input: &Input) -> Prediction {
    let mut planned: Vec<GroupPrediction> = Vec::new();
    let mut notes = Vec::new();
    let is_plane = |target: &&GroupRef| target.owner() == Some(Owner::ControlPlane);
    let (planes, rest): (Vec<_>, Vec<_>) = input.targets.iter().partition(is_plane);
    for target in planes.into_iter().chain(rest) {
        let found = match target.owner() {
            Some(Owner::ControlPlane) => control_planes::predict(input, target),
            Some(Owner::Deployment) => {
                let cluster = input
                    .desired
                    .get(&target.kind, &target.namespace, &target.name)
                    .map(|object| refit_kinds::json::text(object, "/spec/clusterName"));
                let control_plane = planned.iter().find(|plan| {
                    plan.kind == Owner::ControlPlane.kind()
                        && plan.namespace == target.namespace
                        && Some(plan.cluster.as_str()) == cluster
                });
                let control_plane = control_plane.cloned();
                workers::predict(input, target, control_plane.as_ref())
            }
            Some(Owner::Set) | None => workers::unserved(input, target),
        };
        match found {
            Some(plan) => planned.push(plan),
            None => notes.push(format!("{target} does not exist")),
        }
    }
    timeline::order::arrange(input, &mut planned);
    Prediction::of(planned, notes)
}
