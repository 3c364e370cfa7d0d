//! The steps of a host: a union of typed members, because the API carries no shell text, and one
//! table with the rules of each step type.
//!
//! A [`HostStep`] is the same value everywhere: in the API, in the agent's journal, and as the
//! command that runs. A plan leaves no choice to its execution: it states what is installed, from
//! where, what is preloaded and which files are written. Arguments that a step does not need are
//! omitted, so a plan that only changes the Kubernetes version stays short.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};

use super::{
    BundleRef, CertificateArgs, CommandArgs, Disruption, EtcdArgs, FileArgs, Gate, ImageArgs,
    KeyArgs, KubeadmArgs, KubeletArgs, NtpArgs, OsImageArgs, OsPackageArgs, PackageArgs, Role,
    UnitArgs,
};
use crate::version::KubernetesVersion;

/// Converts `KubeadmUpgrade` to the field name `kubeadmUpgrade`.
pub(super) fn lower_first(name: &str) -> String {
    let mut characters = name.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// A step of a host: exactly one member. The members are in the order of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, EnumDiscriminants)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[schemars(transform = one_member)]
#[strum_discriminants(
    name(StepType),
    doc = "The type of a step, as agents report the supported ones.",
    derive(PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, IntoStaticStr, VariantArray),
    strum(serialize_all = "kebab-case")
)]
pub enum HostStep {
    /// Checks whether the host can be updated.
    Preflight {
        /// The Kubernetes version to update to, if it changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
    /// Downloads packages without installing them, and pulls container images.
    Stage {
        /// Version of the Kubernetes packages.
        version: KubernetesVersion,
        /// Source of packages, and packages in addition to those of Kubernetes.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Container images to pull before anything is disturbed.
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
        /// The images to pull.
        images: ImageArgs,
        /// The bundle that the images come from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Finds out which packages of the operating system have to change, and downloads them without installing any.
    OsPackagesStage(OsPackageArgs),
    /// Writes an OS image to the volumes that are not in use. The next boot does not use it yet.
    OsImageStage {
        /// The image to write.
        os_image: OsImageArgs,
        /// The bundle that the image comes from, if its URL is `bundle:///os/NAME`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<BundleRef>,
    },
    /// Saves etcd, static pod manifests and the kubelet's configuration.
    Snapshot {},
    /// Installs the staged packages of the operating system, and finds out whether the host must boot for them. Pods stay,
    /// but services that the packages restart may be away for a moment.
    OsPackagesInstall(OsPackageArgs),
    /// Installs the kubeadm package.
    KubeadmInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Source of packages, and packages in addition to kubeadm.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Runs `kubeadm upgrade apply` on the first control plane, otherwise `kubeadm upgrade node`.
    KubeadmUpgrade {
        /// The version to upgrade to.
        version: KubernetesVersion,
        /// Role of the machine.
        role: Role,
        /// How kubeadm is run.
        #[serde(default, skip_serializing_if = "is_default")]
        kubeadm: KubeadmArgs,
    },
    /// Sets the image of an etcd that is a static pod, and waits until etcd runs with it.
    EtcdUpgrade(EtcdArgs),
    /// Renews kubeadm's certificates that expire soon, and restarts the static pods that use them.
    CertificatesRenew(CertificateArgs),
    /// Writes files and creates users. A file is always saved before it is overwritten.
    Files(FileArgs),
    /// Removes public keys of users from their `authorized_keys`.
    KeysRevoke(KeyArgs),
    /// Sets the time servers of the host.
    Ntp(NtpArgs),
    /// Sets the time servers of the host, and disables all others of its configuration.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(self.ntpReplace) || !self.ntpReplace.enabled || (has(self.ntpReplace.servers) && size(self.ntpReplace.servers) > 0)",
        "message": "ntpReplace needs its servers if it is enabled",
    }]))]
    NtpReplace(NtpArgs),
    /// Has systemd read its unit files again, then reloads or restarts units.
    UnitActions(UnitArgs),
    /// Installs the packages of the container runtime, and restarts it if they changed.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(self.containerRuntimeInstall) || (has(self.containerRuntimeInstall.packages.install) && size(self.containerRuntimeInstall.packages.install) > 0)",
        "message": "containerRuntimeInstall needs its packages in packages.install",
    }]))]
    ContainerRuntimeInstall {
        /// The packages to install, and their source.
        packages: PackageArgs,
    },
    /// Runs shell commands.
    Commands(CommandArgs),
    /// Selects the staged OS image for the next boot. Never reboots by itself.
    OsImageFinalize {
        /// The staged image.
        os_image: OsImageArgs,
    },
    /// Sets the flags of a kubelet that is not installed from a package.
    KubeletFlags(KubeletArgs),
    /// Installs the kubelet and kubectl packages, and sets the kubelet's flags.
    KubeletInstall {
        /// Version of the packages.
        version: KubernetesVersion,
        /// Source of packages, and packages in addition to kubelet and kubectl.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
        /// Flags of the kubelet.
        #[serde(default, skip_serializing_if = "is_default")]
        kubelet: KubeletArgs,
    },
    /// Installs only the kubectl package.
    KubectlInstall {
        /// Version of the package.
        version: KubernetesVersion,
        /// Source of packages, and packages in addition to kubectl.
        #[serde(default, skip_serializing_if = "is_default")]
        packages: PackageArgs,
    },
    /// Restarts the kubelet.
    KubeletRestart {},
    /// Reboots the host; only checks follow it.
    Reboot {},
    /// Reboots the host if it has to boot for the installed packages; otherwise it does nothing.
    RebootIfRequired {},
    /// After the boot: makes the running OS image permanent.
    OsImageCommit {
        /// The running image.
        os_image: OsImageArgs,
    },
    /// Checks on the host that the new versions run.
    Verify {
        /// The version that must run; absent: the installed kubelet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<KubernetesVersion>,
    },
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Converts the schema of an externally tagged enum to a Kubernetes union: an object with exactly
/// one of the members. An older schema prunes a newer member: `minProperties` then reports it in
/// one line, where `oneOf` would list every member.
pub(super) fn one_member(schema: &mut Schema) {
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

/// How a step is rolled back. Every rollback may run twice, and may run on a host on which the step
/// did nothing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StepUndo {
    /// Restores the packages of the step to their versions before the plan.
    Packages,
    /// Restores static pod manifests and the kubelet's configuration from the plan's snapshot.
    Configuration,
    /// Restores saved files, and removes files that did not exist before.
    Files,
    /// Selects the running OS image for the next boot; after a boot, the previous one.
    OsImage,
    /// Restarts the kubelet after everything else is restored.
    KubeletRestart,
    /// Reloads or restarts the units of the step again, after their files are restored and before the kubelet restarts.
    Units,
}

