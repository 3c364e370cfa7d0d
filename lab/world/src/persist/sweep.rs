//! Goes on from every prefix of a log and looks whether the end is the same.
//!
//! The demo's upgrade runs once, with its log in memory. A kill of the process at some moment leaves
//! a prefix of that log: all records up to one, and maybe half of the next. A restart reads the
//! prefix and goes on. The end must be that of the undisturbed run, from each of them.

use std::{
    fmt,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use serde_json::Value;

use super::{Log, folder};
use crate::{
    sweep::{EndState, Scenario, SweepError},
    world::{self, World, WorldOptions},
};

/// What a kill leaves of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// How many records are whole.
    pub records: usize,
    /// Whether half of the next one follows.
    pub torn: bool,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let torn = if self.torn { " and half of the next" } else { "" };
        write!(f, "{} records{torn}", self.records)
    }
}

/// An undisturbed run, its log and its end.
#[derive(Debug)]
pub struct PersistenceRun {
    log: Vec<u8>,
    /// Where each record ends.
    ends: Vec<usize>,
    scenario: Scenario,
    end: EndState,
}

/// How a sweep ended.
#[derive(Clone, Debug)]
pub struct KillReport {
    /// How many prefixes were gone on from.
    pub points: usize,
    /// Those that did not end well, with what was wrong.
    pub failures: Vec<(Prefix, Vec<String>)>,
}

impl PersistenceRun {
    /// Runs the demo's scenario with a log from the user's first change on.
    pub fn record(manifests: &[Value]) -> Result<Self, SweepError> {
        world::runtime()?.block_on(async {
            let scenario = Scenario::demo();
            let options = WorldOptions::new(manifests.to_vec());
            let world = World::new(options.clone()).await?;
            scenario.prepare(&world).await?;
            let up = world.snapshot();
            drop(world);
            let log = Log::in_memory();
            let options = WorldOptions { log: Some(log.clone()), ..options };
            let world = World::restore(&up, &options)?;
            scenario.start(&world).await?;
            scenario.finish(&world).await?;
            let end = EndState::of(&world);
            let mut problems = end.unrest();
            let violations = world.violations_at_rest();
            problems.extend(violations.iter().map(ToString::to_string));
            if !problems.is_empty() {
                return Err(SweepError::Undisturbed(problems.join("; ")));
            }
            let log = log.bytes();
            let ends = (1..=log.len()).filter(|end| log[end - 1] == b'\n');
            Ok(Self { ends: ends.collect(), log, scenario, end })
        })
    }

    /// How many records there are, the whole world at the start among them.
    pub fn records(&self) -> usize {
        self.ends.len()
    }

    /// What a kill at each record leaves, whole and torn; or a number of these, evenly spread.
    pub fn prefixes(&self, wanted: Option<usize>) -> Vec<Prefix> {
        let all = (1..=self.records()).flat_map(|records| {
            [false, true].map(|torn| Prefix { records, torn: torn && records < self.records() })
        });
        let mut all: Vec<Prefix> = all.collect();
        all.dedup();
        match wanted {
            // An odd step meets both kinds.
            Some(wanted) if wanted < all.len() => {
                (0..wanted).map(|i| all[(i * all.len() / wanted.max(1)) | (i & 1)]).collect()
            }
            _ => all,
        }
    }

    /// The bytes that a kill leaves.
    fn bytes(&self, prefix: Prefix) -> &[u8] {
        let whole = self.ends[prefix.records - 1];
        if !prefix.torn {
            return &self.log[..whole];
        }
        let next = self.ends[prefix.records];
        &self.log[..whole + (next - whole) / 2]
    }

    /// Goes on from a prefix and says what is wrong.
    pub fn go_on(&self, prefix: Prefix) -> Vec<String> {
        let name = std::path::Path::new("world.log");
        let kept = match folder::read(name, self.bytes(prefix)) {
            Ok(kept) => kept,
            Err(error) => return vec![error.to_string()],
        };
        let runtime = match world::runtime() {
            Ok(runtime) => runtime,
            Err(error) => return vec![format!("a runtime cannot be made: {error}")],
        };
        runtime.block_on(async {
            let world = match World::restore(&kept, &WorldOptions::new(Vec::new())) {
                Ok(world) => world,
                Err(error) => return vec![format!("the world cannot be restored: {error}")],
            };
            let mut problems = Vec::new();
            // The user's own writes may have been cut short, too; they are the same again.
            if let Err(error) = self.scenario.start(&world).await {
                problems.push(error.to_string());
            }
            if let Err(error) = self.scenario.finish(&world).await {
                problems.push(error.to_string());
            }
            problems.extend(world.violations_at_rest().iter().map(ToString::to_string));
            problems.extend(EndState::of(&world).differences(&self.end));
            problems
        })
    }

    /// Goes on from some prefixes, on some threads; `watch` is told of each.
    pub fn sweep(
        &self,
        prefixes: &[Prefix],
        threads: usize,
        mut watch: impl FnMut(usize, Prefix, &[String]),
    ) -> KillReport {
        let next = AtomicUsize::new(0);
        let mut failures = Vec::new();
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for _ in 0..threads.max(1) {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    while let Some(prefix) = prefixes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if sender.send((*prefix, self.go_on(*prefix))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (done, (prefix, problems)) in receiver.iter().enumerate() {
                watch(done + 1, prefix, &problems);
                if !problems.is_empty() {
                    failures.push((prefix, problems));
                }
            }
        });
        failures.sort_by_key(|(prefix, _)| (prefix.records, prefix.torn));
        KillReport { points: prefixes.len(), failures }
    }
}
