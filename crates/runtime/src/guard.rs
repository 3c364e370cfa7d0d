//! Tolerates objects that do not match their kind's schema.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DynamicResourceScope, discovery::ApiResource};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::{RawValue, Value};

/// Identifies an object and its version. The rest of the metadata, half of which is managedFields, is read
/// with the object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    metadata: Identity,
}

impl From<Identity> for ObjectMeta {
    fn from(identity: Identity) -> Self {
        let Identity { name, namespace, uid, resource_version } = identity;
        Self { name, namespace, uid, resource_version, ..Self::default() }
    }
}

/// An object as the API server sent it, with its identity as metadata. Every watch uses this type,
/// whatever its kind, so kube's watcher and its JSON decoding are compiled once. A page of a list is kept
/// as text until each object is decoded: parsed JSON takes several times as much memory.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    metadata: ObjectMeta,
    text: Box<RawValue>,
}

impl Raw {
    /// Size of the object's JSON, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.text.get().len()
    }
}

/// An object, or the metadata of an object that could not be decoded. Lists and watches of this
/// type continue past a malformed object, which would end a typed watch. (kube's own guard buffers
/// each object twice.)
#[derive(Clone, Debug)]
pub(crate) struct Guarded<K>(pub(crate) Result<K, Unreadable>);

/// An object that could not be decoded.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    pub(crate) reason: String,
    metadata: ObjectMeta,
}

impl Unreadable {
    /// The metadata of the object.
    pub(crate) fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Named { metadata } =
            serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { metadata: metadata.into(), text })
    }
}

impl<K: DeserializeOwned> From<Raw> for Guarded<K> {
    fn from(raw: Raw) -> Self {
        let Raw { metadata, text } = raw;
        // From a value if it cannot be read: that error names its field, and not a column of the text.
        let read = serde_json::from_str(text.get())
            .or_else(|_| serde_json::from_str::<Value>(text.get()).and_then(K::deserialize));
        Self(read.map_err(|error| Unreadable { reason: error.to_string(), metadata }))
    }
}

impl Resource for Raw {
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

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K: Resource> Guarded<K> {
    /// The metadata, which is known in either case.
    pub(crate) fn metadata(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unreadable_object_still_has_its_name() {
        let raw: Raw = serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": "p"},
            "spec": {"containers": "none"},
        }))
        .unwrap();
        let pod: Guarded<Pod> = raw.into();
        assert_eq!(pod.metadata().name.as_deref(), Some("p"));
        assert!(pod.0.is_err());
    }

    #[test]
    fn a_value_without_metadata_is_not_an_object() {
        assert!(serde_json::from_value::<Raw>(json!({"spec": {"containers": 1}})).is_err());
        assert!(serde_json::from_value::<Raw>(json!("pod")).is_err());
    }
}
