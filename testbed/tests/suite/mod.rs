//! Runs flows on one bed: started by the first of them, ended after the last.
#![expect(
    clippy::print_stderr,
    reason = "a test tells where its logs are, and how long it took"
)]

use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use anyhow::Context as _;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use refit_kube::{
    Clock,
    process::{LogFormat, init_logs},
    tls,
};
use refit_testbed::{Bed, Line, network};
use tokio::runtime::Runtime;

/// Flows at once: most of their time they wait for Cluster API's next look, which costs nothing.
const AT_ONCE: usize = 4;

/// One flow.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    /// What it shows, as a name of a test.
    pub(crate) name: &'static str,
    /// Whether it is run on a line where nobody asked for all of them.
    pub(crate) on: &'static [Line],
    /// Runs it.
    pub(crate) run: for<'a> fn(&'a Bed) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

/// The bed of this process, or why there is none.
type Started = Arc<OnceLock<Result<Bed, String>>>;

/// Runs the flows of a line.
pub(crate) fn run(line: Line, flows: &[Flow]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
    init_logs("refit_testbed=info,warn", LogFormat::Text).expect("nobody else writes logs");
    network::of_our_own();
    tls::install_provider();
    let runtime = Arc::new(Runtime::new().expect("threads can be started"));
    let started = Started::default();
    let all = cfg!(feature = "all");
    let trials = flows
        .iter()
        .filter(|flow| all || flow.on.contains(&line))
        .map(|flow| trial(*flow, line, runtime.clone(), started.clone()))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let bed = Arc::into_inner(started).and_then(OnceLock::into_inner);
    if let Some(Ok(bed)) = bed {
        let folder = bed.folder.clone();
        let guard = runtime.enter();
        drop(bed);
        drop(guard);
        if conclusion.has_failed() {
            eprintln!("the logs of the bed are in {}", folder.display());
        } else {
            // What cannot be removed now is removed by a later run.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    conclusion.exit_code()
}

fn trial(flow: Flow, line: Line, runtime: Arc<Runtime>, started: Started) -> Trial {
    Trial::test(format!("{line}::{}", flow.name), move || {
        let bed = started.get_or_init(|| {
            let bed = runtime.block_on(Bed::start(line));
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
            Failed::from(format!("{error:#}\nlogs are in {}", bed.folder.display()))
        })
    })
}
