//! How the lists of built-in kinds merge in a strategic merge patch: Kubernetes' `patchStrategy`
//! and `patchMergeKey`, by type and field. The server merges by these rules and publishes them in
//! its schemas, so that kubectl builds its patches by the same rules.

/// How one field merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Maps merge member by member; lists and scalars are replaced.
    Plain,
    /// A list of objects identified by this member.
    Key(&'static str),
    /// Like `Key`, and each item keeps only the members that the patch lists in `$retainKeys`.
    KeyRetain(&'static str),
    /// A list of scalars, merged as a set.
    Set,
    /// A map that keeps only the members that the patch lists in `$retainKeys`.
    Retain,
    /// Replaced as a whole, even if it is a map.
    Replace,
}

impl Rule {
    /// The merge key, if there is one.
    pub(crate) fn key(self) -> Option<&'static str> {
        match self {
            Self::Key(key) | Self::KeyRetain(key) => Some(key),
            _ => None,
        }
    }

    /// The value of `x-kubernetes-patch-strategy`.
    pub(crate) fn strategy(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Key(_) | Self::Set => Some("merge"),
            Self::KeyRetain(_) => Some("merge,retainKeys"),
            Self::Retain => Some("retainKeys"),
            Self::Replace => Some("replace"),
        }
    }
}

use Rule::{Key, KeyRetain, Plain, Replace, Retain, Set};

/// Type, field, the type of the field's value (`""` if it has no exceptions below it), and the
/// field's merge rule.
pub(crate) const FIELDS: &[(&str, &str, &str, Rule)] = &[
    ("ObjectMeta", "finalizers", "", Set),
    ("ObjectMeta", "ownerReferences", "", Key("uid")),
    ("Container", "env", "", Key("name")),
    ("Container", "ports", "", Key("containerPort")),
    ("Container", "volumeDevices", "", Key("devicePath")),
    ("Container", "volumeMounts", "", Key("mountPath")),
    ("EphemeralContainer", "env", "", Key("name")),
    ("EphemeralContainer", "ports", "", Key("containerPort")),
    ("EphemeralContainer", "volumeDevices", "", Key("devicePath")),
    ("EphemeralContainer", "volumeMounts", "", Key("mountPath")),
    ("PodSpec", "containers", "Container", Key("name")),
    ("PodSpec", "ephemeralContainers", "EphemeralContainer", Key("name")),
    ("PodSpec", "hostAliases", "", Key("ip")),
    ("PodSpec", "imagePullSecrets", "", Key("name")),
    ("PodSpec", "initContainers", "Container", Key("name")),
    ("PodSpec", "resourceClaims", "", KeyRetain("name")),
    ("PodSpec", "schedulingGates", "", Key("name")),
    ("PodSpec", "topologySpreadConstraints", "", Key("topologyKey")),
    ("PodSpec", "volumes", "", KeyRetain("name")),
    ("PodStatus", "conditions", "", Key("type")),
    ("PodStatus", "containerStatuses", "ContainerStatus", Plain),
    ("PodStatus", "ephemeralContainerStatuses", "ContainerStatus", Plain),
    ("PodStatus", "hostIPs", "", Key("ip")),
    ("PodStatus", "initContainerStatuses", "ContainerStatus", Plain),
    ("PodStatus", "podIPs", "", Key("ip")),
    ("PodStatus", "resourceClaimStatuses", "", KeyRetain("name")),
    ("ContainerStatus", "allocatedResourcesStatus", "", Key("name")),
    ("ContainerStatus", "volumeMounts", "", Key("mountPath")),
    ("Pod", "spec", "PodSpec", Plain),
    ("Pod", "status", "PodStatus", Plain),
    ("PodTemplateSpec", "metadata", "ObjectMeta", Plain),
    ("PodTemplateSpec", "spec", "PodSpec", Plain),
    ("Namespace", "status", "NamespaceStatus", Plain),
    ("NamespaceStatus", "conditions", "", Key("type")),
    ("Node", "spec", "NodeSpec", Plain),
    ("Node", "status", "NodeStatus", Plain),
    ("NodeSpec", "podCIDRs", "", Set),
    ("NodeStatus", "addresses", "", Key("type")),
    ("NodeStatus", "conditions", "", Key("type")),
    ("PersistentVolumeClaim", "status", "PersistentVolumeClaimStatus", Plain),
    ("PersistentVolumeClaimStatus", "conditions", "", Key("type")),
    ("Service", "spec", "ServiceSpec", Plain),
    ("Service", "status", "ServiceStatus", Plain),
    ("ServiceSpec", "ports", "", Key("port")),
    ("ServiceStatus", "conditions", "", Key("type")),
    ("ServiceAccount", "secrets", "", Key("name")),
    ("DaemonSet", "spec", "DaemonSetSpec", Plain),
    ("DaemonSet", "status", "DaemonSetStatus", Plain),
    ("DaemonSetSpec", "template", "PodTemplateSpec", Plain),
    ("DaemonSetStatus", "conditions", "", Key("type")),
    ("Deployment", "spec", "DeploymentSpec", Plain),
    ("Deployment", "status", "DeploymentStatus", Plain),
    ("DeploymentSpec", "strategy", "", Retain),
    ("DeploymentSpec", "template", "PodTemplateSpec", Plain),
    ("DeploymentStatus", "conditions", "", Key("type")),
    ("ReplicaSet", "spec", "ReplicaSetSpec", Plain),
    ("ReplicaSet", "status", "ReplicaSetStatus", Plain),
    ("ReplicaSetSpec", "template", "PodTemplateSpec", Plain),
    ("ReplicaSetStatus", "conditions", "", Key("type")),
    ("StatefulSet", "spec", "StatefulSetSpec", Plain),
    ("StatefulSet", "status", "StatefulSetStatus", Plain),
    ("StatefulSetSpec", "template", "PodTemplateSpec", Plain),
    ("StatefulSetStatus", "conditions", "", Key("type")),
    ("PodDisruptionBudget", "spec", "PodDisruptionBudgetSpec", Plain),
    ("PodDisruptionBudget", "status", "PodDisruptionBudgetStatus", Plain),
    ("PodDisruptionBudgetSpec", "selector", "", Replace),
    ("PodDisruptionBudgetStatus", "conditions", "", Key("type")),
    ("ValidatingAdmissionPolicy", "spec", "ValidatingAdmissionPolicySpec", Plain),
    ("ValidatingAdmissionPolicySpec", "matchConditions", "", Key("name")),
    ("ValidatingAdmissionPolicySpec", "variables", "", Key("name")),
];

/// The type and the rule of a field; every kind's `metadata` is an `ObjectMeta`.
pub(crate) fn field(of: &str, name: &str) -> (&'static str, Rule) {
    let found = FIELDS.iter().find(|(of_type, field, _, _)| *of_type == of && *field == name);
    match found {
        Some((_, _, child, rule)) => (child, *rule),
        None => ("", Plain),
    }
}
