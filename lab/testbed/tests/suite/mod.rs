//! Runs flows on one bed, which the first flow starts and which ends after the last. A flow that
//! stops processes of its bed runs on a separate bed.
#![expect(clippy::print_stderr, reason = "a test prints where its logs are and how long it took")]

use std::{
    env, fs,
    path::Path,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use anyhow::Context as _;
use futures::future::LocalBoxFuture;
use lab_testbed::{
    Bed, Line,
    managers::InPlace,
    network,
    process::{Part, Program},
};
use libtest_mimic::{Arguments, Failed, Trial};
use refit_runtime::{
    Clock,
    process::{LogFormat, init_logs},
    tls,
};
use tokio::runtime::Runtime;

/// Number of parallel flows: most of the time they wait for Cluster API's next reconcile, which
/// costs nothing.
const AT_ONCE: usize = 5;
/// Set for the program that runs a flow on a separate bed.
const OWN: &str = "REFIT_TESTBED_OWN";

/// The bed that a flow runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The bed that all flows of a line share.
    Shared,
    /// A separate bed, because the flow stops processes.
    Own,
    /// A separate bed, whose Cluster API has its feature gate for updates in place off.
    WithoutInPlace,
}

impl On {
    fn in_place(self) -> InPlace {
        match self {
            Self::Shared | Self::Own => InPlace::On,
            Self::WithoutInPlace => InPlace::Off,
        }
    }
}

/// A test flow.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    /// Name of the flow, which states what it shows.
    pub(crate) name: &'static str,
    /// Lines on which the flow always runs; on the others it is an ignored test.
    pub(crate) lines: &'static [Line],
    /// The bed that the flow needs.
    pub(crate) on: On,
    /// The function that runs the flow.
    pub(crate) run: for<'a> fn(&'a Bed) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

/// The bed of this process, or why it could not start.
type Started = Arc<OnceLock<Result<Bed, String>>>;

/// Runs the flows of a line.
pub(crate) fn run(line: Line, flows: &[Flow]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
    init_logs("lab_testbed=info,warn", LogFormat::Text).expect("no other logger is installed");
    network::enter_own_namespace();
    tls::install_provider();
    let runtime = Arc::new(Runtime::new().expect("threads can be started"));
    let started = Started::default();
    let trials = flows
        .iter()
        .map(|flow| {
            // Without network namespaces there is only one bed, and such a flow uses it
            // exclusively.
            let second = network::in_own_namespace() && env::var_os(OWN).is_none();
            let trial = if flow.on != On::Shared && second {
                trial_elsewhere(*flow, line, runtime.clone())
            } else {
                trial(*flow, line, runtime.clone(), started.clone())
            };
            trial.with_ignored_flag(!flow.lines.contains(&line))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let bed = Arc::into_inner(started).and_then(OnceLock::into_inner);
    if let Some(Ok(bed)) = bed {
        let directory = bed.directory.clone();
        let guard = runtime.enter();
        drop(bed);
        drop(guard);
        if conclusion.has_failed() {
            eprintln!("the logs of the bed are in {}", directory.display());
        } else {
            // A later run removes what cannot be removed now.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
    conclusion.exit_code()
}

fn trial(flow: Flow, line: Line, runtime: Arc<Runtime>, started: Started) -> Trial {
    Trial::test(format!("{line}::{}", flow.name), move || {
        let bed = started.get_or_init(|| {
            let bed = runtime.block_on(Bed::start(line, flow.on.in_place()));
            bed.map_err(|error| format!("{error:#}"))
        });
        let bed = bed.as_ref().map_err(|why| Failed::from(why.clone()))?;
        let clock = Clock::real();
        let since = clock.now();
        let outcome = runtime.block_on(async {
            let run = (flow.run)(bed);
            run.await.with_context(|| flow.name)
        });
        eprintln!("{line} {}: {} s", flow.name, clock.elapsed(since).as_secs());
        outcome.map_err(|error| {
            Failed::from(format!("{error:#}\nlogs are in {}", bed.directory.display()))
        })
    })
}

/// Runs a flow in a separate program, network namespace and bed.
fn trial_elsewhere(flow: Flow, line: Line, runtime: Arc<Runtime>) -> Trial {
    let name = format!("{line}::{}", flow.name);
    Trial::test(name.clone(), move || {
        let program = Program {
            name: format!("{line}-{}", flow.name),
            path: env::current_exe()?,
            args: ["--exact", &name, "--nocapture", "--include-ignored"].map(str::to_owned).into(),
            env: [(OWN, "1"), (network::MARK, "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            restart: false,
        };
        runtime.block_on(async {
            let part = Part::start(program, Path::new(env!("CARGO_TARGET_TMPDIR")))?;
            if part.success().await {
                eprintln!("{}", part.tail());
                return Ok(());
            }
            // The failure from the summary of that program, else the last lines of its log.
            let text = fs::read_to_string(part.log()).unwrap_or_default();
            Err(Failed::from(match text.rsplit_once("\n---- ") {
                Some((_, why)) => why.to_owned(),
                None => part.over().await,
            }))
        })
    })
}
