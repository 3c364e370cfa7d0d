//! One group as a prediction sees it: its owner before and after the change, and related facts.

use refit_cluster_api::{kinds::annotations_show_update, rollout::simulate::Answer};
use refit_core::{
    change::{
        Coverage, Level, Policy, PolicyDefaults, Question, Verdict, can_update,
        can_update::{ConfigurationKnown, Host, HostReport, Judgement, Known, unfinished},
        cover::Claimed,
        machine_kind,
        not_ready::Unfinished,
        policy,
    },
    group::Member,
    node::{Weight, awaits_request, newest_upgrade},
    report::Refusal,
};
use refit_kinds::{
    json::{annotations, controller, is_deleting, label, name, namespace, text},
    keys,
    refit::{Disruption, NodeUpdate, Owner, Phase, Role},
    version::SkewError,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    input::{Hosts, Input},
    outcome::{Blocked, Cause, CauseReason, Counts, GroupPrediction, PathLine, PredictedOutcome},
    preflight::{Refused, refused},
    reach::{GroupRef, Reach, Read, notes, reach},
    sides::Sides,
    timeline::order::is_of_topology,
    unreached::Unreached,
};

/// Reason of a blocker: another machine of the group is not finished.
const ANOTHER_MACHINE: &str = "AnotherMachineUpdating";

/// One group as a prediction sees it.
pub(super) struct View<'a> {
    pub(super) input: &'a Input,
    pub(super) group: &'a GroupRef,
    /// The current owner; the desired owner if it does not exist yet.
    pub(super) now: &'a Value,
    /// The desired owner.
    pub(super) wanted: &'a Value,
    pub(super) cluster: Option<&'a Value>,
    pub(super) policy: Policy,
    pub(super) reached: Result<(), Unreached>,
    pub(super) plan: GroupPrediction,
    /// Why no HostSettings can be chosen: machines that are updated in place would wait for it.
    pub(super) unsettled: Option<Refusal>,
    lines: Vec<(Key, PathLine)>,
}

/// How a change disturbs each machine: what disturbs most counts. What is left as it is disturbs nothing.
fn disruption(coverage: &Coverage) -> Option<Disruption> {
    let disturbs =
        |claimed: &Claimed| if claimed.is_left { Disruption::None } else { claimed.disruption };
    coverage.claimed.iter().map(disturbs).max()
}

/// Identifies equal path lines of several machines.
type Key = (String, String, Option<String>);

/// Whether Cluster API calls Refit's hooks before it acts.
pub(super) enum Asked {
    /// It calls them, unless its own rules decide otherwise.
    Yes,
    /// It replaces machines without calling them.
    No,
    /// It takes no action.
    Nothing,
}

impl<'a> View<'a> {
    /// Builds the view of a group; `None` if neither side contains it.
    pub(super) fn of(input: &'a Input, group: &'a GroupRef) -> Option<Self> {
        let find =
            |objects: &'a super::Objects| objects.get(&group.kind, &group.namespace, &group.name);
        let wanted = find(&input.desired)?;
        let now = find(&input.current).unwrap_or(wanted);
        let cluster_name = match text(wanted, "/spec/clusterName") {
            "" => label(wanted, keys::CLUSTER_NAME)
                .or_else(|| owner_cluster(wanted))
                .unwrap_or_default(),
            name => name,
        };
        let cluster_name = if cluster_name.is_empty() {
            referring_cluster(input, group)
        } else {
            cluster_name.to_owned()
        };
        let cluster = input.desired.get("Cluster", &group.namespace, &cluster_name);
        let labels = input.namespaces.get(&group.namespace).cloned();
        let labels = labels
            .unwrap_or_else(|| Read::Unknown(format!("cannot read Namespace {}", group.namespace)));
        let facts =
            Reach::of(wanted, cluster, input.extensions.clone(), labels, input.managers.clone());
        let of_cluster = cluster.map(annotations).unwrap_or_default();
        let default =
            PolicyDefaults { on_uncovered: input.on_uncovered, ..PolicyDefaults::default() };
        let version = version_at(group);
        Some(Self {
            input,
            group,
            now,
            wanted,
            cluster,
            policy: policy(&annotations(wanted), &of_cluster, default),
            reached: reach(&facts),
            plan: GroupPrediction {
                namespace: group.namespace.clone(),
                kind: group.kind.clone(),
                name: group.name.clone(),
                cluster: cluster_name,
                turn: if group.owner() == Some(Owner::ControlPlane) { 1 } else { 2 },
                from: text(now, version).into(),
                to: text(wanted, version).into(),
                outcome: PredictedOutcome::Unchanged,
                machines: Counts::default(),
                disruption: None,
                paths: Vec::new(),
                causes: Vec::new(),
                blocked_by: Vec::new(),
                warnings: Vec::new(),
                drains: Vec::new(),
                notes: notes(&facts),
                after: None,
                seconds: None,
                timeline: None,
                questions: Vec::new(),
            },
            unsettled: None,
            lines: Vec::new(),
        })
    }

