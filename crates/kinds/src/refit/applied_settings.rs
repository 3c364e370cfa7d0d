//! Which settings of its HostSettings a machine has.
//!
//! | field of the settings | step of the host | in an update without a Kubernetes version |
//! |---|---|---|
//! | `files` | `files` | applied |
//! | `ntp` | `ntp` | applied |
//! | `kubelet` | `kubelet-flags` or `kubelet-install` | applied, and the kubelet is restarted |
//! | `containerRuntime` | `container-runtime-install` | applied |
//! | `osImage` | `os-image-finalize` | applied, and the host reboots |
//! | `osPackages` | `os-packages-install` | applied, and the host reboots if it must |
//! | `packages`, `bundle`, `limits` | | how the others are applied: a change of these alone changes no host |
//! | `kubeadm`, `images`, `certificates` | | only in an upgrade |

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{KubeletArgs, PlanSettings, StepType, hash_json};

/// sha256 of each of the settings that a host has, in hex, by the name of its field in HostSettings: `files`, `ntp`,
/// `kubelet`, `containerRuntime`, `osImage` and `osPackages`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SettingHashes(pub BTreeMap<String, String>);

/// The steps that apply settings to a host.
const STEPS: [StepType; 7] = [
    StepType::Files,
    StepType::Ntp,
    StepType::KubeletFlags,
    StepType::KubeletInstall,
    StepType::ContainerRuntimeInstall,
    StepType::OsImageFinalize,
    StepType::OsPackagesInstall,
];

/// Whether a step of this id applies settings to a host.
pub fn applies_settings(step_id: &str) -> bool {
    STEPS.iter().any(|step| step.id() == step_id)
}

impl SettingHashes {
    /// Those of the settings that a host gets. What is absent or empty has none.
    pub fn of(settings: &PlanSettings) -> Self {
        let PlanSettings { files, ntp, kubelet, container_runtime, os_image, os_packages, .. } =
            settings;
        let kubelet = kubelet.as_ref().filter(|flags| **flags != KubeletArgs::default());
        let runtime = (!container_runtime.is_empty()).then_some(container_runtime);
        let all = [
            ("files", json!(files)),
            ("ntp", json!(ntp)),
            ("kubelet", json!(kubelet)),
            ("containerRuntime", json!(runtime)),
            ("osImage", json!(os_image)),
            ("osPackages", json!(os_packages)),
        ];
        let present = all.into_iter().filter(|(_, value)| *value != Value::Null);
        Self(present.map(|(name, value)| (name.to_owned(), hash_json(&value))).collect())
    }

    /// sha256 of all of them, in hex: [`super::Goal::host_settings`].
    ///
    /// ```
    /// use refit_kinds::refit::{NtpArgs, PlanSettings, SettingHashes};
    /// let ntp = PlanSettings { ntp: Some(NtpArgs::default()), ..PlanSettings::default() };
    /// let none = SettingHashes::of(&PlanSettings::default());
    /// assert_ne!(SettingHashes::of(&ntp).hash(), none.hash());
    /// ```
    pub fn hash(&self) -> String {
        hash_json(&json!(self))
    }

    /// Whether a host of these settings lacks this one of the others, or has another value of it.
    pub fn differs(&self, wanted: &Self, name: &str) -> bool {
        wanted.0.get(name).is_some_and(|hash| self.0.get(name) != Some(hash))
    }

    /// Whether a host of these settings has all of the others. It may have more: what a HostSettings no longer has stays on
    /// the hosts.
    pub fn has(&self, wanted: &Self) -> bool {
        !wanted.0.keys().any(|name| self.differs(wanted, name))
    }

    /// These settings, and the others in the place of those of the same name.
    #[must_use]
    pub fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// These settings without those of which the others have another value: which one the host has is not known.
    #[must_use]
    pub fn without_doubtful(mut self, others: &Self) -> Self {
        self.0.retain(|name, hash| others.0.get(name).is_none_or(|other| other == hash));
        self
    }
}

