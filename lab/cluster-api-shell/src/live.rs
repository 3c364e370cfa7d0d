//! An object as the API server has it: typed for reading, whole JSON for writing.

use std::{
    borrow::Cow,
    fmt::Debug,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::{Resource, api::ObjectMeta, core::DynamicResourceScope, discovery::ApiResource};
use refit_cluster_api::kinds::{
    Cluster, ExtensionConfig, KubeadmControlPlane, Machine, MachineDeployment, MachineHealthCheck,
    MachineSet,
};
use refit_cluster_api::rollout::{self, remediation::Need};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use crate::defaults;

/// The typed part of a [`Live`] object.
pub(crate) trait Typed: DeserializeOwned + Clone + Debug + Send + Sync + 'static {
    /// Whether absent fields get Cluster API's defaults before the typed part is read.
    const DEFAULTED: bool = false;

    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// The object's metadata, mutable.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

macro_rules! typed {
    ($($kind:ty: $defaulted:literal),* $(,)?) => {$(
        impl Typed for $kind {
            const DEFAULTED: bool = $defaulted;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

typed! {
    Bare: false,
    Cluster: false,
    ExtensionConfig: true,
    KubeadmControlPlane: true,
    Machine: false,
    MachineDeployment: true,
    MachineHealthCheck: false,
    MachineSet: false,
    Namespace: false,
    Node: false,
    Pod: false,
    Secret: false,
}

/// Metadata only: the typed part of provider kinds.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Bare {
    /// The object's metadata.
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
}

/// An object as the API server has it.
///
/// A typed struct drops unknown fields, but an applied object must keep them, for example in a
/// MachineSet's template. So the JSON is kept too. A clone shares both.
#[derive(Clone, Debug)]
pub(crate) struct Live<K> {
    typed: Arc<K>,
    json: Arc<Value>,
    /// Of a Machine that a rollout has looked at.
    snapshot: Arc<OnceLock<(rollout::Machine, Need)>>,
}

impl Live<Machine> {
    /// What rollouts decide on, read once: each change of one Machine makes its owners look at all of
    /// theirs.
    pub(crate) fn snapshot(&self) -> &rollout::Machine {
        &self.read_once().0
    }

    /// Whether it needs remediation, read once, too.
    pub(crate) fn need(&self) -> Need {
        self.read_once().1
    }

    fn read_once(&self) -> &(rollout::Machine, Need) {
        self.snapshot.get_or_init(|| (rollout::Machine::of(&self.json), Need::of(&self.json)))
    }
}

impl<K: Typed> Live<K> {
    /// Parses an object.
    pub(crate) fn read(json: Value) -> Result<Self, serde_json::Error> {
        let typed = if K::DEFAULTED {
            let mut defaulted = json.clone();
            defaults::default_object(&mut defaulted);
            K::deserialize(defaulted)?
        } else {
            K::deserialize(&json)?
        };
        Ok(Self { typed: Arc::new(typed), json: Arc::new(json), snapshot: Arc::default() })
    }

    /// The whole object.
    pub(crate) fn json(&self) -> &Value {
        &self.json
    }

    /// One field of the object, `Null` if it is missing.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.json.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The object's uid, empty before it has one.
    pub(crate) fn uid_text(&self) -> &str {
        self.typed.metadata().uid.as_deref().unwrap_or_default()
    }

    /// Whether the object is being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.typed.metadata().deletion_timestamp.is_some()
    }
}

impl<K> Deref for Live<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.typed
    }
}

impl<'de, K: Typed> Deserialize<'de> for Live<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<K: Typed> Resource for Live<K> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        self.typed.metadata()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        Arc::make_mut(&mut self.typed).metadata_mut()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_stay_in_the_json() {
        let object = json!({
            "metadata": {"name": "m", "resourceVersion": "17"},
            "spec": {"clusterName": "c", "taints": [{"key": "a"}]},
        });
        let live = Live::<Machine>::read(object).unwrap();
        assert_eq!(live.spec.cluster_name, "c");
        assert_eq!(live.at("/spec/taints/0/key"), "a");
        assert_eq!(live.metadata().resource_version.as_deref(), Some("17"));
    }

    #[test]
    fn defaults_reach_the_typed_part_only() {
        let object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "md"},
            "spec": {"clusterName": "c"},
        });
        let live = Live::<MachineDeployment>::read(object).unwrap();
        assert_eq!(live.spec.replicas, Some(1));
        assert!(live.at("/spec/replicas").is_null());
    }
}