    /// `Kind/name`.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.group.kind, self.group.name)
    }

    /// Whether Cluster API calls Refit's hooks; if it takes no action, adds the blocker.
    pub(super) fn asked(&mut self) -> Asked {
        match self.reached.clone() {
            // Cluster API's own rules select the machines; the simulation applies them.
            Ok(()) | Err(Unreached::OnlySurge { .. } | Unreached::OnDelete { .. }) => Asked::Yes,
            Err(why) if why.replaces() => Asked::No,
            Err(why) => {
                self.block(why.reason(), self.title(), why.to_string());
                Asked::Nothing
            }
        }
    }

    /// Adds the cause why Cluster API does not call the hooks.
    pub(super) fn not_asked(&mut self) {
        if let Err(why) = &self.reached {
            let cause = Cause {
                reason: CauseReason::NotAsked,
                object: self.title(),
                message: why.to_string(),
                remedy: String::new(),
            };
            self.plan.causes.push(cause);
        }
    }

    pub(super) fn block(&mut self, reason: &str, object: String, message: String) {
        self.plan.blocked_by.push(Blocked { reason: reason.to_owned(), object, message });
    }

    pub(super) fn cause(
        &mut self,
        reason: CauseReason,
        object: String,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.plan.causes.push(Cause {
            reason,
            object,
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// The predicted response for two sides; adds the blocker if the machines must wait. `machine` is one of
    /// them, whose provider is asked if an Updater claims a change of its infrastructure.
    pub(super) fn answer(
        &mut self,
        level: Level,
        sides: &Sides,
        machine: Option<&Value>,
        known: Known,
    ) -> Answer {
        let (current, desired) = match sides {
            Sides::Known(both) => both.as_ref(),
            Sides::NotCloned => return Answer::Replace,
            Sides::Missing(template) => {
                let message = format!(
                    "{} refers to {template}, which does not exist: Cluster API waits for it",
                    self.title()
                );
                self.block("TemplateMissing", template.clone(), message);
                return Answer::Wait;
            }
        };
        // Unfinished updates block the whole group: look_for_unfinished reports them.
        let updaters = self.updaters(machine_kind(text(&current.infrastructure, "/kind")));
        let configuration = match self.configuration_rules() {
            Ok(rules) => ConfigurationKnown::Rules(rules),
            Err(refusal) => ConfigurationKnown::Unknown(refusal),
        };
        let policy = self.policy.clone();
        let mut known = Known { policy, peers: Vec::new(), updaters, configuration, ..known };
        let mut judgement = can_update(level, current, desired, &known);
        if let Some(change) = Question::of(level, &judgement.coverage, current) {
            known.provider = self.ask_provider(change, machine);
            judgement = can_update(level, current, desired, &known);
        }
        let Judgement { coverage, verdict } = judgement;
        self.add_lines(&coverage);
        self.plan.disruption = self.plan.disruption.max(disruption(&coverage));
        match &verdict {
            Verdict::Cover { .. } => Answer::InPlace,
            Verdict::Replace { .. } | Verdict::Disabled => Answer::Replace,
            Verdict::Preserve { .. } | Verdict::NotReady(_) => {
                self.block(verdict.reason(), self.title(), verdict.message());
                Answer::Wait
            }
        }
    }

    fn add_lines(&mut self, coverage: &Coverage) {
        let claimed = coverage.claimed.iter();
        let claimed =
            claimed.map(|one| (&one.difference, Some(&one.updater), one.is_left, one.line()));
        let uncovered = coverage.uncovered.iter().map(|d| (d, None, false, d.to_string()));
        for (difference, updater, left, text) in uncovered.chain(claimed) {
            let key = (difference.kind.clone(), difference.shown(), updater.cloned());
            let object = format!("{}/{}", difference.kind, difference.name);
            if let Some((_, line)) = self.lines.iter_mut().find(|(known, _)| *known == key) {
                line.objects.push(object);
                continue;
            }
            let updater = updater.cloned();
            let line = PathLine { line: text, updater, left, objects: vec![object] };
            self.lines.push((key, line));
        }
    }

    /// Whether a path is not covered by any updater.
    pub(super) fn has_uncovered(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.updater.is_none())
    }

    /// Adds the cause for an uncovered change that the policy lets Cluster API replace.
    pub(super) fn uncovered(&mut self) {
        let title = self.title();
        let message = format!(
            "no updater covers the change, and {} is Replace: Cluster API replaces the machines",
            keys::ON_UNCOVERED
        );
        let remedy = format!(
            "revert the change, or annotate {title} with {}=Preserve to stop instead",
            keys::ON_UNCOVERED
        );
        self.cause(CauseReason::Uncovered, title, message, remedy);
    }

    /// How many machines are imagined instead of those that exist.
    pub(super) fn imagined(&self) -> Option<i64> {
        self.input.simulate.filter(|_| self.group.owner() == Some(Owner::Deployment))
    }

    /// Facts about the hosts; `None` if the prediction does not use them.
    pub(super) fn hosts(&self) -> Option<&'a Read<Hosts>> {
        if self.imagined().is_some() {
            return None;
        }
        let key = (self.group.namespace.clone(), self.plan.cluster.clone());
        self.input.hosts.get(&key)
    }

    /// The hosts of machines, as the hooks see them; empty if no facts are available.
    pub(super) fn hosts_of(&self, machines: &[&Value]) -> Vec<Host> {
        let Some(Read::Known(hosts)) = self.hosts() else {
            return Vec::new();
        };
        let host = |machine: &&Value| Host {
            machine: name(machine).to_owned(),
            deleting: is_deleting(machine),
            report: match text(machine, "/status/nodeRef/name") {
                "" => HostReport::NoNode,
                node => hosts.report(node, self.input.now),
            },
            kubelet: text(machine, "/status/nodeInfo/kubeletVersion").into(),
            // look_for_unfinished reports it.
            unfinished: None,
            // The hooks know these; a prediction does not need them to name what blocks.
            half_upgraded: false,
            exception: None,
        };
        machines.iter().map(host).collect()
    }

    /// Adds blockers for unfinished updates of the machines.
    pub(super) fn look_for_unfinished(&mut self, machines: &[&Value]) {
        let mut found = Vec::new();
        for machine in machines {
            let belongs_here = |update: &&Value| {
                namespace(update) == self.group.namespace
                    && text(update, "/spec/machineRef/uid") == text(machine, "/metadata/uid")
            };
            let updates: Vec<&Value> =
                self.input.current.of_kind("NodeUpdate").filter(belongs_here).collect();
            let is_in_the_way = |update: &&&Value| {
                let status = serde_json::from_value(update["status"].clone());
                !status.is_ok_and(|status| awaits_request(&status))
            };
            let requests = updates.iter().filter(is_in_the_way);
            let requests = requests.map(|update| (name(update), phase(update)));
            let Some(what) = unfinished(requests, is_marked(machine)) else {
                continue;
            };
            let (reason, message) = match &what {
                Unfinished::NodeUpdate(update) => (
                    ANOTHER_MACHINE.to_owned(),
                    format!(
                        "NodeUpdate {update} of Machine {} has not finished; refit watch shows its \
                         progress",
                        name(machine)
                    ),
                ),
                // Its update is withdrawn.
                Unfinished::Marked
                    if text(machine, "/status/nodeInfo/kubeletVersion")
                        == self.plan.to.to_string() =>
                {
                    continue;
                }
                Unfinished::Marked => given_up(machine, &updates).unwrap_or_else(|| {
                    let text = "is still being updated in place; refit watch shows its progress";
                    (ANOTHER_MACHINE.to_owned(), format!("Machine {} {text}", name(machine)))
                }),
            };
            found.push((reason, format!("Machine/{}", name(machine)), message));
        }
        for (reason, object, message) in found {
            self.block(&reason, object, message);
        }
    }

    /// Adds blockers and notes for machines whose update would have to wait.
    /// Returns what they would have to wait for.
    pub(super) fn look_for_refusals(&mut self, machines: &[&Value]) -> Vec<Refused> {
        let hosts = match self.hosts() {
            None => return Vec::new(),
            Some(Read::Unknown(why)) => {
                let note = format!("agents, kubelets and PodDisruptionBudgets are unknown: {why}");
                self.plan.notes.push(note);
                return Vec::new();
            }
            Some(Read::Known(hosts)) => hosts,
        };
        let nodes_of_machines = || {
            let names = machines.iter();
            names.map(|machine| text(machine, "/status/nodeRef/name"))
        };
        for node in nodes_of_machines().filter(|node| hosts.alone.contains(*node)) {
            self.plan.notes.push(format!(
                "Node {node} is not drained: no other node can run its pods, so they stay while \
                 it restarts"
            ));
        }
        let found = refused(&self.input.current, self.group, &hosts.preflight, self.input.now);
        for one in &found {
            match one.weight {
                Weight::Waits => {
                    let machine = one.machines.first().cloned().unwrap_or_default();
                    let object = format!("Machine/{machine}");
                    self.block(one.refusal.reason(), object, one.message());
                }
                Weight::Passes | Weight::Overridden => self.plan.notes.push(one.message()),
            }
        }
        found
    }

    /// Adds blockers for kubelets that are too old for the API server of the desired version.
    pub(super) fn look_for_old_kubelets(&mut self) {
        let target = self.plan.to.version().cloned();
        let (Some(Read::Known(hosts)), Some(target)) = (self.hosts(), target) else {
            return;
        };
        for (node, kubelet) in &hosts.kubelets {
            let Some(kubelet) = kubelet.version() else {
                continue;
            };
            if let Err(error @ SkewError::KubeletTooOld { .. }) = kubelet.check_kubelet_of(&target)
            {
                let message = format!("Node {node}: {error}; upgrade its machine first");
                self.block("KubeletTooOld", format!("Node/{node}"), message);
            }
        }
    }

    /// Adds a blocker if a topology would revert the change.
    pub(super) fn look_for_topology(&mut self) {
        let owned = label(self.wanted, keys::TOPOLOGY_OWNED).is_some();
        let reverts = !self.cluster.is_some_and(|cluster| is_of_topology(cluster, &self.plan));
        if owned && reverts && self.plan.from != self.plan.to {
            let message = format!(
                "{} belongs to the topology of Cluster {}, which reverts the change; change \
                 spec.topology of the Cluster (cluster/{})",
                self.title(),
                self.plan.cluster,
                self.plan.cluster
            );
            self.block("ManagedByTopology", self.title(), message);
        }
    }

    /// The role of its Machines.
    pub(super) fn role(&self) -> Role {
        if self.group.owner() == Some(Owner::ControlPlane) {
            Role::ControlPlane
        } else {
            Role::Worker
        }
    }

    /// The prediction, with everything that follows from the findings.
    pub(super) fn conclude(mut self, waits_for_a_user: bool) -> GroupPrediction {
        self.plan.paths = self.lines.into_iter().map(|(_, line)| line).collect();
        let complaint = self.policy.complaint();
        if !complaint.is_empty() {
            self.plan.notes.push(complaint);
        }
        self.plan.notes.sort();
        self.plan.notes.dedup();
        self.plan.causes.sort();
        self.plan.causes.dedup();
        self.plan.blocked_by.sort();
        self.plan.blocked_by.dedup();
        self.plan.warnings.sort();
        let counts = self.plan.machines;
        self.plan.disruption = self.plan.disruption.filter(|_| counts.in_place > 0);
        self.plan.outcome = if counts.deleted > 0 {
            PredictedOutcome::Replaced
        } else if !self.plan.blocked_by.is_empty() {
            PredictedOutcome::Blocked
        } else if counts.new > 0 || waits_for_a_user {
            PredictedOutcome::Replaced
        } else if counts.in_place > 0 {
            PredictedOutcome::InPlace
        } else {
            PredictedOutcome::Unchanged
        };
        self.plan
    }
}

