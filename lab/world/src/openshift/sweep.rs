//! Kills refit-managed at every write of an upgrade, before and after it, and checks that the end is the same.
//!
//! The upgrade first runs undisturbed. Each point is the same run with the program killed at one of its writes: the write does
//! not happen, or it does and the program does not receive the response. It starts again after 2 s. In the end the cluster must
//! be as in the undisturbed run, and nothing may have been done twice: notifications, entries of the service log, silences,
//! and changes of objects other than the status of the UpgradeConfig.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use jiff::SignedDuration;
use refit_kinds::json::{flag, name, text};
use refit_openshift::config::Platform;
use refit_runtime::gate::Effect;
use serde_json::Value;

use super::{Kill, World, WorldOptions};
use crate::world::{self, Side, lock};

const VERSION: &str = "4.16.4";
const POLICY: &str = "p-1";
/// How long after the start of a run its upgrade is due.
const AHEAD: SignedDuration = SignedDuration::from_mins(10);
/// The longest upgrade, with a kill.
const LONGEST: SignedDuration = SignedDuration::from_hours(6);
/// How long a run goes on after its upgrade.
const AFTER: Duration = Duration::from_mins(10);
/// Interval between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// A point of a sweep.
#[derive(Clone, Debug)]
pub struct Point {
    /// When the program is killed.
    pub kill: Kill,
    /// The write.
    pub effect: Effect,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} write {}: {}", self.kill.side, self.kill.index, self.effect)
    }
}

/// A point that has failed, and why.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The point.
    pub point: Point,
    /// What differs.
    pub problem: String,
}

/// The result of a sweep.
#[derive(Clone, Debug)]
pub struct Report {
    /// The number of writes of the undisturbed run.
    pub writes: usize,
    /// The number of points that were run.
    pub points: usize,
    /// Those that have failed, in order.
    pub failures: Vec<Failure>,
}

/// The end of a run: what must not depend on a kill, by name.
type End = BTreeMap<String, String>;

