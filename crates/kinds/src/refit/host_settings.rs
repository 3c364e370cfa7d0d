//! What hosts need beside a Kubernetes version, as an annotation says it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    BundleRef, CertificateArgs, FileArgs, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, PackageVersion,
};

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
}
