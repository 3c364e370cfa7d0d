//! Flags and feature gates that a minor version of Kubernetes has removed
//! (`docs/facts/kubernetes.md#removed-flags-and-gates`).

/// Program, flag, and the minor version of Kubernetes 1 that removed it.
const FLAGS: [(&str, &str, u64); 16] = [
    ("kube-scheduler", "lock-object-name", 28),
    ("kube-scheduler", "lock-object-namespace", 28),
    ("kubelet", "azure-container-registry-config", 30),
    ("kubelet", "iptables-drop-bit", 31),
    ("kubelet", "iptables-masquerade-bit", 31),
    ("kubelet", "keep-terminated-pod-volumes", 31),
    ("kube-apiserver", "cloud-provider-gce-lb-src-cidrs", 31),
    ("kube-controller-manager", "cloud-provider-gce-lb-src-cidrs", 31),
    ("kube-controller-manager", "horizontal-pod-autoscaler-downscale-delay", 31),
    ("kube-controller-manager", "horizontal-pod-autoscaler-upscale-delay", 31),
    ("kube-controller-manager", "volume-host-allow-local-loopback", 31),
    ("kube-controller-manager", "volume-host-cidr-denylist", 31),
    ("kube-apiserver", "cloud-config", 33),
    ("kube-apiserver", "cloud-provider", 33),
    ("kubelet", "cloud-config", 34),
    ("kubelet", "register-schedulable", 34),
];

/// Feature gates that no program knows any more, by the minor version of Kubernetes 1 that removed them.
const GATES: [(u64, &[&str]); 9] = [
    (
        28,
        &[
            "AdvancedAuditing",
            "CSIMigrationGCE",
            "CSIStorageCapacity",
            "DelegateFSGroupToCSIDriver",
            "DevicePlugins",
            "DisableAcceleratorUsageMetrics",
            "DryRun",
            "EndpointSliceTerminatingCondition",
            "KubeletCredentialProviders",
            "MixedProtocolLBService",
            "NetworkPolicyStatus",
            "PodHasNetworkCondition",
            "PodSecurity",
            "ServiceIPStaticSubrange",
            "ServiceInternalTrafficPolicy",
            "UserNamespacesStatelessPodsSupport",
            "WindowsHostProcessContainers",
        ],
    ),
    (
        29,
        &[
            "CSIMigrationvSphere",
            "CronJobTimeZone",
            "DownwardAPIHugePages",
            "GRPCContainerProbe",
            "JobMutableNodeSchedulingDirectives",
            "JobTrackingWithFinalizers",
            "LegacyServiceAccountTokenNoAutoGeneration",
            "MultiCIDRRangeAllocator",
            "OpenAPIV3",
            "ProbeTerminationGracePeriod",
            "RetroactiveDefaultStorageClass",
            "SeccompDefault",
            "TopologyManager",
        ],
    ),
    (
        30,
        &[
            "APISelfSubjectReview",
            "CSIMigrationAzureFile",
            "ExpandedDNSConfig",
            "ExperimentalHostUserNamespaceDefaulting",
            "IPTablesOwnershipCleanup",
            "KubeletPodResources",
            "KubeletPodResourcesGetAllocatable",
            "LegacyServiceAccountTokenTracking",
            "MinimizeIPTablesRestore",
            "ProxyTerminatingEndpoints",
            "RemoveSelfLink",
            "SecurityContextDeny",
        ],
    ),
    (
        31,
        &[
            "APIPriorityAndFairness",
            "CSIMigrationRBD",
            "CSINodeExpandSecret",
            "ConsistentHTTPGetHandlers",
            "CustomResourceValidationExpressions",
            "DefaultHostNetworkHostPortsInPodTemplates",
            "InTreePluginAWSUnregister",
            "InTreePluginAzureDiskUnregister",
            "InTreePluginAzureFileUnregister",
            "InTreePluginGCEUnregister",
            "InTreePluginOpenStackUnregister",
            "InTreePluginRBDUnregister",
            "InTreePluginvSphereUnregister",
            "JobReadyPods",
            "ReadWriteOncePod",
            "ServiceNodePortStaticSubrange",
            "SkipReadOnlyValidationGCE",
        ],
    ),
    (
        32,
        &[
            "CloudDualStackNodeIPs",
            "DRAControlPlaneController",
            "HPAContainerMetrics",
            "KMSv2",
            "KMSv2KDF",
            "LegacyServiceAccountTokenCleanUp",
            "MinDomainsInPodTopologySpread",
            "NewVolumeManagerReconstruction",
            "NodeOutOfServiceVolumeDetach",
            "PodHostIPs",
            "ServerSideApply",
            "ServerSideFieldValidation",
            "StableLoadBalancerNodeSet",
            "ValidatingAdmissionPolicy",
            "ZeroLimitedNominalConcurrencyShares",
        ],
    ),
    (
        33,
        &[
            "APIListChunking",
            "AdmissionWebhookMatchConditions",
            "AggregatedDiscoveryEndpoint",
            "AppArmor",
            "AppArmorFields",
            "CPUManager",
            "DisableCloudProviders",
            "DisableKubeletCloudCredentialProviders",
            "EfficientWatchResumption",
            "JobPodFailurePolicy",
            "KubeProxyDrainingTerminatingNodes",
            "PDBUnhealthyPodEvictionPolicy",
            "PersistentVolumeLastPhaseTransitionTime",
            "RemainingItemCount",
            "VolumeCapacityPriority",
            "WatchBookmark",
        ],
    ),
    (
        34,
        &[
            "DevicePluginCDIDevices",
            "ElasticIndexedJob",
            "LegacySidecarContainers",
            "PodDisruptionConditions",
            "StatefulSetStartOrdinal",
        ],
    ),
    (
        35,
        &[
            "AllowServiceLBStatusOnNonLB",
            "ComponentSLIs",
            "CronJobsScheduledAnnotation",
            "LoadBalancerIPMode",
            "PodIndexLabel",
            "ProbeHostPodSecurityStandards",
            "SizeMemoryBackedVolumes",
            "StatefulSetAutoDeletePVC",
            "StrictCostEnforcementForVAP",
            "StrictCostEnforcementForWebhooks",
            "UserNamespacesPodSecurityStandards",
        ],
    ),
    (
        36,
        &[
            "CSIMigrationPortworx",
            "HonorPVReclaimPolicy",
            "InPlacePodVerticalScalingAllocatedStatus",
            "InTreePluginPortworxUnregister",
            "MemoryManager",
            "ServiceTrafficDistribution",
            "StructuredAuthorizationConfiguration",
            "TopologyAwareHints",
            "WatchFromStorageWithoutResourceVersion",
        ],
    ),
];

