//! Judges waits while a simulation runs: whatever waits has a reason, and its end comes when what
//! the reason names has come.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use refit_core::report::Reason;
use refit_kinds::{
    json::{name, text},
    refit::Phase,
};
use serde_json::Value;

use super::{
    cause::{cause_holds, memory},
    rule::{Problem, Rule},
};
use crate::{
    script::{
        look::{blockers, newest_update, running_step},
        session::Session,
    },
    world::status::{is_final, phase},
};

/// How long a wait may have no reason.
const SILENT: SignedDuration = SignedDuration::from_mins(1);
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

/// Name of a NodeUpdate, reason and object of a blocker.
type Wait = (String, String, String);

/// Judges the waits of a world.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(super) problems: Vec<Problem>,
    last_look: Option<Timestamp>,
    /// What each unfinished NodeUpdate does, and since when.
    unchanged: BTreeMap<String, (String, Timestamp)>,
    /// The NodeUpdates that have succeeded, by uid.
    succeeded: BTreeSet<String>,
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
        self.unproven(session);
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

    /// An update that has just succeeded although its machine does not have the memory that it was to get.
    fn unproven(&mut self, session: &Session) {
        let world = &session.world;
        let uid = |update: &Value| text(update, "/metadata/uid").to_owned();
        let succeeded = world.node_updates().into_iter();
        let succeeded = succeeded.filter(|update| phase(update) == Phase::Succeeded);
        // Also those that are not the newest: they may become that if another one is deleted.
        let new: BTreeSet<String> = succeeded
            .map(|update| uid(&update))
            .filter(|uid| self.succeeded.insert(uid.clone()))
            .collect();
        for machine in world.machines() {
            let Some(update) = newest_update(world, &machine) else { continue };
            let is_new = new.contains(&uid(&update));
            let parts = update.pointer("/spec/parts").and_then(Value::as_array);
            let by_updater = |part: &Value| {
                text(part, "/updater") == "memory" && text(part, "/action") == "Update"
            };
            if !is_new || !parts.into_iter().flatten().any(by_updater) {
                continue;
            }
            if let Some((has, wanted)) = memory(session, &machine)
                && has.as_ref() != Some(&wanted)
            {
                let has = has.unwrap_or_else(|| "other".to_owned());
                let text = format!(
                    "NodeUpdate {} succeeded, and its machine has {has} MiB of memory, not {wanted}",
                    name(&update)
                );
                self.add(session, Rule::UpdaterForgotten, &text);
            }
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        direct::{Call, Direct},
        manifests,
        script::{parse, run::Runner},
        simulate::{
            OUT_OF_REACH,
            plan::{MANIFESTS, Plan},
        },
        world::{self, Actor, World, WorldOptions},
    };

    /// Stands for the name of the updated machine.
    const MACHINE: &str = "edge-1-1";

    /// The rules that a NodeUpdate with this status breaks within some minutes. No controller runs, and all
    /// machines are healthy until these lines of a script run.
    fn broken_by(lines: &str, status: &Value, minutes: i64) -> Vec<Rule> {
        let plan = Plan::new(11, 0, &[]);
        let yaml = plan.shape.manifests();
        let objects = manifests::parse([(MANIFESTS, yaml.as_bytes())]).unwrap();
        let objects = objects.into_iter().map(|manifest| manifest.object).collect();
        world::runtime().unwrap().block_on(async {
            let world = World::new(WorldOptions::new(objects)).await.unwrap();
            let mut out = Vec::new();
            let mut runner = Runner {
                file: "test".to_owned(),
                directories: Vec::new(),
                out: &mut out,
                session: Some(Session::new(world)),
            };
            let script = "wait cluster/edge-1 ready 15m\nupdate edge-1-1 to v1.35.0\n\
                          wait nodeupdate/edge-1-1-1 status.phase=Staging 1m";
            for statement in parse::lines(script).unwrap() {
                assert!(runner.statement(&statement).await.is_ok(), "{}", statement.text);
            }
            let session = runner.session().unwrap();
            session.world.inner.dismiss(&Actor::Controller);
            session.world.inner.dismiss(&Actor::Capi);
            for statement in parse::lines(lines).unwrap() {
                assert!(runner.statement(&statement).await.is_ok(), "{}", statement.text);
            }
            let session = runner.session().unwrap();
            let real = session.names.real(MACHINE);
            let status: Value =
                serde_json::from_str(&status.to_string().replace(MACHINE, &real)).unwrap();
            let api = Direct::new(session.world.management().clone(), "test");
            let updates = session.world.node_updates();
            let path = format!(
                "/apis/refit.dev/v1alpha1/namespaces/default/nodeupdates/{}/status",
                name(&updates[0])
            );
            api.send(Call::merge(path, json!({"status": status}))).await.unwrap();
            session.oracle = Some(Oracle::default());
            session.impaired_until = session.world.now() - GRACE;
            runner.pass(SignedDuration::from_mins(minutes)).await.unwrap();
            let oracle = runner.session().unwrap().oracle.take().unwrap();
            runner.session = None;
            oracle.problems.into_iter().map(|problem| problem.rule).collect()
        })
    }

    fn waiting(blocked_by: &Value) -> Value {
        json!({"phase": "Waiting", "steps": [], "blockedBy": blocked_by})
    }

    fn blocked_by(reason: &str, object: &str) -> Value {
        waiting(&json!([{"reason": reason, "object": object, "message": "m",
                           "since": "2026-03-02T08:00:00Z"}]))
    }

    #[test]
    fn a_wait_of_over_a_minute_needs_a_reason() {
        assert_eq!(broken_by("", &waiting(&json!([])), 1), []);
        assert_eq!(broken_by("", &waiting(&json!([])), 2), [Rule::SilentWait]);
    }

    #[test]
    fn a_wait_must_end_minutes_after_its_cause() {
        let gone = blocked_by("NodeNotReady", MACHINE);
        assert_eq!(broken_by("", &gone, 4), []);
        assert_eq!(broken_by("", &gone, 6), [Rule::WaitOutlivesCause]);
    }

    /// Reasons whose cause holds for a node that does not run the goal yet.
    const BEHIND: [&str; 2] = ["NodeNotVerified", "ControlPlaneBehind"];

    #[test]
    fn a_cause_that_is_gone_is_seen_whatever_the_reason() {
        let judged = Reason::all().filter(|reason| !OUT_OF_REACH.contains(reason));
        for reason in judged {
            let gone =
                if BEHIND.contains(&reason) { vec![] } else { vec![Rule::WaitOutlivesCause] };
            // The machine itself has a slot.
            let object = if reason == "SlotBusy" { "another" } else { MACHINE };
            assert_eq!(broken_by("", &blocked_by(reason, object), 6), gone, "{reason}");
        }
    }

    #[test]
    fn a_cause_that_holds_is_no_problem() {
        for (lines, reason, object) in [
            ("change cluster/edge-1 spec.paused true", "Paused", "Cluster edge-1"),
            (
                "change edge-1:poddisruptionbudget/web spec.maxUnavailable 0",
                "PodDisruptionBudget",
                "default/web",
            ),
            ("break agent edge-1-1", "NoFreshReport", MACHINE),
            ("break requests edge-1 500 of nothing times 9", "ApiErrors", "a request"),
        ] {
            assert_eq!(broken_by(lines, &blocked_by(reason, object), 6), [], "{reason}");
        }
    }
}
