//! NodeUpdates for tests.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{
    Goal, MachineRef, NodeUpdate, NodeUpdateSpec, NodeUpdateStatus, Origin, Phase, Stage, Until,
};

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub(crate) fn goal(version: &str) -> Goal {
    Goal::of_version(version.parse().unwrap())
}

/// A NodeUpdate of Machine `m`. One that has ended did so an hour ago.
pub(crate) fn update(ordinal: u32, version: &str, phase: Phase) -> NodeUpdate {
    let goal = goal(version);
    let mut update = NodeUpdate::new(
        &format!("m-{ordinal}"),
        NodeUpdateSpec {
            stage: Stage::Ongoing,
            until: Until::Disrupt,
            machine_ref: MachineRef { name: "m".into(), uid: "u".into() },
            origin: Origin::Hook,
            goal_hash: goal.hash(),
            parts: None,
            bundle: None,
            goal,
        },
    );
    update.status = Some(NodeUpdateStatus {
        phase,
        finished_at: phase.is_final().then(|| Time(now() - SignedDuration::from_hours(1))),
        ..NodeUpdateStatus::default()
    });
    update
}