/// The minor version that removed a flag of a program, if that is at most `minor`.
pub(super) fn flag(program: &str, flag: &str, minor: u64) -> Option<u64> {
    let mut known = FLAGS.iter().filter(|(of, name, _)| *of == program && *name == flag);
    known.next().map(|(_, _, removed)| *removed).filter(|removed| *removed <= minor)
}

/// The minor version that removed a feature gate, if that is at most `minor`.
pub(super) fn gate(gate: &str, minor: u64) -> Option<u64> {
    let known = GATES.iter().find(|(_, gates)| gates.contains(&gate));
    known.map(|(removed, _)| *removed).filter(|removed| *removed <= minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_count_from_their_minor_on() {
        assert_eq!(flag("kubelet", "cloud-config", 33), None);
        assert_eq!(flag("kubelet", "cloud-config", 34), Some(34));
        assert_eq!(flag("kube-apiserver", "cloud-config", 35), Some(33));
        assert_eq!(flag("kubelet", "v", 99), None);
        assert_eq!(gate("CPUManager", 32), None);
        assert_eq!(gate("CPUManager", 33), Some(33));
        assert_eq!(gate("CPUManager", 35), Some(33));
        assert_eq!(gate("NodeSwap", 99), None);
    }

    #[test]
    fn each_gate_is_removed_once() {
        let mut all: Vec<&str> =
            GATES.iter().flat_map(|(_, gates)| gates.iter().copied()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
