//! `refit contract`: tests whether a provider follows the contract.

mod drive;
mod preconditions;
mod report;
mod request;
mod subject;
mod watched;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use refit_kinds::{refit::Role, version::KubernetesVersion};
use refit_predict::contract::{Definition, judge};

use self::{drive::Driver, report::report, subject::Subject};
use crate::{
    client, exit,
    global::GlobalArgs,
    plan::reader::Reader,
    printer::{Format, Printer},
    watch::time,
};

/// Exit code if a clause is broken.
const EXIT_BROKEN: u8 = 3;

/// Test a provider against the contract.
///
/// A provider is a controller of yours that updates machines for Refit; see docs/contract/README.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit contract test --template provider-test.yaml --machine edge-1-md-0-x7k2p")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drive a provider through updates of one machine, and report each clause of the contract.
    Test(Test),
}

/// Flags of `refit contract test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit contract test --template provider-test.yaml --machine edge-1-md-0-x7k2p
  refit contract test --template provider-test.yaml --machine edge-1-md-0-x7k2p \\
    --restart 'kubectl rollout restart deployment/memory-provider && kubectl rollout status deployment/memory-provider'

The provider must run and watch the cluster. The command makes objects from the template as Refit \
does, opens their gates, aborts and deletes some, and judges what the provider reports. It does not \
need Refit's controller, and does not drain.

CAUTION: the provider really updates the machine, maybe with a reboot. Use a machine that you can \
lose. Before the test, change what the provider is for, such as spec.memoryMiB of its \
infrastructure machine: the first run that is not aborted changes the machine.

FILE has the template, and the Updater that names it. From the Updater come the goal (its claims), \
what proves the change (verify) and the time limit (timeoutSeconds). Without an Updater, all \
of them are left out. A missing namespace is \"default\".

Runs, in this order: abort-at-stage, abort-at-upgrade, delete, update, repeat, other-machine. The \
objects are named contract-test-MACHINE-RUN-UPDATER and deleted after each run; what an interrupted test \
has left is deleted by the next one. If the provider does not end its work in time, the test ends \
after that run.

Before each run, nothing else may update the machine: no NodeUpdate that is not finished, and no other \
object of the provider's kind. Requests that fail without an answer, with 429 or with 5xx are sent again \
until --timeout. After an error or an interrupt the clauses are reported by the runs that have finished, and \
the error names the object that is left.

-o json writes one document: kept (whether no clause is broken), clauses [{clause, requirement, \
verdict (kept, broken, notTested), message}], and error if the test has ended early.

Exit codes:
  0  no clause is broken; some may not be tested
  1  the cluster cannot be read or written, the machine is in use, or FILE is invalid
  2  the command line is invalid
  3  a clause is broken
  130, 143  interrupted by Ctrl-C or SIGTERM")]
struct Test {
    /// File with the template, and the Updater that names it.
    #[arg(long, value_name = "FILE")]
    template: PathBuf,
    /// The Machine to update, in the namespace of --namespace, else of the template.
    #[arg(long, value_name = "NAME")]
    machine: String,
    /// Kubernetes version of the goal, if the provider brings machines to versions [default:
    /// spec.version of the Machine].
    #[arg(long, value_name = "VERSION")]
    to: Option<KubernetesVersion>,
    /// What the node is for kubeadm [default: control-plane or worker, by the Machine's label].
    #[arg(long, value_enum)]
    role: Option<RoleArg>,
    /// Restart the provider with this shell command after each gate opens in the run update.
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// Wait no longer than this duration for each step, such as 90s or 30m [default:
    /// timeoutSeconds of the Updater, 1h if it has none; 10m without an Updater].
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Watch for this duration whether the provider stays quiet while it has nothing to do.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    settle: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What a node is for kubeadm.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// The first control plane machine that gets the version.
    FirstControlPlane,
    /// Another control plane machine.
    ControlPlane,
    /// A worker.
    Worker,
}

impl From<RoleArg> for Role {
    fn from(arg: RoleArg) -> Self {
        match arg {
            RoleArg::FirstControlPlane => Self::FirstControlPlane,
            RoleArg::ControlPlane => Self::ControlPlane,
            RoleArg::Worker => Self::Worker,
        }
    }
}

/// Runs `refit contract`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let Command::Test(args) = &args.command;
    let printer = Printer::new(args.output, global);
    exit::block_on(async {
        match exit::unless_interrupted(Box::pin(read(args, global))).await {
            Ok(read) => {
                let (reader, subject, definition) = read?;
                let driver = Driver::new(reader, &subject, args, printer);
                test(driver, &definition, printer).await
            }
            Err(number) => Ok(exit::by_signal(number)),
        }
    })
}

/// Reads what is tested. Nothing is written yet.
async fn read(args: &Test, global: &GlobalArgs) -> anyhow::Result<(Reader, Subject, Definition)> {
    let mut cluster = client::connect(global).await?;
    let input = subject::load(&args.template)?;
    if global.namespace.is_none() {
        input.namespace().clone_into(&mut cluster.namespace);
    }
    let mut reader = Reader::new(cluster);
    let subject = Subject::read(&mut reader, input, args).await?;
    let definition = subject.definition(&reader.cluster).await?;
    Ok((reader, subject, definition))
}

/// Drives all runs, and reports on those that have finished.
async fn test(
    mut driver: Driver<'_>,
    definition: &Definition,
    printer: Printer,
) -> anyhow::Result<ExitCode> {
    let drive = async {
        if definition.can_run() {
            driver.remove_left_over().await?;
            driver.run_all().await?;
        }
        anyhow::Ok(())
    };
    let error = match exit::unless_interrupted(drive).await {
        Ok(ended) => ended.err().map(|error| driver.with_left_over(error)),
        Err(number) => Some(driver.interrupted_by(number)),
    };
    let kept = report(printer, &judge(definition, &driver.runs), error.as_ref());
    match error {
        Some(error) => Err(error),
        None => Ok(if kept? { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BROKEN) }),
    }
}
