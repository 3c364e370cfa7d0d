//! Judges waits while a simulation runs: whatever waits has a reason, and its end comes when what
//! the reason names has come.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::is_ready;
use refit_core::{
    node::DrainReason,
    report::{Reason, RefusalReason},
};
use refit_kinds::{
    json::{annotation, label, name, namespace, text},
    keys,
    refit::Phase,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::Display;

use crate::{
    script::{
        look::{blockers, owners, running_step},
        session::Session,
    },
    world::{
        Actor, World, lock,
        status::{is_final, phase},
    },
};

/// How long a wait may have no reason.
const SILENT: SignedDuration = SignedDuration::from_secs(90);
/// How long the host may be at work on one step: longer than the longest timeout of a step.
const AT_WORK: SignedDuration = SignedDuration::from_mins(65);
/// How long a host whose turn it is may be silent: as long as its last report counts as fresh.
const NO_REPORT: SignedDuration = SignedDuration::from_mins(16);
/// How long a wait may go on after its cause is gone: polls of the controller, the restart of an
/// agent, and the longest back-off of a watch.
const OUTLIVES: SignedDuration = SignedDuration::from_mins(5);
/// Waits are not judged for this long after a failure of an API or a process.
const GRACE: SignedDuration = SignedDuration::from_mins(3);
/// Interval between two looks.
const INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// What a problem violates.
#[derive(
    Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    /// Too few others of a group are available.
    Invariant1,
    /// Two control plane members at once, or an unhealthy one.
    Invariant2,
    /// A machine is replaced unasked.
    Invariant3,
    /// Two unfinished NodeUpdates, one that starts twice, or a downgrade.
    Invariant4,
    /// A machine is forgotten.
    Invariant5,
    /// A cordon or label is left, or an admin's is overridden.
    Invariant6,
    /// A guard or a slot is left.
    Invariant7,
    /// A Machine behind its MachineSet has no update request.
    Invariant8,
    /// A replica without the Lease wrote as the leader.
    Fence,
    /// A wait has no reason.
    SilentWait,
    /// A wait goes on although what it waited for has come.
    WaitOutlivesCause,
    /// A wait that nothing will end.
    WaitWithoutEnd,
    /// An update was stopped, but no operator aborted it.
    StoppedUnasked,
    /// An update failed with a reason about which an operator can do nothing.
    FailedForGood,
    /// Cluster API requests an update, and no NodeUpdate is created for it.
    RequestRefused,
    /// A machine is not updated, although its turn has come.
    TurnNeverComes,
    /// A group stands still, and its UpdateGroup does not say so.
    NotShown,
    /// Code panicked.
    Panic,
    /// The run itself failed.
    RunFailed,
}

impl Rule {
    /// The rule of an invariant's number.
    pub(super) fn of_invariant(number: u8) -> Self {
        match number {
            1 => Self::Invariant1,
            2 => Self::Invariant2,
            3 => Self::Invariant3,
            4 => Self::Invariant4,
            5 => Self::Invariant5,
            6 => Self::Invariant6,
            7 => Self::Invariant7,
            8 => Self::Invariant8,
            _ => unreachable!("invariants have the numbers 1 to 8"),
        }
    }
}

/// What is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The violated rule.
    pub rule: Rule,
    /// The object, and what is wrong with it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// Name of a NodeUpdate, reason and object of a blocker.
type Wait = (String, String, String);

/// Judges the waits of a world.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(super) problems: Vec<Problem>,
    last_look: Option<Timestamp>,
    /// What each unfinished NodeUpdate does, and since when.
    unchanged: BTreeMap<String, (String, Timestamp)>,
    /// Since when the cause of a wait is gone.
    over: BTreeMap<Wait, Timestamp>,
}

