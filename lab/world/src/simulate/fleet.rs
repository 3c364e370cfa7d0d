//! Runs with a fleet: next to the cluster, a ClusterUpgradePlan upgrades others. What operators do with it, and how its end is
//! judged. Its numbers are of a stream of their own, so that the rest of a seed stays what it is.

use refit_kinds::{
    json::{annotation, label, name, text, whole_condition},
    keys,
};
use serde_json::Value;

use super::{
    fault::{FaultKind, Setting, Version},
    plan::Step,
    rule::{Problem, Rule},
    shape::{FIRST_VERSION, Shape},
    tasks,
};
use crate::{
    fleet::{self, SITE},
    random::Random,
    script::session::Session,
};

/// Name of the plan.
const PLAN: &str = "fleet";
/// Number of Clusters.
const SITES: u32 = 4;
/// Makes the stream of a fleet another one than that of its seed.
const STREAM: u64 = 0x666c_6565_7400_0000;

/// The fleet of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    at_once: u32,
    stop_after: u32,
    /// How long the first two waves soak, in minutes.
    soaks: [u32; 2],
    /// Whether the plan has a wave for the last Cluster.
    has_last: bool,
    /// The Cluster for which an operator requests an upgrade.
    own: Option<u32>,
}

impl Fleet {
    /// Half of the worlds with an even seed and without an Updater or k8sd have a fleet.
    pub(super) fn of_seed(seed: u64, shape: &Shape) -> Option<Self> {
        let is_plain = shape.updater.is_none() && shape.snaps.is_none();
        (is_plain && seed % 4 == 2).then(|| Self::new(seed))
    }

    /// The fleet of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ STREAM);
        Self {
            at_once: random.between(1, 3),
            stop_after: random.between(0, 2),
            soaks: [random.between(0, 15), random.between(0, 5)],
            has_last: random.chance(1, 2),
            own: random.chance(1, 2).then(|| random.between(1, SITES)),
        }
    }

    pub(super) fn manifests() -> String {
        fleet::manifests(SITES, FIRST_VERSION)
    }

    fn versions() -> Version {
        Version { previous: FIRST_VERSION.to_owned(), now: "v1.35.0".to_owned(), upgrades: 1 }
    }

    /// The lines that request the upgrade of the fleet.
    pub(super) fn request(&self) -> Vec<String> {
        let own = self.own.map(|number| {
            format!(
                "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: ClusterUpgrade, \
                 metadata: {{name: {SITE}{number}, namespace: default}}, \
                 spec: {{version: v1.34.3, startWithinMinutes: 0}}}}\nEND"
            )
        });
        own.into_iter().chain([self.plan(&Self::versions().now)]).collect()
    }

    /// The line that creates the plan.
    fn plan(&self, version: &str) -> String {
        let Self { at_once, stop_after, soaks: [canary, half], .. } = self;
        let last = if self.has_last { ", {name: last}" } else { "" };
        format!(
            "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: ClusterUpgradePlan, \
             metadata: {{name: {PLAN}}}, spec: {{version: {version}, startWithinMinutes: 0, \
             clusterSelector: {{matchExpressions: [{{key: ring, operator: Exists}}]}}, \
             clustersAtOnce: {at_once}, stopAfterFailures: {stop_after}, waves: [\
             {{name: canary, count: 1, soakMinutes: {canary}, \
             clusterSelector: {{matchLabels: {{ring: canary}}}}}}, \
             {{name: half, percent: 50, soakMinutes: {half}}}{last}]}}}}\nEND"
        )
    }
}

/// Puts what happens to a fleet into the schedule of a seed: `faults` of these kinds, of which there must be one.
pub(super) fn insert(
    steps: &mut Vec<Step>,
    (seed, shape): (u64, &Shape),
    faults: usize,
    kinds: &[FaultKind],
) {
    let mut random = Random::new(seed ^ STREAM ^ 1);
    let mut version = Fleet::versions();
    let mut from = 0;
    for left in (1..=faults).rev() {
        // A fault that follows one that hides the world is part of that one.
        let may_be = |at: &usize| *at == 0 || !steps[*at - 1].kind.blinds();
        let places: Vec<usize> = (from..=steps.len()).filter(may_be).collect();
        let Some(last) = places.len().checked_sub(1) else { return };
        let early = &places[..=last / left];
        let at = *random.pick(early);
        let is_deleted = steps.iter().any(|step| step.kind == FaultKind::DeletePlan);
        // Created again twice, a plan would go back to an earlier version.
        let may_follow = |kind: &&FaultKind| !(is_deleted && **kind == FaultKind::DeletePlan);
        let kinds: Vec<FaultKind> = kinds.iter().filter(may_follow).copied().collect();
        if kinds.is_empty() {
            return;
        }
        let kind = *random.pick(&kinds);
        let machine = format!("{SITE}{}-1", random.between(1, SITES));
        let mut lines = vec![wait(&mut random, site(&machine))];
        let mut setting = Setting { shape, machine, version: &mut version };
        lines.extend(kind.script(&mut random, &mut setting));
        steps.insert(at, Step { kind, lines, otherwise: Vec::new() });
        from = at + 1;
    }
}

