//! Which machine runs `kubeadm upgrade apply`.

use refit_kinds::{refit::Role, version::KubernetesVersion};

use super::seen::{ImageVersion, StaticPod};

/// Decides the role of a machine for kubeadm, once.
///
/// The ConfigMap `kubeadm-config` does not count: Cluster API rewrites it before the first machine
/// is updated (`docs/facts/kubeadm.md#first-control-plane`). The API servers' mirror pods decide:
///
/// | API servers | last NodeUpdate with the role first | role |
/// |---|---|---|
/// | none runs the target | any | first |
/// | some do | did not pass `kubeadm-upgrade` | first: its `apply` has not ended, and is safe to repeat |
/// | some do | passed, or does not exist | not the first |
/// | pods carry no image | passed | not the first |
/// | pods carry no image | did not pass, or does not exist | first |
pub fn decide_role(
    control_plane: bool,
    goal: Option<&KubernetesVersion>,
    last_first_passed: Option<bool>,
    static_pods: &[StaticPod],
) -> Role {
    if !control_plane {
        return Role::Worker;
    }
    let Some(goal) = goal else {
        return Role::ControlPlane;
    };
    let mut versions = static_pods
        .iter()
        .filter(|pod| pod.component == "kube-apiserver")
        .map(|pod| &pod.version)
        .filter(|version| **version != ImageVersion::Untagged)
        .peekable();
    let target = ImageVersion::Version(goal.clone());
    let done = match versions.peek() {
        Some(_) => versions.any(|version| *version == target) && last_first_passed != Some(false),
        None => last_first_passed == Some(true),
    };
    if done { Role::ControlPlane } else { Role::FirstControlPlane }
}
