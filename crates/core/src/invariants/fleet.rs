//! Invariant 10: the requests of ClusterUpgradePlans, judged from the JSON of the objects.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    json::{annotation, label, text, time, whole_condition},
    keys,
};
use serde_json::Value;

use super::{
    Invariant, Violation,
    observe::{CONTROLLER, violation},
    state::{Key, World},
};

/// For how long after a failure a request may follow that was decided before it.
const DECIDED_BEFORE: SignedDuration = SignedDuration::from_mins(2);
/// Reasons with which an upgrade that waits for its time never begins.
const NEVER: [&str; 3] = ["VersionNotReachable", "NotSupported", "Missing"];

/// A ClusterUpgrade.
#[derive(Clone, Debug)]
pub(super) struct Upgrade {
    spec: Value,
    /// Its plan, and its number among the waves of that plan.
    wave: Option<(String, usize)>,
    end: Option<End>,
    /// It had ended, or did not go on, and goes on without another request of the plan.
    went_on: bool,
}

/// How an upgrade has ended for its last request.
#[derive(Clone, Debug)]
struct End {
    /// `None` for one that has not ended, and does not go on.
    at: Option<Timestamp>,
    /// Why it has failed.
    failed: Option<String>,
}

impl Upgrade {
    fn of(value: &Value) -> Self {
        let plan = label(value, keys::PLAN).map(str::to_owned);
        let wave = annotation(value, keys::WAVE).and_then(|wave| wave.parse().ok());
        Self {
            spec: value["spec"].clone(),
            wave: plan.zip(wave),
            end: End::of(value),
            went_on: false,
        }
    }

    fn version(&self) -> &str {
        text(&self.spec, "/version")
    }

    fn plan(&self) -> &str {
        self.wave.as_ref().map_or("", |(plan, _)| plan)
    }

    fn has_ended(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.at.is_some())
    }
}

impl End {
    fn of(value: &Value) -> Option<Self> {
        let (spec, status) = (&value["spec"], &value["status"]);
        let mut records = status["history"].as_array().into_iter().flatten();
        let record = records.find(|record| record["version"] == spec["version"])?;
        if status["observedGeneration"] != value["metadata"]["generation"] {
            return None;
        }
        let ready = whole_condition(value, "Ready").map_or("", |ready| text(ready, "/reason"));
        let at = time(record, "/completeTime");
        match text(record, "/phase") {
            "Completed" => Some(Self { at, failed: None }),
            "Failed" => Some(Self { at, failed: Some(text(record, "/reason").to_owned()) }),
            "Upgrading" if ready == "StepError" => Some(Self { at: None, failed: None }),
            "New" | "Pending" if NEVER.contains(&ready) => Some(Self { at: None, failed: None }),
            _ => None,
        }
    }
}

/// A ClusterUpgradePlan.
#[derive(Clone, Debug)]
pub(super) struct FleetPlan {
    /// The specs that the controller may follow, the newest first: an earlier one until the status shows a later one.
    specs: Vec<Value>,
    status: Value,
}

impl World {
    /// Records a new state of a ClusterUpgradePlan.
    pub(super) fn fleet_plan(&mut self, name: &str, new: Option<&Value>) {
        let Some(new) = new else {
            self.fleet_plans.remove(name);
            return;
        };
        let plan = self
            .fleet_plans
            .entry(name.to_owned())
            .or_insert_with(|| FleetPlan { specs: Vec::new(), status: Value::Null });
        if plan.specs.first() != Some(&new["spec"]) {
            plan.specs.insert(0, new["spec"].clone());
        }
        if new["status"]["observedGeneration"] == new["metadata"]["generation"] {
            plan.specs.truncate(1);
        }
        plan.status = new["status"].clone();
    }

    /// Records a new state of a ClusterUpgrade, and judges a request of the controller.
    pub(super) fn cluster_upgrade(
        &mut self,
        key: &Key,
        new: Option<&Value>,
        actor: &str,
    ) -> Vec<Violation> {
        let before = self.upgrades.remove(key);
        let Some(mut after) = new.map(Upgrade::of) else { return Vec::new() };
        let is_request = before
            .as_ref()
            .is_none_or(|before| before.spec != after.spec || before.wave != after.wave);
        let mut found = Vec::new();
        if is_request && actor == CONTROLLER {
            let wrong = self.wrong_request(key, before.as_ref(), &after);
            let broken =
                |message| violation(Invariant::WavesKept, "ClusterUpgrade", &key.1, message);
            found.extend(wrong.map(broken));
        } else if let Some(before) = before.filter(|before| before.wave == after.wave) {
            after.went_on = before.went_on || before.end.is_some() && after.end.is_none();
        }
        self.upgrades.insert(key.clone(), after);
        found
    }