/// The field that holds a group's version.
pub(super) fn version_at(group: &GroupRef) -> &'static str {
    group.owner().unwrap_or(Owner::Deployment).version_path()
}

/// Why the last of a Machine's updates did not reach its goal, as its UpdateGroup shows it.
fn given_up(machine: &Value, updates: &[&Value]) -> Option<(String, String)> {
    let read = |update: &&Value| NodeUpdate::deserialize(*update).ok();
    let updates: Vec<NodeUpdate> = updates.iter().filter_map(read).collect();
    let newest = newest_upgrade(&updates, &text(machine, "/metadata/uid").into())?;
    let member = Member {
        machine: name(machine),
        in_progress: true,
        is_behind: false,
        is_withdrawn: false,
        node_update: newest.metadata.name.as_deref()?,
        status: newest.status.as_ref()?,
    };
    member.given_up().map(|(reason, message)| (reason.to_owned(), message))
}

/// Phase of a NodeUpdate; `Pending` before its controller has seen it.
fn phase(update: &Value) -> Phase {
    Phase::deserialize(&update["status"]["phase"]).unwrap_or_default()
}

/// Whether a Machine has Cluster API's own marks of an in-place update.
pub(super) fn is_marked(machine: &Value) -> bool {
    annotations_show_update(&annotations(machine))
}

/// The Cluster that owns an object.
fn owner_cluster(object: &Value) -> Option<&str> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["kind"] == "Cluster")?;
    owner["name"].as_str()
}

/// The Cluster that references a control plane: manifests may lack the reverse reference.
fn referring_cluster(input: &Input, group: &GroupRef) -> String {
    let refers = |cluster: &&Value| {
        namespace(cluster) == group.namespace
            && text(cluster, "/spec/controlPlaneRef/kind") == group.kind
            && text(cluster, "/spec/controlPlaneRef/name") == group.name
    };
    let found = input.desired.of_kind("Cluster").find(refers);
    found.map(name).unwrap_or_default().to_owned()
}

/// Machines whose controller owner is this object.
pub(super) fn controlled<'a>(
    objects: &'a super::Objects,
    of: &'a str,
    owner: (&'a str, &'a str, &'a str),
) -> Vec<&'a Value> {
    objects
        .of_kind(of)
        .filter(|object| namespace(object) == owner.0)
        .filter(|object| controller(object) == Some((owner.1, owner.2)))
        .collect()
}
