//! The Clusters of a fleet, with one machine each.

use std::fmt::Write as _;

/// What the names of the Clusters begin with.
pub(crate) const SITE: &str = "site-";

/// The manifests of Clusters `site-1` to `site-N` at a version. The last one has the label `ring: canary`, the others
/// `ring: fleet`.
pub fn manifests(clusters: u32, version: &str) -> String {
    let mut yaml = String::new();
    for number in 1..=clusters {
        let name = format!("{SITE}{number}");
        let ring = if number == clusters { "canary" } else { "fleet" };
        let reference = |group: &str, kind: &str| {
            format!("{{apiGroup: {group}.cluster.x-k8s.io, kind: {kind}, name: {name}}}")
        };
        let _ = write!(
            yaml,
            "apiVersion: cluster.x-k8s.io/v1beta2\n\
             kind: Cluster\n\
             metadata: {{name: {name}, namespace: default, labels: {{ring: {ring}}}}}\n\
             spec:\n  \
               controlPlaneRef: {}\n  \
               infrastructureRef: {}\n---\n\
             apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\n\
             kind: SandboxCluster\n\
             metadata: {{name: {name}, namespace: default}}\n\
             spec: {{controlPlaneEndpoint: {{host: {name}.example.com, port: 6443}}}}\n---\n\
             apiVersion: controlplane.cluster.x-k8s.io/v1beta2\n\
             kind: KubeadmControlPlane\n\
             metadata: {{name: {name}, namespace: default}}\n\
             spec:\n  \
               replicas: 1\n  \
               version: {version}\n  \
               machineTemplate: {{spec: {{infrastructureRef: {}}}}}\n---\n\
             apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\n\
             kind: SandboxMachineTemplate\n\
             metadata: {{name: {name}, namespace: default}}\n\
             spec: {{template: {{spec: {{cpus: 4, memoryMiB: 8192}}}}}}\n---\n",
            reference("controlplane", "KubeadmControlPlane"),
            reference("infrastructure", "SandboxCluster"),
            reference("infrastructure", "SandboxMachineTemplate"),
        );
    }
    yaml
}
