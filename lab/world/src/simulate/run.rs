//! Runs the script of a plan and judges it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::SignedDuration;
use lab_apiserver::StoreEvent;
use refit_controller::{Canonical, Settings};
use refit_kinds::{json::text, refit};
use serde_json::Value;

use super::{
    Counts, end,
    fault::FaultKind,
    oracle::Oracle,
    plan::{MANIFESTS, Plan, Step},
    rule::{Problem, Rule},
};
use crate::{
    manifests,
    script::{
        command::Statement,
        look::running_step,
        parse,
        run::{Runner, Stop},
        session::Session,
        words,
    },
    sweep::Sabotage,
    world::{self, World, WorldOptions, lock},
};

/// How long a world may take to settle after the last line of its script.
const SETTLE: SignedDuration = SignedDuration::from_hours(2);
/// Interval between two checks whether it has settled.
const CHECK: SignedDuration = SignedDuration::from_mins(1);
/// Number of consecutive checks in which the world must be settled.
const REST: u32 = 6;
/// How long nothing may change in a world that is at rest although it has not settled.
const STILL: SignedDuration = SignedDuration::from_mins(30);

/// At the default, renewals would be half of all requests.
pub(super) const LEASE_RETRY: Duration = Duration::from_secs(5);

/// The last lines of a script.
const END: &str = "show machines\nshow updates\nshow groups\n";

/// A fault that took place.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) kind: FaultKind,
    /// The line of the script that injected it.
    pub(super) line: String,
}

/// Result of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) problems: Vec<Problem>,
    /// What happened of the faults of the plan.
    pub(super) happened: Vec<Happened>,
    pub(super) counts: Counts,
    /// The output of the script, and the state of the management cluster at the end.
    pub(super) output: String,
    /// The lines as they were run, as a script that runs to its end by itself.
    pub(super) script: String,
}

impl Run {
    /// The kinds of the faults that took place.
    pub(super) fn happened_kinds(&self) -> Vec<FaultKind> {
        self.happened.iter().map(|happened| happened.kind).collect()
    }
}

/// Runs a plan, with a safeguard disabled or not.
pub(super) fn run(plan: &Plan, sabotage: Option<Sabotage>) -> Run {
    panics::forget();
    let mut run = match world::runtime() {
        Ok(runtime) => runtime.block_on(run_in_world(plan, sabotage)),
        Err(error) => failed_to_start(format!("failed to create a runtime: {error}")),
    };
    let panics = panics::seen();
    run.problems.extend(panics.into_iter().map(|text| Problem { rule: Rule::Panic, text }));
    run
}

fn failed_to_start(text: String) -> Run {
    Run { problems: vec![Problem { rule: Rule::RunFailed, text }], ..Run::default() }
}

/// The panics of the tasks of a world, which all run in the thread of its simulation. The runtime
/// would only end the task.
mod panics {
    use std::{cell::RefCell, panic, sync::Once};

    thread_local! {
        static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn forget() {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let default = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                SEEN.with_borrow_mut(|seen| seen.push(info.to_string()));
                default(info);
            }));
        });
        SEEN.take();
    }

    pub(super) fn seen() -> Vec<String> {
        SEEN.take()
    }
}

async fn run_in_world(plan: &Plan, sabotage: Option<Sabotage>) -> Run {
    let manifests = plan.shape.manifests();
    let objects = match manifests::parse([(MANIFESTS, manifests.as_bytes())]) {
        Ok(loaded) => loaded.into_iter().map(|manifest| manifest.object).collect(),
        Err(error) => return failed_to_start(error.to_string()),
    };
    let mut options = WorldOptions {
        seed: plan.seed,
        two_controllers: plan.shape.standby,
        updater: plan.shape.has_hook(),
        provider: plan.shape.has_provider(),
        settings: Settings {
            canonical: match plan.shape.snaps {
                Some(_) => Canonical::ControllersAbsent,
                None => Canonical::Off,
            },
            ..Settings::default()
        },
        lease_retry: Some(LEASE_RETRY),
        ..WorldOptions::new(objects)
    };
    if let Some(sabotage) = sabotage {
        sabotage.apply(&mut options);
    }
    let world = match World::new(options).await {
        Ok(world) => world,
        Err(error) => return failed_to_start(error.to_string()),
    };
    if let Some(sabotage) = sabotage
        && let Err(error) = sabotage.apply_to(&world).await
    {
        return failed_to_start(error.to_string());
    }
    let seen = count(&world);
    let mut session = Session::new(world);
    session.oracle = Some(Oracle::default());
    let mut out = Vec::new();
    let mut runner = Runner {
        file: format!("seed {}", plan.seed),
        directories: Vec::new(),
        out: &mut out,
        session: Some(session),
    };
    let mut run = Run { script: plan.head(), ..Run::default() };
    let outcome = drive(&mut runner, plan, &mut run).await;
    if let Some(session) = runner.session.take() {
        run.problems = judge(&session, &run.happened, outcome);
        run.counts.add(&lock(&seen));
        run.output = listed(&session.world);
    }
    run.output.insert_str(0, &String::from_utf8_lossy(&out));
    run
}

