//! Reads the facts for [`refit_predict::reach()`] from a live cluster: whether Cluster API calls
//! Refit for a group.

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Namespace};
use kube::{Api, Resource, ResourceExt as _};
use refit_cluster_api::kinds::{
    Cluster as ClusterObject, ExtensionConfig, KubeadmControlPlane, MachineDeployment,
};
use refit_core::change;
use refit_kinds::keys;
use refit_predict::{Extension, GroupRef, Manager, Reach, Read, Shape, managers::PROVIDER_LABEL};
use serde::{Serialize, de::DeserializeOwned};

use crate::client::{Cluster, attempt, attempt_on};

/// Facts that apply to every group of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// All ExtensionConfigs.
    pub(crate) extensions: Read<Vec<Extension>>,
    /// Labels of the namespace.
    pub(crate) namespace_labels: Read<BTreeMap<String, String>>,
    /// Cluster API's managers.
    pub(crate) managers: Read<Vec<Manager>>,
    namespace: String,
}

impl Surroundings {
    /// Reads the facts. A forbidden read is noted; an unreachable cluster is an error.
    pub(crate) async fn read(cluster: &Cluster) -> anyhow::Result<Self> {
        let extensions = list::<ExtensionConfig>(cluster, "").await?;
        let managers = list::<Deployment>(cluster, PROVIDER_LABEL).await?;
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let namespace_labels = match namespaces.get(&cluster.namespace).await {
            Ok(namespace) => Read::Known(namespace.labels().clone()),
            Err(kube::Error::Api(status)) if status.code == 403 => Read::Unknown(format!(
                "you are not allowed to read namespace {} ({})",
                cluster.namespace, status.message
            )),
            Err(error) => {
                let attempt = attempt_on::<Namespace>("get", &cluster.namespace);
                return Err(cluster.explain(error, &attempt));
            }
        };
        Ok(Self {
            extensions: map(extensions, |all| all.iter().map(Extension::of).collect()),
            managers: map(managers, |all| all.iter().filter_map(Manager::of).collect()),
            namespace_labels,
            namespace: cluster.namespace.clone(),
        })
    }

    /// Returns the facts for a control plane.
    pub(crate) fn of_control_plane(
        &self,
        object: &KubeadmControlPlane,
        cluster: Option<&ClusterObject>,
    ) -> Reach {
        self.facts("KubeadmControlPlane", object, cluster, shape(object), None)
    }

    /// Returns the facts for a MachineDeployment.
    pub(crate) fn of_deployment(
        &self,
        object: &MachineDeployment,
        cluster: Option<&ClusterObject>,
    ) -> Reach {
        let bootstrap = object.spec.template.spec.bootstrap.config_ref.as_ref();
        let kind = bootstrap.map(|reference| reference.kind.clone());
        let mut facts = self.facts("MachineDeployment", object, cluster, shape(object), kind);
        if object.spec.paused == Some(true) && facts.paused.is_none() {
            facts.paused = Some(format!("MachineDeployment {}", object.name_any()));
        }
        facts
    }

    fn facts(
        &self,
        kind: &str,
        object: &impl Resource,
        cluster: Option<&ClusterObject>,
        shape: Shape,
        bootstrap_kind: Option<String>,
    ) -> Reach {
        let name = object.name_any();
        let this = format!("{kind} {name}");
        let above = cluster.map(|cluster| format!("Cluster {}", cluster.name_any()));
        let none = BTreeMap::new();
        let cluster_annotations = cluster.map_or(&none, |cluster| cluster.annotations());
        let is_paused =
            |annotations: &BTreeMap<String, String>| annotations.contains_key(keys::PAUSED);
        let stopped =
            cluster.is_some_and(|c| c.spec.paused == Some(true) || is_paused(cluster_annotations));
        let policy = |own: &BTreeMap<String, String>, cluster: &BTreeMap<String, String>| {
            change::policy(own, cluster, change::PolicyDefaults::default()).disabled
        };
        let disabled = if policy(object.annotations(), &none) {
            Some(this.clone())
        } else if policy(object.annotations(), cluster_annotations) {
            above.clone()
        } else {
            None
        };
        Reach {
            group: GroupRef { kind: kind.to_owned(), namespace: self.namespace.clone(), name },
            shape,
            paused: if stopped { above } else { is_paused(object.annotations()).then_some(this) },
            disabled,
            bootstrap_kind,
            extensions: self.extensions.clone(),
            namespace_labels: self.namespace_labels.clone(),
            managers: self.managers.clone(),
        }
    }
}

/// Returns how a group rolls out.
fn shape(owner: &impl Serialize) -> Shape {
    serde_json::to_value(owner).map_or(Shape::Unknown, |owner| Shape::of(&owner))
}

fn map<T, U>(read: Read<T>, change: impl FnOnce(T) -> U) -> Read<U> {
    match read {
        Read::Known(value) => Read::Known(change(value)),
        Read::Unknown(why) => Read::Unknown(why),
    }
}

/// Lists all objects of a kind in the cluster; returns none if the cluster does not know the kind.
async fn list<K>(cluster: &Cluster, selector: &str) -> anyhow::Result<Read<Vec<K>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(cluster.client.clone());
    let params = kube::api::ListParams::default().labels(selector);
    match api.list(&params).await {
        Ok(list) => Ok(Read::Known(list.items)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Read::Known(Vec::new())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Read::Unknown(format!(
            "you are not allowed to list {} ({})",
            K::plural(&()),
            status.message
        ))),
        Err(error) => Err(cluster.explain(error, &attempt::<K>("list"))),
    }
}
