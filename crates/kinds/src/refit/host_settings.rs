//! HostSettings: what plans of hosts ask for in addition to a Kubernetes version.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use super::{
    BundleRef, CertificateArgs, FileArgs, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, OsPackageArgs, Owner, PackageArgs, PackageVersion, host_step::one_member,
};

/// Settings of the hosts of some owners in one namespace. Agents carry them out as root, so the
/// permission to write this kind is root on those hosts: no other object selects them. A plan has
/// the settings that applied when it was created.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "HostSettings",
    doc = "Settings of the hosts of some owners, in addition to a Kubernetes version. The permission to write them is root on these hosts.",
    plural = "hostsettings",
    shortname = "hs",
    category = "refit",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Owners", type_ = "string", json_path = ".spec.appliesTo.owners[*].name"),
    printcolumn(name = "Clusters", type_ = "string", json_path = ".spec.appliesTo.clusters[*]"),
    printcolumn(name = "All", type_ = "string", json_path = ".spec.appliesTo.all"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = (
    "!has(self.settings.osImage) || !self.settings.osImage.url.startsWith('bundle:///') || has(self.settings.bundle)",
    "osImage.url is an image of a bundle: set settings.bundle",
))]
#[x_kube(validation = (
    "!has(self.settings.osPackages) || !has(self.settings.osPackages.install) || !has(self.settings.containerRuntime) || !self.settings.osPackages.install.exists(one, self.settings.containerRuntime.exists(other, one.name == other.name))",
    "osPackages.install names a package of containerRuntime: name it there only, because it is installed on a drained node",
))]
// A plan adds the packages of `containerRuntime`.
#[x_kube(validation = (
    "!has(self.settings.osPackages) || !has(self.settings.osPackages.exclude) || size(self.settings.osPackages.exclude) <= 128",
    "osPackages.exclude names more than 128 packages",
))]
pub struct HostSettingsSpec {
    /// The owners whose hosts have these settings. If several objects apply to an owner, the most
    /// specific one is used as a whole: one that names the owner before one that names its Cluster,
    /// and that before one for all. Two of the same kind hold every new update of the owner.
    pub applies_to: AppliesTo,
    /// The settings. Only settings that are present are planned.
    #[serde(deserialize_with = "whole")]
    pub settings: PlanSettings,
}

/// A selection of owners in the namespace of the object: exactly one member. It names objects and
/// has no label selector, because the owners' labels belong to other users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_member)]
pub enum AppliesTo {
    /// These owners.
    Owners(#[schemars(length(min = 1, max = 64))] Vec<OwnerName>),
    /// Every owner of these Clusters.
    Clusters(#[schemars(length(min = 1, max = 64))] Vec<String>),
    /// Every owner in the namespace.
    All {},
}

/// Kind and name of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OwnerName {
    /// Kind of the owner. The owner of a MachineSet's machines is its MachineDeployment, if it has
    /// one.
    pub kind: Owner,
    /// Name of the owner.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Settings of a host's plan, in addition to a Kubernetes version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanSettings {
    /// Source of packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackageArgs>,
    /// How kubeadm is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeadm: Option<KubeadmArgs>,
    /// Arguments of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletArgs>,
    /// When certificates of a control plane are renewed apart from an upgrade; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateArgs>,
    /// Packages of the container runtime, such as `containerd.io`; empty: the runtime is not
    /// changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub container_runtime: Vec<PackageVersion>,
    /// The OS image; absent: the OS is not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_image: Option<OsImageArgs>,
    /// Packages of the operating system, installed in place; absent: they are not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_packages: Option<OsPackageArgs>,
    /// Container images to pull before a node is drained, in addition to kubeadm's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageArgs>,
    /// Files and users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileArgs>,
    /// Time synchronisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntp: Option<NtpArgs>,
    /// The bundle that packages and images come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleRef>,
    /// Timeouts and attempts of individual steps, by step id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, StepLimits>,
}

/// Timeout and attempts of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepLimits {
    /// Timeout of one attempt, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
    /// Maximum number of attempts, the first one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: Option<i32>,
}

