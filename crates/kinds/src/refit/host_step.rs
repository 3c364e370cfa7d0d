//! The steps that a host is told to take: typed, because no shell text comes from the API.
//!
//! A plan leaves no choice to its execution: what is installed, from where, what is preloaded, which
//! files are written and how each of it is taken back stands in the plan. Whatever a step does not
//! need is left out, so a plan that only changes the Kubernetes version stays as short as it is.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    BundleRef, CertificateArgs, FileArgs, Gate, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, PackageVersion, Role,
};

/// One step that a host is to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    /// Unique in the plan, such as `kubeadm-upgrade`.
    #[schemars(length(max = 63))]
    pub id: String,
    /// The gate that must be open.
    pub gate: Gate,
    /// What is done.
    pub action: StepAction,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// How long one try may take, in seconds; without it as long as the agent thinks right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
    /// How often it is tried, the first try included; without it as often as the agent thinks right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: Option<i32>,
    /// How it is taken back if the plan fails or is aborted before its point of no return; without
    /// it there is nothing to take back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<StepUndo>,
}

/// How what a step did is taken back. Every one of them may be done twice, and on a host on which
/// the step did nothing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StepUndo {
    /// The packages of the step go back to the versions of before the plan.
    Packages,
    /// Static pod manifests and the kubelet's configuration go back to those of the plan's snapshot.
    Configuration,
    /// The files of the step go back to what the snapshot has, and those that were not there go.
    Files,
    /// The next boot is of the OS image that runs now; after a boot, of the one before.
    OsImage,
    /// The kubelet is restarted, once everything else is back.
    KubeletRestart,
}

/// What a step does. Typed: no shell text comes from the API.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!(self.type in ['OsImageStage', 'OsImageFinalize', 'OsImageCommit']) || has(self.osImage)", "a step of an OS image says which image in osImage"))]
#[x_kube(validation = ("self.type != 'ContainerRuntimeInstall' || (has(self.packages) && size(self.packages.install) > 0)", "ContainerRuntimeInstall names its packages in packages.install"))]
#[x_kube(validation = ("self.type != 'ImagePreload' || has(self.images)", "ImagePreload says what in images"))]
#[x_kube(validation = ("self.type != 'Files' || has(self.files)", "Files says which in files"))]
#[x_kube(validation = ("self.type != 'Ntp' || has(self.ntp)", "Ntp says what in ntp"))]
#[x_kube(validation = ("self.type != 'CertificatesRenew' || has(self.certificates)", "CertificatesRenew says when in certificates"))]
#[x_kube(validation = ("self.type != 'KubeletFlags' || has(self.kubelet)", "KubeletFlags says which in kubelet"))]
#[x_kube(validation = ("(self.type == 'Undo') == has(self.undo)", "undo belongs to the type Undo and to no other"))]
pub struct StepAction {
    /// Which action.
    #[serde(rename = "type")]
    pub type_: StepType,
    /// Kubernetes version, `vX.Y.Z`, where the action wants one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub version: String,
    /// Role of the machine, where the action wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Where packages come from, and which beside those of the Kubernetes version: `Stage`,
    /// `KubeadmInstall`, `KubeletInstall`, `KubectlInstall`, `ContainerRuntimeInstall`. What says
    /// neither path, url nor repository takes those of the bundle that `Stage` named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackageArgs>,
    /// How kubeadm is run: `Preflight`, `KubeadmUpgrade`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeadm: Option<KubeadmArgs>,
    /// Arguments of the kubelet: `KubeletInstall`, `KubeletFlags`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletArgs>,
    /// Which certificates are renewed: `CertificatesRenew`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateArgs>,
    /// The OS image: `OsImageStage`, `OsImageFinalize`, `OsImageCommit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_image: Option<OsImageArgs>,
    /// Container images to have before anything is disturbed: `Stage`, `ImagePreload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageArgs>,
    /// Files and users of the host: `Files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileArgs>,
    /// Time synchronisation: `Ntp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntp: Option<NtpArgs>,
    /// A bundle to fetch and verify. `Stage` takes packages and container images from it, also for
    /// the steps that install; `ImagePreload` container images; `OsImageStage` the OS image, where
    /// `osImage.url` is `bundle:///os/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleRef>,
    /// What is taken back: `Undo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<UndoArgs>,
}

impl StepAction {
    /// An action that wants nothing but its type.
    pub fn new(type_: StepType) -> Self {
        Self { type_, ..Self::default() }
    }
}

/// The actions that an agent knows, in the order of `spec/node.md 2.6`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StepType {
    /// Looks whether the host can be updated at all.
    #[default]
    Preflight,
    /// Fetches packages and images.
    Stage,
    /// Fetches container images into the runtime, or imports them from a bundle.
    ImagePreload,
    /// Writes an OS image to the volumes that do not run; nothing boots it yet.
    OsImageStage,
    /// Saves etcd, manifests and kubelet configuration.
    Snapshot,
    /// Installs the kubeadm package.
    KubeadmInstall,
    /// Runs `kubeadm upgrade apply` or `kubeadm upgrade node`.
    KubeadmUpgrade,
    /// Renews kubeadm's certificates that end soon, and restarts the static pods that use them.
    CertificatesRenew,
    /// Writes files and makes users; never a file that the snapshot did not save first.
    Files,
    /// Sets the servers of the host's clock.
    Ntp,
    /// Installs the packages of the container runtime and restarts it.
    ContainerRuntimeInstall,
    /// Makes the staged OS image the one of the next boot. Never reboots by itself.
    OsImageFinalize,
    /// Sets the flags of a kubelet that no package brings.
    KubeletFlags,
    /// Installs the kubelet and kubectl packages.
    KubeletInstall,
    /// Installs the kubectl package alone.
    KubectlInstall,
    /// Restarts the kubelet.
    KubeletRestart,
    /// Reboots the host; always the last step but for the check.
    Reboot,
    /// After the boot: keeps the OS image that runs.
    OsImageCommit,
    /// Checks on the host that the new versions run.
    Verify,
    /// Takes back what a step did. Never in a plan: the agent makes such steps by itself.
    Undo,
}

