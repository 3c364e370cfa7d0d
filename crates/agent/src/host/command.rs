//! What a host can be told to do: a step of a plan, or rolling one back. Typed, never shell text.

use std::collections::BTreeMap;

use refit_kinds::refit::{HostStep, OsImageArgs, StepEvidence, StepRules, StepType};
use serde::{Deserialize, Serialize};

/// What a host can be told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Command {
    /// A step, as the plan has it.
    Step(HostStep),
    /// Rolling back what a step did. Never in a plan: the agent decides on it by itself.
    Undo(Undo),
}

/// How a step is rolled back, with what that takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Undo {
    /// Puts packages back to exactly these versions; one with an empty version is removed.
    Packages {
        /// Versions as the package manager has them, by name.
        packages: BTreeMap<String, String>,
    },
    /// Puts static pod manifests and the kubelet's configuration back from the plan's snapshot.
    Configuration,
    /// Puts the files of a step back as they were, and with them the host's sources of packages.
    Files {
        /// Id of the step that wrote them.
        step: String,
    },
    /// Makes sure that nothing of an OS image boots next, or that the previous one does.
    OsImage {
        /// Which.
        os_image: OsImageArgs,
    },
    /// Restarts the kubelet with what is back.
    KubeletRestart,
}

/// What holds while a command is carried out: part of a row of the table of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRules {
    /// How long one try may take before it counts as hung, in seconds.
    pub timeout_seconds: u32,
    /// Whether a second run does no harm.
    pub idempotent: bool,
    /// What proves that it is done.
    pub evidence: StepEvidence,
}

impl From<StepRules> for CommandRules {
    fn from(rules: StepRules) -> Self {
        let StepRules { timeout_seconds, idempotent, evidence, .. } = rules;
        Self { timeout_seconds, idempotent, evidence }
    }
}

impl Command {
    /// Short name, for messages and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Step(step) => StepType::from(step).id(),
            Self::Undo(undo) => match undo {
                Undo::Packages { .. } => "restore-packages",
                Undo::Configuration => "restore-configuration",
                Undo::Files { .. } => "restore-files",
                Undo::OsImage { .. } => "restore-os-image",
                Undo::KubeletRestart => StepType::KubeletRestart.id(),
            },
        }
    }

    /// What holds while it is carried out.
    pub fn rules(&self) -> CommandRules {
        let undo = |timeout_seconds, evidence| CommandRules {
            timeout_seconds,
            idempotent: true,
            evidence,
        };
        match self {
            Self::Step(step) => step.rules().into(),
            Self::Undo(Undo::Packages { .. }) => undo(1200, StepEvidence::Both),
            Self::Undo(Undo::Configuration) => undo(300, StepEvidence::Mark),
            Self::Undo(Undo::Files { .. }) => undo(300, StepEvidence::Both),
            Self::Undo(Undo::OsImage { .. }) => undo(900, StepEvidence::Host),
            Self::Undo(Undo::KubeletRestart) => StepType::KubeletRestart.rules().into(),
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
