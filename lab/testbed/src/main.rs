//! `lab-testbed up`: a test bed for interactive use.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use lab_testbed::{Bed, ClusterSpec, Line, directory, managers::InPlace};
use refit_runtime::{
    process::{LogFormat, init_logs, until_stopped},
    tls,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;

/// How long a bed may take to stop.
const END: Duration = Duration::from_mins(1);
/// How often `down` checks whether the bed has stopped.
const POLL: Duration = Duration::from_millis(200);

/// Run a real kube-apiserver, real Cluster API and Refit on loopback, without containers
#[derive(Debug, Parser)]
#[command(name = "lab-testbed", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a bed with one cluster, print how to use it, and run until Ctrl-C
    Up {
        /// Use this line of Cluster API: v1.12 or v1.14
        #[arg(long, default_value = "v1.14")]
        capi: Line,
        /// Number of workers of the cluster
        #[arg(long, default_value_t = 2)]
        workers: u32,
    },
    /// Stop the bed that `up` started
    Down,
}

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program prints its final error")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<ExitCode> {
    init_logs("lab_testbed=info,warn", LogFormat::Text)?;
    tls::install_provider();
    let Command::Up { capi, workers } = args.command else {
        down()?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Runtime::new().context("failed to create a runtime")?;
    let stop = CancellationToken::new();
    let outcome = runtime.block_on(until_stopped(up(capi, workers, &stop), &stop));
    runtime.shutdown_background();
    outcome
}

async fn up(line: Line, workers: u32, stop: &CancellationToken) -> anyhow::Result<()> {
    let file = pid_file()?;
    if let Some(pid) = running(&file) {
        anyhow::bail!(
            "a bed is already running or starting (process {}): stop it with `cargo xtask testbed \
             down`",
            pid.as_raw_nonzero()
        );
    }
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(&file, std::process::id().to_string())
        .with_context(|| format!("failed to write {}", file.display()))?;
    let serving = async {
        print_line("starting kube-apiserver, Cluster API and Refit: about a minute");
        let bed = Bed::start(line, InPlace::On).await?;
        print_line("creating cluster edge-1: about a minute");
        let spec = ClusterSpec { workers: vec![("md-0", workers, 0, 1)], ..ClusterSpec::default() };
        let _cluster = bed.cluster("edge-1", &spec).await?;
        print_line(&usage(&bed));
        std::future::pending::<anyhow::Result<()>>().await
    };
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => {
            print_line("the bed has stopped");
            Ok(())
        }
        outcome = serving => outcome,
    };
    // The file may be missing already.
    let _ = fs::remove_file(&file);
    outcome
}

#[expect(clippy::print_stdout, reason = "the output is for the user who started the bed")]
fn print_line(text: &str) {
    println!("{text}");
}

/// The commands to run next.
fn usage(bed: &Bed) -> String {
    let kubectl = bed.parts.kubectl.as_ref();
    let kubectl = kubectl.map_or_else(|| "kubectl".to_owned(), |path| path.display().to_string());
    let to = lab_testbed::cluster::TO;
    format!(
        "\nKubernetes {} with Cluster API {} and Refit is up; logs are in {}\n\n\
         In another terminal:\n  \
         export KUBECONFIG={}\n  \
         alias k='{kubectl} -n edge-1'\n  \
         k get machines,nodeupdates,hostplans\n\n\
         Plan and run an in-place upgrade, one machine after the other:\n  \
         cargo run -p refit -- plan cluster/edge-1 -n edge-1 --to {to}\n  \
         k patch kubeadmcontrolplane edge-1 --type merge -p '{{\"spec\":{{\"version\":\"{to}\"}}}}'\n  \
         k get nodeupdates -w\n\
         When the control plane is upgraded, upgrade the workers:\n  \
         k patch machinedeployment edge-1-md-0 --type merge -p '{{\"spec\":{{\"template\":{{\"spec\":{{\"version\":\"{to}\"}}}}}}}}'\n\n\
         Stop it with Ctrl-C or `cargo xtask testbed down`.",
        bed.parts.api_server.1,
        bed.parts.cluster_api_version,
        bed.directory.display(),
        bed.kubeconfig().display(),
    )
}

fn pid_file() -> anyhow::Result<PathBuf> {
    Ok(directory::cache()?.join("up.pid"))
}

/// The process that the file names, if that process is a bed.
fn running(file: &Path) -> Option<Pid> {
    let pid = Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?)?;
    let command_line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let command_line = String::from_utf8_lossy(&command_line);
    command_line.contains("lab-testbed").then_some(pid)
}

fn down() -> anyhow::Result<()> {
    let file = pid_file()?;
    let Some(pid) = running(&file) else {
        print_line("no bed is running");
        return Ok(());
    };
    kill_process(pid, Signal::TERM).context("failed to stop the bed")?;
    for _ in 0..END.as_millis() / POLL.as_millis() {
        if running(&file) != Some(pid) {
            print_line("the bed has stopped");
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    anyhow::bail!(
        "process {} did not exit within {} s: `kill -9 {0}` ends it and all its children",
        pid.as_raw_nonzero(),
        END.as_secs()
    )
}
