use proptest::prelude::*;
use refit_kinds::refit::{ClusterUpgrade, ClusterUpgradePlanSpec, ClusterUpgradeSpec, UpgradeTask};
use serde_json::json;

use super::*;

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(minute * 60).unwrap()
}

fn plan(spec: serde_json::Value) -> ClusterUpgradePlan {
    let mut spec = spec;
    spec["version"] = json!("v1.36.0");
    let spec: ClusterUpgradePlanSpec = serde_json::from_value(spec).unwrap();
    ClusterUpgradePlan::new("fleet", spec)
}

fn three_waves() -> serde_json::Value {
    json!({"waves": [
        {"name": "canary", "count": 1, "clusterSelector": {"matchLabels": {"canary": "yes"}}, "soakMinutes": 60},
        {"name": "some", "percent": 25},
        {"name": "all"},
    ]})
}

/// A fleet whose clusters are upgraded as a test requests.
struct Fleet {
    plan: ClusterUpgradePlan,
    clusters: Vec<(String, bool)>,
    members: Vec<Member>,
    busy: Vec<String>,
    others_under_way: usize,
    now: i64,
}

impl Fleet {
    /// Clusters `c0` to `cN`, of which the last one is a canary.
    fn new(spec: serde_json::Value, count: usize) -> Self {
        let clusters = (0..count).map(|at| (format!("c{at}"), at + 1 == count)).collect();
        Self {
            plan: plan(spec),
            clusters,
            members: Vec::new(),
            busy: Vec::new(),
            others_under_way: 0,
            now: 0,
        }
    }

    fn seen(&self) -> FleetSeen {
        let is_free = |name: &String| !self.members.iter().any(|one| one.cluster.1 == *name);
        let candidates = self.clusters.iter().filter(|(name, _)| is_free(name));
        let candidates = candidates.map(|(name, is_canary)| Candidate {
            cluster: ("n".into(), name.clone()),
            labels: BTreeMap::from([(
                "canary".into(),
                if *is_canary { "yes" } else { "no" }.into(),
            )]),
            is_busy: self.busy.contains(name),
        });
        FleetSeen {
            plan: Arc::new(self.plan.clone()),
            members: self.members.clone(),
            others_under_way: self.others_under_way,
            refused: None,
            candidates: Some(candidates.collect()),
            receivers: Receivers::new(),
            now: at(self.now),
        }
    }

    /// One look: what is requested becomes a member.
    fn look(&mut self) -> FleetDecision {
        let decision = decide_fleet(&self.seen());
        self.plan.status = Some(decision.status.clone());
        let wave = decision.status.waves.len().wrapping_sub(1);
        let requested = decision.requests.iter().cloned();
        self.members.extend(requested.map(|cluster| Member {
            cluster,
            wave,
            state: MemberState::Upgrading,
        }));
        self.now += 1;
        decision
    }

    fn end(&mut self, name: &str, state: MemberState) {
        let found = self.members.iter_mut().find(|member| member.cluster.1 == name);
        found.unwrap().state = state;
    }

    fn complete_all(&mut self) {
        let done = MemberState::Completed { at: at(self.now) };
        let under_way = self.members.iter_mut().filter(|one| one.state.ended().is_none());
        under_way.for_each(|member| member.state = done.clone());
    }
}

fn ready(decision: &FleetDecision) -> &str {
    &conditions::get(&decision.status.conditions, READY).unwrap().reason
}

fn names(decision: &FleetDecision) -> Vec<&str> {
    decision.requests.iter().map(|(_, name)| &**name).collect()
}

fn failed(cause: &str, minute: i64) -> MemberState {
    MemberState::Failed { cause: cause.into(), at: at(minute) }
}

