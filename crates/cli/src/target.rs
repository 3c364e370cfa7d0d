//! The target of a command, `KIND/NAME`, and the objects that belong to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use anyhow::anyhow;
use kube::{Resource, ResourceExt as _};
use refit_cluster_api::kinds::{
    Cluster as ClusterObject, KubeadmControlPlane, Machine, MachineDeployment, MachineSet,
};
use refit_core::progress::owner_of;
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, UpdateGroup},
    version::StatedVersion,
};

use crate::client::Cluster;

/// The kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetKind {
    /// A whole Cluster.
    Cluster,
    /// A KubeadmControlPlane.
    ControlPlane,
    /// A MachineDeployment.
    MachineDeployment,
    /// A MachineSet.
    MachineSet,
    /// One Machine.
    Machine,
}

impl TargetKind {
    const ALL: [Self; 5] = [
        Self::Cluster,
        Self::ControlPlane,
        Self::MachineDeployment,
        Self::MachineSet,
        Self::Machine,
    ];

    /// Returns the kind as written in manifests.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::ControlPlane => "KubeadmControlPlane",
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::Machine => "Machine",
        }
    }

    /// Returns singular, short name and plural, as kubectl accepts them.
    fn names(self) -> [String; 3] {
        match self {
            Self::Cluster => names::<ClusterObject>("cl"),
            Self::ControlPlane => names::<KubeadmControlPlane>("kcp"),
            Self::MachineDeployment => names::<MachineDeployment>("md"),
            Self::MachineSet => names::<MachineSet>("ms"),
            Self::Machine => names::<Machine>("ma"),
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::ControlPlane => refit_cluster_api::kinds::CONTROL_PLANE_GROUP,
            Self::Cluster | Self::MachineDeployment | Self::MachineSet | Self::Machine => {
                refit_cluster_api::kinds::CORE_GROUP
            }
        }
    }

    /// Parses a kind as kubectl does: singular, plural or short name, with or without group (and
    /// version).
    fn read(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (name, group) = match text.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (text.as_str(), None),
        };
        let fits = |kind: &Self| match group {
            None => true,
            Some(group) => {
                let rest = group.strip_suffix(kind.group());
                rest.is_some_and(|version| version.is_empty() || version.ends_with('.'))
            }
        };
        Self::ALL
            .into_iter()
            .filter(fits)
            .find(|kind| kind.names().iter().any(|known| known == name))
    }
}

fn names<K: Resource<DynamicType = ()>>(short: &str) -> [String; 3] {
    [K::kind(&()).to_ascii_lowercase(), short.to_owned(), K::plural(&()).into_owned()]
}

/// The target of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Kind of the object.
    pub(crate) kind: TargetKind,
    /// Name of the object, in the namespace of the command.
    pub(crate) name: String,
}

impl fmt::Display for Target {
    /// `Kind/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.kind(), self.name)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANT: &str = "expected cluster/NAME, kcp/NAME, md/NAME, ms/NAME or machine/NAME \
            (long forms work, too)";
        let Some((kind, name)) = text.split_once('/') else {
            return Err(format!("invalid target {text:?} without a kind, {WANT}"));
        };
        let Some(kind) = TargetKind::read(kind) else {
            return Err(format!("unknown kind {kind:?}, {WANT}"));
        };
        let legal =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || !name.chars().all(legal) {
            return Err(format!("invalid object name {name:?}, {WANT}"));
        }
        Ok(Self { kind, name: name.to_owned() })
    }
}

/// Parses the name of a Machine, with or without its kind.
pub(crate) fn machine_argument(text: &str) -> Result<Target, String> {
    let full = if text.contains('/') { text.to_owned() } else { format!("machine/{text}") };
    let target: Target = full.parse()?;
    match target.kind {
        TargetKind::Machine => Ok(target),
        TargetKind::Cluster
        | TargetKind::ControlPlane
        | TargetKind::MachineDeployment
        | TargetKind::MachineSet => {
            Err(format!("{target} is not a Machine; to stop all its machines, pause it"))
        }
    }
}

/// The objects of a target, each kind sorted by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    /// The Cluster, if it is the target.
    pub(crate) cluster: Option<ClusterObject>,
    /// The control plane, if it is the target or belongs to it.
    pub(crate) control_plane: Option<KubeadmControlPlane>,
    /// The MachineDeployments that are or belong to the target.
    pub(crate) deployments: Vec<MachineDeployment>,
    /// The Machines that are or belong to the target.
    pub(crate) machines: Vec<Machine>,
    /// NodeUpdates of these Machines.
    pub(crate) updates: Vec<NodeUpdate>,
    /// UpdateGroups of the target's owners.
    pub(crate) groups: Vec<UpdateGroup>,
}