impl Oracle {
    /// Looks at all waits. Call it often: it looks at most every five seconds.
    pub(crate) fn look(&mut self, session: &Session) {
        let now = session.world.now();
        if self.last_look.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            return;
        }
        self.last_look = Some(now);
        if now < session.impaired_until + GRACE {
            self.unchanged.clear();
            self.over.clear();
            return;
        }
        let mut updates = session.world.node_updates();
        updates.retain(|update| !is_final(update));
        let mut waits = BTreeSet::new();
        for update in &updates {
            self.silence(session, update, now);
            for blocker in blockers(update) {
                let reason = text(blocker, "/reason");
                if Reason::of(reason).is_none() {
                    let text = format!("NodeUpdate {} waits for unknown {reason}", name(update));
                    self.add(session, Rule::SilentWait, &text);
                }
                let object = text(blocker, "/object");
                let wait = (name(update).to_owned(), reason.to_owned(), object.to_owned());
                if cause_holds(session, update, reason, object) == Some(false) {
                    self.outlives(session, &wait, now);
                    waits.insert(wait);
                }
            }
        }
        self.over.retain(|wait, _| waits.contains(wait));
        let unfinished: BTreeSet<&str> = updates.iter().map(|update| name(update)).collect();
        self.unchanged.retain(|update, _| unfinished.contains(update.as_str()));
    }

    fn silence(&mut self, session: &Session, update: &Value, now: Timestamp) {
        let phase = phase(update);
        let does = format!("{phase:?} {} {}", update["status"]["steps"], update["status"]["drain"]);
        let since = self.unchanged.entry(name(update).to_owned());
        let since = since.or_insert_with(|| (does.clone(), now));
        if since.0 != does || blockers(update).next().is_some() {
            *since = (does, now);
        }
        let limit = match phase {
            _ if !running_step(update).is_empty() => AT_WORK,
            Phase::Staging | Phase::Upgrading | Phase::Disrupting | Phase::Stopping => NO_REPORT,
            Phase::Pending
            | Phase::Waiting
            | Phase::Draining
            | Phase::Verifying
            | Phase::Uncordoning
            | Phase::Succeeded
            | Phase::Failed
            | Phase::Stopped => SILENT,
        };
        let quiet = now.duration_since(since.1);
        if blockers(update).next().is_none() && quiet > limit {
            let text = format!(
                "NodeUpdate {} is in phase {phase:?} for {} s without a reason",
                name(update),
                quiet.as_secs()
            );
            self.add(session, Rule::SilentWait, &text);
        }
    }

    fn outlives(&mut self, session: &Session, wait: &Wait, now: Timestamp) {
        let since = *self.over.entry(wait.clone()).or_insert(now);
        if now.duration_since(since) > OUTLIVES {
            let (update, reason, object) = wait;
            let text = format!(
                "NodeUpdate {update} is blocked by {reason} {object}, which ended {} s ago",
                now.duration_since(since).as_secs()
            );
            self.add(session, Rule::WaitOutlivesCause, &text);
        }
    }

    fn add(&mut self, session: &Session, rule: Rule, text: &str) {
        // The first problem shows the cause.
        if self.problems.is_empty() {
            self.problems.push(Problem { rule, text: session.names.shown(text) });
        }
    }
}

/// Whether what a reason names is still so in the world; `None` if the world does not show it.
pub(super) fn cause_holds(
    session: &Session,
    update: &Value,
    reason: &str,
    object: &str,
) -> Option<bool> {
    let world = &session.world;
    let reason = match Reason::of(reason)? {
        Reason::Update(reason) => reason,
        Reason::Drain(DrainReason::VolumeAttached) => {
            return Some(is_in_workload(world, update, "volumeattachments.storage.k8s.io", object));
        }
        Reason::Drain(
            DrainReason::EvictionUnavailable
            | DrainReason::PodUnreplicated
            | DrainReason::PodLocalStorage
            | DrainReason::PodWaitCompleted
            | DrainReason::DrainRuleNotUnderstood
            | DrainReason::PodTerminating
            | DrainReason::PodCameBack,
        ) => return Some(is_in_workload(world, update, "pods", object)),
    };
    let machines = world.machines();
    let machine = |wanted: &str| machines.iter().find(|machine| name(machine) == wanted);
    let own = machine(text(update, "/spec/machineRef/name"));
    match reason {
        RefusalReason::NoFreshReport => Some(!agent_reports(session, object)),
        RefusalReason::NodeNotReady => {
            let node = own.and_then(|machine| world.node_of(machine))?;
            Some(!is_ready(&node))
        }
        RefusalReason::ControlPlaneUnhealthy => Some(!is_healthy(world, object)),
        RefusalReason::SlotBusy => Some(world.update_groups().iter().any(|group| {
            let slots = group["status"]["slots"].as_array();
            slots.into_iter().flatten().any(|slot| slot["machine"] == object)
        })),
        RefusalReason::OlderUpdateUnfinished => {
            let all = world.node_updates();
            Some(all.iter().any(|update| name(update) == object && !is_final(update)))
        }
        RefusalReason::MachineDeleting => {
            Some(machine(object).is_some_and(|m| m["metadata"]["deletionTimestamp"].is_string()))
        }
        RefusalReason::NoNode => {
            Some(machine(object).is_some_and(|machine| world.node_of(machine).is_none()))
        }
        RefusalReason::ApiUnreachable => {
            let apis = world.inner.apis.borrow();
            Some(apis.iter().any(|(key, up)| key.ends_with(&format!("/{object}")) && !up))
        }
        RefusalReason::EvictionRefused => Some(is_in_workload(world, update, "pods", object)),
        RefusalReason::Paused => Some(is_paused(world, own?)),
        RefusalReason::HostSettingsUnreadable => {
            let (_, owner) = object.rsplit_once(' ').unwrap_or_default();
            let owners = owners(world).into_iter().filter(|one| name(one) == owner);
            Some(owners.into_iter().any(|one| annotation(&one, keys::HOST_SETTINGS).is_some()))
        }
        // The world shows these only to the code that finds them.
        RefusalReason::GroupUnavailable
        | RefusalReason::ControlPlaneBehind
        | RefusalReason::AgentTooOld
        | RefusalReason::PodDisruptionBudget
        | RefusalReason::NodeNotVerified
        | RefusalReason::OlderPlanRunning
        | RefusalReason::NoGroup
        | RefusalReason::GroupNotReady
        | RefusalReason::ApiRefused
        | RefusalReason::Drain => None,
    }
}

