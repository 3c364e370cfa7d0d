//! Objects that may not be what their kind promises.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DynamicResourceScope};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// An object, or what is known of one that cannot be read. Lists and watches of these go on where
/// one malformed object would end them. (kube's own guard buffers each object twice.)
#[derive(Clone, Debug)]
pub(crate) struct Guarded<K>(pub(crate) Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    pub(crate) reason: String,
    metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        K::deserialize(&value)
            .map(Ok)
            .or_else(|error| {
                let metadata = value.get("metadata").unwrap_or(&Value::Null);
                Ok(Err(Unreadable {
                    reason: error.to_string(),
                    metadata: ObjectMeta::deserialize(metadata)?,
                }))
            })
            .map(Self)
            .map_err(|error: serde_json::Error| serde::de::Error::custom(error))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    /// Known when an `Api` of these is made from one of `K`.
    type Scope = DynamicResourceScope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
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
        let pod: Guarded<Pod> = serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": "p"},
            "spec": {"containers": "none"},
        }))
        .unwrap();
        assert_eq!(pod.meta().name.as_deref(), Some("p"));
        assert!(pod.0.is_err());
    }

    #[test]
    fn what_has_no_metadata_is_no_object() {
        assert!(
            serde_json::from_value::<Guarded<Pod>>(json!({"spec": {"containers": 1}})).is_err()
        );
        assert!(serde_json::from_value::<Guarded<Pod>>(json!("pod")).is_err());
    }
}