/// Sweeps an upgrade of OSD: all points, or a number of them, evenly spread. Each finished point is shown.
pub fn sweep(
    wanted: Option<usize>,
    threads: usize,
    mut show: impl FnMut(usize, usize, Option<&Failure>),
) -> anyhow::Result<Report> {
    let (end, writes) = run(None).context("the undisturbed run failed")?;
    let points = points(&writes, wanted);
    let next = AtomicUsize::new(0);
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.max(1) {
            let sender = sender.clone();
            let (next, points, end) = (&next, &points, &end);
            scope.spawn(move || {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let failure = problem(point, end)
                        .map(|problem| Failure { point: point.clone(), problem });
                    if sender.send(failure).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (done, failure) in receiver.iter().enumerate() {
            show(done + 1, points.len(), failure.as_ref());
            failures.extend(failure);
        }
    });
    failures.sort_by_key(|failure| (failure.point.kill.index, failure.point.kill.side));
    Ok(Report { writes: writes.len(), points: points.len(), failures })
}

fn points(writes: &[Effect], wanted: Option<usize>) -> Vec<Point> {
    let sides = [Side::Before, Side::After];
    let at = |(index, effect): (usize, &Effect)| {
        let effect = effect.clone();
        sides.map(|side| Point { kill: Kill { index, side }, effect: effect.clone() })
    };
    let all: Vec<Point> = writes.iter().enumerate().flat_map(at).collect();
    match wanted {
        Some(wanted) if wanted < all.len() => {
            (0..wanted).map(|i| all[i * all.len() / wanted.max(1)].clone()).collect()
        }
        Some(_) | None => all,
    }
}

/// What differs at a point.
fn problem(point: &Point, wanted: &End) -> Option<String> {
    let (end, writes) = match run(Some(point.kill)) {
        Ok(outcome) => outcome,
        Err(error) => return Some(format!("{error:#}")),
    };
    if writes.get(point.kill.index) != Some(&point.effect) {
        return Some("the program was killed at another write".to_owned());
    }
    let names = wanted.keys().chain(end.keys().filter(|name| !wanted.contains_key(*name)));
    let of = |end: &End, name: &str| end.get(name).cloned().unwrap_or_else(|| "-".to_owned());
    let differences: Vec<String> = names
        .filter(|name| wanted.get(*name) != end.get(*name))
        .map(|name| format!("{name}: {}, expected {}", of(&end, name), of(wanted, name)))
        .collect();
    (!differences.is_empty()).then(|| differences.join("\n    "))
}

/// Runs an upgrade in a world of its own; returns its end and the writes of the program.
fn run(kill: Option<Kill>) -> anyhow::Result<(End, Vec<Effect>)> {
    world::runtime()?.block_on(async {
        let world = World::new(WorldOptions::new(Platform::Osd)).await?;
        let seen = observe(&world);
        if let Some(kill) = kill {
            world.arm(kill);
        }
        world.schedule(POLICY, VERSION, AHEAD);
        let late = world.now() + LONGEST;
        while lock(&seen).upgraded.is_none() {
            if world.now() > late {
                bail!("the upgrade does not end: {}", world.upgrade().unwrap_or_default());
            }
            world.pass(LOOK).await;
        }
        world.pass(AFTER).await;
        if kill.is_some() && !world.has_fired() {
            bail!("the program was not killed");
        }
        let seen = lock(&seen);
        let mut end = end(&world, seen.upgraded.as_ref().unwrap_or(&Value::Null));
        let changes = seen.changes.iter();
        end.extend(changes.map(|(what, count)| (what.clone(), count.to_string())));
        Ok((end, world.writes()))
    })
}

/// What the program has written.
#[derive(Debug, Default)]
struct Seen {
    /// How often it has changed objects other than UpgradeConfigs.
    changes: BTreeMap<String, usize>,
    /// The UpgradeConfig once it is complete, as it was last. The next sync deletes it.
    upgraded: Option<Value>,
}

fn observe(world: &World) -> Arc<Mutex<Seen>> {
    let seen = Arc::<Mutex<Seen>>::default();
    let noted = seen.clone();
    world.server().observe(Box::new(move |event| {
        if !event.user_agent.starts_with(super::program::USER_AGENT) {
            return;
        }
        let mut seen = lock(&noted);
        let plural = &event.resource.plural;
        if !plural.starts_with("upgradeconfigs") {
            *seen.changes.entry(format!("changes of {plural}")).or_default() += 1;
        } else if let Ok(upgrade) = serde_json::from_slice::<Value>(event.new)
            && text(&upgrade, "/status/history/0/phase") == "Upgraded"
        {
            seen.upgraded = Some(upgrade);
        }
    }));
    seen
}

/// The end of a run, with the last state of its UpgradeConfig.
fn end(world: &World, upgrade: &Value) -> End {
    let mut end = End::new();
    let mut note = |name: String, value: String| end.insert(name, value);
    let conditions = upgrade["status"]["history"][0]["conditions"].as_array().cloned();
    for condition in conditions.into_iter().flatten() {
        note(text(&condition, "/type").to_owned(), text(&condition, "/status").to_owned());
    }
    let server = world.server();
    for version in server.list_values("config.openshift.io", "clusterversions", None) {
        let history = version["status"]["history"].as_array().cloned().unwrap_or_default();
        let history: Vec<String> = history
            .iter()
            .map(|entry| format!("{} {}", text(entry, "/version"), text(entry, "/state")))
            .collect();
        note("history of the ClusterVersion".to_owned(), history.join(", "));
        note("spec of the ClusterVersion".to_owned(), version["spec"].to_string());
    }
    for node in server.list_values("", "nodes", None) {
        let (kubelet, uid) =
            (text(&node, "/status/nodeInfo/kubeletVersion"), text(&node, "/metadata/uid"));
        let cordoned = if flag(&node, "/spec/unschedulable") { ", cordoned" } else { "" };
        note(format!("node {}", name(&node)), format!("{kubelet}, {uid}{cordoned}"));
    }
    for set in server.list_values("machine.openshift.io", "machinesets", None) {
        note(format!("MachineSet {}", name(&set)), set["spec"]["replicas"].to_string());
    }
    if let Some(policy) = world.ocm().policy(POLICY) {
        note("policy".to_owned(), format!("{}: {}", policy.state, policy.description));
    }
    let asked = world.ocm().troubles().asked();
    let changes: Vec<&str> =
        asked.iter().filter(|one| one.starts_with("PATCH")).map(|one| &**one).collect();
    note("changes of the policy".to_owned(), changes.len().to_string());
    let logs = world.ocm().logs();
    let logs: Vec<&str> = logs.iter().map(|log| text(log, "/summary")).collect();
    note("service log".to_owned(), logs.join("; "));
    let mut silences: Vec<String> = world
        .silences()
        .iter()
        .map(|one: &Value| format!("{} {}", text(one, "/status/state"), text(one, "/comment")))
        .collect();
    silences.sort();
    note("silences".to_owned(), silences.join("; "));
    end
}