/// What an undo step takes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UndoArgs {
    /// How.
    pub what: StepUndo,
    /// Id of the step whose work is taken back.
    #[schemars(length(max = 63))]
    pub step: String,
    /// With `Packages`: the exact versions to go back to, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
}

/// What the hosts of a Machine's group or cluster need beside a Kubernetes version. It is read from
/// the annotation `refit.dev/host-settings`, as JSON, when a plan is made; what it leaves out is not
/// planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSettings {
    /// Where packages come from.
    #[serde(default)]
    pub packages: Option<PackageArgs>,
    /// How kubeadm is run.
    #[serde(default)]
    pub kubeadm: Option<KubeadmArgs>,
    /// Arguments of the kubelet.
    #[serde(default)]
    pub kubelet: Option<KubeletArgs>,
    /// When certificates of a control plane are renewed apart from an upgrade; without it never.
    #[serde(default)]
    pub certificates: Option<CertificateArgs>,
    /// Packages of the container runtime, such as `containerd.io`; empty: it stays as it is.
    #[serde(default)]
    pub container_runtime: Vec<PackageVersion>,
    /// The OS image; without it the OS stays as it is.
    #[serde(default)]
    pub os_image: Option<OsImageArgs>,
    /// Container images to have before a node is emptied, beside kubeadm's own.
    #[serde(default)]
    pub images: Option<ImageArgs>,
    /// Files and users.
    #[serde(default)]
    pub files: Option<FileArgs>,
    /// Time synchronisation.
    #[serde(default)]
    pub ntp: Option<NtpArgs>,
    /// The bundle that packages and images come from.
    #[serde(default)]
    pub bundle: Option<BundleRef>,
    /// Time and tries of single steps, by id.
    #[serde(default)]
    pub limits: BTreeMap<String, StepLimits>,
}

/// Time and tries of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepLimits {
    /// How long one try may take, in seconds.
    #[serde(default)]
    pub timeout_seconds: Option<i32>,
    /// How often it is tried, the first try included.
    #[serde(default)]
    pub max_attempts: Option<i32>,
}

impl HostSettings {
    /// Reads the annotation. A field that nobody knows is refused, wherever it stands: a plan that
    /// leaves out what somebody asked for would be worse than none.
    ///
    /// ```
    /// use refit_kinds::refit::HostSettings;
    /// let settings = HostSettings::parse(r#"{"kubeadm": {"skipPhases": ["addon/coredns"]}}"#).unwrap();
    /// assert_eq!(settings.kubeadm.unwrap().skip_phases, ["addon/coredns"]);
    /// let error = HostSettings::parse(r#"{"kubeadm": {"skipPhase": ["addon/coredns"]}}"#).unwrap_err();
    /// assert_eq!(error, "kubeadm.skipPhase is not known");
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let input: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let settings: Self =
            serde_json::from_value(input.clone()).map_err(|error| error.to_string())?;
        let known = serde_json::to_value(&settings).map_err(|error| error.to_string())?;
        match unknown_field(&input, &known, "") {
            Some(field) => Err(format!("{field} is not known")),
            None => Ok(settings),
        }
    }
}

/// The first field of `input` that reading it has lost. What is empty may be left out.
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
    use super::*;

    #[test]
    fn settings_are_read_whole_or_not_at_all() {
        let text = r#"{
            "packages": {"driver": "Apt", "repository": "https://p.example/", "install": []},
            "containerRuntime": [{"name": "containerd.io", "version": "2.1.4-1"}],
            "osImage": {"name": "os-2", "url": "file:///os-2.cosi", "sha384": "ab"},
            "files": {"files": [{"path": "/etc/x", "encoding": "base64", "content": "eA==", "append": false}]},
            "ntp": {"enabled": false},
            "limits": {"stage": {"timeoutSeconds": 7200}}
        }"#;
        let settings = HostSettings::parse(text).unwrap();
        assert_eq!(settings.container_runtime[0].version, "2.1.4-1");
        assert_eq!(settings.limits["stage"].timeout_seconds, Some(7200));
        assert_eq!(HostSettings::parse("{}"), Ok(HostSettings::default()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, wrong) in [
            (r#"{"ntpp": {}}"#, "ntpp"),
            (
                r#"{"files": {"files": [{"path": "/x", "mode": "0600"}]}}"#,
                "files.files[0].mode is not known",
            ),
            (r#"{"limits": {"stage": {"timeout": 5}}}"#, "timeout"),
            (r#"{"packages": {"driver": "Yum"}}"#, "Yum"),
            ("[", "EOF"),
        ] {
            let error = HostSettings::parse(text).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_plan_of_before_survives_the_api_as_it_was() {
        let old = serde_json::json!({
            "id": "stage", "gate": "Stage", "disruptive": false,
            "action": {"type": "Stage", "version": "v1.35.0"},
        });
        let step: PlannedStep = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(serde_json::to_value(&step).unwrap(), old);
    }
}