/// What proves that a step is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvidence {
    /// The marker that the step's command writes when it succeeds.
    Mark,
    /// The observed state of the host.
    Host,
    /// Marker and host: the host shows only part of the step's changes.
    Both,
}

/// The rules of one step type: one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRules {
    /// The gate that must be open.
    pub gate: Gate,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// How much an update that has the step disturbs its machine at least.
    pub least_disruption: Disruption,
    /// How the step is rolled back; `None` if it changes nothing that runs or will run, or if it
    /// cannot be rolled back.
    pub undo: Option<StepUndo>,
    /// Timeout of one attempt before it counts as hung, in seconds.
    pub timeout_seconds: u32,
    /// Maximum number of attempts, the first one included.
    pub attempts: i32,
    /// Whether the step is a download.
    download: bool,
    /// Whether a second run does no harm. After a restart of the agent, a step that is not
    /// idempotent runs again only after the host was checked.
    pub idempotent: bool,
    /// What proves that the step is done.
    pub evidence: StepEvidence,
    /// Kubernetes packages that the step installs, at its version.
    pub installs: &'static [&'static str],
}

impl StepRules {
    /// Whether the step is a download, which is tried for longer than other steps.
    pub fn is_download(&self) -> bool {
        self.download
    }
}

/// Default number of attempts. Two failures in a row are often caused by a lock or a mirror; three
/// are not.
pub const USUAL_ATTEMPTS: i32 = 3;
/// Nothing is disturbed during a download, and a registry or mirror that restarts or moves may be away
/// for minutes, for all machines of a wave at once. With a delay of up to a minute between two
/// attempts, these last half an hour.
const DOWNLOAD_ATTEMPTS: i32 = 32;
/// How long kubeadm waits for each static pod if etcd has one member, in seconds. kubeadm waits through the API server,
/// which is down meanwhile (kubernetes/kubeadm#3297).
pub const SINGLE_ETCD_MANIFEST_SECONDS: i32 = 900;
/// Number of the static pods that kubeadm upgrades one after another.
const STATIC_PODS: u32 = 4;
/// Time of an upgrade of a control plane apart from its static pods: preflight checks, images, a copy of etcd, and the
/// wait for static pods that a power cut has interrupted.
const UPGRADE_SECONDS: u32 = 1800;
/// How long a host may take from the reboot command to its next boot, in seconds.
const REBOOT_SECONDS: u32 = 900;

