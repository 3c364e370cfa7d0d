//! The served resources: built-in kinds, and those that CRDs add.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::object::NameRule;
use crate::scale::ScalePaths;
use crate::schema::Schema;
use crate::table::Column;

/// One version of one resource.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a kind")]
pub struct Resource {
    /// `plural.group`, or only `plural` for the core group: the id in the store.
    pub id: Arc<str>,
    /// API group, `""` for core.
    pub group: Arc<str>,
    /// Version of this entry.
    pub version: Arc<str>,
    /// Version that objects are stored in.
    pub storage_version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Kind of its lists.
    pub list_kind: Arc<str>,
    /// Plural name, as in paths.
    pub plural: Arc<str>,
    /// Singular name.
    pub singular: Arc<str>,
    /// Short names for kubectl.
    pub short_names: Vec<String>,
    /// Categories for kubectl.
    pub categories: Vec<String>,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// Whether it has a status subresource.
    pub has_status: bool,
    /// Whether a CRD defines it.
    pub custom: bool,
    pub(crate) has_generation: bool,
    pub(crate) unconditional_update: bool,
    pub(crate) name_rule: NameRule,
    pub(crate) schema: Schema,
    /// Dotted paths that field selectors may use in addition to name and namespace.
    pub(crate) fields: Arc<[String]>,
    /// Table columns after the name; only for custom kinds.
    pub(crate) columns: Arc<[Column]>,
    /// Paths of the `scale` subresource, if there is one.
    pub(crate) scale: Option<ScalePaths>,
}

impl Resource {
    /// `group/version`, or `version` for core.
    pub fn api_version(&self) -> String {
        join_version(&self.group, &self.version)
    }

    /// `apiVersion` of the stored form.
    pub fn storage_api_version(&self) -> String {
        join_version(&self.group, &self.storage_version)
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resource({}/{})", self.id, self.version)
    }
}

pub(crate) fn join_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// All served resources at one moment.
#[derive(Clone, Default)]
pub struct Registry {
    by_path: BTreeMap<String, Arc<Resource>>,
    by_id: BTreeMap<Arc<str>, Arc<Resource>>,
}

impl Registry {
    /// The built-in kinds.
    pub fn builtin() -> Self {
        static BUILTIN: OnceLock<Registry> = OnceLock::new();
        BUILTIN
            .get_or_init(|| {
                let mut registry = Self::default();
                for row in BUILTINS {
                    registry.insert(Arc::new(row.resource()));
                }
                registry
            })
            .clone()
    }

    pub(crate) fn insert(&mut self, resource: Arc<Resource>) {
        let path = format!("{}/{}/{}", resource.group, resource.version, resource.plural);
        if resource.version == resource.storage_version || !self.by_id.contains_key(&resource.id) {
            self.by_id.insert(resource.id.clone(), resource.clone());
        }
        self.by_path.insert(path, resource);
    }

    /// Adds a storage version that is not served.
    pub(crate) fn insert_unserved(&mut self, resource: Arc<Resource>) {
        self.by_id.insert(resource.id.clone(), resource);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.by_path.retain(|_, resource| &*resource.id != id);
        self.by_id.remove(id);
    }

    /// The resource of a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path.get(&format!("{group}/{version}/{plural}"))
    }

    /// The resource with this id, in its storage version.
    pub fn stored(&self, id: &str) -> Option<&Arc<Resource>> {
        self.by_id.get(id)
    }

    /// All versions of all resources, by group, version and plural.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_path.values()
    }

    /// Each stored resource once.
    pub fn all_stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_id.values()
    }
}

/// The id of a resource in the store.
pub(crate) fn resource_id(group: &str, plural: &str) -> Arc<str> {
    if group.is_empty() { plural.into() } else { format!("{plural}.{group}").into() }
}

/// How a built-in kind differs from a plain stored kind.
#[derive(Clone, Copy)]
struct Builtin {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    /// `n` namespaced, `s` status, `g` generation, `c` update needs a resourceVersion.
    flags: &'static str,
}