#[test]
fn a_fleet_is_upgraded_wave_by_wave() {
    let mut fleet = Fleet::new(three_waves(), 9);
    let first = fleet.look();
    assert_eq!(names(&first), ["c8"], "the canary has its label");
    assert_eq!(first.status.wave, "canary (1 of 3)");
    assert_eq!(ready(&fleet.look()), "Progressing");
    fleet.complete_all();
    let soaks = fleet.look();
    assert_eq!(ready(&soaks), "Soaking");
    assert_eq!(soaks.again, Some(at(2 + 60)), "from the end of its last Cluster on");
    fleet.now = 62;
    let second = fleet.look();
    assert_eq!(names(&second), ["c0", "c1", "c2"], "25 % of 9, rounded up");
    fleet.complete_all();
    let third = fleet.look();
    assert_eq!(names(&third).len(), 5, "all that are left");
    fleet.complete_all();
    let done = fleet.look();
    assert_eq!((done.status.phase, ready(&done)), (PlanPhase::Completed, "Completed"));
    assert_eq!(done.status.counts, ClusterCounts { requested: 9, completed: 9, failed: 0 });
    fleet.clusters.push(("new".into(), false));
    assert!(fleet.look().requests.is_empty(), "it has ended");
}

#[test]
fn clusters_that_no_wave_takes_come_last() {
    let mut fleet = Fleet::new(json!({"waves": [{"name": "one", "count": 1}]}), 3);
    assert_eq!(names(&fleet.look()), ["c0"]);
    fleet.complete_all();
    let rest = fleet.look();
    assert_eq!((names(&rest), &*rest.status.wave), (vec!["c1", "c2"], "rest (2 of 2)"));
    fleet.complete_all();
    assert_eq!(ready(&fleet.look()), "Completed");
}

#[test]
fn a_fleet_without_clusters_is_completed() {
    let mut fleet = Fleet::new(three_waves(), 0);
    let done = fleet.look();
    assert_eq!(ready(&done), "Completed");
    assert!(done.status.waves.iter().all(|wave| wave.size == 0 && wave.ended.is_some()));
}

#[test]
fn no_more_clusters_are_upgraded_at_once_than_may_be() {
    let mut fleet = Fleet::new(json!({"clustersAtOnce": 2}), 5);
    assert_eq!(names(&fleet.look()), ["c0", "c1"]);
    assert!(fleet.look().requests.is_empty());
    fleet.end("c1", MemberState::Completed { at: at(5) });
    assert_eq!(names(&fleet.look()), ["c2"]);
}

#[test]
fn clusters_that_go_to_another_version_count_as_upgraded_at_once() {
    let mut fleet = Fleet::new(json!({"clustersAtOnce": 2}), 3);
    fleet.others_under_way = 1;
    assert_eq!(names(&fleet.look()), ["c0"]);
}

#[test]
fn a_cluster_that_does_not_go_on_keeps_no_other_one_waiting() {
    let spec =
        json!({"clustersAtOnce": 1, "stopAfterFailures": 2, "waves": [{"name": "a", "count": 1}]});
    let mut fleet = Fleet::new(spec, 2);
    fleet.look();
    fleet.end("c0", MemberState::Stuck { cause: "HostLost".into(), since: at(1) });
    let next = fleet.look();
    assert_eq!((names(&next), next.status.waves.len()), (vec!["c1"], 2));
    fleet.end("c0", MemberState::Upgrading);
    assert!(fleet.look().requests.is_empty());
}

#[test]
fn a_request_that_is_refused_is_shown_until_it_is_not() {
    let mut fleet = Fleet::new(json!({}), 2);
    let refused = || Some("forbidden".to_owned());
    let first = decide_fleet(&fleet.seen());
    fleet.plan.status = Some(first.status);
    let shown = decide_fleet(&FleetSeen { refused: refused(), ..fleet.seen() });
    assert_eq!((ready(&shown), &*shown.status.refused), ("Refused", "forbidden"));
    fleet.plan.status = Some(shown.status.clone());
    let again = decide_fleet(&FleetSeen { refused: refused(), ..fleet.seen() });
    assert_eq!((again.requests.len(), &again.status), (2, &shown.status), "nothing is written");
    fleet.look();
    let done = decide_fleet(&FleetSeen { refused: refused(), ..fleet.seen() });
    assert_eq!((ready(&done), &*done.status.refused), ("Progressing", ""));
}

