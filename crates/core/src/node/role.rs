//! Who runs `kubeadm upgrade apply`.

use refit_kinds::{refit::Role, version::KubernetesVersion};

use super::snapshot::{ImageVersion, StaticPod};

/// Decides what a machine is to kubeadm, once.
///
/// The ConfigMap `kubeadm-config` does not count: Cluster API rewrites it before the first machine
/// is touched (`spec/node.md 2.3`). What counts are the API servers' mirror pods:
///
/// | API servers | last NodeUpdate that was the first | role |
/// |---|---|---|
/// | none runs the target | any | first |
/// | some do | did not pass `kubeadm-upgrade` | first: its `apply` has not ended, and is safe to repeat |
/// | some do | passed, or there is none | not the first |
/// | pods carry no image | passed | not the first |
/// | pods carry no image | did not pass, or there is none | first |
pub fn decide_role(
    control_plane: bool,
    goal: &KubernetesVersion,
    last_first_passed: Option<bool>,
    static_pods: &[StaticPod],
) -> Role {
    if !control_plane {
        return Role::Worker;
    }
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
