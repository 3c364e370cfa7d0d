//! OpenShift's kinds as CRDs, as far as managed upgrades need them: permissive, with texts of our own.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

const FILES: [&str; 7] = [
    include_str!("../crds/config.openshift.io_clusteroperators.yaml"),
    include_str!("../crds/config.openshift.io_clusterversions.yaml"),
    include_str!("../crds/fileintegrity.openshift.io_fileintegrities.yaml"),
    include_str!("../crds/machine.openshift.io_machines.yaml"),
    include_str!("../crds/machine.openshift.io_machinesets.yaml"),
    include_str!("../crds/machineconfiguration.openshift.io_machineconfigpools.yaml"),
    include_str!("../crds/route.openshift.io_routes.yaml"),
];

/// The CRDs of OpenShift's own kinds, without UpgradeConfig.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let read = |text: &&str| serde_saphyr::from_str(text).expect("the files are part of the crate");
    FILES.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use kube::core::crd::CustomResourceExt as _;
    use refit_openshift::kinds::{
        ClusterOperator, ClusterVersion, Machine, MachineConfigPool, MachineSet,
    };

    use super::*;

    #[test]
    fn the_kinds_that_the_operator_reads_are_served_as_it_reads_them() {
        let served = |crd: &CustomResourceDefinition| {
            let version = &crd.spec.versions[0];
            let has_status = version.subresources.as_ref().is_some_and(|one| one.status.is_some());
            let (name, spec) = (crd.metadata.name.clone(), &crd.spec);
            let kind = spec.names.kind.clone();
            (name, kind, spec.scope.clone(), version.name.clone(), has_status)
        };
        let ours: Vec<_> = crds().iter().map(served).collect();
        for kind in [
            ClusterOperator::crd(),
            ClusterVersion::crd(),
            Machine::crd(),
            MachineConfigPool::crd(),
            MachineSet::crd(),
        ] {
            assert!(ours.contains(&served(&kind)), "{:?}", kind.metadata.name);
        }
    }
}
