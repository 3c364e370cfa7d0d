//! Simulates the rollout of a control plane to its end, with the decisions of Cluster API.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use refit_cluster_api::rollout::{
    control_plane::{
        ControlPlane, ControlPlaneMachine, Decision, PreflightFailure, ScaleDownReason, decide,
    },
    keys,
    simulate::{Act, Answer, Durations, Event, Span},
};

/// An upper bound for the steps of a rollout per machine.
const STEPS_PER_MACHINE: usize = 64;
/// Name of machines that the simulation creates; no valid Machine name.
const CREATED: &str = "\u{1}created";

/// How a rollout ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Every machine matches the desired state.
    Done,
    /// The hook lets this machine wait.
    Waits(String),
    /// Cluster API's preflight checks fail.
    Stuck(Vec<PreflightFailure>),
}

/// The result for the machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlPlaneRollout {
    /// How it ended.
    pub(super) end: End,
    /// Machines that were updated in place.
    pub(super) in_place: BTreeSet<String>,
    /// Existing machines that are deleted, with Cluster API's reason.
    pub(super) deleted: BTreeMap<String, ScaleDownReason>,
    /// How many machines were created.
    pub(super) created: i64,
    /// What was done to the machines, one after the other.
    pub(super) events: Vec<Event>,
}

/// Records what is done while time passes.
struct Clock<'a, D> {
    durations: &'a mut D,
    at: i64,
    events: Vec<Event>,
}

impl<D: Durations> Clock<'_, D> {
    fn record(&mut self, machine: &str, act: Act) {
        let asked = self.at;
        let span = match act {
            Act::Update => self.durations.update(machine, asked),
            Act::Create => {
                Span { start: asked, end: asked.saturating_add(self.durations.creation()) }
            }
            Act::Delete => Span { start: asked, end: asked },
        };
        let machine = Some(machine.to_owned()).filter(|name| !name.starts_with(CREATED));
        self.events.push(Event { machine, act, asked, span });
        self.at = span.end;
    }
}

/// Simulates a rollout to its end. Created machines are healthy; the health of others does not
/// change.
pub(super) fn run(
    plane: ControlPlane,
    answers: &BTreeMap<String, Answer>,
    durations: &mut impl Durations,
    now: Timestamp,
) -> ControlPlaneRollout {
    let mut clock = Clock { durations, at: 0, events: Vec::new() };
    let outcome = decided(plane, answers, &mut clock, now);
    ControlPlaneRollout { events: clock.events, ..outcome }
}

fn decided(
    mut plane: ControlPlane,
    answers: &BTreeMap<String, Answer>,
    clock: &mut Clock<'_, impl Durations>,
    now: Timestamp,
) -> ControlPlaneRollout {
    let mut outcome = ControlPlaneRollout {
        end: End::Done,
        in_place: BTreeSet::new(),
        deleted: BTreeMap::new(),
        created: 0,
        events: Vec::new(),
    };
    for _ in 0..STEPS_PER_MACHINE * (plane.machines.len() + 2) {
        match decide(&plane) {
            Decision::UpToDate => return outcome,
            Decision::ScaleUp(_) => {
                let machine = created(&plane, outcome.created, now);
                clock.record(&machine.name, Act::Create);
                plane.machines.push(machine);
                outcome.created += 1;
            }
            Decision::AskExtension(name) => match answers.get(&name) {
                Some(Answer::InPlace) => {
                    plane.can_update.insert(name, true);
                }
                Some(Answer::Wait) => {
                    outcome.end = End::Waits(name);
                    return outcome;
                }
                Some(Answer::Replace) | None => {
                    plane.can_update.insert(name, false);
                }
            },
            Decision::TriggerInPlace(name) => {
                finish(&mut plane, &name, true);
                clock.record(&name, Act::Update);
                outcome.in_place.insert(name);
            }
            // An update that is under way ends with its requested goal; then the machine is checked
            // again.
            Decision::CompleteTrigger(name) | Decision::WaitForUpdate(name) => {
                finish(&mut plane, &name, false);
                clock.record(&name, Act::Update);
            }
            Decision::ScaleDown(name, reason) => {
                plane.machines.retain(|machine| machine.name != name);
                clock.record(&name, Act::Delete);
                if !name.starts_with(CREATED) {
                    outcome.in_place.remove(&name);
                    outcome.deleted.insert(name, reason);
                }
            }
            Decision::Wait(failures) => {
                outcome.end = End::Stuck(failures);
                return outcome;
            }
        }
    }
    outcome.end = End::Stuck(Vec::new());
    outcome
}

fn finish(plane: &mut ControlPlane, name: &str, up_to_date: bool) {
    for machine in plane.machines.iter_mut().filter(|m| m.name == name) {
        machine.up_to_date |= up_to_date;
        machine.annotations.remove(keys::UPDATE_IN_PROGRESS);
        machine.annotations.remove(keys::PENDING_HOOKS);
    }
}

