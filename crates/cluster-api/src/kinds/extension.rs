//! The kind ExtensionConfig.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use refit_kinds::hooks::RequestHook;

/// Registers a runtime extension with Cluster API (`docs/facts/hooks.md#extensionconfig`).
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "runtime.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "ExtensionConfig",
    doc = "Registers a runtime extension with Cluster API.",
    plural = "extensionconfigs",
    shortname = "ext",
    category = "cluster-api",
    status = "ExtensionConfigStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Discovered",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Discovered\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionConfigSpec {
    /// How to reach the extension.
    pub client_config: ExtensionClientConfig,
    /// Namespaces whose objects Cluster API calls the extension for; absent matches none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Settings that Cluster API passes in each request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// How to reach an extension: by `url` or by `service`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionClientConfig {
    /// `https://host[:port][/base]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A Service of the management cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ExtensionService>,
    /// Base64 of the PEM bundle that the server's certificate must chain to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
}

/// A Service that serves an extension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExtensionService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Base path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Port, 443 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// Result of the discovery by Cluster API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionConfigStatus {
    /// `Discovered` and `Paused`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The handlers, each named `<handler>.<ExtensionConfig>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub handlers: Vec<DiscoveredHandler>,
}

/// One discovered handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredHandler {
    /// `<handler>.<ExtensionConfig>`.
    pub name: String,
    /// The hook that the handler serves.
    #[schemars(with = "RequestHookSchema")]
    pub request_hook: RequestHook,
    /// Call timeout in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// `Fail` or `Ignore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<String>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct RequestHookSchema {
    api_version: String,
    hook: String,
}