#[test]
fn a_wave_whose_cluster_goes_on_again_has_not_ended() {
    let spec =
        json!({"stopAfterFailures": 2, "waves": [{"name": "a", "count": 1, "soakMinutes": 60}]});
    let mut fleet = Fleet::new(spec, 2);
    fleet.look();
    fleet.end("c0", MemberState::Stuck { cause: "HostLost".into(), since: at(1) });
    assert_eq!(ready(&fleet.look()), "Soaking");
    fleet.end("c0", MemberState::Upgrading);
    fleet.now = 100;
    let waits = fleet.look();
    assert_eq!((ready(&waits), waits.status.waves[0].ended.is_none()), ("Progressing", true));
    fleet.complete_all();
    assert_eq!(ready(&fleet.look()), "Soaking", "from its end on");
}

#[test]
fn waves_that_are_removed_midway_leave_no_cluster_out() {
    let mut fleet = Fleet::new(three_waves(), 9);
    fleet.look();
    fleet.complete_all();
    fleet.now = 100;
    fleet.look();
    fleet.complete_all();
    fleet.plan.spec.waves.clear();
    let rest = fleet.look();
    assert_eq!((rest.requests.len(), &*rest.status.wave), (5, "rest (3 of 3)"));
}

#[test]
fn a_fleet_stops_after_failures_and_goes_on_when_they_are_forgiven() {
    let mut fleet = Fleet::new(json!({"clustersAtOnce": 1, "stopAfterFailures": 1}), 3);
    fleet.look();
    fleet.end("c0", failed("NotBegunInTime", 5));
    let stopped = fleet.look();
    assert_eq!((stopped.status.phase, ready(&stopped)), (PlanPhase::Stopped, "TooManyFailures"));
    let clusters: Vec<&str> = stopped.status.clusters.iter().map(|one| &*one.cause).collect();
    assert_eq!(clusters, ["NotBegunInTime"]);
    fleet.plan.spec.failures_since = Some(Time(at(5)));
    assert_eq!(names(&fleet.look()), ["c1"], "the failed one has ended");
    fleet.end("c1", failed("NotBegunInTime", 6));
    assert_eq!(ready(&fleet.look()), "TooManyFailures");
    fleet.plan.spec.stop_after_failures = 0;
    assert_eq!(names(&fleet.look()), ["c2"]);
    fleet.complete_all();
    let done = fleet.look();
    assert_eq!(done.status.phase, PlanPhase::Completed);
    let ready = conditions::get(&done.status.conditions, READY).unwrap();
    assert_eq!(ready.status, "False", "two have failed");
}

#[test]
fn a_fleet_stops_when_clusters_fail_for_the_same_cause() {
    let spec = json!({"stopAfterFailures": 0, "sameCauseStops": 2, "clustersAtOnce": 3});
    let mut fleet = Fleet::new(spec, 5);
    fleet.look();
    fleet.end("c0", failed("DiskFull", 5));
    fleet.end("c1", failed("HostLost", 5));
    assert_eq!(names(&fleet.look()).len(), 2, "two causes");
    fleet.end("c2", MemberState::Stuck { cause: "DiskFull".into(), since: at(6) });
    let stopped = fleet.look();
    assert_eq!(ready(&stopped), "SameCauseFailures");
    fleet.end("c2", MemberState::Upgrading);
    assert_eq!(ready(&fleet.look()), "Progressing", "one that goes on has not failed");
}

#[test]
fn a_fleet_waits_for_its_time_and_while_it_is_paused() {
    let mut fleet = Fleet::new(json!({"startAt": at(30).to_string()}), 2);
    let waits = fleet.look();
    assert_eq!((ready(&waits), waits.again), ("Scheduled", Some(at(30))));
    fleet.plan.spec.paused = true;
    assert_eq!(ready(&fleet.look()), "Paused");
    fleet.plan.spec.paused = false;
    fleet.now = 30;
    assert_eq!(fleet.look().requests.len(), 2);
}