/// The Cluster of a machine.
fn site(machine: &str) -> &str {
    machine.rsplit_once('-').map_or(machine, |(site, _)| site)
}

/// The wait before a fault.
fn wait(random: &mut Random, site: &str) -> String {
    let of_plan = random.pick(&["Progressing", "Stopped"]);
    let of_site = random.pick(&["Pending", "Upgrading", "Upgrading", "Completed", "Failed"]);
    match random.between(0, 3) {
        0 => format!("wait {}s", random.between(1, 180)),
        1 => format!("wait clusterupgradeplan/{PLAN} status.phase={of_plan} 10m"),
        _ => format!("wait clusterupgrade/{site} status.phase={of_site} 10m"),
    }
}

/// An operator pauses the plan, and resumes it later.
pub(super) fn pause(random: &mut Random) -> Vec<String> {
    let field = format!("change clusterupgradeplan/{PLAN} spec.paused");
    vec![format!("{field} true"), format!("at {}m {field} -", random.between(1, 30))]
}

/// An operator edits the plan.
pub(super) fn edit(random: &mut Random, setting: &mut Setting<'_>) -> Vec<String> {
    let field = match random.between(0, 3) {
        0 => format!("clustersAtOnce {}", random.between(1, 3)),
        1 => format!("stopAfterFailures {}", random.between(0, 2)),
        2 => format!("sameCauseStops {}", random.between(0, 2)),
        _ => {
            setting.version.advance(false);
            format!("version {}", setting.version.now)
        }
    };
    vec![format!("change clusterupgradeplan/{PLAN} spec.{field}")]
}

/// An operator deletes the plan, and later creates it again.
pub(super) fn delete(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let again = setting.shape.fleet.as_ref().map(|fleet| fleet.plan(&setting.version.now));
    let again = again.map(|again| format!("at {}m {again}", random.between(1, 30)));
    [format!("delete clusterupgradeplan/{PLAN}")].into_iter().chain(again).collect()
}

/// An operator cancels an upgrade of the plan, and later lets it go on.
pub(super) fn cancel_upgrade(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let stage = format!("change clusterupgrade/{} spec.stage", site(&setting.machine));
    vec![format!("{stage} Abort"), format!("at {}m {stage} Ongoing", random.between(1, 30))]
}

/// An operator deletes an upgrade of the plan.
pub(super) fn delete_upgrade(setting: &Setting<'_>) -> Vec<String> {
    vec![format!("delete clusterupgrade/{}", site(&setting.machine))]
}

/// The upgrade of a Cluster fails, until an operator repairs its host and has its first update tried again.
pub(super) fn site_fails(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let machine = &setting.machine;
    let time = random.between(15, 45);
    vec![
        format!("break host {machine} step kubeadm-upgrade"),
        format!("at {time}m mend host {machine}"),
        format!(
            "at {time}m change machine/{machine} metadata.annotations.\"{}\" {machine}-1",
            keys::RETRY
        ),
    ]
}

/// Whether a plan has ended, and shows its last change.
pub(super) fn plan_has_ended(plan: &Value) -> bool {
    shows_its_spec(plan) && text(plan, "/status/phase") == "Completed"
}

fn shows_its_spec(plan: &Value) -> bool {
    plan["status"]["observedGeneration"] == plan["metadata"]["generation"]
}

/// What is wrong with plans in a world that had hours to settle. `were_deleted` is whether an operator has deleted upgrades.
pub(super) fn problems(session: &Session, were_deleted: bool) -> Vec<Problem> {
    let upgrades = session.world.cluster_upgrades();
    let clusters = session.world.management().list_values("cluster.x-k8s.io", "clusters", None);
    let sites: Vec<&str> =
        clusters.iter().filter(|one| label(one, "ring").is_some()).map(name).collect();
    let plans = session.world.cluster_upgrade_plans();
    let problem = |plan: &Value| {
        let (rule, what) = wrong_end(plan, &upgrades, &sites, were_deleted)?;
        let phase = text(plan, "/status/phase");
        let text = format!("ClusterUpgradePlan {} is {phase}, and {what}", name(plan));
        Some(Problem { rule, text: session.names.shown(&text) })
    };
    plans.iter().filter_map(problem).collect()
}

