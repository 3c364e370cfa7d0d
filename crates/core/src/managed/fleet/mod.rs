//! The waves of a ClusterUpgradePlan.
//!
//! What has been requested is seen by the ClusterUpgrades, which name their plan and their wave; the status of the plan adds
//! how many Clusters a wave has, which is decided when it begins. So after a crash a wave is filled up, and no Cluster is in
//! two of them.

mod member;

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::{Selector, SelectorExt as _};
use refit_cluster_api::IntOrPercent;
use refit_kinds::{
    conditions,
    refit::{
        ClusterCounts, ClusterUpgradePlan, ClusterUpgradePlanStatus, MAX_NAMED_CLUSTERS, MAX_WAVES,
        NamedCluster, PlanPhase, Wave, WaveStatus,
    },
};

pub use self::member::{Member, MemberState};
use crate::{
    managed::notifications::{self, Receivers},
    task::status::READY,
};

/// Name of the wave of the Clusters that no other one takes.
const REST: &str = "rest";

/// What precedes the name of a plan in `requestedBy` of its ClusterUpgrades.
const REQUESTED_BY: &str = "ClusterUpgradePlan ";

/// `requestedBy` of the ClusterUpgrades of a plan.
pub fn requester(plan: &str) -> String {
    format!("{REQUESTED_BY}{plan}")
}

/// The plan that has requested an upgrade, by its `requestedBy`.
pub fn plan_of(requested_by: &str) -> Option<&str> {
    requested_by.strip_prefix(REQUESTED_BY)
}

/// A Cluster that the plan may request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Namespace and name.
    pub cluster: (String, String),
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// It has a ClusterUpgrade of its own that has not ended.
    pub is_busy: bool,
}

/// What a plan is decided on.
#[derive(Clone, Debug)]
pub struct FleetSeen {
    /// The plan.
    pub plan: Arc<ClusterUpgradePlan>,
    /// The Clusters that it has requested for its version.
    pub members: Vec<Member>,
    /// How many Clusters it has requested for another version, whose upgrade has not ended.
    pub others_under_way: usize,
    /// Why a Cluster could not be requested when that was last tried.
    pub refused: Option<String>,
    /// The other Clusters that may be upgraded, by namespace and name; `None` if they were not looked for.
    pub candidates: Option<Vec<Candidate>>,
    /// The receivers of notifications.
    pub receivers: Receivers,
    /// The time of the look.
    pub now: Timestamp,
}

/// What is next for a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetDecision {
    /// The status.
    pub status: ClusterUpgradePlanStatus,
    /// The Clusters to request for the last wave of the status, which is to be written before.
    pub requests: Vec<(String, String)>,
    /// It can be decided only with the candidates.
    pub needs_candidates: bool,
    /// When the next look is due, apart from changes.
    pub again: Option<Timestamp>,
}

/// Whether a plan selects a Cluster by its namespace and labels.
///
/// # Errors
/// The selector is invalid.
pub fn selects(
    plan: &ClusterUpgradePlan,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Result<bool, String> {
    let spec = &plan.spec;
    let of_namespace =
        spec.namespaces.is_empty() || spec.namespaces.iter().any(|one| one == namespace);
    Ok(matches(spec.cluster_selector.as_ref(), labels)? && of_namespace)
}

fn matches(
    selector: Option<&LabelSelector>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(true) };
    let read = Selector::try_from(selector.clone()).map_err(|error| error.to_string())?;
    Ok(read.matches(labels))
}

/// Decides what is next for a plan.
pub fn decide_fleet(seen: &FleetSeen) -> FleetDecision {
    let spec = &seen.plan.spec;
    let old = seen.plan.status.clone().unwrap_or_default();
    let is_new = old.version.as_ref() != Some(&spec.version);
    let mut next = ClusterUpgradePlanStatus {
        version: Some(spec.version.clone()),
        observed_generation: seen.plan.metadata.generation,
        waves: if is_new { Vec::new() } else { old.waves.clone() },
        conditions: old.conditions.clone(),
        phase: if is_new { PlanPhase::Pending } else { old.phase },
        ..ClusterUpgradePlanStatus::default()
    };
    count(seen, &mut next);
    let mut step = Step { seen, status: &mut next, requests: Vec::new(), again: None };
    let shown = if step.status.phase == PlanPhase::Completed {
        Ok(step.completed())
    } else {
        step.advance()
    };
    let Step { requests, again, .. } = step;
    let needs_candidates = shown.is_err();
    if let Ok((phase, reason, message)) = shown {
        next.phase = phase;
        let ClusterCounts { requested, completed, .. } = next.counts;
        let is_ready = phase == PlanPhase::Completed && completed == requested;
        let status = if is_ready { "True" } else { "False" };
        let what = (READY, status, reason, &*message);
        conditions::set(&mut next.conditions, seen.now, next.observed_generation, what);
    }
    next.wave = wave_name(spec.waves.len(), &next.waves);
    notifications::note_plan(&old, &mut next, &seen.receivers, seen.now);
    FleetDecision { status: next, requests, needs_candidates, again }
}

