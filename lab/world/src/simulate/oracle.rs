//! Judges waits while a simulation runs: whatever waits has a reason, and its end comes when what
//! the reason names has come.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use jiff::{SignedDuration, Timestamp};
use lab_simhost::kubelet::is_ready;
use refit_core::report::{Reason, RefusalReason};
use refit_kinds::{
    json::{label, name, text},
    refit::Phase,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::Display;

use crate::{
    script::{look::blockers, session::Session},
    world::{
        Actor, World, lock,
        status::{is_final, phase},
    },
};

/// How long a wait may have no reason.
const SILENT: SignedDuration = SignedDuration::from_secs(90);
/// How long the host may be at work on one step: longer than the longest timeout of a step.
const AT_WORK: SignedDuration = SignedDuration::from_mins(65);
/// How long a wait may go on after its cause is gone: polls of the controller, the restart of an
/// agent, and the longest back-off of a watch.
const OUTLIVES: SignedDuration = SignedDuration::from_mins(5);
/// How long after a failure of an API or a process no wait is judged.
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
    /// The run itself failed.
    Stuck,
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
            _ => Self::Invariant8,
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
    /// Revision of each unfinished NodeUpdate, and since when it has it.
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
        let revision = text(update, "/metadata/resourceVersion");
        let since = self.unchanged.entry(name(update).to_owned());
        let since = since.or_insert_with(|| (revision.to_owned(), now));
        if since.0 != revision {
            *since = (revision.to_owned(), now);
        }
        let phase = phase(update);
        let limit = match phase {
            Phase::Staging | Phase::Upgrading | Phase::Disrupting | Phase::Stopping => AT_WORK,
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
    let Some(Reason::Update(reason)) = Reason::of(reason) else {
        // Drains have their own deadlines.
        return None;
    };
    let world = &session.world;
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
        RefusalReason::GroupUnavailable
        | RefusalReason::ControlPlaneBehind
        | RefusalReason::AgentTooOld
        | RefusalReason::HostSettingsUnreadable
        | RefusalReason::PodDisruptionBudget
        | RefusalReason::EvictionRefused
        | RefusalReason::NodeNotVerified
        | RefusalReason::OlderPlanRunning
        | RefusalReason::Paused
        | RefusalReason::NoGroup
        | RefusalReason::GroupNotReady
        | RefusalReason::ApiRefused
        | RefusalReason::Drain => None,
    }
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

/// Whether the control plane member on a node is Ready, with all of its components.
fn is_healthy(world: &World, node: &str) -> bool {
    world.nodes().iter().filter(|((_, name), _)| name == node).all(|((cluster, _), object)| {
        let pods = lock(&world.inner.workloads)
            .get(cluster)
            .map(|workload| workload.mirror.list("pods"))
            .unwrap_or_default();
        let ill = pods.iter().any(|pod| {
            label(pod, "tier") == Some("control-plane")
                && text(pod, "/spec/nodeName") == node
                && !is_ready(pod)
        });
        is_ready(object) && !ill
    })
}