/// The objects that a run is about, a line each.
fn listed(world: &World) -> String {
    let all = [world.machines(), world.node_updates(), world.update_groups()];
    all.iter().flatten().map(|object| object.to_string() + "\n").collect()
}

/// Counts phases and reasons, write by write.
fn count(world: &World) -> Arc<Mutex<Counts>> {
    let seen: Arc<Mutex<Counts>> = Arc::default();
    let counts = seen.clone();
    world.management().observe(Box::new(move |event: &StoreEvent<'_>| {
        let kind: &str = &event.resource.kind;
        let is_ours = &*event.resource.group == refit::GROUP;
        if !(is_ours || kind == "Event") || event.new.is_empty() {
            return;
        }
        let object: Value = serde_json::from_slice(event.new).unwrap_or_default();
        let old = event.old.and_then(|old| serde_json::from_slice::<Value>(old).ok());
        let old = old.unwrap_or_default();
        let counts = &mut *lock(&counts);
        for (pointer, into) in [
            ("/status/phase", &mut counts.phases),
            ("/status/failureReason", &mut counts.failures),
            ("/reason", &mut counts.events),
        ] {
            let now = text(&object, pointer);
            if !now.is_empty() && now != text(&old, pointer) {
                *into.entry(now.to_owned()).or_default() += 1;
            }
        }
        for pointer in ["/status/blockedBy", "/status/waiting"] {
            let reasons = |object: &Value| -> Vec<String> {
                let list = object.pointer(pointer).and_then(Value::as_array);
                let list = list.into_iter().flatten();
                list.map(|one| text(one, "/reason").to_owned()).collect()
            };
            let before = reasons(&old);
            for reason in reasons(&object).into_iter().filter(|one| !before.contains(one)) {
                *counts.reasons.entry(reason).or_default() += 1;
            }
        }
    }));
    seen
}

/// Runs all lines, and lets the world settle. A wait that is not met in time ends, and a line whose
/// object does not exist is skipped: the schedule was made without knowledge of the run.
async fn drive(runner: &mut Runner<'_>, plan: &Plan, run: &mut Run) -> Result<(), Stop> {
    run_lines(runner, &plan.start, run).await?;
    for Step { kind, lines, otherwise } in &plan.steps {
        let (all, done) = run_lines(runner, lines, run).await?;
        if all {
            *run.counts.faults.entry(kind.to_string()).or_default() += 1;
        } else {
            run_lines(runner, otherwise, run).await?;
        }
        let faults = done.into_iter().filter(|line| !line.starts_with("wait"));
        run.happened.extend(faults.map(|line| Happened { kind: *kind, line }));
    }
    let start = runner.session()?.world.now();
    let mut settled = 0;
    while settled < REST && !is_at_rest(runner.session()?) {
        if runner.session()?.world.now() > start + SETTLE {
            break;
        }
        if let Err(stop) = runner.pass(CHECK).await {
            continue_if_skipped(runner, stop)?;
        }
        let session = runner.session()?;
        let is_settled = session.later.is_empty() && end::is_settled(session);
        settled = if is_settled { settled + 1 } else { 0 };
    }
    let passed = runner.session()?.world.now().duration_since(start);
    run.script.push_str(&["wait ", &words::shown(passed), "\n", END].concat());
    Ok(())
}

/// Whether nothing changes any more, and nothing is due.
fn is_at_rest(session: &Session) -> bool {
    let updates = session.world.node_updates();
    session.later.is_empty()
        && session.still() >= STILL
        && updates.iter().all(|update| running_step(update).is_empty())
}

