//! What a host can be told to do: typed, never shell text.

use refit_api::refit::{PlannedStep, Role, StepType};
use serde::{Deserialize, Serialize};

/// Step types that this agent knows.
pub const CAPABILITIES: [StepType; 9] = [
    StepType::Preflight,
    StepType::Stage,
    StepType::Snapshot,
    StepType::KubeadmInstall,
    StepType::KubeadmUpgrade,
    StepType::KubeletInstall,
    StepType::KubeletRestart,
    StepType::Reboot,
    StepType::Verify,
];

/// A Kubernetes version, `vX.Y.Z`, checked: it goes into arguments of programs that run as root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubernetesVersion(String);

impl KubernetesVersion {
    /// Checks `text`.
    pub fn parse(text: &str) -> Result<Self, InvalidStep> {
        let wrong = || InvalidStep::Version {
            got: text.to_owned(),
        };
        let numbers = text.strip_prefix('v').ok_or_else(wrong)?;
        let (core, rest) = match numbers.find(['-', '+']) {
            Some(at) => numbers.split_at(at),
            None => (numbers, ""),
        };
        let number = |part: &str| {
            !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit())
        };
        let parts: Vec<&str> = core.split('.').collect();
        let suffix = rest
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b));
        if parts.len() == 3 && parts.into_iter().all(number) && suffix && rest.len() <= 64 {
            Ok(Self(text.to_owned()))
        } else {
            Err(wrong())
        }
    }

    /// The version of a package such as `1.35.0-1.1`: what comes before its revision.
    pub fn of_package(version: &str) -> Result<Self, InvalidStep> {
        let upstream = version
            .rsplit_once('-')
            .map_or(version, |(upstream, _)| upstream);
        Self::parse(&format!("v{upstream}"))
    }

    /// `vX.Y.Z`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `X.Y.Z`, as packages have it.
    pub fn bare(&self) -> &str {
        self.0.strip_prefix('v').unwrap_or(&self.0)
    }

    /// Whether a package of this version holds it.
    pub fn is_of_package(&self, version: &str) -> bool {
        Self::of_package(version).is_ok_and(|found| found == *self)
    }
}

impl TryFrom<String> for KubernetesVersion {
    type Error = InvalidStep;

    fn try_from(text: String) -> Result<Self, InvalidStep> {
        Self::parse(&text)
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.0
    }
}

impl std::fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

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
}

/// What a host can be told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Command {
    /// Looks whether the host can be updated at all.
    PreflightChecks,
    /// Downloads packages without installing them.
    FetchPackages {
        /// Version of the packages.
        version: KubernetesVersion,
    },
    /// Saves etcd, manifests and kubelet configuration.
    Snapshot,
    /// Installs the kubeadm package.
    InstallKubeadm {
        /// Version of the package.
        version: KubernetesVersion,
    },
    /// Runs `kubeadm upgrade`.
    KubeadmUpgrade {
        /// `apply` for the first control plane, `node` for the others.
        role: Role,
        /// Target.
        version: KubernetesVersion,
    },
    /// Installs the kubelet and kubectl packages.
    InstallKubelet {
        /// Version of the packages.
        version: KubernetesVersion,
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
}

impl Command {
    /// The command of a planned step.
    pub fn of(step: &PlannedStep) -> Result<Self, InvalidStep> {
        let version = || KubernetesVersion::parse(&step.action.version);
        Ok(match step.action.type_ {
            StepType::Preflight => Self::PreflightChecks,
            StepType::Stage => Self::FetchPackages {
                version: version()?,
            },
            StepType::Snapshot => Self::Snapshot,
            StepType::KubeadmInstall => Self::InstallKubeadm {
                version: version()?,
            },
            StepType::KubeadmUpgrade => Self::KubeadmUpgrade {
                role: step.action.role.ok_or_else(|| InvalidStep::Role {
                    step: step.id.clone(),
                })?,
                version: version()?,
            },
            StepType::KubeletInstall => Self::InstallKubelet {
                version: version()?,
            },
            StepType::KubeletRestart => Self::RestartKubelet,
            StepType::Reboot => Self::Reboot,
            StepType::Verify if step.action.version.is_empty() => {
                Self::VerifyVersions { version: None }
            }
            StepType::Verify => Self::VerifyVersions {
                version: Some(version()?),
            },
        })
    }

