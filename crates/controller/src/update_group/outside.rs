//! What a group waits for that is none of its updates.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_core::group::{BLOCKED, Outside};
use refit_kinds::{conditions, refit::NodeUpdate};

use crate::{
    context::{Context, Stores},
    groups::{Group, phase_of},
    hooks::can_update::observed_version,
    indexes::GROUPS_BY_CLUSTER,
    owner::LiveOwner,
};

/// How long a member may be unavailable before its group is shown as blocked: it may be restarting.
const RESTARTS_FOR: SignedDuration = SignedDuration::from_mins(5);

/// What a group waits for. `speakers` are the NodeUpdates that speak for its Machines.
pub(super) fn outside(
    ctx: &Context,
    group: &Group,
    machines: &[Arc<Machine>],
    speakers: &[Option<&NodeUpdate>],
) -> Outside {
    let now = ctx.clock.now();
    if !group.spec.control_plane {
        let unfinished = LiveOwner::of(&ctx.stores, group).is_some_and(|owner| {
            machines.iter().any(|machine| observed_version(machine) != *owner.version())
        });
        let control_plane_blocked =
            if unfinished { control_plane_blocked(&ctx.stores, group) } else { None };
        return Outside { control_plane_blocked, unavailable_member: None };
    }
    if !waits_for_cluster_api(&ctx.stores, group, machines) {
        return Outside::default();
    }
    let is_worked_on = |update: &NodeUpdate| !phase_of(update).is_final();
    let unavailable = machines.iter().zip(speakers).find(|(machine, update)| {
        !update.is_some_and(is_worked_on)
            && unavailable_since(machine)
                .is_some_and(|since| now.duration_since(since) >= RESTARTS_FOR)
    });
    let unavailable_member = unavailable.and_then(|(machine, _)| machine.metadata.name.clone());
    Outside { unavailable_member, control_plane_blocked: None }
}

/// Whether the group is to be shown as blocked if one of its members stays as it is.
pub(super) fn may_become_unavailable(
    ctx: &Context,
    group: &Group,
    machines: &[Arc<Machine>],
) -> bool {
    group.spec.control_plane
        && waits_for_cluster_api(&ctx.stores, group, machines)
        && machines.iter().any(|machine| unavailable_since(machine).is_some())
}

/// Whether the owner asks for a version that not every Machine has, and Cluster API waits for no
/// update.
fn waits_for_cluster_api(stores: &Stores, group: &Group, machines: &[Arc<Machine>]) -> bool {
    LiveOwner::of(stores, group).is_some_and(|owner| {
        machines.iter().any(|machine| machine.spec.version != *owner.version())
            && !machines.iter().any(|machine| update_in_progress(machine.as_ref()))
    })
}

/// Since when a Machine with a Node has not been available; `None` if it is, or is being deleted.
fn unavailable_since(machine: &Machine) -> Option<Timestamp> {
    let status = machine.status.as_ref().filter(|status| status.node_ref.is_some())?;
    let available = conditions::get(&status.conditions, conditions::AVAILABLE)?;
    let stays = machine.metadata.deletion_timestamp.is_none();
    (stays && available.status != "True").then_some(available.last_transition_time.0)
}

/// The message of the condition Blocked of the cluster's control plane, if it is blocked.
fn control_plane_blocked(stores: &Stores, group: &Group) -> Option<String> {
    let groups = stores.update_groups.listed(&GROUPS_BY_CLUSTER, &group.cluster_key());
    let control_plane = groups.iter().find(|other| other.spec.control_plane)?;
    let blocked = conditions::get(&control_plane.status.as_ref()?.conditions, BLOCKED)?;
    (blocked.status == "True").then(|| blocked.message.clone())
}
