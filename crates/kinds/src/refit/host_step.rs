//! The steps of a host: a union of typed members, because no shell text comes from the API, and one
//! table that says what holds for each.
//!
//! A [`HostStep`] is the same value everywhere: in the API, in the agent's journal, and as the command
//! that is carried out. A plan leaves no choice to its execution: what is installed, from where, what
//! is preloaded and which files are written stands in the plan. What a step does not need is left out,
//! so a plan that only changes the Kubernetes version stays short.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};

use super::{
    BundleRef, CertificateArgs, FileArgs, Gate, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, Role,
};
use crate::version::KubernetesVersion;

/// `KubeadmUpgrade` as a field name.
pub(super) fn lower_first(name: &str) -> String {
    let mut characters = name.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// What a host can be told to do: exactly one member. The members are in the order in which a plan has
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, EnumDiscriminants)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[schemars(transform = one_member)]
#[strum_discriminants(
    name(StepType),
    doc = "The type of a step, as agents report which they know.",
    derive(PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, IntoStaticStr, VariantArray),
    strum(serialize_all = "kebab-case")
)]
pub enum HostStep {
    /// Checks whether the host can be updated at all.
    Preflight {
        /// The Kubernetes version that the host is to be updated to, if it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
    /// Downloads packages without installing them, and container images.
    Stage {
        /// Version of the packages of Kubernetes.
        version: KubernetesVersion,
        /// Where packages come from, and which beside those of Kubernetes.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Container images to have before anything is disturbed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images: Option<ImageArgs>,
        /// The bundle that packages and images come from, also for the steps that install.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Pulls container images, or imports them from a bundle.
    ImagePreload {
        /// Version of Kubernetes, for kubeadm's own images.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
        /// Which images.
        images: ImageArgs,
        /// The bundle that they come from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Writes an OS image to the volumes that do not run; nothing boots it yet.
    OsImageStage {
        /// Which image.
        os_image: OsImageArgs,
        /// The bundle that it comes from, where its URL is `bundle:///os/NAME`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Saves etcd, static pod manifests and the kubelet's configuration.
    Snapshot {},
    /// Installs the kubeadm package.
    KubeadmInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which beside it.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Runs `kubeadm upgrade apply` on the first control plane, else `kubeadm upgrade node`.
    KubeadmUpgrade {
        /// The version to upgrade to.
        version: KubernetesVersion,
        /// Role of the machine.
        role: Role,
        /// How kubeadm is run.
        #[serde(default, skip_serializing_if = "is_default")]
        kubeadm: KubeadmArgs,
    },
    /// Renews kubeadm's certificates that end soon, and restarts the static pods that use them.
    CertificatesRenew(CertificateArgs),
    /// Writes files and makes users; never a file that was not saved first.
    Files(FileArgs),
    /// Sets the time servers of the host.
    Ntp(NtpArgs),
    /// Installs the packages of the container runtime, and restarts it where they changed it.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(self.containerRuntimeInstall) || (has(self.containerRuntimeInstall.packages.install) && size(self.containerRuntimeInstall.packages.install) > 0)",
        "message": "containerRuntimeInstall needs its packages in packages.install",
    }]))]
    ContainerRuntimeInstall {
        /// Which packages, and where they come from.
        packages: PackageArgs,
    },
    /// Makes the staged OS image the one of the next boot. Never reboots by itself.
    OsImageFinalize {
        /// Which image.
        os_image: OsImageArgs,
    },
    /// Sets the flags of a kubelet that no package brings.
    KubeletFlags(KubeletArgs),
    /// Installs the kubelet and kubectl packages, and sets the kubelet's flags.
    KubeletInstall {
        /// Version of the packages.
        version: KubernetesVersion,
        /// Where packages come from, and which beside them.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Flags of the kubelet.
        #[serde(default, skip_serializing_if = "is_default")]
        kubelet: KubeletArgs,
    },
    /// Installs the kubectl package alone.
    KubectlInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which beside it.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Restarts the kubelet.
    KubeletRestart {},
    /// Reboots the host; always the last step but for the checks.
    Reboot {},
    /// After the boot: keeps the OS image that runs.
    OsImageCommit {
        /// Which image.
        os_image: OsImageArgs,
    },
    /// Checks on the host that the new versions run.
    Verify {
        /// What must run; without it, the kubelet that is installed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A schema of an externally tagged enum as Kubernetes writes unions: an object with exactly one of
/// the members. An older schema prunes a newer member: `minProperties` then reports it in one line,
/// where `oneOf` would list every member.
fn one_member(schema: &mut Schema) {
    let Some(Value::Array(variants)) = schema.remove("oneOf") else {
        return;
    };
    let (mut members, mut rules) = (Map::new(), Vec::new());
    for mut variant in variants {
        let description = variant.get("description").cloned();
        if let Some(Value::Array(own)) = variant.get_mut("x-kubernetes-validations") {
            rules.append(own);
        }
        let Some(Value::Object(own)) = variant.get_mut("properties") else { continue };
        for (name, mut member) in std::mem::take(own) {
            if let (Some(member), Some(description)) = (member.as_object_mut(), &description) {
                member.insert("description".to_owned(), description.clone());
            }
            members.insert(name, member);
        }
    }
    schema.insert("type".to_owned(), "object".into());
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("maxProperties".to_owned(), 1.into());
    schema.insert("properties".to_owned(), Value::Object(members));
    if !rules.is_empty() {
        schema.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
}

/// How the work of a step is rolled back. Each may be done twice, and on a host on which the step did
/// nothing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StepUndo {
    /// The packages of the step go back to the versions from before the plan.
    Packages,
    /// Static pod manifests and the kubelet's configuration go back to those of the plan's snapshot.
    Configuration,
    /// The files of the step go back to what was saved, and those that were not there are removed.
    Files,
    /// The next boot is of the OS image that runs now; after a boot, of the previous one.
    OsImage,
    /// The kubelet is restarted, once everything else is back.
    KubeletRestart,
}

/// What proves that the work of a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvidence {
    /// The mark that its command leaves when it succeeds.
    Mark,
    /// What the host shows.
    Host,
    /// Both: the host shows only part of the work.
    Both,
}

