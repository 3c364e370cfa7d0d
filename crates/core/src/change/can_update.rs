//! The response to CanUpdateMachine and CanUpdateMachineSet, from known facts.
//!
//! The controller uses it to serve the hooks, and `refit plan` uses it to predict the response.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    refit::{NodeName, Phase},
    version::{Hop, KubernetesVersion, StatedVersion},
};

use super::{
    configuration::{ConfigurationRules, ConfigurationUpdater},
    cover::{Coverage, Updater, cover},
    not_ready::{NotReady, Unfinished},
    objects::{Level, Objects, Part},
    policy::Policy,
    provider::{Provider, provider_unknown},
    verdict::{Verdict, verdict},
};
use crate::{group::Exception, report::Refusal, task::roll_back::is_patch};

/// What a verdict depends on, in addition to the two sides of the request.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Policy from the annotations of the live owner and Cluster.
    pub policy: Policy,
    /// The Machines whose hosts would be updated.
    pub hosts: Vec<Host>,
    /// How many of several hosts may have no agent that reports: as many as the group may have
    /// down. Their updates wait for their agents; those of the others need not.
    pub tolerated: usize,
    /// The other Machines of the control plane, which is updated one Machine at a time. Empty for
    /// workers: the slots of their UpdateGroup limit them.
    pub peers: Vec<Peer>,
    /// The Machines of the control plane that must be updated before these workers. Empty for a
    /// control plane.
    pub control_plane: Vec<ControlPlaneMachine>,
    /// The Updaters for these Machines that operators have added.
    pub updaters: Vec<Updater>,
    /// What the configuration of hosts may claim, after them.
    pub configuration: ConfigurationKnown,
    /// Whether the provider accepts what Updaters claim of infrastructure machines.
    pub provider: Provider,
    /// For workers of a control plane without Machines, as hosted and managed ones are: the version
    /// that the API server reports.
    pub api_server: Option<StatedVersion>,
    /// A task rolls workers back: their version may be lower.
    pub rolls_back: bool,
}

/// What is known of what the configuration of hosts may claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ConfigurationKnown {
    /// No host gets any: a task only brings machines to a version.
    #[default]
    Nothing,
    /// The rules.
    Rules(ConfigurationRules),
    /// Which NodeDisruptionPolicy applies is not known, and so how a change disturbs the machines.
    Unknown(Refusal),
}

impl ConfigurationKnown {
    fn updater(&self) -> Option<Updater> {
        match self {
            Self::Rules(rules) => Some(Updater::Configuration(ConfigurationUpdater {
                rules: rules.clone(),
                ..ConfigurationUpdater::default()
            })),
            Self::Nothing | Self::Unknown(_) => None,
        }
    }

    /// The refusal if the missing policy leaves a KubeadmConfig uncovered.
    fn unknown(&self, coverage: &Coverage) -> Option<Refusal> {
        match self {
            Self::Unknown(refusal) => {
                let mut uncovered = coverage.uncovered.iter();
                uncovered.any(|one| one.part == Part::Bootstrap).then(|| refusal.clone())
            }
            Self::Nothing | Self::Rules(_) => None,
        }
    }
}

/// A Machine whose host would be updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name of the Machine.
    pub machine: String,
    /// The Machine is being deleted: its host gets no more work.
    pub deleting: bool,
    /// State of its agent's report.
    pub report: HostReport,
    /// The version that its kubelet reports.
    pub kubelet: StatedVersion,
    /// Unfinished work on it.
    pub unfinished: Option<Unfinished>,
    /// Its last update has failed after kubeadm had begun to upgrade the control plane there.
    pub half_upgraded: bool,
    /// Whether an operator holds it, or leaves it out of the rollout.
    pub exception: Option<Exception>,
}

/// State of the report of a host's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostReport {
    /// The agent reported recently.
    Fresh,
    /// The agent never reported, or its last report arrived too long ago; or in the future: the clock
    /// was set back since, and an agent that is gone would not be noticed.
    Silent {
        /// The Node.
        node: NodeName,
    },
    /// The Machine has no Node yet.
    NoNode,
    /// The workload cluster's HostPlans are not known yet.
    Unknown {
        /// Why they are not known.
        reason: String,
    },
}

impl HostReport {
    /// State of the report of the agent on a Node, which arrived at `reported_at` by the clock of `now`.
    pub fn of(
        node: &NodeName,
        reported_at: Option<Timestamp>,
        stale_after: SignedDuration,
        now: Timestamp,
    ) -> Self {
        match reported_at {
            Some(at) if now.duration_since(at).abs() <= stale_after => Self::Fresh,
            Some(_) | None => Self::Silent { node: node.clone() },
        }
    }
}

