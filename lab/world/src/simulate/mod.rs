//! Seeded fault simulation: breaks the world around Refit, and judges what Refit does.
//!
//! A seed gives a cluster, an upgrade and a schedule of faults, as a scenario script. The script runs
//! in a [`crate::world::World`] in which an oracle judges every write and every wait
//! ([`refit_core::invariants`], `oracle`). A run that fails is repeated with fewer faults, until
//! the shortest prefix of its schedule that still fails is found. The same seed gives the same run,
//! byte for byte.
//!
//! | module | is for |
//! |---|---|
//! | `shape`, `fault`, `failure`, `operator`, `plan` | what happens in the run of a seed |
//! | `run` | runs it |
//! | `rule` | what a run must keep |
//! | `oracle`, `cause`, `end` | judges it, during the run and at its end |
//! | `configure` | operators who change KubeadmConfigs |
//! | `fleet` | runs in which a ClusterUpgradePlan upgrades a fleet next to the cluster |
//! | `tasks` | runs in which UpgradeTasks upgrade the machines |
//! | `held` | runs in a namespace that holds replacements |
//! | `snaps` | runs in which k8sd refreshes the snaps of machines whose owners are annotated |
//! | `known` | failures that are known and not fixed yet |

mod cause;
mod configure;
mod end;
mod failure;
pub(crate) mod fault;
mod fleet;
mod held;
mod known;
mod operator;
mod oracle;
mod plan;
mod rule;
mod run;
mod shape;
mod snaps;
mod tasks;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use refit_core::report::Reason;
use refit_kinds::refit::Phase;
use strum::VariantArray as _;

pub use fault::FaultKind;
pub use known::{Known, KnownError};
pub(crate) use oracle::Oracle;
pub use rule::{Problem, Rule};

use crate::{sweep::Sabotage, world::lock};
use plan::Plan;
use run::Run;

/// Options of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// The seeds to run.
    pub seeds: Range<u64>,
    /// Number of faults in each run.
    pub faults: usize,
    /// The kinds of faults; all of them if empty.
    pub kinds: Vec<FaultKind>,
    /// The safeguard that is disabled.
    pub sabotage: Option<Sabotage>,
    /// Failures that are known.
    pub known: Vec<Known>,
    /// Number of worker threads.
    pub threads: usize,
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The problems of the shortest run that still fails.
    pub problems: Vec<Problem>,
    /// Kinds of the faults of that run, in their order.
    pub faults: Vec<FaultKind>,
    /// Manifests of its cluster.
    pub manifests: String,
    /// Its scenario script.
    pub script: String,
    /// The known finding that explains every problem.
    pub finding: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let faults = if faults.is_empty() { "no fault".to_owned() } else { faults.join(", ") };
        write!(f, "seed {} fails after {faults}", self.seed)?;
        if let Some(finding) = &self.finding {
            write!(f, " (known: {finding})")?;
        }
        for problem in &self.problems {
            write!(f, "\n    {problem}")?;
        }
        Ok(())
    }
}

/// Reasons that no world of the simulation can have.
const OUT_OF_REACH: [&str; 15] = [
    // Control planes have one member or three, and lack one only while their group does.
    "EtcdQuorum",
    // No certificate expires.
    "CertificateExpires",
    // Kubelets and images have one version.
    "VersionsNotComparable",
    // No kubelet runs short of anything.
    "NodePressure",
    // Every Machine has an owner.
    "NoGroup",
    // Cluster API and operators request updates of machines with a Node.
    "NoNode",
    // Every agent is as new as the controller.
    "AgentTooOld",
    // Agents can read all facts of their hosts.
    "HostUnreadable",
    // The API server rejects invalid HostSettings.
    "HostSettingsUnreadable",
    // Nor does a simulation create NodeDisruptionPolicies.
    "DisruptionPolicyUnreadable",
    "DisruptionPolicyConflict",
    // Operators set other files and flags in KubeadmConfigs than in HostSettings.
    "ConfigurationConflict",
    // No Updater has `host`.
    "OsImageConflict",
    "OsPackagesConflict",
    // Worlds are small.
    "ClusterTooLarge",
];