    /// Why a request must not be made; `None` if it may.
    fn wrong_request(&self, key: &Key, before: Option<&Upgrade>, new: &Upgrade) -> Option<String> {
        let Some((name, wave)) = &new.wave else {
            return Some("the controller changes it, and no plan has requested it".to_owned());
        };
        if let Some(before) = before {
            let by_plan = self.fleet_plans.get(before.plan());
            let is_of_plan = by_plan.is_some_and(|plan| {
                plan.specs.iter().all(|spec| text(spec, "/version") == before.version())
            });
            if before.wave.is_some() && before.version() == new.version() && is_of_plan {
                let by = before.plan();
                return Some(format!("plan {name} requests what plan {by} has requested before"));
            }
            if !before.has_ended() {
                return Some(format!("plan {name} replaces it, and it has not ended"));
            }
        }
        // A plan that was just deleted is judged no more.
        let plan = self.fleet_plans.get(name)?;
        let mut wrong = plan.specs.iter().map(|spec| self.breaks(spec, &plan.status, key, new));
        let first = wrong.next().flatten()?;
        wrong.all(|other| other.is_some()).then(|| format!("plan {name}, wave {wave}: {first}"))
    }

    /// What a request breaks of what the spec of its plan promises.
    fn breaks(&self, spec: &Value, status: &Value, key: &Key, new: &Upgrade) -> Option<String> {
        let (name, wave) = new.wave.as_ref()?;
        let number = |field: &str, default: u64| {
            let number = spec[field].as_u64().unwrap_or(default);
            usize::try_from(number).unwrap_or(usize::MAX)
        };
        if spec["paused"] == true {
            return Some("it is requested while the plan is paused".to_owned());
        }
        if text(spec, "/version") != new.version() {
            return Some("it is requested for another version than that of the plan".to_owned());
        }
        let begun = status["waves"].as_array().map_or(0, Vec::len);
        if begun != wave + 1 || text(status, "/version") != new.version() {
            return Some(format!("it is requested when {begun} waves have begun"));
        }
        let of_plan = || {
            let all = self.upgrades.iter().filter(|(other, _)| *other != key);
            all.map(|(_, one)| one).filter(move |one| one.plan() == name)
        };
        let at_once = number("clustersAtOnce", 10);
        let under_way = of_plan().filter(|one| one.end.is_none() && !one.went_on).count();
        if under_way >= at_once {
            return Some(format!("{under_way} others are under way, at most {at_once} may be"));
        }
        let members: Vec<(usize, &Upgrade)> = of_plan()
            .filter(|one| one.version() == new.version())
            .filter_map(|one| Some((one.wave.as_ref()?.1, one)))
            .collect();
        let before = members.iter().filter(|(of, _)| of < wave);
        if let Some((of, _)) = before.clone().find(|(_, one)| one.end.is_none() && !one.went_on) {
            return Some(format!("wave {of} has not ended"));
        }
        let at = time(&new.spec, "/startAt")?;
        let is_first = members.iter().all(|(of, _)| of != wave);
        let last = before.filter(|(of, _)| of + 1 == *wave);
        let last = last.filter_map(|(_, one)| one.end.as_ref()?.at).max();
        if let Some((last, of)) = last.filter(|_| is_first).zip(wave.checked_sub(1)) {
            let soak = spec["waves"][of]["soakMinutes"].as_i64().unwrap_or_default();
            if at.duration_since(last) < SignedDuration::from_mins(soak) {
                return Some(format!("wave {of} ended at {last}, and soaks {soak} minutes"));
            }
        }
        stopped(spec, &members, at)
    }
}

/// Why a plan has stopped for good before a time.
fn stopped(spec: &Value, members: &[(usize, &Upgrade)], at: Timestamp) -> Option<String> {
    let since = time(spec, "/failuresSince");
    let mut by_cause: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, member) in members {
        let Some(End { at: Some(failed_at), failed: Some(cause) }) = &member.end else { continue };
        let counts = since.is_none_or(|since| *failed_at > since);
        if counts && at.duration_since(*failed_at) > DECIDED_BEFORE {
            *by_cause.entry(cause).or_default() += 1;
        }
    }
    let reaches = |count: u64, field: &str, default: u64| {
        let limit = spec[field].as_u64().unwrap_or(default);
        limit > 0 && count >= limit
    };
    let failed: u64 = by_cause.values().sum();
    let is_stopped = reaches(failed, "stopAfterFailures", 1)
        || by_cause.values().any(|count| reaches(*count, "sameCauseStops", 3));
    is_stopped.then(|| format!("{failed} Clusters have failed, after which it stops"))
}