/// What holds for every step of one type: one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRules {
    /// The gate that must be open.
    pub gate: Gate,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// How it is rolled back; `None` for one that changes nothing that runs or will run, or that
    /// cannot be.
    pub undo: Option<StepUndo>,
    /// How long one try may take before it counts as hung, in seconds.
    pub timeout_seconds: u32,
    /// How often it is tried, the first try included.
    pub attempts: i32,
    /// Whether a second run does no harm. One that is not idempotent is never run again after a
    /// restart of the agent without looking at the host first.
    pub idempotent: bool,
    /// What proves that it is done.
    pub evidence: StepEvidence,
    /// Packages of Kubernetes that it installs, at its version.
    pub installs: &'static [&'static str],
}

/// Two failures in a row are often a lock or a mirror; three are not.
pub const USUAL_ATTEMPTS: i32 = 3;
/// Nothing is disturbed during a download, and a connection that was down is often back after two
/// minutes.
const DOWNLOAD_ATTEMPTS: i32 = 7;
/// How long a host may take from the reboot command to its next boot, in seconds.
const REBOOT_SECONDS: u32 = 900;

impl StepType {
    /// Id of the step in plans of the controller, such as `kubeadm-upgrade`: statuses, durations and
    /// limits name it so.
    pub fn id(self) -> &'static str {
        self.into()
    }

    /// Name of its member in an action, such as `kubeadmUpgrade`.
    pub fn member(self) -> String {
        lower_first(&format!("{self:?}"))
    }

    /// The table: what holds for every step of this type.
    ///
    /// kubeadm waits 5 minutes for each of four static pods, and etcd's is the slow one; a download over
    /// a slow connection takes as long. The health checks of a
    /// new OS image run in its commit, and none has a timeout of its own.
    #[expect(clippy::match_same_arms, reason = "each step has its row")]
    pub const fn rules(self) -> StepRules {
        use Gate::{Disrupt, Stage, Upgrade};
        use StepEvidence::{Both, Host, Mark};
        use StepUndo as Undo;
        const QUICK: u32 = 300;
        const SAVE: u32 = 900;
        const INSTALL: u32 = 1200;
        const LONG: u32 = 3600;
        const TRIES: i32 = USUAL_ATTEMPTS;
        const ONCE: bool = false;
        const AGAIN: bool = true;
        const NONE: &[&str] = &[];
        const KUBEADM: &[&str] = &["kubeadm"];
        const KUBELET: &[&str] = &["kubelet", "kubectl"];
        const KUBECTL: &[&str] = &["kubectl"];
        // Rows of the table are lines.
        #[rustfmt::skip]
        let (gate, disruptive, undo, timeout_seconds, attempts, idempotent, evidence, installs) = match self {
            Self::Preflight => (Stage, false, None, QUICK, TRIES, AGAIN, Mark, NONE),
            Self::Stage => (Stage, false, Some(Undo::Files), LONG, DOWNLOAD_ATTEMPTS, AGAIN, Mark, NONE),
            Self::ImagePreload => (Stage, false, None, LONG, DOWNLOAD_ATTEMPTS, AGAIN, Mark, NONE),
            Self::OsImageStage => (Stage, false, None, LONG, DOWNLOAD_ATTEMPTS, AGAIN, Host, NONE),
            Self::Snapshot => (Stage, false, None, SAVE, TRIES, AGAIN, Mark, NONE),
            Self::KubeadmInstall => (Upgrade, false, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBEADM),
            Self::KubeadmUpgrade => (Upgrade, false, Some(Undo::Configuration), LONG, TRIES, ONCE, Both, NONE),
            // Each of four static pods may take its time to come back.
            Self::CertificatesRenew => (Upgrade, false, None, INSTALL, TRIES, AGAIN, Mark, NONE),
            Self::Files => (Disrupt, true, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::Ntp => (Disrupt, false, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::ContainerRuntimeInstall => (Disrupt, true, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, NONE),
            Self::OsImageFinalize => (Disrupt, false, Some(Undo::OsImage), SAVE, TRIES, AGAIN, Host, NONE),
            Self::KubeletFlags => (Disrupt, false, Some(Undo::Files), QUICK, TRIES, AGAIN, Both, NONE),
            Self::KubeletInstall => (Disrupt, true, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBELET),
            Self::KubectlInstall => (Disrupt, false, Some(Undo::Packages), INSTALL, TRIES, AGAIN, Both, KUBECTL),
            Self::KubeletRestart => (Disrupt, true, Some(Undo::KubeletRestart), QUICK, TRIES, ONCE, Mark, NONE),
            Self::Reboot => (Disrupt, true, None, REBOOT_SECONDS, TRIES, ONCE, Host, NONE),
            Self::OsImageCommit => (Disrupt, false, None, INSTALL, TRIES, AGAIN, Host, NONE),
            Self::Verify => (Disrupt, false, None, QUICK, TRIES, AGAIN, Host, NONE),
        };
        StepRules {
            gate,
            disruptive,
            undo,
            timeout_seconds,
            attempts,
            idempotent,
            evidence,
            installs,
        }
    }
}

impl HostStep {
    /// What holds for every step of this type.
    pub fn rules(&self) -> StepRules {
        StepType::from(self).rules()
    }

    /// What it does not say and has to.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        if let Self::ContainerRuntimeInstall { packages } = self
            && packages.install.is_empty()
        {
            return Some("packages.install names no package");
        }
        if let Self::CertificatesRenew(certificates) = self
            && certificates.renew_within_days < 1
        {
            return Some("renewWithinDays is less than 1");
        }
        None
    }

    /// Where its packages come from, and which it installs beside those of Kubernetes.
    pub fn packages(&self) -> Option<&PackageArgs> {
        match self {
            Self::Stage { packages, .. }
            | Self::KubeadmInstall { packages, .. }
            | Self::ContainerRuntimeInstall { packages }
            | Self::KubeletInstall { packages, .. }
            | Self::KubectlInstall { packages, .. } => Some(packages),
            Self::Preflight { .. }
            | Self::ImagePreload { .. }
            | Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::KubeadmUpgrade { .. }
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::Ntp(_)
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. }
            | Self::Verify { .. } => None,
        }
    }

    /// The Kubernetes version that it is about.
    pub fn version(&self) -> Option<&KubernetesVersion> {
        match self {
            Self::Stage { version, .. }
            | Self::KubeadmInstall { version, .. }
            | Self::KubeadmUpgrade { version, .. }
            | Self::KubeletInstall { version, .. }
            | Self::KubectlInstall { version, .. } => Some(version),
            Self::Preflight { version }
            | Self::ImagePreload { version, .. }
            | Self::Verify { version } => version.as_ref(),
            Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::Ntp(_)
            | Self::ContainerRuntimeInstall { .. }
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemars::SchemaGenerator;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_wants_exactly_one_object() {
        let schema = HostStep::json_schema(&mut SchemaGenerator::default());
        let members = schema.get("properties").and_then(Value::as_object).unwrap();
        let names: BTreeSet<_> = StepType::VARIANTS.iter().map(|type_| type_.member()).collect();
        assert_eq!(members.keys().cloned().collect::<BTreeSet<_>>(), names);
        assert!(members.values().all(|member| member["description"].is_string()));
        assert_eq!(schema.get("minProperties"), Some(&json!(1)));
        assert_eq!(schema.get("maxProperties"), Some(&json!(1)));
        assert!(schema.get("oneOf").is_none());
    }

    #[test]
    fn the_table_agrees_with_itself() {
        for type_ in StepType::VARIANTS {
            let rules = type_.rules();
            assert!(rules.gate > Gate::Closed, "{type_:?}");
            assert!(rules.disruptive <= (rules.gate == Gate::Disrupt), "{type_:?}");
            assert!(rules.attempts > 0 && rules.timeout_seconds >= 300, "{type_:?}");
            assert_eq!(type_.id().replace('-', ""), type_.member().to_lowercase());
        }
    }
}
