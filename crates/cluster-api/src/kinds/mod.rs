//! The part of Cluster API's kinds (contract v1beta2) that Refit reads.
//!
//! Each struct is typed where we read and keeps unknown fields in its CRD
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

/// A reference to an object of any version of a kind, as contract v1beta2 writes it.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct ContractRef {
    /// API group; the version comes from the CRD's contract label.
    pub api_group: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object, in the namespace of the object that refers to it.
    pub name: String,
}

/// Labels and annotations that a template gives to what is made of it.
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

/// A free-form object whose fields we carry but do not read.
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
/// The contract version that we speak.
pub const CONTRACT_VERSION: &str = "v1beta2";

/// An integer or a percentage such as `25%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// A number of machines.
    Int(i32),
    /// A share of the replicas, such as `25%`.
    Percent(String),
}

impl JsonSchema for IntOrPercent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

impl IntOrPercent {
    /// The number of machines this is of `replicas`; percentages are rounded up or down.
    ///
    /// Returns `None` for a text that is not a percentage.
    pub fn of(&self, replicas: i32, round_up: bool) -> Option<i32> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Percent(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                let scaled = percent.checked_mul(i64::from(replicas))?;
                let whole =
                    if round_up { (scaled + 99).div_euclid(100) } else { scaled.div_euclid(100) };
                i32::try_from(whole).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_for_surge_and_down_for_unavailable() {
        let quarter = IntOrPercent::Percent("25%".into());
        assert_eq!(quarter.of(5, true), Some(2));
        assert_eq!(quarter.of(5, false), Some(1));
        assert_eq!(IntOrPercent::Int(3).of(5, true), Some(3));
        assert_eq!(IntOrPercent::Percent("many".into()).of(5, true), None);
    }
}
