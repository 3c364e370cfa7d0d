//! The reasons of refusals as a status shows them, and what ends each wait.

use strum::VariantNames;

use super::RefusalReason;
use crate::node::DrainReason;

/// The reason of a [`Refusal`](super::Refusal), parsed from a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Reason of an update.
    Update(RefusalReason),
    /// Reason of a drain.
    Drain(DrainReason),
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsBy {
    /// The progress of another update.
    Progress,
    /// Other machines become available again, as an updated machine does.
    OthersRecover,
    /// A change of the object, node or pod named in the blocker.
    ObjectChange,
    /// The deadlines of the drain policy.
    Deadline,
    /// A command of the operator.
    Command,
}

impl Reason {
    /// Parses a reason; `None` for one that is not Refit's or is from a newer version.
    pub fn of(text: &str) -> Option<Self> {
        let drain = || text.parse().map(Self::Drain);
        text.parse().map(Self::Update).or_else(|_| drain()).ok()
    }

    /// Every reason, in the order of the variants.
    pub fn all() -> impl Iterator<Item = &'static str> {
        let update_reasons = RefusalReason::VARIANTS.iter().filter(|name| **name != "Drain");
        update_reasons.chain(DrainReason::VARIANTS).copied()
    }

    /// What ends the wait.
    pub fn ends_by(self) -> EndsBy {
        match self {
            Self::Update(reason) => reason.ends_by(),
            Self::Drain(reason) => match reason {
                DrainReason::EvictionUnavailable
                | DrainReason::PodTerminating
                | DrainReason::PodCameBack
                | DrainReason::VolumeAttached => EndsBy::Deadline,
                DrainReason::PodUnreplicated
                | DrainReason::PodLocalStorage
                | DrainReason::PodWaitCompleted
                | DrainReason::DrainRuleNotUnderstood => EndsBy::ObjectChange,
            },
        }
    }

    /// Whether the reason comes from a rejected eviction.
    pub fn is_of_eviction(self) -> bool {
        matches!(
            self,
            Self::Update(RefusalReason::PodDisruptionBudget | RefusalReason::EvictionRefused)
                | Self::Drain(DrainReason::EvictionUnavailable)
        )
    }
}

impl RefusalReason {
    fn ends_by(self) -> EndsBy {
        match self {
            Self::SlotBusy
            | Self::Soaking
            | Self::WindowClosed
            | Self::OutOfTurn
            | Self::OlderUpdateUnfinished
            | Self::OlderPlanRunning
            | Self::GroupNotReady => EndsBy::Progress,
            Self::GroupUnavailable | Self::ControlPlaneUnhealthy | Self::GateClosed => {
                EndsBy::OthersRecover
            }
            Self::PodDisruptionBudget
            | Self::EvictionRefused
            | Self::Drain
            | Self::UpdaterFails
            | Self::UpdaterNotVerified => EndsBy::Deadline,
            Self::AgentTooOld
            | Self::Paused
            | Self::UntilReached
            | Self::ApprovalRequired
            | Self::RolloutStopped
            | Self::Held
            | Self::Skipped => EndsBy::Command,
            Self::EtcdQuorum
            | Self::ControlPlaneBehind
            | Self::NoFreshReport
            | Self::HostUnreadable
            | Self::HostSettingsAnnotation
            | Self::HostSettingsUnreadable
            | Self::HostSettingsConflict
            | Self::DisruptionPolicyUnreadable
            | Self::DisruptionPolicyConflict
            | Self::OsImageConflict
            | Self::OsPackagesConflict
            | Self::ConfigurationChanged
            | Self::ConfigurationConflict
            | Self::UpdaterUnusable
            | Self::ApiUnreachable
            | Self::ClusterTooLarge
            | Self::NodeNotReady
            | Self::NodePressure
            | Self::NodeCordoned
            | Self::CertificateExpires
            | Self::VersionsNotComparable
            | Self::NodeNotVerified
            | Self::NoNode
            | Self::MachineDeleting
            | Self::RoomForOthers
            | Self::WouldBeReplaced
            | Self::NoGroup
            | Self::NoWindow
            | Self::ApiRefused
            | Self::ApiErrors => EndsBy::ObjectChange,
        }
    }
}
