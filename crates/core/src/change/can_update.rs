//! The response to CanUpdateMachine and CanUpdateMachineSet, from known facts.
//!
//! The controller uses it to serve the hooks, and `refit plan` uses it to predict the response.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    refit::{NodeName, Phase},
    version::{Hop, KubernetesVersion, StatedVersion},
};

use super::{
    cover::{Coverage, Updater, cover},
    not_ready::{NotReady, Unfinished},
    objects::{Level, Objects},
    policy::Policy,
    provider::{Provider, provider_unknown},
    verdict::{Verdict, verdict},
};
use crate::{group::Exception, task::roll_back::is_patch};

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
    /// The Updaters for these Machines, after those that are built in.
    pub updaters: Vec<Updater>,
    /// Whether the provider accepts what Updaters claim of infrastructure machines.
    pub provider: Provider,
    /// For workers of a control plane without Machines, as hosted and managed ones are: the version
    /// that the API server reports.
    pub api_server: Option<StatedVersion>,
    /// A task rolls workers back: their version may be lower.
    pub rolls_back: bool,
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
    /// The agent never reported, or its last report is too old; or it is from the future, when the
    /// host's clock is that far ahead and an agent that is gone would not be noticed.
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
    /// State of the report of the agent on a Node.
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
    let updaters: Vec<&Updater> = built_in.chain(&known.updaters).collect();
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
    let excepted = excepted.map(|why| Verdict::NotReady(NotReady::Excepted(why.into())));
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
mod tests {
    use refit_kinds::refit::ExceptionRule;
    use serde_json::json;

    use super::*;
    use crate::change::{claim::Claim, patch::Patch, policy::OnUncovered};

    fn side(version: &str) -> Objects {
        Objects {
            owner: json!({"kind": "Machine", "metadata": {"name": "m"},
                "spec": {"version": version, "clusterName": "c"}}),
            infrastructure: json!({"kind": "DockerMachine", "spec": {}}),
            bootstrap: Some(json!({"kind": "KubeadmConfig", "spec": {}})),
        }
    }

    fn host(machine: &str, report: HostReport) -> Host {
        Host {
            machine: machine.into(),
            deleting: false,
            report,
            kubelet: StatedVersion::Absent,
            unfinished: None,
            half_upgraded: false,
            exception: None,
        }
    }

    #[test]
    fn a_held_or_skipped_machine_is_never_left_to_cluster_api() {
        let exception = |rule| Exception { machine: "m".into(), rule, reason: "disk".into() };
        let policies = [
            Policy::default(),
            Policy { disabled: true, ..Policy::default() },
            Policy { on_uncovered: OnUncovered::Replace, ..Policy::default() },
        ];
        for (rule, wanted) in [(ExceptionRule::Hold, "Held"), (ExceptionRule::Skip, "Skipped")] {
            for policy in &policies {
                let exception = Some(exception(rule));
                let hosts = vec![Host { exception, ..host("m", HostReport::Fresh) }];
                let known = Known { policy: policy.clone(), hosts, ..Known::default() };
                assert_eq!(reason(&known), wanted, "{policy:?}");
                let odd = can_update(Level::Machine, &side("v1.34.2"), &side("x"), &known);
                assert_eq!(odd.verdict.reason(), wanted, "{policy:?}");
                assert!(odd.verdict.message().contains("refit release m"));
                let set = can_update(Level::MachineSet, &side("v1.34.2"), &side("x"), &known);
                assert_ne!(set.verdict.reason(), wanted, "{policy:?}");
            }
        }
    }

    #[test]
    fn the_request_for_a_held_machine_can_be_withdrawn() {
        let exception =
            Exception { machine: "m".into(), rule: ExceptionRule::Hold, reason: "disk".into() };
        let back = |policy| {
            let kubelet = "v1.34.2".into();
            let exception = Some(exception.clone());
            let hosts = vec![Host { kubelet, exception, ..host("m", HostReport::Fresh) }];
            let known = Known { policy, hosts, ..Known::default() };
            can_update(Level::Machine, &side("v1.35.0"), &side("v1.34.2"), &known).verdict.reason()
        };
        assert_eq!(back(Policy::default()), "Covered");
        assert_eq!(back(Policy { disabled: true, ..Policy::default() }), "Held");
    }

    fn silent(node: &str) -> HostReport {
        HostReport::Silent { node: node.into() }
    }

    fn peer(machine: &str, unfinished: Option<Unfinished>) -> Peer {
        Peer { machine: machine.into(), unfinished }
    }

    fn server(observed: &str, spec: &str) -> ControlPlaneMachine {
        let runs = StatedVersion::from(observed).or(spec.into());
        ControlPlaneMachine { machine: "cp".into(), runs }
    }