/// How often each fault, phase and reason occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that were injected.
    pub faults: BTreeMap<String, u64>,
    /// Phases of NodeUpdates that were written.
    pub phases: BTreeMap<String, u64>,
    /// Reasons of waits that were written.
    pub reasons: BTreeMap<String, u64>,
    /// Reasons of updates that failed or were stopped.
    pub failures: BTreeMap<String, u64>,
    /// Reasons of events, such as the verdicts of hooks.
    pub events: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        for (into, from) in [
            (&mut self.faults, &other.faults),
            (&mut self.phases, &other.phases),
            (&mut self.reasons, &other.reasons),
            (&mut self.failures, &other.failures),
            (&mut self.events, &other.events),
        ] {
            for (name, count) in from {
                *into.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// The faults, phases and reasons of waits that never occurred, except those out of reach.
    pub fn missing(&self) -> Vec<String> {
        let lacks = |known: &BTreeMap<String, u64>, name: &str| {
            (!known.contains_key(name)).then(|| name.to_owned())
        };
        let faults = FaultKind::VARIANTS.iter().map(ToString::to_string);
        let faults = faults.filter_map(|name| lacks(&self.faults, &name));
        let phases = Phase::VARIANTS.iter().map(|phase| format!("{phase:?}"));
        let phases = phases.filter_map(|name| lacks(&self.phases, &name));
        let reasons = Reason::all().filter(|name| !OUT_OF_REACH.contains(name));
        let reasons = reasons.filter_map(|name| lacks(&self.reasons, name));
        faults.chain(phases).chain(reasons).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |counts: &BTreeMap<String, u64>| {
            let all: Vec<String> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
            all.join(", ")
        };
        writeln!(f, "faults: {}", line(&self.faults))?;
        writeln!(f, "phases: {}", line(&self.phases))?;
        writeln!(f, "reasons: {}", line(&self.reasons))?;
        writeln!(f, "failures: {}", line(&self.failures))?;
        write!(f, "events: {}", line(&self.events))
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, Default)]
pub struct SimulationReport {
    /// Number of seeds that were run.
    pub seeds: u64,
    /// The runs that failed, in order of their seeds.
    pub failures: Vec<Failure>,
    /// What occurred.
    pub counts: Counts,
}

impl SimulationReport {
    /// The failures that no known finding explains.
    pub fn unknown(&self) -> impl Iterator<Item = &Failure> {
        self.failures.iter().filter(|failure| failure.finding.is_none())
    }

    /// How many failures each known finding explains.
    pub fn known(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for finding in self.failures.iter().filter_map(|failure| failure.finding.as_deref()) {
            *counts.entry(finding).or_default() += 1;
        }
        counts
    }
}

/// Runs a simulation. `watch` is called after each seed, with the number of finished seeds.
pub fn simulate(
    options: &SimulationOptions,
    mut watch: impl FnMut(u64, Option<&Failure>),
) -> SimulationReport {
    let next = AtomicU64::new(options.seeds.start);
    let counts = Mutex::new(Counts::default());
    let mut report = SimulationReport::default();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..options.threads.max(1) {
            let sender = sender.clone();
            let (next, counts) = (&next, &counts);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !options.seeds.contains(&seed) {
                        return;
                    }
                    let (run, failure) = simulate_seed(options, seed);
                    lock(counts).add(&run.counts);
                    if sender.send(failure).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for failure in receiver {
            report.seeds += 1;
            watch(report.seeds, failure.as_ref());
            report.failures.extend(failure);
        }
    });
    report.failures.sort_by_key(|failure| failure.seed);
    report.counts = counts.into_inner().unwrap_or_default();
    report
}

/// Runs one seed and, if it fails for an unknown reason, finds the shortest prefix of its faults
/// that still does.
fn simulate_seed(options: &SimulationOptions, seed: u64) -> (Run, Option<Failure>) {
    let plan = Plan::new(seed, options.faults, &options.kinds);
    let whole = run::run(&plan, options.sabotage);
    // A safeguard that is left out must be the cause of a failure.
    let fails_anyway = || !run::run(&plan, None).problems.is_empty();
    if whole.problems.is_empty() || options.sabotage.is_some() && fails_anyway() {
        return (whole, None);
    }
    let explained = |run: &Run| match options.sabotage {
        None => known::explain(&options.known, &run.happened_kinds(), &run.problems),
        Some(_) => None,
    };
    let shorter = || {
        (0..plan.steps.len()).find_map(|faults| {
            let plan = plan.prefix(faults);
            let run = run::run(&plan, options.sabotage);
            let fails = !run.problems.is_empty() && explained(&run).is_none();
            fails.then_some((plan, run))
        })
    };
    let finding = explained(&whole);
    let shortest = if finding.is_none() { shorter() } else { None };
    let (plan, run) = shortest.unwrap_or_else(|| (plan.clone(), whole.clone()));
    let failure = Failure {
        seed,
        problems: run.problems,
        faults: plan.steps.iter().map(|step| step.kind).collect(),
        manifests: plan.shape.manifests(),
        script: run.script,
        finding,
    };
    (whole, Some(failure))
}

/// The output of the run of a seed: the same on every machine.
pub fn transcript(options: &SimulationOptions, seed: u64) -> String {
    let plan = Plan::new(seed, options.faults, &options.kinds);
    let run = run::run(&plan, options.sabotage);
    let problems = run.problems.iter().map(|problem| format!("{problem}\n"));
    run.output + &problems.collect::<String>()
}