impl StepType {
    /// Id of the step in the controller's plans, such as `kubeadm-upgrade`. Statuses, durations and
    /// limits use it.
    pub fn id(self) -> &'static str {
        self.into()
    }

    /// Name of the type's member in an action, such as `kubeadmUpgrade`.
    pub fn member(self) -> String {
        lower_first(&format!("{self:?}"))
    }

    /// The table: the rules of this step type.
    ///
    /// kubeadm waits 5 minutes for each of four static pods, and etcd's is the slow one; a download
    /// over a slow connection takes as long. The health checks of a new OS image run in its commit,
    /// and have no timeout of their own.
    ///
    /// What is written takes effect only with a restart, which is a step of its own. kubeadm replaces static pods, a container
    /// runtime and a kubelet of another version may stop pods (`docs/facts/hosts.md#order-of-steps`), and any boot after
    /// `os-image-finalize` is one into the new image.
    #[expect(clippy::match_same_arms, reason = "every step has a row")]
    pub const fn rules(self) -> StepRules {
        use Disruption::{Drain, None as Still, Reboot, Restart};
        use Gate::{Disrupt, Stage, Upgrade};
        use StepEvidence::{Both, Host, Mark};
        use StepUndo as Undo;
        const QUICK: u32 = 300;
        const SAVE: u32 = 900;
        const SETTLE: u32 = 900;
        const INSTALL: u32 = 1200;
        const LONG: u32 = 3600;
        const FETCH: bool = true;
        const WORK: bool = false;
        const ONCE: bool = false;
        const AGAIN: bool = true;
        const NONE: &[&str] = &[];
        const KUBEADM: &[&str] = &["kubeadm"];
        const KUBELET: &[&str] = &["kubelet", "kubectl"];
        const KUBECTL: &[&str] = &["kubectl"];
        // Each row of the table stays on one line.
        #[rustfmt::skip]
        let (gate, disruptive, least_disruption, undo, timeout_seconds, download, idempotent, evidence, installs) = match self {
            Self::Preflight => (Stage, false, Still, None, QUICK, WORK, AGAIN, Mark, NONE),
            Self::Stage => (Stage, false, Still, Some(Undo::Files), LONG, FETCH, AGAIN, Mark, NONE),
            Self::ImagePreload => (Stage, false, Still, None, LONG, FETCH, AGAIN, Mark, NONE),
            Self::OsPackagesStage => (Stage, false, Still, None, LONG, FETCH, AGAIN, Mark, NONE),
            Self::OsImageStage => (Stage, false, Still, None, LONG, FETCH, AGAIN, Host, NONE),
            Self::Snapshot => (Stage, false, Still, None, SAVE, WORK, AGAIN, Mark, NONE),
            // Scripts of packages restart services.
            Self::OsPackagesInstall => (Upgrade, false, Restart, Some(Undo::Packages), LONG, WORK, AGAIN, Both, NONE),
            Self::KubeadmInstall => (Upgrade, false, Still, Some(Undo::Packages), INSTALL, WORK, AGAIN, Both, KUBEADM),
            Self::KubeadmUpgrade => (Upgrade, false, Restart, Some(Undo::Configuration), LONG, WORK, ONCE, Both, NONE),
            // etcd of a newer version changes its data, which an older one cannot read.
            Self::EtcdUpgrade => (Upgrade, false, Restart, None, LONG, WORK, AGAIN, Both, NONE),
            // Each of the four static pods may take long to come back.
            Self::CertificatesRenew => (Upgrade, false, Restart, None, INSTALL, WORK, AGAIN, Mark, NONE),
            Self::Files => (Disrupt, true, Still, Some(Undo::Files), QUICK, WORK, AGAIN, Both, NONE),
            Self::KeysRevoke => (Disrupt, false, Still, Some(Undo::Files), QUICK, WORK, AGAIN, Both, NONE),
            Self::Ntp => (Disrupt, false, Still, Some(Undo::Files), QUICK, WORK, AGAIN, Both, NONE),
            Self::NtpReplace => (Disrupt, false, Still, Some(Undo::Files), QUICK, WORK, AGAIN, Both, NONE),
            // A unit that is restarted disturbs more (`HostStep::least_disruption`).
            Self::UnitActions => (Disrupt, true, Still, Some(Undo::Units), INSTALL, WORK, AGAIN, Mark, NONE),
            Self::ContainerRuntimeInstall => (Disrupt, true, Drain, Some(Undo::Packages), INSTALL, WORK, AGAIN, Both, NONE),
            // What they disturb, only their author knows.
            Self::Commands => (Disrupt, true, Still, None, LONG, WORK, AGAIN, Mark, NONE),
            Self::OsImageFinalize => (Disrupt, false, Reboot, Some(Undo::OsImage), SAVE, WORK, AGAIN, Host, NONE),
            Self::KubeletFlags => (Disrupt, false, Still, Some(Undo::Files), QUICK, WORK, AGAIN, Both, NONE),
            Self::KubeletInstall => (Disrupt, true, Drain, Some(Undo::Packages), INSTALL, WORK, AGAIN, Both, KUBELET),
            Self::KubectlInstall => (Disrupt, false, Still, Some(Undo::Packages), INSTALL, WORK, AGAIN, Both, KUBECTL),
            Self::KubeletRestart => (Disrupt, true, Restart, Some(Undo::KubeletRestart), QUICK, WORK, ONCE, Mark, NONE),
            Self::Reboot => (Disrupt, true, Reboot, None, REBOOT_SECONDS, WORK, ONCE, Host, NONE),
            // Whether it disturbs is known only once the packages are installed: the controller then drains the node first.
            Self::RebootIfRequired => (Disrupt, true, Still, None, REBOOT_SECONDS, WORK, ONCE, Host, NONE),
            Self::OsImageCommit => (Disrupt, false, Still, None, INSTALL, WORK, AGAIN, Host, NONE),
            // A kubelet may take minutes after a boot.
            Self::Verify => (Disrupt, false, Still, None, SETTLE, WORK, AGAIN, Host, NONE),
        };
        StepRules {
            gate,
            disruptive,
            least_disruption,
            undo,
            timeout_seconds,
            attempts: if download { DOWNLOAD_ATTEMPTS } else { USUAL_ATTEMPTS },
            download,
            idempotent,
            evidence,
            installs,
        }
    }
}

