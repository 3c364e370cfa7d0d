//! The part of Cluster API's kinds (contract v1beta2) that Refit reads.
//!
//! Each struct types the fields that Refit reads and keeps unknown fields in its CRD
//! (`x-kubernetes-preserve-unknown-fields`), but *not* in the Rust value: write these objects by
//! patch or apply, never by replacing them.

mod cluster;
mod control_plane;
mod extension;
mod kubeadm;
mod machine;
mod machine_deployment;
mod machine_drain_rule;
mod machine_health_check;
mod machine_set;

pub use cluster::*;
pub use control_plane::*;
pub use extension::*;
pub use kubeadm::*;
pub use machine::*;
pub use machine_deployment::*;
pub use machine_drain_rule::*;
pub use machine_health_check::*;
pub use machine_set::*;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A reference to an object of any version of a kind, as in contract v1beta2.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct ContractRef {
    /// API group; the version comes from the CRD's contract label.
    pub api_group: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object, in the namespace of the referring object.
    pub name: String,
}

/// Labels and annotations that a template gives to the objects created from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMeta {
    /// Labels of the created objects.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Annotations of the created objects.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// A free-form object whose fields Refit carries but does not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Opaque(pub Map<String, Value>);

/// Group of the core kinds.
pub const CORE_GROUP: &str = "cluster.x-k8s.io";
/// Group of the control plane kinds.
pub const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";
/// Group of the bootstrap kinds.
pub const BOOTSTRAP_GROUP: &str = "bootstrap.cluster.x-k8s.io";
/// Group of the infrastructure kinds.
pub const INFRASTRUCTURE_GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// The contract version that Refit uses.
pub const CONTRACT_VERSION: &str = "v1beta2";