/// The present wave, and how many there are.
fn wave_name(planned: usize, begun: &[WaveStatus]) -> String {
    let Some(last) = begun.last() else { return String::new() };
    format!("{} ({} of {})", last.name, begun.len(), planned.max(begun.len()))
}

/// Counts the members of each wave, and names those that are not done.
fn count(seen: &FleetSeen, next: &mut ClusterUpgradePlanStatus) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let counts = |of: &dyn Fn(&&Member) -> bool| {
        let of: Vec<&Member> = seen.members.iter().filter(of).collect();
        let is_completed =
            |member: &&&Member| matches!(member.state, MemberState::Completed { .. });
        ClusterCounts {
            requested: number(of.len()),
            completed: number(of.iter().filter(is_completed).count()),
            failed: number(of.iter().filter(|member| member.state.failure().is_some()).count()),
        }
    };
    next.counts = counts(&|_| true);
    for (at, wave) in next.waves.iter_mut().enumerate() {
        wave.counts = counts(&|member| member.wave == at);
    }
    let named = |member: &Member| {
        let (state, cause) = match &member.state {
            MemberState::Waiting => ("Waiting", ""),
            MemberState::Upgrading => ("Upgrading", ""),
            MemberState::Stuck { cause, .. } | MemberState::Failed { cause, .. } => {
                ("Failed", &**cause)
            }
            MemberState::Completed { .. } => return None,
        };
        let wave = next.waves.get(member.wave).map_or("", |wave| &wave.name);
        let (namespace, name) = member.cluster.clone();
        let (state, cause, wave) = (state.to_owned(), cause.to_owned(), wave.to_owned());
        Some(NamedCluster { namespace, name, wave, state, cause })
    };
    let mut clusters: Vec<NamedCluster> = seen.members.iter().filter_map(named).collect();
    clusters.sort_by_key(|one| (one.state != "Failed", one.namespace.clone(), one.name.clone()));
    clusters.truncate(MAX_NAMED_CLUSTERS);
    next.clusters = clusters;
}

/// How many Clusters, with the verb to have.
fn clusters_have(count: usize) -> String {
    if count == 1 { "1 Cluster has".to_owned() } else { format!("{count} Clusters have") }
}

/// The candidates are needed.
struct NeedsCandidates;

type Shown = (PlanPhase, &'static str, String);

struct Step<'a> {
    seen: &'a FleetSeen,
    status: &'a mut ClusterUpgradePlanStatus,
    requests: Vec<(String, String)>,
    again: Option<Timestamp>,
}