impl Builtin {
    fn resource(&self) -> Resource {
        let has = |flag| self.flags.contains(flag);
        let fields: &[&str] = match self.kind {
            "Pod" => &[
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "status.phase",
                "status.podIP",
                "status.nominatedNodeName",
            ],
            "Node" => &["spec.unschedulable"],
            "Event" => &[
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.apiVersion",
                "involvedObject.resourceVersion",
                "involvedObject.fieldPath",
                "regarding.kind",
                "regarding.name",
                "reason",
                "reportingComponent",
                "source",
                "type",
            ],
            "Secret" => &["type"],
            "Namespace" => &["status.phase"],
            "ReplicaSet" => &["status.replicas"],
            _ => &[],
        };
        Resource {
            id: resource_id(self.group, self.plural),
            group: self.group.into(),
            version: self.version.into(),
            storage_version: self.version.into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind).into(),
            plural: self.plural.into(),
            singular: self.kind.to_ascii_lowercase().into(),
            short_names: self.short.split_whitespace().map(str::to_owned).collect(),
            categories: self.categories(),
            namespaced: has('n'),
            has_status: has('s'),
            custom: false,
            has_generation: has('g'),
            unconditional_update: !has('c'),
            name_rule: match self.kind {
                "Namespace" => NameRule::Label,
                "Service" => NameRule::Service,
                "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding" => {
                    NameRule::PathSegment
                }
                _ => NameRule::Subdomain,
            },
            schema: Schema::builtin(self.group, self.kind),
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
            columns: Arc::default(),
            scale: ScalePaths::builtin(self.group, self.kind),
        }
    }

    /// `all` is what `kubectl get all` lists.
    fn categories(&self) -> Vec<String> {
        let all = matches!(
            (self.group, self.kind),
            ("", "Pod" | "Service")
                | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        );
        let extensions =
            matches!(self.group, "admissionregistration.k8s.io" | "apiextensions.k8s.io");
        [(all, "all"), (extensions, "api-extensions")]
            .into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| name.to_owned())
            .collect()
    }
}

const fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    flags: &'static str,
) -> Builtin {
    Builtin { group, version, kind, plural, short, flags }
}

pub(crate) const ADMISSION: &str = "admissionregistration.k8s.io";
const AUTHZ: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";

const BUILTINS: &[Builtin] = &[
    // These kinds are only stored: a CRD could not define them, because they are in the core group.
    row("", "v1", "Endpoints", "endpoints", "ep", "n"),
    row("", "v1", "LimitRange", "limitranges", "limits", "n"),
    row("", "v1", "PersistentVolume", "persistentvolumes", "pv", "s"),
    row("", "v1", "PodTemplate", "podtemplates", "", "ng"),
    row("", "v1", "ReplicationController", "replicationcontrollers", "rc", "nsg"),
    row("", "v1", "ResourceQuota", "resourcequotas", "quota", "ns"),
    row("", "v1", "ConfigMap", "configmaps", "cm", "n"),
    row("", "v1", "Event", "events", "ev", "n"),
    row("", "v1", "Namespace", "namespaces", "ns", "s"),
    row("", "v1", "Node", "nodes", "no", "s"),
    row("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "ns"),
    row("", "v1", "Pod", "pods", "po", "nsg"),
    row("", "v1", "Secret", "secrets", "", "n"),
    row("", "v1", "Service", "services", "svc", "ns"),
    row("", "v1", "ServiceAccount", "serviceaccounts", "sa", "n"),
    row(ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "", "sgc"),
    row(
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "",
        "gc",
    ),
    row(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd crds",
        "sgc",
    ),
    row("apps", "v1", "DaemonSet", "daemonsets", "ds", "nsg"),
    row("apps", "v1", "Deployment", "deployments", "deploy", "nsg"),
    row("apps", "v1", "ReplicaSet", "replicasets", "rs", "nsg"),
    row("apps", "v1", "StatefulSet", "statefulsets", "sts", "nsg"),
    row("coordination.k8s.io", "v1", "Lease", "leases", "", "nc"),
    row("events.k8s.io", "v1", "Event", "events", "ev", "n"),
    row("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", "ng"),
    row("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "nsgc"),
    row(AUTHZ, "v1", "ClusterRole", "clusterroles", "", ""),
    row(AUTHZ, "v1", "ClusterRoleBinding", "clusterrolebindings", "", ""),
    row(AUTHZ, "v1", "Role", "roles", "", "n"),
    row(AUTHZ, "v1", "RoleBinding", "rolebindings", "", "n"),
    row(STORAGE, "v1", "VolumeAttachment", "volumeattachments", "", "sc"),
];