/// Reads settings whole or not at all: a field that this version does not know is refused at any
/// depth, because a plan without a requested setting would be worse than no plan.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PlanSettings, D::Error> {
    let input = Value::deserialize(deserializer)?;
    let settings = PlanSettings::deserialize(&input).map_err(D::Error::custom)?;
    let known = serde_json::to_value(&settings).map_err(D::Error::custom)?;
    match unknown_field(&input, &known, "") {
        Some(field) => Err(D::Error::custom(format!("unknown field {field}"))),
        None => Ok(settings),
    }
}

/// The first field of `input` that was lost in parsing. Empty fields may be lost.
fn unknown_field(input: &Value, known: &Value, path: &str) -> Option<String> {
    match (input, known) {
        (Value::Object(input), Value::Object(known)) => input.iter().find_map(|(name, value)| {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            match known.get(name) {
                Some(known) => unknown_field(value, known, &path),
                None => (!is_empty(value)).then_some(path),
            }
        }),
        (Value::Array(input), Value::Array(known)) => {
            let mut both = input.iter().zip(known).enumerate();
            both.find_map(|(at, (input, known))| {
                unknown_field(input, known, &format!("{path}[{at}]"))
            })
        }
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(settings: &Value) -> Result<HostSettingsSpec, String> {
        let spec = json!({"appliesTo": {"all": {}}, "settings": settings});
        serde_json::from_value(spec).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_whole_or_not_at_all() {
        let settings = read(&json!({
            "packages": {"driver": "Apt", "repository": "https://p.example/", "install": []},
            "containerRuntime": [{"name": "containerd.io", "version": "2.1.4-1"}],
            "osImage": {"name": "os-2", "url": "file:///os-2.cosi", "sha384": "ab"},
            "files": {"files": [
                {"path": "/etc/x", "encoding": "base64", "content": "eA==", "append": false},
            ]},
            "ntp": {"enabled": false},
            "osPackages": {"install": [{"name": "vim", "version": "*"}], "security": true, "reboot": "IfRequired"},
            "limits": {"stage": {"timeoutSeconds": 7200}},
        }));
        let settings = settings.unwrap().settings;
        assert_eq!(settings.container_runtime[0].version, "2.1.4-1");
        assert_eq!(settings.limits["stage"].timeout_seconds, Some(7200));
        assert_eq!(read(&json!({})).unwrap().settings, PlanSettings::default());
    }

    #[test]
    fn an_invalid_field_is_named_in_the_error() {
        for (settings, wrong) in [
            (json!({"ntpp": {}}), "ntpp"),
            (
                json!({"files": {"files": [{"path": "/x", "mode": "0600"}]}}),
                "unknown field files.files[0].mode",
            ),
            (json!({"limits": {"stage": {"timeout": 5}}}), "timeout"),
            (json!({"packages": {"driver": "Yum"}}), "Yum"),
        ] {
            let error = read(&settings).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_selection_has_exactly_one_member() {
        let read = serde_json::from_value::<AppliesTo>;
        let owner = json!({"kind": "MachineDeployment", "name": "edge-1-md-0"});
        let owners = read(json!({"owners": [owner]})).unwrap();
        let named = OwnerName { kind: Owner::Deployment, name: "edge-1-md-0".into() };
        assert_eq!(owners, AppliesTo::Owners(vec![named]));
        assert_eq!(read(json!({"all": {}})).unwrap(), AppliesTo::All {});
        for invalid in [
            json!({}),
            json!({"all": {}, "clusters": ["edge-1"]}),
            json!({"selector": {}}),
            json!({"owners": [{"kind": "MachinePool", "name": "p"}]}),
        ] {
            assert!(read(invalid.clone()).is_err(), "{invalid}");
        }
    }
}
