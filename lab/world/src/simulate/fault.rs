//! The faults of a simulation, as lines of a scenario script.

use serde::Deserialize;
use strum::{Display, EnumString, VariantArray, VariantNames};

use super::{
    configure, failure, fleet,
    held::{self, Held},
    operator,
    shape::{Shape, TaskFor},
    snaps, tasks,
};
use crate::random::Random;

/// A kind of fault.
#[derive(
    Clone,
    Copy,
    Debug,
    Deserialize,
    Display,
    EnumString,
    VariantArray,
    VariantNames,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum FaultKind {
    /// An API server does not answer.
    Outage,
    /// Open connections to an API swallow every byte, and do not end.
    HalfOpen,
    /// What processes see of one kind is old.
    StaleView,
    /// An API server answers late.
    Latency,
    /// An API server rejects requests with 403, 404, 409, 422, 429, 500 or 503.
    Rejection,
    /// An API server carries out requests, but the answers are lost.
    LostAnswer,
    /// A host loses power and returns.
    HostOff,
    /// A host loses power for good.
    HostLost,
    /// A step fails on a host.
    StepFails,
    /// A step hangs until its timeout.
    StepHangs,
    /// A step takes longer.
    StepSlow,
    /// A disk is full.
    DiskFull,
    /// An agent dies while it writes a record to its journal.
    TornJournal,
    /// The clock of a process steps.
    ClockStep,
    /// A process dies.
    Kill,
    /// A process cannot reach an API.
    Split,
    /// An operator pauses the cluster, its API goes away, a host dies meanwhile, and the operator
    /// resumes the cluster shortly before the API returns.
    Incident,
    /// Cluster API sends an old request again.
    Repeat,
    /// An operator pauses the cluster or an object of it, and resumes it later.
    Pause,
    /// An operator cordons a node, and uncordons it later.
    Cordon,
    /// A pod that a drain does not evict by itself runs on a node, and an operator decides about it.
    StuckPod,
    /// A volume is attached to a node for some time.
    Volume,
    /// A PodDisruptionBudget temporarily allows no eviction.
    Budget,
    /// The host settings of owners are temporarily ambiguous, or in an annotation.
    Settings,
    /// The host settings of an owner change, and its policy starts updates for that.
    ChangedSettings,
    /// An operator changes the number of machines.
    Scale,
    /// An operator deletes a Machine.
    DeleteMachine,
    /// Someone deletes a NodeUpdate, or an UpdateGroup.
    DeleteUpdate,
    /// An operator aborts an update, and later lets it be tried again.
    Abort,
    /// An operator aborts an update and sets the version back.
    GiveUp,
    /// An operator aborts an UpgradeTask, and later creates another one.
    AbortTask,
    /// An operator deletes an UpgradeTask, and later creates another one.
    DeleteTask,
    /// An operator cancels a ClusterUpgrade, and later requests it again.
    CancelUpgrade,
    /// An operator deletes a ClusterUpgrade, and later creates it again.
    DeleteUpgrade,
    /// The status of a ClusterUpgrade is lost.
    LoseUpgrade,
    /// An operator removes Cluster API's mark from a Machine that could not be updated.
    Cancel,
    /// An operator removes Cluster API's mark from a Machine on which a step fails, mends the host,
    /// and later requests the next minor version.
    Forgo,
    /// The version of a MachineDeployment or a Machine is changed, and changed back.
    Flip,
    /// A provider starts to default a field, and a second upgrade follows.
    Default,
    /// A second upgrade.
    Upgrade,
    /// An operator changes a KubeadmConfig.
    Configure,
    /// An operator requests the remediation of a Machine.
    Remediate,
    /// An operator creates a NodeUpdate by hand while another machine is being updated.
    ByHand,
    /// An operator creates a NodeUpdate that goes only so far, and lets it go on later.
    Hold,
    /// An operator paces a group, approves its rollout, and later removes the pacing.
    Pace,
    /// An operator holds or skips a machine, and later releases it.
    Except,
    /// The server of an Updater is gone for some time.
    UpdaterOff,
    /// A provider dies.
    ProviderOff,
    /// A provider does not get on for some time.
    ProviderSlow,
    /// A provider reports what is not so for some time.
    ProviderLies,
    /// Refreshes of a snap fail, or snapd forgets them.
    SnapFails,
    /// k8sd of a machine does not answer for some time.
    SnapOff,
    /// An operator withdraws the annotation of an owner, and repeats it later.
    Withdraw,
    /// An operator requests new certificates for a node.
    Certificates,
    /// An operator pauses a ClusterUpgradePlan, and resumes it later.
    PausePlan,
    /// An operator edits a ClusterUpgradePlan.
    EditPlan,
    /// An operator deletes a ClusterUpgradePlan, and later creates it again.
    DeletePlan,
    /// An operator cancels a ClusterUpgrade of a plan, and later lets it go on.
    CancelOfPlan,
    /// An operator deletes a ClusterUpgrade of a plan.
    DeleteOfPlan,
    /// The upgrade of a Cluster of a plan fails, and is repaired later.
    SiteFails,
    /// The controller is absent for a long time, and operators change owners meanwhile.
    Absent,
    /// An operator lets Cluster API replace machines, or has a group surge otherwise, for some time.
    Declare,
}