fn wrong_end(
    plan: &Value,
    upgrades: &[Value],
    sites: &[&str],
    were_deleted: bool,
) -> Option<(Rule, String)> {
    let ready = whole_condition(plan, "Ready");
    let of = |field: &str| ready.map_or("", |ready| text(ready, field));
    let (reason, message) = (of("/reason"), of("/message"));
    if message.is_empty() || !shows_its_spec(plan) {
        return Some((Rule::NotShown, "does not show what it waits for".to_owned()));
    }
    let is_member = |upgrade: &&Value| {
        label(upgrade, keys::PLAN) == Some(name(plan))
            && annotation(upgrade, keys::WAVE).is_some()
            && upgrade["spec"]["version"] == plan["spec"]["version"]
    };
    let members: Vec<&Value> = upgrades.iter().filter(is_member).collect();
    let is_failed = |upgrade: &&&Value| {
        let ready = whole_condition(upgrade, "Ready").map_or("", |ready| text(ready, "/reason"));
        text(upgrade, "/status/phase") == "Failed" || ready == "StepError"
    };
    let failed = members.iter().filter(is_failed).count();
    let requested = plan["status"]["counts"]["requested"].as_u64().unwrap_or_default();
    if requested != members.len() as u64 && !were_deleted {
        let what = format!("counts {requested} requested Clusters, not {}", members.len());
        return Some((Rule::NotShown, what));
    }
    let has = |site: &&&str| members.iter().any(|one| name(one) == **site);
    match text(plan, "/status/phase") {
        "Completed" => {
            let left_out = sites.iter().find(|site| !has(site)).filter(|_| !were_deleted)?;
            Some((Rule::TurnNeverComes, format!("has never requested {left_out}")))
        }
        "Stopped" => (reason == "Paused" || failed == 0)
            .then(|| (Rule::WaitOutlivesCause, format!("nothing keeps it so: {message}"))),
        _ => upgrades
            .iter()
            .filter(|upgrade| sites.contains(&name(upgrade)))
            .all(tasks::cluster_has_ended)
            .then(|| (Rule::WaitWithoutEnd, format!("nothing is under way: {message}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(phase: &str, reason: &str, requested: u64) -> Value {
        json!({
            "metadata": {"name": "fleet", "generation": 2},
            "spec": {"version": "v1.35.0"},
            "status": {
                "phase": phase, "observedGeneration": 2, "counts": {"requested": requested},
                "conditions": [{"type": "Ready", "reason": reason, "message": "m"}],
            },
        })
    }

    fn upgrade(site: &str, phase: &str, reason: &str) -> Value {
        json!({
            "metadata": {
                "name": site, "generation": 1,
                "labels": {keys::PLAN: "fleet"}, "annotations": {keys::WAVE: "0"},
            },
            "spec": {"version": "v1.35.0"},
            "status": {
                "phase": phase, "observedGeneration": 1,
                "conditions": [{"type": "Ready", "reason": reason, "message": "m"}],
            },
        })
    }

    fn rule(plan: &Value, upgrades: &[Value]) -> Option<Rule> {
        wrong_end(plan, upgrades, &["site-1", "site-2"], false).map(|(rule, _)| rule)
    }

    #[test]
    fn a_plan_must_end_as_its_upgrades_do() {
        let done = |site| upgrade(site, "Completed", "Completed");
        let both = [done("site-1"), done("site-2")];
        assert_eq!(rule(&plan("Completed", "Completed", 2), &both), None);
        // A Cluster is left out, or counted twice.
        let one = &both[..1];
        assert_eq!(rule(&plan("Completed", "Completed", 1), one), Some(Rule::TurnNeverComes));
        assert_eq!(rule(&plan("Completed", "Completed", 3), &both), Some(Rule::NotShown));
        // It goes on for ever.
        let progressing = plan("Progressing", "Progressing", 2);
        assert_eq!(rule(&progressing, &both), Some(Rule::WaitWithoutEnd));
        let under_way = [done("site-1"), upgrade("site-2", "Upgrading", "StepInProgress")];
        assert_eq!(rule(&progressing, &under_way), None);
    }

    #[test]
    fn a_plan_stops_for_a_failure_only() {
        let stopped = plan("Stopped", "TooManyFailures", 1);
        let stuck = upgrade("site-1", "Upgrading", "StepError");
        assert_eq!(rule(&stopped, &[stuck]), None);
        assert_eq!(rule(&stopped, &[upgrade("site-1", "Failed", "Cancelled")]), None);
        let done = [upgrade("site-1", "Completed", "Completed")];
        assert_eq!(rule(&stopped, &done), Some(Rule::WaitOutlivesCause));
        assert_eq!(rule(&plan("Stopped", "Paused", 1), &done), Some(Rule::WaitOutlivesCause));
    }

    #[test]
    fn a_plan_shows_its_last_change() {
        let mut plan = plan("Completed", "Completed", 0);
        plan["metadata"]["generation"] = json!(3);
        assert_eq!(rule(&plan, &[]), Some(Rule::NotShown));
    }
}