impl HostStep {
    /// The rules of this step's type. `kubeadm upgrade` on a control plane takes as long as its arguments allow.
    pub fn rules(&self) -> StepRules {
        let rules = StepType::from(self).rules();
        let Self::KubeadmUpgrade {
            role: Role::FirstControlPlane | Role::ControlPlane,
            kubeadm,
            ..
        } = self
        else {
            return rules;
        };
        // Whether etcd has one member is known on the host only.
        let each = kubeadm.manifest_timeout_seconds.unwrap_or(SINGLE_ETCD_MANIFEST_SECONDS);
        let all = u32::try_from(each).unwrap_or_default().saturating_mul(STATIC_PODS);
        let seconds = all.saturating_add(UPGRADE_SECONDS);
        StepRules { timeout_seconds: rules.timeout_seconds.max(seconds), ..rules }
    }

    /// How much an update that has this step disturbs its machine at least: its plan must allow that.
    pub fn least_disruption(&self) -> Disruption {
        let of_type = StepType::from(self).rules().least_disruption;
        let restarts = matches!(self, Self::UnitActions(units) if units.interrupts());
        if restarts { of_type.max(Disruption::Restart) } else { of_type }
    }

    /// The argument that is missing or invalid, and why.
    pub(super) fn fault(&self) -> Option<String> {
        let lacks = |lacks: bool, what: &str| lacks.then(|| what.to_owned());
        if let Self::ContainerRuntimeInstall { packages } = self {
            lacks(packages.install.is_empty(), "packages.install names no package")
        } else if let Self::CertificatesRenew(certificates) = self {
            lacks(certificates.renew_within_days < 1, "renewWithinDays is less than 1")
        } else if let Self::NtpReplace(ntp) = self {
            let is_empty = ntp.enabled && ntp.servers.is_empty();
            lacks(is_empty, "servers is empty, so the host would have no time server; name one")
        } else if let Self::UnitActions(units) = self {
            units.fault()
        } else if let Self::EtcdUpgrade(etcd) = self {
            etcd.fault()
        } else if let Self::OsPackagesStage(packages) | Self::OsPackagesInstall(packages) = self {
            packages.lacks().map(str::to_owned)
        } else {
            None
        }
    }