/// What the lines of a fault depend on.
pub(super) struct Setting<'a> {
    pub(super) shape: &'a Shape,
    /// The machine that the fault hits.
    pub(super) machine: String,
    /// The version that the owners request, before and after the fault.
    pub(super) version: &'a mut Version,
}

/// A version, and the one before it.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) previous: String,
    pub(super) now: String,
    /// Number of upgrades so far.
    pub(super) upgrades: u32,
}

impl Version {
    /// The next patch or minor version, which the owners request from now on.
    pub(super) fn advance(&mut self, minor: bool) {
        let numbers = self.now.trim_start_matches("v1.").split_once('.');
        let (a, b) = numbers.unwrap_or_default();
        let (a, b): (u32, u32) = (a.parse().unwrap_or(34), b.parse().unwrap_or(0));
        let next = if minor { format!("v1.{}.0", a + 1) } else { format!("v1.{a}.{}", b + 1) };
        self.previous = std::mem::replace(&mut self.now, next);
        self.upgrades += 1;
    }
}

impl FaultKind {
    /// Whether the world goes on while processes see an old state of it.
    pub(super) fn blinds(self) -> bool {
        matches!(self, Self::Outage | Self::HalfOpen | Self::StaleView | Self::Split)
    }

    /// Whether the fault is one of a provider.
    pub(super) fn is_of_provider(self) -> bool {
        matches!(self, Self::ProviderOff | Self::ProviderSlow | Self::ProviderLies)
    }

    /// Whether the fault is one of k8sd.
    pub(super) fn is_of_snaps(self) -> bool {
        matches!(self, Self::SnapFails | Self::SnapOff | Self::Withdraw | Self::Certificates)
    }

    /// Whether the fault is one of a fleet. It is not one of those that happen to the cluster itself.
    pub(super) fn is_of_fleet(self) -> bool {
        matches!(
            self,
            Self::PausePlan
                | Self::EditPlan
                | Self::DeletePlan
                | Self::CancelOfPlan
                | Self::DeleteOfPlan
                | Self::SiteFails
        )
    }

    /// Whether the fault is one of a namespace that holds replacements.
    pub(super) fn is_of_holds(self) -> bool {
        matches!(self, Self::Absent | Self::Declare)
    }

    /// Whether the fault is one of agents and their steps, of Cluster API's requests, or of NodeUpdates that an operator
    /// handles: those of annotations are handled by annotations.
    fn is_without_snaps(self) -> bool {
        matches!(
            self,
            Self::StepFails
                | Self::StepHangs
                | Self::StepSlow
                | Self::DiskFull
                | Self::TornJournal
                | Self::Repeat
                | Self::Settings
                | Self::ChangedSettings
                | Self::DeleteUpdate
                | Self::Abort
                | Self::GiveUp
                | Self::Cancel
                | Self::Forgo
                | Self::Flip
                | Self::Default
                | Self::ByHand
                | Self::Hold
        )
    }

    /// Whether a cluster of this shape can have the fault.
    pub(super) fn suits(self, shape: &Shape) -> bool {
        if shape.snaps.is_some() && self.is_without_snaps() {
            return false;
        }
        match self {
            // Without its only control plane host a cluster is gone.
            Self::HostLost | Self::Incident => shape.control_plane > 1 || shape.workers > 0,
            Self::Flip => shape.workers > 0 && shape.tasks.is_none(),
            // The application cannot leave the only worker.
            Self::ByHand => shape.workers > 1,
            Self::Hold => shape.workers != 1,
            Self::Configure => shape.tasks.is_none() && shape.snaps.is_none(),
            Self::AbortTask | Self::DeleteTask => shape.tasks == Some(TaskFor::Owner),
            Self::CancelUpgrade | Self::DeleteUpgrade | Self::LoseUpgrade => {
                shape.tasks == Some(TaskFor::Cluster)
            }
            // Cluster API requests nothing of a machine that a task upgrades.
            Self::Repeat | Self::Cancel | Self::Forgo | Self::GiveUp => shape.tasks.is_none(),
            Self::UpdaterOff => shape.has_hook(),
            Self::ProviderOff | Self::ProviderSlow | Self::ProviderLies => shape.has_provider(),
            // It changes templates by their names.
            Self::Default => shape.updater.is_none() && shape.tasks.is_none(),
            Self::Remediate => shape.health_check,
            Self::SnapFails | Self::SnapOff | Self::Withdraw | Self::Certificates => {
                shape.snaps.is_some()
            }
            Self::PausePlan
            | Self::EditPlan
            | Self::DeletePlan
            | Self::CancelOfPlan
            | Self::DeleteOfPlan
            | Self::SiteFails => shape.fleet.is_some(),
            Self::Absent => shape.held.is_some_and(Held::is_left_alone),
            Self::Declare => shape.held.is_some(),
            // Nothing keeps the only member of such a control plane until another one has joined.
            Self::DeleteMachine => shape.snaps.is_none() || shape.control_plane > 1,
            Self::Outage
            | Self::HalfOpen
            | Self::StaleView
            | Self::Latency
            | Self::Rejection
            | Self::LostAnswer
            | Self::HostOff
            | Self::StepFails
            | Self::StepHangs
            | Self::StepSlow
            | Self::DiskFull
            | Self::TornJournal
            | Self::ClockStep
            | Self::Kill
            | Self::Pace
            | Self::Except
            | Self::Split
            | Self::Pause
            | Self::Cordon
            | Self::StuckPod
            | Self::Volume
            | Self::Budget
            | Self::Settings
            | Self::ChangedSettings
            | Self::Scale
            | Self::DeleteUpdate
            | Self::Abort
            | Self::Upgrade => true,
        }
    }