/// Another Machine of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the Machine.
    pub machine: String,
    /// Unfinished work on it.
    pub unfinished: Option<Unfinished>,
}

/// A Machine of the control plane, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlaneMachine {
    /// Name of the Machine.
    pub machine: String,
    /// The version that its kubelet reports, or else the version in its spec.
    pub runs: StatedVersion,
}

impl ControlPlaneMachine {
    /// Whether its API server is too old for kubelets of the target's minor version. An unreadable
    /// version counts as too old.
    fn is_behind(&self, target: &KubernetesVersion) -> bool {
        match &self.runs {
            StatedVersion::Absent => false,
            StatedVersion::Version(version) => version.minor_below(target),
            StatedVersion::Unreadable(_) => true,
        }
    }
}

/// A verdict, and which part of the difference is covered.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What the updaters cover.
    pub coverage: Coverage,
    /// The verdict.
    pub verdict: Verdict,
}

/// Decides whether Machines can be brought from `current` to `desired` in place.
pub fn can_update(level: Level, current: &Objects, desired: &Objects, known: &Known) -> Judgement {
    let stated = desired.version(level);
    let returns = returns(&current.version(level), &stated, &known.hosts);
    // One updater brings machines to a version.
    let built_in = [Updater::Kubeadm];
    let by_provider = known.updaters.iter().any(Updater::brings_version);
    let built_in = built_in.iter().filter(|_| !by_provider);
    let configuration = known.configuration.updater();
    let updaters: Vec<&Updater> = built_in.chain(&known.updaters).chain(&configuration).collect();
    let lowers = !by_provider && lowers(level, (&current.version(level), &stated), known);
    let coverage = cover(level, current, desired, returns || lowers, &updaters);
    let coverage = match &known.provider {
        Provider::Refuses { why } => {
            coverage.refused(why, [&current.infrastructure, &desired.infrastructure])
        }
        Provider::NotAsked
        | Provider::Accepts { .. }
        | Provider::Forbidden { .. }
        | Provider::Unknown { .. } => coverage,
    };
    if let Some(machine) = deleting(level, &known.hosts) {
        return Judgement { coverage, verdict: Verdict::NotReady(NotReady::Deleting { machine }) };
    }
    if let Some(refusal) = known.configuration.unknown(&coverage) {
        let verdict = Verdict::NotReady(NotReady::Refused(refusal));
        return Judgement { coverage, verdict };
    }
    // A version that cannot be parsed is not covered, and the verdict reports it as uncovered.
    let unready = stated
        .version()
        .and_then(|target| {
            let skips = || kubelet_behind(level, &known.hosts, target);
            behind(&known.control_plane, target)
                .or_else(|| hosted_behind(known.api_server.as_ref(), target))
                .or_else(skips)
        })
        .or_else(|| {
            let needed = coverage.needs_agents();
            needed.then(|| no_fresh_report(&known.hosts, known.tolerated)).flatten()
        })
        .or_else(|| provider_unknown(&known.provider, &coverage));
    let busy = busy(&known.peers).or_else(|| returns.then(|| returning(&known.hosts)).flatten());
    let verdict = verdict(&known.policy, &coverage, busy, unready);
    // The way back disturbs nothing.
    let excepted = exception(level, &known.hosts).filter(|_| !returns || verdict.replaces());
    let excepted = excepted.map(|why| Verdict::NotReady(NotReady::Refused(why.into())));
    Judgement { coverage, verdict: excepted.unwrap_or(verdict) }
}

/// Whether the change only withdraws a request for a newer version: every host runs the desired one,
/// because nothing was changed there, or all of it was rolled back.
fn returns(from: &StatedVersion, to: &StatedVersion, hosts: &[Host]) -> bool {
    let (Some(from), Some(to)) = (from.version(), to.version()) else {
        return false;
    };
    let staying = || hosts.iter().filter(|host| !host.deleting);
    from.hop_to(to) == Hop::Downgrade
        && staying().next().is_some()
        && staying().all(|host| host.kubelet.is(to) && !host.half_upgraded)
}

/// Whether a task rolls workers back to a version that their hosts can be brought to.
fn lowers(level: Level, (from, to): (&StatedVersion, &StatedVersion), known: &Known) -> bool {
    let is_of_workers = match level {
        Level::MachineSet => true,
        Level::Machine => false,
    };
    let is_patch = match (from.version(), to.version()) {
        (Some(from), Some(to)) => is_patch(from, to),
        (_, None) | (None, _) => false,
    };
    known.rolls_back && is_of_workers && is_patch
}