impl Target {
    /// Reads the target and the objects that belong to it. A missing target is an error.
    pub(crate) async fn gather(&self, cluster: &Cluster) -> anyhow::Result<Gathered> {
        let mut found = Gathered::default();
        let mut of_cluster = String::new();
        match self.kind {
            TargetKind::Cluster => {
                let object: ClusterObject = self.get_object(cluster).await?;
                found.control_plane = control_plane_of(cluster, &object).await?;
                let deployments: Vec<MachineDeployment> = cluster.list(&cluster.here(), "").await?;
                found.deployments = deployments
                    .into_iter()
                    .filter(|deployment| deployment.spec.cluster_name == self.name)
                    .collect();
                of_cluster.clone_from(&self.name);
                found.cluster = Some(object);
            }
            TargetKind::ControlPlane => {
                let object: KubeadmControlPlane = self.get_object(cluster).await?;
                of_cluster = cluster_of(&object);
                found.control_plane = Some(object);
            }
            TargetKind::MachineDeployment => {
                let object: MachineDeployment = self.get_object(cluster).await?;
                of_cluster.clone_from(&object.spec.cluster_name);
                found.deployments.push(object);
            }
            TargetKind::MachineSet => {
                let object: MachineSet = self.get_object(cluster).await?;
                of_cluster.clone_from(&object.spec.cluster_name);
            }
            TargetKind::Machine => found.machines.push(self.get_object(cluster).await?),
        }
        let selector = match of_cluster.as_str() {
            "" => String::new(),
            name => format!("{}={name}", keys::CLUSTER_NAME),
        };
        if self.kind != TargetKind::Machine {
            let machines = cluster.list(&cluster.here::<Machine>(), &selector).await?;
            found.machines = machines.into_iter().filter(|m| self.holds(m)).collect();
        }
        let uids: Vec<MachineUid> =
            found.machines.iter().map(|machine| MachineUid::of(&machine.metadata)).collect();
        let updates = cluster.list(&cluster.here::<NodeUpdate>(), "").await?;
        found.updates = updates
            .into_iter()
            .filter(|update| uids.contains(&update.spec.machine_ref.uid))
            .collect();
        let groups = cluster.list(&cluster.here::<UpdateGroup>(), "").await?;
        found.groups = groups.into_iter().filter(|g| self.concerns(g)).collect();
        Ok(found)
    }