    /// Whether the fault may be there before the first upgrade is requested.
    pub(super) fn may_precede(self) -> bool {
        matches!(
            self,
            Self::Outage
                | Self::HalfOpen
                | Self::Split
                | Self::HostOff
                | Self::HostLost
                | Self::StepFails
                | Self::DiskFull
                | Self::Cordon
                | Self::StuckPod
                | Self::Pace
                | Self::Except
        )
    }

    /// The script of one fault.
    pub(super) fn script(self, random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
        match self {
            Self::Outage => failure::outage(random),
            Self::HalfOpen => failure::half_open(random),
            Self::StaleView => failure::stale_view(random),
            Self::Latency => failure::latency(random),
            Self::Rejection => failure::rejection(random, setting.shape),
            Self::LostAnswer => failure::lost_answer(random),
            Self::Split => failure::split(random, setting),
            Self::Incident => failure::incident(random, setting),
            Self::HostOff => failure::host_off(random, &setting.machine),
            Self::HostLost => failure::host_lost(random, setting),
            Self::StepFails => failure::step_fails(random, &setting.machine),
            Self::StepHangs => failure::step_hangs(random, &setting.machine),
            Self::StepSlow => failure::step_slow(random, &setting.machine),
            Self::DiskFull => failure::disk_full(random, &setting.machine),
            Self::TornJournal => failure::torn_journal(&setting.machine),
            Self::ClockStep => failure::clock_step(random, setting),
            Self::Kill => failure::kill(random, setting),
            Self::Repeat => vec![format!("repeat {}", setting.machine)],
            Self::Pause => operator::pause(random, setting),
            Self::Cordon => operator::cordon(random, &setting.machine),
            Self::StuckPod => operator::stuck_pod(random, &setting.machine),
            Self::Volume => operator::volume(random, &setting.machine),
            Self::Budget => operator::budget(random),
            Self::Settings => operator::settings(random, setting.shape),
            Self::ChangedSettings => operator::changed_settings(random, setting.shape),
            Self::Scale => operator::scale(random, setting.shape),
            Self::DeleteMachine => vec![format!("delete machine/{}", setting.machine)],
            Self::DeleteUpdate => operator::delete_update(random, setting),
            Self::Abort => operator::abort(random, setting),
            Self::GiveUp => operator::give_up(random, setting),
            Self::AbortTask => tasks::abort(random, setting),
            Self::DeleteTask => tasks::delete(random, setting),
            Self::CancelUpgrade => tasks::cancel_cluster(random),
            Self::DeleteUpgrade => tasks::delete_cluster(random, setting),
            Self::LoseUpgrade => tasks::lose_cluster(),
            Self::Cancel => vec![operator::cancel(&setting.machine)],
            Self::Forgo => operator::forgo(random, setting),
            Self::Flip => operator::flip(random, setting),
            Self::Default => operator::new_default(random, setting),
            Self::Upgrade => {
                let minor = random.chance(1, 2);
                operator::upgrade(setting, minor)
            }
            Self::Configure => configure::change(random, setting),
            Self::Remediate => operator::remediate(&setting.machine),
            Self::ByHand => operator::by_hand(random, setting),
            Self::Hold => operator::hold(random, setting),
            Self::Pace => operator::pace(random, setting.shape),
            Self::Except => operator::except(random, &setting.machine),
            Self::UpdaterOff => failure::process_off(random, "updater"),
            Self::ProviderOff => failure::process_off(random, "provider"),
            Self::ProviderSlow => failure::provider_slow(random),
            Self::ProviderLies => failure::provider_lies(random),
            Self::SnapFails => snaps::fails(random, &setting.machine),
            Self::SnapOff => snaps::off(random, &setting.machine),
            Self::Withdraw => match setting.shape.snaps {
                Some(keys) => snaps::withdraw(random, setting, keys),
                None => Vec::new(),
            },
            Self::PausePlan => fleet::pause(random),
            Self::EditPlan => fleet::edit(random, setting),
            Self::DeletePlan => fleet::delete(random, setting),
            Self::CancelOfPlan => fleet::cancel_upgrade(random, setting),
            Self::DeleteOfPlan => fleet::delete_upgrade(setting),
            Self::SiteFails => fleet::site_fails(random, setting),
            Self::Absent => held::absent(random, setting),
            Self::Declare => held::declare(random, setting.shape),
            Self::Certificates => vec![snaps::certificates(&setting.machine)],
        }
    }
}
