//! The faults of a simulation, as lines of a scenario script.

use strum::{Display, EnumString, VariantArray};

use super::shape::{CLUSTER, DEPLOYMENT, Shape};
use crate::{random::Random, script::parse};

/// A kind of fault.
#[derive(
    Clone, Copy, Debug, Display, EnumString, VariantArray, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
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
    /// An API server rejects requests with 409, 429, 500 or 503.
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
    /// The last record of an agent's journal is torn.
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
    /// A pod without a controller runs on a node, and an operator decides about it.
    BarePod,
    /// A PodDisruptionBudget allows no eviction for a time.
    Budget,
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
}

impl Version {
    /// The next patch or minor version, which the owners request from now on.
    pub(super) fn advance(&mut self, minor: bool) {
        let numbers = self.now.trim_start_matches("v1.").split_once('.');
        let (a, b) = numbers.unwrap_or_default();
        let (a, b): (u32, u32) = (a.parse().unwrap_or(34), b.parse().unwrap_or(0));
        let next = if minor { format!("v1.{}.0", a + 1) } else { format!("v1.{a}.{}", b + 1) };
        self.previous = std::mem::replace(&mut self.now, next);
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
            Self::Scale | Self::Flip => shape.workers > 0,
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
                | Self::BarePod
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
            | Self::BarePod
            | Self::Budget
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
            | Self::Remediate => self.of_operators(random, setting),
        }
    }

    fn of_apis(self, random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
        let api = *random.pick(&[CLUSTER, CLUSTER, "management"]);
        let line = match self {
            Self::HalfOpen => format!("break streams {api}"),
            Self::StaleView => {
                let kind = random.pick(&KINDS);
                format!("break view {kind} for {}s", random.between(10, 120))
            }
            Self::Latency => {
                let delay = random.between(1, 8);
                format!("break latency {api} {delay}s for {}s", random.between(30, 300))
            }
            Self::Rejection => {
                let code = random.pick(&[409, 429, 500, 503]);
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
                vec![
                    format!("break clock {process} {seconds}s {way}"),
                    format!("at {time}s mend clock {process}"),
                ]
            }
            Self::Repeat => vec![format!("repeat {}", setting.machine)],
            _ if random.chance(1, 2) => vec![format!("kill {process}")],
            _ => vec![format!("kill {process} for {}s", random.between(5, 120))],
        }
    }

    fn of_operators(self, random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
        let machine = setting.machine.clone();
        let update = format!("nodeupdate/{machine}-1");
        let time = random.between(1, 15);
        match self {
            Self::Cordon => vec![
                format!("change {CLUSTER}:node/{machine} spec.unschedulable true"),
                format!("at {time}m change {CLUSTER}:node/{machine} spec.unschedulable -"),
            ],
            Self::BarePod => bare_pod(random, &machine),
            Self::Budget => {
                let budget = format!("{CLUSTER}:poddisruptionbudget/web spec.maxUnavailable");
                vec![format!("change {budget} 0"), format!("at {time}m change {budget} 2")]
            }
            Self::Scale => {
                let count = setting.shape.workers;
                let other = if random.chance(1, 2) { count + 1 } else { count.max(2) - 1 };
                let replicas = format!("change md/{DEPLOYMENT} spec.replicas");
                vec![format!("{replicas} {other}"), format!("at {time}m {replicas} {count}")]
            }
            Self::DeleteMachine => vec![format!("delete machine/{machine}")],
            Self::DeleteUpdate => vec![format!("delete {update}")],
            Self::Abort => vec![
                format!("change {update} spec.stage Abort"),
                format!(
                    "at {time}m change machine/{machine} \
                     metadata.annotations.\"refit.dev/retry\" {machine}-1"
                ),
            ],
            Self::GiveUp => {
                let mut lines = vec![format!("change {update} spec.stage Abort")];
                std::mem::swap(&mut setting.version.now, &mut setting.version.previous);
                lines.push(format!("wait {}s", random.between(1, 20)));
                lines.extend(setting.shape.request(&setting.version.now));
                lines
            }
            Self::Cancel => vec![cancel(&machine)],
            Self::Forgo => {
                let mut lines = vec![
                    format!("break host {machine} step preflight times 50"),
                    format!("wait {}m", random.between(5, 25)),
                    cancel(&machine),
                    format!("mend host {machine}"),
                    "wait 20m".to_owned(),
                ];
                setting.version.advance(true);
                lines.extend(setting.shape.request(&setting.version.now));
                lines
            }
            Self::Flip => flip(random, setting),
            Self::Default => {
                let mut lines = vec![format!("wait cluster/{CLUSTER} updated 1h")];
                lines.extend(setting.shape.new_default());
                lines.push("wait 1m".to_owned());
                setting.version.advance(false);
                lines.extend(setting.shape.request(&setting.version.now));
                lines
            }
            Self::Upgrade => {
                setting.version.advance(random.chance(1, 2));
                setting.shape.request(&setting.version.now)
            }
            Self::Remediate => vec![format!(
                "change machine/{machine} metadata.annotations.\
                 \"cluster.x-k8s.io/remediate-machine\" \"\""
            )],
            _ => vec![
                format!("change cluster/{CLUSTER} spec.paused true"),
                format!("at {time}m change cluster/{CLUSTER} spec.paused -"),
            ],
        }
    }
}

