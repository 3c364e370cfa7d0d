//! KubeadmConfig and its template.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Opaque;

/// How one machine is bootstrapped by kubeadm. Its spec carries tokens: never log it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfig",
    doc = "How one machine is bootstrapped by kubeadm.",
    plural = "kubeadmconfigs",
    category = "cluster-api",
    namespaced,
    status = "KubeadmConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Data secret", type_ = "string", json_path = ".status.dataSecretName")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KubeadmConfigSpec {
    /// kubeadm's ClusterConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_configuration: Option<Opaque>,
    /// kubeadm's InitConfiguration: the first control plane machine only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_configuration: Option<Opaque>,
    /// kubeadm's JoinConfiguration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_configuration: Option<Opaque>,
}

/// Observed state of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KubeadmConfigStatus {
    /// Conditions, keyed by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Secret with the bootstrap data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
    /// One-way milestones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<KubeadmConfigInitialization>,
}

/// One-way milestones of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmConfigInitialization {
    /// The bootstrap data exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// Template of KubeadmConfigs.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfigTemplate",
    doc = "Template of KubeadmConfigs.",
    plural = "kubeadmconfigtemplates",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    derive = "Default"
)]
pub struct KubeadmConfigTemplateSpec {
    /// The KubeadmConfig that is created from this template.
    #[serde(default)]
    pub template: KubeadmConfigTemplateResource,
}

/// The KubeadmConfig that is created from a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KubeadmConfigTemplateResource {
    /// Spec of the KubeadmConfig.
    #[serde(default)]
    pub spec: KubeadmConfigSpec,
}
