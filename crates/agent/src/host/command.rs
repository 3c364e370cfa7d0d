//! What a host can be told to do: typed, never shell text.

use std::collections::BTreeMap;

use refit_kinds::refit::{
    BundleRef, CertificateArgs, FileArgs, ImageArgs, KubeadmArgs, KubeletArgs, NtpArgs,
    OsImageArgs, PackageArgs, PlannedStep, Role, StepType, StepUndo, UndoArgs,
};
use serde::{Deserialize, Serialize};

pub use super::version::KubernetesVersion;

/// Step types that this agent knows.
pub const CAPABILITIES: [StepType; 19] = [
    StepType::Preflight,
    StepType::Stage,
    StepType::Snapshot,
    StepType::KubeadmInstall,
    StepType::KubeadmUpgrade,
    StepType::KubeletInstall,
    StepType::KubeletRestart,
    StepType::Reboot,
    StepType::Verify,
    StepType::ImagePreload,
    StepType::Files,
    StepType::Ntp,
    StepType::ContainerRuntimeInstall,
    StepType::OsImageStage,
    StepType::OsImageFinalize,
    StepType::OsImageCommit,
    StepType::KubectlInstall,
    StepType::CertificatesRenew,
    StepType::KubeletFlags,
];

/// Why a planned step cannot be turned into a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStep {
    /// The version is none.
    #[error("{got:?} is not a Kubernetes version of the form vX.Y.Z")]
    Version {
        /// What the plan says.
        got: String,
    },
    /// The role is missing.
    #[error("step {step} does not say which role the machine has")]
    Role {
        /// The step.
        step: String,
    },
    /// The arguments of its type are missing.
    #[error("step {step} does not say {what}")]
    Arguments {
        /// The step.
        step: String,
        /// What is missing.
        what: &'static str,
    },
    /// Its type is none that this agent carries out.
    #[error(
        "step {step} is of type {type_:?}, which this agent does not know: install a newer one"
    )]
    Unknown {
        /// The step.
        step: String,
        /// Its type.
        type_: StepType,
    },
}

/// What a host can be told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Command {
    /// Looks whether the host can be updated at all.
    PreflightChecks {
        /// What it is to be updated to, where that is known.
        #[serde(default)]
        version: Option<KubernetesVersion>,
    },
    /// Downloads packages without installing them, and images.
    FetchPackages {
        /// Version of the packages of Kubernetes.
        version: KubernetesVersion,
        /// Where packages come from, and which others.
        #[serde(default)]
        packages: PackageArgs,
        /// Images to have, too.
        #[serde(default)]
        images: Option<ImageArgs>,
        /// The bundle that they come from.
        #[serde(default)]
        bundle: Option<BundleRef>,
    },
    /// Saves etcd, manifests and kubelet configuration.
    Snapshot,
    /// Installs the kubeadm package.
    InstallKubeadm {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which others.
        #[serde(default)]
        packages: PackageArgs,
    },
    /// Runs `kubeadm upgrade`.
    KubeadmUpgrade {
        /// `apply` for the first control plane, `node` for the others.
        role: Role,
        /// Target.
        version: KubernetesVersion,
        /// How kubeadm is run.
        #[serde(default)]
        kubeadm: KubeadmArgs,
    },
    /// Installs the kubelet and kubectl packages, and sets the kubelet's flags.
    InstallKubelet {
        /// Version of the packages.
        version: KubernetesVersion,
        /// Where packages come from, and which others.
        #[serde(default)]
        packages: PackageArgs,
        /// Flags of the kubelet.
        #[serde(default)]
        kubelet: KubeletArgs,
    },
    /// Sets the flags of a kubelet that no package brings.
    SetKubeletFlags {
        /// Flags of the kubelet.
        kubelet: KubeletArgs,
    },
    /// Renews kubeadm's certificates that end soon, and restarts the static pods that use them.
    RenewCertificates {
        /// Which.
        certificates: CertificateArgs,
    },
    /// Installs the kubectl package.
    InstallKubectl {
        /// Version of the package.
        version: KubernetesVersion,
        /// Where packages come from, and which others.
        #[serde(default)]
        packages: PackageArgs,
    },
    /// Installs the packages of the container runtime, and restarts it if it is another then.
    InstallContainerRuntime {
        /// Which packages, and where they come from.
        packages: PackageArgs,
    },
    /// Fetches container images, or imports them from a bundle.
    PreloadImages {
        /// Version of Kubernetes, for kubeadm's own images.
        #[serde(default)]
        version: Option<KubernetesVersion>,
        /// Which images.
        images: ImageArgs,
        /// The bundle that they come from.
        #[serde(default)]
        bundle: Option<BundleRef>,
    },
    /// Writes files and makes users.
    WriteFiles {
        /// Which.
        files: FileArgs,
    },
    /// Sets the servers of the host's clock.
    SetTimeServers {
        /// Which.
        ntp: NtpArgs,
    },
    /// Writes an OS image to the volumes that do not run.
    StageOsImage {
        /// Which.
        image: OsImageArgs,
        /// The bundle that it comes from, where its URL says so.
        #[serde(default)]
        bundle: Option<BundleRef>,
    },
    /// Makes the staged OS image the one of the next boot.
    FinalizeOsImage {
        /// Which.
        image: OsImageArgs,
    },
    /// Keeps the OS image that has booted.
    CommitOsImage {
        /// Which.
        image: OsImageArgs,
    },
    /// Restarts the kubelet.
    RestartKubelet,
    /// Reboots the host.
    Reboot,
    /// Checks that the new versions run.
    VerifyVersions {
        /// What must run; without it, that the kubelet which runs is the one that is installed.
        version: Option<KubernetesVersion>,
    },
    /// Puts packages back to exactly these versions; one with an empty version is removed.
    RestorePackages {
        /// Versions as the package manager has them, by name.
        packages: BTreeMap<String, String>,
    },
    /// Puts static pod manifests and the kubelet's configuration back from the plan's snapshot.
    RestoreConfiguration,
    /// Puts the files of a step back as they were, and with them the host's sources of packages.
    RestoreFiles {
        /// Id of the step that wrote them.
        step: String,
    },
    /// Sees to it that nothing of an OS image boots next, or that the one of before does.
    RestoreOsImage {
        /// Which.
        image: OsImageArgs,
    },
}