/// Removes the annotation by which Cluster API remembers that it updates a Machine.
fn cancel(machine: &str) -> String {
    format!(
        "change machine/{machine} metadata.annotations.\
         \"in-place-updates.internal.cluster.x-k8s.io/update-in-progress\" -"
    )
}

fn flip(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let back = &setting.version.now;
    if random.chance(1, 2) {
        let target = format!("change md/{DEPLOYMENT} spec.template.spec.version");
        let (other, seconds) = (&setting.version.previous, random.between(1, 90));
        return vec![format!("{target} {other}"), format!("at {seconds}s {target} {back}")];
    }
    let mut other = setting.version.clone();
    other.advance(false);
    vec![
        format!("wait md/{DEPLOYMENT} phase=Staging 10m"),
        format!("change machine/$machine spec.version {}", other.now),
        format!("at {}s change machine/$machine spec.version {back}", random.between(1, 10)),
    ]
}

fn incident(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let outage = random.between(10, 170);
    let resumed = outage * random.between(5, 9) / 10;
    vec![
        format!("change cluster/{CLUSTER} spec.paused true"),
        format!("wait {}s", random.between(30, 150)),
        format!("break api {CLUSTER} for {outage}s"),
        "wait 1s".to_owned(),
        format!("break node {} for {}m", setting.shape.expendable(random), random.between(5, 30)),
        format!("wait {resumed}s"),
        format!("change cluster/{CLUSTER} spec.paused -"),
    ]
}

fn process(random: &mut Random, setting: &Setting<'_>) -> String {
    let standby = if setting.shape.standby { "standby" } else { "controller" };
    let agent = format!("agent {}", setting.machine);
    (*random.pick(&["controller", standby, "capi", &agent])).to_owned()
}

/// A pod that no controller would recreate, and the operator's answer: it may be evicted, stays, or
/// is deleted.
fn bare_pod(random: &mut Random, machine: &str) -> Vec<String> {
    let pod = format!(
        "apply to {CLUSTER} <<END\n{{apiVersion: v1, kind: Pod, \
         metadata: {{name: once, namespace: default}}, \
         spec: {{nodeName: {machine}, containers: [{{name: c, image: x}}]}}}}\nEND"
    );
    let time = random.between(1, 15);
    let answer = match random.between(0, 2) {
        0 => format!("delete {CLUSTER}:pod/once"),
        choice => format!(
            "change machine/{machine} metadata.annotations.\"refit.dev/drain-unreplicated\" {}",
            if choice == 1 { "Leave" } else { "Evict" }
        ),
    };
    vec![pod, format!("at {time}m {answer}")]
}