#[test]
fn a_cluster_with_an_upgrade_of_its_own_is_waited_for() {
    let mut fleet = Fleet::new(json!({}), 2);
    fleet.busy.push("c0".into());
    assert_eq!(names(&fleet.look()), ["c1"]);
    fleet.complete_all();
    let waits = fleet.look();
    let ready = conditions::get(&waits.status.conditions, READY).unwrap();
    assert!(ready.message.contains("1 Cluster has a ClusterUpgrade of its own"), "{ready:?}");
    fleet.busy.clear();
    assert_eq!(names(&fleet.look()), ["c0"]);
}

#[test]
fn a_cluster_that_is_gone_does_not_keep_its_wave_open() {
    let mut fleet = Fleet::new(json!({"clustersAtOnce": 1}), 2);
    fleet.look();
    fleet.complete_all();
    fleet.clusters.truncate(1);
    let done = fleet.look();
    assert_eq!((ready(&done), done.status.waves[0].size), ("Completed", 1));
}

#[test]
fn another_version_begins_with_the_first_wave() {
    let mut fleet = Fleet::new(json!({}), 2);
    fleet.look();
    fleet.complete_all();
    assert_eq!(ready(&fleet.look()), "Completed");
    fleet.plan.spec.version = "v1.37.0".parse().unwrap();
    fleet.members.clear();
    let again = fleet.look();
    assert_eq!((again.requests.len(), again.status.waves.len()), (2, 1));
}

#[test]
fn an_invalid_selector_requests_nothing() {
    let bad = json!({"clusterSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}});
    let stopped = Fleet::new(bad, 2).look();
    assert_eq!(ready(&stopped), "InvalidSelector");
    assert!(stopped.requests.is_empty());
}

#[test]
fn a_plan_selects_by_namespace_and_label() {
    let spec = json!({"namespaces": ["a"], "clusterSelector": {"matchLabels": {"site": "x"}}});
    let plan = plan(spec);
    let labels = |site: &str| BTreeMap::from([("site".to_owned(), site.to_owned())]);
    assert_eq!(selects(&plan, "a", &labels("x")), Ok(true));
    assert_eq!(selects(&plan, "b", &labels("x")), Ok(false));
    assert_eq!(selects(&plan, "a", &labels("y")), Ok(false));
}

#[test]
fn candidates_are_only_looked_for_where_a_wave_needs_them() {
    let mut fleet = Fleet::new(json!({}), 2);
    let without = |fleet: &Fleet| decide_fleet(&FleetSeen { candidates: None, ..fleet.seen() });
    assert!(without(&fleet).needs_candidates);
    fleet.look();
    assert!(!without(&fleet).needs_candidates, "the wave is full");
}

#[test]
fn the_state_of_a_member_is_that_of_its_upgrade() {
    let state = |status: serde_json::Value, tasks: &[Arc<UpgradeTask>]| {
        let spec = ClusterUpgradeSpec::to("v1.36.0".parse().unwrap());
        let mut upgrade = ClusterUpgrade::new("c", spec);
        upgrade.metadata.generation = Some(1);
        upgrade.status = serde_json::from_value(status).unwrap();
        MemberState::of(&upgrade, tasks, at(9))
    };
    let with = |phase: &str, reason: &str, more: serde_json::Value| {
        let mut record = json!({
            "version": "v1.36.0", "phase": phase, "requestedTime": at(1).to_string(), "task": "t",
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "observedGeneration": 1, "history": [record],
            "conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": at(1).to_string()}],
        })
    };
    assert_eq!(state(json!(null), &[]), MemberState::Waiting);
    assert_eq!(state(with("Pending", "Scheduled", json!({})), &[]), MemberState::Waiting);
    let never = state(with("Pending", "VersionNotReachable", json!({})), &[]);
    let cause = "VersionNotReachable".to_owned();
    assert_eq!(never, MemberState::Stuck { cause, since: at(1) });
    let under_way = with("Upgrading", "StepInProgress", json!({}));
    assert_eq!(state(under_way.clone(), &[]), MemberState::Upgrading);
    let mut older = under_way;
    older["observedGeneration"] = json!(0);
    assert_eq!(state(older, &[]), MemberState::Waiting);
    let step = json!([{"type": "ControlPlaneUpgraded", "status": "False", "reason": "StepError",
        "message": "", "startTime": at(2).to_string(), "lastTransitionTime": at(2).to_string()}]);
    let more = json!({"conditions": step, "startTime": at(2).to_string()});
    let stuck = with("Upgrading", "StepError", more);
    let by_step = MemberState::Stuck { cause: "ControlPlaneUpgraded".into(), since: at(2) };
    assert_eq!(state(stuck.clone(), &[]), by_step);
    let task: UpgradeTask = serde_json::from_value(json!({
        "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask", "metadata": {"name": "t"},
        "spec": {"clusterRef": {"name": "c"}, "version": "v1.36.0", "via": "Machines"},
        "status": {"phase": "Failed", "failures": [
            {"machine": "m", "nodeUpdate": "m-1", "reason": "DiskFull", "message": "", "at": at(5).to_string()},
        ]},
    }))
    .unwrap();
    let by_task = MemberState::Stuck { cause: "DiskFull".into(), since: at(5) };
    assert_eq!(state(stuck, &[Arc::new(task)]), by_task);
    let ended = json!({"completeTime": at(7).to_string(), "reason": "Cancelled"});
    assert_eq!(state(with("Failed", "Cancelled", ended.clone()), &[]), failed("Cancelled", 7));
    let done = MemberState::Completed { at: at(7) };
    assert_eq!(state(with("Completed", "Completed", ended), &[]), done);
}