/// Whether an object that a reason names as `namespace/name` or `name` is in the workload cluster.
fn is_in_workload(world: &World, update: &Value, resource: &str, object: &str) -> bool {
    let machine = text(update, "/spec/machineRef/name");
    let machines = world.machines();
    let Some(machine) = machines.iter().find(|one| name(one) == machine) else {
        return false;
    };
    let key = format!("{}/{}", namespace(machine), text(machine, "/spec/clusterName"));
    let (namespace, name) = object.split_once('/').unwrap_or(("", object));
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let server = world.workload(&key);
    server.is_some_and(|server| server.get_value(group, plural, namespace, name).is_some())
}

/// Whether an operator has paused a Machine or its Cluster.
fn is_paused(world: &World, machine: &Value) -> bool {
    let cluster = world.management().get_value(
        refit_cluster_api::kinds::CORE_GROUP,
        "clusters",
        namespace(machine),
        text(machine, "/spec/clusterName"),
    );
    let paused = |object: &Value| annotation(object, keys::PAUSED).is_some();
    paused(machine)
        || cluster.is_some_and(|cluster| cluster["spec"]["paused"] == true || paused(&cluster))
}

/// Whether the agent of a node runs and can reach its API.
fn agent_reports(session: &Session, node: &str) -> bool {
    let Some(agent) = session.world.agent(node) else {
        return false;
    };
    let runs = lock(&session.world.inner.processes).contains_key(&agent);
    let cut = session.cut.iter().any(|link| link.actor == agent);
    runs && !cut && !is_off(session, &agent)
}

/// Whether the host of an agent has no power.
pub(super) fn is_off(session: &Session, agent: &Actor) -> bool {
    let Actor::Agent(key) = agent else {
        return false;
    };
    let host = lock(&session.world.inner.hosts).get(key).cloned();
    host.is_none_or(|host| lock(&host.state).down_until.is_some())
}

/// Whether the control plane member on a node is Ready, with all of its components, and stays.
fn is_healthy(world: &World, node: &str) -> bool {
    let leaves = world.machines().iter().any(|machine| {
        let names = [name(machine), text(machine, "/status/nodeRef/name")];
        names.contains(&node) && machine["metadata"]["deletionTimestamp"].is_string()
    });
    let nodes = world.nodes();
    let found = nodes.iter().find(|((_, name), _)| name == node);
    !leaves
        && found.is_some_and(|((cluster, _), object)| {
            let workloads = lock(&world.inner.workloads);
            let pods = workloads.get(cluster).map(|workload| workload.mirror.list("pods"));
            let mut pods = pods.unwrap_or_default();
            pods.retain(|pod| {
                label(pod, "tier") == Some("control-plane") && text(pod, "/spec/nodeName") == node
            });
            is_ready(object) && !pods.is_empty() && pods.iter().all(|pod| is_ready(pod))
        })
}