impl Command {
    /// The command of a planned step.
    pub fn of(step: &PlannedStep) -> Result<Self, InvalidStep> {
        let action = &step.action;
        let version = || KubernetesVersion::parse(&action.version);
        let optional = || match action.version.as_str() {
            "" => Ok(None),
            _ => version().map(Some),
        };
        let packages = || action.packages.clone().unwrap_or_default();
        let missing = |what| {
            let step = step.id.clone();
            InvalidStep::Arguments { step, what }
        };
        let image = || action.os_image.clone().ok_or_else(|| missing("which OS image"));
        Ok(match action.type_ {
            StepType::Preflight => Self::PreflightChecks { version: optional()? },
            StepType::Stage => Self::FetchPackages {
                version: version()?,
                packages: packages(),
                images: action.images.clone(),
                bundle: action.bundle.clone(),
            },
            StepType::Snapshot => Self::Snapshot,
            StepType::KubeadmInstall => {
                Self::InstallKubeadm { version: version()?, packages: packages() }
            }
            StepType::KubeadmUpgrade => Self::KubeadmUpgrade {
                role: action.role.ok_or_else(|| InvalidStep::Role { step: step.id.clone() })?,
                version: version()?,
                kubeadm: action.kubeadm.clone().unwrap_or_default(),
            },
            StepType::KubeletInstall => Self::InstallKubelet {
                version: version()?,
                packages: packages(),
                kubelet: action.kubelet.clone().unwrap_or_default(),
            },
            StepType::KubeletFlags => Self::SetKubeletFlags {
                kubelet: action.kubelet.clone().ok_or_else(|| missing("which flags"))?,
            },
            StepType::CertificatesRenew => Self::RenewCertificates {
                certificates: action
                    .certificates
                    .clone()
                    .filter(|args| args.renew_within_days > 0)
                    .ok_or_else(|| missing("within how many days certificates are renewed"))?,
            },
            StepType::KubectlInstall => {
                Self::InstallKubectl { version: version()?, packages: packages() }
            }
            StepType::ContainerRuntimeInstall => Self::InstallContainerRuntime {
                packages: action
                    .packages
                    .clone()
                    .filter(|packages| !packages.install.is_empty())
                    .ok_or_else(|| missing("which packages to install"))?,
            },
            StepType::ImagePreload => Self::PreloadImages {
                version: optional()?,
                images: action.images.clone().ok_or_else(|| missing("which images"))?,
                bundle: action.bundle.clone(),
            },
            StepType::Files => Self::WriteFiles {
                files: action.files.clone().ok_or_else(|| missing("which files"))?,
            },
            StepType::Ntp => Self::SetTimeServers {
                ntp: action.ntp.clone().ok_or_else(|| missing("which time servers"))?,
            },
            StepType::OsImageStage => {
                Self::StageOsImage { image: image()?, bundle: action.bundle.clone() }
            }
            StepType::OsImageFinalize => Self::FinalizeOsImage { image: image()? },
            StepType::OsImageCommit => Self::CommitOsImage { image: image()? },
            StepType::KubeletRestart => Self::RestartKubelet,
            StepType::Reboot => Self::Reboot,
            StepType::Verify => Self::VerifyVersions { version: optional()? },
            StepType::Undo => {
                let undo = action.undo.as_ref();
                Self::undo(undo.ok_or_else(|| missing("what it takes back"))?, image)?
            }
        })
    }

