//! What is kept of the objects of providers.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _, api::ApiResource, core::DynamicResourceScope};
use refit_kinds::{
    keys,
    refit::{PlanId, ProviderObject, ProviderSpec, ProviderStatus},
};
use refit_runtime::{ObjectKey, store::Index};
use serde::{Deserialize, Deserializer};

use crate::groups::controller_of;

/// Providers' objects by the uid of their Machine.
pub(super) const BY_MACHINE_UID: Index<ProviderRecord> = Index {
    name: "machine-uid",
    keys: |object| {
        let namespace = object.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &*object.view.spec.machine_ref.uid)]
    },
};

/// What is kept of a provider's object.
#[derive(Clone, Debug)]
pub(crate) struct ProviderRecord {
    pub(super) metadata: ObjectMeta,
    pub(super) view: Arc<ProviderObject>,
}

impl<'de> Deserialize<'de> for ProviderRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: ObjectMeta,
            spec: ProviderSpec,
            #[serde(default)]
            status: ProviderStatus,
        }
        let Whole { metadata, spec, status } = Whole::deserialize(deserializer)?;
        let annotation = |key| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let claim = annotation(keys::RETURNED_CLAIM).and_then(|text| text.parse::<i64>().ok());
        let owner = controller_of(metadata.owner_references.as_deref().unwrap_or_default());
        let view = ProviderObject {
            name: metadata.name.clone().unwrap_or_default(),
            updater: annotation(keys::UPDATER).cloned().unwrap_or_default(),
            node_update: owner.map(|owner| owner.name.clone()).unwrap_or_default(),
            plan_id: PlanId::of(&ObjectMeta {
                uid: owner.map(|owner| owner.uid.clone()),
                ..ObjectMeta::default()
            }),
            returned_claim: claim.unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            spec,
            status,
        };
        Ok(Self { metadata, view: Arc::new(view) })
    }
}

impl Resource for ProviderRecord {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