impl Step<'_> {
    fn advance(&mut self) -> Result<Shown, NeedsCandidates> {
        let spec = &self.seen.plan.spec;
        if let Some(why) = self.invalid_selector() {
            return Ok((PlanPhase::Stopped, "InvalidSelector", why));
        }
        if spec.paused {
            return Ok((
                PlanPhase::Stopped,
                "Paused",
                "no further Cluster is requested".to_owned(),
            ));
        }
        if let Some(shown) = self.too_many_failures() {
            return Ok(shown);
        }
        if let Some(at) = spec.start_at.as_ref().map(|at| at.0).filter(|at| *at > self.seen.now) {
            self.again = Some(at);
            let message = format!("the first wave begins at {at}");
            return Ok((PlanPhase::Pending, "Scheduled", message));
        }
        // Each turn begins a wave, of which there are only so many.
        loop {
            if let Some(shown) = self.present_wave()? {
                return Ok(self.with_refusal(shown));
            }
            if !self.begin_wave()? {
                return Ok(self.completed());
            }
        }
    }

    /// What has been refused is shown as long as it is requested again.
    fn with_refusal(&mut self, (phase, reason, message): Shown) -> Shown {
        let refused = self.seen.refused.as_ref().filter(|_| !self.requests.is_empty());
        let Some(why) = refused else { return (phase, reason, message) };
        self.status.refused.clone_from(why);
        (phase, "Refused", format!("{message}. A request was refused: {why}"))
    }

    fn completed(&self) -> Shown {
        let ClusterCounts { completed, failed, .. } = self.status.counts;
        let version = &self.seen.plan.spec.version;
        let message = match failed {
            0 if completed == 1 => format!("1 Cluster is upgraded to {version}"),
            0 => format!("{completed} Clusters are upgraded to {version}"),
            _ => {
                format!("{completed} Clusters are upgraded to {version}, and {failed} have failed")
            }
        };
        (PlanPhase::Completed, "Completed", message)
    }

    fn invalid_selector(&self) -> Option<String> {
        let spec = &self.seen.plan.spec;
        let waves = spec.waves.iter().map(|wave| wave.cluster_selector.as_ref());
        let mut all = waves.chain([spec.cluster_selector.as_ref()]);
        all.find_map(|selector| matches(selector, &BTreeMap::new()).err())
            .map(|error| format!("invalid clusterSelector: {error}"))
    }

    fn too_many_failures(&self) -> Option<Shown> {
        let spec = &self.seen.plan.spec;
        let since = spec.failures_since.as_ref().map(|time| time.0);
        let failures = self.seen.members.iter().filter_map(|member| {
            let (cause, at) = member.state.failure()?;
            since.is_none_or(|since| at > since).then_some((cause, &member.cluster))
        });
        let failures: Vec<_> = failures.collect();
        let named = |clusters: Vec<&(String, String)>| {
            let names =
                clusters.iter().take(5).map(|(namespace, name)| format!("{namespace}/{name}"));
            names.collect::<Vec<_>>().join(", ")
        };
        let reached = |count: usize, limit: i32| {
            limit > 0 && usize::try_from(limit).is_ok_and(|limit| count >= limit)
        };
        let mut by_cause: BTreeMap<&str, Vec<&(String, String)>> = BTreeMap::new();
        for (cause, cluster) in &failures {
            by_cause.entry(cause).or_default().push(cluster);
        }
        let remedy = "Repair them, or set failuresSince to go on";
        let mut causes = by_cause.into_iter();
        if let Some((cause, clusters)) =
            causes.find(|(_, of)| reached(of.len(), spec.same_cause_stops))
        {
            let count = clusters_have(clusters.len());
            let message = format!("{count} failed by {cause}: {}. {remedy}", named(clusters));
            return Some((PlanPhase::Stopped, "SameCauseFailures", message));
        }
        reached(failures.len(), spec.stop_after_failures).then(|| {
            let clusters = failures.iter().map(|(_, cluster)| *cluster).collect();
            let count = clusters_have(failures.len());
            let message = format!("{count} failed: {}. {remedy}", named(clusters));
            (PlanPhase::Stopped, "TooManyFailures", message)
        })
    }

    /// Fills the wave that was begun last, waits for its end, and for its soak; `None` if the next one may begin.
    fn present_wave(&mut self) -> Result<Option<Shown>, NeedsCandidates> {
        let Some(at) = self.status.waves.len().checked_sub(1) else { return Ok(None) };
        let goes_on = |member: &Member| member.wave == at && member.state.ended().is_none();
        if self.seen.members.iter().any(goes_on) {
            // A Cluster that did not go on does so again.
            self.status.waves[at].ended = None;
        }
        let wave = self.status.waves[at].clone();
        if wave.ended.is_none() {
            let members: Vec<&Member> =
                self.seen.members.iter().filter(|member| member.wave == at).collect();
            let wanted = usize::try_from(wave.size).unwrap_or_default();
            let lacks = wanted.saturating_sub(members.len());
            let mut waits_for_busy = 0;
            if lacks > 0 {
                waits_for_busy = self.fill(at, lacks)?;
            }
            let missing = lacks.saturating_sub(self.requests.len());
            let ends: Option<Vec<Timestamp>> =
                members.iter().map(|member| member.state.ended()).collect();
            let finds_no_more = waits_for_busy == 0 && self.room() > 0;
            let is_full = self.requests.is_empty() && (missing == 0 || finds_no_more);
            let Some(ends) = ends.filter(|_| is_full) else {
                return Ok(Some(self.progress(&wave, members.len(), waits_for_busy)));
            };
            let last = ends.into_iter().max().unwrap_or(self.seen.now);
            let size = i32::try_from(members.len()).unwrap_or(i32::MAX);
            let ended = &mut self.status.waves[at];
            (ended.ended, ended.size) = (Some(Time(last)), size);
        }
        Ok(self.soak(at))
    }

    fn progress(&self, wave: &WaveStatus, requested: usize, busy: usize) -> Shown {
        let ClusterCounts { completed, failed, .. } = wave.counts;
        let requested = requested + self.requests.len();
        let mut message = format!(
            "wave {}: {completed} of {} Clusters are upgraded, {failed} have failed, {requested} are requested",
            wave.name, wave.size
        );
        if busy > 0 {
            message = format!(
                "{message}; {} a ClusterUpgrade of its own that has not ended",
                clusters_have(busy)
            );
        }
        (PlanPhase::Progressing, "Progressing", message)
    }

    fn soak(&mut self, at: usize) -> Option<Shown> {
        let minutes = self.seen.plan.spec.waves.get(at)?.soak_minutes?;
        let wave = &self.status.waves[at];
        if wave.size == 0 {
            return None;
        }
        let until = wave.ended.as_ref()?.0.checked_add(SignedDuration::from_mins(minutes.into()));
        let until = until.ok().filter(|until| *until > self.seen.now)?;
        self.again = Some(until);
        let message = format!("wave {} soaks until {until}", wave.name);
        Some((PlanPhase::Progressing, "Soaking", message))
    }

    /// How many more Clusters may be under way.
    fn room(&self) -> usize {
        let under_way = self.seen.members.iter().filter(|member| member.state.ended().is_none());
        let limit = usize::try_from(self.seen.plan.spec.clusters_at_once).unwrap_or_default();
        limit.saturating_sub(under_way.count() + self.seen.others_under_way)
    }

    /// Requests Clusters for a wave; returns how many could be in it, and have an upgrade of their own.
    fn fill(&mut self, at: usize, lacks: usize) -> Result<usize, NeedsCandidates> {
        let room = self.room().min(lacks);
        if room == 0 {
            return Ok(0);
        }
        let fitting = self.fitting(self.seen.plan.spec.waves.get(at))?;
        let (busy, free): (Vec<&Candidate>, Vec<&Candidate>) =
            fitting.into_iter().partition(|one| one.is_busy);
        let requests = free.into_iter().take(room).map(|one| one.cluster.clone());
        let (requests, busy) = (requests.collect(), busy.len());
        self.requests = requests;
        Ok(busy)
    }

    /// The candidates that can be in a wave.
    fn fitting(&self, wave: Option<&Wave>) -> Result<Vec<&Candidate>, NeedsCandidates> {
        let candidates = self.seen.candidates.as_ref().ok_or(NeedsCandidates)?;
        let selector = wave.and_then(|wave| wave.cluster_selector.as_ref());
        let fits = |one: &&Candidate| matches(selector, &one.labels).unwrap_or_default();
        Ok(candidates.iter().filter(fits).collect())
    }

    /// Begins the next wave; returns whether there is one.
    fn begin_wave(&mut self) -> Result<bool, NeedsCandidates> {
        let waves = &self.seen.plan.spec.waves;
        let at = self.status.waves.len();
        let planned = waves.get(at);
        let fitting = self.fitting(planned)?.len();
        if planned.is_none() && fitting == 0 || at > MAX_WAVES {
            return Ok(false);
        }
        let left = self.seen.candidates.as_ref().map_or(0, Vec::len);
        let total = i64::try_from(self.seen.members.len() + left).unwrap_or(i64::MAX);
        let number = |count: i64| usize::try_from(count).unwrap_or_default();
        let size = match planned.map(|wave| (wave.count, wave.percent)) {
            Some((Some(count), _)) => number(count.into()),
            Some((None, Some(percent))) => {
                number(IntOrPercent::Percent(percent.into()).rounded_up(total))
            }
            Some((None, None)) | None => fitting,
        };
        self.status.waves.push(WaveStatus {
            name: planned.map_or(REST, |wave| &wave.name).to_owned(),
            size: i32::try_from(size.min(fitting)).unwrap_or(i32::MAX),
            counts: ClusterCounts::default(),
            since: Time(self.seen.now),
            ended: None,
        });
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
