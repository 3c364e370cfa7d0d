//! Whether a Node shows what its host has done.

use jiff::Timestamp;
use refit_kinds::{
    clip,
    refit::{HostPlan, HostStep, MAX_FACT, PlannedStep, StepType},
};

use crate::node::seen::NodeView;

/// Checks that the kubelet has sent a heartbeat since its restart, that the host has rebooted if a reboot was
/// planned, and that it runs the planned OS image (`docs/facts/kubernetes.md#verifying-a-node`).
pub(super) fn verify(node: &NodeView, plan: &HostPlan, now: Timestamp) -> Result<(), String> {
    if let Some(restart) = last_restart(plan).filter(|restart| !is_heard_since(node, *restart)) {
        let future = if restart > now {
            "; its host dates the restart in the future: if its clock was set back since, heartbeats count \
             only once that time is past"
        } else {
            ""
        };
        return Err(format!("no heartbeat since its kubelet was restarted{future}"));
    }
    if !booted(node, plan) {
        return Err("its Node still reports the previous boot".to_owned());
    }
    match other_os_image(plan) {
        Some((wanted, found)) => {
            let found = clip(found, MAX_FACT);
            Err(format!("its host runs OS image {found:?}, expected {wanted:?}"))
        }
        None => Ok(()),
    }
}

/// When the kubelet was last restarted, by the clock of the host.
fn last_restart(plan: &HostPlan) -> Option<Timestamp> {
    let steps = plan.status.as_ref().map_or(&[][..], |status| &status.steps);
    let started = |type_: StepType| {
        steps.iter().find(|step| step.id == type_.id())?.started_at.as_ref().map(|time| time.0)
    };
    started(StepType::KubeletRestart).max(started(StepType::Reboot))
}

/// Timestamps in statuses have whole seconds, so a heartbeat in the same second counts: the version
/// and the host's own check already show that the kubelet is the new one.
fn is_heard_since(node: &NodeView, restart: Timestamp) -> bool {
    node.heartbeat.is_some_and(|heartbeat| heartbeat.as_second() >= restart.as_second())
}

/// The agent reports the reboot as done only after the boot id has changed; the Node must show the
/// same boot id as the agent.
fn booted(node: &NodeView, plan: &HostPlan) -> bool {
    let boots = [Some(StepType::Reboot), Some(StepType::RebootIfRequired)];
    let reboots = plan.spec.steps.iter().any(|step| boots.contains(&step.step_type()));
    let reported = plan.status.as_ref().map_or("", |status| &status.facts.boot_id);
    !reboots || reported.is_empty() || node.boot_id == reported
}

/// The expected OS image and the one that the host reports, if they differ.
fn other_os_image(plan: &HostPlan) -> Option<(&str, &str)> {
    let mut steps = plan.spec.steps.iter().filter_map(PlannedStep::step);
    let wanted = steps.find_map(|step| {
        if let HostStep::OsImageCommit { os_image } = step { Some(&*os_image.name) } else { None }
    })?;
    let found = plan.status.as_ref()?.facts.os_image.as_str();
    (found != wanted).then_some((wanted, found))
}
