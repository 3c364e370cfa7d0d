//! `refit-testbed up`: a bed for a person.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use refit_kube::{
    process::{LogFormat, init_logs, until_stopped},
    tls,
};
use refit_testbed::{Bed, ClusterSpec, Line, folder};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio_util::sync::CancellationToken;

/// Real kube-apiserver, real Cluster API and Refit on loopback, without containers.
#[derive(Debug, Parser)]
#[command(name = "refit-testbed", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a bed with one cluster, says how to use it, and runs until Ctrl-C
    Up {
        /// The line of Cluster API: v1.12 or v1.14
        #[arg(long, default_value = "v1.14")]
        capi: Line,
        /// How many workers the cluster has
        #[arg(long, default_value_t = 2)]
        workers: u32,
    },
    /// Ends the bed that `up` started
    Down,
}

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program's own last word")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<ExitCode> {
    init_logs("refit_testbed=info,warn", LogFormat::Text)?;
    tls::install_provider();
    let Command::Up { capi, workers } = args.command else {
        down()?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Runtime::new().context("no runtime can be made")?;
    let stop = CancellationToken::new();
    let outcome = runtime.block_on(until_stopped(up(capi, workers, &stop), &stop));
    runtime.shutdown_background();
    outcome
}

async fn up(line: Line, workers: u32, stop: &CancellationToken) -> anyhow::Result<()> {
    let file = pid_file()?;
    let serving = async {
        let bed = Bed::start(line).await?;
        fs::write(&file, std::process::id().to_string())
            .with_context(|| format!("{} cannot be written", file.display()))?;
        let spec = ClusterSpec {
            workers: vec![("md-0", workers, 0, 1)],
            ..ClusterSpec::default()
        };
        let _cluster = bed.cluster("edge-1", &spec).await?;
        say(&bed);
        std::future::pending::<anyhow::Result<()>>().await
    };
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        outcome = serving => outcome,
    };
    // What is not there need not go.
    let _ = fs::remove_file(&file);
    outcome
}

#[expect(clippy::print_stdout, reason = "it is for the person who started it")]
fn say(bed: &Bed) {
    let kubectl = bed.parts.kubectl.as_ref();
    let kubectl = kubectl.map_or_else(|| "kubectl".to_owned(), |path| path.display().to_string());
    println!(
        "Kubernetes {} with Cluster API {} and Refit is up; logs are in {}\n\n  \
         export KUBECONFIG={}\n  \
         {kubectl} -n edge-1 get machines,nodeupdates,hostplans\n\n\
         To see an upgrade in place, one machine after the other:\n  \
         {kubectl} -n edge-1 patch kubeadmcontrolplane edge-1 --type merge -p '{{\"spec\":{{\"version\":\"{}\"}}}}'\n  \
         {kubectl} -n edge-1 get nodeupdates -w\n\n\
         Ctrl-C ends it; nothing is left.",
        bed.parts.api_server.1,
        bed.parts.cluster_api_version,
        bed.folder.display(),
        bed.folder.join("admin.kubeconfig").display(),
        refit_testbed::cluster::TO,
    );
}

fn pid_file() -> anyhow::Result<PathBuf> {
    Ok(folder::cache()?.join("up.pid"))
}

fn down() -> anyhow::Result<()> {
    let file = pid_file()?;
    let Ok(text) = fs::read_to_string(&file) else {
        tracing::info!("no bed is up");
        return Ok(());
    };
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.with_context(|| format!("{} holds no process", file.display()))?;
    if test_kill_process(pid).is_ok() {
        kill_process(pid, Signal::TERM).context("the bed cannot be ended")?;
    }
    fs::remove_file(&file).with_context(|| format!("{} cannot be removed", file.display()))?;
    Ok(())
}
