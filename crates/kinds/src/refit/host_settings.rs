//! Settings of hosts in addition to a Kubernetes version, from an annotation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    BundleRef, CertificateArgs, FileArgs, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, PackageVersion,
};

/// Settings of the hosts of a Machine's group or cluster, in addition to a Kubernetes version. They
/// are read from the annotation `refit.dev/host-settings`, as JSON, when a plan is created. Only
/// settings that are present are planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSettings {
    /// Source of packages.
    #[serde(default)]
    pub packages: Option<PackageArgs>,
    /// How kubeadm is run.
    #[serde(default)]
    pub kubeadm: Option<KubeadmArgs>,
    /// Arguments of the kubelet.
    #[serde(default)]
    pub kubelet: Option<KubeletArgs>,
    /// When certificates of a control plane are renewed apart from an upgrade; absent: never.
    #[serde(default)]
    pub certificates: Option<CertificateArgs>,
    /// Packages of the container runtime, such as `containerd.io`; empty: the runtime is not
    /// changed.
    #[serde(default)]
    pub container_runtime: Vec<PackageVersion>,
    /// The OS image; absent: the OS is not changed.
    #[serde(default)]
    pub os_image: Option<OsImageArgs>,
    /// Container images to pull before a node is drained, in addition to kubeadm's own.
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
    /// Timeouts and attempts of individual steps, by step id.
    #[serde(default)]
    pub limits: BTreeMap<String, StepLimits>,
}

/// Timeout and attempts of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepLimits {
    /// Timeout of one attempt, in seconds.
    #[serde(default)]
    pub timeout_seconds: Option<i32>,
    /// Maximum number of attempts, the first one included.
    #[serde(default)]
    pub max_attempts: Option<i32>,
}

impl HostSettings {
    /// Parses the annotation. An unknown field is refused at any depth: ignoring a requested
    /// setting would be worse than having no plan.
    ///
    /// ```
    /// use refit_kinds::refit::HostSettings;
    /// let settings = HostSettings::parse(r#"{"kubeadm": {"skipPhases": ["addon/coredns"]}}"#).unwrap();
    /// assert_eq!(settings.kubeadm.unwrap().skip_phases, ["addon/coredns"]);
    /// let error = HostSettings::parse(r#"{"kubeadm": {"skipPhase": ["addon/coredns"]}}"#).unwrap_err();
    /// assert_eq!(error, "unknown field kubeadm.skipPhase");
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let input: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let settings: Self =
            serde_json::from_value(input.clone()).map_err(|error| error.to_string())?;
        let known = serde_json::to_value(&settings).map_err(|error| error.to_string())?;
        match unknown_field(&input, &known, "") {
            Some(field) => Err(format!("unknown field {field}")),
            None => Ok(settings),
        }
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
    fn an_invalid_field_is_named_in_the_error() {
        for (text, wrong) in [
            (r#"{"ntpp": {}}"#, "ntpp"),
            (
                r#"{"files": {"files": [{"path": "/x", "mode": "0600"}]}}"#,
                "unknown field files.files[0].mode",
            ),
            (r#"{"limits": {"stage": {"timeout": 5}}}"#, "timeout"),
            (r#"{"packages": {"driver": "Yum"}}"#, "Yum"),
            ("[", "EOF"),
        ] {
            let error = HostSettings::parse(text).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