/// The Machine that must have ended its work before a request is withdrawn.
fn returning(hosts: &[Host]) -> Option<NotReady> {
    hosts.iter().find_map(|host| {
        let what = host.unfinished.clone()?;
        Some(NotReady::Returning { machine: host.machine.clone(), what })
    })
}

/// Unfinished work on a Machine, from its NodeUpdates and Cluster API's own marks.
pub fn unfinished<'a>(
    updates: impl IntoIterator<Item = (&'a str, Phase)>,
    marked: bool,
) -> Option<Unfinished> {
    let running = updates.into_iter().find(|(_, phase)| !phase.is_final());
    match running {
        Some((name, _)) => Some(Unfinished::NodeUpdate(name.to_owned())),
        None => marked.then_some(Unfinished::Marked),
    }
}

/// The control plane Machine that blocks workers. Kubelets must never be newer than their API
/// server, so the control plane is updated first.
pub fn behind(
    control_plane: &[ControlPlaneMachine],
    target: &KubernetesVersion,
) -> Option<NotReady> {
    let machine = control_plane.iter().find(|machine| machine.is_behind(target))?;
    Some(NotReady::ControlPlaneBehind {
        machine: machine.machine.clone(),
        runs: machine.runs.clone(),
        target: target.clone(),
    })
}

/// The refusal for workers whose API server is too old, or has no known version.
fn hosted_behind(
    api_server: Option<&StatedVersion>,
    target: &KubernetesVersion,
) -> Option<NotReady> {
    let runs = api_server?;
    let is_new_enough = runs.version().is_some_and(|version| !version.minor_below(target));
    (!is_new_enough)
        .then(|| NotReady::ApiServerBehind { runs: runs.clone(), target: target.clone() })
}

/// The Machine of a control plane whose kubelet cannot reach the target, although the version in its
/// spec could: its last update has not succeeded. A worker may skip minor versions.
fn kubelet_behind(level: Level, hosts: &[Host], target: &KubernetesVersion) -> Option<NotReady> {
    let hosts = match level {
        Level::Machine => hosts,
        Level::MachineSet => &[],
    };
    hosts.iter().find_map(|host| {
        let runs = host.kubelet.version()?;
        matches!(runs.hop_to(target), Hop::TooFar { .. }).then(|| NotReady::KubeletBehind {
            machine: host.machine.clone(),
            runs: runs.clone(),
            target: target.clone(),
        })
    })
}

/// The Machine of the request, if it is being deleted. Other Machines of a MachineSet may be
/// deleted meanwhile.
fn deleting(level: Level, hosts: &[Host]) -> Option<String> {
    match level {
        Level::Machine => hosts.iter().find(|host| host.deleting).map(|host| host.machine.clone()),
        Level::MachineSet => None,
    }
}

/// Why the Machine of the request does not begin, whatever would become of it: the policy could let Cluster API
/// delete it. Those of a MachineSet wait with their NodeUpdates.
fn exception(level: Level, hosts: &[Host]) -> Option<Exception> {
    match level {
        Level::Machine => hosts.iter().find_map(|host| host.exception.clone()),
        Level::MachineSet => None,
    }
}

fn busy(peers: &[Peer]) -> Option<NotReady> {
    peers.iter().find_map(|peer| {
        let what = peer.unfinished.clone()?;
        Some(NotReady::AnotherMachine { machine: peer.machine.clone(), what })
    })
}

/// The refusal if too many hosts have no agent that reports. At least one must have: otherwise
/// Cluster API would pass its point of no return for nothing.
fn no_fresh_report(hosts: &[Host], tolerated: usize) -> Option<NotReady> {
    let staying = || hosts.iter().filter(|host| !host.deleting);
    let nodes: Vec<String> = staying()
        .filter_map(|Host { machine, report, .. }| match report {
            HostReport::Fresh => None,
            HostReport::Silent { node } => Some(format!("Node {node}")),
            HostReport::NoNode => Some(format!("Machine {machine} (it has no Node)")),
            HostReport::Unknown { reason } => Some(format!("Machine {machine} ({reason})")),
        })
        .collect();
    let any_fresh = nodes.len() < staying().count();
    let too_many = !nodes.is_empty() && (nodes.len() > tolerated || !any_fresh);
    too_many.then_some(NotReady::NoFreshReport { nodes })
}

#[cfg(test)]
#[path = "can_update_tests.rs"]
mod tests;