/// A new machine goes to the failure domain with the fewest machines.
fn created(plane: &ControlPlane, number: i64, now: Timestamp) -> ControlPlaneMachine {
    let failure_domain = plane
        .failure_domains
        .iter()
        .min_by_key(|domain| {
            let there =
                |machine: &&ControlPlaneMachine| machine.failure_domain.as_ref() == Some(*domain);
            plane.machines.iter().filter(there).count()
        })
        .cloned();
    let since = SignedDuration::from_secs(number.saturating_add(1));
    ControlPlaneMachine {
        name: format!("{CREATED}{number:06}"),
        created_at: now.saturating_add(since).unwrap_or(now),
        failure_domain,
        up_to_date: true,
        has_node: true,
        ..ControlPlaneMachine::default()
    }
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::rollout::{control_plane::Component, predict, simulate::Timeless};

    use super::*;

    fn plane(replicas: i64, max_surge: i64) -> ControlPlane {
        ControlPlane {
            replicas,
            max_surge,
            in_place_updates: true,
            managed_etcd: true,
            machines: (0..replicas)
                .map(|index| ControlPlaneMachine {
                    name: format!("m{index}"),
                    created_at: Timestamp::from_second(index).unwrap(),
                    has_node: true,
                    ..ControlPlaneMachine::default()
                })
                .collect(),
            ..ControlPlane::default()
        }
    }

    fn answers(answer: Answer) -> BTreeMap<String, Answer> {
        (0..5).map(|index| (format!("m{index}"), answer)).collect()
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn run(
        plane: ControlPlane,
        answers: &BTreeMap<String, Answer>,
        now: Timestamp,
    ) -> ControlPlaneRollout {
        super::run(plane, answers, &mut Timeless, now)
    }

    fn counts(outcome: &ControlPlaneRollout) -> (usize, i64, usize) {
        (outcome.in_place.len(), outcome.created, outcome.deleted.len())
    }

    #[test]
    fn a_healthy_control_plane_ends_as_predicted() {
        for (replicas, surge) in [(1, 1), (3, 0), (3, 1), (5, 0), (5, 1)] {
            let outcome = run(plane(replicas, surge), &answers(Answer::InPlace), now());
            let predicted = predict::control_plane(replicas, surge);
            let kept = i64::try_from(outcome.in_place.len()).unwrap();
            assert_eq!(kept, predicted.kept);
            assert_eq!(outcome.created, predicted.replaced);
            assert_eq!(outcome.end, End::Done);
        }
    }

    #[test]
    fn uncovered_machines_are_replaced_or_wait() {
        let replaced = run(plane(3, 0), &answers(Answer::Replace), now());
        assert_eq!(counts(&replaced), (0, 3, 3));
        let waits = run(plane(3, 0), &answers(Answer::Wait), now());
        assert_eq!(counts(&waits), (0, 0, 0));
        assert_eq!(waits.end, End::Waits("m0".into()));
        // A surge machine is created before any hook is called.
        let surged = run(plane(3, 1), &answers(Answer::Wait), now());
        assert_eq!(counts(&surged), (0, 1, 0));
    }

    #[test]
    fn the_machine_that_alone_is_unhealthy_is_deleted() {
        let mut sick = plane(3, 0);
        sick.machines[1].unhealthy = BTreeSet::from([Component::Scheduler]);
        let outcome = run(sick, &answers(Answer::InPlace), now());
        assert_eq!(outcome.deleted, [("m1".to_owned(), ScaleDownReason::FailsPreflight)].into());
        assert_eq!(counts(&outcome), (2, 1, 1));
    }

    #[test]
    fn one_machine_follows_the_other_after_the_surge() {
        use Act::{Create, Delete, Update};
        struct Hundred;
        impl Durations for Hundred {
            fn update(&mut self, _machine: &str, asked: i64) -> Span {
                Span { start: asked, end: asked + 100 }
            }
            fn creation(&self) -> i64 {
                600
            }
        }
        let outcome = super::run(plane(3, 1), &answers(Answer::InPlace), &mut Hundred, now());
        let times = outcome.events.iter().map(|event| {
            (event.machine.as_deref().unwrap_or("new"), event.act, event.asked, event.span.end)
        });
        assert_eq!(
            times.collect::<Vec<_>>(),
            [
                ("new", Create, 0, 600),
                ("m0", Update, 600, 700),
                ("m1", Update, 700, 800),
                ("m2", Delete, 800, 800),
            ]
        );
    }

    #[test]
    fn two_unhealthy_machines_stop_everything() {
        let mut sick = plane(3, 0);
        for index in [1, 2] {
            sick.machines[index].unhealthy = BTreeSet::from([Component::Scheduler]);
        }
        let outcome = run(sick, &answers(Answer::InPlace), now());
        assert_eq!(counts(&outcome), (0, 0, 0));
        assert!(matches!(outcome.end, End::Stuck(failures) if failures.len() == 2));
    }
}