    /// Whether a second run does no harm. One that is not idempotent is never run again after a
    /// restart without looking at the host first.
    pub fn idempotent(&self) -> bool {
        !matches!(
            self,
            Self::KubeadmUpgrade { .. } | Self::RestartKubelet | Self::Reboot
        )
    }

    /// Short name, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PreflightChecks => "preflight",
            Self::FetchPackages { .. } => "stage",
            Self::Snapshot => "snapshot",
            Self::InstallKubeadm { .. } => "kubeadm-install",
            Self::KubeadmUpgrade { .. } => "kubeadm-upgrade",
            Self::InstallKubelet { .. } => "kubelet-install",
            Self::RestartKubelet => "kubelet-restart",
            Self::Reboot => "reboot",
            Self::VerifyVersions { .. } => "verify",
        }
    }

    /// How long it may take before it counts as hung.
    pub fn timeout_seconds(&self) -> u32 {
        match self {
            Self::PreflightChecks | Self::RestartKubelet | Self::VerifyVersions { .. } => 300,
            Self::Reboot => REBOOT_DEADLINE_SECONDS,
            Self::Snapshot => 900,
            Self::InstallKubeadm { .. } | Self::InstallKubelet { .. } => 1200,
            // kubeadm waits 5 min for each of four static pods, and etcd's is the slow one
            // (`spec/node.md 2.4`); a download over a thin line takes as long.
            Self::KubeadmUpgrade { .. } | Self::FetchPackages { .. } => 3600,
        }
    }
}

/// How long a host may take from the reboot command to its next boot.
pub const REBOOT_DEADLINE_SECONDS: u32 = 900;

#[cfg(test)]
mod tests {
    use refit_api::refit::{Gate, StepAction};

    use super::*;

    fn step(type_: StepType, version: &str, role: Option<Role>) -> PlannedStep {
        PlannedStep {
            id: "s".to_owned(),
            gate: Gate::Stage,
            action: StepAction {
                type_,
                version: version.to_owned(),
                role,
            },
            disruptive: false,
        }
    }

    #[test]
    fn only_real_versions_reach_a_command_line() {
        for good in ["v1.35.0", "v1.35.0-rc.1", "v1.35.12+build.5"] {
            assert_eq!(KubernetesVersion::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "1.35.0",
            "v1.35",
            "v1.35.0 ; reboot",
            "v1.35.x",
            "v1.35.0-$(x)",
            "v1.35.0\n",
            "v1..0",
            "v1.2.3.4",
            "latest",
        ] {
            assert!(KubernetesVersion::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_package_revision_is_not_part_of_the_version() {
        let version = KubernetesVersion::parse("v1.35.0").unwrap();
        assert!(version.is_of_package("1.35.0-1.1"));
        assert!(version.is_of_package("1.35.0"));
        assert!(!version.is_of_package("1.35.1-1.1"));
        assert!(!version.is_of_package("garbage"));
    }

    #[test]
    fn every_known_step_type_becomes_a_command() {
        for type_ in CAPABILITIES {
            let step = step(type_, "v1.35.0", Some(Role::Worker));
            assert!(Command::of(&step).is_ok(), "{type_:?}");
        }
    }

    #[test]
    fn an_upgrade_without_role_or_version_is_refused() {
        let no_role = Command::of(&step(StepType::KubeadmUpgrade, "v1.35.0", None));
        assert!(matches!(no_role, Err(InvalidStep::Role { .. })));
        let no_version = Command::of(&step(StepType::KubeadmUpgrade, "", Some(Role::Worker)));
        assert!(matches!(no_version, Err(InvalidStep::Version { .. })));
    }

    #[test]
    fn upgrade_restart_and_reboot_are_not_idempotent() {
        let names: Vec<_> = CAPABILITIES
            .into_iter()
            .filter_map(|t| Command::of(&step(t, "v1.35.0", Some(Role::Worker))).ok())
            .filter(|c| !c.idempotent())
            .map(|c| c.name())
            .collect();
        assert_eq!(names, ["kubeadm-upgrade", "kubelet-restart", "reboot"]);
    }
}
