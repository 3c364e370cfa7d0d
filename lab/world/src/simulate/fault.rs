//! The faults of a simulation, as lines of a scenario script.

use serde::Deserialize;
use strum::{Display, EnumString, VariantArray};

use super::{
    operator,
    shape::{CLUSTER, Shape},
};
use crate::{random::Random, script::parse};

/// A kind of fault.
#[derive(
    Clone,
    Copy,
    Debug,
    Deserialize,
    Display,
    EnumString,
    VariantArray,
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
    /// An operator pauses the cluster, and resumes it later.
    Pause,
    /// An operator cordons a node, and uncordons it later.
    Cordon,
    /// A pod that a drain does not evict by itself runs on a node, and an operator decides about it.
    StuckPod,
    /// A volume is attached to a node for some time.
    Volume,
    /// A PodDisruptionBudget temporarily allows no eviction.
    Budget,
    /// The host settings of an owner are temporarily invalid.
    Settings,
    /// An operator changes the number of machines.
    Scale,
    /// An operator deletes a Machine.
    DeleteMachine,
    /// Someone deletes a NodeUpdate.
    DeleteUpdate,
    /// An operator aborts an update, and later lets it be tried again.
    Abort,
    /// An operator aborts an update and sets the version back.
    GiveUp,
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
    /// An operator requests the remediation of a Machine.
    Remediate,
    /// An operator creates a NodeUpdate by hand while another machine is being updated.
    ByHand,
}

const KINDS: [&str; 9] = [
    "machine",
    "nodeupdate",
    "updategroup",
    "cluster",
    "md",
    "kcp",
    "edge-1:node",
    "edge-1:pod",
    "edge-1:hostplan",
];

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

    /// Whether a cluster of this shape can have the fault.
    pub(super) fn suits(self, shape: &Shape) -> bool {
        match self {
            // Without its only control plane host a cluster is gone.
            Self::HostLost | Self::Incident => shape.control_plane > 1 || shape.workers > 0,
            Self::Scale | Self::Flip | Self::ByHand => shape.workers > 0,
            Self::Remediate => shape.health_check,
            _ => true,
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
        )
    }

    /// The script of one fault.
    pub(super) fn script(self, random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
        match self {
            Self::Outage
            | Self::HalfOpen
            | Self::StaleView
            | Self::Latency
            | Self::Rejection
            | Self::LostAnswer
            | Self::Split => self.of_apis(random, setting),
            Self::Incident => incident(random, setting),
            Self::HostOff
            | Self::HostLost
            | Self::StepFails
            | Self::StepHangs
            | Self::StepSlow
            | Self::DiskFull
            | Self::TornJournal => self.of_hosts(random, setting),
            Self::ClockStep | Self::Kill | Self::Repeat => self.of_processes(random, setting),
            Self::Pause
            | Self::Cordon
            | Self::StuckPod
            | Self::Volume
            | Self::Budget
            | Self::Settings
            | Self::Scale
            | Self::DeleteMachine
            | Self::DeleteUpdate
            | Self::Abort
            | Self::GiveUp
            | Self::Cancel
            | Self::Forgo
            | Self::Flip
            | Self::Default
            | Self::Upgrade
            | Self::Remediate
            | Self::ByHand => operator::script(self, random, setting),
        }
    }

    fn of_apis(self, random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
        let api = *random.pick(&[CLUSTER, CLUSTER, "management"]);
        let line = match self {
            Self::HalfOpen => format!("break streams {api}"),
            Self::StaleView => {
                let view = |_| {
                    let kind = random.pick(&KINDS);
                    format!("break view {kind} for {}s", random.between(10, 120))
                };
                return (0..3).map(view).collect();
            }
            Self::Latency => {
                let delay = random.between(1, 8);
                format!("break latency {api} {delay}s for {}s", random.between(30, 300))
            }
            Self::Rejection => {
                let code = random.pick(&[403, 404, 409, 422, 429, 500, 503]);
                format!("break requests {api} {code} times {}", random.between(1, 20))
            }
            Self::LostAnswer => format!("break answers {api} times {}", random.between(1, 10)),
            Self::Split => {
                let process = process(random, setting);
                // An agent talks to its own cluster alone.
                let api = if process.starts_with("agent") { CLUSTER } else { api };
                format!("break link {process} {api} for {}s", random.between(10, 240))
            }
            _ => format!("break api {api} for {}s", random.between(5, 180)),
        };
        vec![line]
    }

    fn of_hosts(self, random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
        let node = &setting.machine;
        let step = random.pick(&parse::STEPS);
        let line = match self {
            Self::HostLost => format!("break node {}", setting.shape.expendable(random)),
            Self::StepFails => {
                format!("break host {node} step {step} times {}", random.between(1, 6))
            }
            Self::StepHangs => format!("break host {node} step {step} hang times 1"),
            Self::StepSlow => {
                format!("break host {node} step {step} slow {}", random.between(2, 5))
            }
            Self::DiskFull => {
                let time = random.between(1, 10);
                return vec![format!("break disk {node}"), format!("at {time}m mend disk {node}")];
            }
            Self::TornJournal => format!("break journal {node}"),
            _ => format!("break node {node} for {}m", random.between(1, 30)),
        };
        vec![line]
    }

    fn of_processes(self, random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
        let process = process(random, setting);
        match self {
            Self::ClockStep => {
                // The stand-in for Cluster API has no clock of its own.
                let process = if process == "capi" { "controller".to_owned() } else { process };
                let seconds = random.between(30, 1200);
                let way = random.pick(&["ahead", "behind"]);
                let time = random.between(30, 600);
                vec![format!("break clock {process} {seconds}s {way} for {time}s")]
            }
            Self::Repeat => vec![format!("repeat {}", setting.machine)],
            _ if random.chance(1, 2) => vec![format!("kill {process}")],
            _ => vec![format!("kill {process} for {}s", random.between(5, 120))],
        }
    }
}

fn incident(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (pause, outage) = (random.between(30, 150), random.between(10, 170));
    let resumed = pause + 1 + outage * random.between(5, 9) / 10;
    vec![
        format!("change cluster/{CLUSTER} spec.paused true"),
        format!("at {resumed}s change cluster/{CLUSTER} spec.paused -"),
        format!("wait {pause}s"),
        format!("break api {CLUSTER} for {outage}s"),
        "wait 1s".to_owned(),
        format!("break node {} for {}m", setting.shape.expendable(random), random.between(5, 30)),
    ]
}

fn process(random: &mut Random, setting: &Setting<'_>) -> String {
    let standby = if setting.shape.standby { "standby" } else { "controller" };
    let agent = format!("agent {}", setting.machine);
    (*random.pick(&["controller", standby, "capi", &agent])).to_owned()
}