impl PlanSettings {
    /// The same settings with only those fields that are wanted, by name, of those that [`SettingHashes`] lists.
    #[must_use]
    pub fn only(&self, wanted: impl Fn(&str) -> bool) -> Self {
        let mut settings = self.clone();
        if !wanted("files") {
            settings.files = None;
        }
        if !wanted("ntp") {
            settings.ntp = None;
        }
        if !wanted("kubelet") {
            settings.kubelet = None;
        }
        if !wanted("containerRuntime") {
            settings.container_runtime.clear();
        }
        if !wanted("osImage") {
            settings.os_image = None;
        }
        if !wanted("osPackages") {
            settings.os_packages = None;
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refit::{
        CertificateArgs, FileArgs, KubeletArg, NtpArgs, OsImageArgs, OsPackageArgs, PackageVersion,
        StepLimits,
    };

    fn everything() -> PlanSettings {
        PlanSettings {
            files: Some(FileArgs::default()),
            ntp: Some(NtpArgs::default()),
            kubelet: Some(KubeletArgs {
                extra_args: vec![KubeletArg { name: "v".into(), value: "4".into() }],
                ..KubeletArgs::default()
            }),
            container_runtime: vec![PackageVersion::default()],
            os_image: Some(OsImageArgs::default()),
            os_packages: Some(OsPackageArgs::default()),
            ..PlanSettings::default()
        }
    }

    fn names(hashes: &SettingHashes) -> Vec<&str> {
        hashes.0.keys().map(String::as_str).collect()
    }

    #[test]
    fn settings_that_are_absent_or_empty_have_no_hash() {
        let of = SettingHashes::of;
        assert_eq!(
            names(&of(&everything())),
            ["containerRuntime", "files", "kubelet", "ntp", "osImage", "osPackages"]
        );
        let empty =
            PlanSettings { kubelet: Some(KubeletArgs::default()), ..PlanSettings::default() };
        assert_eq!(of(&empty), SettingHashes::default());
    }

    #[test]
    fn only_what_a_host_gets_without_a_version_has_a_hash() {
        let certificates = Some(CertificateArgs { renew_within_days: 30 });
        let limits = BTreeMap::from([("ntp".to_owned(), StepLimits::default())]);
        let others = PlanSettings { certificates, limits, ..everything() };
        assert_eq!(SettingHashes::of(&others), SettingHashes::of(&everything()));
    }

    #[test]
    fn each_setting_can_be_taken_alone() {
        let all = SettingHashes::of(&everything());
        for name in all.0.keys() {
            let one = SettingHashes::of(&everything().only(|wanted| wanted == name));
            assert_eq!(names(&one), [name]);
            assert!(all.has(&one) && !one.has(&all));
            assert_ne!(one.hash(), all.hash());
        }
    }

    #[test]
    fn a_setting_that_is_removed_or_equal_does_not_differ() {
        let of = |pairs: &[(&str, &str)]| {
            SettingHashes(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let had = of(&[("files", "1"), ("ntp", "1")]);
        for (wanted, has) in [
            (of(&[]), true),
            (of(&[("ntp", "1")]), true),
            (of(&[("ntp", "2")]), false),
            (of(&[("ntp", "1"), ("kubelet", "1")]), false),
        ] {
            assert_eq!(had.has(&wanted), has, "{wanted:?}");
        }
        let tried = of(&[("ntp", "2"), ("kubelet", "1")]);
        assert_eq!(had.clone().without_doubtful(&tried), of(&[("files", "1")]));
        assert_eq!(had.with(tried), of(&[("files", "1"), ("kubelet", "1"), ("ntp", "2")]));
    }

    #[test]
    fn the_steps_that_apply_settings_are_known_by_their_ids() {
        assert!(applies_settings("kubelet-flags") && applies_settings("files"));
        assert!(!applies_settings("kubelet-restart") && !applies_settings("snapshot"));
    }
}