    /// The control planes, MachineDeployments and MachineSets that own Machines of the target.
    pub(crate) async fn owners(&self, cluster: &Cluster) -> anyhow::Result<Vec<Self>> {
        let found = self.gather(cluster).await?;
        let names: BTreeSet<String> = found.machines.iter().map(owner_of).collect();
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Whether the target is the owner of a group of machines.
    pub(crate) fn owns_machines(&self) -> bool {
        match self.kind {
            TargetKind::ControlPlane | TargetKind::MachineDeployment | TargetKind::MachineSet => {
                true
            }
            TargetKind::Cluster | TargetKind::Machine => false,
        }
    }

    /// How others refer to the target, which owns Machines.
    pub(crate) async fn reference(&self, cluster: &Cluster) -> anyhow::Result<Reference> {
        match self.kind {
            TargetKind::ControlPlane => {
                let object = self.get_object::<KubeadmControlPlane>(cluster).await?;
                let mut of = cluster_of(&object);
                if of.is_empty() {
                    of = cluster_with(cluster, &self.name).await?;
                }
                Ok(Reference::to(&object, of, &object.spec.version))
            }
            TargetKind::MachineDeployment => {
                let object = self.get_object::<MachineDeployment>(cluster).await?;
                let cluster = object.spec.cluster_name.clone();
                Ok(Reference::to(&object, cluster, &object.spec.template.spec.version))
            }
            TargetKind::MachineSet => {
                let object = self.get_object::<MachineSet>(cluster).await?;
                let cluster = object.spec.cluster_name.clone();
                Ok(Reference::to(&object, cluster, &object.spec.template.spec.version))
            }
            TargetKind::Cluster | TargetKind::Machine => anyhow::bail!("{self} owns no Machines"),
        }
    }

    /// Checks that the target exists.
    pub(crate) async fn check(&self, cluster: &Cluster) -> anyhow::Result<()> {
        match self.kind {
            TargetKind::Cluster => self.get_object::<ClusterObject>(cluster).await.map(drop),
            TargetKind::ControlPlane => {
                self.get_object::<KubeadmControlPlane>(cluster).await.map(drop)
            }
            TargetKind::MachineDeployment => {
                self.get_object::<MachineDeployment>(cluster).await.map(drop)
            }
            TargetKind::MachineSet => self.get_object::<MachineSet>(cluster).await.map(drop),
            TargetKind::Machine => self.get_object::<Machine>(cluster).await.map(drop),
        }
    }

    /// Gets the target object.
    async fn get_object<K>(&self, cluster: &Cluster) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + fmt::Debug,
    {
        match cluster.get(&self.name).await? {
            Some(object) => Ok(object),
            None => Err(self.missing(cluster)),
        }
    }

    /// Creates the error for a missing target.
    pub(crate) fn missing(&self, cluster: &Cluster) -> anyhow::Error {
        anyhow!(
            "{self} does not exist in namespace {} at {}; -n selects another namespace",
            cluster.namespace,
            cluster.url
        )
    }

    /// Reports whether a Machine is the target or belongs to it.
    pub(crate) fn holds(&self, machine: &Machine) -> bool {
        let owned_by = |kind: &str| {
            machine
                .owner_references()
                .iter()
                .any(|owner| owner.kind == kind && owner.name == self.name)
        };
        match self.kind {
            TargetKind::Cluster => machine.spec.cluster_name == self.name,
            TargetKind::MachineDeployment => {
                machine.labels().get(keys::DEPLOYMENT_NAME) == Some(&self.name)
            }
            TargetKind::ControlPlane | TargetKind::MachineSet => owned_by(self.kind.kind()),
            TargetKind::Machine => machine.name_any() == self.name,
        }
    }

    /// Reports whether an UpdateGroup belongs to the target. A single Machine has none.
    pub(crate) fn concerns(&self, group: &UpdateGroup) -> bool {
        let spec = &group.spec;
        match self.kind {
            TargetKind::Cluster => spec.cluster_name == self.name,
            TargetKind::Machine => false,
            TargetKind::ControlPlane | TargetKind::MachineDeployment | TargetKind::MachineSet => {
                spec.owner.kind == self.kind.kind() && spec.owner.name == self.name
            }
        }
    }
}

/// How others refer to the owner of Machines.
pub(crate) struct Reference {
    pub(crate) api_version: String,
    pub(crate) uid: String,
    /// Name of its Cluster.
    pub(crate) cluster: String,
    /// The version that it requests.
    pub(crate) version: StatedVersion,
    /// Its annotations.
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Reference {
    fn to<K: Resource<DynamicType = ()>>(
        object: &K,
        cluster: String,
        version: &StatedVersion,
    ) -> Self {
        let api_version = K::api_version(&()).into_owned();
        let annotations = object.annotations().clone();
        let uid = object.uid().unwrap_or_default();
        Self { api_version, uid, cluster, version: version.clone(), annotations }
    }
}

/// Gets the KubeadmControlPlane of a Cluster; returns `None` if its control plane is of another
/// kind.
async fn control_plane_of(
    cluster: &Cluster,
    object: &ClusterObject,
) -> anyhow::Result<Option<KubeadmControlPlane>> {
    match &object.spec.control_plane_ref {
        Some(reference) if reference.kind == KubeadmControlPlane::kind(&()) => {
            cluster.get(&reference.name).await
        }
        _ => Ok(None),
    }
}

/// Returns the name of the Cluster that references this control plane; empty if no Cluster does.
async fn cluster_with(cluster: &Cluster, control_plane: &str) -> anyhow::Result<String> {
    let kind = KubeadmControlPlane::kind(&());
    let all: Vec<ClusterObject> = cluster.list(&cluster.here(), "").await?;
    let owner = all.iter().find(|object| {
        let reference = object.spec.control_plane_ref.as_ref();
        reference.is_some_and(|r| r.kind == kind && r.name == control_plane)
    });
    Ok(owner.map(kube::ResourceExt::name_any).unwrap_or_default())
}

/// Returns the name of a control plane's Cluster; empty if neither label nor owner gives it.
pub(crate) fn cluster_of(control_plane: &KubeadmControlPlane) -> String {
    if let Some(name) = control_plane.labels().get(keys::CLUSTER_NAME) {
        return name.clone();
    }
    control_plane
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "Cluster")
        .map(|owner| owner.name.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_in_every_form_that_kubectl_takes() {
        let table = [
            ("cluster", TargetKind::Cluster),
            ("cl", TargetKind::Cluster),
            ("clusters.cluster.x-k8s.io", TargetKind::Cluster),
            ("KubeadmControlPlane", TargetKind::ControlPlane),
            ("kcp", TargetKind::ControlPlane),
            (
                "kubeadmcontrolplanes.v1beta2.controlplane.cluster.x-k8s.io",
                TargetKind::ControlPlane,
            ),
            ("md", TargetKind::MachineDeployment),
            ("machinedeployment.cluster.x-k8s.io", TargetKind::MachineDeployment),
            ("ms", TargetKind::MachineSet),
            ("machinesets", TargetKind::MachineSet),
            ("ma", TargetKind::Machine),
            ("Machines", TargetKind::Machine),
        ];
        for (text, kind) in table {
            let target: Target = format!("{text}/x-1").parse().unwrap();
            assert_eq!((target.kind, target.name.as_str()), (kind, "x-1"), "{text}");
        }
    }

    #[test]
    fn an_invalid_target_lists_the_valid_forms() {
        for text in [
            "edge-1",
            "pod/x",
            "machine/",
            "md/A_b",
            "md/a/b",
            "kcp.cluster.x-k8s.io.evil/x",
            "md.apps/x",
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains("expected cluster/NAME"), "{text}: {error}");
        }
    }

    #[test]
    fn a_target_is_shown_as_kind_and_name() {
        let target: Target = "md/workers".parse().unwrap();
        assert_eq!(target.to_string(), "MachineDeployment/workers");
    }
}
