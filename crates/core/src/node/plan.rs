//! The steps of a host, cut by gates.

use refit_api::refit::{Gate, PlannedStep, Role, StepAction, StepType};

/// Id of a step on the host, as statuses and durations name it.
pub(super) fn step_id(step: StepType) -> &'static str {
    match step {
        StepType::Preflight => "preflight",
        StepType::Stage => "stage",
        StepType::Snapshot => "snapshot",
        StepType::KubeadmInstall => "kubeadm-install",
        StepType::KubeadmUpgrade => "kubeadm-upgrade",
        StepType::KubeletInstall => "kubelet-install",
        StepType::KubeletRestart => "kubelet-restart",
        StepType::Reboot => "reboot",
        StepType::Verify => "verify",
    }
}

/// The steps that bring a host to `goal`, in the order of `spec/node.md 2.6`: everything that
/// disturbs nothing, then kubeadm, then the kubelet, and a reboot after all packages.
///
/// Every step is safe to repeat, so the plan is the same whatever the host runs now.
pub fn plan_steps(role: Role, goal: &str, reboot: bool) -> Vec<PlannedStep> {
    let mut steps = vec![
        (StepType::Preflight, Gate::Stage),
        (StepType::Stage, Gate::Stage),
    ];
    if role != Role::Worker {
        steps.push((StepType::Snapshot, Gate::Stage));
    }
    steps.extend([
        (StepType::KubeadmInstall, Gate::Upgrade),
        (StepType::KubeadmUpgrade, Gate::Upgrade),
        (StepType::KubeletInstall, Gate::Disrupt),
        (StepType::KubeletRestart, Gate::Disrupt),
    ]);
    if reboot {
        steps.push((StepType::Reboot, Gate::Disrupt));
    }
    steps.push((StepType::Verify, Gate::Disrupt));
    steps
        .into_iter()
        .map(|(type_, gate)| planned(type_, gate, role, goal))
        .collect()
}

fn planned(type_: StepType, gate: Gate, role: Role, goal: &str) -> PlannedStep {
    let version = match type_ {
        StepType::Snapshot | StepType::KubeletRestart | StepType::Reboot => String::new(),
        _ => goal.to_owned(),
    };
    let wants_role = matches!(
        type_,
        StepType::Preflight | StepType::Snapshot | StepType::KubeadmUpgrade
    );
    PlannedStep {
        id: step_id(type_).to_owned(),
        gate,
        action: StepAction {
            type_,
            version,
            role: wants_role.then_some(role),
        },
        disruptive: matches!(
            type_,
            StepType::KubeletInstall | StepType::KubeletRestart | StepType::Reboot
        ),
    }
}