    fn reason(known: &Known) -> &'static str {
        can_update(Level::Machine, &side("v1.34.2"), &side("v1.35.0"), known).verdict.reason()
    }

    #[test]
    fn the_table_of_answers() {
        let fresh = || vec![host("m", HostReport::Fresh)];
        let running = || peer("p", Some(Unfinished::NodeUpdate("p-1".into())));
        let table = [
            (Known { hosts: fresh(), ..Known::default() }, "Covered"),
            (Known { hosts: vec![host("m", silent("n"))], ..Known::default() }, "NoFreshReport"),
            (
                Known {
                    hosts: vec![Host { deleting: true, ..host("m", silent("n")) }],
                    policy: Policy { disabled: true, ..Policy::default() },
                    ..Known::default()
                },
                "Deleting",
            ),
            (Known { peers: vec![peer("p", None)], ..Known::default() }, "Covered"),
            (
                Known { peers: vec![peer("p", None), running()], ..Known::default() },
                "AnotherMachineUpdating",
            ),
            (
                Known {
                    hosts: vec![Host { kubelet: "v1.33.9".into(), ..host("m", HostReport::Fresh) }],
                    ..Known::default()
                },
                "KubeletBehind",
            ),
            (
                Known {
                    peers: vec![running()],
                    hosts: vec![host("m", silent("n"))],
                    ..Known::default()
                },
                "AnotherMachineUpdating",
            ),
            (
                Known {
                    control_plane: vec![server("v1.34.2", "v1.35.0")],
                    hosts: vec![host("m", silent("n"))],
                    ..Known::default()
                },
                "ControlPlaneBehind",
            ),
            (
                Known { control_plane: vec![server("v1.35.0", "v1.35.0")], ..Known::default() },
                "Covered",
            ),
        ];
        for (known, wanted) in table {
            assert_eq!(reason(&known), wanted, "{known:?}");
        }
    }

    /// A MachineSet of this version, with its templates.
    fn set(version: &str) -> Objects {
        let template = |spec: serde_json::Value| json!({"template": {"spec": spec}});
        Objects {
            owner: json!({"kind": "MachineSet", "metadata": {"name": "s"},
                "spec": template(json!({"version": version, "clusterName": "c"}))}),
            infrastructure: json!({"kind": "DockerMachineTemplate", "spec": template(json!({}))}),
            bootstrap: Some(json!({"kind": "KubeadmConfigTemplate", "spec": template(json!({}))})),
        }
    }

    #[test]
    fn a_task_rolls_workers_back_to_a_patch_release() {
        let known = |rolls_back| Known {
            hosts: vec![Host { kubelet: "v1.34.9".into(), ..host("m", HostReport::Fresh) }],
            rolls_back,
            ..Known::default()
        };
        let set_back = |from: &str, to: &str, known: &Known| {
            can_update(Level::MachineSet, &set(from), &set(to), known).verdict.reason()
        };
        assert_eq!(set_back("v1.34.9", "v1.34.2", &known(true)), "Covered");
        assert_eq!(set_back("v1.34.9", "v1.34.2", &known(false)), "UncoveredPreserve");
        assert_eq!(set_back("v1.35.0", "v1.34.2", &known(true)), "UncoveredPreserve");
        let by_provider =
            Known { updaters: vec![crate::change::testing::provided("nodes", &[])], ..known(true) };
        assert_eq!(set_back("v1.34.9", "v1.34.2", &by_provider), "UncoveredPreserve");
        let member = can_update(Level::Machine, &side("v1.34.9"), &side("v1.34.2"), &known(true));
        assert_eq!(member.verdict.reason(), "UncoveredPreserve", "a control plane never goes back");
    }

    /// An Updater that leaves the image of infrastructure machines.
    fn leaves_image() -> Updater {
        let claim = Claim {
            group: String::new(),
            kind: "DockerMachine".into(),
            paths: vec!["/spec/image".parse().unwrap()],
        };
        crate::change::testing::leaving("image", &[claim])
    }

    #[test]
    fn a_claimed_change_of_an_infrastructure_machine_is_covered_only_if_its_provider_accepts_it() {
        let with_image = |version: &str, image: &str| {
            let mut side = side(version);
            side.infrastructure["spec"] = json!({"image": image});
            side
        };
        let (current, desired) = (with_image("v1.34.2", "a"), with_image("v1.35.0", "b"));
        let judged = |provider: Provider| {
            let known = Known { updaters: vec![leaves_image()], provider, ..Known::default() };
            can_update(Level::Machine, &current, &desired, &known)
        };
        let unknown = Provider::Unknown { why: "no right".into() };
        let accepts = |image: &str| Provider::Accepts {
            patch: Patch::Merge(json!({"spec": {"image": image}})),
        };
        assert_eq!(judged(accepts("b")).verdict.reason(), "Covered");
        assert_eq!(judged(accepts("c")).verdict.reason(), "ProviderUnknown");
        assert_eq!(judged(Provider::NotAsked).verdict.reason(), "ProviderUnknown");
        assert_eq!(judged(unknown).verdict.reason(), "ProviderUnknown");
        let refused = judged(Provider::Refuses { why: "spec is immutable".into() });
        assert_eq!(
            refused.verdict.uncovered(),
            [
                "DockerMachine/? spec.image: \"a\" -> \"b\" (the API server refuses it: spec is immutable)"
            ]
        );
        let secret = |side: &Objects| {
            let mut side = side.clone();
            side.infrastructure["spec"]["userData"] = json!("hunter2");
            side
        };
        let known = Known {
            updaters: vec![leaves_image()],
            provider: Provider::Refuses { why: "spec: Invalid value: {userData: hunter2}".into() },
            ..Known::default()
        };
        let hidden = can_update(Level::Machine, &secret(&current), &secret(&desired), &known);
        assert!(!hidden.verdict.message().contains("hunter2"), "{}", hidden.verdict.message());
        // A change that no one claims needs no answer of the provider.
        let known = Known::default();
        let plain = can_update(Level::Machine, &current, &desired, &known);
        assert_eq!(plain.verdict.reason(), "UncoveredPreserve");
    }

    #[test]
    fn every_host_without_a_report_is_named() {
        let hosts = [
            host("a", HostReport::Fresh),
            host("b", silent("node-b")),
            host("c", HostReport::NoNode),
            host("d", HostReport::Unknown { reason: "not known".into() }),
            Host { deleting: true, ..host("e", HostReport::NoNode) },
        ];
        let Some(NotReady::NoFreshReport { nodes }) = no_fresh_report(&hosts, 0) else {
            panic!("hosts are silent");
        };
        assert_eq!(nodes, ["Node node-b", "Machine c (it has no Node)", "Machine d (not known)"]);
    }

    #[test]
    fn a_group_tolerates_as_many_silent_hosts_as_it_may_have_down() {
        let refused = |fresh: usize, silent_hosts: usize, tolerated| {
            let fresh = (0..fresh).map(|n| host(&n.to_string(), HostReport::Fresh));
            let hosts: Vec<Host> =
                fresh.chain((0..silent_hosts).map(|_| host("s", silent("n")))).collect();
            no_fresh_report(&hosts, tolerated).is_some()
        };
        let table = [
            (9, 1, 0, true),
            (9, 1, 1, false),
            (8, 2, 1, true),
            (7, 3, 3, false),
            (0, 1, 1, true),
            (0, 0, 1, false),
        ];
        for (fresh, silent_hosts, tolerated, wanted) in table {
            let got = refused(fresh, silent_hosts, tolerated);
            assert_eq!(got, wanted, "{fresh} {silent_hosts} {tolerated}");
        }
    }

    #[test]
    fn an_unfinished_update_counts_before_cluster_apis_mark() {
        let named = |name: &str| Some(Unfinished::NodeUpdate(name.into()));
        let updates = [("m-1", Phase::Succeeded), ("m-2", Phase::Staging)];
        assert_eq!(unfinished(updates, true), named("m-2"));
        assert_eq!(unfinished(updates, false), named("m-2"));
        assert_eq!(unfinished([("m-1", Phase::Failed)], true), Some(Unfinished::Marked));
        assert_eq!(unfinished([("m-1", Phase::Failed)], false), None);
    }

    #[test]
    fn workers_of_a_hosted_control_plane_wait_for_the_version_of_its_api_server() {
        let (current, desired) = (side("v1.34.2"), side("v1.35.0"));
        for (runs, waits) in [
            (None, false),
            (Some("v1.35.0-eks-1"), false),
            (Some("v1.36.1"), false),
            (Some("v1.34.9"), true),
            (Some(""), true),
            (Some("rubbish"), true),
        ] {
            let api_server = runs.map(StatedVersion::from);
            let known = Known { api_server, ..Known::default() };
            let verdict = can_update(Level::Machine, &current, &desired, &known).verdict;
            assert_eq!(verdict.reason() == "ControlPlaneBehind", waits, "{runs:?}: {verdict:?}");
        }
    }

    #[test]
    fn an_older_control_plane_holds_workers_back() {
        let target: KubernetesVersion = "v1.35.0".parse().unwrap();
        let table = [
            ("v1.34.9", "v1.35.0", true),
            ("v1.35.0", "v1.34.2", false),
            ("v1.36.1", "", false),
            ("", "v1.34.2", true),
            ("", "v1.35.2", false),
            ("rubbish", "", true),
            ("", "", false),
        ];
        for (observed, spec, wanted) in table {
            let got = behind(&[server(observed, spec)], &target);
            assert_eq!(got.is_some(), wanted, "{observed:?} {spec:?}");
        }
    }

    #[test]
    fn a_report_is_fresh_for_a_quarter_of_an_hour() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let limit = SignedDuration::from_mins(15);
        assert_eq!(HostReport::of(&"n".into(), Some(at(1000)), limit, at(1900)), HostReport::Fresh);
        assert_eq!(HostReport::of(&"n".into(), Some(at(1000)), limit, at(1901)), silent("n"));
        assert_eq!(HostReport::of(&"n".into(), Some(at(1900)), limit, at(1000)), HostReport::Fresh);
        assert_eq!(HostReport::of(&"n".into(), Some(at(1901)), limit, at(1000)), silent("n"));
        assert_eq!(HostReport::of(&"n".into(), None, limit, at(0)), silent("n"));
    }
}