    /// Source of the step's packages, and packages in addition to those of Kubernetes.
    pub fn packages(&self) -> Option<&PackageArgs> {
        match self {
            Self::Stage { packages, .. }
            | Self::KubeadmInstall { packages, .. }
            | Self::ContainerRuntimeInstall { packages }
            | Self::KubeletInstall { packages, .. }
            | Self::KubectlInstall { packages, .. } => Some(packages),
            Self::Preflight { .. }
            | Self::ImagePreload { .. }
            | Self::OsPackagesStage(_)
            | Self::OsPackagesInstall(_)
            | Self::RebootIfRequired {}
            | Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::KubeadmUpgrade { .. }
            | Self::EtcdUpgrade(_)
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::KeysRevoke(_)
            | Self::Ntp(_)
            | Self::NtpReplace(_)
            | Self::UnitActions(_)
            | Self::Commands(_)
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. }
            | Self::Verify { .. } => None,
        }
    }

    /// The Kubernetes version that the step installs or checks.
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
            Self::OsPackagesStage(_)
            | Self::OsPackagesInstall(_)
            | Self::RebootIfRequired {}
            | Self::OsImageStage { .. }
            | Self::Snapshot {}
            | Self::EtcdUpgrade(_)
            | Self::CertificatesRenew(_)
            | Self::Files(_)
            | Self::KeysRevoke(_)
            | Self::Ntp(_)
            | Self::NtpReplace(_)
            | Self::UnitActions(_)
            | Self::ContainerRuntimeInstall { .. }
            | Self::Commands(_)
            | Self::OsImageFinalize { .. }
            | Self::KubeletFlags(_)
            | Self::KubeletRestart {}
            | Self::Reboot {}
            | Self::OsImageCommit { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