    /// The command that takes back what a step did.
    fn undo(
        args: &UndoArgs,
        image: impl Fn() -> Result<OsImageArgs, InvalidStep>,
    ) -> Result<Self, InvalidStep> {
        Ok(match args.what {
            StepUndo::Packages => Self::RestorePackages { packages: args.packages.clone() },
            StepUndo::Configuration => Self::RestoreConfiguration,
            StepUndo::KubeletRestart => Self::RestartKubelet,
            StepUndo::Files => Self::RestoreFiles { step: args.step.clone() },
            StepUndo::OsImage => Self::RestoreOsImage { image: image()? },
        })
    }

    /// Whether a look at the host sees only part of what it does: holds beside packages, secrets that
    /// are not fetched again, services. Then what ended well is known by its mark alone.
    pub fn shows_in_part(&self) -> bool {
        matches!(
            self,
            Self::InstallKubeadm { .. }
                | Self::InstallKubectl { .. }
                | Self::InstallKubelet { .. }
                | Self::InstallContainerRuntime { .. }
                | Self::RestorePackages { .. }
                | Self::WriteFiles { .. }
                | Self::SetTimeServers { .. }
                | Self::SetKubeletFlags { .. }
                | Self::RestoreFiles { .. }
        )
    }

    /// Whether a second run does no harm. One that is not idempotent is never run again after a
    /// restart without looking at the host first.
    pub fn idempotent(&self) -> bool {
        !matches!(self, Self::KubeadmUpgrade { .. } | Self::RestartKubelet | Self::Reboot)
    }

    /// Short name, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PreflightChecks { .. } => "preflight",
            Self::FetchPackages { .. } => "stage",
            Self::Snapshot => "snapshot",
            Self::InstallKubeadm { .. } => "kubeadm-install",
            Self::KubeadmUpgrade { .. } => "kubeadm-upgrade",
            Self::InstallKubelet { .. } => "kubelet-install",
            Self::SetKubeletFlags { .. } => "kubelet-flags",
            Self::RenewCertificates { .. } => "certificates-renew",
            Self::InstallKubectl { .. } => "kubectl-install",
            Self::InstallContainerRuntime { .. } => "container-runtime-install",
            Self::PreloadImages { .. } => "image-preload",
            Self::WriteFiles { .. } => "files",
            Self::SetTimeServers { .. } => "ntp",
            Self::StageOsImage { .. } => "os-image-stage",
            Self::FinalizeOsImage { .. } => "os-image-finalize",
            Self::CommitOsImage { .. } => "os-image-commit",
            Self::RestartKubelet => "kubelet-restart",
            Self::Reboot => "reboot",
            Self::VerifyVersions { .. } => "verify",
            Self::RestorePackages { .. } => "restore-packages",
            Self::RestoreConfiguration => "restore-configuration",
            Self::RestoreFiles { .. } => "restore-files",
            Self::RestoreOsImage { .. } => "restore-os-image",
        }
    }

    /// How long it may take before it counts as hung.
    pub fn timeout_seconds(&self) -> u32 {
        match self {
            Self::PreflightChecks { .. }
            | Self::RestartKubelet
            | Self::VerifyVersions { .. }
            | Self::WriteFiles { .. }
            | Self::SetKubeletFlags { .. }
            | Self::SetTimeServers { .. }
            | Self::RestoreFiles { .. }
            | Self::RestoreConfiguration => 300,
            Self::Reboot => REBOOT_DEADLINE_SECONDS,
            Self::Snapshot | Self::FinalizeOsImage { .. } | Self::RestoreOsImage { .. } => 900,
            Self::InstallKubeadm { .. }
            | Self::InstallKubelet { .. }
            | Self::InstallKubectl { .. }
            | Self::InstallContainerRuntime { .. }
            // Each of four static pods may take its time to come back.
            | Self::RenewCertificates { .. }
            // The health checks of the new OS are run by it, and no script of theirs has a timeout.
            | Self::CommitOsImage { .. }
            | Self::RestorePackages { .. } => 1200,
            // kubeadm waits 5 min for each of four static pods, and etcd's is the slow one
            // (`spec/node.md 2.4`); a download over a thin line takes as long.
            Self::KubeadmUpgrade { .. }
            | Self::FetchPackages { .. }
            | Self::PreloadImages { .. }
            | Self::StageOsImage { .. } => 3600,
        }
    }
}

/// How long a host may take from the reboot command to its next boot.
pub(super) const REBOOT_DEADLINE_SECONDS: u32 = 900;

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
