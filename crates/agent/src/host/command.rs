//! Commands for a host: carrying out or rolling back a step of a plan. They are typed, never shell
//! text.

use std::collections::BTreeMap;

use refit_kinds::refit::{HostStep, OsImageArgs, StepEvidence, StepRules, StepType, UnitArgs};
use serde::{Deserialize, Serialize};

/// A command for a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Command {
    /// Carries out a step of the plan.
    Step(HostStep),
    /// Rolls back a step. Never part of a plan: the agent decides about rollbacks itself.
    Undo(Undo),
}

/// A rollback, with the data that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Undo {
    /// Restores exactly these versions of packages. A package with an empty version is removed.
    Packages {
        /// Versions in the form of the package manager, by package name.
        packages: BTreeMap<String, String>,
    },
    /// Restores the packages of the operating system that the plan has changed, as its snapshot has them.
    OsPackages,
    /// Restores static pod manifests and the kubelet's configuration from the plan's snapshot.
    Configuration,
    /// Restores the files of a step, and with them the host's package sources.
    Files {
        /// Id of the step that wrote the files.
        step: String,
    },
    /// Makes sure that an OS image is not booted next, or that the previous image is.
    OsImage {
        /// The image to roll back.
        os_image: OsImageArgs,
    },
    /// Restarts the kubelet with the restored files.
    KubeletRestart,
    /// Reloads or restarts units with the restored files.
    Units(UnitArgs),
}

/// Rules for running a command: part of a row of the step table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRules {
    /// How long one attempt may take before it counts as hung, in seconds.
    pub timeout_seconds: u32,
    /// Whether a second run is harmless.
    pub idempotent: bool,
    /// Evidence that the command is done.
    pub evidence: StepEvidence,
}

impl From<StepRules> for CommandRules {
    fn from(rules: StepRules) -> Self {
        let StepRules { timeout_seconds, idempotent, evidence, .. } = rules;
        Self { timeout_seconds, idempotent, evidence }
    }
}

impl Command {
    /// Short name, for messages and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Step(step) => StepType::from(step).id(),
            Self::Undo(undo) => match undo {
                Undo::Packages { .. } => "restore-packages",
                Undo::OsPackages => "restore-os-packages",
                Undo::Configuration => "restore-configuration",
                Undo::Files { .. } => "restore-files",
                Undo::OsImage { .. } => "restore-os-image",
                Undo::KubeletRestart => StepType::KubeletRestart.id(),
                Undo::Units(_) => "restore-units",
            },
        }
    }

    /// The rules for running the command.
    pub fn rules(&self) -> CommandRules {
        let undo = |timeout_seconds, evidence| CommandRules {
            timeout_seconds,
            idempotent: true,
            evidence,
        };
        match self {
            Self::Step(step) => step.rules().into(),
            Self::Undo(Undo::Packages { .. }) => undo(1200, StepEvidence::Both),
            Self::Undo(Undo::OsPackages) => undo(3600, StepEvidence::Both),
            Self::Undo(Undo::Configuration) => undo(300, StepEvidence::Mark),
            Self::Undo(Undo::Files { .. }) => undo(300, StepEvidence::Both),
            Self::Undo(Undo::OsImage { .. }) => undo(900, StepEvidence::Host),
            Self::Undo(Undo::KubeletRestart) => StepType::KubeletRestart.rules().into(),
            Self::Undo(Undo::Units(_)) => StepType::UnitActions.rules().into(),
        }
    }
}

impl From<HostStep> for Command {
    fn from(step: HostStep) -> Self {
        Self::Step(step)
    }
}

impl From<Undo> for Command {
    fn from(undo: Undo) -> Self {
        Self::Undo(undo)
    }
}
