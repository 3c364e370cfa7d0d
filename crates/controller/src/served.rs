//! The kinds of Cluster API that the management cluster may serve in v1beta1 only, or not at all.

use refit_cluster_api::{
    kinds::{CONTROL_PLANE_GROUP, CORE_GROUP},
    v1beta1,
};
use refit_runtime::client::VersionedKind;
use serde_json::Value;

/// Every kind of Cluster API that is watched. Other control planes than kubeadm's, and other versions of Cluster API,
/// lack those that are not required.
pub(crate) const KINDS: &[VersionedKind] = &[
    of_core("Cluster", "clusters", v1beta1::cluster),
    of_core("Machine", "machines", v1beta1::machine),
    of_core("MachineSet", "machinesets", v1beta1::machine_set),
    of_core("MachineDeployment", "machinedeployments", v1beta1::machine_deployment),
    VersionedKind {
        required: false,
        ..of_core("MachineDrainRule", "machinedrainrules", v1beta1::machine_drain_rule)
    },
    VersionedKind {
        group: CONTROL_PLANE_GROUP,
        required: false,
        ..of_core("KubeadmControlPlane", "kubeadmcontrolplanes", v1beta1::control_plane)
    },
];

const fn of_core(kind: &'static str, plural: &'static str, read: fn(&mut Value)) -> VersionedKind {
    VersionedKind {
        group: CORE_GROUP,
        kind,
        plural,
        newer: "v1beta2",
        older: "v1beta1",
        required: true,
        read,
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource;
    use refit_cluster_api::kinds::{
        Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineDrainRule, MachineSet,
    };

    use super::*;

    fn names<K: Resource<DynamicType = ()>>() -> [String; 4] {
        [K::group(&()), K::kind(&()), K::plural(&()), K::version(&())].map(Into::into)
    }

    #[test]
    fn the_kinds_are_those_that_are_read() {
        let known = KINDS.iter().map(|kind| [kind.group, kind.kind, kind.plural, kind.newer]);
        let read = [
            names::<Cluster>(),
            names::<Machine>(),
            names::<MachineSet>(),
            names::<MachineDeployment>(),
            names::<MachineDrainRule>(),
            names::<KubeadmControlPlane>(),
        ];
        assert_eq!(known.collect::<Vec<_>>(), read);
    }
}