proptest! {
    /// Clusters end at any time and in any way: none is in two waves, no wave begins before the one before has ended,
    /// limits hold, and in the end every cluster was requested.
    #[test]
    fn a_fleet_keeps_its_limits_and_ends(
        count in 0_usize..12,
        at_once in 1_i32..5,
        sizes in prop::collection::vec(prop_oneof![Just(None), (1_i32..6).prop_map(Some)], 0..4),
        ends in prop::collection::vec((any::<usize>(), any::<bool>()), 60),
    ) {
        let waves = sizes.iter().enumerate().map(|(at, size)| match size {
            Some(count) => json!({"name": at.to_string(), "count": count}),
            None => json!({"name": at.to_string()}),
        });
        let waves: Vec<_> = waves.collect();
        let spec = json!({
            "waves": waves, "clustersAtOnce": at_once, "stopAfterFailures": 0, "sameCauseStops": 0,
        });
        let mut fleet = Fleet::new(spec, count);
        for (which, fails) in ends {
            let decision = fleet.look();
            let under_way = fleet.members.iter().filter(|one| one.state.ended().is_none());
            prop_assert!(under_way.count() <= usize::try_from(at_once).unwrap());
            let mut all: Vec<_> = fleet.members.iter().map(|one| one.cluster.clone()).collect();
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), fleet.members.len(), "no cluster twice");
            let begun = decision.status.waves.len();
            prop_assert!(decision.status.waves.iter().take(begun.saturating_sub(1)).all(|one| one.ended.is_some()));
            let under_way: Vec<String> = fleet
                .members
                .iter()
                .filter(|one| one.state.ended().is_none())
                .map(|one| one.cluster.1.clone())
                .collect();
            if !under_way.is_empty() {
                let done = MemberState::Completed { at: at(fleet.now) };
                let state = if fails { failed("X", fleet.now) } else { done };
                fleet.end(&under_way[which % under_way.len()], state);
            }
        }
        let last = fleet.look();
        prop_assert_eq!(last.status.phase, PlanPhase::Completed);
        prop_assert_eq!(fleet.members.len(), count);
    }
}