/// Runs lines; returns those that were carried out, and whether the last one, the fault itself, is
/// one of them. The first line may be a wait for something that never comes. Each other line needs
/// the ones before it.
async fn run_lines(
    runner: &mut Runner<'_>,
    lines: &[String],
    run: &mut Run,
) -> Result<(bool, Vec<String>), Stop> {
    let script = parse::lines(&lines.join("\n")).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Stop::Wrong(("script".to_owned(), problems.join("; "), "a valid script".to_owned()))
    })?;
    let (mut all, mut done) = (true, Vec::new());
    for (index, statement) in script.iter().enumerate() {
        all = run_line(runner, statement, run).await?;
        if all {
            done.push(runner.named(&statement.text));
        } else if index > 0 {
            break;
        }
    }
    Ok((all, done))
}

async fn run_line(
    runner: &mut Runner<'_>,
    statement: &Statement,
    run: &mut Run,
) -> Result<bool, Stop> {
    let text = &statement.text;
    runner.print_line(&format!("> {text}"))?;
    let start = runner.session()?.world.now();
    let outcome = runner.statement(statement).await;
    let passed = words::shown(runner.session()?.world.now().duration_since(start));
    let line = match &outcome {
        // In a script, a wait that runs out would be the end.
        Err(Stop::RanOut(_)) => format!("wait {passed}"),
        // A line for later was not possible.
        Err(Stop::Wrong(_)) if text.starts_with("wait") => format!("wait {passed}"),
        Err(Stop::Wrong(_)) => format!("# not possible: {}", text.replace('\n', " ")),
        Ok(()) | Err(_) => text.clone(),
    };
    run.script.push_str(&line);
    run.script.push('\n');
    match outcome {
        Ok(()) => Ok(true),
        Err(Stop::RanOut(_)) => Ok(false),
        Err(stop) => continue_if_skipped(runner, stop).map(|()| false),
    }
}

/// Goes on after a line, or a line for later, that names what does not exist any more.
fn continue_if_skipped(runner: &mut Runner<'_>, stop: Stop) -> Result<(), Stop> {
    match stop {
        Stop::Wrong(_) => runner.print_line(&format!("skipped: {}", stop.cause())),
        stop => Err(stop),
    }
}

fn judge(session: &Session, happened: &[Happened], outcome: Result<(), Stop>) -> Vec<Problem> {
    let world = &session.world;
    let of_world = |found: Vec<crate::invariants::Violation>| {
        found.into_iter().map(|violation| Problem {
            rule: Rule::of_invariant(violation.what.invariant),
            text: session.names.shown(&violation.to_string()),
        })
    };
    let mut problems: Vec<Problem> = of_world(world.violations()).collect();
    problems.extend(session.oracle.iter().flat_map(|oracle| oracle.problems.clone()));
    problems.extend(world.fence_breaks().iter().map(|fence_break| Problem {
        rule: Rule::Fence,
        text: session.names.shown(&fence_break.to_string()),
    }));
    for host in lock(&world.inner.hosts).values() {
        let host = lock(&host.state);
        problems.extend(host.repeated.iter().map(|command| {
            let text = format!("host {} ran {command} again after it had succeeded", host.node);
            Problem { rule: Rule::StepRepeated, text: session.names.shown(&text) }
        }));
    }
    if let Err(stop) = outcome
        && problems.is_empty()
    {
        problems.push(Problem { rule: Rule::RunFailed, text: stop.cause() });
    }
    if problems.is_empty() {
        problems.extend(end::problems(session, happened));
        if end::is_settled(session) || is_at_rest(session) {
            problems.extend(of_world(world.violations_at_rest()));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The objects at the end of a script.
    fn objects_after(manifests: &str, script: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(MANIFESTS), manifests).unwrap();
        let statements = parse::script("seed", script).unwrap();
        let mut out = Vec::new();
        let directories = vec![directory.path().to_owned()];
        let mut runner =
            Runner { file: "seed".to_owned(), directories, out: &mut out, session: None };
        world::runtime().unwrap().block_on(async {
            for statement in &statements {
                assert!(runner.statement(statement).await.is_ok(), "{}", statement.text);
            }
            let session = runner.session.take().unwrap();
            listed(&session.world)
        })
    }

    #[test]
    fn the_script_of_a_run_repeats_it() {
        for seed in [2, 8] {
            let plan = Plan::new(seed, 3, &[FaultKind::Kill, FaultKind::Budget, FaultKind::Pause]);
            let run = run(&plan, None);
            assert_eq!(run.problems, []);
            let repeated = objects_after(&plan.shape.manifests(), &run.script);
            assert!(repeated.len() > 1000 && run.output.ends_with(&repeated), "{}", run.script);
        }
    }
}
